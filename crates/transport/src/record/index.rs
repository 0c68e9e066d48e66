//! Rows of a table found by a keyed hash. It never grows.

use airdma_wire::siphash::siphash;
use airdma_wire::{Gid, Neighbour};

/// No row.
pub(crate) const NONE: u32 = u32::MAX;

/// Finds rows by hash. A row is in the index once at most.
#[derive(Debug)]
pub(crate) struct Index {
    key: [u64; 2],
    /// The first row of each bucket; a power of two of them.
    buckets: Vec<u32>,
    /// For each row its hash and the next row of its bucket.
    rows: Vec<(u64, u32)>,
}

impl Index {
    /// For `rows` rows. Sources choose what is hashed, so `key` must be secret.
    pub(crate) fn new(rows: u32, key: [u64; 2]) -> Self {
        Index {
            key,
            buckets: vec![NONE; (2 * rows as usize).next_power_of_two()],
            rows: vec![(0, NONE); rows as usize],
        }
    }

    /// The hash of an address and two numbers.
    pub(crate) fn hash(&self, source: Neighbour, one: u32, other: u64) -> u64 {
        let mut message = [0; 28];
        message[..16].copy_from_slice(&Gid::from(source).0);
        message[16..20].copy_from_slice(&one.to_le_bytes());
        message[20..].copy_from_slice(&other.to_le_bytes());
        siphash(self.key, &message)
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The row with this hash that `is_it`.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut row = self.buckets[self.bucket(hash)];
        while row != NONE {
            let (of_row, next) = self.rows[row as usize];
            if of_row == hash && is_it(row) {
                return Some(row);
            }
            row = next;
        }
        None
    }

    pub(crate) fn insert(&mut self, hash: u64, row: u32) {
        let bucket = self.bucket(hash);
        self.rows[row as usize] = (hash, self.buckets[bucket]);
        self.buckets[bucket] = row;
    }

    /// Removes a row that is in the index.
    pub(crate) fn remove(&mut self, row: u32) {
        let (hash, next) = self.rows[row as usize];
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == row {
            self.buckets[bucket] = next;
            return;
        }
        let mut before = self.buckets[bucket];
        while before != NONE {
            let link = &mut self.rows[before as usize].1;
            if *link == row {
                *link = next;
                return;
            }
            before = *link;
        }
    }
}
