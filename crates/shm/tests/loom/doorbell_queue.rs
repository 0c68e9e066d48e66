//! The doorbell queue: two producers and a consumer, blocks that are reused, producers that stop
//! anywhere, and producers that come back after their block was reclaimed.

use airdma_shm::doorbell_queue::{
    ASK_AFTER_NS, Full, PAYLOAD_WORDS, Payload, ProducerId, QueueBlock, QueueConsumer, QueueWords,
    RECLAIM_AFTER_NS, Reclaimed, Take,
};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

const CAPACITY: u32 = 2;
/// Before the wrap-around of positions.
const START: u32 = u32::MAX;

const ONE: ProducerId = ProducerId::new(1).unwrap();
const TWO: ProducerId = ProducerId::new(2).unwrap();

struct Queue {
    tail: AtomicU32,
    blocks: Vec<QueueBlock>,
    /// Loom checks that each write to a block follows all earlier ones; it cannot see that from the
    /// atomics.
    writers: Vec<UnsafeCell<()>>,
    /// Whether the process of [`ONE`] is gone.
    gone: AtomicBool,
}

impl Queue {
    fn new() -> (Arc<Queue>, Consumer) {
        let block = |index| QueueBlock::new(index, START, CAPACITY);
        let queue = Arc::new(Queue {
            tail: AtomicU32::new(START),
            blocks: (0..CAPACITY).map(block).collect(),
            writers: (0..CAPACITY).map(|_| UnsafeCell::new(())).collect(),
            gone: AtomicBool::new(false),
        });
        let consumer = Consumer {
            queue: Arc::clone(&queue),
            end: QueueConsumer::new(CAPACITY, START),
            seen: Vec::new(),
            now_ns: 0,
        };
        (queue, consumer)
    }

    fn words(&self) -> QueueWords<'_> {
        QueueWords::new(&self.tail, &self.blocks)
    }

    fn write(&self, position: u32, payload: &Payload) {
        let writer = &self.writers[(position & (CAPACITY - 1)) as usize];
        writer.with_mut(|_| self.words().write(position, payload));
    }

    fn push(&self, id: ProducerId, value: u64) -> Result<(), Full> {
        loop {
            let position = self.words().reserve(id)?;
            self.write(position, &payload(value));
            if self.words().commit(position, id).is_ok() {
                return Ok(());
            }
        }
    }

    fn push_when_there_is_room(&self, id: ProducerId, value: u64) {
        while self.push(id, value).is_err() {
            thread::yield_now();
        }
    }
}

fn payload(value: u64) -> Payload {
    [value; PAYLOAD_WORDS]
}

struct Consumer {
    queue: Arc<Queue>,
    end: QueueConsumer,
    /// Producers and values, in the order in which they were taken.
    seen: Vec<(ProducerId, u64)>,
    now_ns: u64,
}

impl Consumer {
    /// Takes one item; returns whether there was one.
    fn take(&mut self) -> bool {
        let gone = || self.queue.gone.load(Ordering::Acquire);
        let found = self
            .end
            .take(self.queue.words(), self.now_ns, |id| id != ONE || !gone());
        let Take::Item(item) = found else {
            return false;
        };
        let value = item.payload[0];
        assert_eq!(item.payload, payload(value), "a torn item");
        self.seen.push((item.producer.unwrap(), value));
        true
    }

    /// Takes until it has `count` items, advancing the clock by `step_ns` each time.
    fn take_until(&mut self, count: usize, step_ns: u64) {
        while self.seen.len() < count {
            self.now_ns += step_ns;
            if !self.take() {
                thread::yield_now();
            }
        }
    }

    fn of(&self, id: ProducerId) -> Vec<u64> {
        let theirs = self.seen.iter().filter(|(owner, _)| *owner == id);
        theirs.map(|(_, value)| *value).collect()
    }

    /// Checks that there is nothing to take, however long it waits.
    fn finds_nothing(&mut self) {
        self.seen.clear();
        for _ in 0..3 {
            while self.take() {}
            self.now_ns += RECLAIM_AFTER_NS;
        }
        assert_eq!(self.seen, [], "an item too many");
    }

    /// Checks that all blocks are usable and that no repair was needed.
    fn is_sound(&mut self) {
        self.finds_nothing();
        // Skipped blocks come back once producers have passed them.
        for value in 0..=u64::from(CAPACITY) {
            self.queue.push(TWO, value).unwrap();
            assert!(self.take() && !self.take());
            self.now_ns += RECLAIM_AFTER_NS;
        }
        self.finds_nothing();
        self.queue.push(TWO, 100).unwrap();
        self.queue.push(TWO, 101).unwrap();
        assert_eq!(self.queue.push(TWO, 102), Err(Full));
        while self.take() {}
        assert_eq!(self.of(TWO), [100, 101]);
        assert_eq!((self.end.dropped(), self.end.quarantined()), (0, 0));
    }
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(run);
}

