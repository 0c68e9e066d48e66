#![allow(clippy::unwrap_used)]

use super::*;
use crate::Destination;

const LEFT: &str = "10.0.0.1";
const RIGHT: &str = "10.0.0.2";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ports() -> (SimPort, SimPort) {
    pair(&[address(LEFT)], &[address(RIGHT), address("fe80::2")]).unwrap()
}

fn add(batch: &mut TransmitBatch, fill: u8, target: &str) {
    let destination = Destination {
        address: address(target),
        source_index: 0,
        tos: 2,
        hop_limit: 0,
        flow_label: 0,
    };
    batch.reserve(64).unwrap().fill(fill);
    batch.commit(64, destination);
}

fn take(port: &mut SimPort, budget: usize) -> Vec<u8> {
    let mut arrived = Vec::new();
    port.receive(budget, &mut |packet| {
        assert_eq!((packet.tos, packet.ttl, packet.bytes.len()), (2, 64, 64));
        arrived.push(packet.bytes[0]);
    })
    .unwrap();
    arrived
}

fn readable(port: &SimPort) -> bool {
    let mut descriptors = Vec::new();
    port.wait_descriptors(&mut descriptors);
    let mut polled = libc::pollfd {
        fd: descriptors[0],
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one open descriptor.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}

#[test]
fn packets_arrive_in_order_and_the_descriptor_is_readable_while_they_wait() {
    let (mut left, mut right) = ports();
    assert!(!readable(&right));
    let mut batch = TransmitBatch::with_capacity(4096, 16);
    for fill in 0..5 {
        add(&mut batch, fill, RIGHT);
    }
    left.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert!(readable(&right));
    assert!(!readable(&left));
    assert_eq!(take(&mut right, 3), [0, 1, 2]);
    assert!(readable(&right));
    assert_eq!(take(&mut right, 3), [3, 4]);
    assert!(!readable(&right));
    assert!(take(&mut right, 3).is_empty());
    assert_eq!(left.counters().tx_packets, 5);
    assert_eq!(right.counters().rx_packets, 5);
}

#[test]
fn packets_to_nobody_are_counted_and_dropped() {
    let (mut left, mut right) = ports();
    let mut batch = TransmitBatch::with_capacity(4096, 16);
    add(&mut batch, 1, "10.0.0.9");
    // The peer's, but of another family than our source.
    add(&mut batch, 2, "fe80::2");
    add(&mut batch, 3, RIGHT);
    left.transmit(&mut batch).unwrap();
    assert_eq!(take(&mut right, 9), [3]);
    assert_eq!(left.counters().tx_unreachable, 2);
}

#[test]
fn a_full_queue_drops_like_a_socket() {
    let (mut left, mut right) = ports();
    let mut batch = TransmitBatch::with_capacity(1 << 20, 8192);
    for number in 0..FRAMES_MAX + 3 {
        add(&mut batch, number as u8, RIGHT);
    }
    left.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(right.counters().rx_overflow, 3);
    assert_eq!(take(&mut right, usize::MAX).len(), FRAMES_MAX);
}
