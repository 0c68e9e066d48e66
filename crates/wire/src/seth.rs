//! SACK extended transport header (SETH), behind the AETH of an acknowledgement: the gaps in what
//! was received after the acknowledged packets. It is used only between airdma hosts that have
//! agreed on it (`docs/protocol.md`).
//!
//! ```text
//!   +------------+------------+-------------------------+
//!   | version 1  |   ranges   |        reserved         |
//!   +------------+------------+-------------------------+
//!   |          first          |    packets missing      |  each range
//!   +-------------------------+-------------------------+
//! ```
//!
//! *First* counts from the first packet that was not executed, whose PSN follows that of the
//! acknowledgement. Ranges come in order.

use crate::packet::ParseError;

/// Version of this format.
pub const SETH_VERSION: u8 = 1;
/// Most ranges in one header.
pub const SETH_RANGES_MAX: usize = 32;
/// Length of the longest header in bytes.
pub const SETH_LEN_MAX: usize = HEAD_LEN + RANGE_LEN * SETH_RANGES_MAX;

const HEAD_LEN: usize = 4;
const RANGE_LEN: usize = 4;

/// A range of missing packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SethRange {
    /// Number of packets between the first one not executed and the first of this range.
    pub first: u16,
    /// Number of missing packets.
    pub packets: u16,
}

/// A received header, in the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seth<'a> {
    ranges: &'a [[u8; RANGE_LEN]],
}

impl<'a> Seth<'a> {
    /// Reads what follows the AETH, to the end of the packet.
    ///
    /// # Errors
    /// If it is too short or too long, or has another version.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (&[version, count, _, _], rest) = bytes
            .split_first_chunk::<HEAD_LEN>()
            .ok_or(ParseError::Truncated)?;
        if version != SETH_VERSION {
            return Err(ParseError::BadVersion(version));
        }
        let (ranges, more) = rest.as_chunks();
        let count = usize::from(count);
        if !more.is_empty() || ranges.len() != count || count > SETH_RANGES_MAX {
            return Err(ParseError::BadLength);
        }
        Ok(Seth { ranges })
    }

    /// The missing ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = SethRange> + use<'a> {
        self.ranges.iter().map(|&[a, b, c, d]| SethRange {
            first: u16::from_be_bytes([a, b]),
            packets: u16::from_be_bytes([c, d]),
        })
    }
}

/// Writes the first [`SETH_RANGES_MAX`] of `ranges` to `out`, and returns the number of bytes
/// written.
///
/// `out` must have room for [`SETH_LEN_MAX`] bytes.
pub fn emit_seth(ranges: impl Iterator<Item = SethRange>, out: &mut [u8]) -> usize {
    let mut len = HEAD_LEN;
    let mut count = 0;
    for range in ranges.take(SETH_RANGES_MAX) {
        let [a, b] = range.first.to_be_bytes();
        let [c, d] = range.packets.to_be_bytes();
        out[len..len + RANGE_LEN].copy_from_slice(&[a, b, c, d]);
        len += RANGE_LEN;
        count += 1;
    }
    out[..HEAD_LEN].copy_from_slice(&[SETH_VERSION, count, 0, 0]);
    len
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn range((first, packets): (u16, u16)) -> SethRange {
        SethRange { first, packets }
    }

    proptest! {
        #[test]
        fn ranges_are_read_as_they_were_written(
            ranges in prop::collection::vec(any::<(u16, u16)>().prop_map(range), 0..=SETH_RANGES_MAX),
        ) {
            let mut bytes = [0xa5; SETH_LEN_MAX];
            let len = emit_seth(ranges.iter().copied(), &mut bytes);
            prop_assert_eq!(len % 4, 0);
            let seth = Seth::parse(&bytes[..len]).unwrap();
            prop_assert_eq!(seth.ranges().collect::<Vec<_>>(), ranges);
        }

        #[test]
        fn arbitrary_bytes_never_panic_nor_exceed_their_ranges(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok(seth) = Seth::parse(&bytes) {
                prop_assert_eq!(4 + 4 * seth.ranges().count(), bytes.len());
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_the_picture() {
        let mut bytes = [0xa5; SETH_LEN_MAX];
        let ranges = [(0, 2), (0x0102, 0x0304)].map(range);
        let len = emit_seth(ranges.into_iter(), &mut bytes);
        assert_eq!(bytes[..len], [1, 2, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4]);
    }

    #[test]
    fn errors_are_reported_and_surplus_ranges_are_left_out() {
        assert_eq!(Seth::parse(&[1, 0, 0]), Err(ParseError::Truncated));
        assert_eq!(Seth::parse(&[2, 0, 0, 0]), Err(ParseError::BadVersion(2)));
        assert_eq!(Seth::parse(&[1, 1, 0, 0]), Err(ParseError::BadLength));
        assert_eq!(Seth::parse(&[1, 0, 0, 0, 0]), Err(ParseError::BadLength));
        let mut bytes = [0; SETH_LEN_MAX];
        let many = std::iter::repeat_n(range((1, 1)), 100);
        assert_eq!(emit_seth(many, &mut bytes), SETH_LEN_MAX);
        let too_many = [[1, 33, 0, 0].as_slice(), &[0; 33 * 4]].concat();
        assert_eq!(Seth::parse(&too_many), Err(ParseError::BadLength));
    }
}
