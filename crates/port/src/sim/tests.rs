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
    add_to(batch, fill, target, false);
}

fn add_bundled(batch: &mut TransmitBatch, fill: u8, target: &str) {
    add_to(batch, fill, target, true);
}

fn add_to(batch: &mut TransmitBatch, fill: u8, target: &str, bundles: bool) {
    let destination = Destination {
        address: address(target).into(),
        source_index: 0,
        tos: 2,
        hop_limit: 0,
        flow_label: 0,
        bundles,
    };
    let packet = batch.reserve(64).unwrap();
    packet.fill(fill);
    if bundles {
        // All for one queue pair, or they would not leave together.
        packet[5..8].fill(9);
    }
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
fn packets_arrive_in_order_with_a_readable_descriptor() {
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
fn packets_to_a_peer_that_takes_bundles_are_one_frame() {
    let (mut port, carrier) = carried(&[address(LEFT)]).unwrap();
    let mut batch = TransmitBatch::with_capacity(4096, 16);
    for fill in 2..7 {
        add_bundled(&mut batch, fill, LEFT);
    }
    port.transmit(&mut batch).unwrap();
    let frame = carrier.take().unwrap();
    assert!(carrier.take().is_none());
    let counters = port.counters();
    assert_eq!((counters.tx_packets, counters.tx_bundles), (5, 1));
    carrier.give(frame.clone());
    assert_eq!(take(&mut port, 9), [2, 3, 4, 5, 6]);
    // One packet is damaged, then the header.
    for (at, bad) in [(8 + 68 + 20, (1, 0)), (2, (0, 1))] {
        let mut damaged = frame.clone();
        damaged.bytes[at] ^= 1;
        let before = port.counters();
        carrier.give(damaged);
        let came = take(&mut port, 9).len();
        let after = port.counters();
        let seen = (
            after.rx_bad_icrc - before.rx_bad_icrc,
            after.rx_bad_bundle - before.rx_bad_bundle,
        );
        assert_eq!(seen, bad);
        assert_eq!(came, 4 * usize::from(bad == (1, 0)));
    }
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
        // Below what a bundle begins with.
        add(&mut batch, number as u8 & 0x7f, RIGHT);
    }
    left.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(right.counters().rx_overflow, 3);
    assert_eq!(take(&mut right, usize::MAX).len(), FRAMES_MAX);
}
