//! When packets in flight were retransmitted.

use std::mem;
use std::ops::Range;

use super::{AHEAD_MAX, ReorderMemory, slot};
use crate::time::Time;

/// Bytes of the table: 131 KB. It counts against the peer's memory, since its reports cause it, and
/// is freed when all retransmissions are acknowledged.
const TABLE_BYTES: usize = AHEAD_MAX as usize * mem::size_of::<Option<Time>>();
/// Most retransmissions without a table: where few packets get lost, none is made.
const FEW_MAX: usize = 16;

/// What each message looks at stands first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Again {
    /// Sequence behind the last retransmission; 0 if none is known.
    end: u64,
    count: usize,
    /// Times by sequence modulo [`AHEAD_MAX`]; empty if few packets were retransmitted, or without
    /// memory.
    at: Box<[Option<Time>]>,
    /// The last retransmission without a table; it stands for all before `end`.
    blind: Option<Time>,
    memory: ReorderMemory,
    /// The retransmissions, while there are few.
    few: [(u64, Time); FEW_MAX],
}

/// The end of what each message looks at.
pub(super) const USUAL_END: usize = mem::offset_of!(Again, count);

impl Again {
    pub(super) fn new(memory: ReorderMemory) -> Self {
        Again {
            few: [(0, Time::ZERO); FEW_MAX],
            count: 0,
            at: Box::default(),
            end: 0,
            blind: None,
            memory,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.at.is_empty() && self.blind.is_none()
    }

    /// When a packet in flight was retransmitted. Without a table, the time may be that of another.
    pub(super) fn at(&self, sequence: u64) -> Option<Time> {
        if let Some(at) = self.at.get(slot(sequence)) {
            return *at;
        }
        let mut few = self.few[..self.count].iter();
        let known = few.find(|(of, _)| *of == sequence).map(|(_, at)| *at);
        known.or_else(|| self.blind.filter(|_| sequence < self.end))
    }

    /// Notes that these were retransmitted; all before `acked` were acknowledged.
    pub(super) fn note(&mut self, sequences: Range<u64>, acked: u64, now: Time) {
        self.end = self.end.max(sequences.end);
        if self.at.is_empty()
            && self.blind.is_none()
            && self.note_few(sequences.clone(), acked, now)
        {
            return;
        }
        if self.at.is_empty() && self.memory.take(TABLE_BYTES) {
            self.at = vec![self.blind.take(); AHEAD_MAX as usize].into();
            for (of, at) in &self.few[..self.count] {
                self.at[slot(*of)] = Some(*at);
            }
        }
        self.count = 0;
        if self.at.is_empty() {
            self.blind = Some(now);
            return;
        }
        for sequence in sequences {
            self.at[slot(sequence)] = Some(now);
        }
    }

    /// As [`note`](Self::note), while there are few; false if they are too many.
    fn note_few(&mut self, sequences: Range<u64>, acked: u64, now: Time) -> bool {
        let (from, to) = (sequences.start, sequences.end);
        let mut kept = 0;
        for place in 0..self.count {
            let (of, _) = self.few[place];
            if of >= acked && !(from..to).contains(&of) {
                self.few.swap(kept, place);
                kept += 1;
            }
        }
        self.count = kept;
        let has_room = to - from <= (FEW_MAX - kept) as u64;
        if has_room {
            for (place, sequence) in self.few[kept..].iter_mut().zip(sequences) {
                *place = (sequence, now);
                self.count += 1;
            }
        }
        has_room
    }

    /// Drops all before `sequence`, which was acknowledged.
    pub(super) fn forget_before(&mut self, sequence: u64) {
        if self.end > 0 && sequence >= self.end {
            self.end = 0;
            self.count = 0;
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
        let first = Time::ZERO;
        again.note(1..2, 0, first);
        again.note(3..40, 0, start);
        assert_eq!(memory.left(), 1);
        assert_eq!(
            [1, 2, 3, 39, 40].map(|it| again.at(it)),
            [Some(first), None, Some(start), Some(start), None]
        );
        again.forget_before(39);
        assert_eq!(again.at(39), Some(start));
        again.forget_before(40);
        assert_eq!((memory.left(), again.is_empty()), (TABLE_BYTES + 1, true));
    }

    #[test]
    fn without_memory_one_time_stands_for_all() {
        let mut again = Again::new(ReorderMemory::new(0));
        let start = Time::ZERO + Duration::from_secs(1);
        again.note(3..20, 0, start);
        assert_eq!(
            [3, 19, 20].map(|it| again.at(it)),
            [Some(start), Some(start), None]
        );
        again.forget_before(20);
        assert!(again.is_empty());
    }

    #[test]
    fn few_take_no_memory_as_long_as_they_are_acknowledged() {
        let memory = ReorderMemory::new(TABLE_BYTES);
        let mut again = Again::new(memory.clone());
        for sequence in 0..1_000u64 {
            let now = Time::from_nanos(sequence);
            again.note(sequence..sequence + 1, sequence.saturating_sub(8), now);
            // One of them twice.
            let twice = sequence.saturating_sub(5);
            again.note(twice..twice + 1, sequence.saturating_sub(8), now);
            assert_eq!(again.at(twice), Some(now));
            assert!(again.at(sequence.saturating_sub(7)).is_some());
            assert_eq!(again.at(sequence + 1), None);
        }
        assert_eq!(memory.left(), TABLE_BYTES);
        again.forget_before(1_000);
        assert!(again.is_empty());
    }
}
