#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::{Cqe, RecvWqe, SendWqe, Sge};

const PUBLISHED_OFFSET: usize = 128;
const RELEASED_OFFSET: usize = 256;

/// A word of the block, as a hostile process sees it.
fn poke(block: &Block, offset: usize, value: u32) {
    assert!(offset + 4 <= block.len());
    // SAFETY: within the block, aligned, and accessed as an atomic like everything there.
    unsafe { AtomicU32::from_ptr(block.ptr().as_ptr().add(offset).cast()) }
        .store(value, Ordering::Relaxed);
}

fn completion(n: u64) -> Cqe {
    Cqe {
        wr_id: n,
        timestamp: !n,
        ..Cqe::default()
    }
}

fn push(producer: &mut RingProducer, n: u64) -> bool {
    let Some(mut slot) = producer.slot(0) else {
        return false;
    };
    slot.write_header(&completion(n));
    producer.publish(1);
    true
}

fn pop(consumer: &mut RingConsumer) -> Option<u64> {
    let number = consumer.take()?;
    let cqe = consumer.slot(number).read_header::<Cqe>();
    consumer.release(1);
    assert_eq!(cqe, completion(cqe.wr_id), "torn slot");
    Some(cqe.wr_id)
}

#[test]
fn a_million_items_cross_two_threads_in_order() {
    const ITEMS: u64 = if cfg!(miri) { 600 } else { 1_000_000 };
    let (mut producer, mut consumer) = ring(&Arena::new(), 256, Cqe::STRIDE).unwrap();
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < ITEMS {
            if push(&mut producer, next) {
                next += 1;
            } else {
                std::thread::yield_now();
            }
        }
        producer
    });
    let mut expected = 0;
    while expected < ITEMS {
        match pop(&mut consumer) {
            Some(n) => {
                assert_eq!(n, expected);
                expected += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    let mut producer = sender.join().unwrap();
    assert!(pop(&mut consumer).is_none());
    assert_eq!(producer.free(), 256);
    assert_eq!((producer.check(), consumer.check()), (Ok(()), Ok(())));
}

#[test]
fn batches_cross_two_threads_while_the_consumer_holds_slots() {
    const ITEMS: u64 = if cfg!(miri) { 200 } else { 200_000 };
    let (mut producer, mut consumer) = ring(&Arena::new(), 8, Cqe::STRIDE).unwrap();
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < ITEMS {
            let count = u64::from(producer.free())
                .min(1 + next % 3)
                .min(ITEMS - next);
            if count == 0 {
                std::thread::yield_now();
            }
            for n in 0..count {
                producer
                    .slot(n as u32)
                    .unwrap()
                    .write_header(&completion(next + n));
            }
            producer.publish(count as u32);
            next += count;
        }
    });
    let mut held = std::collections::VecDeque::new();
    let mut taken = 0;
    while taken < ITEMS {
        match consumer.take() {
            Some(number) => {
                held.push_back((number, taken));
                taken += 1;
            }
            None => std::thread::yield_now(),
        }
        // Everything held stays as it was, until five are held.
        for &(number, n) in &held {
            assert_eq!(consumer.slot(number).read_header::<Cqe>(), completion(n));
        }
        if held.len() == 5 {
            held.drain(..2);
            consumer.release(2);
        }
        assert_eq!(consumer.taken() as usize, held.len());
    }
    sender.join().unwrap();
}

#[test]
fn a_full_ring_refuses_the_next_item_and_overwrites_nothing() {
    let (mut producer, mut consumer) = ring(&Arena::new(), 3, Cqe::STRIDE).unwrap();
    assert_eq!((producer.capacity(), consumer.capacity()), (4, 4));
    for n in 0..4 {
        assert!(push(&mut producer, n));
    }
    assert!(producer.slot(0).is_none() && !push(&mut producer, 99));
    assert_eq!(producer.check(), Ok(()), "full is not corrupt");
    assert_eq!(pop(&mut consumer), Some(0));
    assert!(push(&mut producer, 4));
    assert_eq!(
        [(); 5].map(|()| pop(&mut consumer)),
        [Some(1), Some(2), Some(3), Some(4), None]
    );
}

