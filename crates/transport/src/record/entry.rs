//! An entry of a target's table: a message, open or closed.

use airdma_wire::{Neighbour, RecordHeaders, Reth};

use super::index::NONE;
use super::sources::Source;
use super::{Ended, RecordOrigin};
use crate::completion::GrhHeader;
use crate::host::Receive;
use crate::time::Time;

/// Whether an entry has a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Open,
    Closed { ended: Ended, is_told: bool },
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// One more each time that the entry is freed.
    pub(super) generation: u32,
    pub(super) state: State,
    pub(super) source: Source,
    /// The group that the message was sent to.
    pub(super) group: Option<Neighbour>,
    /// Row of the source.
    pub(super) row: u32,
    pub(super) id: u32,
    pub(super) reth: Reth,
    pub(super) unit: u16,
    pub(super) imm: Option<[u8; 4]>,
    pub(super) solicited: bool,
    pub(super) opened: Time,
    pub(super) touched: Time,
    pub(super) valid_bytes: u32,
    pub(super) valid_units: u32,
    /// The message is acknowledged.
    pub(super) is_reliable: bool,
    /// The nonce of the request for it, if it was asked for: its memory is then the
    /// application's own.
    pub(super) read: Option<u64>,
    /// Where a SEND goes.
    pub(super) receive: Option<Receive>,
    /// Kind of the header at its start.
    pub(super) grh: Option<GrhHeader>,
    /// No unit before this one is missing.
    pub(super) base: u32,
}

impl Entry {
    /// An entry that was never used.
    pub(super) fn free() -> Entry {
        Entry {
            generation: 0,
            state: State::Free,
            source: Source {
                address: Neighbour::from([0, 0, 0, 0]),
                qpn: Default::default(),
                instance: Default::default(),
            },
            group: None,
            row: NONE,
            id: 0,
            reth: Reth::default(),
            unit: 1,
            imm: None,
            solicited: false,
            opened: Time::ZERO,
            touched: Time::ZERO,
            valid_bytes: 0,
            valid_units: 0,
            is_reliable: false,
            read: None,
            receive: None,
            grh: None,
            base: 0,
        }
    }

    pub(super) fn units(&self) -> u32 {
        self.reth.length.div_ceil(u32::from(self.unit)).max(1)
    }

    /// Whether a packet describes the same message, and was sent to the same group.
    pub(super) fn is_of(&self, group: Option<Neighbour>, headers: &RecordHeaders) -> bool {
        let is_same_memory = if self.read.is_some() {
            self.reth.length == headers.reth.length
        } else {
            self.reth == headers.reth
        };
        is_same_memory
            && self.read == headers.read
            && self.unit == headers.rceth.unit
            && self.imm == headers.imm
            && self.group == group
    }

    pub(super) fn origin(&self) -> RecordOrigin {
        RecordOrigin {
            source: self.source.address,
            group: self.group,
        }
    }
}
