//! What a target remembers of sources: the numbers of closed messages, and how much of the table
//! each address has.

use core::cell::Cell;

use airdma_wire::{Neighbour, Psn, Qpn};

use crate::reliable::{RELIABLE_MEMORY, SPAN_MAX};
use crate::time::Time;

use super::index::{Index, NONE};
use super::list::List;

/// Closed messages of a source that are remembered, those with the highest numbers. The numbers of
/// a source that sends to many targets have gaps, so this is no range of numbers.
const CLOSED_MAX: usize = 32;

/// A sender of acknowledged messages relies on that.
const _: () = assert!(CLOSED_MAX as u32 >= SPAN_MAX);

/// How far behind the first message of a source that is seen others may be.
const BEHIND_FIRST: u32 = 1 << 30;

/// A queue pair that sends messages. A new instance of it numbers from 0 again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) address: Neighbour,
    pub(super) qpn: Qpn,
    pub(super) instance: Psn,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    source: Source,
    /// Row of its address.
    address: u32,
    /// Entries that its messages have. A row without any may be used for another source.
    entries: u32,
    /// This number and all behind it are late.
    floor: u32,
    /// The first `count` are numbers of closed messages.
    closed: [u32; CLOSED_MAX],
    /// Bit `k`: all of `closed[k]` arrived.
    whole: u32,
    /// Bit `k`: `closed[k]` was longer than its receive.
    too_long: u32,
    count: usize,
    /// Its messages are acknowledged: it is remembered for [`RELIABLE_MEMORY`] at least.
    is_reliable: bool,
    /// When a packet of an acknowledged message came last.
    touched: Time,
}

/// What is known of a message that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was closed when all of it had arrived.
    Whole,
    /// It was longer than its receive.
    TooLong,
    /// It was closed before, or is too old to tell.
    Late,
}

impl Row {
    /// How far a number is ahead of the floor; `None` if it is not.
    fn ahead(&self, id: u32) -> Option<u32> {
        let ahead = id.wrapping_sub(self.floor);
        (1..=u32::MAX / 2).contains(&ahead).then_some(ahead)
    }

    fn closed(&self) -> &[u32] {
        &self.closed[..self.count]
    }

    fn fate(&self, id: u32) -> Option<Fate> {
        if let Some(at) = self.closed().iter().position(|&closed| closed == id) {
            let has = |bits: u32| bits >> at & 1 != 0;
            return Some(match (has(self.whole), has(self.too_long)) {
                (true, _) => Fate::Whole,
                (false, true) => Fate::TooLong,
                (false, false) => Fate::Late,
            });
        }
        self.ahead(id).is_none().then_some(Fate::Late)
    }

    fn set(&mut self, at: usize, id: u32, fate: Fate) {
        self.closed[at] = id;
        let bit = |is_set: bool| u32::from(is_set) << at;
        self.whole = self.whole & !(1 << at) | bit(fate == Fate::Whole);
        self.too_long = self.too_long & !(1 << at) | bit(fate == Fate::TooLong);
    }

    /// Remembers a closed message. If there are too many, the one with the lowest number is
    /// forgotten: it and all behind it are late from now on.
    fn close(&mut self, id: u32, fate: Fate) {
        let Some(ahead) = self.ahead(id) else {
            return;
        };
        if self.count < CLOSED_MAX {
            self.set(self.count, id, fate);
            self.count += 1;
            return;
        }
        let numbers = self.closed().iter().enumerate();
        let lowest = numbers.min_by_key(|(_, closed)| self.ahead(**closed));
        let Some((at, &lowest)) = lowest.filter(|(_, lowest)| self.ahead(**lowest) < Some(ahead))
        else {
            self.floor = id;
            return;
        };
        self.set(at, id, fate);
        self.floor = lowest;
    }
}

#[derive(Clone, Copy, Debug)]
struct AddressRow {
    address: Neighbour,
    sources: u32,
    /// Those of them that are remembered for [`RELIABLE_MEMORY`].
    remembered: u32,
    entries: u32,
    open: u32,
    /// Acknowledged messages among the open ones.
    open_reliable: u32,
}

/// How many of `most` places a host may have while others have `others`: as many as it leaves.
pub(super) fn share(most: u32, others: u32) -> u32 {
    most.saturating_sub(others).div_ceil(2)
}

