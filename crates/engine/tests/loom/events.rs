//! A queue of events behind a descriptor.

use crate::event_queue::EventQueue;
use crate::eventfd::poll;
use loom::sync::Arc;
use loom::thread;

#[test]
fn two_who_wait_for_two_events_get_one_each() {
    loom::model(|| {
        let queue = Arc::new(EventQueue::new().unwrap());
        let wait = |queue: &EventQueue<u32>| {
            loop {
                if let Some(event) = queue.pop() {
                    return event;
                }
                poll(&[queue.descriptor()]);
            }
        };
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || wait(&other));
        queue.push(1);
        queue.push(2);
        let mine = wait(&queue);
        assert_eq!(mine + other.join().unwrap(), 3);
        assert!(!queue.descriptor().is_ready(), "readable, and empty");
    });
}

#[test]
fn the_descriptor_is_readable_as_long_as_events_wait() {
    loom::model(|| {
        let queue = Arc::new(EventQueue::new().unwrap());
        queue.push(1);
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || other.retain(|&event| event != 1));
        queue.push(2);
        other.join().unwrap();
        assert!(queue.descriptor().is_ready());
        assert_eq!(queue.pop(), Some(2));
        assert!(!queue.descriptor().is_ready());
    });
}

/// For programs that poll the descriptor themselves.
#[test]
fn a_pop_beside_a_push_leaves_the_descriptor_as_it_should_be() {
    loom::model(|| {
        let queue = Arc::new(EventQueue::new().unwrap());
        queue.push(1);
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || other.pop().unwrap());
        queue.push(2);
        assert_eq!(other.join().unwrap(), 1);
        assert!(queue.descriptor().is_ready(), "an event nobody hears of");
        assert_eq!(queue.pop(), Some(2));
        assert!(!queue.descriptor().is_ready());
    });
}

/// A thread that expects an event takes one, and the descriptor tells of the other.
#[test]
fn a_thread_that_expects_an_event_leaves_the_other_to_be_seen() {
    loom::model(|| {
        let queue = Arc::new(EventQueue::new().unwrap());
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || {
            other.push(1);
            other.push(2);
        });
        let mine = queue.expect().take();
        other.join().unwrap();
        assert!(queue.descriptor().is_ready());
        let left: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        let all: Vec<u32> = mine.into_iter().chain(left).collect();
        assert_eq!(all, [1, 2]);
        assert!(!queue.descriptor().is_ready());
    });
}
