//! A sealed packet: a packet of a connection, encrypted and authenticated. It is used between
//! airdma hosts that have agreed on a key (`docs/protocol.md`, "Sealed packets"); to other
//! implementations it is a packet with an unknown opcode.
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |   BTH of the packet, but with the opcode 0xda     |  0   authenticated
//!   |                                                   |
//!   |                                                   |
//!   +---------------------------------------------------+
//!   |   what follows its BTH: headers, payload, pad     | 12   encrypted
//!   +------------+--------------------------------------+
//!   |   opcode   |             zero                     |      encrypted
//!   +------------+--------------------------------------+
//!   |   counter of the sender: never twice for one key  |
//!   |                                                   |
//!   +---------------------------------------------------+
//!   |   authentication tag                              |
//!   |                                                   |
//!   |                                                   |
//!   |                                                   |
//!   +---------------------------------------------------+
//!   |   ICRC: zero                                      |
//! ```
//!
//! The BTH stays readable: the queue pair in it selects one of several processes at an address, and
//! tools show PSNs. Its byte of FECN and BECN, which routers may change, is not authenticated. The
//! ICRC is neither computed nor checked, since the tag covers the same bytes.

use crate::{Bth, field};

/// First byte of a sealed packet: one of the opcodes left to manufacturers (IBTA table 39).
pub const SEALED_OPCODE: u8 = 0xda;
/// Bytes of the authentication tag.
pub const SEALED_TAG_LEN: usize = 16;
/// Bytes of the word that holds the opcode.
pub const SEALED_OPCODE_LEN: usize = 4;
const COUNTER_LEN: usize = 8;
/// Bytes that sealing adds to a packet.
pub const SEALED_OVERHEAD: usize = SEALED_OPCODE_LEN + COUNTER_LEN + SEALED_TAG_LEN;

/// A sealed packet as it was received, without its ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed<'a> {
    /// The base transport header.
    pub bth: &'a [u8; Bth::LEN],
    /// The encrypted part: what followed the BTH, and the word that holds the opcode.
    pub body: &'a [u8],
    /// The sender's counter.
    pub counter: u64,
    /// The authentication tag.
    pub tag: &'a [u8; SEALED_TAG_LEN],
}

/// Whether a packet (BTH to pad) claims to be sealed.
#[inline]
pub fn is_sealed(packet: &[u8]) -> bool {
    packet.first() == Some(&SEALED_OPCODE)
}

/// The authenticated part of the BTH.
#[inline]
pub fn sealed_associated_data(bth: &[u8; Bth::LEN]) -> [u8; Bth::LEN] {
    let mut data = *bth;
    data[0] = SEALED_OPCODE;
    data[4] = 0;
    data
}

/// The packet's nonce: 96 bits, as AES-GCM requires.
#[inline]
pub fn sealed_nonce(counter: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    field::set::<4, 8, _>(&mut nonce, counter.to_be_bytes());
    nonce
}

/// Turns the first `len` bytes of `packet` (BTH to pad) into the sealed form, except for
/// encryption.
///
/// Sets the opcode of the BTH, and appends the word with the original opcode and the counter.
/// Returns where the encrypted part ends and the counter begins; the tag belongs 8 bytes behind.
/// `None` if `packet` has no room.
#[inline]
pub fn begin_seal(packet: &mut [u8], len: usize, counter: u64) -> Option<usize> {
    if len < Bth::LEN || packet.len() < len + SEALED_OVERHEAD {
        return None;
    }
    let opcode = std::mem::replace(&mut packet[0], SEALED_OPCODE);
    let end = len + SEALED_OPCODE_LEN;
    packet[len..end].copy_from_slice(&[opcode, 0, 0, 0]);
    packet[end..end + COUNTER_LEN].copy_from_slice(&counter.to_be_bytes());
    Some(end)
}

/// Offset of the tag of a packet whose encrypted part ends at `end`.
#[inline]
pub fn sealed_tag_range(end: usize) -> std::ops::Range<usize> {
    end + COUNTER_LEN..end + COUNTER_LEN + SEALED_TAG_LEN
}

