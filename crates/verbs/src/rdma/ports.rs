//! Ports that identifiers of this process hold, by port space.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use super::abi::rdma_port_space;
use super::id::Options;
use crate::errno::Errno;
use airdma_preload::PerProcess;

/// The identifier that holds a port.
#[derive(Clone, Copy)]
struct Holder {
    cookie: u64,
    ip: IpAddr,
    /// Others may have it too (`RDMA_OPTION_ID_REUSEADDR`).
    reuse: bool,
    /// Its wildcard is one of its own family (`RDMA_OPTION_ID_AFONLY`).
    own_family: bool,
}

#[derive(Default)]
struct Table {
    held: HashMap<(rdma_port_space, u16), Vec<Holder>>,
    /// Ports that were chosen here.
    chosen: u32,
}

static TABLE: PerProcess<Table> = PerProcess::new();

/// Ports that are given to those who do not ask for one: the range of IANA (RFC 6335).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Why two may not have one port, as the kernel's RDMA CM says: a wildcard stands for both
/// families, unless both holders keep to their own.
fn conflict(a: &Holder, b: &Holder) -> Option<Errno> {
    let wildcard = a.ip.is_unspecified() || b.ip.is_unspecified();
    let is_apart = a.own_family && b.own_family && a.ip.is_ipv4() != b.ip.is_ipv4();
    if (a.reuse && b.reuse) || is_apart {
        None
    } else if wildcard {
        Some(Errno(libc::EADDRNOTAVAIL))
    } else {
        (a.ip == b.ip).then_some(Errno(libc::EADDRINUSE))
    }
}

/// Takes the port of an address for an identifier, or some free one for port 0; answers which.
///
/// # Errors
/// `EADDRINUSE`; `EADDRNOTAVAIL` if one of the addresses is a wildcard, where sockets say
/// `EADDRINUSE`, and when no port is left.
pub fn take(
    space: rdma_port_space,
    address: &SocketAddr,
    options: &Options,
    cookie: u64,
) -> Result<u16, Errno> {
    let mut table = TABLE.lock();
    let holder = Holder {
        cookie,
        ip: address.ip(),
        reuse: options.reuse,
        own_family: options.own_family,
    };
    let port = if address.port() != 0 {
        let others = table.held.get(&(space, address.port()));
        let mut others = others.into_iter().flatten();
        if let Some(errno) = others.find_map(|other| conflict(other, &holder)) {
            return Err(errno);
        }
        address.port()
    } else {
        let start = first_choice(std::process::id(), pid_namespace(), table.chosen);
        table.chosen = table.chosen.wrapping_add(1);
        free_port(&table, space, start)?
    };
    table.held.entry((space, port)).or_default().push(holder);
    Ok(port)
}

const EPHEMERAL_COUNT: u32 = (*EPHEMERAL.end() - *EPHEMERAL.start()) as u32 + 1;

/// The port that a process tries first. The choices of other processes are known when they listen,
/// so processes that start together, whose numbers are close, begin at different ports and go on
/// with strides. (Ports drawn by lot would meet once in 16 runs of 50 processes.)
fn first_choice(process: u32, namespace: u64, chosen: u32) -> u32 {
    let namespace = (namespace.wrapping_mul(GOLDEN) >> 32) as u32;
    let sum = process
        .wrapping_add(namespace)
        .wrapping_add(chosen.wrapping_mul(STRIDE));
    sum % EPHEMERAL_COUNT
}

/// 2^64 divided by the golden ratio, which spreads what lies close together (Knuth, volume 3, 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Odd, so that all of the range is visited; the range divided by the golden ratio, as above.
const STRIDE: u32 = 10_125;

/// Numbers of processes mean something together with their namespace.
fn pid_namespace() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    // A child in another namespace than its parent has another number at least.
    *NUMBER.get_or_init(|| {
        let metadata = std::fs::metadata("/proc/self/ns/pid");
        metadata.map_or(0, |metadata| metadata.ino())
    })
}

fn free_port(table: &Table, space: rdma_port_space, start: u32) -> Result<u16, Errno> {
    (0..EPHEMERAL_COUNT)
        .map(|step| EPHEMERAL.start() + ((start + step) % EPHEMERAL_COUNT) as u16)
        .find(|port| !table.held.contains_key(&(space, *port)))
        .ok_or(Errno(libc::EADDRNOTAVAIL))
}

