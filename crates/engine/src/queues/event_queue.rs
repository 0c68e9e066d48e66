//! A queue of events behind a real descriptor: `poll(2)`, `epoll(7)` and `O_NONBLOCK` work on it.

use crate::progress::eventfd::EventFd;
use crate::sync::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::TryLockError;

/// Events that wait for the application.
///
/// The descriptor is readable exactly while there are some: both change under the one lock. The
/// lock is a leaf: no other is taken while it is held. In an [`Ending`], a thread that finds it
/// taken continues without the queue.
pub(crate) struct EventQueue<T> {
    descriptor: EventFd,
    waiting: Mutex<VecDeque<T>>,
}

/// While it lives, the calling thread does not wait for locks of queues.
///
/// The thread ends the process, perhaps from a signal handler that interrupted it while it held
/// one; no events are fetched any more.
pub(crate) struct Ending(());

thread_local! {
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
}

impl Ending {
    pub(crate) fn begin() -> Self {
        IS_ENDING.set(true);
        Ending(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        IS_ENDING.set(false);
    }
}

/// Events kept for an application that fetches none; later ones are dropped.
const WAITING_MAX: usize = 1 << 16;

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        // The descriptor blocks, as the application expects of a fresh one; our own reads never do.
        Ok(EventQueue {
            descriptor: EventFd::blocking()?,
            waiting: Mutex::new(VecDeque::new()),
        })
    }

    /// One whose descriptor no program sees.
    #[cfg(not(loom))]
    pub(crate) fn out_of_sight() -> io::Result<Self> {
        Ok(EventQueue {
            descriptor: EventFd::nonblocking()?,
            waiting: Mutex::new(VecDeque::new()),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.descriptor.fd()
    }

    #[cfg(loom)]
    pub(crate) fn descriptor(&self) -> &EventFd {
        &self.descriptor
    }

    pub(crate) fn push(&self, event: T) {
        let Some(mut waiting) = self.lock() else {
            return;
        };
        if waiting.len() == WAITING_MAX {
            return;
        }
        waiting.push_back(event);
        if waiting.len() == 1 {
            self.descriptor.signal();
        }
    }

    /// Puts events, the oldest first, before those that wait already. They count as having waited
    /// all the time, so there is room.
    pub(crate) fn push_in_front(&self, events: Vec<T>) {
        let Some(mut waiting) = self.lock() else {
            return;
        };
        let was_empty = waiting.is_empty();
        for event in events.into_iter().rev() {
            waiting.push_front(event);
        }
        if was_empty && !waiting.is_empty() {
            self.descriptor.signal();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_none_or(|waiting| waiting.is_empty())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut waiting = self.lock()?;
        let event = waiting.pop_front()?;
        if waiting.is_empty() {
            self.descriptor.clear();
        }
        Some(event)
    }

    /// Takes out the events that `keep` refuses: their object is gone.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let Some(mut waiting) = self.lock().filter(|waiting| !waiting.is_empty()) else {
            return;
        };
        waiting.retain(keep);
        if waiting.is_empty() {
            self.descriptor.clear();
        }
    }

    /// Takes out the oldest event that matches, and returns whether there is one. With `keeps_last`
    /// the only event stays: a poll may have announced it, and a call that fetches it may block.
    pub(crate) fn withdraw(&self, keeps_last: bool, is_it: impl FnMut(&T) -> bool) -> bool {
        let Some(mut waiting) = self.lock() else {
            return false;
        };
        let Some(at) = waiting.iter().position(is_it) else {
            return false;
        };
        if waiting.len() > 1 || !keeps_last {
            waiting.remove(at);
        }
        if waiting.is_empty() {
            self.descriptor.clear();
        }
        true
    }

    /// Takes out the events that are wanted, the oldest first.
    pub(crate) fn extract(&self, mut is_wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let Some(mut waiting) = self.lock() else {
            return Vec::new();
        };
        if !waiting.iter().any(&mut is_wanted) {
            return Vec::new();
        }
        let (out, rest) = waiting.drain(..).partition::<Vec<T>, _>(is_wanted);
        waiting.extend(rest);
        if waiting.is_empty() {
            self.descriptor.clear();
        }
        out
    }

    /// Whether the application set `O_NONBLOCK` on the descriptor.
    pub(crate) fn is_nonblocking(&self) -> bool {
        is_nonblocking(self.fd())
    }

    fn lock(&self) -> Option<MutexGuard<'_, VecDeque<T>>> {
        let waiting = if IS_ENDING.get() {
            self.waiting.try_lock()
        } else {
            self.waiting.lock().map_err(TryLockError::from)
        };
        match waiting {
            Ok(waiting) => Some(waiting),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// As in the middle of a call.
    #[cfg(test)]
    pub(crate) fn interrupted(&self) -> impl Sized + '_ {
        self.lock()
    }
}

/// Whether the application set `O_NONBLOCK` on a descriptor of ours.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: F_GETFL takes no pointer; the descriptor is ours and open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::progress::wait::{Descriptors, Waited};
    use std::time::Duration;

    fn readable(queue: &EventQueue<u32>) -> bool {
        let mut descriptors = Descriptors::default();
        descriptors.add(queue.fd());
        matches!(
            descriptors.wait(Some(Duration::ZERO)).unwrap(),
            Waited::Ready
        )
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let queue = EventQueue::new().unwrap();
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue));
        assert_eq!(queue.pop(), Some(1));
        assert!(readable(&queue));
        assert_eq!(queue.pop(), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn events_of_a_dead_object_vanish_with_the_readiness() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        queue.push(2);
        queue.retain(|&event| event != 1);
        assert!(readable(&queue));
        queue.retain(|&event| event != 2);
        assert!(!readable(&queue));
    }

    #[test]
    fn events_that_are_taken_out_keep_their_order() {
        let queue = EventQueue::new().unwrap();
        for event in 1..=4 {
            queue.push(event);
        }
        assert_eq!(queue.extract(|event| event % 2 == 0), [2, 4]);
        assert!(readable(&queue));
        assert_eq!(queue.extract(|event| event % 2 == 1), [1, 3]);
        assert!(!readable(&queue));
    }

    #[test]
    fn what_a_poll_has_announced_is_there() {
        let queue = EventQueue::new().unwrap();
        assert!(!queue.withdraw(true, |_| true));
        queue.push(1);
        queue.push(2);
        assert!(!queue.withdraw(true, |&event| event == 3));
        assert!(queue.withdraw(true, |&event| event == 1));
        assert!(queue.withdraw(true, |&event| event == 2));
        assert!(readable(&queue));
        assert!(queue.withdraw(false, |&event| event == 2));
        assert!(!readable(&queue));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn events_that_waited_elsewhere_come_first_in_their_order() {
        let queue = EventQueue::new().unwrap();
        queue.push_in_front(vec![]);
        assert!(!readable(&queue));
        queue.push_in_front(vec![3, 4]);
        assert!(readable(&queue));
        queue.push(5);
        queue.push_in_front(vec![1, 2]);
        assert_eq!(queue.extract(|_| true), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_program_that_reads_the_descriptor_itself_causes_no_hang() {
        let queue = EventQueue::new().unwrap();
        queue.push(7);
        let mut count = 0u64;
        // SAFETY: eight bytes at `count` may be written.
        let got = unsafe { libc::read(queue.fd(), (&raw mut count).cast(), 8) };
        assert_eq!(got, 8);
        assert_eq!(queue.pop(), Some(7));
    }
}
