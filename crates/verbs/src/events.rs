//! Events that an application fetched, and has to acknowledge.

use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Events that the application got for an object, and those it acknowledged. Destroying the object
/// waits until they are equal (`ibv_get_cq_event(3)`, `ibv_get_async_event(3)`).
pub struct Events {
    /// Delivered minus acknowledged; wraps like the C counters would.
    outstanding: Mutex<u32>,
    acknowledged: Condvar,
}

impl Default for Events {
    fn default() -> Self {
        Events {
            outstanding: Mutex::new(0),
            acknowledged: Condvar::new(),
        }
    }
}

impl Events {
    /// The application is about to get one event.
    pub fn deliver(&self) {
        let mut outstanding = self.lock();
        *outstanding = outstanding.wrapping_add(1);
    }

    /// The application acknowledged `count` events; more than were delivered count as all.
    pub fn acknowledge(&self, count: u32) {
        let mut outstanding = self.lock();
        *outstanding = outstanding.saturating_sub(count);
        self.acknowledged.notify_all();
    }

    /// Blocks until every delivered event is acknowledged.
    pub fn wait_acknowledged(&self) {
        let mut outstanding = self.lock();
        while *outstanding != 0 {
            outstanding = self
                .acknowledged
                .wait(outstanding)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
