//! Standard output as the destination of a file: a reader that stops reading does not keep the
//! program from ending.

use airdma_transfer::Cancel;
use std::io::{self, Stdout, Write};
use std::os::fd::AsRawFd;

/// Interval at which a write checks whether it was cancelled.
const LOOK_EVERY_MS: libc::c_int = 100;

/// Standard output, until it is cancelled.
pub struct Output {
    stdout: Stdout,
    cancel: Cancel,
}

impl Output {
    pub fn new(cancel: &Cancel) -> Self {
        Self {
            stdout: io::stdout(),
            cancel: cancel.clone(),
        }
    }

    /// Waits briefly; returns whether there is room for a piece.
    fn has_room(&self) -> bool {
        let mut entry = libc::pollfd {
            fd: self.stdout.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one entry, which lives as long as the call.
        unsafe { libc::poll(&raw mut entry, 1, LOOK_EVERY_MS) > 0 }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            if self.cancel.is_cancelled() {
                return Err(io::Error::other("stopped"));
            }
            if self.has_room() {
                break;
            }
        }
        // A writable pipe has room for this much; more could block. Bypasses the buffer of
        // `Stdout`, which may write later.
        let piece = &bytes[..bytes.len().min(libc::PIPE_BUF)];
        // SAFETY: bytes that live as long as the call.
        let written =
            unsafe { libc::write(self.stdout.as_raw_fd(), piece.as_ptr().cast(), piece.len()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
