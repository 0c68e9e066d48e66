#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::*;
use crate::{Arena, Block, Corrupt};

fn drained(doorbells: &Doorbells) -> Vec<u32> {
    let mut bits = Vec::new();
    doorbells.drain(|bit| bits.push(bit));
    bits
}

#[test]
fn each_ring_is_drained_once_and_in_order() {
    let doorbells = Doorbells::new(&Arena::new(), DOORBELLS_MAX).unwrap();
    assert!(doorbells.is_empty());
    let bits = [0, 1, 63, 64, 127, 4095, 4096, 8191, 32_768, 65_472, 65_535];
    for bit in bits.into_iter().rev() {
        assert!(doorbells.ring(bit), "bit {bit} is new");
        assert!(!doorbells.ring(bit), "bit {bit} is not new any more");
        assert!(!doorbells.is_empty());
    }
    assert_eq!(drained(&doorbells), bits);
    assert!(doorbells.is_empty());
    assert_eq!(drained(&doorbells), []);
    assert!(doorbells.ring(64));
}

#[test]
fn sets_of_any_size_have_all_their_doorbells() {
    const MOST: u32 = if cfg!(miri) { 8192 } else { DOORBELLS_MAX };
    for bits in [1, 2, 63, 64, 65, 1000, 4096, 4097, MOST] {
        let doorbells = Doorbells::new(&Arena::new(), bits).unwrap();
        assert_eq!(doorbells.bits(), bits);
        assert!((0..bits).all(|bit| doorbells.ring(bit)));
        assert_eq!(drained(&doorbells), (0..bits).collect::<Vec<_>>());
    }
    for bits in [0, DOORBELLS_MAX + 1] {
        assert!(Doorbells::new(&Arena::new(), bits).is_err());
    }
}

#[test]
#[should_panic(expected = "no such doorbell")]
fn ringing_beyond_the_set_is_a_bug_of_ours() {
    Doorbells::new(&Arena::new(), 65).unwrap().ring(65);
}

#[test]
fn bits_that_only_a_hostile_process_can_set_are_dropped() {
    let doorbells = Doorbells::new(&Arena::new(), 70).unwrap();
    let block = doorbells.block();
    for offset in (0..block.len()).step_by(8) {
        // SAFETY: a whole word within the block, accessed as an atomic like everything there.
        unsafe { AtomicU64::from_ptr(block.ptr().as_ptr().add(offset).cast()) }
            .store(u64::MAX, Ordering::Relaxed);
    }
    assert_eq!(drained(&doorbells), (0..70).collect::<Vec<_>>());
}

/// A drain that looked at all of them would find the bit that no ringer of this crate sets.
#[test]
fn a_drain_looks_no_further_than_a_ringer_reached() {
    let doorbells = Doorbells::new(&Arena::new(), DOORBELLS_MAX).unwrap();
    let second_summary = doorbells.block().ptr().cast::<AtomicU64>();
    // SAFETY: the third word of the block, accessed as an atomic like everything there.
    unsafe { second_summary.add(2).as_ref() }.store(1, Ordering::Relaxed);
    doorbells.ring(4095);
    assert_eq!(drained(&doorbells), [4095]);
    assert!(doorbells.is_empty());
    doorbells.ring(4096);
    assert!(!doorbells.is_empty());
    assert_eq!(drained(&doorbells), [4096]);
}

#[test]
fn a_summary_bit_without_a_ring_is_harmless() {
    let summaries = [AtomicU64::new(0b11)];
    let words = [AtomicU64::new(0), AtomicU64::new(1 << 5)];
    let doorbells = DoorbellWords::new(128, &summaries, &words);
    let mut bits = Vec::new();
    doorbells.drain(|bit| bits.push(bit));
    assert_eq!(bits, [64 + 5]);
    assert!(doorbells.is_empty());
}

#[test]
fn a_ringer_that_dies_halfway_does_not_silence_the_next() {
    let summaries = [AtomicU64::new(0)];
    let words = [AtomicU64::new(1 << 5)];
    let doorbells = DoorbellWords::new(64, &summaries, &words);
    assert!(!doorbells.ring(5), "the dead ringer had set it");
    assert!(!doorbells.is_empty());
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no memfd")]
fn another_mapping_of_the_memfd_holds_the_same_doorbells() {
    let here = Doorbells::new(&Arena::new(), 5000).unwrap();
    let block = here.block();
    let fd = block.fd().as_fd().try_clone_to_owned().unwrap();
    let mapped = Arc::new(Block::map(fd, block.offset(), block.len()).unwrap());
    assert_eq!(
        Doorbells::attach(Arc::clone(&mapped), 9000).err(),
        Some(Corrupt::Geometry)
    );
    let there = Doorbells::attach(mapped, 5000).unwrap();
    assert!(there.ring(4999));
    assert!(!here.ring(4999));
    assert_eq!(drained(&here), [4999]);
    assert!(there.is_empty());
}

#[test]
fn no_work_is_left_behind_when_many_threads_ring() {
    const RINGERS: u32 = 3;
    const ROUNDS: u32 = if cfg!(miri) { 100 } else { 50_000 };
    // Few bits in few words, so that ringers meet each other and the drain.
    const BITS: [u32; 4] = [0, 1, 64, 4097];
    let doorbells = Doorbells::new(&Arena::new(), 5000).unwrap();
    let work: [AtomicU32; 4] = std::array::from_fn(|_| AtomicU32::new(0));
    let done = AtomicBool::new(false);

    let take = |collected: &mut u32| {
        doorbells.drain(|bit| {
            let index = BITS
                .iter()
                .position(|&known| known == bit)
                .expect("only these were rung");
            *collected += work[index].swap(0, Ordering::Relaxed);
        });
    };
    let collected = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut collected = 0;
            while !done.load(Ordering::Acquire) {
                take(&mut collected);
            }
            // All ringers have returned: every ring is here now, or lost.
            take(&mut collected);
            collected
        });
        let ringers: Vec<_> = (0..RINGERS)
            .map(|ringer| {
                let (doorbells, work) = (&doorbells, &work);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let index = ((round + ringer) % 4) as usize;
                        work[index].fetch_add(1, Ordering::Relaxed);
                        doorbells.ring(BITS[index]);
                    }
                })
            })
            .collect();
        for ringer in ringers {
            ringer.join().unwrap();
        }
        done.store(true, Ordering::Release);
        worker.join().unwrap()
    });
    assert_eq!(collected, RINGERS * ROUNDS);
}
