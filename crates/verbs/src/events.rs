//! Events that an application fetched, and has to acknowledge.

use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Events that the application got for an object, and those it acknowledged. Destroying the object
/// waits until they are equal (`ibv_get_cq_event(3)`, `ibv_get_async_event(3)`).
pub struct Events {
    books: Mutex<Books>,
    acknowledged: Condvar,
}

#[derive(Default)]
struct Books {
    /// Delivered minus acknowledged; wraps like the C counters would.
    outstanding: u32,
    /// Whether a thread waits until there are none: waking it is a system call, even if no thread
    /// is there.
    is_awaited: bool,
}

impl Default for Events {
    fn default() -> Self {
        Events {
            books: Mutex::new(Books::default()),
            acknowledged: Condvar::new(),
        }
    }
}

impl Events {
    /// The application is about to get one event.
    pub fn deliver(&self) {
        let mut books = self.lock();
        books.outstanding = books.outstanding.wrapping_add(1);
    }

    /// The application acknowledged `count` events; more than were delivered count as all.
    pub fn acknowledge(&self, count: u32) {
        let mut books = self.lock();
        books.outstanding = books.outstanding.saturating_sub(count);
        if books.is_awaited {
            self.acknowledged.notify_all();
        }
    }

    /// Blocks until every delivered event is acknowledged.
    pub fn wait_acknowledged(&self) {
        let mut books = self.lock();
        while books.outstanding != 0 {
            books.is_awaited = true;
            let waited = self.acknowledged.wait(books);
            books = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn destruction_waits_for_the_last_acknowledgement() {
        let events = Arc::new(Events::default());
        events.deliver();
        events.deliver();
        events.acknowledge(1);
        let waiter = std::thread::spawn({
            let events = Arc::clone(&events);
            move || events.wait_acknowledged()
        });
        assert!(!waiter.is_finished());
        events.acknowledge(1);
        waiter.join().unwrap();
    }

    #[test]
    fn too_many_acknowledgements_do_not_wrap() {
        let events = Events::default();
        events.deliver();
        events.acknowledge(5);
        events.wait_acknowledged();
    }
}
