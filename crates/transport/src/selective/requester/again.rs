//! When packets in flight were retransmitted.

use std::mem;
use std::ops::Range;

use super::{AHEAD_MAX, ReorderMemory, slot};
use crate::time::Time;

/// Bytes of the table: 131 KB. It counts against the peer's memory, since its reports cause it, and
/// is freed when all retransmissions are acknowledged.
const TABLE_BYTES: usize = AHEAD_MAX as usize * mem::size_of::<Option<Time>>();

#[derive(Debug)]
pub(super) struct Again {
    /// Times by sequence modulo [`AHEAD_MAX`]; empty if nothing was retransmitted, or without
    /// memory.
    at: Box<[Option<Time>]>,
    /// Sequence behind the last retransmission.
    end: u64,
    /// The last retransmission without a table; it stands for all before `end`.
    blind: Option<Time>,
    memory: ReorderMemory,
}

impl Again {
    pub(super) fn new(memory: ReorderMemory) -> Self {
        Again {
            at: Box::default(),
            end: 0,
            blind: None,
            memory,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at.is_empty() && self.blind.is_none()
    }

    /// When a packet in flight was retransmitted. Without a table, the time may be that of another.
    pub(super) fn at(&self, sequence: u64) -> Option<Time> {
        match self.at.get(slot(sequence)) {
            Some(at) => *at,
            None => self.blind.filter(|_| sequence < self.end),
        }
    }

    pub(super) fn note(&mut self, sequences: Range<u64>, now: Time) {
        self.end = self.end.max(sequences.end);
        if self.at.is_empty() && self.memory.take(TABLE_BYTES) {
            self.at = vec![self.blind.take(); AHEAD_MAX as usize].into();
        }
        if self.at.is_empty() {
            self.blind = Some(now);
            return;
        }
        for sequence in sequences {
            self.at[slot(sequence)] = Some(now);
        }
    }

    /// Drops all before `sequence`, which was acknowledged.
    pub(super) fn forget_before(&mut self, sequence: u64) {
        if sequence >= self.end {
            self.blind = None;
            self.give_table();
        }
    }

    fn give_table(&mut self) {
        if !self.at.is_empty() {
            self.at = Box::default();
            self.memory.give(TABLE_BYTES);
        }
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        self.give_table();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_table_counts_and_is_given_back() {
        let memory = ReorderMemory::new(TABLE_BYTES + 1);
        let mut again = Again::new(memory.clone());
        let start = Time::ZERO + Duration::from_secs(1);
        again.note(3..5, start);
        assert_eq!(memory.left(), 1);
        assert_eq!(
            [2, 3, 4, 5].map(|it| again.at(it)),
            [None, Some(start), Some(start), None]
        );
        again.forget_before(4);
        assert_eq!(again.at(4), Some(start));
        again.forget_before(5);
        assert_eq!((memory.left(), again.is_empty()), (TABLE_BYTES + 1, true));
    }

    #[test]
    fn without_memory_one_time_stands_for_all() {
        let mut again = Again::new(ReorderMemory::new(0));
        let start = Time::ZERO + Duration::from_secs(1);
        again.note(3..5, start);
        assert_eq!(
            [3, 4, 5].map(|it| again.at(it)),
            [Some(start), Some(start), None]
        );
        again.forget_before(5);
        assert!(again.is_empty());
    }
}
