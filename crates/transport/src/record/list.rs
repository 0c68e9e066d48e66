//! A list of rows of a table, in the order in which they were added.

use super::index::NONE;

/// A row is in the list once at most. It never grows.
#[derive(Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
    /// For each row the one before and the one behind it.
    links: Vec<(u32, u32)>,
}

impl List {
    pub(crate) fn new(rows: u32) -> Self {
        List {
            first: NONE,
            last: NONE,
            links: vec![(NONE, NONE); rows as usize],
        }
    }

    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// The row behind a row of the list.
    pub(crate) fn behind(&self, row: u32) -> Option<u32> {
        let (_, behind) = self.links[row as usize];
        (behind != NONE).then_some(behind)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + use<'_> {
        let mut row = self.first;
        std::iter::from_fn(move || {
            let found = (row != NONE).then_some(row)?;
            row = self.links[found as usize].1;
            Some(found)
        })
    }

    pub(crate) fn push(&mut self, row: u32) {
        self.links[row as usize] = (self.last, NONE);
        match self.last {
            NONE => self.first = row,
            last => self.links[last as usize].1 = row,
        }
        self.last = row;
    }

    /// Removes a row that is in the list.
    pub(crate) fn remove(&mut self, row: u32) {
        let (before, behind) = self.links[row as usize];
        match before {
            NONE => self.first = behind,
            before => self.links[before as usize].1 = behind,
        }
        match behind {
            NONE => self.last = before,
            behind => self.links[behind as usize].0 = before,
        }
    }

    /// Makes a row of the list the last one.
    pub(crate) fn touch(&mut self, row: u32) {
        if self.last != row {
            self.remove(row);
            self.push(row);
        }
    }
}
