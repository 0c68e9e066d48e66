//! Which connections of `airdma sockets` may have a lane: the rules of a policy file.
//!
//! ```text
//! # ACTION  NETWORK         PORTS
//! kernel    any             22,443
//! lane      10.0.0.0/8      any
//! kernel    192.168.1.7     8000-8999
//! ```
//!
//! The first rule that matches a connection decides. `NETWORK` is the peer's address, `PORTS` the
//! port of the end that accepted, so that one file means the same at both ends. `;` ends a rule as
//! a line does.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Longest text in bytes: it travels in an environment variable, of which the kernel takes 128 KiB.
pub const TEXT_MAX: usize = 64 * 1024;

/// The rules, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    action: Action,
    network: Network,
    ports: Vec<RangeInclusive<u16>>,
}

/// What may become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It gets a lane if the peer has the library, too.
    Lane,
    /// It stays with the kernel.
    Kernel,
}

/// Addresses with the same first bits; those of IPv4 are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    base: u128,
    mask: u128,
}

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line of the text, from 1.
    pub line: usize,
    /// What is wrong there.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for Fault {}

impl FromStr for Policy {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Policy, Fault> {
        let fault = |line, message| Fault { line, message };
        if text.len() > TEXT_MAX {
            return Err(fault(1, format!("more than {TEXT_MAX} bytes of rules")));
        }
        let mut rules = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            for rule in line.split(';').filter(|rule| !rule.trim().is_empty()) {
                rules.push(Rule::read(rule).map_err(|message| fault(number, message))?);
            }
        }
        Ok(Policy { rules })
    }
}

impl Policy {
    /// The action of the first rule that matches a connection: `peer` is the address of the other
    /// end, `port` that of the end that accepted.
    pub fn action(&self, peer: IpAddr, port: u16) -> Option<Action> {
        let matches = |rule: &&Rule| {
            rule.network.contains(peer) && rule.ports.iter().any(|range| range.contains(&port))
        };
        self.rules.iter().find(matches).map(|rule| rule.action)
    }
}

impl Rule {
    fn read(text: &str) -> Result<Rule, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let &[action, network, ports] = words.as_slice() else {
            return Err(format!(
                "\"{}\" is not ACTION NETWORK PORTS, such as \"lane 10.0.0.0/8 any\"",
                text.trim()
            ));
        };
        Ok(Rule {
            action: match action {
                "lane" => Action::Lane,
                "kernel" => Action::Kernel,
                _ => return Err(format!("\"{action}\" is neither \"lane\" nor \"kernel\"")),
            },
            network: Network::read(network)?,
            ports: ports.split(',').map(read_ports).collect::<Result<_, _>>()?,
        })
    }
}

impl Network {
    fn read(text: &str) -> Result<Network, String> {
        if text == "any" {
            return Ok(Network { base: 0, mask: 0 });
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let ip: IpAddr = address.parse().map_err(|_| {
            format!("\"{text}\" is no network, such as 10.0.0.0/8, fd00::/8 or \"any\"")
        })?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let bits = match bits.map(str::parse::<u32>) {
            None => most,
            Some(Ok(bits)) if bits <= most => bits,
            Some(_) => return Err(format!("\"{text}\" has no prefix length from 0 to {most}")),
        };
        let mask = u128::MAX.checked_shl(most - bits).unwrap_or(0);
        let base = mapped(ip);
        if base & !mask != 0 {
            return Err(format!("\"{text}\" has bits beyond its prefix length"));
        }
        Ok(Network { base, mask })
    }

    fn contains(self, ip: IpAddr) -> bool {
        mapped(ip) & self.mask == self.base
    }
}

fn mapped(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
    .into()
}

fn read_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let fault = || format!("\"{text}\" is no port, such as 80, 8000-8999 or \"any\"");
    if text == "any" {
        return Ok(0..=u16::MAX);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn action(policy: &str, peer: &str, port: u16) -> Option<Action> {
        let policy: Policy = policy.parse().unwrap();
        policy.action(peer.parse().unwrap(), port)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = "
            # of any peer
            kernel any         22,443   # secure shell, TLS
            lane   10.0.0.0/8  any
            kernel fd00::/8    8000-8999,80; lane fd00::/8 any
        ";
        assert_eq!(action(policy, "10.1.2.3", 443), Some(Action::Kernel));
        assert_eq!(action(policy, "10.1.2.3", 444), Some(Action::Lane));
        assert_eq!(action(policy, "::ffff:10.1.2.3", 444), Some(Action::Lane));
        assert_eq!(action(policy, "11.1.2.3", 444), None);
        for (port, expected) in [
            (80, Action::Kernel),
            (7999, Action::Lane),
            (8000, Action::Kernel),
            (8999, Action::Kernel),
            (9000, Action::Lane),
        ] {
            assert_eq!(action(policy, "fd00::1", port), Some(expected), "{port}");
        }
        assert_eq!(action("", "10.1.2.3", 1), None);
    }

    #[test]
    fn an_address_is_a_network_of_one() {
        let policy = "lane 192.168.1.7 any\nkernel 0.0.0.0/0 any";
        assert_eq!(action(policy, "192.168.1.7", 1), Some(Action::Lane));
        assert_eq!(action(policy, "192.168.1.6", 1), Some(Action::Kernel));
        // IPv4 as a whole, and nothing of IPv6.
        assert_eq!(action(policy, "fd00::1", 1), None);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        for (text, said) in [
            (
                "\nlane any",
                "line 2: \"lane any\" is not ACTION NETWORK PORTS",
            ),
            ("rdma any any", "\"rdma\" is neither"),
            ("lane 10.0.0 any", "\"10.0.0\" is no network"),
            ("lane 10.0.0.0/33 any", "from 0 to 32"),
            ("lane 10.0.0.0/x any", "from 0 to 32"),
            ("lane 10.0.0.1/8 any", "bits beyond"),
            ("lane any 80-", "\"80-\" is no port"),
            ("lane any 90-80", "\"90-80\" is no port"),
            ("lane any 65536", "\"65536\" is no port"),
            ("lane any ,", "\"\" is no port"),
        ] {
            let fault = text.parse::<Policy>().unwrap_err().to_string();
            assert!(fault.contains(said), "{fault}");
        }
        let long = "#".repeat(TEXT_MAX + 1);
        assert!(long.parse::<Policy>().is_err());
    }
}
