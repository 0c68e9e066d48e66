//! What threads share in the C ABI, under loom: every interleaving, and every value the memory
//! model lets a load return. The modules are the crate's own files.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p airdma-verbs --release --test loom`
#![cfg(loom)]
#![allow(
    dead_code,
    missing_docs,
    clippy::new_without_default,
    clippy::unwrap_used
)]

#[path = "../src/events.rs"]
mod events;
#[path = "../src/live.rs"]
mod live;
#[path = "../../preload/src/per_process.rs"]
mod per_process;
#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/turn.rs"]
mod turn;

use events::Events;
use live::Affiliated;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;
use std::ptr::NonNull;
use turn::Turn;

/// The preload's `Process`: each model is about one.
mod process {
    pub struct Process;

    impl Process {
        pub fn current() -> Self {
            Process
        }

        pub fn is_current(&self) -> bool {
            true
        }
    }
}

/// A value that loom watches: a use that is not ordered after another's is reported.
struct Watched(UnsafeCell<u32>);

// SAFETY: loom watches it.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Default for Watched {
    fn default() -> Self {
        Watched(UnsafeCell::new(0))
    }
}

impl Watched {
    fn read(&self) -> u32 {
        // SAFETY: loom checks that no thread writes to it meanwhile.
        self.0.with(|value| unsafe { *value })
    }

    fn add(&self, more: u32) {
        // SAFETY: loom checks that no other thread uses it meanwhile.
        self.0.with_mut(|value| unsafe { *value += more });
    }
}

#[test]
fn an_object_goes_when_all_its_events_are_acknowledged() {
    loom::model(|| {
        let shared = Arc::new((Events::default(), AtomicU32::new(0)));
        shared.0.deliver();
        shared.0.deliver();
        let threads = [1, 2].map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // The last use of the object.
                shared.1.fetch_add(1, Ordering::Relaxed);
                shared.0.acknowledge(1);
            })
        });
        shared.0.wait_acknowledged();
        assert_eq!(
            shared.1.load(Ordering::Relaxed),
            2,
            "destroyed under its users"
        );
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn two_who_wait_are_both_let_go() {
    loom::model(|| {
        let events = Arc::new(Events::default());
        events.deliver();
        let other = Arc::clone(&events);
        let other = thread::spawn(move || other.wait_acknowledged());
        let acknowledger = Arc::clone(&events);
        let acknowledger = thread::spawn(move || acknowledger.acknowledge(1));
        events.wait_acknowledged();
        other.join().unwrap();
        acknowledger.join().unwrap();
    });
}

/// Two threads fetch events of an object that a third one destroys: who gets one may use the object
/// until it acknowledges.
#[test]
fn an_event_finds_its_object_alive_or_not_at_all() {
    loom::model(|| {
        let object = Arc::new(Watched::default());
        let events = Arc::new(Affiliated::default());
        let number = live::number();
        live::enter(number, NonNull::from(&*object), &events);
        let fetchers = [1, 2].map(|_| {
            let (object, events) = (Arc::clone(&object), Arc::clone(&events));
            thread::spawn(move || {
                let count = |events: &Affiliated| events.completion.deliver();
                if let Some(found) = live::deliver::<Watched>(number, count) {
                    assert_eq!(found, NonNull::from(&*object));
                    object.read();
                    events.completion.acknowledge(1);
                }
            })
        });
        live::retire(number, &events);
        object.add(1);
        for fetcher in fetchers {
            fetcher.join().unwrap();
        }
    });
}

/// An identifier listens under a number that is made while events of it are handed out.
#[test]
fn another_number_of_an_object_waits_for_its_events_as_well() {
    loom::model(|| {
        let object = Arc::new(Watched::default());
        let events = Arc::new(Affiliated::default());
        let (number, other) = (live::number(), live::number());
        assert_ne!(number, other);
        live::enter(number, NonNull::from(&*object), &events);
        let fetcher = {
            let (object, events) = (Arc::clone(&object), Arc::clone(&events));
            thread::spawn(move || {
                let count = |events: &Affiliated| events.completion.deliver();
                if live::deliver::<Watched>(other, count).is_some() {
                    object.read();
                    events.completion.acknowledge(1);
                }
            })
        };
        live::alias(other, number);
        live::leave(other);
        live::retire(number, &events);
        object.add(1);
        fetcher.join().unwrap();
    });
}

/// A queue that threads poll in turns, as `ibv_start_poll` and `ibv_end_poll` do.
#[derive(Default)]
struct Queue {
    lock: Mutex<()>,
    taken: Watched,
    turn: Turn<Current>,
}

struct Current {
    _held: MutexGuard<'static, ()>,
    wc: u32,
}

impl Default for Turn<Current> {
    fn default() -> Self {
        Turn::new()
    }
}

impl Queue {
    fn poll(&self) {
        assert!(self.turn.mine().is_none());
        let held = self.lock.lock().unwrap();
        // SAFETY: given back by `end`, while the queue is there.
        let _held =
            unsafe { std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(held) };
        self.taken.add(1);
        let wc = self.taken.read();
        // SAFETY: the state holds the lock.
        unsafe { self.turn.begin(Current { _held, wc }) };
        self.turn.mine().unwrap().wc += 10;
        assert_eq!(self.turn.mine().unwrap().wc, wc + 10);
        assert_eq!(self.turn.end().unwrap().wc, wc + 10);
        assert!(self.turn.mine().is_none());
    }
}

#[test]
fn threads_take_turns() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || other.poll());
        queue.poll();
        other.join().unwrap();
        assert_eq!(queue.taken.read(), 2);
    });
}

/// `ibv_wc_read_opcode`, and `ibv_end_poll` without a beginning, while others poll.
#[test]
fn who_has_no_turn_finds_nothing_and_ends_nothing() {
    loom::model(|| {
        let queue = Arc::new(Queue::default());
        let pollers = [1, 2].map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.poll())
        });
        assert!(queue.turn.mine().is_none());
        assert!(queue.turn.end().is_none());
        for poller in pollers {
            poller.join().unwrap();
        }
    });
}
