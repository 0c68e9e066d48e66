//! Permitted contents of one host's memory.
//!
//! The judge sees all bytes after every step. Each change needs a cause in flight: a message or a
//! write of a peer that covers the byte and has that value, an atomic whose result is the new
//! value, or a range opened to be filled (a posted receive, the target of a READ).

use crate::{Step, Verdict};
use core::ops::Range;

/// A request of a flow: the queue pair that sent it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Sender.
    pub qp: usize,
    /// Number of the request, in the order of posting.
    pub number: u64,
}

/// A peer's write in flight.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Identifier of the request.
    pub id: u64,
    /// Sender and number.
    pub from: Origin,
    /// Key.
    pub key: u32,
    /// Offset of the target.
    pub at: usize,
    /// Payload.
    pub bytes: Vec<u8>,
    /// Whether only the length is known yet, because a READ delivers the payload first.
    pub late: bool,
    /// Step in which it was posted.
    pub begun: Step,
    /// Step in which its success was reported.
    pub settled: Option<Step>,
}

impl Placement {
    fn covers(&self, at: usize) -> bool {
        self.range().contains(&at)
    }

    /// Whether it may leave that value at `at`.
    fn brings(&self, at: usize, byte: u8) -> bool {
        self.covers(at) && (self.late || self.bytes[at - self.at] == byte)
    }

    fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }

    /// Whether this one ends before the other begins, on the wire: earlier in the same flow, or
    /// settled before the other was posted.
    fn precedes(&self, other: &Placement) -> bool {
        let same_flow = self.from.qp == other.from.qp && self.from.number < other.from.number;
        same_flow || self.settled.is_some_and(|settled| settled <= other.begun)
    }
}

/// Operation of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Adds modulo 2^64.
    Add(u64),
    /// Stores the second if the value equals the first.
    Swap(u64, u64),
}

impl Operation {
    fn result(self, value: u64) -> u64 {
        match self {
            Operation::Add(add) => value.wrapping_add(add),
            Operation::Swap(compare, swap) if value == compare => swap,
            Operation::Swap(..) => value,
        }
    }
}

/// Most atomics on one cell executed in one step.
const ATOMICS_AT_ONCE_MAX: usize = 5;

#[derive(Debug)]
struct Cell {
    id: u64,
    qp: usize,
    at: usize,
    operation: Operation,
    /// Value that it found, once it was seen executed.
    found: Option<u64>,
    /// Values of the cell since it was posted.
    seen: Vec<u64>,
}

/// A READ in flight, with the values of its source.
#[derive(Debug)]
struct Reader {
    id: u64,
    at: usize,
    /// Content when the READ was posted.
    first: Vec<u8>,
    /// Whether that may be returned: not where an earlier write of the same flow was still in
    /// flight.
    first_counts: Vec<bool>,
    /// Later values, with their offset.
    others: Vec<(usize, u8)>,
    /// Step in which it was posted.
    begun: Step,
}

/// A range opened to be filled.
#[derive(Debug)]
struct Open {
    id: u64,
    /// Key of its region.
    key: u32,
    range: Range<usize>,
}

/// The memory of one host.
#[derive(Debug)]
pub struct Memory {
    seen: Vec<u8>,
    open: Vec<Open>,
    flying: Vec<Placement>,
    settled: Vec<Placement>,
    /// Atomics in the order of posting, which is that of one queue pair's.
    cells: Vec<Cell>,
    readers: Vec<Reader>,
}

