//! From paths to a manifest: what is there to be sent.

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

/// What a walk found.
#[derive(Debug)]
pub struct Walked {
    /// What is offered.
    pub manifest: Arc<Manifest>,
    /// Where the entries at the top are on this host, in their order.
    pub roots: Vec<PathBuf>,
    /// What is left out, and why: unreadable files, unfinished transfers, and everything that is neither file, directory nor symbolic link.
    pub skipped: Vec<Skipped>,
}

/// Something that is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its path, as names below the paths that were given.
    pub path: Vec<u8>,
    /// Why.
    pub why: Why,
}

/// Why something is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A device, socket or pipe.
    Special,
    /// Its name is that of an unfinished transfer, which no receiver takes.
    Unfinished,
    /// It cannot be opened or read.
    Problem(Problem),
}

/// Walks `paths`. Symbolic links are followed where they are named by a path itself, and nowhere else. What cannot be
/// read is left out and told; a path that does not exist is an error.
///
/// A file's stamp is a hash of its inode (where the file system keeps its number), and one of the time at which the kernel last saw it
/// change (ctime), which programs cannot set: so a file that was changed is found out though its size and its time of modification are the same.
pub fn walk<P: AsRef<Path>>(paths: &[P], limits: Limits) -> Result<Walked, Error> {
    Roots::find(paths)?.walk(limits)
}

/// The names under which paths are offered, in their order, and the paths.
pub(crate) struct Roots(Vec<(Vec<u8>, PathBuf)>);

impl Roots {
    /// Looks at the paths themselves.
    pub fn find<P: AsRef<Path>>(paths: &[P]) -> Result<Self, Error> {
        let named = paths.iter().map(|path| name_root(path.as_ref()));
        Self::named(named.collect::<Result<_, _>>()?)
    }

    /// The same where names are given.
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

    /// Looks at what is below them.
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

/// Opens a root: links are followed, since the user named it.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OPEN, Mode::empty())
}

/// Opens what is called `name` in `directory`, but no symbolic link.
pub(crate) fn open_in(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, OPEN | OFlags::NOFOLLOW, Mode::empty())
}

/// Without blocking: a pipe under the name of a file must not stop the walk.
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// To ask for nothing but what it lies in.
const NAMED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// When it was modified.
pub(crate) fn modified(stat: &Stat) -> Modified {
    Modified {
        seconds: stat.st_mtime,
        nanos: stat.st_mtime_nsec as u32,
    }
}

struct Walk {
    builder: Builder,
    skipped: Vec<Skipped>,
    /// The names above the entry that is being visited.
    path: Vec<Vec<u8>>,
    /// Who walks.
    user: u32,
    stamps: Stamps,
}

impl Walk {
    /// Whether it is in the manifest.
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

    /// Most files are described by a look at their name alone. Whether one was exchanged since is seen when it is read, by its stamp.
    fn visit_child(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Error> {
        if is_reserved(name) {
            self.skip(name, Why::Unfinished);
            return Ok(());
        }
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It was removed since the directory was read.
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

    /// Whether its permissions say that it can be opened. Where they say too much (an access control list, a server's mind), reading it
    /// tells.
    fn may_read(&self, stat: &Stat) -> bool {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let all = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        mode.contains(all) || (stat.st_uid == self.user && mode.contains(Mode::RUSR))
    }

    /// What is open is what is described: it may have been exchanged since its name was looked at.
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
        // "." and "..": the directory has a name all the same.
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

/// Whether it has no holes: all of it has blocks, of 512 bytes, whatever the file system has.
fn is_dense(stat: &Stat) -> bool {
    (stat.st_blocks as u64).saturating_mul(512) >= stat.st_size as u64
}

/// Where the data of a file is, if it has holes. Of more than [`EXTENTS_MAX`] runs, those with the shortest holes between them are one.
fn extents(file: BorrowedFd<'_>, stat: &Stat) -> Result<Option<Box<[Extent]>>, Errno> {
    let size = stat.st_size as u64;
    // Most files have no hole, and are asked nothing more.
    if is_dense(stat) {
        return Ok(None);
    }
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut from = 0;
    while from < size {
        let offset = match rustix::fs::seek(file, SeekFrom::Data(from)) {
            Ok(offset) => offset.min(size),
            // Nothing but a hole from here on.
            Err(Errno::NXIO) => break,
            // A file system that does not know holes.
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

/// Makes so many of runs in their order, by taking the shortest holes between them for data.
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
    fn of_too_many_runs_those_with_the_shortest_holes_between_them_become_one() {
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
