//! Walks paths into a manifest.

use crate::manifest::{
    Builder, Content, EXTENTS_MAX, Entry, Extent, Kind, Limits, Manifest, Modified, is_reserved,
};
use crate::stamp::Stamps;
use crate::{Error, ManifestError, Problem};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Result of a walk.
#[derive(Debug)]
pub struct Walked {
    /// The offer.
    pub manifest: Arc<Manifest>,
    /// Paths of the top-level entries on this host, in their order.
    pub roots: Vec<PathBuf>,
    /// What is left out, and why.
    ///
    /// Unreadable files, unfinished transfers, and everything that is not a file, directory or
    /// symbolic link.
    pub skipped: Vec<Skipped>,
}

/// A file that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its path, from the given path on.
    pub path: Vec<u8>,
    /// The reason.
    pub why: Why,
}

/// Why a file is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A device, socket or pipe.
    Special,
    /// Its name is that of an unfinished transfer, which receivers refuse.
    Unfinished,
    /// It cannot be opened or read.
    Problem(Problem),
}

/// Walks `paths`. Symbolic links are followed only if a path itself names one.
///
/// What cannot be read is left out and reported; a path that does not exist is an error.
///
/// A file's stamp is a hash of its inode (if the file system keeps its number), and one of its
/// ctime, which programs cannot set: a changed file is detected even if size and modification time
/// are the same.
pub fn walk<P: AsRef<Path>>(paths: &[P], limits: Limits) -> Result<Walked, Error> {
    Roots::find(paths)?.walk(limits)
}

/// The names under which paths are offered, in order, with the paths.
pub(crate) struct Roots(Vec<(Vec<u8>, PathBuf)>);

impl Roots {
    /// Checks the paths themselves.
    pub fn find<P: AsRef<Path>>(paths: &[P]) -> Result<Self, Error> {
        let named = paths.iter().map(|path| name_root(path.as_ref()));
        Self::named(named.collect::<Result<_, _>>()?)
    }

    /// As [`Roots::find`], with given names.
    pub fn named(mut named: Vec<(Vec<u8>, PathBuf)>) -> Result<Self, Error> {
        named.sort();
        if let Some(twice) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::new("send", &twice[1].0, Problem::SameName));
        }
        for (name, path) in &named {
            let stat = look_at_root(path)?;
            let special = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile | FileType::Directory => None,
                FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => Some(Problem::Special),
            };
            let reserved = is_reserved(name).then_some(Problem::Reserved);
            if let Some(problem) = special.or(reserved) {
                return Err(Error::new("send", path.as_os_str().as_bytes(), problem));
            }
        }
        Ok(Self(named))
    }

    /// Walks what is below the paths.
    pub fn walk(self, limits: Limits) -> Result<Walked, Error> {
        let mut walk = Walk {
            builder: Builder::new(limits),
            skipped: Vec::new(),
            path: Vec::new(),
            user: rustix::process::geteuid().as_raw(),
            stamps: Stamps::default(),
        };
        let mut roots = Vec::new();
        for (name, path) in self.0 {
            if walk.visit_root(&name, &path)? {
                roots.push(path);
            }
        }
        Ok(Walked {
            manifest: Arc::new(walk.builder.finish()),
            roots,
            skipped: walk.skipped,
        })
    }
}

fn look_at_root(path: &Path) -> Result<Stat, Error> {
    rustix::fs::stat(path).map_err(Error::at("send", path.as_os_str().as_bytes()))
}

/// Opens a root. Links are followed, since the user named it.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OPEN, Mode::empty())
}

/// Opens `name` in `directory`, unless it is a symbolic link.
pub(crate) fn open_in(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, OPEN | OFlags::NOFOLLOW, Mode::empty())
}

/// Does not block: a pipe in place of a file must not stop the walk.
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Needs no permission for the file itself.
const NAMED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Modification time.
pub(crate) fn modified(stat: &Stat) -> Modified {
    Modified {
        seconds: stat.st_mtime,
        nanos: stat.st_mtime_nsec as u32,
    }
}

struct Walk {
    builder: Builder,
    skipped: Vec<Skipped>,
    /// Names above the current entry.
    path: Vec<Vec<u8>>,
    /// User that walks.
    user: u32,
    stamps: Stamps,
}

impl Walk {
    /// Adds a root; returns whether it is in the manifest.
    fn visit_root(&mut self, name: &[u8], path: &Path) -> Result<bool, Error> {
        if is_reserved(name) {
            self.skip(name, Why::Unfinished);
            return Ok(false);
        }
        let before = self.builder.len();
        let shown = path.as_os_str().as_bytes();
        let stat = look_at_root(path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory => {
                let opened = open_root(path).map_err(Error::at("read", shown))?;
                self.visit_opened(name, &opened)?;
            }
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => self.skip(name, Why::Special),
        }
        Ok(self.builder.len() > before)
    }

