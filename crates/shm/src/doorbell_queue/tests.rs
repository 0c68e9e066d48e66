#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use super::*;
use crate::{Arena, Block, Corrupt};

const ONE: ProducerId = ProducerId::new(1).unwrap();
const TWO: ProducerId = ProducerId::new(2).unwrap();

fn queue(blocks: u32) -> (DoorbellQueue, DoorbellProducer, DoorbellProducer) {
    let queue = DoorbellQueue::new(&Arena::new(), blocks).unwrap();
    let producers = [ONE, TWO].map(|id| queue.producer(id));
    let [one, two] = producers;
    (queue, one, two)
}

fn payload(value: u64) -> Payload {
    std::array::from_fn(|index| value << 8 | index as u64)
}

/// Takes all items, and asks about no producer.
fn taken(queue: &mut DoorbellQueue) -> Vec<(u32, u64)> {
    taken_at(queue, 0, |_| panic!("nobody is to be asked for"))
}

fn taken_at(
    queue: &mut DoorbellQueue,
    now_ns: u64,
    mut lives: impl FnMut(ProducerId) -> bool,
) -> Vec<(u32, u64)> {
    let mut items = Vec::new();
    while let Take::Item(item) = queue.take(now_ns, &mut lives) {
        let value = item.payload[0] >> 8;
        assert_eq!(item.payload, payload(value));
        items.push((item.producer.unwrap().get(), value));
    }
    items
}

#[test]
fn items_are_taken_in_the_order_in_which_they_were_pushed() {
    let (mut queue, one, two) = queue(4);
    assert!(queue.is_empty());
    for lap in 0..10 {
        for (producer, value) in [(&one, 1), (&two, 2), (&one, 3)] {
            producer.push(&payload(lap + value)).unwrap();
        }
        assert!(!queue.is_empty());
        let expected = [(1, lap + 1), (2, lap + 2), (1, lap + 3)];
        assert_eq!(taken(&mut queue), expected);
        assert!(queue.is_empty());
    }
}

#[test]
fn a_full_queue_takes_no_more_and_loses_nothing() {
    let (mut queue, one, two) = queue(4);
    for value in 0..4 {
        one.push(&payload(value)).unwrap();
    }
    assert_eq!(two.push(&payload(9)), Err(Full));
    assert_eq!(taken(&mut queue), [(1, 0), (1, 1), (1, 2), (1, 3)]);
    two.push(&payload(9)).unwrap();
    assert_eq!(taken(&mut queue), [(2, 9)]);
}

