#![allow(clippy::unwrap_used)]
use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

fn ring() -> (PacketProducer, PacketConsumer) {
    let (consumer, block) = packet_ring().unwrap();
    (PacketProducer::attach(block).unwrap(), consumer)
}

fn packet(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

fn pop(consumer: &mut PacketConsumer) -> Option<(PacketTag, Vec<u8>)> {
    let mut out = vec![0; 1 << 16];
    let (tag, bytes) = consumer.pop(&mut out)?;
    Some((tag, bytes.to_vec()))
}

/// Overwrites a word of the ring, as a hostile process may.
fn scribble(consumer: &PacketConsumer, offset: usize, value: u32) {
    let at = consumer.memory.at::<u32>(offset);
    // SAFETY: within the ring, and aligned.
    unsafe { AtomicU32::from_ptr(at.as_ptr()) }.store(value, Ordering::SeqCst);
}

#[test]
fn packets_of_any_length_arrive_whole_and_in_order() {
    let (mut producer, mut consumer) = ring();
    let rounds = if cfg!(miri) { 40 } else { 4000 };
    let mut waiting = std::collections::VecDeque::new();
    for round in 0..rounds {
        let bytes = packet(round * 131 % 9000, round);
        let tag = PacketTag((round as u32).to_ne_bytes());
        while !producer.push(tag, &bytes) {
            producer.publish();
            assert_eq!(pop(&mut consumer), waiting.pop_front());
            consumer.release();
        }
        waiting.push_back((tag, bytes));
    }
    producer.publish();
    while let Some(expected) = waiting.pop_front() {
        assert_eq!(pop(&mut consumer), Some(expected));
    }
    assert_eq!(pop(&mut consumer), None);
    assert!(producer.check().is_ok() && consumer.check().is_ok());
}

#[test]
fn what_is_not_published_does_not_arrive() {
    let (mut producer, mut consumer) = ring();
    assert!(producer.push(PacketTag::default(), &[1; 12]));
    assert_eq!(pop(&mut consumer), None);
    producer.publish();
    assert_eq!(
        pop(&mut consumer).map(|(_, bytes)| bytes),
        Some(vec![1; 12])
    );
}

#[test]
fn a_full_ring_refuses_and_has_room_again_after_release() {
    let (mut producer, mut consumer) = ring();
    let each = packet(UNIT - HEAD, 3);
    for _ in 0..CAPACITY {
        assert!(producer.push(PacketTag::default(), &each));
    }
    assert!(!producer.push(PacketTag::default(), &each));
    producer.publish();
    assert!(!producer.push(PacketTag::default(), &each));
    assert!(pop(&mut consumer).is_some());
    assert!(!producer.push(PacketTag::default(), &each));
    consumer.release();
    assert!(producer.push(PacketTag::default(), &each));
    assert!(!producer.push(PacketTag::default(), &each));
}

#[test]
fn a_packet_longer_than_the_ring_is_refused() {
    let (mut producer, _consumer) = ring();
    assert!(!producer.push(PacketTag::default(), &vec![0; PACKET_RING_BYTES]));
}

#[test]
fn a_false_length_ends_the_ring() {
    for length in [u32::MAX, 1 << 20, 1 << 16, 70_000, 128] {
        let (mut producer, mut consumer) = ring();
        assert!(producer.push(PacketTag::default(), &[1; 12]));
        producer.publish();
        scribble(&consumer, UNITS_OFFSET, length);
        assert_eq!(pop(&mut consumer), None, "a length of {length}");
        assert_eq!(consumer.check(), Err(Corrupt::SlotBounds));
        assert_eq!(pop(&mut consumer), None);
    }
}

#[test]
fn a_false_index_ends_the_ring() {
    for published in [CAPACITY + 1, u32::MAX, 1 << 31] {
        let (_producer, mut consumer) = ring();
        scribble(&consumer, INDICES_OFFSET, published);
        assert_eq!(pop(&mut consumer), None);
        assert_eq!(consumer.check(), Err(Corrupt::Index));
    }
    let (mut producer, consumer) = ring();
    scribble(&consumer, INDICES_OFFSET + 128, 5);
    let _ = producer.index.free(producer.memory.indices());
    assert!(!producer.push(PacketTag::default(), &[0; 12]));
    assert_eq!(producer.check(), Err(Corrupt::Index));
}

#[test]
fn a_block_of_another_size_holds_no_ring() {
    let block = Arena::new().alloc(PACKET_RING_BYTES - 64, 128).unwrap();
    let attached = PacketProducer::attach(Arc::new(block));
    assert!(matches!(attached, Err(Corrupt::Geometry)));
}

#[test]
fn the_producer_learns_that_the_consumer_sleeps() {
    let (mut producer, mut consumer) = ring();
    let watch = consumer.watch();
    let mut push = || {
        assert!(producer.push(PacketTag::default(), &[0; 12]));
        producer.publish()
    };
    assert!(!push());
    watch.set_asleep(true);
    assert!(watch.has_packets());
    assert!(push());
    watch.set_asleep(false);
    assert!(!push());
    while pop(&mut consumer).is_some() {}
    consumer.release();
    assert!(!watch.has_packets());
}

#[test]
fn a_producer_cannot_fill_an_empty_ring_by_its_consumers_index() {
    let (mut producer, mut consumer) = ring();
    assert!(!consumer.has_packets());
    producer.push(PacketTag::default(), &[0; 12]);
    producer.publish();
    assert!(consumer.has_packets());
    assert!(pop(&mut consumer).is_some());
    consumer.release();
    scribble(&consumer, INDICES_OFFSET + 128, 77);
    assert!(consumer.watch().has_packets());
    assert!(!consumer.has_packets());
}
