//! Requests of an event loop gather until it runs the device again.
//!
//! Its completion queues are armed while it handles what came, so each of its replies would leave
//! at once, alone, and wake the peer for itself. But such a thread comes back, as one does that
//! polls: the replies of one pass of the loop leave together, before the thread waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use airdma_transport::Time;

/// How long requests gather while others are posted. A loop that has much to do between two waits
/// would let its peers stand idle. One that stays away is helped by the progress thread.
const GATHER_TIME: Duration = Duration::from_micros(100);

/// Whether requests of a device gather, and since when.
pub(crate) struct Gathering {
    /// The thread that last waited for events is an event loop.
    by_event_loop: AtomicBool,
    /// Its waits so far. Not those of [`crate::core::Core::polls`].
    waits: AtomicU64,
    /// When a request last left at once, in nanoseconds.
    left_at: AtomicU64,
}

impl Gathering {
    pub(crate) fn new() -> Self {
        Gathering {
            by_event_loop: AtomicBool::new(false),
            waits: AtomicU64::new(1 << 63),
            left_at: AtomicU64::new(0),
        }
    }

    /// A thread begins to wait for events: an event loop, which runs the device again after it has
    /// handled some, or another, which may sleep elsewhere.
    pub(crate) fn note_wait(&self, by_event_loop: bool) {
        if by_event_loop {
            let waits = self.waits.load(Ordering::Relaxed);
            self.waits.store(waits.wrapping_add(1), Ordering::Relaxed);
        }
        self.by_event_loop.store(by_event_loop, Ordering::Relaxed);
    }

    /// Whether the thread that last waited for events is an event loop.
    fn by_event_loop(&self) -> bool {
        self.by_event_loop.load(Ordering::Relaxed)
    }

    /// The count whose rise lets a request leave at once: that of `polls`, or, if an event was
    /// asked for, of the waits of an event loop, which may poll for each connection in between.
    pub(crate) fn turns<'a>(&'a self, awaits_event: bool, polls: &'a AtomicU64) -> &'a AtomicU64 {
        if awaits_event && self.by_event_loop() {
            &self.waits
        } else {
            polls
        }
    }

    /// Whether a request, of which an event was asked for, may wait for the event loop.
    pub(crate) fn keeps(&self, now: impl FnOnce() -> Time) -> bool {
        if !self.by_event_loop() {
            return false;
        }
        let left_at = Time::from_nanos(self.left_at.load(Ordering::Relaxed));
        now().duration_since(left_at) < GATHER_TIME
    }

    /// A request leaves at once.
    pub(crate) fn note_leaving(&self, now: impl FnOnce() -> Time) {
        if self.by_event_loop() {
            self.left_at.store(now().as_nanos(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_an_event_loop_gather_for_a_while() {
        let at = |micros: u64| move || Time::from_nanos(micros * 1000);
        let gathering = Gathering::new();
        gathering.note_leaving(at(1000));
        assert!(!gathering.keeps(at(1001)), "there is no event loop");
        gathering.note_wait(true);
        assert!(!gathering.keeps(at(1001)), "none has left");
        gathering.note_leaving(at(1001));
        assert!(gathering.keeps(at(1002)));
        assert!(gathering.keeps(at(1100)));
        assert!(!gathering.keeps(at(1101)));
        gathering.note_wait(false);
        assert!(
            !gathering.keeps(at(1002)),
            "the next wait is another thread's"
        );
    }
}
