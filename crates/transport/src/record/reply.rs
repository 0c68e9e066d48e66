//! What becomes of a packet that a target takes, and what its sender is told.

use airdma_wire::RecordAnswer;

use crate::counter::Counter;

/// What the sender of an acknowledged message is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordReply {
    /// What became of the message.
    pub answer: RecordAnswer,
    /// First missing unit.
    pub base: u32,
    /// Bit `k` is set if unit `base + k` arrived.
    pub map: u128,
    /// The message became whole with the packet that this answers.
    pub(super) ends: bool,
}

impl RecordReply {
    pub(super) fn without_map(answer: RecordAnswer) -> Self {
        RecordReply {
            answer,
            base: 0,
            map: 0,
            ends: false,
        }
    }
}

/// Why a packet is not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Malformed,
    /// All of its message arrived.
    Whole,
    /// Its message was closed before.
    Late,
    Access,
    Full,
    NoReceive,
    TooLong,
}

impl Refused {
    pub(super) fn counter(self) -> Counter {
        match self {
            Refused::Malformed => Counter::DropMalformed,
            Refused::Whole => Counter::Duplicates,
            Refused::Late => Counter::DropRecordLate,
            Refused::Access => Counter::DropRecordRefused,
            Refused::Full => Counter::DropRecordFull,
            Refused::NoReceive => Counter::DropNoReceive,
            Refused::TooLong => Counter::DropTooLong,
        }
    }

    pub(super) fn answer(self) -> Option<RecordAnswer> {
        Some(match self {
            Refused::Malformed => return None,
            Refused::Whole => RecordAnswer::Whole,
            Refused::Late => RecordAnswer::Ended,
            Refused::Access => RecordAnswer::Refused,
            Refused::Full | Refused::NoReceive => RecordAnswer::NotReady,
            Refused::TooLong => RecordAnswer::TooLong,
        })
    }
}
