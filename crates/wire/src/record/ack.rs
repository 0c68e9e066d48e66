//! The answer to packets of an acknowledged message: which units of it arrived, or that it ended
//! (`docs/protocol.md`, "Records").
//!
//! ```text
//!    0            1            2            3
//!   +------------+------------+------------+------------+
//!   |   BTH with the opcode 0xc1                        |  0
//!   |   DETH                                            | 12
//!   +---------------------------------------------------+
//!   |                     message id                    | 20
//!   |                     token, 8 bytes                | 24
//!   |                     first missing unit            | 32
//!   +------------+------------+-------------------------+
//!   |version|kind|   round    |        reserved         | 36
//!   +------------+------------+-------------------------+
//!   |   map, 16 bytes: bit k of the big-endian number   | 40
//!   |   is set if the k-th unit behind the first        |
//!   |   missing one arrived                             |
//!   |   ICRC                                            | 56
//! ```
//!
//! It is no longer than the shortest packet that it answers.

use super::{RECORD_HEADERS_LEN, RECORD_TOKEN_LEN, RECORD_VERSION};
use crate::{Bth, Deth, Opcode, ParseError, field};

/// First byte of an answer.
pub const RECORD_ACK_OPCODE: u8 = 0xc1;
/// Bytes of an answer, from the BTH to the ICRC.
pub const RECORD_ACK_LEN: usize = 56;

const _: () = assert!(RECORD_ACK_LEN == RECORD_HEADERS_LEN + RECORD_TOKEN_LEN);

const ID_AT: usize = Bth::LEN + Deth::LEN;
const TOKEN_AT: usize = ID_AT + 4;
const BASE_AT: usize = TOKEN_AT + RECORD_TOKEN_LEN;
const KIND_AT: usize = BASE_AT + 4;
const MAP_AT: usize = KIND_AT + 4;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordAnswer {
    /// It arrives: the map says what is there.
    Arrives = 0,
    /// All of it arrived.
    Whole = 1,
    /// There is no room, or no receive, now.
    NotReady = 2,
    /// Its key, range, unit or source is not allowed.
    Refused = 3,
    /// The posted receive is too short.
    TooLong = 4,
    /// It ended before all of it arrived, or its outcome is forgotten.
    Ended = 5,
}

impl RecordAnswer {
    fn from_number(number: u8) -> Option<Self> {
        const ALL: [RecordAnswer; 6] = [
            RecordAnswer::Arrives,
            RecordAnswer::Whole,
            RecordAnswer::NotReady,
            RecordAnswer::Refused,
            RecordAnswer::TooLong,
            RecordAnswer::Ended,
        ];
        ALL.into_iter().find(|&answer| answer as u8 == number)
    }
}

/// The answer to a packet of an acknowledged message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAck {
    /// Base transport header: the queue pair that sent the message, and its instance as PSN. Its
    /// opcode is that of a UD SEND, and is not sent.
    pub bth: Bth,
    /// The queue pair that answers. Its Q_Key is sent as 0 and ignored, since the token says more.
    pub deth: Deth,
    /// Number of the message.
    pub id: u32,
    /// Token of the message.
    pub token: u64,
    /// What became of the message.
    pub answer: RecordAnswer,
    /// Round of the packet that is answered.
    pub round: u8,
    /// First missing unit.
    pub base: u32,
    /// Bit `k` is set if unit `base + k` arrived.
    pub map: u128,
}

impl RecordAck {
    /// Writes the answer to the start of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let out = out
            .first_chunk_mut::<RECORD_ACK_LEN>()
            .expect("a buffer for the longest packet");
        let mut bth = self.bth.to_bytes();
        bth[0] = RECORD_ACK_OPCODE;
        field::set::<0, { Bth::LEN }, _>(out, bth);
        field::set::<{ Bth::LEN }, { Deth::LEN }, _>(out, self.deth.to_bytes());
        field::set::<ID_AT, 4, _>(out, self.id.to_be_bytes());
        field::set::<TOKEN_AT, 8, _>(out, self.token.to_be_bytes());
        field::set::<BASE_AT, 4, _>(out, self.base.to_be_bytes());
        let kind = RECORD_VERSION << 4 | self.answer as u8;
        field::set::<KIND_AT, 4, _>(out, [kind, self.round, 0, 0]);
        field::set::<MAP_AT, 16, _>(out, self.map.to_be_bytes());
        RECORD_ACK_LEN
    }

    /// Reads an answer from the bytes between UDP header and ICRC.
    ///
    /// # Errors
    /// Why the bytes are no such packet; [`ParseError::UnknownOpcode`] for any other packet.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first() {
            Some(&RECORD_ACK_OPCODE) => {}
            Some(&other) => return Err(ParseError::UnknownOpcode(other)),
            None => return Err(ParseError::Truncated),
        }
        let bytes = bytes
            .first_chunk::<RECORD_ACK_LEN>()
            .filter(|_| bytes.len() <= RECORD_ACK_LEN)
            .ok_or(if bytes.len() < RECORD_ACK_LEN {
                ParseError::Truncated
            } else {
                ParseError::BadLength
            })?;
        let mut bth: [u8; Bth::LEN] = field::get::<0, { Bth::LEN }, _>(bytes);
        bth[0] = Opcode::UdSendOnly as u8;
        let [kind, round, ..] = field::get::<KIND_AT, 4, _>(bytes);
        let answer = RecordAnswer::from_number(kind & 0x0f)
            .filter(|_| kind >> 4 == RECORD_VERSION)
            .ok_or(ParseError::BadVersion(kind))?;
        Ok(RecordAck {
            bth: Bth::from_bytes(&bth)?,
            deth: Deth::from_bytes(&field::get::<{ Bth::LEN }, { Deth::LEN }, _>(bytes)),
            id: u32::from_be_bytes(field::get::<ID_AT, 4, _>(bytes)),
            token: u64::from_be_bytes(field::get::<TOKEN_AT, 8, _>(bytes)),
            answer,
            round,
            base: u32::from_be_bytes(field::get::<BASE_AT, 4, _>(bytes)),
            map: u128::from_be_bytes(field::get::<MAP_AT, 16, _>(bytes)),
        })
    }
}
