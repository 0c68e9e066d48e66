//! Completion channels.

use crate::event_queue::EventQueue;
use crate::use_count::UseCount;
use crate::wait::{Descriptors, signal_restarts};
use crate::worker::Work;
use crate::{Device, Error};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whose event (its [`crate::cq_table::CqShared::id`]) and its cookie.
pub(crate) type ChannelEvents = EventQueue<(u64, u64)>;

/// A completion channel: a descriptor that is readable while an event waits.
pub struct Channel {
    pub(crate) device: Arc<Device>,
    pub(crate) events: Arc<ChannelEvents>,
    pub(crate) users: UseCount,
}

impl Channel {
    /// The descriptor, for `poll(2)`, `epoll(7)` and `fcntl(2)` with `O_NONBLOCK`. It belongs to the channel: do not
    /// close it, and do not read it.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The cookie of the completion queue whose event is next; blocks until there is one, and runs the device's
    /// worker while it does. A signal whose handler was installed with `SA_RESTART` does not end it, as with the kernel's.
    ///
    /// # Errors
    /// `EAGAIN` when there is none and the descriptor has `O_NONBLOCK`, `EINTR`.
    pub fn wait_event(&self) -> io::Result<u64> {
        self.device.core().note_poll();
        if let Some((_, cookie)) = self.events.pop() {
            return Ok(cookie);
        }
        if self.events.is_nonblocking() {
            self.device.core().try_progress(Work::All);
            let event = self.events.pop();
            return event
                .map(|(_, cookie)| cookie)
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let _waiting = Waiting::new(&self.device);
        let mut descriptors = Descriptors::default();
        loop {
            self.device.core().try_progress(Work::All);
            if let Some((_, cookie)) = self.events.pop() {
                return Ok(cookie);
            }
            match self.device.core().sleep(&mut descriptors, self.fd()) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted && signal_restarts() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// `EBUSY` while a completion queue uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.users.destroy("the completion channel").map(|_| ())
    }
}

/// A thread that runs the worker while it waits.
struct Waiting<'a>(&'a Device);

impl<'a> Waiting<'a> {
    fn new(device: &'a Device) -> Self {
        device.core().waiters.fetch_add(1, Ordering::SeqCst);
        Waiting(device)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let core = self.0.core();
        if core.waiters.fetch_sub(1, Ordering::SeqCst) == 1 {
            core.helper.take_over();
        } else if core.has_sleepers() {
            // What woke us may have been meant for all of us: the others look for themselves.
            core.wake_sleepers();
        }
    }
}
