//! Write-Records: what a target may write and declare.
//!
//! A byte of the memory changes only to a byte of a message that was sent there and has not ended.
//! A record ends a message that was sent, once; every byte that it declares valid is that of the
//! message, and stays so until the application frees the record. A message whose source was told
//! that it arrived ends whole.

use core::ops::Range;
use std::collections::BTreeMap;

use crate::Verdict;

/// A message as it was sent: by which source (the driver's number for it), and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The source.
    pub source: u64,
    /// The number of the message.
    pub number: u32,
}

/// A record as the application sees it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which message it ends.
    pub name: Name,
    /// First address of the message.
    pub va: u64,
    /// Bytes of the message.
    pub length: u32,
    /// Bytes of a unit.
    pub unit: u32,
    /// Bytes that are declared valid, as ranges of the message.
    pub valid: Vec<Range<u32>>,
    /// The number of them.
    pub valid_bytes: u32,
    /// Whether it says that the message is whole.
    pub is_whole: bool,
}

/// Bytes that are compared at once.
const CHUNK: usize = 1024;

#[derive(Debug)]
struct Sent {
    va: u64,
    bytes: Vec<u8>,
    ended: bool,
    /// Whether the memory was taken back since.
    is_refused: bool,
    /// Whether its record said that it is whole.
    is_whole: bool,
    /// Whether its source was told that it arrived.
    is_acknowledged: bool,
}

impl Sent {
    /// Whether it writes this byte to this address.
    fn has(&self, va: u64, byte: u8) -> bool {
        let at = va.checked_sub(self.va).map(|at| at as usize);
        at.is_some_and(|at| self.bytes.get(at) == Some(&byte))
    }
}

/// The records of one target and the memory that it may write.
#[derive(Debug)]
pub struct Records {
    va: u64,
    memory: Vec<u8>,
    sent: BTreeMap<Name, Sent>,
    held: BTreeMap<Name, Vec<Range<u32>>>,
    held_max: usize,
}

impl Records {
    /// Memory of these bytes at `va`; the application holds at most `held_max` records.
    pub fn new(va: u64, memory: &[u8], held_max: usize) -> Self {
        Records {
            va,
            memory: memory.to_vec(),
            sent: BTreeMap::new(),
            held: BTreeMap::new(),
            held_max,
        }
    }

    /// A message was sent. Messages that have not ended, or whose records are held, do not overlap.
    pub fn sent(&mut self, name: Name, va: u64, bytes: &[u8]) -> Verdict {
        let sent = Sent {
            va,
            bytes: bytes.to_vec(),
            ended: false,
            is_refused: false,
            is_whole: false,
            is_acknowledged: false,
        };
        match self.sent.insert(name, sent) {
            None => Ok(()),
            Some(_) => Err(format!("{name:?} was sent twice")),
        }
    }

    /// The memory after a step.
    pub fn check(&mut self, memory: &[u8]) -> Verdict {
        if memory.len() != self.memory.len() {
            return Err("the memory has another length".into());
        }
        let chunks = self.memory.chunks(CHUNK).zip(memory.chunks(CHUNK));
        for (chunk, (before, now)) in chunks.enumerate().filter(|(_, (old, new))| old != new) {
            let start = self.va + (chunk * CHUNK) as u64;
            let open = self.open_in(start..start + before.len() as u64);
            for ((va, &before), &now) in (start..).zip(before).zip(now) {
                if before != now && !open.iter().any(|sent| sent.has(va, now)) {
                    return Err(format!(
                        "{va:#x} became {now:#04x}, which no open message has"
                    ));
                }
            }
        }
        self.memory.copy_from_slice(memory);
        self.held
            .iter()
            .try_for_each(|(name, valid)| self.is_right(name, valid))
    }

    /// Messages that have not ended and write some of these addresses.
    fn open_in(&self, addresses: Range<u64>) -> Vec<&Sent> {
        let meets = |sent: &&Sent| {
            let end = sent.va + sent.bytes.len() as u64;
            let is_open = !sent.ended && !sent.is_refused;
            is_open && sent.va < addresses.end && addresses.start < end
        };
        self.sent.values().filter(meets).collect()
    }

