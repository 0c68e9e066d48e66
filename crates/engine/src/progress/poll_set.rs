//! One descriptor for several.

use airdma_port::descriptors;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Most descriptors that one [`PollSet::wait`] returns.
const EVENTS_MAX: usize = 64;

/// An `epoll(7)` set: readable while one of its descriptors is.
pub struct PollSet(OwnedFd);

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
    ///
    /// # Errors
    /// The system's: descriptors.
    pub fn out_of_sight() -> io::Result<Self> {
        let Self(fd) = Self::new()?;
        Ok(Self(descriptors::keep_away(fd)))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn add(&self, fd: RawFd) -> io::Result<()> {
        self.add_as(fd, 0)
    }

    /// Adds a descriptor under a number that [`PollSet::wait`] returns.
    ///
    /// # Errors
    /// The system's: memory, a descriptor that is in the set.
    pub fn add_as(&self, fd: RawFd, number: u64) -> io::Result<()> {
        self.add_for(libc::EPOLLIN, fd, number)
    }

    /// As [`PollSet::add_as`]: the set is readable once each time that the descriptor becomes so.
    pub(crate) fn add_edges_as(&self, fd: RawFd, number: u64) -> io::Result<()> {
        self.add_for(libc::EPOLLIN | libc::EPOLLET, fd, number)
    }

    /// As [`PollSet::add_edges_as`], each time that there is room to write again.
    pub(crate) fn add_room_as(&self, fd: RawFd, number: u64) -> io::Result<()> {
        self.add_for(libc::EPOLLOUT | libc::EPOLLET, fd, number)
    }

    fn add_for(&self, events: libc::c_int, fd: RawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: number,
        };
        // SAFETY: `event` is one epoll_event.
        let result = unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Removes a descriptor, if it is in the set.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: plain integers; this operation reads no event.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Sleeps until descriptors are ready; returns the numbers of some of them. A signal returns
    /// none.
    ///
    /// # Errors
    /// The system's: a program that closed the set.
    pub fn wait(&self) -> io::Result<impl Iterator<Item = u64> + use<>> {
        self.wait_for(-1)
    }

    /// As [`PollSet::wait`], for at most `time` (`None`: for ever), rounded up to milliseconds.
    pub(crate) fn wait_at_most(
        &self,
        time: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let rounded = |time: Duration| i32::try_from(time.as_micros().div_ceil(1000));
        self.wait_for(time.map_or(-1, |time| rounded(time).unwrap_or(i32::MAX)))
    }

    /// As [`PollSet::wait`], without sleeping.
    pub(crate) fn ready(&self) -> io::Result<impl Iterator<Item = u64> + use<>> {
        self.wait_for(0)
    }

    fn wait_for(&self, timeout_ms: i32) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: `events` has room for that many, and the call fills in those that it counts.
        let count = unsafe {
            let most = EVENTS_MAX as libc::c_int;
            libc::epoll_wait(self.fd(), events.as_mut_ptr(), most, timeout_ms)
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => 0,
                error => return Err(error),
            },
        };
        Ok(events.into_iter().take(count).map(|event| event.u64))
    }
}
