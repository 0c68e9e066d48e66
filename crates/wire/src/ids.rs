//! Types for numbers that must not be mixed up: PSNs, queue pair numbers, keys, GIDs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK_24: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits that wrap around (IBTA 9.7.2).
///
/// There is no order between sequence numbers, only a distance: see [`Psn::distance_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The sequence number of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `n` packets later.
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// Number of packets from `earlier` to `self`; negative if `self` is the earlier one.
    ///
    /// The shorter way round counts, so the result is in `-2^23 ..= 2^23 - 1`.
    pub const fn distance_from(self, earlier: Psn) -> i32 {
        // Shifting the sign of the 24-bit difference up to the sign of the word, and back, extends
        // it.
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Queue pair number: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Subnet management interface: no traffic of RoCEv2 uses it.
    pub const SMI: Qpn = Qpn(0);
    /// General services interface: connection management datagrams go to this queue pair.
    pub const GSI: Qpn = Qpn(1);
    /// Destination of multicast datagrams.
    pub const MULTICAST: Qpn = Qpn(MASK_24);

    /// The queue pair number of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Remote key: names registered memory to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rkey(pub u32);

/// Local key: names registered memory to its own process. Never on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lkey(pub u32);

/// Queue key: a UD queue pair accepts only datagrams that carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qkey(pub u32);

/// Global identifier of RoCEv2: an IPv6 address, or an IPv4 address mapped into one (IBTA A17.4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The address that this identifier stands for; `::ffff:a.b.c.d` is IPv4.
    #[inline]
    pub fn to_ip(self) -> IpAddr {
        let bits = u128::from_be_bytes(self.0);
        if bits >> 32 == MAPPED_IPV4 {
            Ipv4Addr::from_bits(bits as u32).into()
        } else {
            Ipv6Addr::from_bits(bits).into()
        }
    }

    /// Whether the address stands for a multicast group.
    #[inline]
    pub fn is_multicast(self) -> bool {
        // Mostly two bytes say no.
        self.0[0] == MULTICAST_IPV6 || self.0[12] >> 4 == MULTICAST_IPV4 && self.to_ip().is_ipv4()
    }
}

/// First 96 bits of a mapped IPv4 address (RFC 4291, 2.5.5.2).
const MAPPED_IPV4: u128 = 0xffff;
/// First byte of an IPv6 multicast address.
const MULTICAST_IPV6: u8 = 0xff;
/// First four bits of an IPv4 multicast address.
const MULTICAST_IPV4: u8 = 0xe;

impl From<IpAddr> for Gid {
    #[inline]
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    #[inline]
    fn from(address: Ipv4Addr) -> Self {
        Self((MAPPED_IPV4 << 32 | u128::from(address.to_bits())).to_be_bytes())
    }
}

impl From<Ipv6Addr> for Gid {
    #[inline]
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

/// Eight groups of four digits, not abbreviated, as sysfs prints a GID.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_psn_wraps_at_24_bits() {
        assert_eq!(Psn::new(0x1ff_ffff), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0xff_ffff).add(1), Psn::new(0));
        assert_eq!(Psn::new(0).add(u32::MAX), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0xff_fffd).add(5).get(), 2);
    }

    #[test]
    fn the_distance_between_psns_is_the_shorter_way_round() {
        let d = |a: u32, b: u32| Psn::new(a).distance_from(Psn::new(b));
        assert_eq!(d(5, 5), 0);
        assert_eq!(d(0, 0xff_ffff), 1);
        assert_eq!(d(0xff_ffff, 0), -1);
        assert_eq!(d(0x7f_ffff, 0), 0x7f_ffff);
        assert_eq!(d(0x80_0000, 0), -0x80_0000);
        assert_eq!(d(0, 0x80_0000), -0x80_0000);
        assert_eq!(d(0, 0x80_0001), 0x7f_ffff);
    }

    proptest! {
        #[test]
        fn adding_the_distance_leads_to_the_later_psn(a in any::<u32>(), b in any::<u32>()) {
            let (a, b) = (Psn::new(a), Psn::new(b));
            let distance = a.distance_from(b);
            prop_assert!((-(1 << 23)..1 << 23).contains(&distance));
            prop_assert_eq!(b.add(distance.cast_unsigned()), a);
        }

        #[test]
        fn every_step_below_half_the_range_is_a_positive_distance(
            a in any::<u32>(),
            n in 0u32..1 << 23,
        ) {
            let a = Psn::new(a);
            prop_assert_eq!(a.add(n).distance_from(a), n.cast_signed());
            prop_assert_eq!(a.distance_from(a.add(n)), -n.cast_signed());
        }

        #[test]
        fn a_gid_keeps_its_address(v4 in any::<[u8; 4]>(), v6 in any::<[u8; 16]>()) {
            let v4 = IpAddr::from(v4);
            prop_assert_eq!(Gid::from(v4).to_ip(), v4);
            prop_assert_eq!(Gid::from(IpAddr::from(v6)), Gid(v6));
            prop_assert_eq!(Gid(v6).to_ip(), IpAddr::from(v6).to_canonical());
        }
    }

    #[test]
    fn a_gid_prints_as_in_sysfs() {
        let v4 = Gid::from(Ipv4Addr::new(10, 5, 0, 1));
        assert_eq!(v4.to_string(), "0000:0000:0000:0000:0000:ffff:0a05:0001");
        let v6 = Gid::from(Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, 2));
        assert_eq!(v6.to_string(), "fd05:0000:0000:0000:0000:0000:0000:0002");
        assert_eq!(
            format!("{v6:?}"),
            "Gid(fd05:0000:0000:0000:0000:0000:0000:0002)"
        );
    }

    #[test]
    fn numbers_of_queue_pairs_are_24_bits() {
        assert_eq!(Qpn::new(0xff00_0001), Qpn::GSI);
        assert_eq!(Qpn::new(u32::MAX), Qpn::MULTICAST);
        assert_eq!(Qpn::default(), Qpn::SMI);
    }
}