    /// Describes most files by their name's status alone. The stamp reveals at reading whether a
    /// file was exchanged.
    fn visit_child(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Error> {
        if is_reserved(name) {
            self.skip(name, Why::Unfinished);
            return Ok(());
        }
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It was removed after the directory was read.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                self.skip(name, Why::Problem(errno.into()));
                return Ok(());
            }
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if is_dense(&stat) && self.may_read(&stat) => {
                let named = || rustix::fs::openat(directory, name, NAMED, Mode::empty());
                let stamp = self.stamps.of(&stat, named);
                self.push(name, &stat, Kind::File(content(&stat, stamp, None)))
            }
            FileType::RegularFile | FileType::Directory => match open_in(directory, name) {
                Ok(opened) => self.visit_opened(name, &opened),
                Err(errno) => {
                    self.skip(name, Why::Problem(errno.into()));
                    Ok(())
                }
            },
            FileType::Symlink => match rustix::fs::readlinkat(directory, name, Vec::new()) {
                Ok(target) => self.push(name, &stat, Kind::Symlink(target.as_bytes().into())),
                Err(errno) => {
                    self.skip(name, Why::Problem(errno.into()));
                    Ok(())
                }
            },
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                self.skip(name, Why::Special);
                Ok(())
            }
        }
    }

    /// Whether its mode lets the user open it. If the mode is too permissive (ACLs, servers),
    /// reading fails.
    fn may_read(&self, stat: &Stat) -> bool {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let all = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        mode.contains(all) || (stat.st_uid == self.user && mode.contains(Mode::RUSR))
    }

    /// Describes the open file: it may have been exchanged after its name was checked.
    fn visit_opened(&mut self, name: &[u8], opened: &OwnedFd) -> Result<(), Error> {
        let stat = rustix::fs::fstat(opened).map_err(Error::at("read", name))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => match extents(opened.as_fd(), &stat) {
                Ok(extents) => {
                    let stamp = self.stamps.of(&stat, || Ok(opened));
                    self.push(name, &stat, Kind::File(content(&stat, stamp, extents)))
                }
                Err(errno) => {
                    self.skip(name, Why::Problem(errno.into()));
                    Ok(())
                }
            },
            FileType::Directory => self.visit_directory(name, opened, &stat),
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                self.skip(name, Why::Special);
                Ok(())
            }
        }
    }

    fn visit_directory(&mut self, name: &[u8], opened: &OwnedFd, stat: &Stat) -> Result<(), Error> {
        let names = match names_in(opened) {
            Ok(names) => names,
            Err(errno) => {
                self.skip(name, Why::Problem(errno.into()));
                return Ok(());
            }
        };
        self.push(name, stat, Kind::Directory)?;
        self.path.push(name.to_vec());
        names
            .iter()
            .try_for_each(|child| self.visit_child(opened.as_fd(), child))?;
        self.path.pop();
        Ok(())
    }

    fn push(&mut self, name: &[u8], stat: &Stat, kind: Kind) -> Result<(), Error> {
        let depth = u8::try_from(self.path.len());
        let mode = (stat.st_mode & 0o7777) as u16;
        let pushed = depth.map_err(|_| ManifestError::Depth).and_then(|depth| {
            let entry = Entry {
                parent: None,
                depth,
                name: name.into(),
                mode,
                modified: modified(stat),
                kind,
            };
            self.builder.push(entry)
        });
        pushed
            .map(drop)
            .map_err(|error| Error::new("offer", self.path_of(name), error.into()))
    }

    fn skip(&mut self, name: &[u8], why: Why) {
        self.skipped.push(Skipped {
            path: self.path_of(name),
            why,
        });
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.path.join(&b'/');
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}

/// The name under which `path` is offered.
pub(crate) fn name_root(path: &Path) -> Result<(Vec<u8>, PathBuf), Error> {
    let shown = path.as_os_str().as_bytes();
    let absolute;
    let name = match path.file_name() {
        Some(name) => name,
        // "." and "..": the directory itself has a name.
        None => {
            absolute = path
                .canonicalize()
                .map_err(|_| Error::new("send", shown, Problem::Missing))?;
            absolute
                .file_name()
                .ok_or_else(|| Error::new("send", shown, Problem::NoName))?
        }
    };
    Ok((OsStr::as_bytes(name).to_vec(), path.to_path_buf()))
}

