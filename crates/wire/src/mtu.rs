//! Path MTU: the payload of every packet except the last of a message (IBTA 9.7.1 and table 151).

use crate::icrc::ICRC_LEN;
use crate::immediate::IMMEDIATE_LEN;
use crate::ip::{IPV4_LEN, IPV6_LEN};
use crate::udp::UDP_LEN;
use crate::{Bth, GRH_LEN, Neighbour};
use std::net::IpAddr;

/// Bytes that lower layers may add to a payload.
///
/// The allowance of the kernel's rxe, so that both ends of a link with the same interface MTU
/// arrive at the same path MTU.
const HEADROOM: u32 = 80;

/// Payload bytes of a full packet. The value of each variant is the one of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1,024 bytes: what Ethernet's 1,500 bytes leave room for.
    #[default]
    M1024 = 3,
    /// 2,048 bytes.
    M2048 = 4,
    /// 4,096 bytes.
    M4096 = 5,
}

impl PathMtu {
    /// Every path MTU, ascending.
    pub const ALL: [PathMtu; 5] = [
        PathMtu::M256,
        PathMtu::M512,
        PathMtu::M1024,
        PathMtu::M2048,
        PathMtu::M4096,
    ];

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The path MTU of a value of `enum ibv_mtu`: 1..=5.
    pub fn from_enum(value: u8) -> Option<PathMtu> {
        Self::ALL.into_iter().find(|&mtu| mtu as u8 == value)
    }

    /// The largest path MTU that fits a network interface with MTU `mtu`.
    ///
    /// `mtu` is in bytes without the link layer's header; `None` if not even 256 bytes fit.
    pub fn for_interface_mtu(mtu: u32) -> Option<PathMtu> {
        let room = mtu.saturating_sub(HEADROOM);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
    }
}

/// Largest payload of a SEND, WRITE or READ response packet to `to` in air mode.
///
/// A path MTU is a power of two, and leaves a third of Ethernet's 1,500 bytes unused. The result
/// leaves room for four bytes of immediate data or an AETH; the first packet of a WRITE carries
/// less, by the length of its RETH. It never exceeds the largest path MTU.
pub fn long_payload(interface_mtu: u32, to: Neighbour) -> u32 {
    let network = match to.ip() {
        Some(IpAddr::V4(_)) => IPV4_LEN + UDP_LEN,
        Some(IpAddr::V6(_)) => IPV6_LEN + UDP_LEN,
        None => GRH_LEN,
    };
    let headers = network + Bth::LEN + IMMEDIATE_LEN + ICRC_LEN;
    let room = interface_mtu.saturating_sub(headers as u32);
    room.min(PathMtu::M4096.bytes()) & !3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_payload_fills_the_interface_mtu() {
        let v4 = Neighbour::from([192, 0, 2, 1]);
        let v6 = Neighbour::from(std::net::Ipv6Addr::LOCALHOST);
        let ethernet = Neighbour::ethernet([2, 0, 0, 0, 0, 1], 1);
        assert_eq!(long_payload(1500, v4), 1452);
        assert_eq!(long_payload(1500, v6), 1432);
        assert_eq!(long_payload(1500, ethernet), 1440);
        assert_eq!(long_payload(1501, v4), 1452, "whole words");
        assert_eq!(long_payload(9000, v4), 4096);
        assert_eq!(long_payload(40, v4), 0);
    }

    #[test]
    fn the_path_mtu_leaves_eighty_bytes_of_the_interface_mtu() {
        let of = PathMtu::for_interface_mtu;
        assert_eq!(of(1500), Some(PathMtu::M1024));
        assert_eq!(of(4200), Some(PathMtu::M4096));
        assert_eq!(of(9000), Some(PathMtu::M4096));
        assert_eq!(of(65536), Some(PathMtu::M4096));
        assert_eq!(of(4176), Some(PathMtu::M4096));
        assert_eq!(of(4175), Some(PathMtu::M2048));
        assert_eq!(of(2304), Some(PathMtu::M2048));
        assert_eq!(of(1104), Some(PathMtu::M1024));
        assert_eq!(of(1103), Some(PathMtu::M512));
        assert_eq!(of(336), Some(PathMtu::M256));
        assert_eq!(of(335), None);
        assert_eq!(of(0), None);
    }

    #[test]
    fn values_are_those_of_ibv_mtu() {
        let pairs: Vec<_> = (0..=7)
            .map(|v| PathMtu::from_enum(v).map(PathMtu::bytes))
            .collect();
        assert_eq!(
            pairs,
            [
                None,
                Some(256),
                Some(512),
                Some(1024),
                Some(2048),
                Some(4096),
                None,
                None
            ]
        );
    }
}
