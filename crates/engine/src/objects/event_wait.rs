//! Waiting for an event in steps, for a caller that sleeps by itself: a C function whose thread may
//! be cancelled in its sleep (`pthread_cancel(3)`) and never comes back. Nothing may be left on its
//! stack then; the wait lies elsewhere, and is dropped when the thread ends.
//!
//! [`EventWait::step`] looks for an event. If there is none, the caller sleeps on
//! [`EventWait::descriptors`], tells how that ended by [`EventWait::woke`], and steps again.

use crate::progress::slice::shorten;
use crate::progress::wait::{Descriptors, Waited, signal_restarts, timespec_of};
use crate::queues::cq_shared::CqShared;
use crate::queues::event_queue::is_nonblocking;
use crate::worker::Work;
use crate::{AsyncEvent, Channel, CmChannel, CmNews, Device, Error};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A wait for the events of one object.
pub trait EventWait {
    /// What is waited for.
    type Event;

    /// The next event; `None` if there is none, and the caller is to sleep.
    ///
    /// # Errors
    /// Those of the object's blocking call.
    fn step(&mut self) -> io::Result<Option<Self::Event>>;

    /// After a step without event: what to give to `ppoll(2)`, and the time at which to wake, if
    /// any.
    fn descriptors(&mut self) -> (&mut [libc::pollfd], Option<libc::timespec>);

    /// `ppoll(2)` returned: how many descriptors are ready, or its error.
    ///
    /// # Errors
    /// `EINTR` for a signal whose handler was installed without `SA_RESTART`, and what else went
    /// wrong.
    fn woke(&mut self, ready: io::Result<usize>) -> io::Result<()>;

    /// Steps and sleeps until there is an event.
    ///
    /// # Errors
    /// As [`EventWait::step`] and [`EventWait::woke`].
    fn wait(&mut self) -> io::Result<Self::Event> {
        loop {
            if let Some(event) = self.step()? {
                return Ok(event);
            }
            let (descriptors, timeout) = self.descriptors();
            let timeout = timeout
                .as_ref()
                .map_or(std::ptr::null(), std::ptr::from_ref);
            let count = descriptors.len() as libc::nfds_t;
            // SAFETY: that many pollfds; the time is null or points to a local.
            let ready =
                unsafe { libc::ppoll(descriptors.as_mut_ptr(), count, timeout, std::ptr::null()) };
            let ready = usize::try_from(ready).map_err(|_| io::Error::last_os_error());
            self.woke(ready)?;
        }
    }
}

fn waited(ready: io::Result<usize>) -> io::Result<Waited> {
    ready.map(|count| {
        if count == 0 {
            Waited::TimedOut
        } else {
            Waited::Ready
        }
    })
}

/// An interrupted sleep is as good as a short one where the signal restarts calls.
fn unless_restarted(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::Interrupted && signal_restarts() => Ok(()),
        Ok(()) | Err(_) => result,
    }
}

/// A wait for the events of a completion channel; it runs the device's worker meanwhile.
pub struct ChannelWait {
    channel: Arc<Channel>,
    descriptors: Descriptors,
    timeout: Option<Duration>,
    /// Counted among the threads that run the worker while they wait.
    counted: bool,
    asleep: bool,
    by: Waiter,
    /// Events that this wait has taken together, and not returned: other threads need not be woken
    /// for them.
    taken: VecDeque<Arc<CqShared>>,
}

/// What waits for the events of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiter {
    /// A program, which has the channel's descriptor.
    Program,
    /// A thread of ours, which wakes others.
    Own,
    /// A thread of the program's, which handles the event itself.
    EventLoop,
}

impl ChannelWait {
    /// A wait that has not begun.
    pub fn new(channel: &Arc<Channel>) -> Self {
        ChannelWait {
            channel: Arc::clone(channel),
            descriptors: channel.take_descriptors(),
            timeout: None,
            counted: false,
            asleep: false,
            by: Waiter::Program,
            taken: VecDeque::new(),
        }
    }

    /// As [`ChannelWait::new`], for a channel whose descriptor no program has.
    pub fn out_of_sight(channel: &Arc<Channel>) -> Self {
        let mut wait = ChannelWait::new(channel);
        wait.by = Waiter::Own;
        wait
    }

    /// As [`ChannelWait::out_of_sight`], for a thread that handles the events itself, replies soon,
    /// and waits again: ACKs may wait for that, and replies for each other.
    pub fn of_event_loop(channel: &Arc<Channel>) -> Self {
        let mut wait = ChannelWait::new(channel);
        wait.by = Waiter::EventLoop;
        wait
    }

    /// A further event after one of [`EventWait::step`], without running the worker.
    pub fn take_more(&mut self) -> Option<u64> {
        let taken = self.taken.pop_front();
        let event = taken.or_else(|| self.channel.events.pop());
        event.map(|cq| cq.fetched())
    }
}

impl EventWait for ChannelWait {
    type Event = u64;

