//! Which ranges of a chunk are free.

use std::collections::BTreeMap;

/// Free ranges, by where they start; neighbours are always merged.
#[derive(Debug)]
pub(super) struct Extents {
    free: BTreeMap<usize, usize>,
    len: usize,
}

impl Extents {
    /// All of `0..len` is free.
    pub(super) fn all_free(len: usize) -> Self {
        Self {
            free: BTreeMap::from([(0, len)]),
            len,
        }
    }

    /// Takes `len` bytes at a multiple of `align` from the first range that has room. Returns
    /// where.
    pub(super) fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let (start, room, at) = self.free.iter().find_map(|(&start, &room)| {
            let at = start.next_multiple_of(align);
            (at + len <= start + room).then_some((start, room, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + len < start + room {
            self.free.insert(at + len, start + room - at - len);
        }
        Some(at)
    }

    /// Gives a range back that `take` returned.
    pub(super) fn give(&mut self, mut start: usize, mut len: usize) {
        if let Some((&before, &room)) = self.free.range(..start).next_back() {
            assert!(before + room <= start, "range given back twice");
            if before + room == start {
                self.free.remove(&before);
                (start, len) = (before, room + len);
            }
        }
        if let Some((&after, &room)) = self.free.range(start..).next() {
            assert!(start + len <= after, "range given back twice");
            if start + len == after {
                self.free.remove(&after);
                len += room;
            }
        }
        self.free.insert(start, len);
    }

    /// Bytes that are not taken.
    pub(super) fn free_bytes(&self) -> usize {
        self.free.values().sum()
    }

    /// Whether nothing is taken.
    pub(super) fn is_all_free(&self) -> bool {
        self.free.get(&0) == Some(&self.len)
    }
}
