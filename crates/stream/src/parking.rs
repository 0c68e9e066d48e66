//! Lets a thread wait for operations: it parks, and each of them wakes it.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker that unparks the calling thread, for programs that wait for several things.
pub fn waker() -> Waker {
    Arc::new(Parked(std::thread::current())).into()
}

/// Calls `look` until it finds something, and sleeps in between; `None` after `limit`.
pub(crate) fn wait<T, E>(
    limit: Duration,
    mut look: impl FnMut(&Waker) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let waker = waker();
    let deadline = Instant::now().checked_add(limit);
    loop {
        if let Some(found) = look(&waker)? {
            return Ok(Some(found));
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return Ok(None),
            Some(left) => std::thread::park_timeout(left),
            None => std::thread::park(),
        }
    }
}
