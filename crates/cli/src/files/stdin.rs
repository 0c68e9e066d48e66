//! Standard input as a file: an offer says how long it is, so it is read to its end first.

use super::terminal::is_readable;
use airdma_transfer::{Cancel, Error};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};

/// The name under which it is offered is this one's.
const PATH: &str = "/dev/stdin";

/// Whether a path stands for standard input.
pub fn is_meant(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A path at which what comes on standard input is a file. That it is one already is mostly so in scripts; otherwise it goes to a
/// temporary one, without a name, in place of standard input.
pub fn as_file(cancel: &Cancel) -> Result<PathBuf, Error> {
    if !is_whole_file() {
        let spooled = spool(cancel)?;
        // SAFETY: two open descriptors; nobody reads what was standard input any more.
        if unsafe { libc::dup2(spooled.as_raw_fd(), libc::STDIN_FILENO) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
    }
    Ok(PATH.into())
}

/// Whether opening it again gives what reading it would: a file of which nothing was read yet.
fn is_whole_file() -> bool {
    // SAFETY: a number that stands for a descriptor, or for none, which is an error then.
    let position = unsafe { libc::lseek(libc::STDIN_FILENO, 0, libc::SEEK_CUR) };
    let opened = File::open(PATH).and_then(|file| file.metadata());
    position == 0 && opened.is_ok_and(|metadata| metadata.is_file())
}

fn spool(cancel: &Cancel) -> Result<File, Error> {
    let mut spooled = temporary()?;
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; 1 << 20];
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if !is_readable(&stdin) {
            continue;
        }
        match stdin.read(&mut buffer)? {
            0 => return Ok(spooled),
            length => spooled.write_all(&buffer[..length])?,
        }
    }
}

fn temporary() -> io::Result<File> {
    let template = std::env::temp_dir().join("airdma-stdin-XXXXXX");
    let mut template = template.into_os_string().into_encoded_bytes();
    template.push(0);
    // SAFETY: a string with a NUL, in which the call replaces the last letters.
    let fd = unsafe { libc::mkostemp(template.as_mut_ptr().cast(), libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was made just now, and is nobody else's.
    let file = unsafe { File::from_raw_fd(fd) };
    // SAFETY: the name that the call left there.
    unsafe { libc::unlink(template.as_ptr().cast()) };
    Ok(file)
}
