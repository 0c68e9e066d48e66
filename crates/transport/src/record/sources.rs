//! What a target remembers of sources: the numbers of closed messages, and how much of the table
//! each address has.

use airdma_wire::{Neighbour, Psn, Qpn};

use super::index::Index;
use super::list::List;

/// Closed messages of a source that are remembered, those with the highest numbers. The numbers of
/// a source that sends to many targets have gaps, so this is no range of numbers.
const CLOSED_MAX: usize = 32;

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
    count: usize,
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

    fn is_late(&self, id: u32) -> bool {
        self.ahead(id).is_none() || self.closed().contains(&id)
    }

    /// Remembers a closed message. If there are too many, the one with the lowest number is
    /// forgotten: it and all behind it are late from now on.
    fn close(&mut self, id: u32) {
        let Some(ahead) = self.ahead(id) else {
            return;
        };
        if self.count < CLOSED_MAX {
            self.closed[self.count] = id;
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
        self.closed[at] = id;
        self.floor = lowest;
    }
}

#[derive(Clone, Copy, Debug)]
struct AddressRow {
    address: Neighbour,
    sources: u32,
    entries: u32,
    open: u32,
}

#[derive(Debug)]
pub(super) struct Sources {
    rows: Vec<Row>,
    by_source: Index,
    /// Rows without entries, the one that was used longest ago first.
    unused: List,
    addresses: Vec<AddressRow>,
    by_address: Index,
    free_addresses: Vec<u32>,
    max: u32,
}

impl Sources {
    pub(super) fn new(max: u32, key: [u64; 2]) -> Self {
        Sources {
            rows: Vec::with_capacity(max as usize),
            by_source: Index::new(max, key),
            unused: List::new(max),
            addresses: Vec::with_capacity(max as usize),
            by_address: Index::new(max, key),
            free_addresses: Vec::with_capacity(max as usize),
            max,
        }
    }

    fn hash(&self, source: &Source) -> u64 {
        let instance = u64::from(source.instance.get());
        self.by_source
            .hash(source.address, source.qpn.get(), instance)
    }

    pub(super) fn find(&self, source: &Source) -> Option<u32> {
        let hash = self.hash(source);
        self.by_source
            .find(hash, |row| self.rows[row as usize].source == *source)
    }

    /// Whether a message of a known source was closed, or is too old to tell.
    pub(super) fn is_late(&self, row: u32, id: u32) -> bool {
        self.rows[row as usize].is_late(id)
    }

    /// Entries that messages from an address have.
    pub(super) fn entries_of(&self, address: Neighbour) -> u32 {
        self.find_address(address)
            .map_or(0, |row| self.addresses[row as usize].entries)
    }

    fn find_address(&self, address: Neighbour) -> Option<u32> {
        let hash = self.by_address.hash(address, 0, 0);
        self.by_address
            .find(hash, |row| self.addresses[row as usize].address == address)
    }

    /// The row of a source, which may take that of another one without entries; `None` if all have
    /// some.
    pub(super) fn enter(&mut self, source: Source, id: u32) -> Option<u32> {
        if let Some(row) = self.find(&source) {
            return Some(row);
        }
        let fresh = Row {
            source,
            address: 0,
            entries: 0,
            floor: id.wrapping_sub(BEHIND_FIRST),
            closed: [0; CLOSED_MAX],
            count: 0,
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
        self.rows[row as usize].address = self.enter_address(source.address);
        self.unused.push(row);
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
            entries: 0,
            open: 0,
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
    pub(super) fn note_open(&mut self, row: u32) {
        let source = &mut self.rows[row as usize];
        source.entries += 1;
        if source.entries == 1 {
            self.unused.remove(row);
        }
        let address = &mut self.addresses[source.address as usize];
        address.entries += 1;
        address.open += 1;
    }

    /// An open message is closed.
    pub(super) fn note_closed(&mut self, row: u32, id: u32) {
        let source = &mut self.rows[row as usize];
        source.close(id);
        self.addresses[source.address as usize].open -= 1;
    }

    /// The entry of a closed message is free again.
    pub(super) fn note_freed(&mut self, row: u32) {
        let source = &mut self.rows[row as usize];
        source.entries -= 1;
        if source.entries == 0 {
            self.unused.push(row);
        }
        self.addresses[source.address as usize].entries -= 1;
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
