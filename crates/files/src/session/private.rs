//! Files of a user that decide about trust: they are read only if no other user can have written
//! them.

use rustix::fs::{Mode, OFlags};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Mode bits that let others write.
pub(super) const WRITABLE: u32 = 0o022;
/// Mode bits that let others do anything.
pub(super) const ANY: u32 = 0o077;

/// Opens a regular file of this user for reading, without following a link; fails if its mode has a
/// `forbidden` bit.
pub(super) fn open(path: &Path, forbidden: u32) -> io::Result<File> {
    // Opening a pipe that another user put there would block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => {
            return Err(refused("it is a symbolic link: put the file itself there"));
        }
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file: remove it"));
    }
    check(&metadata, forbidden)?;
    Ok(file)
}

/// Checks that a directory is this user's, and that no other user can create or remove files in it.
///
/// Links may lead to it.
pub(super) fn check_directory(path: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_dir() {
        return Err(refused("it is not a directory: remove it"));
    }
    let link = std::fs::symlink_metadata(path)?;
    if link.is_symlink() {
        check_owner(&link)?;
    }
    check(&metadata, WRITABLE)
}

/// Reads the whole file, if it has at most `bytes_max` bytes.
pub(super) fn read(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(refused(&format!(
            "it has more than {bytes_max} bytes: remove lines that are not needed"
        )));
    }
    Ok(bytes)
}

pub(super) fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn check(metadata: &Metadata, forbidden: u32) -> io::Result<()> {
    check_owner(metadata)?;
    let found = metadata.permissions().mode() & forbidden;
    if found == 0 {
        return Ok(());
    }
    Err(refused(if found & WRITABLE == 0 {
        "other users may read it: chmod go= it; what they read is known to them"
    } else {
        "other users may write it: chmod go-w it, after a look at what is in it"
    }))
}

fn check_owner(metadata: &Metadata) -> io::Result<()> {
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner == user {
        return Ok(());
    }
    Err(refused(&format!(
        "it belongs to user {owner}, and this is user {user}: chown it, or set AIRDMA_HOME"
    )))
}
