//! Threads that are blocked on a completion channel run the worker meanwhile, and the helper thread stands by until the last of
//! them leaves.

use crate::eventfd::EventFd;
use crate::relay::Relay;
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};

pub(crate) struct Standby {
    /// Blocked threads.
    waiters: AtomicU32,
    /// The helper sleeps until there are none.
    standing_by: AtomicBool,
}

impl Standby {
    pub(crate) fn new() -> Self {
        Standby {
            waiters: AtomicU32::new(0),
            standing_by: AtomicBool::new(false),
        }
    }

    /// A thread is going to run the worker until it leaves.
    pub(crate) fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    /// It leaves: the others, or the helper, which `helper` wakes, go on.
    pub(crate) fn leave<W>(&self, relay: &Relay<W>, helper: &EventFd) {
        let is_last = self.waiters.fetch_sub(1, Ordering::Relaxed) == 1;
        // What woke us may have been meant for all of us: the others look for themselves. The helper may be one of them. The fence
        // in here pairs with the one in `stand_by`, too.
        if relay.has_sleepers() {
            relay.wake_sleepers();
        }
        if is_last && self.standing_by.load(Ordering::Relaxed) {
            helper.signal();
        }
    }

    /// Whether there are any.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// The helper sleeps with `nap`, which a signal ends, unless the last of them has left.
    pub(crate) fn stand_by<W>(&self, relay: &Relay<W>, nap: impl FnOnce()) {
        self.standing_by.store(true, Ordering::Relaxed);
        // Pairs with the fence of `leave`: who leaves sees the flag, or is seen here.
        fence(Ordering::SeqCst);
        if self.has_waiters() {
            // What woke the helper may have been meant for them.
            if relay.has_sleepers() {
                relay.wake_sleepers();
            }
            nap();
        }
        self.standing_by.store(false, Ordering::Relaxed);
    }
}
