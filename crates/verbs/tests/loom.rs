//! Acknowledging events beside destroying their object, under loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p airdma-verbs --release --test loom`
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

#[path = "../src/events.rs"]
mod events;

use events::Events;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

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
