//! Packets that arrive in [pieces](Piece), because they are too long for the path.
//!
//! A peer sends the pieces of a packet one behind the other, so one packet at a time is put
//! together, and a piece that is not the next one of it loses the packet, which is sent again.

use crate::limits::PACKET_LEN_MAX;
use crate::seal::SEALED_LEN_MAX;
use airdma_wire::Bth;
use airdma_wire::piece::Piece;

/// Most bytes of a packet in pieces, BTH to pad.
const LEN_MAX: usize = if SEALED_LEN_MAX > PACKET_LEN_MAX {
    SEALED_LEN_MAX
} else {
    PACKET_LEN_MAX
};
/// Byte of the BTH with the bits that routers may change.
const CONGESTION_AT: usize = 4;
const CONGESTION: u8 = 0xc0;

/// The packet that is put together; its first byte is its opcode.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Adds a piece. Returns the packet that it completes.
    pub(super) fn add(&mut self, piece: &Piece<'_>) -> Option<Vec<u8>> {
        let mut bth = *piece.bth;
        bth[0] = piece.opcode;
        bth[CONGESTION_AT] &= !CONGESTION;
        if piece.offset == 0 {
            self.bytes.clear();
            self.bytes.extend(bth);
        }
        let continues = self.bytes.len() == Bth::LEN + piece.offset
            && self.bytes.starts_with(&bth)
            && self.bytes.len() + piece.bytes.len() <= LEN_MAX;
        if !continues {
            self.bytes.clear();
            return None;
        }
        self.bytes.extend(piece.bytes);
        piece.is_last.then(|| std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use airdma_wire::piece::emit_piece;

    fn packet(psn: u8, len: usize) -> Vec<u8> {
        let bth = [7, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, psn];
        [&bth[..], &vec![psn; len]].concat()
    }

    /// Pieces of 700 bytes.
    fn pieces(packet: &[u8]) -> Vec<Vec<u8>> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(offset) = next {
            let mut out = [0; 1024];
            let (len, more) = emit_piece(packet, offset, 700, &mut out).unwrap();
            all.push(out[..len].to_vec());
            next = more;
        }
        all
    }

    fn add(assembly: &mut Assembly, piece: &[u8]) -> Option<Vec<u8>> {
        assembly.add(&Piece::parse(piece).unwrap())
    }

    #[test]
    fn what_comes_in_sequence_is_the_packet() {
        let mut assembly = Assembly::default();
        for psn in [1, 2] {
            let packet = packet(psn, 1464);
            let mut pieces = pieces(&packet);
            // A router has marked it.
            pieces[1][CONGESTION_AT] |= 0x80;
            assert_eq!(add(&mut assembly, &pieces[0]), None);
            assert_eq!(add(&mut assembly, &pieces[1]), None);
            assert_eq!(add(&mut assembly, &pieces[2]), Some(packet));
        }
    }

    #[test]
    fn a_lost_piece_loses_the_packet_and_no_other() {
        for lost in 0..3 {
            let mut assembly = Assembly::default();
            let mut missing = pieces(&packet(1, 1464));
            missing.remove(lost);
            for piece in missing {
                assert_eq!(add(&mut assembly, &piece), None);
            }
            let next = packet(2, 1464);
            let whole = pieces(&next);
            let whole: Vec<_> = whole
                .iter()
                .map(|piece| add(&mut assembly, piece))
                .collect();
            assert_eq!(whole, [None, None, Some(next)]);
        }
    }

    #[test]
    fn pieces_of_two_packets_are_not_mixed() {
        let mut assembly = Assembly::default();
        let (one, other) = (pieces(&packet(1, 1464)), pieces(&packet(2, 1464)));
        for rest in [[&other[1], &other[2]], [&one[1], &other[2]]] {
            assert_eq!(add(&mut assembly, &one[0]), None);
            assert_eq!(add(&mut assembly, rest[0]), None);
            assert_eq!(add(&mut assembly, rest[1]), None);
        }
        // The first one lost what it had.
        assert_eq!(add(&mut assembly, &one[2]), None);
    }

    #[test]
    fn no_more_is_kept_than_a_packet_has() {
        let mut assembly = Assembly::default();
        let endless = packet(1, 4 * LEN_MAX);
        for piece in pieces(&endless) {
            assert_eq!(add(&mut assembly, &piece), None);
            assert!(assembly.bytes.len() <= LEN_MAX);
        }
    }
}