    /// Whether the memory has the bytes of a message in these ranges.
    fn is_right(&self, name: &Name, valid: &[Range<u32>]) -> Verdict {
        let sent = &self.sent[name];
        let start = (sent.va - self.va) as usize;
        for range in valid {
            let range = range.start as usize..range.end as usize;
            let here = &self.memory[start + range.start..start + range.end];
            if here != &sent.bytes[range.clone()] {
                return Err(format!("{name:?} declares {range:?}, which is wrong"));
            }
        }
        Ok(())
    }

    /// The application writes its memory, where no message has it.
    pub fn stored(&mut self, va: u64, bytes: &[u8]) {
        let at = (va - self.va) as usize;
        self.memory[at..][..bytes.len()].copy_from_slice(bytes);
    }

    /// The application takes the memory back: what is in flight changes nothing any more.
    pub fn taken_back(&mut self) {
        for sent in self.sent.values_mut() {
            sent.is_refused = true;
        }
    }

    /// The application is told of a record. [`check`](Self::check) comes first.
    pub fn told(&mut self, record: &Record) -> Verdict {
        let name = record.name;
        let Some(sent) = self.sent.get_mut(&name) else {
            return Err(format!("{name:?} was never sent"));
        };
        if std::mem::replace(&mut sent.ended, true) {
            return Err(format!("{name:?} ended twice"));
        }
        if (record.va, record.length as usize) != (sent.va, sent.bytes.len()) {
            return Err(format!("{name:?} is another message than was sent"));
        }
        let mut end = 0;
        let mut bytes = 0;
        for range in &record.valid {
            let is_unit = |at: u32| at.is_multiple_of(record.unit) || at == record.length;
            let follows = range.start > end || (range.start == 0 && end == 0);
            if !follows || range.is_empty() || !is_unit(range.start) || !is_unit(range.end) {
                return Err(format!("{name:?} declares {:?}", record.valid));
            }
            end = range.end;
            bytes += range.len() as u32;
        }
        let is_whole = bytes == record.length;
        if end > record.length || bytes != record.valid_bytes || is_whole != record.is_whole {
            return Err(format!("{name:?} has wrong sums: {record:?}"));
        }
        if sent.is_acknowledged && !is_whole {
            return Err(format!("{name:?} was acknowledged, and is not whole"));
        }
        sent.is_whole = is_whole;
        self.is_right(&name, &record.valid)?;
        self.held.insert(name, record.valid.clone());
        if self.held.len() > self.held_max {
            return Err(format!("{} records are held", self.held.len()));
        }
        Ok(())
    }

    /// The source of a message is told that all of it arrived.
    pub fn acknowledged(&mut self, name: Name) -> Verdict {
        let Some(sent) = self.sent.get_mut(&name) else {
            return Err(format!("{name:?} was never sent, and is acknowledged"));
        };
        sent.is_acknowledged = true;
        if sent.ended && !sent.is_whole {
            return Err(format!("{name:?} is acknowledged, and was not whole"));
        }
        Ok(())
    }

    /// At the end: each message that was acknowledged has a record.
    pub fn check_acknowledged(&self) -> Verdict {
        let is_missing = |sent: &&Sent| sent.is_acknowledged && !sent.ended;
        let mut names = self.sent.iter().filter(|(_, sent)| is_missing(sent));
        match names.next() {
            None => Ok(()),
            Some((name, _)) => Err(format!("{name:?} was acknowledged, and has no record")),
        }
    }

    /// The application frees a record.
    pub fn freed(&mut self, name: Name) -> Verdict {
        match self.held.remove(&name) {
            Some(_) => Ok(()),
            None => Err(format!("{name:?} is not held")),
        }
    }

    /// Whether a message has ended.
    pub fn has_ended(&self, name: Name) -> bool {
        self.sent.get(&name).is_some_and(|sent| sent.ended)
    }
}

#[cfg(test)]
mod tests {
    // Lists of ranges with one range.
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
    use super::*;

    const NAME: Name = Name {
        source: 1,
        number: 2,
    };

