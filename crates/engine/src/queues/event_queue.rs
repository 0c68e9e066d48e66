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
/// The descriptor is readable exactly while there are some: both change under the one lock. Only a
/// thread that is about to take one ([`EventQueue::expect`]) is not told by the descriptor, which
/// costs system calls. The lock is a leaf: no other is taken while it is held. In an [`Ending`], a
/// thread that finds it taken continues without the queue.
pub(crate) struct EventQueue<T> {
    descriptor: EventFd,
    waiting: Mutex<Waiting<T>>,
}

struct Waiting<T> {
    events: VecDeque<T>,
    /// Whether the descriptor is readable.
    readable: bool,
    /// Threads that are about to take an event.
    takers: u32,
}

/// Result of [withdrawing](EventQueue::withdraw) an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// There is none such.
    Absent,
    Removed,
    /// The only event stays.
    Kept,
}

/// A thread that takes the next event by [`Expected::take`], or leaves it to others when this is
/// dropped.
pub(crate) struct Expected<'a, T>(Option<&'a EventQueue<T>>);

impl<T> Expected<'_, T> {
    pub(crate) fn take(mut self) -> Option<T> {
        self.0.take()?.end_expecting(VecDeque::pop_front)
    }

    /// As [`Expected::take`], for a thread that handles all there are.
    pub(crate) fn take_all(mut self) -> VecDeque<T> {
        let take = |events: &mut VecDeque<T>| Some(std::mem::take(events));
        let all = self.0.take().map(|queue| queue.end_expecting(take));
        all.flatten().unwrap_or_default()
    }
}

impl<T> Drop for Expected<'_, T> {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.end_expecting(|_| None::<T>);
        }
    }
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
            waiting: Mutex::new(Waiting::new()),
        })
    }

    /// One whose descriptor no program sees.
    #[cfg(not(loom))]
    pub(crate) fn out_of_sight() -> io::Result<Self> {
        Ok(EventQueue {
            descriptor: EventFd::nonblocking()?,
            waiting: Mutex::new(Waiting::new()),
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
        self.change(|events| {
            if events.len() < WAITING_MAX {
                events.push_back(event);
            }
        });
    }

    /// Puts events, the oldest first, before those that wait already. They count as having waited
    /// all the time, so there is room.
    pub(crate) fn push_in_front(&self, events: Vec<T>) {
        self.change(|waiting| {
            for event in events.into_iter().rev() {
                waiting.push_front(event);
            }
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_none_or(|waiting| waiting.events.is_empty())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.change(VecDeque::pop_front)?
    }

    /// The calling thread takes the next event soon, if there is one by then: the descriptor need
    /// not tell it.
    pub(crate) fn expect(&self) -> Expected<'_, T> {
        let Some(mut waiting) = self.lock() else {
            return Expected(None);
        };
        waiting.takers += 1;
        Expected(Some(self))
    }

    fn end_expecting<R>(&self, take: impl FnOnce(&mut VecDeque<T>) -> Option<R>) -> Option<R> {
        let mut waiting = self.lock()?;
        waiting.takers -= 1;
        let taken = take(&mut waiting.events);
        self.show(&mut waiting);
        taken
    }

    /// Takes out the events that `keep` refuses: their object is gone.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        self.change(|events| events.retain(keep));
    }

    /// Takes out the oldest event that matches. With `keeps_last` the only event stays: a poll may
    /// have announced it, and a call that fetches it may block.
    pub(crate) fn withdraw(&self, keeps_last: bool, is_it: impl FnMut(&T) -> bool) -> Withdrawn {
        let withdrawn = self.change(|events| match events.iter().position(is_it) {
            None => Withdrawn::Absent,
            Some(_) if events.len() == 1 && keeps_last => Withdrawn::Kept,
            Some(at) => {
                events.remove(at);
                Withdrawn::Removed
            }
        });
        withdrawn.unwrap_or(Withdrawn::Absent)
    }

    /// Takes out the events that are wanted, the oldest first.
    pub(crate) fn extract(&self, mut is_wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let wanted = self.change(|events| {
            if !events.iter().any(&mut is_wanted) {
                return Vec::new();
            }
            let (out, rest) = events.drain(..).partition::<Vec<T>, _>(is_wanted);
            events.extend(rest);
            out
        });
        wanted.unwrap_or_default()
    }

    /// Changes the events, and the descriptor with them; `None` in an [`Ending`].
    fn change<R>(&self, change: impl FnOnce(&mut VecDeque<T>) -> R) -> Option<R> {
        let mut waiting = self.lock()?;
        let result = change(&mut waiting.events);
        self.show(&mut waiting);
        Some(result)
    }

    /// Makes the descriptor say whether there are events.
    fn show(&self, waiting: &mut Waiting<T>) {
        let has_events = !waiting.events.is_empty();
        let is_readable = has_events && (waiting.readable || waiting.takers == 0);
        if is_readable == waiting.readable {
            return;
        }
        waiting.readable = is_readable;
        if is_readable {
            self.descriptor.signal();
        } else {
            self.descriptor.clear();
        }
    }

    /// Whether the application set `O_NONBLOCK` on the descriptor.
    pub(crate) fn is_nonblocking(&self) -> bool {
        is_nonblocking(self.fd())
    }

    fn lock(&self) -> Option<MutexGuard<'_, Waiting<T>>> {
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

impl<T> Waiting<T> {
    fn new() -> Self {
        Waiting {
            events: VecDeque::new(),
            readable: false,
            takers: 0,
        }
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
    fn an_event_that_is_expected_is_not_shown_unless_it_is_left() {
        let queue = EventQueue::new().unwrap();
        let expected = queue.expect();
        queue.push(1);
        assert!(!readable(&queue));
        assert_eq!(expected.take(), Some(1));
        assert!(!readable(&queue));
        let expected = queue.expect();
        queue.push(2);
        queue.push(3);
        assert_eq!(expected.take(), Some(2));
        assert!(readable(&queue), "one for others");
        assert_eq!(queue.pop(), Some(3));
        let expected = queue.expect();
        queue.push(4);
        drop(expected);
        assert!(readable(&queue));
        // What was shown stays so.
        let expected = queue.expect();
        queue.push(5);
        assert!(readable(&queue));
        assert_eq!(expected.take(), Some(4));
        assert!(readable(&queue));
    }

    #[test]
    fn events_that_are_all_expected_are_not_shown() {
        let queue = EventQueue::new().unwrap();
        let expected = queue.expect();
        queue.push(1);
        queue.push(2);
        assert_eq!(expected.take_all(), [1, 2]);
        assert!(!readable(&queue));
        assert_eq!(queue.expect().take_all(), []);
        queue.push(3);
        assert!(readable(&queue), "of a later time");
        assert_eq!(queue.expect().take_all(), [3]);
        assert!(!readable(&queue));
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
        assert_eq!(queue.withdraw(true, |_| true), Withdrawn::Absent);
        queue.push(1);
        queue.push(2);
        for (wanted, withdrawn) in [
            (3, Withdrawn::Absent),
            (1, Withdrawn::Removed),
            (2, Withdrawn::Kept),
        ] {
            assert_eq!(queue.withdraw(true, |&event| event == wanted), withdrawn);
        }
        assert!(readable(&queue));
        assert_eq!(
            queue.withdraw(false, |&event| event == 2),
            Withdrawn::Removed
        );
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
