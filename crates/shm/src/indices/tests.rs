#![allow(clippy::unwrap_used)]

use super::*;

/// Just before the wrap-around, so that every test crosses it.
const START: u32 = u32::MAX - 1;

fn ends(capacity: u32) -> (Indices, ProducerIndex, ConsumerIndex) {
    let shared = Indices::new(START);
    let producer = ProducerIndex::attach(&shared, capacity).unwrap();
    let consumer = ConsumerIndex::attach(&shared, capacity).unwrap();
    (shared, producer, consumer)
}

#[test]
fn slots_go_round_in_order_through_the_wrap_around() {
    let (shared, mut producer, mut consumer) = ends(4);
    for round in 0..10 {
        assert_eq!(producer.free(&shared), 4);
        assert!(consumer.take(&shared).is_none());
        assert!(producer.has_free(&shared, 3) && !producer.has_free(&shared, 5));
        assert_eq!(producer.number(2), START.wrapping_add(round * 3 + 2));
        producer.publish(&shared, 3);
        assert_eq!(
            (producer.free(&shared), consumer.available(&shared)),
            (1, 3)
        );
        for n in 0..3 {
            assert_eq!(
                consumer.take(&shared),
                Some(START.wrapping_add(round * 3 + n))
            );
        }
        assert_eq!((consumer.available(&shared), consumer.taken()), (0, 3));
        consumer.release(&shared, 3);
    }
    assert_eq!((producer.check(), consumer.check()), (Ok(()), Ok(())));
}

#[test]
fn taken_slots_stay_in_use_until_released() {
    let (shared, mut producer, mut consumer) = ends(2);
    assert!(producer.has_free(&shared, 2));
    producer.publish(&shared, 2);
    let first = consumer.take(&shared).unwrap();
    let second = consumer.take(&shared).unwrap();
    assert!(!producer.has_free(&shared, 1));
    assert!(
        consumer.holds(first) && consumer.holds(second) && !consumer.holds(second.wrapping_add(1))
    );
    consumer.release(&shared, 1);
    assert!(!consumer.holds(first) && consumer.holds(second));
    assert!(producer.has_free(&shared, 1) && !producer.has_free(&shared, 2));
}

#[test]
fn the_other_index_is_not_loaded_while_the_last_value_suffices() {
    let (shared, mut producer, mut consumer) = ends(4);
    producer.publish(&shared, 2);
    assert!(consumer.take(&shared).is_some());
    // A value that a reader would find corrupt.
    let honest = shared
        .published
        .0
        .swap(START.wrapping_sub(1), Ordering::Relaxed);
    assert!(consumer.take(&shared).is_some());
    assert_eq!(consumer.check(), Ok(()));
    shared.published.0.store(honest, Ordering::Relaxed);

    shared
        .released
        .0
        .store(START.wrapping_sub(1), Ordering::Relaxed);
    assert!(producer.has_free(&shared, 2));
    assert_eq!(producer.check(), Ok(()));
    assert!(!producer.has_free(&shared, 3));
    assert_eq!(producer.check(), Err(Corrupt::Index));
}

#[test]
fn a_producer_that_overruns_the_ring_is_corrupt_for_good() {
    let (shared, mut producer, mut consumer) = ends(4);
    producer.publish(&shared, 1);
    assert!(consumer.take(&shared).is_some());
    for bad in [5, 6, 1000, 1 << 31, u32::MAX] {
        shared
            .published
            .0
            .store(START.wrapping_add(bad), Ordering::Relaxed);
        assert_eq!(
            (consumer.available(&shared), consumer.take(&shared)),
            (0, None)
        );
        assert_eq!(consumer.check(), Err(Corrupt::Index));
    }
    shared
        .published
        .0
        .store(START.wrapping_add(2), Ordering::Relaxed);
    assert_eq!(
        consumer.available(&shared),
        0,
        "an index that was wrong once is not trusted again"
    );
    assert_eq!(consumer.taken(), 1, "what was taken before stays");
    consumer.release(&shared, 1);
}

#[test]
fn a_producer_that_takes_back_what_it_published_is_corrupt() {
    let (shared, mut producer, mut consumer) = ends(8);
    producer.publish(&shared, 5);
    assert_eq!(consumer.available(&shared), 5);
    assert!(consumer.take(&shared).is_some());
    shared
        .published
        .0
        .store(START.wrapping_add(4), Ordering::Relaxed);
    assert_eq!(consumer.available(&shared), 0);
    assert_eq!(consumer.check(), Err(Corrupt::Index));
}

#[test]
fn releasing_unpublished_slots_or_moving_backwards_is_corrupt() {
    for bad in [4, 1000, 1 << 31, u32::MAX, 1] {
        let (shared, mut producer, mut consumer) = ends(8);
        producer.publish(&shared, 3);
        assert!(consumer.take(&shared).is_some() && consumer.take(&shared).is_some());
        consumer.release(&shared, 2);
        assert_eq!(producer.free(&shared), 7);
        shared
            .released
            .0
            .store(START.wrapping_add(bad), Ordering::Relaxed);
        assert_eq!(
            (producer.free(&shared), producer.has_free(&shared, 1)),
            (0, false),
            "released {bad}"
        );
        assert_eq!(producer.check(), Err(Corrupt::Index));
    }
}

#[test]
fn a_consumer_corrupt_in_mid_batch_does_not_panic_the_producer() {
    let (shared, mut producer, _) = ends(4);
    assert!(producer.has_free(&shared, 2));
    shared
        .released
        .0
        .store(START.wrapping_add(77), Ordering::Relaxed);
    assert!(!producer.has_free(&shared, 5));
    producer.publish(&shared, 2);
    assert_eq!(producer.check(), Err(Corrupt::Index));
}

#[test]
fn attaching_refuses_indices_and_capacities_that_cannot_be() {
    let shared = Indices::new(7);
    assert_eq!(
        ConsumerIndex::attach(&shared, 0).unwrap_err(),
        Corrupt::Geometry
    );
    assert_eq!(
        ConsumerIndex::attach(&shared, 12).unwrap_err(),
        Corrupt::Geometry
    );
    shared.published.0.store(7 + 9, Ordering::Relaxed);
    assert_eq!(
        ConsumerIndex::attach(&shared, 8).unwrap_err(),
        Corrupt::Index
    );
    assert_eq!(
        ProducerIndex::attach(&shared, 8).unwrap_err(),
        Corrupt::Index
    );
    assert_eq!(
        ConsumerIndex::attach(&shared, 16)
            .unwrap()
            .available(&shared),
        9
    );
}

#[test]
#[should_panic(expected = "not free")]
fn publishing_more_than_is_free_is_a_bug_of_ours() {
    let (shared, mut producer, _) = ends(2);
    producer.publish(&shared, 3);
}

#[test]
#[should_panic(expected = "not taken")]
fn releasing_more_than_was_taken_is_a_bug_of_ours() {
    let (shared, mut producer, mut consumer) = ends(2);
    producer.publish(&shared, 2);
    assert!(consumer.take(&shared).is_some());
    consumer.release(&shared, 2);
}