#[test]
fn items_of_two_producers_arrive_once_and_whole() {
    model(2, || {
        let (queue, mut consumer) = Queue::new();
        let producers = [(ONE, 1), (TWO, 2)].map(|(id, value)| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(id, value).unwrap())
        });
        consumer.take_until(2, 0);
        for producer in producers {
            producer.join().unwrap();
        }
        assert_eq!((consumer.of(ONE), consumer.of(TWO)), (vec![1], vec![2]));
        assert_eq!(consumer.end.reclaimed(), 0);
        consumer.is_sound();
    });
}

#[test]
fn a_full_queue_says_so_and_blocks_come_round_again() {
    model(3, || {
        let (queue, mut consumer) = Queue::new();
        let theirs = Arc::clone(&queue);
        let producer = thread::spawn(move || {
            for value in 1..=4 {
                theirs.push_when_there_is_room(ONE, value);
            }
        });
        consumer.take_until(4, 0);
        producer.join().unwrap();
        assert_eq!(consumer.of(ONE), [1, 2, 3, 4]);
        consumer.is_sound();
    });
}

#[test]
fn two_producers_and_one_free_block() {
    model(2, || {
        let (queue, mut consumer) = Queue::new();
        queue.push(TWO, 1).unwrap();
        let producers = [(ONE, 11), (TWO, 2)].map(|(id, value)| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push_when_there_is_room(id, value))
        });
        consumer.take_until(3, 0);
        for producer in producers {
            producer.join().unwrap();
        }
        assert_eq!((consumer.of(ONE), consumer.of(TWO)), (vec![11], vec![1, 2]));
    });
}

/// Where a producer stops because its process ends.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Stop {
    /// It has exchanged the word of the block, and not moved `tail`.
    Reserving,
    Reserved,
    Writing,
    Written,
    Committed,
}

impl Stop {
    const ALL: [Stop; 5] = [
        Stop::Reserving,
        Stop::Reserved,
        Stop::Writing,
        Stop::Written,
        Stop::Committed,
    ];

    /// Enqueues up to that point.
    fn go(self, queue: &Queue) {
        if self == Stop::Reserving {
            // The `tail` it moves is a copy, which the other threads do not see.
            let tail = AtomicU32::new(queue.tail.load(Ordering::Relaxed));
            let _ = QueueWords::new(&tail, &queue.blocks).reserve(ONE);
            return;
        }
        let position = queue.words().reserve(ONE).unwrap();
        if self >= Stop::Writing {
            let mut half = payload(1);
            half[1] = 0;
            queue.write(position, &half);
        }
        if self >= Stop::Written {
            queue.write(position, &payload(1));
        }
        if self >= Stop::Committed {
            queue.words().commit(position, ONE).unwrap();
        }
    }
}

#[test]
fn a_producer_that_dies_anywhere_stops_nobody() {
    for stop in Stop::ALL {
        model(2, move || {
            let (queue, mut consumer) = Queue::new();
            let (dying, other) = (Arc::clone(&queue), Arc::clone(&queue));
            let dying = thread::spawn(move || {
                stop.go(&dying);
                dying.gone.store(true, Ordering::Release);
            });
            let other = thread::spawn(move || other.push_when_there_is_room(TWO, 2));
            let committed = usize::from(stop == Stop::Committed);
            consumer.take_until(1 + committed, ASK_AFTER_NS);
            dying.join().unwrap();
            other.join().unwrap();
            assert_eq!(consumer.of(TWO), [2]);
            assert_eq!(consumer.of(ONE), vec![1; committed]);
            consumer.is_sound();
        });
    }
}

#[test]
fn who_gets_a_dead_ones_block_writes_after_it() {
    model(2, || {
        let (queue, mut consumer) = Queue::new();
        let position = queue.words().reserve(ONE).unwrap();
        queue.push(TWO, 2).unwrap();
        let (dying, other) = (Arc::clone(&queue), Arc::clone(&queue));
        let dying = thread::spawn(move || {
            dying.write(position, &payload(1));
            dying.gone.store(true, Ordering::Release);
        });
        // The first block to become free is the dead producer's.
        let other = thread::spawn(move || other.push_when_there_is_room(TWO, 3));
        dying.join().unwrap();
        consumer.take_until(2, ASK_AFTER_NS);
        other.join().unwrap();
        assert_eq!(consumer.of(TWO), [2, 3]);
        consumer.is_sound();
    });
}