#[test]
fn a_requests_list_stays_in_its_slot_until_it_completes() {
    let stride = SendWqe::stride(3, 0);
    let (mut producer, mut consumer) = ring(&Arena::new(), 2, stride).unwrap();
    let sge = |n: u32| Sge {
        addr: u64::from(n) << 12,
        length: n,
        lkey: !n,
    };
    let post = |producer: &mut RingProducer, wr_id: u64| {
        let mut slot = producer.slot(0)?;
        slot.write_header(&SendWqe {
            wr_id,
            sge_count: 3,
            ..SendWqe::default()
        });
        for n in 0..3 {
            slot.write_sge::<SendWqe>(n, &sge(wr_id as u32 * 10 + n));
        }
        producer.publish(1);
        Some(())
    };
    post(&mut producer, 1).unwrap();
    post(&mut producer, 2).unwrap();
    let first = consumer.take().unwrap();
    let second = consumer.take().unwrap();
    assert!(post(&mut producer, 3).is_none());
    consumer.release(1);
    post(&mut producer, 3).unwrap();
    let third = consumer.take().unwrap();
    assert_eq!(
        (second, third),
        (first.wrapping_add(1), first.wrapping_add(2))
    );
    for (number, wr_id) in [(second, 2), (third, 3)] {
        let slot = consumer.slot(number);
        assert_eq!(slot.read_header::<SendWqe>().wr_id, wr_id);
        for n in 0..3 {
            assert_eq!(slot.sge::<SendWqe>(n), Ok(sge(wr_id as u32 * 10 + n)));
        }
    }
}

