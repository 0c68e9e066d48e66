//! A bundle: several packets in one UDP datagram, which IP cuts into fragments of the interface's
//! MTU. It is used between airdma hosts that have agreed on it (`docs/protocol.md`); to other
//! implementations it is a packet with an unknown opcode and a wrong ICRC.
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+-------------------------+
//!   |    0xd9    | reserved 0 |     segment length      |  0
//!   +------------+------------+-------------------------+
//!   |  packets   |    queue pair of the first packet    |  4
//!   +------------+--------------------------------------+
//!   |  packets, BTH to ICRC, one behind the other: each |  8
//!   |  has the segment length, or less if it is the last|
//! ```
//!
//! The queue pair lies where a BTH has it, so one rule selects among several processes at an
//! address. The ICRC of the k-th packet is that of a packet sent alone with don't-fragment set and,
//! over IPv4, identification k (from 0).

use crate::{Bth, ICRC_LEN, Qpn, field};

/// First byte of a bundle: one of the opcodes left to manufacturers (IBTA table 39).
pub const BUNDLE_OPCODE: u8 = 0xd9;
/// Bytes before the first packet.
pub const BUNDLE_HEADER_LEN: usize = 8;
/// Most packets of a bundle.
pub const BUNDLE_PACKETS_MAX: usize = 64;

/// Shortest packet, BTH to ICRC.
const PACKET_LEN_MIN: usize = Bth::LEN + ICRC_LEN;

/// A bundle as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundle<'a> {
    segment: usize,
    bytes: &'a [u8],
}

/// Whether a datagram claims to be a bundle rather than a packet.
#[inline]
pub fn is_bundle(datagram: &[u8]) -> bool {
    datagram.first() == Some(&BUNDLE_OPCODE)
}

/// The header of a bundle of `packets` packets, each of `segment` bytes (BTH to ICRC) except the
/// last.
///
/// # Panics
/// If `packets` is 0 or more than [`BUNDLE_PACKETS_MAX`].
pub fn bundle_header(segment: u16, packets: usize, first: Qpn) -> [u8; BUNDLE_HEADER_LEN] {
    assert!(
        (1..=BUNDLE_PACKETS_MAX).contains(&packets),
        "a bundle of {packets} packets"
    );
    let mut header = [0; BUNDLE_HEADER_LEN];
    header[0] = BUNDLE_OPCODE;
    field::set::<2, 2, _>(&mut header, segment.to_be_bytes());
    field::set::<4, 4, _>(&mut header, field::byte_and_24(packets as u8, first.get()));
    header
}

impl<'a> Bundle<'a> {
    /// `None` if the datagram is not a bundle, or its lengths are inconsistent.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (head, bytes) = datagram.split_first_chunk::<BUNDLE_HEADER_LEN>()?;
        let segment = usize::from(u16::from_be_bytes(field::get::<2, 2, _>(head)));
        let packets = usize::from(head[4]);
        let is_ours = head[0] == BUNDLE_OPCODE && head[1] == 0;
        let is_sensible = segment >= PACKET_LEN_MIN && (1..=BUNDLE_PACKETS_MAX).contains(&packets);
        if !is_ours || !is_sensible || bytes.len().div_ceil(segment) != packets {
            return None;
        }
        Some(Bundle { segment, bytes })
    }

    /// Its packets, BTH to ICRC, in order.
    ///
    /// A packet may hold anything, even another bundle; the last may be too short to be one.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment)
    }

    /// All packets, back to back, and the length of each except the last.
    pub fn segments(&self) -> (&'a [u8], usize) {
        (self.bytes, self.segment)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A bundle with `bytes` bytes behind its header.
    fn bundle(segment: u16, packets: usize, bytes: usize) -> Vec<u8> {
        let mut bundle = bundle_header(segment, packets, Qpn::new(0x51_2345)).to_vec();
        bundle.extend((0..bytes).map(|at| at as u8));
        bundle
    }

    #[test]
    fn a_header_is_as_it_is_drawn() {
        let header = bundle_header(1040, 62, Qpn::new(0x51_2345));
        assert_eq!(header, [0xd9, 0, 4, 16, 62, 0x51, 0x23, 0x45]);
    }

    #[test]
    fn packets_come_back_as_they_went() {
        for last in [16, 20, 1036, 1040] {
            let datagram = bundle(1040, 3, 2 * 1040 + last);
            let packets: Vec<_> = Bundle::parse(&datagram).unwrap().packets().collect();
            let lengths: Vec<_> = packets.iter().map(|packet| packet.len()).collect();
            assert_eq!(lengths, [1040, 1040, last]);
            assert_eq!(packets.concat(), datagram[BUNDLE_HEADER_LEN..]);
        }
    }

    #[test]
    fn lengths_that_do_not_fit_each_other_are_refused() {
        let is_one = |datagram: &[u8]| Bundle::parse(datagram).is_some();
        assert!(is_one(&bundle(1040, 2, 1041)));
        assert!(!is_one(&bundle(1040, 2, 1040)), "one packet");
        assert!(!is_one(&bundle(1040, 2, 2081)), "three packets");
        assert!(!is_one(&bundle(1040, 1, 0)), "none");
        assert!(!is_one(&bundle(0, 1, 1040)), "no length");
        assert!(!is_one(&bundle(15, 2, 30)), "shorter than a packet");
        let mut many = bundle(16, 64, 65 * 16);
        many[4] = 65;
        assert!(!is_one(&many), "too many");
        let good = bundle(1040, 2, 2080);
        for (at, to) in [(0, 0x07), (1, 1), (4, 0), (4, 255)] {
            let mut bad = good.clone();
            bad[at] = to;
            assert!(!is_one(&bad), "byte {at} is {to}");
        }
        for len in 0..=BUNDLE_HEADER_LEN {
            assert!(!is_one(&good[..len]), "{len} bytes");
        }
    }
}
