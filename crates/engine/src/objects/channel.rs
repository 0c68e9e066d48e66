//! Completion channels.

use crate::progress::wait::Descriptors;
use crate::queues::cq_shared::ChannelEvents;
use crate::queues::use_count::UseCount;
use crate::{ChannelWait, Device, Error, EventWait};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// A completion channel: a descriptor that is readable while an event waits.
pub struct Channel {
    pub(crate) device: Arc<Device>,
    pub(crate) events: Arc<ChannelEvents>,
    pub(crate) users: UseCount,
    /// What the last wait slept on, kept for its memory.
    descriptors: Mutex<Descriptors>,
}

impl Channel {
    pub(crate) fn new(device: &Arc<Device>, events: ChannelEvents) -> Self {
        Channel {
            device: Arc::clone(device),
            events: Arc::new(events),
            users: UseCount::default(),
            descriptors: Mutex::default(),
        }
    }

    /// Descriptors for a wait; used ones, if no other thread sleeps there now.
    pub(crate) fn take_descriptors(&self) -> Descriptors {
        let descriptors = self.descriptors.try_lock();
        descriptors.map_or_else(
            |_| Descriptors::default(),
            |mut descriptors| std::mem::take(&mut descriptors),
        )
    }

    /// A wait is over.
    pub(crate) fn return_descriptors(&self, used: Descriptors) {
        if let Ok(mut descriptors) = self.descriptors.try_lock() {
            *descriptors = used;
        }
    }

    /// The descriptor, for `poll(2)`, `epoll(7)` and `fcntl(2)` with `O_NONBLOCK`. It belongs to
    /// the channel: do not close it, and do not read it.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The cookie of the completion queue whose event is next; blocks until there is one, and runs
    /// the device's worker while it does. A signal whose handler was installed with `SA_RESTART`
    /// does not end it, as with the kernel's.
    ///
    /// # Errors
    /// `EAGAIN` when there is none and the descriptor has `O_NONBLOCK`, `EINTR`; `ENODEV` in a
    /// child after fork.
    pub fn wait_event(self: &Arc<Self>) -> io::Result<u64> {
        ChannelWait::new(self).wait()
    }

    /// The cookie of the completion queue whose event is next, if there is one already. Does not
    /// run the device's worker.
    pub fn take_event(&self) -> Option<u64> {
        self.events.pop().map(|cq| cq.fetched())
    }

    /// Destroys the channel.
    ///
    /// # Errors
    /// `EBUSY` while a completion queue uses it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.users.destroy("the completion channel").map(|_| ())
    }
}
