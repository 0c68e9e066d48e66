//! One thread that waits for many things: it parks, and whoever has something for it wakes it.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Nobody parks longer, so that a [`Cancel`](crate::Cancel), which wakes nobody, is seen.
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

/// What wakes the thread that calls this.
pub(crate) fn waker() -> Waker {
    Arc::new(Parked(std::thread::current())).into()
}

/// Sleeps until somebody wakes this thread, but not beyond `until`, and not long.
pub(crate) fn park(until: Option<Instant>) {
    let limit = until.map_or(LONGEST, |until| {
        until.saturating_duration_since(Instant::now()).min(LONGEST)
    });
    std::thread::park_timeout(limit);
}
