//! Completions arrive while a program arms, polls and waits: it misses no event.

use crate::alarm::Alarm;
use crate::bounded;
use crate::event_queue::EventQueue;
use crate::eventfd::poll;
use airdma_shm::indices::{ConsumerIndex, Indices, ProducerIndex};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A completion queue and its channel.
struct Queue {
    indices: Indices,
    consumer: Mutex<ConsumerIndex>,
    alarm: Alarm,
    channel: EventQueue<()>,
}

const ENTRIES: u32 = 4;

impl Queue {
    fn new() -> (Arc<Queue>, ProducerIndex) {
        let indices = Indices::new(0);
        let producer = ProducerIndex::attach(&indices, ENTRIES).unwrap();
        let consumer = Mutex::new(ConsumerIndex::attach(&indices, ENTRIES).unwrap());
        let queue = Queue {
            indices,
            consumer,
            alarm: Alarm::new(),
            channel: EventQueue::new().unwrap(),
        };
        (Arc::new(queue), producer)
    }

    /// The worker adds a completion.
    fn complete(&self, producer: &mut ProducerIndex, solicited: bool) {
        assert!(producer.has_free(&self.indices, 1));
        producer.publish(&self.indices, 1);
        if self.alarm.completed(solicited) {
            self.channel.push(());
        }
    }

    /// `ibv_poll_cq`: takes all there are.
    fn poll(&self) -> u32 {
        self.alarm.note_poll();
        let mut consumer = self.consumer.lock().unwrap();
        let mut count = 0;
        while consumer.take(&self.indices).is_some() {
            consumer.release(&self.indices, 1);
            count += 1;
        }
        count
    }

    /// `ibv_req_notify_cq`.
    fn arm(&self, solicited_only: bool) {
        let holds_any = || {
            let mut consumer = self.consumer.lock().unwrap();
            // All completions of a model are of the requested kind.
            consumer.available(&self.indices) > 0
        };
        if self.alarm.arm(solicited_only, holds_any) {
            self.channel.push(());
        }
    }

    /// `ibv_get_cq_event`.
    fn wait(&self) {
        while self.channel.pop().is_none() {
            poll(&[self.channel.descriptor()]);
        }
        self.alarm.fetched();
    }
}

/// A program that expects `count` completions.
fn follow(count: u32, solicited_only: bool, wait_for_all: impl Fn(&Queue, u32)) {
    let (queue, mut producer) = Queue::new();
    let worker = Arc::clone(&queue);
    let worker = thread::spawn(move || {
        for _ in 0..count {
            worker.complete(&mut producer, solicited_only);
        }
    });
    wait_for_all(&queue, count);
    worker.join().unwrap();
}

/// As `ibv_get_cq_event(3)` has it: wait, arm, poll.
fn by_the_manual(queue: &Queue, count: u32, solicited_only: bool) {
    queue.arm(solicited_only);
    let mut seen = queue.poll();
    while seen < count {
        queue.wait();
        queue.arm(solicited_only);
        seen += queue.poll();
    }
    assert_eq!(seen, count);
}

/// The order of UCX: poll until empty, arm, wait.
fn as_ucx(queue: &Queue, count: u32) {
    let mut seen = queue.poll();
    while seen < count {
        queue.arm(false);
        queue.wait();
        seen += queue.poll();
    }
    assert_eq!(seen, count);
}

#[test]
fn a_program_that_arms_and_polls_then_misses_nothing() {
    bounded(4, || {
        follow(2, false, |queue, count| by_the_manual(queue, count, false))
    });
}

#[test]
fn a_program_that_asks_for_solicited_ones_misses_none() {
    bounded(4, || {
        follow(2, true, |queue, count| by_the_manual(queue, count, true))
    });
}

#[test]
fn a_program_that_polls_arms_and_waits_misses_nothing() {
    bounded(4, || follow(2, false, as_ucx));
}

/// One thread polls and arms beside another one that waits.
#[test]
fn a_thread_that_polls_takes_no_event_from_one_that_waits() {
    bounded(3, || {
        let (queue, mut producer) = Queue::new();
        queue.arm(false);
        let worker = Arc::clone(&queue);
        let worker = thread::spawn(move || worker.complete(&mut producer, false));
        let poller = Arc::clone(&queue);
        let poller = thread::spawn(move || poller.poll());
        queue.wait();
        let seen = queue.poll() + poller.join().unwrap();
        worker.join().unwrap();
        assert_eq!(seen, 1);
    });
}

/// The worker and the program may both find the event due: it is raised once.
#[test]
fn one_request_raises_one_event() {
    loom::model(|| {
        let (queue, mut producer) = Queue::new();
        queue.poll();
        let worker = Arc::clone(&queue);
        let worker = thread::spawn(move || {
            worker.complete(&mut producer, false);
            worker.complete(&mut producer, false);
        });
        queue.arm(false);
        worker.join().unwrap();
        queue.wait();
        assert!(queue.channel.pop().is_none(), "two events of one request");
    });
}

/// Arming for solicited completions does not undo arming for any.
#[test]
fn asking_for_less_does_not_undo_asking_for_more() {
    loom::model(|| {
        let (queue, mut producer) = Queue::new();
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || other.arm(false));
        queue.arm(true);
        other.join().unwrap();
        queue.complete(&mut producer, false);
        queue.wait();
    });
}
