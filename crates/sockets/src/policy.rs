//! Which connections may have a lane.

use std::net::IpAddr;

/// Whether connections between two addresses may have one.
///
/// Loopback is left to the kernel, which nothing beats there, unless `AIRDMA_LOOPBACK=1` makes it a
/// device. Public addresses are too: a server would send a packet to port 4791 of each client.
pub fn allows(own: IpAddr, peer: IpAddr) -> bool {
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
        let allowed = |own: &str, peer: &str| allows(own.parse().unwrap(), peer.parse().unwrap());
        assert!(allowed("10.0.0.1", "10.0.0.2"));
        assert!(allowed("fd77::1", "fd77::2"));
        assert!(!allowed("10.0.0.1", "192.0.2.1"));
        assert!(!allowed("2001:db8::1", "2001:db8::2"));
    }
}
