//! One descriptor for several.

use airdma_port::descriptors;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An `epoll(7)` set: readable while one of its descriptors is.
pub(crate) struct PollSet(OwnedFd);

impl PollSet {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a plain integer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `epoll_create1` just returned it, so it has no other owner.
        Ok(PollSet(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// A set that no program sees.
    pub(crate) fn out_of_sight() -> io::Result<Self> {
        let Self(fd) = Self::new()?;
        Ok(Self(descriptors::keep_away(fd)))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn add(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: 0,
        };
        // SAFETY: `event` is one epoll_event.
        let result = unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
