//! The far end of a packet: an IP address, or an Ethernet address on one interface.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Gid;

/// One end of a packet's way. Only ports, which write and read the headers in front of a BTH, ask
/// what it is made of; everything above them compares it.
///
/// Its GID is that of the IP address, or (IBTA A16.5.1) the link-local one that is made of the
/// Ethernet address.
///
/// ```
/// use airdma_wire::{Gid, Neighbour};
/// use std::net::IpAddr;
///
/// let here = Neighbour::from(IpAddr::from([192, 0, 2, 1]));
/// let there = here.peer(Gid::from(IpAddr::from([192, 0, 2, 2])));
/// assert_eq!(there, IpAddr::from([192, 0, 2, 2]).into());
/// assert_eq!(Gid::from(there).to_string(), "0000:0000:0000:0000:0000:ffff:c000:0202");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    gid: Gid,
    /// The interface behind which an Ethernet address lies; 0 for an IP address.
    interface: u32,
}

impl Neighbour {
    /// The host with this Ethernet address behind the interface of this index, which is not 0.
    pub fn ethernet(address: [u8; 6], interface: u32) -> Self {
        let [a, b, c, d, e, f] = address;
        let identifier = [a ^ LOCAL_BIT, b, c, 0xff, 0xfe, d, e, f];
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&LINK_LOCAL);
        gid[8..].copy_from_slice(&identifier);
        Neighbour {
            gid: Gid(gid),
            interface,
        }
    }

    /// The host that this one, a local address, reaches as `gid`.
    #[inline]
    pub fn peer(self, gid: Gid) -> Self {
        Neighbour {
            gid,
            interface: self.interface,
        }
    }

    /// The IP address, if that is what it is.
    #[inline]
    pub fn ip(self) -> Option<IpAddr> {
        (self.interface == 0).then(|| self.gid.to_ip())
    }

    /// The Ethernet address and the index of its interface, if that is what it is.
    pub fn to_ethernet(self) -> Option<([u8; 6], u32)> {
        let [.., a, b, c, 0xff, 0xfe, d, e, f] = self.gid.0 else {
            return None;
        };
        let address = [a ^ LOCAL_BIT, b, c, d, e, f];
        (self.interface != 0).then_some((address, self.interface))
    }

    /// Whether it stands for a multicast group.
    #[inline]
    pub fn is_multicast(self) -> bool {
        if self.interface == 0 {
            return self.gid.is_multicast();
        }
        let [_, _, _, _, _, _, _, _, first, ..] = self.gid.0;
        first & GROUP_BIT != 0
    }
}

/// First bytes of a link-local address (RFC 4291, 2.5.6).
const LINK_LOCAL: [u8; 2] = [0xfe, 0x80];
/// Bit of the first byte that EUI-64 identifiers have inverted (RFC 4291, appendix A).
const LOCAL_BIT: u8 = 2;
/// Bit of the first byte of an Ethernet address that stands for a group.
const GROUP_BIT: u8 = 1;

impl From<IpAddr> for Neighbour {
    #[inline]
    fn from(address: IpAddr) -> Self {
        Neighbour {
            gid: address.into(),
            interface: 0,
        }
    }
}

impl From<Ipv4Addr> for Neighbour {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::V4(address).into()
    }
}

impl From<Ipv6Addr> for Neighbour {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::V6(address).into()
    }
}

impl From<[u8; 4]> for Neighbour {
    fn from(address: [u8; 4]) -> Self {
        IpAddr::from(address).into()
    }
}

impl From<Neighbour> for Gid {
    #[inline]
    fn from(neighbour: Neighbour) -> Self {
        neighbour.gid
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_ethernet() {
            Some(([a, b, c, d, e, g], interface)) => {
                write!(
                    f,
                    "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}%{interface}"
                )
            }
            None => self.gid.to_ip().fmt(f),
        }
    }
}

impl fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ip_address_is_the_neighbour_of_its_gid() {
        for text in ["192.0.2.1", "::1", "fe80::1", "2001:db8::1"] {
            let address: IpAddr = text.parse().unwrap();
            let neighbour = Neighbour::from(address);
            assert_eq!(neighbour.ip(), Some(address));
            assert_eq!(neighbour.to_ethernet(), None);
            assert_eq!(Gid::from(neighbour), Gid::from(address));
            assert_eq!(neighbour.to_string(), text);
        }
    }

    #[test]
    fn an_ethernet_address_is_one_on_its_interface() {
        let address = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
        let neighbour = Neighbour::ethernet(address, 7);
        assert_eq!(neighbour.ip(), None);
        assert_eq!(neighbour.to_ethernet(), Some((address, 7)));
        assert_eq!(
            Gid::from(neighbour),
            Gid::from("fe80::11:22ff:fe33:4455".parse::<IpAddr>().unwrap())
        );
        assert_ne!(neighbour, Neighbour::ethernet(address, 8));
        let same_gid = Gid::from(neighbour).to_ip();
        assert_ne!(neighbour, Neighbour::from(same_gid));
        assert_eq!(neighbour.to_string(), "02:11:22:33:44:55%7");
    }

    #[test]
    fn a_peer_is_reached_as_its_local_address_is() {
        let there = Neighbour::ethernet([2, 0, 0, 0, 0, 9], 7);
        let here = Neighbour::ethernet([2, 0, 0, 0, 0, 1], 7);
        assert_eq!(here.peer(there.into()), there);
        let here = Neighbour::from([192, 0, 2, 1]);
        let there = Neighbour::from([192, 0, 2, 9]);
        assert_eq!(here.peer(there.into()), there);
    }

    #[test]
    fn groups_are_told_from_hosts() {
        for (text, is_group) in [
            ("239.1.2.3", true),
            ("ff02::1", true),
            ("192.0.2.1", false),
            ("fe80::1", false),
            // As a mapped group but for one bit.
            ("::fffe:239.1.2.3", false),
        ] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(Neighbour::from(address).is_multicast(), is_group, "{text}");
        }
        assert!(Neighbour::ethernet([0x01, 0, 0x5e, 1, 2, 3], 7).is_multicast());
        assert!(!Neighbour::ethernet([0x02, 0, 0x5e, 1, 2, 3], 7).is_multicast());
    }
}
