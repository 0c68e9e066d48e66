//! Reads by datagrams: what a requester's memory may become, and when a read ends.
//!
//! A byte of the requester's memory changes only to the byte of the peer's that a read which has
//! not ended asks for there. A read ends exactly once, not after its deadline, and for its age at
//! the deadline only; every byte that it declares valid is right and stays so until the application
//! frees the record, and the others are named as missing: it is whole only if none is.

use std::collections::BTreeMap;

use crate::Verdict;
use crate::records::{Name, Record, Records};

/// The reads of one requester and the memory that they write.
#[derive(Debug)]
pub struct Reads {
    records: Records,
    /// Deadlines of the reads that have not ended, in the driver's time.
    open: BTreeMap<Name, u64>,
}

impl Reads {
    /// Memory of these bytes at `va`; the application holds at most `held_max` records.
    pub fn new(va: u64, memory: &[u8], held_max: usize) -> Self {
        Reads {
            records: Records::new(va, memory, held_max),
            open: BTreeMap::new(),
        }
    }

    /// A read begins, of memory of a peer that has these bytes, into memory at `va`. Reads that
    /// have not ended, or whose records are held, do not overlap.
    pub fn begun(&mut self, name: Name, va: u64, bytes: &[u8], deadline: u64) -> Verdict {
        self.open.insert(name, deadline);
        self.records.sent(name, va, bytes)
    }

    /// The memory after a step, at a time.
    pub fn check(&mut self, memory: &[u8], now: u64) -> Verdict {
        let late = self.open.iter().find(|&(_, &deadline)| deadline < now);
        if let Some((name, deadline)) = late {
            return Err(format!("{name:?} has not ended at {now}, after {deadline}"));
        }
        self.records.check(memory)
    }

    /// The application is told that a read has ended, for its age or not.
    pub fn told(&mut self, record: &Record, is_age: bool, now: u64) -> Verdict {
        let name = record.name;
        let Some(deadline) = self.open.remove(&name) else {
            return Err(format!("{name:?} ended twice, or never began"));
        };
        if now > deadline || is_age && now < deadline {
            return Err(format!("{name:?} ended at {now}; it lasts to {deadline}"));
        }
        self.records.told(record)
    }

    /// The application writes its memory, where no read has it.
    pub fn stored(&mut self, va: u64, bytes: &[u8]) {
        self.records.stored(va, bytes);
    }

    /// The application frees the record.
    pub fn freed(&mut self, name: Name) -> Verdict {
        self.records.freed(name)
    }

    /// No read is awaited any more.
    pub fn end(&self) -> Verdict {
        match self.open.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("{name:?} never ended")),
        }
    }
}

#[cfg(test)]
mod tests {
    // Lists of ranges with one range.
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
    use super::*;
    use core::ops::Range;

    const NAME: Name = Name {
        source: 0,
        number: 2,
    };

    /// A read of four bytes to the address 102, until the time 50.
    fn judge() -> Reads {
        let mut judge = Reads::new(100, &[0; 10], 1);
        judge.begun(NAME, 102, &[1, 2, 3, 4], 50).unwrap();
        judge
    }

    fn record(valid: &[Range<u32>]) -> Record {
        let valid_bytes = valid.iter().map(|range| range.len() as u32).sum();
        Record {
            name: NAME,
            va: 102,
            length: 4,
            unit: 2,
            valid: valid.to_vec(),
            valid_bytes,
            is_whole: valid_bytes == 4,
        }
    }

    #[test]
    fn a_read_ends_once_and_in_time() {
        let mut judge = judge();
        assert!(judge.end().is_err());
        judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0], 50).unwrap();
        assert!(judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0], 51).is_err());
        judge.told(&record(&[0..2]), true, 50).unwrap();
        judge.end().unwrap();
        assert!(judge.told(&record(&[0..2]), true, 50).is_err());
        judge.freed(NAME).unwrap();
        assert!(judge.freed(NAME).is_err());
    }

    #[test]
    fn an_end_for_its_age_is_at_the_deadline() {
        assert!(judge().told(&record(&[]), true, 49).is_err());
        assert!(judge().told(&record(&[]), false, 51).is_err());
        judge().told(&record(&[]), false, 49).unwrap();
    }

    #[test]
    fn what_is_declared_valid_is_what_the_peer_has() {
        assert!(judge().told(&record(&[0..2]), false, 1).is_err());
        // A byte that the peer has elsewhere, and one beside the read.
        assert!(judge().check(&[0, 0, 2, 0, 0, 0, 0, 0, 0, 0], 1).is_err());
        assert!(judge().check(&[0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 1).is_err());
        // What arrives after the end changes nothing.
        let mut judge = judge();
        judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0], 1).unwrap();
        judge.told(&record(&[0..2]), false, 2).unwrap();
        assert!(judge.check(&[0, 0, 1, 2, 3, 4, 0, 0, 0, 0], 3).is_err());
    }
}
