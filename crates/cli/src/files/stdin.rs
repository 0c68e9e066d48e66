//! Input of unknown length as a file: it is read to its end first, since an offer states its
//! length.
//!
//! These are standard input, pipes with and without a name, and files that the kernel generates as
//! they are read (/proc).

use super::terminal::is_readable;
use airdma_transfer::{Cancel, Error};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name that it is offered under comes from this path.
const PATH: &str = "/dev/stdin";

/// Whether a path means standard input.
pub fn is_meant(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A path to send, and the file that must stay open for it.
pub struct Source {
    /// The name to offer, if the path has another one.
    name: Option<OsString>,
    path: PathBuf,
    /// The file that the input was copied to.
    _spooled: Option<File>,
}

impl Source {
    /// The named path, or the copy of its input.
    pub fn of(path: &Path, cancel: &Cancel) -> Result<Self, Error> {
        let as_it_is = |path| Self {
            name: None,
            path,
            _spooled: None,
        };
        if is_meant(path) {
            return Ok(as_it_is(as_file(cancel)?));
        }
        let Some(mut from) = unsized_at(path)? else {
            return Ok(as_it_is(path.to_path_buf()));
        };
        let spooled = spool(&mut from, cancel)?;
        Ok(Self {
            name: path.file_name().map(ToOwned::to_owned),
            path: format!("/proc/self/fd/{}", spooled.as_raw_fd()).into(),
            _spooled: Some(spooled),
        })
    }

    /// The name and path to offer.
    pub fn named(&self) -> (Option<OsString>, PathBuf) {
        (self.name.clone(), self.path.clone())
    }
}

/// Opens a path if its length is known only after reading. If it cannot be opened, the sender
/// reports that.
fn unsized_at(path: &Path) -> io::Result<Option<File>> {
    let Ok(metadata) = path.metadata() else {
        return Ok(None);
    };
    let is_pipe = metadata.file_type().is_fifo();
    let says_nothing = is_pipe || (metadata.is_file() && metadata.len() == 0);
    if !says_nothing {
        return Ok(None);
    }
    // A pipe without a writer yet is waited for where the wait can be cancelled.
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let Ok(file) = opened else {
        return Ok(None);
    };
    let has_content = || Ok::<_, io::Error>(file.read_at(&mut [0; 1], 0)? > 0);
    let is_unsized = is_pipe || has_content()?;
    Ok(is_unsized.then_some(file))
}

/// A path where standard input is a file.
///
/// In scripts it mostly is one already; otherwise it is copied to a temporary file without a name,
/// which replaces it.
pub fn as_file(cancel: &Cancel) -> Result<PathBuf, Error> {
    if !is_whole_file() {
        let spooled = spool(&mut io::stdin().lock(), cancel)?;
        // SAFETY: two open descriptors; the old standard input is not read any more.
        if unsafe { libc::dup2(spooled.as_raw_fd(), libc::STDIN_FILENO) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
    }
    Ok(PATH.into())
}

/// Whether standard input is a file at its beginning, so that opening it again gives all of it.
fn is_whole_file() -> bool {
    // SAFETY: a plain number; if it is not an open descriptor, the call fails.
    let position = unsafe { libc::lseek(libc::STDIN_FILENO, 0, libc::SEEK_CUR) };
    let opened = File::open(PATH).and_then(|file| file.metadata());
    position == 0 && opened.is_ok_and(|metadata| metadata.is_file())
}

fn spool(from: &mut (impl Read + AsRawFd), cancel: &Cancel) -> Result<File, Error> {
    let mut spooled = temporary()?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if !is_readable(from) {
            continue;
        }
        match from.read(&mut buffer) {
            Ok(0) => return Ok(spooled),
            Ok(length) => spooled.write_all(&buffer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn temporary() -> io::Result<File> {
    let template = std::env::temp_dir().join("airdma-stdin-XXXXXX");
    let mut template = template.into_os_string().into_encoded_bytes();
    template.push(0);
    // SAFETY: a string with a NUL, whose last letters the call replaces.
    let fd = unsafe { libc::mkostemp(template.as_mut_ptr().cast(), libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just created, and that nothing else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    // SAFETY: the name that the call left there.
    unsafe { libc::unlink(template.as_ptr().cast()) };
    Ok(file)
}
