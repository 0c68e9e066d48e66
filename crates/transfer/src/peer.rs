//! Whom a user means: an address, or a name.

use crate::PORT;
use airdma_files::session::PublicKey;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

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

/// A name that is nobody's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "nobody is called {name}: give an address, or a name that `airdma recv` shows there ({because})"
)]
pub struct NoPeer {
    /// The name.
    pub name: String,
    /// What was tried.
    pub because: String,
}

impl Peer {
    /// Who is meant by `192.0.2.1`, `192.0.2.1:7000`, `2001:db8::1`, `[2001:db8::1]:7000`, `name` or `name:7000`.
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
        let (name, port) = split(typed);
        let addresses = (name, port).to_socket_addrs().map_err(|error| NoPeer {
            name: name.to_owned(),
            because: error.to_string(),
        })?;
        Ok(Self {
            name: name.to_owned(),
            addresses: addresses.collect(),
            key: None,
        })
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
mod tests {
    use super::*;

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
