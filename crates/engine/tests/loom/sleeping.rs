//! Threads sleep while others make work: a thread that must wake them does.

use crate::bounded;
use crate::eventfd::poll;
use crate::worker_lock::NEVER;
use crate::world::{LATER, SOON, World};
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

/// Runs `body` with a progress thread.
fn with_helper(world: &Arc<World>, body: impl FnOnce()) {
    let helper = Arc::clone(world);
    let helper = thread::spawn(move || helper.help());
    body();
    world.stop_helper();
    helper.join().unwrap();
}

#[test]
fn the_helper_ends_when_it_is_told_to() {
    loom::model(|| with_helper(&World::new(0, |_| {}), || {}));
}

#[test]
fn packets_wake_the_helper() {
    bounded(4, || {
        let world = World::new(1, |_| {});
        with_helper(&world, || {
            world.port.signal();
            poll(&[&world.done]);
        });
    });
}

/// Time passes until SOON: a sleeper with a later time does not wake by itself.
#[test]
fn a_timer_that_is_set_for_earlier_wakes_the_sleeper() {
    bounded(4, || {
        let world = World::new(1, |worker| worker.timer = LATER);
        world.control(|_| {});
        with_helper(&world, || {
            world.control(|worker| worker.timer = SOON);
            poll(&[&world.done]);
        });
    });
}

#[test]
fn packets_that_wait_for_room_leave_when_there_is_some() {
    bounded(4, || {
        let world = World::new(1, |_| {});
        with_helper(&world, || {
            world.control(|worker| worker.unsent = true);
            world.room.signal();
            poll(&[&world.done]);
        });
    });
}

/// A sleeper that leaves takes the wake-up that was also meant for the progress thread.
#[test]
fn a_timer_is_not_lost_with_a_sleeper_that_leaves() {
    bounded(2, || {
        let world = World::new(1, |worker| worker.timer = LATER);
        world.control(|_| {});
        let other = Arc::clone(&world);
        let other = thread::spawn(move || {
            other.sleep(&other.done);
            other.try_run();
        });
        with_helper(&world, || {
            world.control(|worker| worker.timer = SOON);
            poll(&[&world.done]);
        });
        other.join().unwrap();
    });
}

/// A timer that fires sets the next one: no thread that sleeps meanwhile may rely on another to
/// wake for it.
#[test]
fn a_timer_that_follows_another_is_not_lost() {
    bounded(2, || {
        let world = World::new(2, |worker| {
            worker.timer = SOON;
            worker.next_timer = LATER;
        });
        let other = Arc::clone(&world);
        let other = thread::spawn(move || {
            other.sleep(&other.done);
            other.try_run();
        });
        with_helper(&world, || {
            world.try_run();
            // The second is as soon, whether the first has fired or not.
            world.control(|worker| {
                if worker.timer == SOON {
                    worker.next_timer = SOON;
                } else {
                    worker.timer = SOON;
                }
            });
            poll(&[&world.done]);
        });
        other.join().unwrap();
    });
}

#[test]
fn nobody_sleeps_while_sockets_change() {
    bounded(3, || {
        let world = World::new(1, |_| {});
        with_helper(&world, || {
            world.change_sockets(|| {
                assert_eq!(
                    world.in_bed.load(Ordering::Relaxed),
                    0,
                    "asleep on a closed socket"
                );
            });
            // No thread sleeps beyond the next event.
            world.port.signal();
            poll(&[&world.done]);
        });
        let asleep = world.worker_lock.fall_asleep(|| false, || 0, NEVER);
        assert!(asleep.is_some(), "nobody ever sleeps again");
    });
}

/// The first queue pair binds the port while a thread waits on a completion channel, so that the
/// progress thread stands by.
#[test]
fn who_sleeps_already_hears_of_the_port() {
    bounded(4, || {
        let world = World::new(1, |_| {});
        world.set_bound(false);
        let waiter = Arc::clone(&world);
        let waiter = thread::spawn(move || waiter.wait(&waiter.done));
        world.visit(|_| {
            world.set_bound(true);
            if world.worker_lock.has_sleepers() {
                world.worker_lock.wake_sleepers();
            }
        });
        world.port.signal();
        waiter.join().unwrap();
    });
}
