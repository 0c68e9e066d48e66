//! The directory of unfinished files: its owner, its contents, and its removal.

use crate::journal;
use crate::manifest::{Kind, Manifest};
use crate::owned::Owned;
use crate::trailer::Flaw;
use crate::tree::DIRECTORY;
use crate::{Error, Problem, owned, twins};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Names of a directory that are read before those files are removed.
const NAMES_AT_ONCE_MAX: usize = 4096;
/// Deepest directory below the one to remove: more than a transfer creates, and few enough to have
/// all open.
const REMOVED_DEPTH_MAX: u8 = 128;

/// Files that exist only for a moment, unless an interruption leaves them.
const OTHERS_OF_OURS: [&str; 3] = [journal::NEW, owned::PROBE, twins::SHOWN_IN];

/// Meaning of a name in the staging directory.
pub(super) enum Left {
    /// A file without its final name.
    File(u32),
    /// A directory of the first checkpoint without its final name.
    Top(u32),
    /// The mark of a file that did not arrive.
    Flaw(u32, Flaw),
    /// The journal.
    Journal,
    /// Not a name that this receiver gives.
    Other,
}

/// Opens the staging directory of this offer exclusively, if it exists.
///
/// Its owner is proven by its journal's seal, or by [`check_owner`].
pub(super) fn open_staging(top: &OwnedFd, name: &str) -> Result<Option<(OwnedFd, Owned)>, Error> {
    let staging = match rustix::fs::openat(top, name, DIRECTORY, Mode::empty()) {
        Ok(staging) => staging,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(Error::at("open", name)(errno)),
    };
    match rustix::fs::flock(&staging, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(Error::new("receive into", name, Problem::Busy)),
        Err(errno) => return Err(Error::at("lock", name)(errno)),
    }
    let stat = rustix::fs::fstat(&staging).map_err(Error::at("look at", name))?;
    Ok(Some((staging, Owned::of(&stat))))
}

/// Refuses the directory of another user, which in a directory that all may write to could hold
/// anything.
pub(super) fn check_owner(staging: &OwnedFd, owned: Owned, name: &str) -> Result<(), Error> {
    match owned.is_proven(staging.as_fd()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::new("go on with", name, Problem::Tampered)),
        Err(errno) => Err(Error::at("write", name)(errno)),
    }
}

pub(super) fn make_staging(top: &OwnedFd, name: &str) -> Result<(OwnedFd, Owned), Error> {
    match rustix::fs::mkdirat(top, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(Error::at("create", name)(errno)),
    }
    let made = open_staging(top, name)?;
    let (staging, owned) = made.ok_or_else(|| Error::new("create", name, Problem::Missing))?;
    check_owner(&staging, owned, name)?;
    Ok((staging, owned))
}

/// Checks that a directory with the right name but no valid journal holds only files that a
/// receiver creates.
///
/// Where others can write to the receiving directory, they can give that name to another directory
/// of this user.
pub(super) fn check_left(
    left_there: &OwnedFd,
    name: &str,
    manifest: &Manifest,
) -> Result<(), Error> {
    let is_ours = |found: &CStr| match left(&found.to_string_lossy(), manifest) {
        Left::Other => OTHERS_OF_OURS
            .iter()
            .any(|name| found.to_bytes() == name.as_bytes()),
        Left::File(_) | Left::Top(_) | Left::Flaw(..) | Left::Journal => true,
    };
    for entry in Dir::read_from(left_there).map_err(Error::at("read", name))? {
        let entry = entry.map_err(Error::at("read", name))?;
        let found = entry.file_name();
        if found != c"." && found != c".." && !is_ours(found) {
            return Err(Error::new("go on with", name, Problem::Tampered));
        }
    }
    Ok(())
}

/// Removes a directory with the right name but no valid journal: left by a crash, or a copy of such
/// a one.
///
/// No link in it is followed.
pub(super) fn remove_left(top: &OwnedFd, name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    remove(top, &name)
}

/// Removes what has this name, with everything in it. No link is followed.
pub(super) fn remove(directory: &OwnedFd, name: &CStr) -> io::Result<()> {
    remove_within(directory, name, 0)
}

fn remove_within(directory: &OwnedFd, name: &CStr, depth: u8) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        result => return Ok(result?),
    }
    if depth == REMOVED_DEPTH_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    let within = rustix::fs::openat(directory, name, DIRECTORY, Mode::empty())?;
    loop {
        let names = some_names(&within, NAMES_AT_ONCE_MAX)?;
        if names.is_empty() {
            break;
        }
        for name in &names {
            remove_within(&within, name, depth + 1)?;
        }
    }
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

pub(super) fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    some_names(directory, usize::MAX)
}

fn some_names(directory: &OwnedFd, names_max: usize) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
        if names.len() == names_max {
            break;
        }
    }
    Ok(names)
}

pub(super) fn left(name: &str, manifest: &Manifest) -> Left {
    if name == journal::NAME {
        return Left::Journal;
    }
    let (entry, flaw) = name
        .split_once('.')
        .map_or((name, None), |(entry, flaw)| (entry, Some(flaw)));
    let known = entry.parse().ok().and_then(|entry| match flaw {
        None if is_top(manifest, entry) => Some(Left::Top(entry)),
        None => Some(Left::File(entry)),
        Some(flaw) => flaw
            .parse()
            .ok()
            .and_then(Flaw::from_code)
            .map(|flaw| Left::Flaw(entry, flaw)),
    });
    known.unwrap_or(Left::Other)
}

fn is_top(manifest: &Manifest, entry: u32) -> bool {
    let entry = manifest.entries().get(entry as usize);
    entry.is_some_and(|entry| entry.depth == 0 && entry.kind == Kind::Directory)
}
