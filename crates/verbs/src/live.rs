//! The C objects that may still get events.
//!
//! The engine's events carry a number, not a pointer: an object may be destroyed by another thread
//! between the moment the engine hands an event out and its delivery. A number is looked up and the
//! event counted under one lock; destroying the object removes the number first, and then waits for
//! the acknowledgement of every event that was counted. Numbers are never reused.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use crate::events::Events;
use crate::sync::{Arc, AtomicU64, MutexGuard, Ordering, PerProcess, shared};

/// Events of one object that the application fetched and has to acknowledge.
#[derive(Default)]
pub struct Affiliated {
    /// Through a completion channel.
    pub completion: Events,
    /// Asynchronous ones.
    pub asynchronous: Events,
}

impl Affiliated {
    /// Blocks until all are acknowledged.
    pub fn wait_acknowledged(&self) {
        self.completion.wait_acknowledged();
        self.asynchronous.wait_acknowledged();
    }
}

struct Live {
    object: NonNull<u8>,
    events: Arc<Affiliated>,
}

// SAFETY: the pointer is handed to C only, and never followed here.
unsafe impl Send for Live {}

shared!(LIVE: PerProcess<BTreeMap<u64, Live>> = PerProcess::new());
shared!(NEXT: AtomicU64 = AtomicU64::new(1));

fn live() -> MutexGuard<'static, BTreeMap<u64, Live>> {
    LIVE.lock()
}

/// A number for an object about to be created.
pub fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// From now on events with this number belong to `object`.
pub fn enter<T>(number: u64, object: NonNull<T>, events: &Arc<Affiliated>) {
    let entry = Live {
        object: object.cast(),
        events: Arc::clone(events),
    };
    live().insert(number, entry);
}

/// Events with the number `other` belong to the same object from now on.
pub fn alias(other: u64, number: u64) {
    let mut live = live();
    if let Some(entry) = live.get(&number) {
        let entry = Live {
            object: entry.object,
            events: Arc::clone(&entry.events),
        };
        live.insert(other, entry);
    }
}

/// Events with this number no longer have an object.
pub fn leave(number: u64) {
    live().remove(&number);
}

/// The same for an object that is being destroyed: blocks until the events that it got are
/// acknowledged (`ibv_destroy_cq(3)`, `ibv_destroy_qp(3)`, `ibv_get_async_event(3)`). A thread
/// that got one may use the object until then.
pub fn retire(number: u64, events: &Affiliated) {
    leave(number);
    events.wait_acknowledged();
}

/// The object that an event belongs to, the event counted by `count`; `None` if it is gone.
pub fn deliver<T>(number: u64, count: impl FnOnce(&Affiliated)) -> Option<NonNull<T>> {
    let live = live();
    let entry = live.get(&number)?;
    count(&entry.events);
    Some(entry.object.cast())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_event_finds_its_object_until_that_leaves() {
        let mut object = 5u32;
        let pointer = NonNull::from(&mut object);
        let events = Arc::new(Affiliated::default());
        let key = number();
        enter(key, pointer, &events);
        assert_eq!(
            deliver::<u32>(key, |events| events.completion.deliver()),
            Some(pointer)
        );
        leave(key);
        assert_eq!(deliver::<u32>(key, |_| panic!("nobody is there")), None);
        events.completion.acknowledge(1);
        events.wait_acknowledged();
    }

    #[test]
    fn numbers_are_not_used_twice() {
        assert_ne!(number(), number());
    }
}
