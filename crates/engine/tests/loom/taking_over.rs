//! Threads that run the worker while they wait leave: the others, or the progress thread, continue.

use crate::bounded;
use crate::eventfd::{EventFd, poll};
use crate::world::{LATER, SOON, World};
use loom::sync::Arc;
use loom::thread;

#[test]
fn the_helper_takes_over_from_the_last_waiter() {
    bounded(3, || {
        let world = World::new(1, |_| {});
        let helper = Arc::clone(&world);
        let helper = thread::spawn(move || helper.help());
        // Its event is there at once.
        let event = EventFd::default();
        event.signal();
        world.wait(&event);
        // Packets that come now are the progress thread's.
        world.port.signal();
        poll(&[&world.done]);
        world.stop_helper();
        helper.join().unwrap();
    });
}

#[test]
fn the_helper_takes_over_what_the_last_waiter_was_woken_for() {
    bounded(2, || {
        let world = World::new(1, |worker| worker.timer = LATER);
        world.control(|_| {});
        let helper = Arc::clone(&world);
        let helper = thread::spawn(move || helper.help());
        let event = Arc::new(EventFd::default());
        let waiter = (Arc::clone(&world), Arc::clone(&event));
        let waiter = thread::spawn(move || waiter.0.wait(&waiter.1));
        event.signal();
        world.control(|worker| worker.timer = SOON);
        poll(&[&world.done]);
        waiter.join().unwrap();
        world.stop_helper();
        helper.join().unwrap();
    });
}

/// Two threads wait, one's event comes: the other one must see what woke both.
#[test]
fn a_waiter_takes_over_from_another() {
    bounded(2, || {
        let world = World::new(1, |worker| worker.timer = LATER);
        world.control(|_| {});
        let event = Arc::new(EventFd::default());
        let leaver = (Arc::clone(&world), Arc::clone(&event));
        let leaver = thread::spawn(move || leaver.0.wait(&leaver.1));
        let stayer = Arc::clone(&world);
        let stayer = thread::spawn(move || stayer.wait(&stayer.done));
        event.signal();
        world.control(|worker| worker.timer = SOON);
        leaver.join().unwrap();
        stayer.join().unwrap();
    });
}

/// The progress thread, asleep as the waiter is, takes the wake-up that was meant for both, and
/// stands by.
#[test]
fn a_waiter_is_not_left_asleep_by_the_helper() {
    bounded(2, || {
        let world = World::new(1, |worker| worker.timer = LATER);
        world.control(|_| {});
        let helper = Arc::clone(&world);
        let helper = thread::spawn(move || helper.help());
        let waiter = Arc::clone(&world);
        let waiter = thread::spawn(move || waiter.wait(&waiter.done));
        world.control(|worker| worker.timer = SOON);
        waiter.join().unwrap();
        world.stop_helper();
        helper.join().unwrap();
    });
}

/// A waiting thread is not scheduled: nothing that arrives meanwhile waits for it.
#[test]
fn the_helper_takes_over_from_a_waiter_that_does_not_run() {
    bounded(3, || {
        let world = World::new(2, |_| {});
        let helper = Arc::clone(&world);
        let helper = thread::spawn(move || helper.help());
        world.standby.enter();
        world.port.signal();
        while world.port.is_ready() {
            thread::yield_now();
        }
        // It continues as long as that is so.
        world.port.signal();
        poll(&[&world.done]);
        world.standby.leave(&world.worker_lock, &world.helper);
        world.stop_helper();
        helper.join().unwrap();
    });
}

/// It is scheduled again while the progress thread runs the worker instead: all is done exactly
/// once.
#[test]
fn a_waiter_that_runs_again_takes_the_worker_back() {
    bounded(2, || {
        let world = World::new(1, |_| {});
        let helper = Arc::clone(&world);
        let helper = thread::spawn(move || helper.help());
        let waiter = Arc::clone(&world);
        let waiter = thread::spawn(move || waiter.wait(&waiter.done));
        world.port.signal();
        waiter.join().unwrap();
        world.stop_helper();
        helper.join().unwrap();
    });
}