/// The names in a directory, in ascending order.
fn names_in(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn content(stat: &Stat, stamp: u64, extents: Option<Box<[Extent]>>) -> Content {
    Content {
        size: stat.st_size as u64,
        stamp,
        extents,
    }
}

/// Whether it has no holes: all of it has blocks, which `stat` counts in units of 512 bytes on
/// every file system.
fn is_dense(stat: &Stat) -> bool {
    (stat.st_blocks as u64).saturating_mul(512) >= stat.st_size as u64
}

/// The runs of data of a file, if it has holes.
///
/// Beyond [`EXTENTS_MAX`] runs, those with the shortest holes between them are joined.
fn extents(file: BorrowedFd<'_>, stat: &Stat) -> Result<Option<Box<[Extent]>>, Errno> {
    let size = stat.st_size as u64;
    // Most files have no holes, and need no further call.
    if is_dense(stat) {
        return Ok(None);
    }
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut from = 0;
    while from < size {
        let offset = match rustix::fs::seek(file, SeekFrom::Data(from)) {
            Ok(offset) => offset.min(size),
            // Only a hole from here on.
            Err(Errno::NXIO) => break,
            // The file system does not support holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(offset))?.min(size);
        if end > offset {
            runs.push(offset..end);
        }
        if runs.len() >= 2 * EXTENTS_MAX {
            join_nearest(&mut runs, EXTENTS_MAX);
        }
        from = end.max(offset + 1);
    }
    join_nearest(&mut runs, EXTENTS_MAX);
    let mut before = 0;
    let extents = runs.into_iter().map(|run| {
        let length = run.end - run.start;
        before += length;
        Extent {
            offset: run.start,
            length,
            before: before - length,
        }
    });
    let extents: Vec<Extent> = extents.collect();
    let dense = matches!(extents[..], [Extent { offset: 0, length, .. }] if length == size);
    Ok((!dense).then(|| extents.into()))
}

/// Joins ascending runs to at most `most`, across the shortest holes.
fn join_nearest(runs: &mut Vec<Range<u64>>, most: usize) {
    let Some(joined) = runs.len().checked_sub(most).filter(|joined| *joined > 0) else {
        return;
    };
    let holes = runs.windows(2).map(|pair| pair[1].start - pair[0].end);
    let mut holes: Vec<(u64, usize)> = holes.zip(1..).collect();
    holes.select_nth_unstable(joined - 1);
    holes.truncate(joined);
    let shortest: HashSet<usize> = holes.into_iter().map(|(_, at)| at).collect();
    for (at, run) in std::mem::take(runs).into_iter().enumerate() {
        match runs.last_mut() {
            Some(last) if shortest.contains(&at) => last.end = run.end,
            Some(_) | None => runs.push(run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_runs_are_joined_across_the_shortest_holes() {
        let mut runs = vec![0..10, 11..20, 100..110, 120..130, 131..140, 1000..1001];
        join_nearest(&mut runs, 6);
        assert_eq!(runs.len(), 6);
        join_nearest(&mut runs, 4);
        assert_eq!(runs, [0..20, 100..110, 120..140, 1000..1001]);
        join_nearest(&mut runs, 1);
        assert_eq!((runs.len(), &runs[0]), (1, &(0..1001)));
    }

    #[test]
    fn permissions_say_which_files_need_not_be_opened_to_be_offered() {
        let walk = Walk {
            builder: Builder::new(Limits::default()),
            skipped: Vec::new(),
            path: Vec::new(),
            user: 1000,
            stamps: Stamps::default(),
        };
        let mut stat = rustix::fs::stat("/").unwrap();
        for (owner, mode, may) in [
            (1000, 0o400, true),
            (1000, 0o044, false),
            (1000, 0o200, false),
            (0, 0o444, true),
            (0, 0o440, false),
            (0, 0o600, false),
        ] {
            (stat.st_uid, stat.st_mode) = (owner, mode);
            assert_eq!(walk.may_read(&stat), may, "{mode:o} of {owner}");
        }
    }

    #[test]
    fn a_file_that_has_fewer_blocks_than_bytes_may_have_holes() {
        let mut stat = rustix::fs::stat("/").unwrap();
        for (blocks, size, dense) in [
            (0, 0, true),
            (0, 1, false),
            (8, 4096, true),
            (8, 4097, false),
        ] {
            (stat.st_blocks, stat.st_size) = (blocks, size);
            assert_eq!(is_dense(&stat), dense, "{size} bytes in {blocks} blocks");
        }
    }
}
