//! A piece of a packet that is too long for the path. It is used between airdma hosts that have
//! agreed on it (`docs/protocol.md`, "Narrow paths"); to other implementations it is a packet with
//! an unknown opcode.
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |   BTH of the packet, but with the opcode 0xdb     |  0
//!   |                                                   |
//!   |                                                   |
//!   +------------+------------+-------------------------+
//!   |   opcode   | L 0000000  |         offset          | 12    L: the last piece
//!   +------------+------------+-------------------------+
//!   |  bytes of the packet, from `offset` behind its    | 16
//!   |  BTH on, in whole words                           |
//!   +---------------------------------------------------+
//!   |   ICRC                                            |
//! ```

use crate::{Bth, Opcode, ParseError, field};

/// First byte of a piece: one of the opcodes left to manufacturers (IBTA table 39).
pub const PIECE_OPCODE: u8 = 0xdb;
/// Bytes before the bytes of the packet.
pub const PIECE_HEADER_LEN: usize = Bth::LEN + 4;

const LAST: u8 = 0x80;
/// Bits of the transport version in the second byte of a BTH.
const VERSION: u8 = 0x0f;

/// A piece as it was received, without its ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The BTH, with the opcode of a piece.
    pub bth: &'a [u8; Bth::LEN],
    /// Opcode of the packet.
    pub opcode: u8,
    /// Whether the packet ends with this piece.
    pub is_last: bool,
    /// Bytes between the BTH of the packet and those of this piece.
    pub offset: usize,
    /// Bytes of the packet.
    pub bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// `None` if the packet is no piece, is too short, has no bytes of a packet, or is a piece of a
    /// piece.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let (bth, rest) = packet.split_first_chunk::<{ Bth::LEN }>()?;
        let (&[opcode, flags, a, b], bytes) = rest.split_first_chunk::<4>()?;
        let is_one = bth[0] == PIECE_OPCODE && opcode != PIECE_OPCODE && !bytes.is_empty();
        is_one.then_some(Piece {
            bth,
            opcode,
            is_last: flags & LAST != 0,
            offset: u16::from_be_bytes([a, b]).into(),
            bytes,
        })
    }

    /// The BTH, as that of any ordinary packet of a reliable connection.
    ///
    /// # Errors
    /// None: the opcode and the version are those of such a packet.
    pub fn header(&self) -> Result<Bth, ParseError> {
        let mut bth = *self.bth;
        bth[0] = Opcode::RcSendOnly as u8;
        // The packet may be padded.
        bth[1] &= !VERSION;
        Bth::from_bytes(&bth)
    }
}

/// Writes the piece of `packet` (BTH to pad) with at most `bytes` bytes from `offset` behind its
/// BTH on into `out`. Returns its length, and the offset of the next one, if there is one.
///
/// `None` if there is nothing from there on, or no room in `out`.
pub fn emit_piece(
    packet: &[u8],
    offset: usize,
    bytes: usize,
    out: &mut [u8],
) -> Option<(usize, Option<usize>)> {
    let (bth, rest) = packet.split_first_chunk::<{ Bth::LEN }>()?;
    let end = offset.checked_add(bytes)?.min(rest.len());
    let part = rest.get(offset..end).filter(|part| !part.is_empty())?;
    let header = out.first_chunk_mut::<PIECE_HEADER_LEN>()?;
    field::set::<0, { Bth::LEN }, _>(header, *bth);
    header[0] = PIECE_OPCODE;
    let is_last = end == rest.len();
    let [a, b] = u16::try_from(offset).ok()?.to_be_bytes();
    let flags = if is_last { LAST } else { 0 };
    field::set::<{ Bth::LEN }, 4, _>(header, [bth[0], flags, a, b]);
    let len = PIECE_HEADER_LEN + part.len();
    out.get_mut(PIECE_HEADER_LEN..len)?.copy_from_slice(part);
    Some((len, (!is_last).then_some(end)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A BTH, and 20 bytes behind it.
    fn packet() -> Vec<u8> {
        let bth = [7, 0x40, 0xff, 0xff, 0x80, 0x51, 0x23, 0x45, 0x80, 0, 0, 9u8];
        [&bth[..], &(0..20).collect::<Vec<u8>>()].concat()
    }

    #[test]
    fn the_layout_is_that_of_the_picture() {
        let mut out = [0xee; 24];
        assert_eq!(emit_piece(&packet(), 12, 8, &mut out), Some((24, None)));
        let expected = [
            0xdb, 0x40, 0xff, 0xff, 0x80, 0x51, 0x23, 0x45, 0x80, 0, 0, 9, 7, 0x80, 0, 12, 12, 13,
            14, 15, 16, 17, 18, 19,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn pieces_are_the_packet() {
        for bytes in [4, 8, 16, 20, 24] {
            let (packet, mut whole) = (packet(), Vec::<u8>::new());
            let mut next = Some(0);
            while let Some(offset) = next {
                let mut out = [0; 64];
                let (len, more) = emit_piece(&packet, offset, bytes, &mut out).unwrap();
                let piece = Piece::parse(&out[..len]).unwrap();
                assert_eq!((piece.opcode, piece.offset), (7, whole.len()));
                assert_eq!(piece.is_last, more.is_none());
                whole.extend(piece.bytes);
                next = more;
            }
            assert_eq!(whole, packet[Bth::LEN..]);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let mut out = [0; 64];
        let (len, _) = emit_piece(&packet(), 0, 4, &mut out).unwrap();
        assert!(Piece::parse(&out[..len]).is_some());
        assert_eq!(Piece::parse(&out[..PIECE_HEADER_LEN]), None);
        assert_eq!(Piece::parse(&out[..3]), None);
        let of_piece = emit_piece(&out[..len], 0, 4, &mut [0; 64]).unwrap().0;
        assert_eq!(of_piece, PIECE_HEADER_LEN + 4);
        out[12] = PIECE_OPCODE;
        assert_eq!(Piece::parse(&out[..len]), None);
        out[12] = 7;
        out[0] = 7;
        assert_eq!(Piece::parse(&out[..len]), None);
        assert_eq!(emit_piece(&packet(), 20, 4, &mut [0; 64]), None);
        assert_eq!(emit_piece(&packet(), 0, 4, &mut [0; 19]), None);
        assert_eq!(emit_piece(&packet()[..11], 0, 4, &mut [0; 64]), None);
    }
}