/// The identifier does not need its port any more.
pub fn give_back(space: rdma_port_space, port: u16, cookie: u64) {
    let mut table = TABLE.lock();
    if let Some(holders) = table.held.get_mut(&(space, port)) {
        holders.retain(|holder| holder.cookie != cookie);
        if holders.is_empty() {
            table.held.remove(&(space, port));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::abi::{RDMA_PS_TCP, RDMA_PS_UDP};
    use super::*;

    const ALONE: Options = Options {
        tos: 0,
        reuse: false,
        own_family: false,
        ack_timeout: None,
    };
    const SHARED: Options = Options {
        reuse: true,
        ..ALONE
    };
    const OWN_FAMILY: Options = Options {
        own_family: true,
        ..ALONE
    };

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    const IN_USE: Result<u16, Errno> = Err(Errno(libc::EADDRINUSE));
    const WILDCARD: Result<u16, Errno> = Err(Errno(libc::EADDRNOTAVAIL));

    #[test]
    fn a_port_is_held_per_space_and_address() {
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), &ALONE, 1), Ok(700));
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), &ALONE, 2), IN_USE);
        assert_eq!(take(RDMA_PS_TCP, &at("0.0.0.0:700"), &SHARED, 2), WILDCARD);
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.2:700"), &ALONE, 3), Ok(700));
        assert_eq!(take(RDMA_PS_TCP, &at("[fd00::1]:700"), &ALONE, 4), Ok(700));
        assert_eq!(take(RDMA_PS_UDP, &at("10.0.0.1:700"), &ALONE, 5), Ok(700));
        give_back(RDMA_PS_TCP, 700, 1);
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), &SHARED, 6), Ok(700));
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), &SHARED, 7), Ok(700));
        for cookie in 1..=7 {
            give_back(RDMA_PS_TCP, 700, cookie);
            give_back(RDMA_PS_UDP, 700, cookie);
        }
    }

    #[test]
    fn a_wildcard_is_for_both_families_unless_both_are_limited() {
        assert_eq!(take(RDMA_PS_TCP, &at("0.0.0.0:701"), &ALONE, 21), Ok(701));
        assert_eq!(
            take(RDMA_PS_TCP, &at("[::]:701"), &OWN_FAMILY, 22),
            WILDCARD
        );
        give_back(RDMA_PS_TCP, 701, 21);
        assert_eq!(
            take(RDMA_PS_TCP, &at("0.0.0.0:701"), &OWN_FAMILY, 21),
            Ok(701)
        );
        assert_eq!(take(RDMA_PS_TCP, &at("[::]:701"), &ALONE, 22), WILDCARD);
        assert_eq!(take(RDMA_PS_TCP, &at("[::]:701"), &OWN_FAMILY, 22), Ok(701));
        assert_eq!(
            take(RDMA_PS_TCP, &at("[fd00::1]:701"), &ALONE, 23),
            WILDCARD
        );
        give_back(RDMA_PS_TCP, 701, 21);
        give_back(RDMA_PS_TCP, 701, 22);
    }

    #[test]
    fn processes_that_start_together_choose_different_ports() {
        let mut chosen = std::collections::HashSet::new();
        for process in 0..500 {
            for port in 0..8 {
                assert!(chosen.insert(first_choice(70_000 + process, 4_026_531_836, port)));
            }
        }
        assert_ne!(
            first_choice(1, 4_026_531_836, 0),
            first_choice(1, 4_026_531_837, 0)
        );
    }

    #[test]
    fn who_asks_for_none_gets_one_of_its_own() {
        let any = at("0.0.0.0:0");
        let first = take(RDMA_PS_TCP, &any, &ALONE, 11).unwrap();
        let second = take(RDMA_PS_TCP, &any, &ALONE, 12).unwrap();
        assert!(EPHEMERAL.contains(&first) && EPHEMERAL.contains(&second));
        assert_ne!(first, second);
        give_back(RDMA_PS_TCP, first, 11);
        give_back(RDMA_PS_TCP, second, 12);
    }
}
