//! The state of a queue pair, as published to the threads that post to it.

use crate::QpState;
use crate::sync::{AtomicU8, Ordering, fence};

/// Value of a destroyed queue pair: larger than any [`QpState`].
const GONE: u8 = u8::MAX;

/// A state that the worker publishes and any thread reads.
pub(crate) struct PublishedState(AtomicU8);

impl PublishedState {
    pub(crate) fn new(state: QpState) -> Self {
        PublishedState(AtomicU8::new(state as u8))
    }

    /// The state last published; `None` once the queue pair is destroyed.
    #[inline]
    pub(crate) fn get(&self) -> Option<QpState> {
        QpState::from_number(self.0.load(Ordering::Acquire).into())
    }

    /// Publishes `state`, unless the queue pair is destroyed. Returns whether the state changed: a
    /// worker that publishes ERROR must search for posted receives afterwards.
    pub(crate) fn set(&self, state: QpState) -> bool {
        // A plain load first: this runs once per packet, and a write would take the line from the
        // poster.
        let before = self.0.load(Ordering::Relaxed);
        if before == state as u8 || before == GONE {
            return false;
        }
        // Another thread may be destroying the queue pair.
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        let exchanged = self
            .0
            .compare_exchange(before, state as u8, success, failure);
        // Pairs with the fence in `is_error_after_post`: either the poster of a receive sees the
        // state, and rings the doorbell, or the receive is seen by us.
        fence(Ordering::SeqCst);
        exchanged.is_ok()
    }

    /// Publishes that the queue pair is destroyed.
    pub(crate) fn set_gone(&self) {
        self.0.swap(GONE, Ordering::SeqCst);
    }

    /// Whether the worker must be notified of a receive posted before this call, to flush it. In
    /// any other state the worker takes receives when packets arrive.
    pub(crate) fn is_error_after_post(&self) -> bool {
        // Pairs with the fence in `set`.
        fence(Ordering::SeqCst);
        self.get() == Some(QpState::Error)
    }
}
