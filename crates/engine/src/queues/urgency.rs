//! Whether what was posted has to leave at once, or may wait for others to join it.

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Urgency of the requests of one queue pair.
pub(crate) struct Urgency {
    /// Whether packets are in flight (RC): their answer will make a thread run the worker.
    busy: AtomicBool,
    /// What the count of polls was at the last post of a datagram.
    posted_at: AtomicU64,
}

impl Urgency {
    pub(crate) fn new() -> Self {
        Urgency {
            busy: AtomicBool::new(false),
            posted_at: AtomicU64::new(u64::MAX),
        }
    }

    /// Called by the worker with whether packets are in flight, before the fence after its round.
    pub(crate) fn set_busy(&self, busy: bool) {
        // A plain load first: this runs once per packet, and a write would take the line from the
        // poster.
        if self.busy.load(Ordering::Relaxed) != busy {
            self.busy.store(busy, Ordering::Relaxed);
        }
    }

    /// A request whose answer is waited for was posted, and the doorbell rung: whether its poster
    /// has to run the worker.
    ///
    /// The first request after a poll leaves at once, and those of other queue pairs wait, as by
    /// [`Urgency::of_datagram`]; `posted_at` is the device's. `may_sleep` tells whether a thread
    /// sleeps, or may without a further poll.
    pub(crate) fn of_request(
        &self,
        posted_at: &AtomicU64,
        polls: &AtomicU64,
        may_sleep: impl FnOnce() -> bool,
    ) -> bool {
        // Pairs with the fence after a round: either we see `busy` as that round left it, or it
        // sees the doorbell.
        fence(Ordering::SeqCst);
        if self.busy.load(Ordering::Relaxed) {
            return false;
        }
        let polls = polls.load(Ordering::Relaxed);
        // Two threads may both be the first, which does no harm.
        if posted_at.load(Ordering::Relaxed) != polls {
            posted_at.store(polls, Ordering::Relaxed);
            return true;
        }
        may_sleep()
    }

    /// As [`Urgency::of_request`] for datagrams, which have no answer.
    ///
    /// The first after a poll leaves at once, and the others wait for the next poll, unless a
    /// thread sleeps, which would not notice them.
    pub(crate) fn of_datagram(
        &self,
        polls: &AtomicU64,
        has_sleepers: impl FnOnce() -> bool,
    ) -> bool {
        // As above: either we see the poll, or that sees the doorbell.
        fence(Ordering::SeqCst);
        let polls = polls.load(Ordering::Relaxed);
        self.posted_at.swap(polls, Ordering::Relaxed) != polls || has_sleepers()
    }
}
