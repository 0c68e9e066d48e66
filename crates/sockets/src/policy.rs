//! Which connections may have a lane.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use airdma_sockets_policy::{Action, Policy};

/// The variable with the rules of `airdma sockets --policy`.
const RULES: &str = "AIRDMA_SOCKETS_RULES";

/// Whether a connection may have one; `is_active`: this end connected.
pub fn allows(own: SocketAddr, peer: SocketAddr, is_active: bool) -> bool {
    static POLICY: OnceLock<Option<Policy>> = OnceLock::new();
    let policy = POLICY.get_or_init(of_environment);
    let Some(policy) = policy else {
        return false;
    };
    let port = if is_active { peer.port() } else { own.port() };
    match policy.action(peer.ip(), port) {
        Some(action) => action == Action::Lane,
        None => by_default(own.ip(), peer.ip()),
    }
}

/// The rules; `None` if they cannot be read, so that all connections stay with the kernel.
fn of_environment() -> Option<Policy> {
    let rules = std::env::var_os(RULES).unwrap_or_default();
    match rules.to_string_lossy().parse() {
        Ok(policy) => Some(policy),
        Err(fault) => {
            eprintln!("airdma sockets: {RULES}: {fault}; all connections stay with the kernel");
            None
        }
    }
}

/// Without a rule.
///
/// Loopback is left to the kernel, which nothing beats there, unless `AIRDMA_LOOPBACK=1` makes it a
/// device. Public addresses are too: a server would send a packet to port 4791 of each client.
fn by_default(own: IpAddr, peer: IpAddr) -> bool {
    if own.is_loopback() || peer.is_loopback() || own == peer {
        return std::env::var_os("AIRDMA_LOOPBACK").is_some_and(|value| value == "1");
    }
    is_private(peer)
}

fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn private_addresses_get_lanes_and_public_ones_none() {
        let allowed =
            |own: &str, peer: &str| by_default(own.parse().unwrap(), peer.parse().unwrap());
        assert!(allowed("10.0.0.1", "10.0.0.2"));
        assert!(allowed("fd77::1", "fd77::2"));
        assert!(!allowed("10.0.0.1", "192.0.2.1"));
        assert!(!allowed("2001:db8::1", "2001:db8::2"));
    }
}