#[test]
fn a_thread_that_ends_costs_a_block_until_its_process_ends() {
    for stop in Stop::ALL {
        model(2, move || {
            let (queue, mut consumer) = Queue::new();
            let (dying, other) = (Arc::clone(&queue), Arc::clone(&queue));
            let dying = thread::spawn(move || stop.go(&dying));
            let other = thread::spawn(move || other.push_when_there_is_room(TWO, 2));
            dying.join().unwrap();
            let committed = usize::from(stop == Stop::Committed);
            consumer.take_until(1 + committed, RECLAIM_AFTER_NS);
            other.join().unwrap();
            assert_eq!(consumer.of(TWO).len(), 1);
            queue.gone.store(true, Ordering::Release);
            consumer.is_sound();
        });
    }
}

#[test]
fn an_item_is_committed_or_reclaimed_and_not_both() {
    model(3, || {
        let (queue, mut consumer) = Queue::new();
        let slow = Arc::clone(&queue);
        let position = queue.words().reserve(ONE).unwrap();
        let slow = thread::spawn(move || {
            slow.write(position, &payload(1));
            slow.words().commit(position, ONE)
        });
        for _ in 0..2 {
            consumer.take();
            consumer.now_ns += RECLAIM_AFTER_NS;
        }
        let committed = slow.join().unwrap();
        while consumer.take() {}
        let expected: &[u64] = if committed.is_ok() { &[1] } else { &[] };
        assert_eq!(consumer.of(ONE), expected);
        assert_eq!(consumer.end.reclaimed(), u64::from(committed.is_err()));
        consumer.is_sound();
    });
}

#[test]
fn who_comes_back_late_writes_into_nobodys_item() {
    model(2, || {
        let (queue, mut consumer) = Queue::new();
        let position = queue.words().reserve(ONE).unwrap();
        assert!(!consumer.take());
        consumer.now_ns += RECLAIM_AFTER_NS;
        assert!(!consumer.take());
        assert_eq!(
            (consumer.end.reclaimed(), consumer.end.quarantined()),
            (1, 1)
        );
        // The next block is the one that was reclaimed.
        queue.push(TWO, 2).unwrap();
        assert!(consumer.take());
        let (late, other) = (Arc::clone(&queue), Arc::clone(&queue));
        let late = thread::spawn(move || {
            late.write(position, &payload(1));
            assert_eq!(late.words().commit(position, ONE), Err(Reclaimed));
        });
        let other = thread::spawn(move || other.push_when_there_is_room(TWO, 3));
        consumer.take_until(2, 0);
        late.join().unwrap();
        other.join().unwrap();
        assert_eq!(consumer.seen, [(TWO, 2), (TWO, 3)]);
        consumer.is_sound();
    });
}

#[test]
fn a_block_that_was_let_go_of_has_another_writer_afterwards() {
    model(3, || {
        let (queue, mut consumer) = Queue::new();
        let position = queue.words().reserve(ONE).unwrap();
        assert!(!consumer.take());
        consumer.now_ns += RECLAIM_AFTER_NS;
        assert!(!consumer.take());
        let late = Arc::clone(&queue);
        let late = thread::spawn(move || {
            late.write(position, &payload(1));
            assert_eq!(late.words().commit(position, ONE), Err(Reclaimed));
        });
        // One block is usable, then both, as soon as the late producer has let go.
        for value in 2..=5 {
            queue.push(TWO, value).unwrap();
            consumer.take_until(value as usize - 1, 0);
        }
        late.join().unwrap();
        assert_eq!(consumer.of(TWO), [2, 3, 4, 5]);
        consumer.is_sound();
    });
}

#[test]
fn who_posts_again_after_a_reclaim_is_heard_once() {
    model(2, || {
        let (queue, mut consumer) = Queue::new();
        let (slow, other) = (Arc::clone(&queue), Arc::clone(&queue));
        let slow = thread::spawn(move || slow.push_when_there_is_room(ONE, 1));
        let other = thread::spawn(move || other.push_when_there_is_room(TWO, 2));
        // A producer caught between two steps is taken for slow, at most once each.
        for _ in 0..3 {
            consumer.take();
            consumer.now_ns += RECLAIM_AFTER_NS;
        }
        consumer.take_until(2, 0);
        slow.join().unwrap();
        other.join().unwrap();
        assert_eq!((consumer.of(ONE), consumer.of(TWO)), (vec![1], vec![2]));
        consumer.is_sound();
    });
}

#[test]
fn a_reservation_that_is_given_back_is_passed_over() {
    model(2, || {
        let (queue, mut consumer) = Queue::new();
        let (idle, other) = (Arc::clone(&queue), Arc::clone(&queue));
        let idle = thread::spawn(move || {
            let position = idle.words().reserve(ONE).unwrap();
            idle.words().abandon(position, ONE);
        });
        let other = thread::spawn(move || other.push_when_there_is_room(TWO, 2));
        consumer.take_until(1, 0);
        idle.join().unwrap();
        other.join().unwrap();
        assert_eq!(consumer.of(TWO), [2]);
        consumer.is_sound();
    });
}
