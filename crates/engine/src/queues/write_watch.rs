//! Count of the WRITEs that a peer has placed through a queue pair, and whether a thread awaits the
//! next one.
//!
//! A WRITE completes nothing at its target. A program that waits for one declares it, arms its
//! completion queue, and reads the count; the worker counts, and then reads whether that is
//! awaited. With a SeqCst fence between on both sides, one of them sees the other. The worker pays
//! the fence for queue pairs with which a program has waited once.

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

pub(crate) struct WriteWatch {
    /// A program waits for WRITEs now and then. Set under the worker's lock, so that all later
    /// rounds see it.
    is_watched: AtomicBool,
    is_awaited: AtomicBool,
    /// Number of WRITEs that are placed.
    placed: AtomicU64,
}

impl WriteWatch {
    pub(crate) fn new() -> Self {
        WriteWatch {
            is_watched: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            placed: AtomicU64::new(0),
        }
    }

    /// Number of WRITEs that are placed. What they placed is visible to the caller.
    #[inline]
    pub(crate) fn placed(&self) -> u64 {
        self.placed.load(Ordering::Acquire)
    }

    /// Whether [`WriteWatch::watch`] was called.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Acquire)
    }

    /// Declares, on the worker, that threads will wait for WRITEs.
    pub(crate) fn watch(&self) {
        self.is_watched.store(true, Ordering::Release);
    }

    /// Declares that a thread waits for a WRITE, once WRITEs are watched. It reads the number
    /// afterwards.
    pub(crate) fn wait(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
        // Pairs with the fence in `count`.
        fence(Ordering::SeqCst);
    }

    /// No thread waits any more.
    pub(crate) fn leave(&self) {
        self.is_awaited.store(false, Ordering::Relaxed);
    }

    /// Counts a WRITE that is placed, on the worker. Returns whether a thread waits for it.
    #[inline]
    pub(crate) fn count(&self) -> bool {
        let placed = self.placed.load(Ordering::Relaxed) + 1;
        self.placed.store(placed, Ordering::Release);
        if !self.is_watched.load(Ordering::Relaxed) {
            return false;
        }
        // Pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        self.is_awaited.load(Ordering::Relaxed)
    }
}
