//! Work is posted while other threads hold the worker, release it, or fall asleep: it is done
//! exactly once.

use crate::QpState;
use crate::bounded;
use crate::eventfd::poll;
use crate::qp_state::PublishedState;
use crate::sync::AtomicU64;
use crate::urgency::Urgency;
use crate::world::World;
use airdma_shm::indices::{ConsumerIndex, Indices, ProducerIndex};
use loom::sync::Arc;
use loom::thread;

/// Posts beside another thread that does something with the worker; both then end, and no other
/// thread comes.
fn post_beside(wanted: u32, other: impl Fn(&World) + Clone + Send + Sync + 'static) {
    let world = World::new(wanted, |_| {});
    let theirs = Arc::clone(&world);
    let other = other.clone();
    let thread = thread::spawn(move || other(&theirs));
    world.post();
    world.try_run();
    thread.join().unwrap();
    assert!(world.done.is_ready(), "what was posted is forgotten");
}

#[test]
fn what_is_posted_beside_a_poll_is_done() {
    loom::model(|| post_beside(1, World::try_run));
}

#[test]
fn what_is_posted_beside_a_post_is_done() {
    loom::model(|| {
        post_beside(2, |world| {
            world.post();
            world.try_run();
        });
    });
}

#[test]
fn what_is_posted_beside_a_control_call_is_done() {
    loom::model(|| post_beside(1, |world| world.control(|_| {})));
}

#[test]
fn what_is_posted_beside_one_who_only_looks_is_done() {
    loom::model(|| {
        post_beside(1, |world| {
            world.visit(|_| {
                // Loom lets others run where they access the same variable.
                world.posted();
            });
        });
    });
}

#[test]
fn what_three_post_is_done() {
    bounded(3, || {
        let world = World::new(3, |_| {});
        let post = |world: &Arc<World>| {
            let world = Arc::clone(world);
            move || {
                world.post();
                world.try_run();
            }
        };
        let threads = [thread::spawn(post(&world)), thread::spawn(post(&world))];
        post(&world)();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(world.done.is_ready(), "what was posted is forgotten");
    });
}

/// The poster leaves a request to the thread that fetches the previous acknowledgement at this
/// moment.
#[test]
fn a_request_that_waits_for_an_answer_is_sent() {
    loom::model(|| {
        let urgency = Arc::new(Urgency::new());
        urgency.set_busy(true);
        let theirs = Arc::clone(&urgency);
        let world = World::new(1, |worker| {
            worker.first = Some(Box::new(move || theirs.set_busy(false)));
        });
        let fetcher = Arc::clone(&world);
        let fetcher = thread::spawn(move || fetcher.try_run());
        world.post();
        // No poll is expected: this request may wait for the answer alone.
        if urgency.of_request(&AtomicU64::new(6), &AtomicU64::new(7), || false) {
            world.try_run();
        }
        fetcher.join().unwrap();
        assert!(world.done.is_ready(), "the request is forgotten");
    });
}

/// Whether the poster of a datagram, or of a request of another queue pair with nothing in flight,
/// has to run the worker.
type IsUrgent = fn(&Posts, &dyn Fn() -> bool) -> bool;

/// What the posters of a device share.
struct Posts {
    urgency: Urgency,
    posted_at: AtomicU64,
    polls: Arc<AtomicU64>,
}

impl Posts {
    fn new() -> Self {
        Posts {
            urgency: Urgency::new(),
            posted_at: AtomicU64::new(u64::MAX),
            polls: Arc::new(AtomicU64::new(7)),
        }
    }
}

const DATAGRAM: IsUrgent =
    |posts, has_sleepers| posts.urgency.of_datagram(&posts.polls, has_sleepers);
const REQUEST: IsUrgent = |posts, has_sleepers| {
    posts
        .urgency
        .of_request(&posts.posted_at, &posts.polls, has_sleepers)
};

#[test]
fn a_datagram_that_waits_is_sent_although_everybody_sleeps() {
    is_sent_although_everybody_sleeps(DATAGRAM);
}

#[test]
fn a_request_that_waits_is_sent_although_everybody_sleeps() {
    is_sent_although_everybody_sleeps(REQUEST);
}

/// The poster leaves what it posted to the next thread: the progress thread, which is about to
/// sleep, or does already.
fn is_sent_although_everybody_sleeps(is_urgent: IsUrgent) {
    bounded(4, move || {
        let world = World::new(1, |_| {});
        let posts = Posts::new();
        assert!(is_urgent(&posts, &|| false), "the first is urgent");
        let helper = Arc::clone(&world);
        let helper = thread::spawn(move || helper.help());
        world.post();
        if is_urgent(&posts, &|| world.worker_lock.has_sleepers()) {
            world.try_run();
        }
        poll(&[&world.done]);
        world.stop_helper();
        helper.join().unwrap();
    });
}

#[test]
fn a_datagram_left_to_the_next_poll_is_not_posted_after_it() {
    is_not_posted_after_the_poll(DATAGRAM);
}

#[test]
fn a_request_left_to_the_next_poll_is_not_posted_after_it() {
    is_not_posted_after_the_poll(REQUEST);
}

/// Beside a poll, which counts itself first, and then runs the worker.
fn is_not_posted_after_the_poll(is_urgent: IsUrgent) {
    loom::model(move || {
        let world = World::new(1, |_| {});
        let posts = Posts::new();
        assert!(is_urgent(&posts, &|| false));
        let poller = (Arc::clone(&world), Arc::clone(&posts.polls));
        let poller = thread::spawn(move || {
            poller.1.store(8, loom::sync::atomic::Ordering::Relaxed);
            poller.0.try_run();
        });
        world.post();
        let waits = !is_urgent(&posts, &|| world.worker_lock.has_sleepers());
        if !waits {
            world.try_run();
        }
        poller.join().unwrap();
        assert!(world.done.is_ready(), "nobody polls again");
    });
}

/// A receive is posted to a queue pair that is entering ERROR: one of both threads flushes it.
#[test]
fn a_receive_posted_while_the_queue_pair_fails_is_flushed() {
    loom::model(|| {
        let indices = Indices::new(0);
        let mut ring = ProducerIndex::attach(&indices, 1).unwrap();
        let mut consumer = ConsumerIndex::attach(&indices, 1).unwrap();
        let shared = Arc::new((indices, PublishedState::new(QpState::ReadyToReceive)));
        let worker = Arc::clone(&shared);
        let worker = thread::spawn(move || {
            let (indices, state) = &*worker;
            assert!(state.set(QpState::Error));
            (consumer.take(indices).is_some(), consumer)
        });
        let (indices, state) = &*shared;
        assert!(ring.has_free(indices, 1));
        ring.publish(indices, 1);
        let rings = state.is_error_after_post();
        let (flushed, mut consumer) = worker.join().unwrap();
        // The doorbell makes the worker check again.
        let flushed = flushed || (rings && consumer.take(indices).is_some());
        assert!(flushed, "the receive stays for ever");
    });
}

#[test]
fn a_queue_pair_destroyed_while_it_fails_stays_destroyed() {
    loom::model(|| {
        let state = Arc::new(PublishedState::new(QpState::ReadyToSend));
        let worker = Arc::clone(&state);
        let worker = thread::spawn(move || worker.set(QpState::Error));
        state.set_gone();
        worker.join().unwrap();
        assert_eq!(state.get(), None);
    });
}