    fn step(&mut self) -> io::Result<Option<u64>> {
        let channel = Arc::clone(&self.channel);
        let core = channel.device.core();
        if !core.seems_ours() {
            return Err(io::Error::from_raw_os_error(Error::Forked.errno()));
        }
        if !self.counted {
            core.note_poll();
            core.gathering.note_wait(self.by == Waiter::EventLoop);
            if let Some(cookie) = self.take_more() {
                return Ok(Some(cookie));
            }
            if self.by == Waiter::Program && self.channel.events.is_nonblocking() {
                core.try_progress(Work::All);
                let none = || io::Error::from_raw_os_error(libc::EAGAIN);
                return self.take_more().ok_or_else(none).map(Some);
            }
            shorten();
            core.progress_thread.standby.enter();
            self.counted = true;
        }
        loop {
            let expected = channel.events.expect();
            let round = match self.by {
                Waiter::Program | Waiter::Own => core.progress_of_waiter(),
                Waiter::EventLoop => core.progress_of_event_loop(),
            };
            if round.is_some() {
                core.progress_thread.standby.note_round();
            }
            let event = if self.by == Waiter::EventLoop {
                self.taken.extend(expected.take_all());
                self.taken.pop_front()
            } else {
                expected.take()
            };
            if let Some(cq) = event {
                return Ok(Some(cq.fetched()));
            }
            let (descriptors, events) = (&mut self.descriptors, channel.fd());
            if let Some(timeout) = core.fall_asleep(descriptors, events, None) {
                self.timeout = timeout;
                self.asleep = true;
                return Ok(None);
            }
        }
    }

    fn descriptors(&mut self) -> (&mut [libc::pollfd], Option<libc::timespec>) {
        (self.descriptors.entries(), self.timeout.map(timespec_of))
    }

    fn woke(&mut self, ready: io::Result<usize>) -> io::Result<()> {
        if !std::mem::take(&mut self.asleep) {
            return Ok(());
        }
        let core = self.channel.device.core();
        unless_restarted(core.wake_up(&self.descriptors, waited(ready)).map(|_| ()))
    }
}

impl Drop for ChannelWait {
    fn drop(&mut self) {
        let core = self.channel.device.core();
        if self.asleep {
            core.cancel_sleep();
        }
        if !self.taken.is_empty() {
            let left = std::mem::take(&mut self.taken).into();
            self.channel.events.push_in_front(left);
        }
        if self.counted {
            core.stop_waiting();
        }
        self.channel
            .return_descriptors(std::mem::take(&mut self.descriptors));
    }
}

/// A wait for the asynchronous events of a device. A thread that runs the worker delivers them;
/// this one does not.
pub struct AsyncWait {
    device: Arc<Device>,
    descriptors: Descriptors,
    slept: bool,
}

impl AsyncWait {
    /// A wait that has not begun.
    pub fn new(device: &Arc<Device>) -> Self {
        let mut descriptors = Descriptors::default();
        descriptors.add(device.async_fd());
        AsyncWait {
            device: Arc::clone(device),
            descriptors,
            slept: false,
        }
    }
}

impl EventWait for AsyncWait {
    type Event = AsyncEvent;

    fn step(&mut self) -> io::Result<Option<AsyncEvent>> {
        let core = self.device.core();
        core.check_process()
            .map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
        let said_something = core.take_link_changes();
        if let Some((_, event)) = self.device.events.pop() {
            return Ok(Some(event));
        }
        if is_nonblocking(self.device.async_fd()) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // The kernel sometimes repeats a notification. A program that polled the descriptor first
        // expects an event, and this one does no harm.
        Ok((said_something && !self.slept).then_some(AsyncEvent::GidChange))
    }

    fn descriptors(&mut self) -> (&mut [libc::pollfd], Option<libc::timespec>) {
        (self.descriptors.entries(), None)
    }

    fn woke(&mut self, ready: io::Result<usize>) -> io::Result<()> {
        self.slept |= ready.is_ok();
        unless_restarted(ready.map(|_| ()))
    }
}

/// A wait for the events of a channel of connections. Threads that run the workers deliver them;
/// this one does not.
pub struct CmWait {
    channel: Arc<CmChannel>,
    descriptors: Descriptors,
    /// Whether this wait has slept, or is about to: the channel counts such waits.
    sleeps: bool,
}

impl CmWait {
    /// A wait that has not begun.
    pub fn new(channel: &Arc<CmChannel>) -> Self {
        let mut descriptors = Descriptors::default();
        descriptors.add(channel.fd());
        CmWait {
            channel: Arc::clone(channel),
            descriptors,
            sleeps: false,
        }
    }
}

impl Drop for CmWait {
    fn drop(&mut self) {
        if self.sleeps {
            self.channel.count_waits(-1);
        }
    }
}

impl EventWait for CmWait {
    type Event = (u64, CmNews);

    fn step(&mut self) -> io::Result<Option<(u64, CmNews)>> {
        if !self.channel.is_ours() {
            return Err(io::Error::from_raw_os_error(Error::Forked.errno()));
        }
        match self.channel.pop() {
            None if self.channel.is_nonblocking() => {
                Err(io::Error::from_raw_os_error(libc::EAGAIN))
            }
            event => Ok(event),
        }
    }

    fn descriptors(&mut self) -> (&mut [libc::pollfd], Option<libc::timespec>) {
        if !std::mem::replace(&mut self.sleeps, true) {
            self.channel.count_waits(1);
        }
        (self.descriptors.entries(), None)
    }

    fn woke(&mut self, ready: io::Result<usize>) -> io::Result<()> {
        unless_restarted(ready.map(|_| ()))
    }
}
