//! A request to read memory of a peer by datagrams, and the short answers to it
//! (`docs/protocol.md`, "Reads of records"). The memory itself comes in packets of a record
//! ([`RecordPacket`](crate::RecordPacket)).
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |   BTH with the opcode 0xc3; PSN: the instance     |  0
//!   |   DETH                                            | 12
//!   |   RETH: the memory to read                        | 20
//!   +---------------------------------------------------+
//!   |                     message id                    | 36
//!   +---------------------------------------------------+
//!   |                 nonce, 8 bytes                    | 40
//!   +---------------------------------------------------+
//!   |                 token, 8 bytes                    | 48
//!   +---------------------------------------------------+
//!   |             Q_Key of the requester                | 56
//!   +-------------------------+------------+------------+
//!   |          unit           |version|kind|   ranges   | 60
//!   +-------------------------+------------+------------+
//!   |   ranges: first unit, and how many; 4 bytes each  | 64    of a request
//!   |   ICRC                                            |
//! ```

use crate::{Bth, Deth, Opcode, ParseError, Qkey, Reth, field};

/// First byte of such a packet.
pub const RECORD_READ_OPCODE: u8 = 0xc3;
/// Bytes of an answer, BTH to the number of ranges: fewer than any request has.
pub const RECORD_READ_LEN: usize = 64;
/// Most ranges of a request.
pub const READ_RANGES_MAX: usize = 32;
/// Most bytes of a request.
pub const RECORD_READ_LEN_MAX: usize = RECORD_READ_LEN + READ_RANGES_MAX * RANGE_LEN;

const RANGE_LEN: usize = 8;

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordReadKind {
    /// Send the units of these ranges.
    Request,
    /// Ask again with this token.
    Challenge,
    /// The memory may not be read so.
    Refused,
}

/// Units of a message: `count` of them, from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UnitRange {
    /// The first one.
    pub first: u32,
    /// How many, at least one.
    pub count: u32,
}

/// The ranges of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReadRanges {
    ranges: [UnitRange; READ_RANGES_MAX],
    count: u8,
}

impl ReadRanges {
    /// The ranges.
    pub fn as_slice(&self) -> &[UnitRange] {
        &self.ranges[..self.count.into()]
    }

    /// Adds a range; false if there is no room.
    pub fn push(&mut self, range: UnitRange) -> bool {
        let Some(place) = self.ranges.get_mut(usize::from(self.count)) else {
            return false;
        };
        *place = range;
        self.count += 1;
        true
    }
}

/// A request to read, or an answer to one, which has the same fields but token, unit and ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRead {
    /// Base transport header. Its opcode is that of a UD SEND, and is not sent; its PSN is the
    /// instance of the requester's reads.
    pub bth: Bth,
    /// Queue key of the receiver of a request (0 in answers), and the queue pair that sends it.
    pub deth: Deth,
    /// The memory to read.
    pub reth: Reth,
    /// Number of the record at the requester.
    pub id: u32,
    /// A number that all that belongs to a request repeats. Only hosts on the path know it.
    pub nonce: u64,
    /// What proves that the requester receives at its address; 0: it has none.
    pub token: u64,
    /// Queue key that the packets of the record have.
    pub answer_qkey: Qkey,
    /// Payload of each packet of the record but the last; in a challenge, the most there may be.
    pub unit: u16,
    /// What it says.
    pub kind: RecordReadKind,
    /// The units that are wanted; none in an answer.
    pub ranges: ReadRanges,
}