    fn judge() -> Records {
        let mut judge = Records::new(100, &[0; 10], 1);
        judge.sent(NAME, 102, &[1, 2, 3, 4, 5]).unwrap();
        judge
    }

    fn record(valid: &[Range<u32>]) -> Record {
        let valid_bytes = valid.iter().map(|range| range.len() as u32).sum();
        Record {
            name: NAME,
            va: 102,
            length: 5,
            unit: 2,
            valid: valid.to_vec(),
            valid_bytes,
            is_whole: valid_bytes == 5,
        }
    }

    #[test]
    fn a_byte_changes_by_an_open_message_only() {
        let mut judge = judge();
        judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0]).unwrap();
        assert!(judge.check(&[0, 0, 1, 2, 9, 0, 0, 0, 0, 0]).is_err());
        assert!(judge.check(&[0, 1, 1, 2, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(judge.check(&[0; 9]).is_err());
        judge.told(&record(&[0..2])).unwrap();
        assert!(
            judge.check(&[0, 0, 1, 2, 3, 0, 0, 0, 0, 0]).is_err(),
            "late"
        );
    }

    #[test]
    fn a_record_declares_what_is_there_once() {
        let mut judge = judge();
        judge.check(&[0, 0, 1, 2, 0, 0, 5, 0, 0, 0]).unwrap();
        let bad = |change: fn(&mut Record)| {
            let mut bad = record(&[0..2, 4..5]);
            change(&mut bad);
            bad
        };
        let bad = [
            bad(|record| record.name.number = 3),
            bad(|record| record.va = 101),
            bad(|record| record.length = 6),
            bad(|record| record.valid_bytes = 4),
            bad(|record| record.is_whole = true),
            bad(|record| record.valid = vec![0..2, 2..3]),
            bad(|record| record.valid = vec![4..5, 0..2]),
            bad(|record| record.valid = vec![0..4]),
            bad(|record| record.valid[1] = 4..6),
        ];
        for record in bad {
            let mut judge = self::judge();
            judge.check(&[0, 0, 1, 2, 0, 0, 5, 0, 0, 0]).unwrap();
            assert!(judge.told(&record).is_err(), "{record:?}");
        }
        judge.told(&record(&[0..2, 4..5])).unwrap();
        assert!(judge.has_ended(NAME));
        assert!(judge.told(&record(&[0..2, 4..5])).is_err(), "twice");
        judge.freed(NAME).unwrap();
        assert!(judge.freed(NAME).is_err());
    }

    #[test]
    fn nothing_changes_once_the_memory_is_taken_back() {
        let mut judge = judge();
        judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0]).unwrap();
        judge.taken_back();
        assert!(judge.check(&[0, 0, 1, 2, 3, 0, 0, 0, 0, 0]).is_err());
        let mut judge = self::judge();
        judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0]).unwrap();
        judge.taken_back();
        judge.told(&record(&[0..2])).unwrap();
    }

    #[test]
    fn what_is_acknowledged_is_whole() {
        let mut judge = judge();
        judge.check(&[0, 0, 1, 2, 3, 4, 5, 0, 0, 0]).unwrap();
        judge.acknowledged(NAME).unwrap();
        assert!(judge.check_acknowledged().is_err(), "no record yet");
        judge.told(&record(&[0..5])).unwrap();
        judge.check_acknowledged().unwrap();
        let unknown = Name { number: 9, ..NAME };
        assert!(judge.acknowledged(unknown).is_err());
        for told_first in [false, true] {
            let mut judge = self::judge();
            judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0]).unwrap();
            let part = record(&[0..2]);
            let verdicts = if told_first {
                [judge.told(&part), judge.acknowledged(NAME)]
            } else {
                [judge.acknowledged(NAME), judge.told(&part)]
            };
            assert!(verdicts[0].is_ok() && verdicts[1].is_err(), "{told_first}");
        }
    }

    #[test]
    fn what_is_held_stays() {
        let mut judge = judge();
        let other = Name {
            source: 2,
            number: 2,
        };
        judge.check(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0]).unwrap();
        judge.told(&record(&[0..2])).unwrap();
        judge.sent(other, 102, &[7]).unwrap();
        assert!(judge.check(&[0, 0, 7, 2, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
