//! Wakers for programs that wait for several things.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;

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
