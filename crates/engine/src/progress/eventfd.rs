//! An `eventfd(2)`: a descriptor that one thread makes readable and another waits for.

use airdma_port::descriptors;
use airdma_preload::Uncancelled;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// A blocking one, as a program expects that reads it.
    pub(crate) fn blocking() -> io::Result<Self> {
        Self::new(0)
    }

    /// A non-blocking one, which any number of threads may clear at once, and which no program
    /// sees.
    pub(crate) fn nonblocking() -> io::Result<Self> {
        let EventFd(fd) = Self::new(libc::EFD_NONBLOCK)?;
        Ok(EventFd(descriptors::keep_away(fd)))
    }

    /// One that another process made, and passed.
    pub(crate) fn from_other(fd: OwnedFd) -> Self {
        EventFd(descriptors::keep_away(fd))
    }

    fn new(flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: eventfd takes no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above just opened `fd`, which has no other owner.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Makes it readable. Cannot block: the count never comes near its limit of 2^64 - 2.
    pub(crate) fn signal(&self) {
        let _whole = Uncancelled::new();
        let one = 1u64;
        // SAFETY: eight bytes at `one` may be read.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable. Polls first, because the descriptor may be a blocking one; those are
    /// cleared by one thread at a time.
    pub(crate) fn clear(&self) {
        let _whole = Uncancelled::new();
        let mut poll = libc::pollfd {
            fd: self.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `poll` is one pollfd, and a timeout of zero does not block.
        if unsafe { libc::poll(&raw mut poll, 1, 0) } == 1 && poll.revents & libc::POLLIN != 0 {
            let mut count = 0u64;
            // SAFETY: eight bytes at `count` may be written.
            unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        }
    }
}
