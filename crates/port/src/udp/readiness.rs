//! One descriptor that says when there is something to do at any of the sockets of a port that come and go.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// An `epoll(7)` set: readable while a datagram waits at one of its sockets, or one that is watched for room has some.
pub(super) struct Readiness(OwnedFd);

impl Readiness {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: a plain integer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `epoll_create1` just returned it, and nobody else knows it.
        Ok(Readiness(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(super) fn add(&self, socket: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, libc::EPOLLIN)
    }

    /// Watches a socket for room in its send buffer too, or not any more.
    pub(super) fn watch_room(&self, socket: RawFd, on: bool) -> io::Result<()> {
        let events = libc::EPOLLIN | if on { libc::EPOLLOUT } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, socket, events)
    }

    /// To be called before the socket is closed: a child process may still hold it, and then it would stay in the set.
    pub(super) fn remove(&self, socket: RawFd) {
        // One that is not in the set need not be taken out.
        let _ = self.control(libc::EPOLL_CTL_DEL, socket, 0);
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: RawFd,
        events: libc::c_int,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: 0,
        };
        // SAFETY: `event` is one epoll_event.
        let result = unsafe {
            libc::epoll_ctl(
                self.descriptor(),
                operation,
                socket,
                ptr::from_mut(&mut event),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