#[derive(Debug)]
pub(super) struct Sources {
    rows: Vec<Row>,
    by_source: Index,
    /// The row that was found last: most packets are of the source of the one before.
    last: Cell<u32>,
    /// Rows without entries, the one that was used longest ago first.
    unused: List,
    /// Those of them that are remembered.
    unused_reliable: List,
    /// Rows that are remembered.
    remembered: u32,
    addresses: Vec<AddressRow>,
    by_address: Index,
    last_address: Cell<u32>,
    free_addresses: Vec<u32>,
    /// Addresses whose messages have entries.
    busy: u32,
    max: u32,
}

impl Sources {
    pub(super) fn new(max: u32, key: [u64; 2]) -> Self {
        Sources {
            rows: Vec::with_capacity(max as usize),
            by_source: Index::new(max, key),
            last: Cell::new(NONE),
            unused: List::new(max),
            unused_reliable: List::new(max),
            remembered: 0,
            addresses: Vec::with_capacity(max as usize),
            by_address: Index::new(max, key),
            last_address: Cell::new(NONE),
            free_addresses: Vec::with_capacity(max as usize),
            busy: 0,
            max,
        }
    }

    fn hash(&self, source: &Source) -> u64 {
        let instance = u64::from(source.instance.get());
        self.by_source
            .hash(source.address, source.qpn.get(), instance)
    }

    pub(super) fn find(&self, source: &Source) -> Option<u32> {
        let last = self.last.get();
        if (self.rows.get(last as usize)).is_some_and(|row| row.source == *source) {
            return Some(last);
        }
        let hash = self.hash(source);
        let found = (self.by_source).find(hash, |row| self.rows[row as usize].source == *source);
        self.last.set(found.unwrap_or(NONE));
        found
    }

    /// What became of a message of a known source that is not in the table; `None` if it is new.
    pub(super) fn fate(&self, row: u32, id: u32) -> Option<Fate> {
        self.rows[row as usize].fate(id)
    }

    /// A packet of an acknowledged message of a known source came.
    pub(super) fn touch(&mut self, row: u32, now: Time) {
        let source = &mut self.rows[row as usize];
        source.touched = now;
        if source.is_reliable && source.entries == 0 {
            self.unused_reliable.touch(row);
        }
    }

    /// The list that a row without entries is in.
    fn unused(&mut self, row: u32) -> &mut List {
        if self.rows[row as usize].is_reliable {
            &mut self.unused_reliable
        } else {
            &mut self.unused
        }
    }

    /// Sources that were remembered for long enough may be forgotten.
    fn expire(&mut self, now: Time) {
        while let Some(row) = self.unused_reliable.first()
            && self.rows[row as usize].touched + RELIABLE_MEMORY <= now
        {
            self.unused_reliable.remove(row);
            self.unused.push(row);
            let source = &mut self.rows[row as usize];
            source.is_reliable = false;
            self.addresses[source.address as usize].remembered -= 1;
            self.remembered -= 1;
        }
    }

    /// Whether one more source at an address may be remembered. Half of the rows are for those
    /// whose messages are not acknowledged.
    fn may_remember(&self, address: Neighbour) -> bool {
        let row = self.find_address(address);
        let mine = row.map_or(0, |row| self.addresses[row as usize].remembered);
        mine < share((self.max / 2).max(1), self.remembered - mine)
    }

    /// Entries that messages from an address have.
    pub(super) fn entries_of(&self, address: Neighbour) -> u32 {
        self.find_address(address)
            .map_or(0, |row| self.addresses[row as usize].entries)
    }

    /// How many of `most` entries messages from an address may have, and how many of the `free`
    /// ones are for it: as many as for each other address that has some.
    pub(super) fn room_for(&self, address: Neighbour, most: u32, free: u32) -> u32 {
        let mine = self.entries_of(address);
        let others = self.busy - u32::from(mine > 0);
        most.saturating_sub(mine).min(free.div_ceil(others + 1))
    }

    /// Open acknowledged messages from an address.
    pub(super) fn open_reliable_of(&self, address: Neighbour) -> u32 {
        self.find_address(address)
            .map_or(0, |row| self.addresses[row as usize].open_reliable)
    }

    fn find_address(&self, address: Neighbour) -> Option<u32> {
        let is_it = |row: &AddressRow| row.address == address && row.sources > 0;
        let last = self.last_address.get();
        if self.addresses.get(last as usize).is_some_and(is_it) {
            return Some(last);
        }
        let hash = self.by_address.hash(address, 0, 0);
        let found = (self.by_address).find(hash, |row| is_it(&self.addresses[row as usize]));
        self.last_address.set(found.unwrap_or(NONE));
        found
    }

