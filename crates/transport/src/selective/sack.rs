//! ACK packets that say what is missing, by a header behind the AETH ([`Seth`]), for peers that
//! repeat selectively without reports.
//!
//! An ACK leaves when the peer asks for one, when a packet comes again, and at once when packets
//! are newly missing. The requester measures the round trip by what is acknowledged.

use std::time::Duration;

use airdma_wire::{Psn, SETH_RANGES_MAX, Seth, SethRange, emit_seth};

use super::{PsnRange, Reorder};

/// Delay of a peer's ACKs, which are sent at once, on a busy machine.
pub(crate) const ACK_WITHIN: Duration = Duration::from_millis(1);

/// Writes what is missing from `expected` on, behind the AETH of an ACK for all before `from`.
/// `refused`: the expected packet arrived and was refused, which a NAK reports.
pub(crate) fn emit(
    reorder: &mut Reorder,
    expected: Psn,
    refused: bool,
    from: Psn,
    out: &mut [u8],
) -> usize {
    let ranges = reorder.missing(expected, refused).map(|range| SethRange {
        first: range.first.distance_from(from) as u16,
        packets: range.packets as u16,
    });
    let len = emit_seth(ranges, out);
    reorder.told();
    len
}

/// What a SETH says is missing.
pub(crate) struct Missing {
    ranges: [PsnRange; SETH_RANGES_MAX],
    count: usize,
}

impl Missing {
    /// What a SETH says of packets from `expected` on.
    pub(crate) fn parse(expected: Psn, seth: Seth<'_>) -> Self {
        let nothing = PsnRange {
            first: Psn::default(),
            packets: 0,
        };
        let mut missing = Missing {
            ranges: [nothing; SETH_RANGES_MAX],
            count: 0,
        };
        for (range, place) in seth.ranges().zip(&mut missing.ranges) {
            *place = PsnRange {
                first: expected.add(range.first.into()),
                packets: range.packets.into(),
            };
            missing.count += 1;
        }
        missing
    }

    pub(crate) fn ranges(&self) -> &[PsnRange] {
        &self.ranges[..self.count]
    }
}
