//! Blocks that go back to the program, and frames without bytes.
#![allow(clippy::unwrap_used)]

mod world;

use airdma_stream::{Description, Flags, Policy, Source, now_ns};
use std::collections::BTreeSet;
use std::task::Waker;
use std::time::Duration;
use world::common::{PATIENCE, isolated};
use world::{World, counts, exchange, next, received, send};

/// A program that has other views of the memory must not find another frame in it.
#[test]
fn blocks_return_to_a_program_that_wants_them_back() {
    isolated(
        "blocks_return_to_a_program_that_wants_them_back",
        "",
        || {
            let world = World::new();
            let pool = world.pool(1, 100);
            let mut sender = world.sender(1, 100, 1);
            sender.add_blocks(2).unwrap();
            let mut receiver = world.open(&mut sender, &pool);
            let source = Source {
                policy: Policy::Newest,
                returns: true,
                ..Source::default()
            };
            sender.add(1, source).unwrap();
            send(&mut sender, 1, 0, 10);
            let kept = exchange(&mut sender, &mut receiver);
            assert!(!kept.is_empty());
            // One is replaced, one is late, and one arrives.
            send(&mut sender, 1, 1, 10);
            let block = sender.block(1, 10).unwrap().unwrap();
            let deadline = now_ns() + 1_000_000;
            let description = Description {
                deadline,
                ..Description::now()
            };
            sender.send(block, description);
            std::thread::sleep(Duration::from_millis(5));
            assert!(!sender.is_idle_of(1));
            sender.poll(Waker::noop()).unwrap();
            let count = counts(&sender, 1);
            assert_eq!((count.sent, count.replaced, count.late), (1, 1, 1));
            assert!(sender.is_idle_of(1) && sender.is_idle_of(2));
            assert!(sender.block(1, 10).unwrap().is_none(), "none is free");
            let mut places = BTreeSet::new();
            let mut returned = Vec::new();
            while let Some(block) = sender.returned() {
                assert_eq!(block.len(), 10);
                places.insert(block.as_ptr() as usize);
                returned.push(block);
            }
            assert_eq!(places.len(), 3, "three blocks");
            drop(kept);
            let mut again = returned.pop().unwrap();
            let place = again.as_ptr();
            again.fill(9);
            sender.send(again, Description::now());
            assert_eq!(exchange(&mut sender, &mut receiver)[..], [9; 10]);
            sender.flush(PATIENCE).unwrap();
            let block = sender.returned().unwrap();
            assert_eq!(block.as_ptr(), place);
            sender.discard(block);
            assert!(sender.block(1, 10).unwrap().is_some());
        },
    );
}

#[test]
fn a_gap_is_told_in_its_place_and_is_no_frame() {
    isolated("a_gap_is_told_in_its_place_and_is_no_frame", "", || {
        let world = World::new();
        let pool = world.pool(3, 100);
        let mut sender = world.sender(3, 100, 1);
        let mut receiver = world.open(&mut sender, &pool);
        sender.add(1, Source::default()).unwrap();
        send(&mut sender, 1, 0, 10);
        let block = sender.block(1, 10).unwrap().unwrap();
        let (time, flags) = (77, Flags::GAP);
        let description = Description {
            time,
            flags,
            ..Description::default()
        };
        sender.send(block, description);
        send(&mut sender, 1, 2, 10);
        let sending = std::thread::spawn(move || {
            assert!(sender.flush(PATIENCE).unwrap());
            assert_eq!(counts(&sender, 1).offered, 2);
        });
        assert_eq!(next(&mut receiver).len(), 10);
        let gap = next(&mut receiver);
        assert!(gap.is_empty() && gap.flags().contains(Flags::GAP));
        assert_eq!((gap.time(), gap.missing()), (77, 0));
        let last = next(&mut receiver);
        assert_eq!((last.sequence(), last.missing()), (2, 0));
        sending.join().unwrap();
        assert_eq!(received(&receiver, 1).frames, 2);
    });
}
