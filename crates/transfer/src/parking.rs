//! Lets one thread wait for many sources: it parks, and each source wakes it.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Longest sleep, so that a [`Cancel`](crate::Cancel), which wakes no thread, is noticed.
const LONGEST: Duration = Duration::from_millis(100);

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker for the calling thread.
pub(crate) fn waker() -> Waker {
    Arc::new(Parked(std::thread::current())).into()
}

/// Sleeps until this thread is woken, or until `until`, but never long.
pub(crate) fn park(until: Option<Instant>) {
    let limit = until.map_or(LONGEST, |until| {
        until.saturating_duration_since(Instant::now()).min(LONGEST)
    });
    std::thread::park_timeout(limit);
}