/// Restores the packet in `opened`, a sealed packet's BTH and decrypted body; returns its length,
/// BTH to pad.
///
/// `None` if it holds no packet: its last word is not an opcode and zeros, or the opcode is that of
/// a sealed packet.
#[inline]
pub fn finish_open(opened: &mut [u8]) -> Option<usize> {
    let len = opened.len().checked_sub(SEALED_OPCODE_LEN)?;
    let &[opcode, 0, 0, 0] = opened.get(len..)? else {
        return None;
    };
    if opcode == SEALED_OPCODE || len < Bth::LEN {
        return None;
    }
    opened[0] = opcode;
    Some(len)
}

impl<'a> Sealed<'a> {
    /// `None` if the packet is not sealed, or too short to be.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let (bth, rest) = packet.split_first_chunk::<{ Bth::LEN }>()?;
        let (rest, tag) = rest.split_last_chunk::<SEALED_TAG_LEN>()?;
        let (body, counter) = rest.split_last_chunk::<COUNTER_LEN>()?;
        let is_one = bth[0] == SEALED_OPCODE && body.len() >= SEALED_OPCODE_LEN;
        is_one.then_some(Sealed {
            bth,
            body,
            counter: u64::from_be_bytes(*counter),
            tag,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// 12 bytes of a BTH, and four of payload.
    const PACKET: [u8; 16] = [
        4, 0x40, 0xff, 0xff, 0x80, 0x51, 0x23, 0x45, 0x80, 0, 0, 7, 1, 2, 3, 4,
    ];

    #[test]
    fn a_packet_comes_back_as_it_went() {
        let mut sealed = [0xee; PACKET.len() + SEALED_OVERHEAD];
        sealed[..PACKET.len()].copy_from_slice(&PACKET);
        let end = begin_seal(&mut sealed, PACKET.len(), 0x0102_0304_0506_0708).unwrap();
        sealed[sealed_tag_range(end)].fill(9);
        let parsed = Sealed::parse(&sealed).unwrap();
        assert_eq!(parsed.bth[..4], [0xda, 0x40, 0xff, 0xff]);
        assert_eq!(parsed.body, [1, 2, 3, 4, 4, 0, 0, 0]);
        assert_eq!(parsed.counter, 0x0102_0304_0506_0708);
        assert_eq!(parsed.tag, &[9; 16]);
        let mut opened = [&parsed.bth[..], parsed.body].concat();
        assert_eq!(finish_open(&mut opened), Some(PACKET.len()));
        assert_eq!(opened[..PACKET.len()], PACKET);
    }

    #[test]
    fn congestion_bits_are_not_authenticated() {
        let bth: [u8; 12] = PACKET[..12].try_into().unwrap();
        let mut marked = bth;
        marked[4] ^= 0xc0;
        assert_eq!(
            sealed_associated_data(&bth),
            sealed_associated_data(&marked)
        );
        marked[5] ^= 1;
        assert_ne!(
            sealed_associated_data(&bth),
            sealed_associated_data(&marked)
        );
    }

    #[test]
    fn what_is_too_short_or_sealed_twice_is_refused() {
        let mut short = [0; PACKET.len() + SEALED_OVERHEAD - 1];
        assert_eq!(begin_seal(&mut short, PACKET.len(), 1), None);
        let mut least = [0; Bth::LEN + SEALED_OVERHEAD];
        least[0] = SEALED_OPCODE;
        assert!(Sealed::parse(&least).is_some());
        assert_eq!(Sealed::parse(&least[..least.len() - 1]), None);
        least[0] = 4;
        assert_eq!(Sealed::parse(&least), None);
        let opened = |word: [u8; 4]| finish_open(&mut [&PACKET[..12], &word].concat());
        assert_eq!(opened([10, 0, 0, 0]), Some(12));
        assert_eq!(opened([10, 0, 0, 1]), None);
        assert_eq!(opened([SEALED_OPCODE, 0, 0, 0]), None);
        assert_eq!(finish_open(&mut [1, 0, 0, 0]), None);
        assert_eq!(finish_open(&mut []), None);
    }
}
