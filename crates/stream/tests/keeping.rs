//! Blocks that a program keeps, and waits for those that are free.
#![allow(clippy::unwrap_used)]

mod world;

use airdma_stream::{Description, Flags, Frame, Pool, Receiver, Sender, Source};
use std::time::{Duration, Instant};
use world::common::{PATIENCE, isolated};
use world::{World, exchange, is_intact, received, send};

#[test]
fn a_device_whose_frames_are_kept_leaves_blocks_to_others() {
    isolated(
        "a_device_whose_frames_are_kept_leaves_blocks_to_others",
        "",
        || {
            let world = World::new();
            let pool = Pool::new(&world.there, 4, 100).unwrap();
            let pool = pool.with_quota(2).unwrap();
            let mut sender = world.sender(8, 100, 1);
            let mut receiver = world.open(&mut sender, &pool);
            for device in [1, 2] {
                sender.add(device, Source::default()).unwrap();
            }
            let mut kept = Vec::new();
            for sequence in 0..2 {
                send(&mut sender, 1, sequence, 10);
                kept.push(exchange(&mut sender, &mut receiver));
            }
            // Device 1 has its quota; the frames of the other are lent one after the other.
            for sequence in 0..20 {
                send(&mut sender, 1, sequence + 2, 10);
                send(&mut sender, 2, sequence, 10);
                let frame = exchange(&mut sender, &mut receiver);
                assert_eq!((frame.device(), frame.sequence()), (2, sequence));
            }
            assert!(sender.flush(PATIENCE).unwrap());
            assert!(receiver.next(Duration::from_millis(20)).unwrap().is_none());
            let device = received(&receiver, 1);
            assert_eq!(
                (device.frames, device.over_quota, device.missing),
                (2, 20, 0)
            );
            assert!(kept.iter().all(is_intact));
            drop(kept.pop());
            send(&mut sender, 1, 22, 10);
            let frame = exchange(&mut sender, &mut receiver);
            assert_eq!((frame.sequence(), frame.missing()), (22, 20));
        },
    );
}

#[test]
fn the_end_of_a_device_keeps_no_block() {
    isolated("the_end_of_a_device_keeps_no_block", "", || {
        let world = World::new();
        let pool = world.pool(1, 100).with_quota(1).unwrap();
        let mut sender = world.sender(2, 100, 1);
        let mut receiver = world.open(&mut sender, &pool);
        let mut ends = Vec::new();
        for device in 1..4 {
            sender.add(device, Source::default()).unwrap();
            let block = sender.wait_for_block(device, 10).unwrap();
            let description = Description {
                flags: Flags::END,
                ..Description::now()
            };
            sender.send(block, description);
            ends.push(exchange(&mut sender, &mut receiver));
        }
        assert!(ends.iter().all(|end| end.is_empty()));
        send(&mut sender, 1, 1, 10);
        assert!(is_intact(&exchange(&mut sender, &mut receiver)));
    });
}

/// A stream whose receiver has one block, with a frame that the program keeps.
fn with_the_only_block_kept(world: &World) -> (Pool, Sender, Receiver, Frame) {
    let pool = world.pool(1, 100);
    let mut sender = world.sender(2, 100, 1);
    let mut receiver = world.open(&mut sender, &pool);
    sender.add(1, Source::default()).unwrap();
    send(&mut sender, 1, 0, 10);
    let kept = exchange(&mut sender, &mut receiver);
    assert!(sender.flush(PATIENCE).unwrap());
    (pool, sender, receiver, kept)
}

#[test]
fn has_credit_reports_an_ended_connection() {
    isolated("has_credit_reports_an_ended_connection", "", || {
        let world = World::new();
        let (pool, mut sender, receiver, kept) = with_the_only_block_kept(&world);
        assert!(!sender.has_credit().unwrap());
        drop((receiver, kept, pool));
        let start = Instant::now();
        while sender.has_credit().is_ok() {
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(!sender.is_open());
    });
}

#[test]
fn a_wait_ends_with_a_credit_and_with_an_arrival() {
    isolated("a_wait_ends_with_a_credit_and_with_an_arrival", "", || {
        let world = World::new();
        let (_pool, mut sender, _receiver, kept) = with_the_only_block_kept(&world);
        // Nothing happens.
        assert!(!sender.has_credit().unwrap());
        while sender.wait(Duration::from_millis(20)).unwrap() {}
        assert!(!sender.has_credit().unwrap());
        let freeing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(kept);
        });
        let start = Instant::now();
        while !sender.has_credit().unwrap() {
            assert!(start.elapsed() < PATIENCE);
            assert!(sender.wait(PATIENCE).unwrap(), "a credit ends the wait");
        }
        freeing.join().unwrap();
        // Both blocks of the sender are used: the arrival of a frame gives one back.
        send(&mut sender, 1, 1, 10);
        send(&mut sender, 1, 2, 10);
        assert!(!sender.has_credit().unwrap(), "a frame waits");
        while sender.block(1, 10).unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE);
            assert!(sender.wait(PATIENCE).unwrap(), "an arrival ends the wait");
        }
    });
}