#[test]
fn sizes_are_rounded_up_and_bounded() {
    for (blocks, capacity) in [(2, 2), (3, 4), (64, 64), (65, 128)] {
        let queue = DoorbellQueue::new(&Arena::new(), blocks).unwrap();
        assert_eq!(queue.capacity(), capacity);
    }
    for blocks in [0, 1, BLOCKS_MAX + 1, u32::MAX] {
        let error = DoorbellQueue::new(&Arena::new(), blocks).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert!(ProducerId::new(0).is_none() && ProducerId::new(PRODUCERS_MAX + 1).is_none());
    assert_eq!(ProducerId::new(PRODUCERS_MAX).unwrap().get(), PRODUCERS_MAX);
}

#[test]
fn positions_wrap_around() {
    let start = u32::MAX - 5;
    let tail = AtomicU32::new(start);
    let blocks: Vec<_> = (0..4)
        .map(|index| QueueBlock::new(index, start, 4))
        .collect();
    let words = QueueWords::new(&tail, &blocks);
    let mut consumer = QueueConsumer::new(4, start);
    for value in 0..20 {
        let position = words.reserve(ONE).unwrap();
        assert_eq!(position, start.wrapping_add(value));
        words.write(position, &payload(value.into()));
        words.commit(position, ONE).unwrap();
        let Take::Item(item) = consumer.take(words, 0, |_| true) else {
            panic!("nothing there");
        };
        assert_eq!(item.payload, payload(value.into()));
    }
}

#[test]
fn a_reservation_of_a_dead_process_is_freed_when_that_is_known() {
    let (mut queue, one, two) = queue(4);
    std::mem::forget(one.reserve().unwrap());
    two.push(&payload(2)).unwrap();
    // Not asked too early.
    assert_eq!(taken(&mut queue), []);
    assert!(!queue.is_empty());
    let mut asked = Vec::new();
    let items = taken_at(&mut queue, ASK_AFTER_NS, |id| {
        asked.push(id);
        false
    });
    assert_eq!((items, asked), (vec![(2, 2)], vec![ONE]));
    assert_eq!(queue.consumer().reclaimed(), 1);
    assert_eq!(queue.consumer().quarantined(), 0);
    for value in 0..4 {
        two.push(&payload(value)).unwrap();
    }
    assert_eq!(taken(&mut queue).len(), 4);
}

#[test]
fn living_owners_are_checked_at_growing_intervals_and_reclaimed() {
    let (mut queue, one, two) = queue(4);
    std::mem::forget(one.reserve().unwrap());
    two.push(&payload(2)).unwrap();
    let (mut now_ns, mut asked) = (1_000, Vec::new());
    loop {
        let found = queue.take(now_ns, |_| {
            asked.push(now_ns - 1_000);
            true
        });
        match found {
            Take::Held { until_ns } => {
                assert!(until_ns > now_ns, "looks again at once");
                now_ns = until_ns;
            }
            Take::Item(item) => {
                assert_eq!(item.producer, Some(TWO));
                break;
            }
            Take::Empty => panic!("an item is lost"),
        }
    }
    assert_eq!(now_ns, 1_000 + RECLAIM_AFTER_NS);
    assert_eq!(
        asked.iter().map(|at| at / ASK_AFTER_NS).collect::<Vec<_>>(),
        [1, 2, 4, 8, 16, 32]
    );
    assert_eq!(queue.consumer().quarantined(), 1);
}

#[test]
fn all_who_die_together_cost_one_timeout() {
    let (mut queue, one, two) = queue(16);
    for value in 0..8 {
        std::mem::forget(one.reserve().unwrap());
        two.push(&payload(value)).unwrap();
    }
    assert_eq!(taken(&mut queue), []);
    assert_eq!(taken_at(&mut queue, ASK_AFTER_NS, |_| true), []);
    let items = taken_at(&mut queue, RECLAIM_AFTER_NS, |_| true);
    assert_eq!(items, (0..8).map(|value| (2, value)).collect::<Vec<_>>());
    assert_eq!(queue.consumer().quarantined(), 8);
}

#[test]
fn what_was_reserved_later_has_its_own_time() {
    let (mut queue, one, two) = queue(16);
    std::mem::forget(one.reserve().unwrap());
    assert_eq!(taken(&mut queue), []);
    let later_ns = RECLAIM_AFTER_NS - 1;
    let reservation = one.reserve().unwrap();
    two.push(&payload(2)).unwrap();
    assert_eq!(taken_at(&mut queue, later_ns, |_| true), []);
    assert_eq!(taken_at(&mut queue, RECLAIM_AFTER_NS, |_| true), []);
    assert_eq!(queue.consumer().reclaimed(), 1);
    let mut reservation = reservation;
    reservation.write(&payload(1));
    reservation.commit().unwrap();
    assert_eq!(
        taken_at(&mut queue, RECLAIM_AFTER_NS, |_| true),
        [(1, 1), (2, 2)]
    );
}

#[test]
fn who_comes_back_late_is_told_and_harms_nobody() {
    let (mut queue, one, two) = queue(2);
    let mut late = one.reserve().unwrap();
    assert_eq!(taken(&mut queue), []);
    assert_eq!(taken_at(&mut queue, RECLAIM_AFTER_NS, |_| true), []);
    // One block is left; the other is passed over lap by lap, whichever producer writes there.
    for value in 0..5 {
        two.push(&payload(value)).unwrap();
        assert_eq!(two.push(&payload(9)), Err(Full));
        late.write(&payload(77));
        assert_eq!(taken(&mut queue), [(2, value)]);
    }
    assert_eq!(late.commit(), Err(Reclaimed));
    for value in 0..3 {
        two.push(&payload(value)).unwrap();
        assert_eq!(taken(&mut queue), [(2, value)]);
    }
    assert_eq!(queue.consumer().quarantined(), 0);
    two.push(&payload(1)).unwrap();
    two.push(&payload(2)).unwrap();
    assert_eq!(taken(&mut queue), [(2, 1), (2, 2)]);
}

#[test]
fn a_block_in_quarantine_comes_back_when_its_process_has_ended() {
    let (mut queue, one, two) = queue(4);
    std::mem::forget(one.reserve().unwrap());
    let (mut now_ns, mut asked) = (0, 0);
    let mut round = |queue: &mut DoorbellQueue, step_ns, lives| {
        two.push(&payload(2)).unwrap();
        now_ns += step_ns;
        taken_at(queue, now_ns, |_| {
            asked += 1;
            lives
        });
        asked
    };
    round(&mut queue, 0, true);
    round(&mut queue, RECLAIM_AFTER_NS, true);
    assert_eq!(queue.consumer().quarantined(), 1);
    let before = round(&mut queue, 1, true);
    for _ in 0..10 {
        assert_eq!(round(&mut queue, 1, true), before, "asked without need");
    }
    for _ in 0..queue.capacity() {
        round(&mut queue, RECLAIM_AFTER_NS, false);
    }
    assert_eq!(queue.consumer().quarantined(), 0);
}

#[test]
fn a_queue_of_which_all_blocks_are_in_quarantine_is_full() {
    let (mut queue, one, two) = queue(4);
    for _ in 0..4 {
        std::mem::forget(one.reserve().unwrap());
    }
    assert_eq!(taken(&mut queue), []);
    assert_eq!(taken_at(&mut queue, ASK_AFTER_NS, |_| true), []);
    assert_eq!(taken_at(&mut queue, RECLAIM_AFTER_NS, |_| true), []);
    assert_eq!(queue.consumer().quarantined(), 4);
    for _ in 0..10 {
        assert_eq!(two.push(&payload(1)), Err(Full));
        assert_eq!(taken(&mut queue), []);
    }
    // However long the consumer waits, it does not run ahead of the producers.
    for _ in 0..if cfg!(miri) { 10 } else { 10_000 } {
        assert_eq!(taken_at(&mut queue, RECLAIM_AFTER_NS, |_| true), []);
    }
    // The producers that held them are gone.
    for _ in 0..2 {
        let _ = two.push(&payload(1));
        taken_at(&mut queue, 3 * RECLAIM_AFTER_NS, |_| false);
    }
    two.push(&payload(1)).unwrap();
    assert_eq!(
        (queue.consumer().quarantined(), queue.consumer().dropped()),
        (0, 0)
    );
}

#[test]
fn a_reservation_that_is_dropped_is_passed_over() {
    let (mut queue, one, two) = queue(2);
    for value in 0..5 {
        drop(one.reserve().unwrap());
        two.push(&payload(value)).unwrap();
        assert_eq!(taken(&mut queue), [(2, value)]);
    }
    drop(one.reserve().unwrap());
    assert_eq!(taken(&mut queue), []);
    assert!(queue.is_empty());
    assert_eq!(queue.consumer().quarantined(), 0);
}

/// The word at `offset` of the memory of a queue, as a hostile process sees it.
fn word_at(queue: &DoorbellQueue, offset: usize) -> &AtomicU64 {
    let block = queue.block();
    assert!(offset + 8 <= block.len());
    // SAFETY: a whole word within the block, accessed as an atomic like everything there.
    unsafe { AtomicU64::from_ptr(block.ptr().as_ptr().add(offset).cast()) }
}

/// Checks that both ends still work: after some rounds, all blocks are usable again.
fn recovers(queue: &mut DoorbellQueue, producer: &DoorbellProducer) {
    let mut now_ns = 1 << 40;
    for _ in 0..40 {
        let _ = producer.push(&payload(1));
        now_ns += RECLAIM_AFTER_NS;
        for _ in 0..queue.capacity() * 2 {
            queue.take(now_ns, |_| false);
        }
    }
    for value in 0..u64::from(queue.capacity()) {
        producer.push(&payload(value)).unwrap();
    }
    assert_eq!(producer.push(&payload(0)), Err(Full));
    assert_eq!(taken(queue).len(), queue.capacity() as usize);
    assert!(queue.is_empty());
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn any_word_in_any_block_is_survived() {
    let states = 0..4_u64;
    for state in states {
        for position in [0_u32, 1, 3, 4, 5, 8, 1 << 31, u32::MAX - 3, u32::MAX] {
            for owner in [0_u64, 1, 2, 99, u64::from(PRODUCERS_MAX)] {
                for index in 0..4 {
                    let (mut queue, one, _) = queue(4);
                    let word = u64::from(position) << 32 | state << 30 | owner;
                    word_at(&queue, 256 + index * 64).store(word, Ordering::Relaxed);
                    recovers(&mut queue, &one);
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn any_tail_is_survived() {
    for tail in [
        1,
        3,
        4,
        5,
        1 << 20,
        1 << 31,
        u64::from(u32::MAX) - 9,
        u64::from(u32::MAX),
    ] {
        for items in 0..4 {
            let (mut queue, one, _) = queue(4);
            for value in 0..items {
                one.push(&payload(value)).unwrap();
            }
            word_at(&queue, 128).store(tail, Ordering::Relaxed);
            recovers(&mut queue, &one);
        }
    }
}

#[test]
fn garbage_everywhere_is_survived() {
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
        let (mut queue, one, _) = queue(4);
        for offset in (128..queue.block().len()).step_by(8) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            word_at(&queue, offset).store(random, Ordering::Relaxed);
            let _ = one.push(&payload(1));
            queue.take(0, |_| true);
        }
        recovers(&mut queue, &one);
    }
}

#[test]
fn a_header_that_does_not_describe_a_queue_is_refused() {
    let (queue, _, _) = queue(4);
    for blocks in [0, 1, 3, 8, 1 << 17, 1 << 40, u64::MAX] {
        word_at(&queue, 0).store(blocks, Ordering::Relaxed);
        let refused = DoorbellProducer::attach(Arc::clone(queue.block()), ONE).unwrap_err();
        assert_eq!(refused, Corrupt::Geometry, "{blocks}");
    }
    // The header of a queue in use is not read again.
    word_at(&queue, 0).store(2, Ordering::Relaxed);
    assert_eq!(queue.capacity(), 4);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no memfd")]
fn another_mapping_of_the_queue_is_the_same_queue() {
    let (mut queue, one, _) = queue(8);
    let block = queue.block();
    let fd = block.fd().as_fd().try_clone_to_owned().unwrap();
    let mapped = Block::map(fd, block.offset(), block.len()).unwrap();
    let far = DoorbellProducer::attach(Arc::new(mapped), TWO).unwrap();
    one.push(&payload(1)).unwrap();
    far.push(&payload(2)).unwrap();
    assert_eq!(taken(&mut queue), [(1, 1), (2, 2)]);
}

#[test]
fn many_threads_push_and_one_takes() {
    const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
    const THREADS: u32 = 4;
    let mut queue = DoorbellQueue::new(&Arena::new(), 64).unwrap();
    let threads: Vec<_> = (1..=THREADS)
        .map(|number| {
            let producer = queue.producer(ProducerId::new(number).unwrap());
            thread::spawn(move || {
                for value in 0..EACH {
                    while producer.push(&payload(value)).is_err() {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut next = [0; THREADS as usize];
    let start = std::time::Instant::now();
    while next.iter().sum::<u64>() < EACH * u64::from(THREADS) {
        let now_ns = start.elapsed().as_nanos() as u64;
        match queue.take(now_ns, |_| true) {
            Take::Item(item) => {
                let owner = item.producer.unwrap().get() as usize - 1;
                assert_eq!(item.payload, payload(next[owner]), "order of one producer");
                next[owner] += 1;
            }
            Take::Empty | Take::Held { .. } => thread::yield_now(),
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(taken(&mut queue), []);
    assert_eq!(queue.consumer().dropped(), 0);
}
