//! Threads that sleep until the port, a timer, a doorbell or a descriptor of their own has work.

use super::Core;
use crate::progress::progress_thread::standby::Watch;
use crate::progress::wait::{Descriptors, Waited};
use crate::progress::worker_lock::{NEVER, ROOM_ANYWHERE};
use crate::worker::Worker;
use airdma_preload::Uncancelled;
use std::io;
use std::os::fd::RawFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Core {
    /// Whether a thread sleeps until there is work. If none does, a thread that is about to sleep
    /// will see what was done before this call.
    pub(crate) fn has_sleepers(&self) -> bool {
        // A daemon sleeps when it likes.
        self.worker_lock.has_sleepers() || self.remote.is_some()
    }

    /// Sleeps until the port has something, a timer is due, a doorbell rings, `also` is readable,
    /// `at_most` has passed, or, if no timer runs, `limit`. Does not sleep if there is work
    /// already. Returns whether `also` is readable.
    ///
    /// # Errors
    /// `EINTR`.
    pub(crate) fn sleep_within(
        &self,
        limit: Duration,
        at_most: Option<Duration>,
        descriptors: &mut Descriptors,
        also: RawFd,
    ) -> io::Result<bool> {
        match self.fall_asleep(descriptors, also, at_most) {
            Some(timeout) => {
                let waited = descriptors.wait(timeout.or(Some(limit)));
                self.wake_up(descriptors, waited)
            }
            None => Ok(false),
        }
    }

    /// The first half of [`Core::sleep_within`]: names the descriptors to sleep on, and the time
    /// after which to wake (`None`: never). The caller must call [`Core::wake_up`] or
    /// [`Core::cancel_sleep`] afterwards. `None` if there is something to do.
    pub(crate) fn fall_asleep(
        &self,
        descriptors: &mut Descriptors,
        also: RawFd,
        at_most: Option<Duration>,
    ) -> Option<Option<Duration>> {
        let now = || self.now().as_nanos();
        let at_most = at_most.map_or(NEVER, |time| (self.now() + time).as_nanos());
        let is_rung = || !self.doorbells.is_empty();
        let due = self.worker_lock.fall_asleep(is_rung, now, at_most)?;
        self.list(descriptors, also);
        self.will_sleep();
        let timeout = (due != NEVER).then(|| Duration::from_nanos(due.saturating_sub(now())));
        Some(timeout)
    }

    /// The second half of [`Core::sleep_within`].
    pub(crate) fn wake_up(
        &self,
        descriptors: &Descriptors,
        waited: io::Result<Waited>,
    ) -> io::Result<bool> {
        let ready = waited.map(|waited| waited == Waited::Ready);
        let called = matches!(ready, Ok(true)) && descriptors.is_ready(0);
        self.woke();
        self.worker_lock.wake_up(called);
        Ok(ready? && descriptors.is_ready(1))
    }

    /// A thread is about to sleep on the port's descriptors. [`Core::woke`] must follow.
    pub(crate) fn will_sleep(&self) {
        if let Some(bell) = &self.bell {
            // It may write to an eventfd, which is a cancellation point.
            let _whole = Uncancelled::new();
            bell.will_sleep();
        }
        if let Some(remote) = &self.remote {
            remote.will_sleep();
        }
    }

    /// It sleeps no more.
    pub(crate) fn woke(&self) {
        if let Some(bell) = &self.bell {
            bell.woke();
        }
        if let Some(remote) = &self.remote {
            remote.woke();
        }
    }

    /// A thread sleeps no more.
    pub(crate) fn cancel_sleep(&self) {
        self.woke();
        self.worker_lock.cancel_sleep();
    }

    /// A thread that was blocked on a completion channel, and ran the worker, leaves.
    pub(crate) fn stop_waiting(&self) {
        self.progress_thread
            .standby
            .leave(&self.worker_lock, &self.progress_thread.wake);
    }

    /// The progress thread stands by while there are such threads.
    pub(crate) fn stand_by(&self, watch: &mut impl Watch) {
        self.progress_thread
            .standby
            .stand_by(&self.worker_lock, watch);
    }

    /// What a sleeper sleeps on: `wake`, `also`, and the port's.
    fn list(&self, descriptors: &mut Descriptors, also: RawFd) {
        let unsent = self.worker_lock.unsent();
        descriptors.clear();
        descriptors.add(self.worker_lock.wake().fd());
        descriptors.add(also);
        if self.is_broken() {
            return;
        }
        let port = self
            .descriptors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for &fd in port.iter() {
            if unsent == fd || unsent == ROOM_ANYWHERE {
                descriptors.add_writable(fd);
            } else {
                descriptors.add(fd);
            }
        }
    }

    pub(super) fn note_descriptors(&self, worker: &Worker) {
        let mut descriptors = self
            .descriptors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        descriptors.clear();
        worker.descriptors(&mut descriptors);
        drop(descriptors);
        self.sockets.fetch_add(1, Ordering::Relaxed);
        // It may stand by, and sleep on the former descriptors.
        if self.progress_thread.is_started() {
            self.progress_thread.wake();
        }
    }

    /// Calls `add` with each of the port's descriptors, if they are others than when this was
    /// `seen`.
    pub(crate) fn list_sockets(&self, seen: &mut u64, add: impl FnMut(RawFd)) {
        let sockets = self.sockets.load(Ordering::Relaxed);
        if std::mem::replace(seen, sockets) != sockets {
            let descriptors = self
                .descriptors
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            descriptors.iter().copied().for_each(add);
        }
    }

    /// Adds the port's descriptors to those of the progress thread, as [`Core::list_sockets`] does.
    pub(super) fn list_packets(&self, seen: &mut u64) {
        let packets = &self.progress_thread.packets;
        // One that is there already is there.
        self.list_sockets(seen, |fd| drop(packets.add(fd)));
    }
}
