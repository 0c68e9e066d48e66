//! The shared protocols under loom: every interleaving, and every value the memory model lets a
//! load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p airdma-shm --release --test loom`
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

mod doorbell_queue;

use airdma_shm::SleepFlag;
use airdma_shm::doorbells::{DoorbellWords, summaries_for, words_for};
use airdma_shm::indices::{ConsumerIndex, Indices, ProducerIndex};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

/// A ring whose slots loom watches: an access that is not ordered after the other side's is
/// reported.
struct Ring {
    indices: Indices,
    slots: Vec<UnsafeCell<u32>>,
}

impl Ring {
    /// Starts before the wrap-around of the indices.
    fn new(capacity: u32) -> (Arc<Ring>, ProducerIndex, ConsumerIndex) {
        let indices = Indices::new(u32::MAX);
        let producer = ProducerIndex::attach(&indices, capacity).unwrap();
        let consumer = ConsumerIndex::attach(&indices, capacity).unwrap();
        let slots = (0..capacity).map(|_| UnsafeCell::new(0)).collect();
        (Arc::new(Ring { indices, slots }), producer, consumer)
    }

    fn slot(&self, number: u32) -> &UnsafeCell<u32> {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    fn write(&self, number: u32, value: u32) {
        // SAFETY: loom checks that no other thread accesses it.
        self.slot(number).with_mut(|slot| unsafe { *slot = value });
    }

    fn read(&self, number: u32) -> u32 {
        // SAFETY: loom checks that no thread writes to it.
        self.slot(number).with(|slot| unsafe { *slot })
    }
}

fn take(ring: &Ring, consumer: &mut ConsumerIndex) -> u32 {
    loop {
        if let Some(number) = consumer.take(&ring.indices) {
            return number;
        }
        thread::yield_now();
    }
}

fn wait_for_free(ring: &Ring, producer: &mut ProducerIndex, count: u32) {
    while !producer.has_free(&ring.indices, count) {
        thread::yield_now();
    }
}

#[test]
fn a_ring_neither_loses_nor_duplicates_nor_reorders() {
    loom::model(|| {
        let (ring, mut producer, mut consumer) = Ring::new(2);
        let theirs = Arc::clone(&ring);
        let sender = thread::spawn(move || {
            for value in 1..=3 {
                wait_for_free(&theirs, &mut producer, 1);
                theirs.write(producer.number(0), value);
                producer.publish(&theirs.indices, 1);
            }
            producer
        });
        for expected in 1..=3 {
            let number = take(&ring, &mut consumer);
            assert_eq!(ring.read(number), expected);
            consumer.release(&ring.indices, 1);
        }
        let mut producer = sender.join().unwrap();
        assert_eq!(consumer.available(&ring.indices), 0);
        assert_eq!(producer.free(&ring.indices), 2);
        assert!(producer.check().is_ok() && consumer.check().is_ok());
    });
}

#[test]
fn a_consumer_that_only_polls_sees_a_prefix() {
    loom::model(|| {
        let (ring, mut producer, mut consumer) = Ring::new(2);
        let theirs = Arc::clone(&ring);
        let sender = thread::spawn(move || {
            for value in 1..=2 {
                assert!(producer.has_free(&theirs.indices, 1));
                theirs.write(producer.number(0), value);
                producer.publish(&theirs.indices, 1);
            }
        });
        let mut expected = 1;
        for _ in 0..3 {
            if let Some(number) = consumer.take(&ring.indices) {
                assert_eq!(ring.read(number), expected);
                expected += 1;
            }
        }
        sender.join().unwrap();
        assert_eq!(consumer.available(&ring.indices), 3 - expected);
        assert!(consumer.check().is_ok());
    });
}

#[test]
fn a_batch_arrives_whole() {
    loom::model(|| {
        let (ring, mut producer, mut consumer) = Ring::new(2);
        let theirs = Arc::clone(&ring);
        let sender = thread::spawn(move || {
            assert!(producer.has_free(&theirs.indices, 2));
            theirs.write(producer.number(0), 1);
            theirs.write(producer.number(1), 2);
            producer.publish(&theirs.indices, 2);
        });
        if let Some(first) = consumer.take(&ring.indices) {
            let second = consumer.take(&ring.indices).unwrap();
            assert_eq!((ring.read(first), ring.read(second)), (1, 2));
        }
        sender.join().unwrap();
    });
}

#[test]
fn taken_slots_are_stable_until_released_and_then_reused() {
    loom::model(|| {
        let (ring, mut producer, mut consumer) = Ring::new(2);
        for value in 1..=2 {
            ring.write(producer.number(0), value);
            assert!(producer.has_free(&ring.indices, 1));
            producer.publish(&ring.indices, 1);
        }
        let theirs = Arc::clone(&ring);
        let sender = thread::spawn(move || {
            for value in 3..=4 {
                wait_for_free(&theirs, &mut producer, 1);
                theirs.write(producer.number(0), value);
                producer.publish(&theirs.indices, 1);
            }
        });
        let first = consumer.take(&ring.indices).unwrap();
        let second = consumer.take(&ring.indices).unwrap();
        assert_eq!(ring.read(first), 1);
        consumer.release(&ring.indices, 1);
        // The producer may be writing the first slot now, never the second.
        assert_eq!(ring.read(second), 2);
        let third = take(&ring, &mut consumer);
        assert_eq!((ring.read(second), ring.read(third)), (2, 3));
        consumer.release(&ring.indices, 2);
        let fourth = take(&ring, &mut consumer);
        assert_eq!(ring.read(fourth), 4);
        sender.join().unwrap();
        assert!(consumer.check().is_ok());
    });
}

/// Doorbells on the heap, with a note for each of the work that it was rung for.
struct Bells {
    bits: u32,
    summaries: Vec<AtomicU64>,
    words: Vec<AtomicU64>,
    work: [AtomicU32; 2],
}

impl Bells {
    fn new(bits: u32) -> Arc<Bells> {
        let zeroes = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Bells {
            bits,
            summaries: zeroes(summaries_for(bits)),
            words: zeroes(words_for(bits)),
            work: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    fn words(&self) -> DoorbellWords<'_> {
        DoorbellWords::new(self.bits, &self.summaries, &self.words)
    }

    /// Leaves work for `index`, then rings `bit`.
    fn ring(&self, index: usize, work: u32, bit: u32) -> bool {
        self.work[index].store(work, Ordering::Relaxed);
        self.words().ring(bit)
    }
}

/// Two ringers with one ring each against two drains.
///
/// Rings that the drains do not return stay for the last drain, and the drain that returns a bit
/// sees the work done before the ring.
fn two_ringers(bits: [u32; 2]) {
    let bells = Bells::new(128);
    let ringers = [0, 1].map(|index| {
        let bells = Arc::clone(&bells);
        thread::spawn(move || bells.ring(index, 1, bits[index]))
    });
    let mut seen = [0; 2];
    let mut drain = || {
        bells.words().drain(|rung| {
            for index in 0..2 {
                if bits[index] == rung {
                    seen[index] = bells.work[index].load(Ordering::Relaxed);
                }
            }
            if bits[0] != bits[1] {
                assert_eq!(
                    seen[usize::from(rung == bits[1])],
                    1,
                    "rung, but the work is not visible"
                );
            } else {
                assert_ne!(seen, [0, 0], "rung, but nobody's work is visible");
            }
        });
    };
    drain();
    let new = ringers.map(|ringer| ringer.join().unwrap());
    drain();
    assert_eq!(seen, [1, 1], "a ring was lost");
    assert!(new[0] || new[1]);
    assert!(bells.words().is_empty());
}

#[test]
fn rings_in_one_word_are_not_lost() {
    loom::model(|| two_ringers([3, 4]));
}

#[test]
fn rings_in_two_words_are_not_lost() {
    loom::model(|| two_ringers([3, 64]));
}

#[test]
fn rings_of_one_bit_are_not_lost() {
    loom::model(|| two_ringers([5, 5]));
}

/// A ringer that finds the summary set already, while the drain that was due clears it. `first` is
/// rung beforehand.
fn late_ringer(first: u32, late: u32) {
    let bells = Bells::new(64);
    bells.words().ring(first);
    let theirs = Arc::clone(&bells);
    let ringer = thread::spawn(move || theirs.ring(0, 1, late));
    let mut seen = 0;
    let mut drain = || {
        bells.words().drain(|rung| {
            if rung == late {
                seen = bells.work[0].load(Ordering::Relaxed);
                assert!(
                    seen == 1 || first == late,
                    "rung, but the work is not visible"
                );
            }
        });
    };
    drain();
    ringer.join().unwrap();
    drain();
    assert_eq!(seen, 1, "the late ring was lost");
}

#[test]
fn a_ring_beside_one_that_is_being_drained_is_not_lost() {
    loom::model(|| late_ringer(3, 4));
}

#[test]
fn a_ring_of_a_bit_that_is_being_drained_is_not_lost() {
    loom::model(|| late_ringer(3, 3));
}

#[test]
fn a_bit_that_is_rung_again_during_a_drain_is_drained_again() {
    loom::model(|| {
        let bells = Bells::new(64);
        let theirs = Arc::clone(&bells);
        let ringer = thread::spawn(move || {
            theirs.ring(0, 1, 0);
            theirs.ring(0, 2, 0);
        });
        let mut seen = 0;
        for _ in 0..2 {
            bells
                .words()
                .drain(|_| seen = bells.work[0].load(Ordering::Relaxed));
        }
        ringer.join().unwrap();
        bells
            .words()
            .drain(|_| seen = bells.work[0].load(Ordering::Relaxed));
        assert_eq!(seen, 2, "the second ring was lost");
    });
}

#[test]
fn one_of_two_ringers_is_told_that_the_bit_was_new() {
    loom::model(|| {
        let bells = Bells::new(64);
        let theirs = Arc::clone(&bells);
        let other = thread::spawn(move || theirs.words().ring(7));
        let mine = bells.words().ring(7);
        assert_ne!(mine, other.join().unwrap());
    });
}

/// A consumer that finds its ring empty after it set the flag sleeps; the producer has then seen
/// the flag.
#[test]
fn nothing_is_published_to_a_consumer_that_sleeps_on() {
    loom::model(|| {
        let (ring, mut producer, mut consumer) = Ring::new(2);
        let flag = Arc::new(SleepFlag::default());
        let (theirs, their_flag) = (Arc::clone(&ring), Arc::clone(&flag));
        let sender = thread::spawn(move || {
            theirs.write(producer.number(0), 1);
            producer.publish(&theirs.indices, 1);
            their_flag.is_set()
        });
        flag.set();
        let sleeps = !ring.indices.has_unreleased();
        let rang = sender.join().unwrap();
        assert!(!sleeps || rang, "published, and no wake-up");
        assert!(consumer.take_many(&ring.indices, 1));
        assert!(!consumer.take_many(&ring.indices, 1));
    });
}
