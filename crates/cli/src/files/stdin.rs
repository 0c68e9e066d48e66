//! What has no length before it is read, as a file: an offer says how long it is, so it is read to its end first. Standard input, pipes with
//! and without a name, and files that the kernel makes up as they are read (/proc).

use super::terminal::is_readable;
use airdma_transfer::{Cancel, Error};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name under which it is offered is this one's.
const PATH: &str = "/dev/stdin";

/// Whether a path stands for standard input.
pub fn is_meant(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What is to be sent, and what has to be open for that.
pub struct Source {
    /// Its own, where the path has another one.
    name: Option<OsString>,
    path: PathBuf,
    /// What was read.
    _spooled: Option<File>,
}

impl Source {
    /// A path that was named, or what is read from there.
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

    /// Under which name what is offered.
    pub fn named(&self) -> (Option<OsString>, PathBuf) {
        (self.name.clone(), self.path.clone())
    }
}

/// What is at a path, open, if its length is known only when it was read. What cannot be opened is told by who sends it.
fn unsized_at(path: &Path) -> io::Result<Option<File>> {
    let Ok(metadata) = path.metadata() else {
        return Ok(None);
    };
    let is_pipe = metadata.file_type().is_fifo();
    let says_nothing = is_pipe || (metadata.is_file() && metadata.len() == 0);
    if !says_nothing {
        return Ok(None);
    }
    // A pipe that no program writes to yet is waited for where that can be stopped.
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let Ok(file) = opened else {
        return Ok(None);
    };
    let has_content = || Ok::<_, io::Error>(file.read_at(&mut [0; 1], 0)? > 0);
    let is_unsized = is_pipe || has_content()?;
    Ok(is_unsized.then_some(file))
}

/// A path at which what comes on standard input is a file. That it is one already is mostly so in scripts; otherwise it goes to a
/// temporary one, without a name, in place of standard input.
pub fn as_file(cancel: &Cancel) -> Result<PathBuf, Error> {
    if !is_whole_file() {
        let spooled = spool(&mut io::stdin().lock(), cancel)?;
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
