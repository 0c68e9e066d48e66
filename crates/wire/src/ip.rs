//! Fields of the IP header that the ICRC covers (IBTA A17.3.3).
//!
//! ```text
//!  IPv4   0                   1                   2                   3
//!         0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!        +-------+-------+---------------+-------------------------------+
//!        |   4   |   5   |//// TOS //////|         total length          |
//!        +-------+-------+---------------+-+-+-+-------------------------+
//!        |        identification         |0|D|0|           0             |
//!        +---------------+---------------+-+-+-+-------------------------+
//!        |//// TTL //////|      17       |/////// header checksum ///////|
//!        +---------------+---------------+-------------------------------+
//!        |                        source address                         |
//!        |                      destination address                      |
//!        +---------------------------------------------------------------+
//!
//!  IPv6  +-------+---------------+---------------------------------------+
//!        |   6   |/traffic class/|///////////// flow label //////////////|
//!        +-------+---------------+-------+---------------+---------------+
//!        |        payload length         |      17       |// hop limit //|
//!        +-------------------------------+---------------+---------------+
//!        |                source address, destination address            |
//!        +---------------------------------------------------------------+
//!         ///// changes on the way: the ICRC sees all ones instead
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

/// Length in bytes of an IPv4 header without options: RoCEv2 allows none.
pub const IPV4_LEN: usize = 20;

/// Length in bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;

/// IP protocol number, or next header, of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// The fields of a packet's IP header that its ICRC covers and that do not follow from its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpPseudo {
    /// IPv4, not fragmented and without options.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
        /// Identification: a UDP socket can neither choose nor read it, see
        /// [`IdSpace`](crate::IdSpace).
        id: u16,
        /// The DF bit; RoCEv2 senders set it.
        dont_fragment: bool,
    },
    /// IPv6 without extension headers.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
    },
}