    /// The row of a source, which may take that of another one without entries; `None` if all have
    /// some, or must be remembered.
    pub(super) fn enter(
        &mut self,
        source: Source,
        id: u32,
        is_reliable: bool,
        now: Time,
    ) -> Option<u32> {
        if let Some(row) = self.find(&source) {
            return Some(row);
        }
        self.expire(now);
        if is_reliable && !self.may_remember(source.address) {
            return None;
        }
        let fresh = Row {
            source,
            address: 0,
            entries: 0,
            floor: id.wrapping_sub(BEHIND_FIRST),
            closed: [0; CLOSED_MAX],
            whole: 0,
            too_long: 0,
            count: 0,
            is_reliable,
            touched: now,
        };
        let row = if self.rows.len() < self.max as usize {
            self.rows.push(fresh);
            self.rows.len() as u32 - 1
        } else {
            let row = self.unused.first()?;
            self.unused.remove(row);
            self.by_source.remove(row);
            self.leave_address(self.rows[row as usize].address);
            self.rows[row as usize] = fresh;
            row
        };
        let address = self.enter_address(source.address);
        self.rows[row as usize].address = address;
        if is_reliable {
            self.addresses[address as usize].remembered += 1;
            self.remembered += 1;
        }
        self.unused(row).push(row);
        let hash = self.hash(&source);
        self.by_source.insert(hash, row);
        Some(row)
    }

    fn enter_address(&mut self, address: Neighbour) -> u32 {
        if let Some(row) = self.find_address(address) {
            self.addresses[row as usize].sources += 1;
            return row;
        }
        let fresh = AddressRow {
            address,
            sources: 1,
            remembered: 0,
            entries: 0,
            open: 0,
            open_reliable: 0,
        };
        let row = match self.free_addresses.pop() {
            Some(row) => {
                self.addresses[row as usize] = fresh;
                row
            }
            None => {
                self.addresses.push(fresh);
                self.addresses.len() as u32 - 1
            }
        };
        let hash = self.by_address.hash(address, 0, 0);
        self.by_address.insert(hash, row);
        row
    }

    fn leave_address(&mut self, row: u32) {
        let address = &mut self.addresses[row as usize];
        address.sources -= 1;
        if address.sources == 0 {
            self.by_address.remove(row);
            self.free_addresses.push(row);
        }
    }

    /// A message is opened.
    pub(super) fn note_open(&mut self, row: u32, is_reliable: bool) {
        let source = &mut self.rows[row as usize];
        source.entries += 1;
        let address = source.address;
        if source.entries == 1 {
            self.unused(row).remove(row);
        }
        let address = &mut self.addresses[address as usize];
        self.busy += u32::from(address.entries == 0);
        address.entries += 1;
        address.open += 1;
        address.open_reliable += u32::from(is_reliable);
    }

    /// An open message is closed.
    pub(super) fn note_closed(&mut self, row: u32, id: u32, is_whole: bool, is_reliable: bool) {
        let source = &mut self.rows[row as usize];
        source.close(id, if is_whole { Fate::Whole } else { Fate::Late });
        let address = &mut self.addresses[source.address as usize];
        address.open -= 1;
        address.open_reliable -= u32::from(is_reliable);
    }

    /// A message without an entry is longer than its receive.
    pub(super) fn note_too_long(&mut self, row: u32, id: u32) {
        self.rows[row as usize].close(id, Fate::TooLong);
    }

    /// The entry of a closed message is free again.
    pub(super) fn note_freed(&mut self, row: u32) {
        let source = &mut self.rows[row as usize];
        source.entries -= 1;
        let (address, entries) = (source.address, source.entries);
        if entries == 0 {
            self.unused(row).push(row);
        }
        let address = &mut self.addresses[address as usize];
        address.entries -= 1;
        self.busy -= u32::from(address.entries == 0);
    }

    /// Row of the address of a source.
    pub(super) fn address(&self, row: u32) -> u32 {
        self.rows[row as usize].address
    }

    /// Open messages from the address of a source.
    pub(super) fn open_of(&self, row: u32) -> u32 {
        self.addresses[self.address(row) as usize].open
    }
}