#[test]
fn discarding_empties_the_ring_for_the_producer() {
    let (mut producer, mut consumer) = ring(&Arena::new(), 4, Cqe::STRIDE).unwrap();
    for n in 0..3 {
        push(&mut producer, n);
    }
    assert!(consumer.take().is_some());
    assert_eq!(consumer.discard(), 3);
    assert_eq!(
        (producer.free(), consumer.available(), consumer.taken()),
        (4, 0, 0)
    );
    push(&mut producer, 7);
    assert_eq!(pop(&mut consumer), Some(7));
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no memfd")]
fn another_mapping_of_the_memfd_holds_the_same_ring() {
    let arena = Arena::new();
    let _before = arena.alloc(5000, 1).unwrap();
    let (mut producer, consumer) = ring(&arena, 4, RecvWqe::stride(1)).unwrap();
    let block = consumer.block();
    let fd = block.fd().as_fd().try_clone_to_owned().unwrap();
    let there = Block::map(fd, block.offset(), block.len()).unwrap();
    assert_ne!(there.ptr(), block.ptr());
    let mut elsewhere = RingConsumer::attach(Arc::new(there)).unwrap();
    drop(consumer);

    for round in 0..10 {
        let header = RecvWqe {
            wr_id: round,
            sge_count: 1,
            pad: 0,
        };
        let sge = Sge {
            addr: round,
            length: 1,
            lkey: 2,
        };
        let mut slot = producer.slot(0).unwrap();
        slot.write_header(&header);
        slot.write_sge::<RecvWqe>(0, &sge);
        producer.publish(1);

        let number = elsewhere.take().unwrap();
        assert_eq!(elsewhere.slot(number).read_header::<RecvWqe>(), header);
        assert_eq!(elsewhere.slot(number).sge::<RecvWqe>(0), Ok(sge));
        assert_eq!(producer.free(), 3);
        elsewhere.release(1);
        assert_eq!(producer.free(), 4);
    }
}

#[test]
fn a_corrupt_producer_index_is_reported_and_yields_no_slot() {
    for bad in [17, 18, 1 << 31, u32::MAX, 2] {
        let (mut producer, mut consumer) = ring(&Arena::new(), 16, Cqe::STRIDE).unwrap();
        for n in 0..3 {
            push(&mut producer, n);
        }
        assert_eq!(pop(&mut consumer), Some(0));
        let held = consumer.take().unwrap();
        assert_eq!(consumer.available(), 1);
        poke(producer.block(), PUBLISHED_OFFSET, bad);
        assert_eq!(
            consumer.available(),
            if bad == 17 { 15 } else { 0 },
            "published {bad}"
        );
        if bad == 17 {
            // One was released, so 17 is just within the ring: a lie that cannot be told from the
            // truth.
            assert_eq!(consumer.check(), Ok(()));
            continue;
        }
        assert_eq!(consumer.take(), None);
        assert_eq!(consumer.check(), Err(Corrupt::Index));
        assert_eq!(consumer.slot(held).read_header::<Cqe>(), completion(1));
    }
}

#[test]
fn a_corrupt_consumer_index_is_reported_and_yields_no_free_slot() {
    let (mut producer, mut consumer) = ring(&Arena::new(), 4, Cqe::STRIDE).unwrap();
    for n in 0..4 {
        push(&mut producer, n);
    }
    poke(consumer.block(), RELEASED_OFFSET, 5);
    assert!(producer.slot(0).is_none());
    assert_eq!(
        (producer.free(), producer.check()),
        (0, Err(Corrupt::Index))
    );
    assert_eq!(
        pop(&mut consumer),
        Some(0),
        "the consumer goes by its own index"
    );
}

#[test]
fn no_number_leads_out_of_the_block() {
    let (_, consumer) = ring(&Arena::new(), 16, SendWqe::stride(5, 100)).unwrap();
    let block = consumer.block();
    let start = block.ptr().addr().get();
    for number in (0..64)
        .chain(u32::MAX - 64..=u32::MAX)
        .chain((0..32).map(|bit| 1 << bit))
    {
        let slot = consumer.memory.slot(number).addr().get();
        assert!(slot >= start + SLOTS_OFFSET);
        assert!(slot + consumer.memory.stride as usize <= start + block.len());
    }
}

#[test]
fn garbage_in_the_indices_never_breaks_an_invariant() {
    const ROUNDS: u32 = if cfg!(miri) { 300 } else { 20_000 };
    let (mut producer, mut consumer) = ring(&Arena::new(), 8, Cqe::STRIDE).unwrap();
    let block = Arc::clone(consumer.block());
    // xorshift32; small steps and wild values in turn.
    let mut state = 0x2545_f491_u32;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut corrupted = 0;
    for _ in 0..ROUNDS {
        let value = if random() % 2 == 0 {
            random()
        } else {
            random() % 32
        };
        if random() % 4 == 0 {
            poke(
                &block,
                if random() % 2 == 0 {
                    PUBLISHED_OFFSET
                } else {
                    RELEASED_OFFSET
                },
                value,
            );
        }
        assert!(producer.free() <= 8);
        for _ in 0..random() % 3 {
            push(&mut producer, 1);
        }
        assert!(consumer.available() <= 8);
        if let Some(number) = consumer.take() {
            assert!(consumer.taken() <= 8);
            let _ = consumer.slot(number).read_header::<Cqe>();
        }
        consumer.release(random() % (consumer.taken() + 1));
        if producer.check().is_err() || consumer.check().is_err() {
            corrupted += 1;
            if let (Ok(fresh_producer), Ok(fresh_consumer)) = (
                RingProducer::attach(Arc::clone(&block)),
                RingConsumer::attach(Arc::clone(&block)),
            ) {
                (producer, consumer) = (fresh_producer, fresh_consumer);
            }
        }
    }
    assert!(
        corrupted > ROUNDS / 200,
        "the test has told lies that were found out"
    );
}

#[test]
fn a_header_that_does_not_fit_its_block_is_refused() {
    let geometry = |capacity: u32, stride: u32| {
        let (producer, _) = ring(&Arena::new(), 4, 64).unwrap();
        let block = Arc::clone(producer.block());
        Geometry { capacity, stride }.store(&block);
        RingConsumer::attach(block).map(|_| ())
    };
    assert_eq!(geometry(4, 64), Ok(()));
    assert_eq!(geometry(4, 32), Ok(()));
    for (capacity, stride) in [
        (0, 64),
        (3, 64),
        (8, 64),
        (4, 72),
        (4, 0),
        (4, 12),
        (1 << 31, 1 << 31),
        (1 << 31, 2),
        (u32::MAX, u32::MAX),
        (4, RING_STRIDE_MAX + 8),
        (RING_SLOTS_MAX * 2, 8),
    ] {
        assert_eq!(
            geometry(capacity, stride),
            Err(Corrupt::Geometry),
            "{capacity} x {stride}"
        );
    }
    let small = Arena::new().alloc(SLOTS_OFFSET - 8, 8).unwrap();
    assert_eq!(
        RingProducer::attach(Arc::new(small)).err(),
        Some(Corrupt::Geometry)
    );
}

#[test]
fn impossible_sizes_are_the_callers_error() {
    for (slots, stride) in [
        (0, 64),
        (RING_SLOTS_MAX + 1, 64),
        (4, 0),
        (4, 12),
        (4, RING_STRIDE_MAX + 8),
    ] {
        let error = ring(&Arena::new(), slots, stride).map(|_| ()).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::InvalidInput,
            "{slots} x {stride}"
        );
    }
}

#[test]
fn a_ring_of_reused_memory_starts_empty() {
    let arena = Arena::new();
    let (mut producer, consumer) = ring(&arena, 4, Cqe::STRIDE).unwrap();
    let place = producer.block().ptr();
    push(&mut producer, 9);
    drop((producer, consumer));
    let (mut producer, mut consumer) = ring(&arena, 4, Cqe::STRIDE).unwrap();
    assert_eq!(producer.block().ptr(), place);
    assert_eq!((producer.free(), consumer.available()), (4, 0));
}

#[test]
fn the_ends_can_move_to_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<RingProducer>();
    is_send::<RingConsumer>();
}
