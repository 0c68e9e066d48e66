//! What an application is told of records, and what it asks of them.

use airdma_wire::{Neighbour, Rkey};

use super::entry::State;
use super::target::RecordTarget;
use super::{Ended, Record, RecordHandle, RecordHost, WORD};

impl RecordTarget {
    /// The next record that the application is told of. The caller must have room for it.
    pub fn poll_record(&mut self) -> Option<RecordHandle> {
        let index = self.untold.pop_front()?;
        let entry = &mut self.entries[index as usize];
        if let State::Closed { is_told, .. } = &mut entry.state {
            *is_told = true;
        }
        Some(self.handle(index))
    }

    /// Whether [`poll_record`](Self::poll_record) has one.
    pub fn has_record(&self) -> bool {
        !self.untold.is_empty()
    }

    pub(super) fn handle(&self, index: u32) -> RecordHandle {
        let generation = self.entries[index as usize].generation;
        RecordHandle(u64::from(generation) << 32 | u64::from(index))
    }

    /// The entry of a record that the application was told of.
    fn told(&self, handle: RecordHandle) -> Option<u32> {
        let index = handle.0 as u32;
        let entry = self.entries.get(index as usize)?;
        let is_told = matches!(entry.state, State::Closed { is_told: true, .. });
        (is_told && self.handle(index) == handle).then_some(index)
    }

    /// A record that the application was told of and has not freed.
    pub fn record(&self, handle: RecordHandle) -> Option<Record<'_>> {
        Some(self.view(self.told(handle)?))
    }

    /// Gives the entry of a record back; false if there is no such record.
    pub fn free(&mut self, handle: RecordHandle) -> bool {
        match self.told(handle) {
            Some(index) => {
                self.release(index);
                true
            }
            None => false,
        }
    }

    /// The open message that was opened first of those that write the byte at `va` with `rkey`.
    pub fn peek(&self, rkey: Rkey, va: u64) -> Option<Record<'_>> {
        self.open_at(rkey, va).map(|index| self.view(index))
    }

    fn open_at(&self, rkey: Rkey, va: u64) -> Option<u32> {
        self.open_records().find(|&index| {
            let reth = &self.entries[index as usize].reth;
            reth.rkey == rkey && va.wrapping_sub(reth.va) < u64::from(reth.length)
        })
    }

    /// The open messages that write registered memory.
    fn open_records(&self) -> impl Iterator<Item = u32> + use<'_> {
        let all = self.by_age.iter().chain(self.reliable.iter());
        let all = all.chain(self.reads.entries());
        all.filter(|&index| self.entries[index as usize].receive.is_none())
    }

    /// Closes the message that [`peek`](Self::peek) shows; false if there is none.
    pub fn close_at<H: RecordHost>(&mut self, rkey: Rkey, va: u64, host: &mut H) -> bool {
        let index = self.open_at(rkey, va);
        if let Some(index) = index {
            self.close(index, Ended::Asked, host);
        }
        index.is_some()
    }

    /// Closes all messages to memory that is no longer registered, whose key was for all messages
    /// to a group, or for none of a group.
    pub fn close_key<H: RecordHost>(&mut self, rkey: Rkey, group: Option<Neighbour>, host: &mut H) {
        loop {
            let names_it = |&index: &u32| {
                let entry = &self.entries[index as usize];
                entry.reth.rkey == rkey && entry.group == group
            };
            let Some(index) = self.open_records().find(names_it) else {
                return;
            };
            self.close(index, Ended::TakenBack, host);
        }
    }

    fn view(&self, index: u32) -> Record<'_> {
        let entry = &self.entries[index as usize];
        let units = entry.units();
        Record {
            source: entry.source.address,
            group: entry.group,
            is_read: entry.read.is_some(),
            src_qpn: entry.source.qpn,
            id: entry.id,
            va: entry.reth.va,
            rkey: entry.reth.rkey,
            length: entry.reth.length,
            unit: entry.unit,
            valid_bytes: entry.valid_bytes,
            imm: entry.imm,
            solicited: entry.solicited,
            ended: match entry.state {
                State::Closed { ended, .. } => Some(ended),
                State::Open | State::Free => None,
            },
            map: &self.map(index)[..units.div_ceil(WORD) as usize],
        }
    }
}