impl Memory {
    /// Memory with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Memory {
            seen: bytes.to_vec(),
            open: Vec::new(),
            flying: Vec::new(),
            settled: Vec::new(),
            cells: Vec::new(),
            readers: Vec::new(),
        }
    }

    /// The bytes as last seen.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.seen[range]
    }

    /// Records a store by the host itself.
    pub fn store(&mut self, at: usize, bytes: &[u8], now: Step) {
        for (offset, &byte) in bytes.iter().enumerate() {
            self.change(at + offset, byte);
        }
        // A write in flight may have landed before.
        if !self.flying.is_empty() {
            self.settled.push(Placement {
                id: 0,
                from: Origin {
                    qp: usize::MAX,
                    number: 0,
                },
                key: 0,
                at,
                bytes: bytes.to_vec(),
                late: false,
                begun: now,
                settled: Some(now),
            });
        }
    }

    fn change(&mut self, at: usize, byte: u8) {
        self.seen[at] = byte;
        for reader in &mut self.readers {
            if at >= reader.at && at < reader.at + reader.first.len() {
                reader.others.push((at, byte));
            }
        }
    }

    /// Checks all bytes: each change needs a cause.
    ///
    /// # Errors
    /// A change without one.
    pub fn observe(&mut self, actual: &[u8]) -> Verdict {
        const STRIDE: usize = 64;
        // The most frequent case, and the fastest comparison.
        if actual == self.seen {
            return Ok(());
        }
        for start in (0..actual.len()).step_by(STRIDE) {
            let end = (start + STRIDE).min(actual.len());
            if actual[start..end] == self.seen[start..end] {
                continue;
            }
            let mut at = start;
            while at < end {
                if actual[at] == self.seen[at] {
                    at += 1;
                } else if self.cell_changed(at, actual) {
                    at = at / 8 * 8 + 8;
                } else {
                    self.explain(at, actual[at])?;
                    self.change(at, actual[at]);
                    at += 1;
                }
            }
        }
        Ok(())
    }

    fn explain(&self, at: usize, byte: u8) -> Verdict {
        let is_open = self.open.iter().any(|open| open.range.contains(&at));
        let brought = self
            .flying
            .iter()
            .any(|placement| placement.brings(at, byte));
        if is_open || brought {
            return Ok(());
        }
        let covering: Vec<_> = self
            .flying
            .iter()
            .filter(|placement| placement.covers(at))
            .collect();
        Err(format!(
            "byte {at:#x} changed from {:#04x} to {byte:#04x}, and nothing under way brings that; what covers it: {:?}",
            self.seen[at],
            covering
                .iter()
                .map(|placement| (placement.from, placement.id))
                .collect::<Vec<_>>(),
        ))
    }

    /// Whether the eight bytes around `at` changed by atomics not yet executed: mostly one, but a
    /// host that buffered packets out of order executes several in one step.
    /// before its turn does several in one step.
    fn cell_changed(&mut self, at: usize, actual: &[u8]) -> bool {
        let at = at / 8 * 8;
        let (before, after) = (word(&self.seen, at), word(actual, at));
        let waiting = |cell: &Cell| cell.at == at && cell.found.is_none();
        let waiting: Vec<usize> = (0..self.cells.len())
            .filter(|&index| waiting(&self.cells[index]))
            .collect();
        let mut causes = Vec::new();
        let most = waiting.len().min(ATOMICS_AT_ONCE_MAX);
        if !(1..=most).any(|count| self.explain_cell(&waiting, before, after, count, &mut causes)) {
            return false;
        }
        let mut value = before;
        for cause in causes {
            self.cells[cause].found = Some(value);
            value = self.cells[cause].operation.result(value);
            for cell in self.cells.iter_mut().filter(|cell| cell.at == at) {
                cell.seen.push(value);
            }
        }
        for (offset, &byte) in actual[at..at + 8].iter().enumerate() {
            self.change(at + offset, byte);
        }
        true
    }

    /// Finds `count` waiting atomics, and an order of them, that turn `before` into `after`.
    ///
    /// Among several orders those posted first go first.
    /// first go first.
    fn explain_cell(
        &self,
        waiting: &[usize],
        before: u64,
        after: u64,
        count: usize,
        causes: &mut Vec<usize>,
    ) -> bool {
        if count == 0 {
            return before == after;
        }
        waiting.iter().any(|&index| {
            if causes.contains(&index) {
                return false;
            }
            causes.push(index);
            let value = self.cells[index].operation.result(before);
            let explained = self.explain_cell(waiting, value, after, count - 1, causes);
            if !explained {
                causes.pop();
            }
            explained
        })
    }

    /// Opens a range to be filled, by the key of its region.
    pub fn open(&mut self, id: u64, key: u32, range: Range<usize>) {
        if !range.is_empty() {
            self.open.push(Open { id, key, range });
        }
    }

    /// Closes all ranges of `id`.
    pub fn close(&mut self, id: u64) {
        self.open.retain(|open| open.id != id);
    }

    /// Closes all ranges of a region.
    pub fn close_region(&mut self, key: u32) {
        self.open.retain(|open| open.key != key);
    }

    /// Adds a peer's write.
    pub fn begin_write(&mut self, placement: Placement) {
        if !placement.bytes.is_empty() {
            self.flying.push(placement);
        }
    }

    /// Sets the payload of a late write.
    pub fn reveal(&mut self, id: u64, bytes: &[u8]) {
        let write = self.flying.iter_mut().find(|write| write.id == id);
        if let Some(write) = write.filter(|write| write.bytes.len() == bytes.len()) {
            write.bytes.copy_from_slice(bytes);
            write.late = false;
        }
    }

    /// Settles a successful write: its bytes are there, or those of a write that did not come
    /// before it.
    ///
    /// # Errors
    /// They are not.
    pub fn settle_write(&mut self, id: u64, now: Step) -> Verdict {
        let Some(index) = self.flying.iter().position(|placement| placement.id == id) else {
            return Ok(());
        };
        let mut placement = self.flying.swap_remove(index);
        placement.settled = Some(now);
        self.check_landed(&placement)?;
        self.settled.push(placement);
        self.forget_settled(now);
        Ok(())
    }

    /// Settles a write without an acknowledgement: it has landed, or (unless it `must` have) not.
    ///
    /// # Errors
    /// It must have landed and has not.
    pub fn settle_sent(&mut self, id: u64, must: bool, now: Step) -> Verdict {
        if must {
            return self.settle_write(id, now);
        }
        self.forget(now, |placement| placement.id == id);
        self.forget_settled(now);
        Ok(())
    }

    /// Forgets writes that ended before all in flight began.
    fn forget_settled(&mut self, now: Step) {
        let oldest = self
            .flying
            .iter()
            .map(|placement| placement.begun)
            .min()
            .unwrap_or(now);
        self.settled
            .retain(|placement| placement.settled.is_some_and(|settled| settled > oldest));
    }

    /// Checks that all earlier writes of a flow have landed, once a later message of it has
    /// arrived.
    ///
    /// # Errors
    /// One has not.
    pub fn check_flow(&self, from: Origin) -> Verdict {
        let mut flow = self.flying.iter().filter(|write| {
            write.from.qp == from.qp && write.from.number <= from.number && !write.late
        });
        flow.try_for_each(|write| self.check_landed(write))
    }

    /// Checks that the bytes of a write are there, or those of one that did not come before it.
    fn check_landed(&self, write: &Placement) -> Verdict {
        let others = self.flying.iter().chain(&self.settled);
        let rivals: Vec<_> = others
            .filter(|rival| rival.id != write.id && !rival.precedes(write))
            .collect();
        for at in write.range() {
            let byte = self.seen[at];
            let expected = write.brings(at, byte);
            if !expected && !rivals.iter().any(|rival| rival.brings(at, byte)) {
                return Err(format!(
                    "write {} succeeded, yet byte {at:#x} is {byte:#04x} instead of {:#04x}",
                    write.id,
                    write.bytes[at - write.at]
                ));
            }
        }
        Ok(())
    }

    /// Forgets writes that can change nothing any more: their target is closed, or their queue pair
    /// gone.
    pub fn forget(&mut self, now: Step, gone: impl Fn(&Placement) -> bool) {
        for mut placement in self.flying.extract_if(.., |placement| gone(placement)) {
            // It may have landed after others that are still in flight.
            placement.settled = Some(now);
            self.settled.push(placement);
        }
    }

    /// Forgets the atomics of a queue pair.
    pub fn forget_atomics(&mut self, qp: usize) {
        self.cells.retain(|cell| cell.qp != qp);
    }

    /// Adds a peer's READ.
    pub fn begin_read(&mut self, id: u64, from: Origin, range: Range<usize>, now: Step) {
        let writes = || self.flying.iter().chain(&self.settled);
        let first_counts = range.clone().map(|at| {
            let earlier = |write: &&Placement| {
                write.settled.is_none() && write.from.qp == from.qp && write.covers(at)
            };
            // The write came before the READ on the wire: older bytes cannot be returned.
            writes().filter(earlier).all(|write| {
                let mut after = writes().filter(|other| !other.precedes(write));
                after.any(|other| other.brings(at, self.seen[at]))
            })
        });
        let reader = Reader {
            id,
            at: range.start,
            first_counts: first_counts.collect(),
            first: self.seen[range].to_vec(),
            others: Vec::new(),
            begun: now,
        };
        self.readers.push(reader);
    }

    /// Ends a READ; `data` is what it returned, if it succeeded.
    ///
    /// # Errors
    /// A byte was not there while the READ was in flight.
    pub fn end_read(&mut self, id: u64, data: Option<&[u8]>) -> Verdict {
        let Some(index) = self.readers.iter().position(|reader| reader.id == id) else {
            return Ok(());
        };
        let reader = self.readers.swap_remove(index);
        for (offset, &byte) in data.unwrap_or_default().iter().enumerate() {
            let at = reader.at + offset;
            let first = reader.first_counts[offset] && reader.first[offset] == byte;
            // A write overwritten in the same step was there, too.
            let brought = |write: &Placement| {
                let meanwhile = write.settled.is_none_or(|settled| settled > reader.begun);
                meanwhile && write.brings(at, byte)
            };
            let mut writes = self.flying.iter().chain(&self.settled);
            if !first && !reader.others.contains(&(at, byte)) && !writes.any(brought) {
                return Err(format!(
                    "READ {id} returned {byte:#04x} for byte {at:#x}, which it did not hold meanwhile"
                ));
            }
        }
        Ok(())
    }

    /// Adds a peer's atomic on the eight bytes at `at`.
    pub fn begin_atomic(&mut self, id: u64, qp: usize, at: usize, operation: Operation) {
        let seen = vec![word(&self.seen, at)];
        self.cells.push(Cell {
            id,
            qp,
            at,
            operation,
            found: None,
            seen,
        });
    }

    /// Settles a successful atomic that returned `original`.
    ///
    /// # Errors
    /// It was not executed, or found another value.
    pub fn settle_atomic(&mut self, id: u64, original: u64) -> Verdict {
        let Some(index) = self.cells.iter().position(|cell| cell.id == id) else {
            return Ok(());
        };
        let cell = self.cells.remove(index);
        match cell.found {
            Some(found) if found == original => Ok(()),
            Some(found) => Err(format!(
                "atomic {id} returned {original:#x}, but it found {found:#x}"
            )),
            // It changed nothing; then the cell held what it returned, and no change is expected.
            None if cell.operation.result(original) == original
                && cell.seen.contains(&original) =>
            {
                Ok(())
            }
            None => Err(format!(
                "atomic {id} returned {original:#x}, and was never seen to happen: {cell:?}"
            )),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes[at..at + 8].try_into();
    u64::from_ne_bytes(bytes.expect("eight bytes"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sums_seen_at_once_are_added_in_posting_order() {
        let mut memory = Memory::new(&[0; 16]);
        memory.begin_atomic(1, 7, 8, Operation::Add(1));
        memory.begin_atomic(2, 0, 0, Operation::Add(10));
        memory.begin_atomic(3, 0, 0, Operation::Add(20));
        let both = [30_u64.to_ne_bytes(), 1_u64.to_ne_bytes()].concat();
        let one = [[0; 8], 1_u64.to_ne_bytes()].concat();
        memory.observe(&one).unwrap();
        memory.settle_atomic(1, 0).unwrap();
        memory.observe(&both).unwrap();
        memory.settle_atomic(2, 0).unwrap();
        memory.settle_atomic(3, 10).unwrap();
    }
}
