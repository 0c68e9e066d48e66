//! Whom a user means: an address, or a name.

use crate::Home;
use crate::PORT;
use crate::discovery::{Neighbour, neighbours};
use airdma_files::session::PublicKey;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// How long is looked for a name on this network.
const LOOK: Duration = Duration::from_secs(2);

/// A receiver that was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Under which its key is kept: what was typed, without the port.
    pub name: String,
    /// Where it listens, the best first.
    pub addresses: Vec<SocketAddr>,
    /// The key that it says it has.
    pub key: Option<PublicKey>,
}

/// Nobody who could be meant.
#[derive(Debug, thiserror::Error)]
pub enum NoPeer {
    /// A name that is nobody's.
    #[error(
        "nobody is called {name:?}, and it is no file here: give an address, or the name that `airdma recv` shows there{because}"
    )]
    Name {
        /// What was typed.
        name: String,
        /// In brackets, what made looking difficult.
        because: String,
    },
    /// No name was given, and nobody waits.
    #[error("no `airdma recv` waits on this network: start one, or give its address{0}")]
    Nobody(String),
    /// No name was given, and several wait.
    #[error("several wait, say which one: {0}")]
    Several(String),
}

impl Peer {
    /// Who is meant by `192.0.2.1`, `192.0.2.1:7000`, `2001:db8::1`, `[2001:db8::1]:7000`, `name` or `name:7000`. A name is looked for
    /// among those who wait on this network, and then as a host's.
    ///
    /// # Errors
    /// The name is nobody's.
    pub fn find(typed: &str) -> Result<Self, NoPeer> {
        if let Some(address) = address(typed) {
            return Ok(Self {
                name: address.ip().to_string(),
                addresses: vec![address],
                key: None,
            });
        }
        let is_meant = |neighbour: &Neighbour| neighbour.name.eq_ignore_ascii_case(typed);
        let around = neighbours(LOOK, is_meant);
        let because = around.as_ref().err().map(|error| format!(" ({error})"));
        if let Some(found) = around.into_iter().flatten().find(is_meant) {
            return Ok(Self {
                name: typed.to_owned(),
                ..found.into()
            });
        }
        let (name, port) = split(typed);
        let resolved = (name, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = resolved.into_iter().flatten().collect();
        if addresses.is_empty() {
            return Err(NoPeer::Name {
                name: name.to_owned(),
                because: because.unwrap_or_default(),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            addresses,
            key: None,
        })
    }

    /// The keys of which it must have one; without any it has to be met by a code. Those that were met under its name are all good: several
    /// users of a host, and hosts that had one address, are met under the same. Only a name that nobody was met under may be another name
    /// of whoever is known by the announced key; otherwise everybody known could take what is meant for another.
    pub fn expected(&self, home: &Home) -> Vec<PublicKey> {
        let met = home.keys(&self.name);
        if met.is_empty() {
            let announced = self.key.filter(|key| home.knows(key));
            return announced.into_iter().collect();
        }
        met
    }

    /// The only one who waits on this network.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn only() -> Result<Self, NoPeer> {
        let mut around =
            neighbours(LOOK, |_| false).map_err(|error| NoPeer::Nobody(format!(" ({error})")))?;
        match (around.pop(), &around[..]) {
            (Some(only), []) => Ok(only.into()),
            (Some(last), others) => {
                let names = others.iter().chain([&last]).map(|found| &*found.name);
                Err(NoPeer::Several(names.collect::<Vec<_>>().join(", ")))
            }
            (None, _) => Err(NoPeer::Nobody(String::new())),
        }
    }
}

impl From<Neighbour> for Peer {
    fn from(found: Neighbour) -> Self {
        Self {
            name: found.name,
            addresses: found.addresses,
            key: found.key,
        }
    }
}

/// An address, with a port or without.
fn address(typed: &str) -> Option<SocketAddr> {
    if let Ok(address) = typed.parse::<SocketAddr>() {
        return Some(address);
    }
    let bare = typed
        .strip_prefix('[')
        .and_then(|typed| typed.strip_suffix(']'))
        .unwrap_or(typed);
    let address = bare.parse::<IpAddr>().ok()?;
    Some(SocketAddr::new(address, PORT))
}

/// A name and its port.
fn split(typed: &str) -> (&str, u16) {
    let split = typed.rsplit_once(':');
    let with_port = split.and_then(|(name, port)| Some((name, port.parse().ok()?)));
    with_port.unwrap_or((typed, PORT))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use airdma_files::session::Identity;

    #[test]
    fn a_known_peer_that_takes_the_name_of_another_is_not_expected_there() {
        let directory =
            std::env::temp_dir().join(format!("airdma-transfer-expected-{}", std::process::id()));
        let home = Home::at(&directory).unwrap();
        let [anna, ben, stranger] = [(); 3].map(|()| Identity::draw().public());
        home.pin(anna, "Anna", true).unwrap();
        home.pin(ben, "Ben", true).unwrap();
        let expected = |name: &str, key| {
            let (name, addresses) = (name.to_owned(), Vec::new());
            Peer {
                name,
                addresses,
                key,
            }
            .expected(&home)
        };
        assert_eq!(expected("anna", Some(ben)), [anna]);
        assert_eq!(expected("anna", Some(stranger)), [anna]);
        assert_eq!(expected("elsewhere", Some(ben)), [ben]);
        assert_eq!(expected("elsewhere", Some(stranger)), []);
        // Another user of the same host.
        home.pin(stranger, "Anna", false).unwrap();
        let mut both = [anna, stranger];
        both.sort_unstable();
        assert_eq!(expected("anna", None), both);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn addresses_need_no_port_and_no_brackets() {
        for (typed, meant) in [
            ("192.0.2.1", "192.0.2.1:7479"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("2001:db8::1", "[2001:db8::1]:7479"),
            ("[2001:db8::1]", "[2001:db8::1]:7479"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(address(typed), meant.parse().ok(), "{typed}");
        }
        assert_eq!(address("anna"), None);
        assert_eq!(split("anna:80"), ("anna", 80));
        assert_eq!(split("anna"), ("anna", PORT));
        assert_eq!(split("anna:x"), ("anna:x", PORT));
    }
}
