//! Standard output as the place where a file goes: a reader that has stopped reading does not keep the program from ending.

use airdma_transfer::Cancel;
use std::io::{self, Stdout, Write};
use std::os::fd::AsRawFd;

/// How often a write looks whether it is to end.
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

    /// Whether there is room for a piece, after a moment.
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
        // For so much a pipe that can be written to has room: more could block. Past the buffer of `Stdout`, which would write when it likes.
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
