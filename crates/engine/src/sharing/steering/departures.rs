//! Notices the end of processes by inotify: the kernel reports that a writer has closed a watched
//! file, and a killed process closes all files.

use airdma_port::descriptors;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A watch of a registry's file, which its members keep open as long as they live.
///
/// A single member watches nothing: at the end of a watch the kernel waits for all users of
/// inotify, which would delay the end of each process.
pub(crate) struct Departures {
    fd: OwnedFd,
    path: CString,
    watches: AtomicBool,
}

impl Departures {
    /// # Errors
    /// The system's: a user has 128 of them on most hosts.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        Ok(Departures {
            // SAFETY: a plain integer.
            fd: descriptors::open(|| unsafe {
                libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC)
            })?,
            path,
            watches: AtomicBool::new(false),
        })
    }

    /// Starts the watch; true if there was none.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn watch(&self) -> io::Result<bool> {
        if self.watches.swap(true, Ordering::Relaxed) {
            return Ok(false);
        }
        // SAFETY: the path ends with a zero, and lives until the call returns.
        let watch =
            unsafe { libc::inotify_add_watch(self.fd(), self.path.as_ptr(), libc::IN_CLOSE_WRITE) };
        if watch < 0 {
            let error = io::Error::last_os_error();
            self.watches.store(false, Ordering::Relaxed);
            return Err(error);
        }
        Ok(true)
    }

    /// Readable after a process left.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether a process left since the last call.
    pub(crate) fn take(&self) -> bool {
        let mut buffer = [0_u8; 1024];
        let mut any = false;
        // SAFETY: the kernel writes at most the bytes of the buffer.
        while unsafe { libc::read(self.fd(), buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {
            any = true;
        }
        any
    }
}
