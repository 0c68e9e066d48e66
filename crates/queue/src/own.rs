//! Files of the service: only its user can access them, and it reads only files that no other user
//! can write to.

use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Mode bits that let other users write.
const WRITABLE: u32 = 0o022;

/// Options for files of mode 0600 that never follow a link.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // An open of a pipe in place of the file must not block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).write(true).mode(0o600);
    options.custom_flags(flags.bits() as i32);
    options
}

/// Checks that a directory is this user's, and that no other user can create or remove files in it.
pub(crate) fn check_directory(path: &Path) -> io::Result<()> {
    check(&std::fs::metadata(path)?)
}

/// Checks that a file or directory is this user's, and that no other user can write to it.
pub(crate) fn check(metadata: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(refused(format!(
            "it belongs to user {}, and this is user {user}: chown it, or give another --state",
            metadata.uid()
        )));
    }
    if metadata.permissions().mode() & WRITABLE != 0 {
        return Err(refused(
            "other users may write it: chmod go-w it, after a look at what is in it".into(),
        ));
    }
    Ok(())
}

/// Reads all of a regular file of this user, if it has at most `bytes_max` bytes.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file: File = options().write(false).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file: move it away".into()));
    }
    check(&metadata)?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(refused(format!(
            "it has more than {bytes_max} bytes, which no service writes: move it away"
        )));
    }
    Ok(bytes)
}

fn refused(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
