//! Twins: entries of one directory whose names some file systems treat as the same, ignoring case
//! or normalising.
//!
//! Where they are told apart, this has no effect. Elsewhere the first one has the name, and the
//! others do not arrive: no entry replaces another of its own transfer. The receiving directory
//! decides when a name is given ([`crate::tree::Tree::is_taken`]).

use crate::manifest::{Manifest, folded};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};

/// Most twins before an entry that it is compared with. With more, an existing name counts as
/// taken.
const TWINS_MAX: usize = 16;

/// Entries with twins; most manifests have none.
#[derive(Debug, Default)]
pub(crate) struct Twins {
    /// Group of an entry, and its position in it.
    members: HashMap<u32, (usize, usize)>,
    /// The first entries of each group.
    groups: Vec<Vec<u32>>,
    /// Entries whose last characters some file systems cut off ([`without_end`]).
    cut: HashSet<u32>,
}

impl Twins {
    /// The twins of a manifest.
    pub fn of(manifest: &Manifest) -> Self {
        let mut twins = Self::default();
        // For each open directory of the walk: the last entry of each folded name.
        let mut seen: Vec<HashMap<u64, u32>> = Vec::new();
        for (index, entry) in manifest.iter() {
            let depth = usize::from(entry.depth);
            seen.truncate(depth + 1);
            seen.resize_with(depth + 1, HashMap::new);
            let mut hasher = DefaultHasher::new();
            folded(&entry.name).hash(&mut hasher);
            if without_end(&entry.name).is_some() {
                twins.cut.insert(index);
            }
            if let Some(before) = seen[depth].insert(hasher.finish(), index) {
                twins.add(before, index);
            }
        }
        twins
    }

    fn add(&mut self, before: u32, index: u32) {
        let (group, place) = *self.members.entry(before).or_insert_with(|| {
            self.groups.push(vec![before]);
            (self.groups.len() - 1, 0)
        });
        self.members.insert(index, (group, place + 1));
        if place < TWINS_MAX {
            self.groups[group].push(index);
        }
    }

    /// The twins before an entry, or that there are too many.
    pub fn before(&self, index: u32) -> Result<&[u32], TooMany> {
        match self.members.get(&index) {
            None => Ok(&[]),
            Some(&(_, place)) if place > TWINS_MAX => Err(TooMany),
            Some(&(group, place)) => Ok(&self.groups[group][..place]),
        }
    }

    /// Whether an entry has a twin before it.
    pub fn is_later(&self, index: u32) -> bool {
        self.members
            .get(&index)
            .is_some_and(|(_, place)| *place > 0)
    }

    /// Whether an entry has a twin.
    pub fn contains(&self, index: u32) -> bool {
        self.members.contains_key(&index)
    }

    /// Whether a file system may cut off the end of an entry's name.
    pub fn may_be_cut(&self, index: u32) -> bool {
        self.cut.contains(&index)
    }

    /// Whether the name of an entry, or of a directory above it, has a twin, or may be cut.
    pub fn concerns(&self, manifest: &Manifest, index: u32) -> bool {
        let mut way = std::iter::once(index).chain(manifest.ancestors(index));
        !(self.members.is_empty() && self.cut.is_empty())
            && way.any(|index| self.is_later(index) || self.may_be_cut(index))
    }
}

/// A name without the dots and blanks at its end, which FAT and exFAT cut off and CIFS may: `None`
/// if there are none.
pub(crate) fn without_end(name: &[u8]) -> Option<&[u8]> {
    let end = name.iter().rposition(|byte| !b". ".contains(byte))? + 1;
    (end < name.len()).then(|| &name[..end])
}

/// Name of the directory in which a file system is probed.
pub(crate) const SHOWN_IN: &str = "names.probe";

/// Whether the file system treats two names as the same.
///
/// A file created under one of them in a new directory is then found under the other, too. If that
/// cannot be tested, they count as two, as on most file systems.
pub(crate) fn are_one(staging: BorrowedFd<'_>, one: &[u8], other: &[u8]) -> bool {
    let make = || {
        // It exists if a process was killed here.
        let _ = rustix::fs::mkdirat(staging, SHOWN_IN, Mode::RWXU);
        rustix::fs::openat(staging, SHOWN_IN, crate::tree::DIRECTORY, Mode::empty())
    };
    let Ok(directory) = make() else {
        return false;
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let made = rustix::fs::openat(directory.as_fd(), one, flags, mode);
    let has_both = |_| rustix::fs::statat(&directory, other, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    let are_one = made.is_ok_and(has_both);
    // What cannot be removed now is removed when the transfer resumes.
    let _ = rustix::fs::unlinkat(&directory, one, AtFlags::empty());
    let _ = rustix::fs::unlinkat(staging, SHOWN_IN, AtFlags::REMOVEDIR);
    are_one
}

/// More than [`TWINS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Builder, Entry, Kind};
    use crate::{Limits, Modified};

    #[test]
    fn the_end_that_some_disks_cut_off_is_of_dots_and_blanks() {
        for (name, short) in [("a.", "a"), ("a . ", "a"), ("a.b..", "a.b"), (".a ", ".a")] {
            assert_eq!(without_end(name.as_bytes()), Some(short.as_bytes()));
        }
        for name in ["a", ".a", "a.b", "...", " ", ""] {
            assert_eq!(without_end(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn twins_are_in_one_directory_and_the_later_one_gives_way() {
        let mut builder = Builder::new(Limits::default());
        for (depth, name) in [
            (0, "A"),
            (1, "x"),
            (0, "B"),
            (1, "a"),
            (0, "a"),
            (1, "X"),
            (1, "x"),
            (1, "y"),
        ] {
            builder
                .push(Entry {
                    parent: None,
                    depth,
                    name: name.as_bytes().into(),
                    mode: 0o755,
                    modified: Modified {
                        seconds: 0,
                        nanos: 0,
                    },
                    kind: Kind::Directory,
                })
                .unwrap();
        }
        let manifest = builder.finish();
        let twins = Twins::of(&manifest);
        let before = (0..8).map(|index| twins.before(index).unwrap());
        let before: Vec<&[u32]> = before.collect();
        assert_eq!(before, [&[][..], &[], &[], &[], &[0], &[], &[5], &[]]);
        let concerned: Vec<u32> = (0..8)
            .filter(|&index| twins.concerns(&manifest, index))
            .collect();
        assert_eq!(concerned, [4, 5, 6, 7]);
        assert!(twins.contains(0) && twins.contains(5) && !twins.contains(1));
    }
}