impl RecordRead {
    /// Writes the packet to the start of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut bytes = [0; RECORD_READ_LEN];
        let mut bth = self.bth.to_bytes();
        bth[0] = RECORD_READ_OPCODE;
        let ranges = self.ranges.as_slice();
        field::set::<0, { Bth::LEN }, _>(&mut bytes, bth);
        field::set::<12, { Deth::LEN }, _>(&mut bytes, self.deth.to_bytes());
        field::set::<20, { Reth::LEN }, _>(&mut bytes, self.reth.to_bytes());
        field::set::<36, 4, _>(&mut bytes, self.id.to_be_bytes());
        field::set::<40, 8, _>(&mut bytes, self.nonce.to_be_bytes());
        field::set::<48, 8, _>(&mut bytes, self.token.to_be_bytes());
        field::set::<56, 4, _>(&mut bytes, self.answer_qkey.0.to_be_bytes());
        field::set::<60, 2, _>(&mut bytes, self.unit.to_be_bytes());
        bytes[62] = super::RECORD_VERSION << 4 | self.kind as u8;
        bytes[63] = ranges.len() as u8;
        out[..RECORD_READ_LEN].copy_from_slice(&bytes);
        let (places, _) = out[RECORD_READ_LEN..].as_chunks_mut::<RANGE_LEN>();
        for (place, range) in places.iter_mut().zip(ranges) {
            field::set::<0, 4, _>(place, range.first.to_be_bytes());
            field::set::<4, 4, _>(place, range.count.to_be_bytes());
        }
        RECORD_READ_LEN + ranges.len() * RANGE_LEN
    }

    /// Reads a packet from the bytes between UDP header and ICRC. Only the format is checked.
    ///
    /// # Errors
    /// Why the bytes are none; [`ParseError::UnknownOpcode`] for any other packet.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first() {
            Some(&RECORD_READ_OPCODE) => {}
            Some(&other) => return Err(ParseError::UnknownOpcode(other)),
            None => return Err(ParseError::Truncated),
        }
        let (fixed, rest) = bytes
            .split_first_chunk::<RECORD_READ_LEN>()
            .ok_or(ParseError::Truncated)?;
        let mut bth: [u8; Bth::LEN] = field::get::<0, { Bth::LEN }, _>(fixed);
        bth[0] = Opcode::UdSendOnly as u8;
        let bth = Bth::from_bytes(&bth)?;
        if fixed[62] >> 4 != super::RECORD_VERSION {
            return Err(ParseError::BadVersion(fixed[62] >> 4));
        }
        let kind = match fixed[62] & 0xf {
            0 => RecordReadKind::Request,
            1 => RecordReadKind::Challenge,
            2 => RecordReadKind::Refused,
            _ => return Err(ParseError::BadLength),
        };
        let count = usize::from(fixed[63]);
        let fits = match kind {
            RecordReadKind::Request => (1..=READ_RANGES_MAX).contains(&count),
            RecordReadKind::Challenge | RecordReadKind::Refused => count == 0,
        };
        let (ranges, left) = rest.as_chunks::<RANGE_LEN>();
        if !fits || ranges.len() != count || !left.is_empty() {
            return Err(ParseError::BadLength);
        }
        let mut read = RecordRead {
            bth,
            deth: Deth::from_bytes(&field::get::<12, { Deth::LEN }, _>(fixed)),
            reth: Reth::from_bytes(&field::get::<20, { Reth::LEN }, _>(fixed)),
            id: u32::from_be_bytes(field::get::<36, 4, _>(fixed)),
            nonce: u64::from_be_bytes(field::get::<40, 8, _>(fixed)),
            token: u64::from_be_bytes(field::get::<48, 8, _>(fixed)),
            answer_qkey: Qkey(u32::from_be_bytes(field::get::<56, 4, _>(fixed))),
            unit: u16::from_be_bytes(field::get::<60, 2, _>(fixed)),
            kind,
            ranges: ReadRanges::default(),
        };
        for range in ranges {
            read.ranges.push(UnitRange {
                first: u32::from_be_bytes(field::get::<0, 4, _>(range)),
                count: u32::from_be_bytes(field::get::<4, 4, _>(range)),
            });
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Psn, Qpn, Rkey};

    fn request() -> RecordRead {
        let mut ranges = ReadRanges::default();
        for first in [0, 7] {
            let count = first + 1;
            assert!(ranges.push(UnitRange { first, count }));
        }
        RecordRead {
            bth: Bth::new(Opcode::UdSendOnly, Qpn::new(0x0a_0b0c), Psn::new(0x01_0203)),
            deth: Deth {
                qkey: Qkey(0x1111_2222),
                src_qpn: Qpn::new(0x0d_0e0f),
            },
            reth: Reth {
                va: 0x0102_0304_0506_0708,
                rkey: Rkey(0x0908_0706),
                length: 0x4000,
            },
            id: 5,
            nonce: 0xaaaa_bbbb_cccc_dddd,
            token: 0x1234_5678_9abc_def0,
            answer_qkey: Qkey(0x3333_4444),
            unit: 0x0580,
            kind: RecordReadKind::Request,
            ranges,
        }
    }

    fn bytes_of(read: &RecordRead) -> Vec<u8> {
        let mut bytes = vec![0xff; RECORD_READ_LEN_MAX];
        let length = read.emit(&mut bytes);
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn a_request_has_these_bytes() {
        let bytes = bytes_of(&request());
        assert_eq!(bytes[0], 0xc3);
        assert_eq!(bytes[36..40], [0, 0, 0, 5]);
        assert_eq!(bytes[40..48], 0xaaaa_bbbb_cccc_dddd_u64.to_be_bytes());
        assert_eq!(bytes[48..56], 0x1234_5678_9abc_def0_u64.to_be_bytes());
        assert_eq!(bytes[56..64], [0x33, 0x33, 0x44, 0x44, 0x05, 0x80, 0x10, 2]);
        assert_eq!(bytes[64..72], [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[72..], [0, 0, 0, 7, 0, 0, 0, 8]);
        assert_eq!(RecordRead::parse(&bytes), Ok(request()));
    }

    #[test]
    fn an_answer_is_shorter_than_any_request() {
        for kind in [RecordReadKind::Challenge, RecordReadKind::Refused] {
            let ranges = ReadRanges::default();
            let answer = RecordRead {
                kind,
                ranges,
                ..request()
            };
            let bytes = bytes_of(&answer);
            assert_eq!(bytes.len(), RECORD_READ_LEN);
            assert_eq!(RecordRead::parse(&bytes), Ok(answer));
        }
    }

    #[test]
    fn a_request_has_so_many_ranges_and_no_more() {
        let mut full = request();
        let range = UnitRange { first: 9, count: 1 };
        while full.ranges.push(range) {}
        assert_eq!(full.ranges.as_slice().len(), READ_RANGES_MAX);
        let bytes = bytes_of(&full);
        assert_eq!(bytes.len(), RECORD_READ_LEN_MAX);
        assert_eq!(RecordRead::parse(&bytes), Ok(full));
    }

    #[test]
    fn other_packets_are_refused() {
        let bytes = bytes_of(&request());
        for length in 0..RECORD_READ_LEN {
            assert_eq!(
                RecordRead::parse(&bytes[..length]),
                Err(ParseError::Truncated)
            );
        }
        for length in RECORD_READ_LEN..bytes.len() {
            assert_eq!(
                RecordRead::parse(&bytes[..length]),
                Err(ParseError::BadLength)
            );
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            RecordRead::parse(&bytes)
        };
        assert_eq!(with(0, 0xc2), Err(ParseError::UnknownOpcode(0xc2)));
        assert_eq!(with(62, 0x20), Err(ParseError::BadVersion(2)));
        for (at, byte) in [(62, 0x11), (62, 0x13), (63, 0), (63, 1), (63, 3), (63, 33)] {
            assert_eq!(with(at, byte), Err(ParseError::BadLength), "{at}: {byte}");
        }
    }
}
