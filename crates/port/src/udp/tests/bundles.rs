//! Packets that share a datagram.

use std::net::UdpSocket;

use airdma_wire::bundle::{BUNDLE_HEADER_LEN, bundle_header};
use airdma_wire::{IpPseudo, Qpn};

use super::*;

fn bundled(text: &str) -> Destination {
    Destination {
        bundles: true,
        ..to(text)
    }
}

/// Receives `count` packets, and whether each came in a bundle.
fn receive_bundled(port: &mut UdpPort, count: usize) -> Vec<(Vec<u8>, bool)> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut arrived = Vec::new();
    while arrived.len() < count {
        assert!(Instant::now() < deadline, "{:?}", port.counters());
        readable(port, Duration::from_millis(100));
        port.receive(usize::MAX, &mut |packet| {
            arrived.push((packet.bytes.to_vec(), packet.bundled));
        })
        .unwrap();
    }
    arrived
}

#[test]
fn packets_of_one_length_share_a_datagram_and_arrive_one_by_one() {
    for mut way in Way::of_each_family() {
        let mut batch = batch();
        let mut sent: Vec<_> = (0..70).map(|number| packet(1036, number)).collect();
        // The last of a group may be shorter.
        sent.push(packet(20, 70));
        for bytes in &sent {
            add(&mut batch, bytes, bundled(way.peer));
        }
        // By itself, and to a peer that takes none.
        sent.push(packet(1036, 71));
        add(&mut batch, &sent[71], to(way.peer));
        way.left.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
        let counters = way.left.counters();
        assert_eq!((counters.tx_bundles, counters.tx_sends), (2, 3));
        assert_eq!(counters.tx_segmented_sends, 0);
        let receiver = way.receiver();
        let arrived = receive_bundled(receiver, 72);
        for (number, (bytes, is_bundled)) in arrived.iter().enumerate() {
            assert_eq!(*bytes, sent[number], "packet {number}");
            assert_eq!(*is_bundled, number < 71, "packet {number}");
        }
        assert_eq!(receiver.counters().rx_id_recovered, 0);
        assert_eq!(receiver.counters().rx_bad_icrc, 0);
    }
}

#[test]
fn bundles_leave_without_segmentation_too() {
    let (mut left, mut right) = pair_with(
        UdpConfig {
            segmentation: false,
            ..config()
        },
        config(),
    );
    let mut batch = batch();
    for number in 0..10 {
        add(&mut batch, &packet(1036, number), bundled(RIGHT));
    }
    left.transmit(&mut batch).unwrap();
    assert_eq!(receive_bundled(&mut right, 10).len(), 10);
    assert_eq!(left.counters().tx_bundles, 1);
}

#[test]
fn packets_for_two_processes_do_not_share_a_bundle() {
    let (mut left, mut right) = pair();
    let mut batch = batch();
    for number in 0..8 {
        let mut bytes = packet(1036, number);
        bytes[5..8].fill(if number < 4 { 0x11 } else { 0x22 });
        add(&mut batch, &bytes, bundled(RIGHT));
    }
    left.transmit(&mut batch).unwrap();
    assert_eq!(receive_bundled(&mut right, 8).len(), 8);
    assert_eq!(left.counters().tx_bundles, 2);
}

#[test]
fn a_kernel_that_takes_no_bundles_gets_segments() {
    for errno in [libc::EMSGSIZE, libc::EINVAL] {
        let (mut left, mut right) = pair();
        left.sender.refuse = Some(if errno == libc::EMSGSIZE {
            |attempt| attempt.is_bundle.then_some(libc::EMSGSIZE)
        } else {
            |attempt| attempt.is_bundle.then_some(libc::EINVAL)
        });
        let mut batch = batch();
        for number in 0..10 {
            add(&mut batch, &packet(1036, number), bundled(RIGHT));
        }
        left.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
        let arrived = receive_bundled(&mut right, 10);
        assert!(arrived.iter().all(|(_, is_bundled)| !is_bundled));
        let counters = left.counters();
        assert_eq!((counters.tx_bundles, counters.tx_errors), (0, 0));
        assert_eq!(counters.tx_segmentation_refused, 0);
    }
}

#[test]
fn refused_bundles_are_counted_once_for_each_address() {
    let own = ["127.0.0.11", "127.0.0.12"].map(address);
    let mut right = UdpPort::bind(&[address(RIGHT)], 0, config()).unwrap();
    let port = right.port();
    let mut left = UdpPort::bind(&own, 0, UdpConfig { port, ..config() }).unwrap();
    left.sender.refuse = Some(|attempt| {
        let refused = attempt.is_bundle && attempt.source == address("127.0.0.11");
        refused.then_some(libc::EINVAL)
    });
    for bundles in [1, 2] {
        for source_index in [0, 1] {
            let mut batch = batch();
            let destination = Destination {
                source_index,
                ..bundled(RIGHT)
            };
            for number in 0..10 {
                add(&mut batch, &packet(1036, number), destination);
            }
            left.transmit(&mut batch).unwrap();
            let arrived = receive_bundled(&mut right, 10);
            assert!(
                arrived
                    .iter()
                    .all(|&(_, bundled)| bundled == (source_index == 1))
            );
        }
        let counters = left.counters();
        assert_eq!(
            (counters.tx_bundles, counters.tx_bundles_refused),
            (bundles, 1)
        );
        assert_eq!(counters.tx_errors, 0);
    }
}

/// A packet with the ICRC that it has as the `id`-th of what `source` sends.
fn sealed(bytes: &[u8], id: u16, ports: [u16; 2]) -> Vec<u8> {
    let ip = IpPseudo::V4 {
        src: LEFT.parse().unwrap(),
        dst: RIGHT.parse().unwrap(),
        id,
        dont_fragment: true,
    };
    let icrc = airdma_wire::icrc(&ip, ports[0], ports[1], bytes);
    [bytes, &icrc.to_le_bytes()].concat()
}

#[test]
fn hostile_bundles_are_counted_and_read_within_bounds() {
    let (_, mut right) = pair();
    let stranger = UdpSocket::bind((LEFT, 0)).unwrap();
    let ports = [stranger.local_addr().unwrap().port(), right.port()];
    let number = Qpn::new(0x09_0909);
    let good = [0, 1, 2].map(|id| sealed(&packet(64, usize::from(id)), id, ports));
    let bundle = |segment: u16, packets: usize, bytes: &[u8]| {
        [&bundle_header(segment, packets, number)[..], bytes].concat()
    };
    let malformed = [
        bundle(0, 3, &good.concat()),
        bundle(1, 64, &good.concat()),
        bundle(u16::MAX, 3, &good.concat()),
        bundle(68, 2, &good.concat()),
        bundle(68, 4, &good.concat()),
        bundle(68, 1, &[]),
        bundle(68, 1, &[])[..BUNDLE_HEADER_LEN - 1].to_vec(),
        vec![0xd9],
    ];
    for datagram in &malformed {
        stranger.send_to(datagram, (RIGHT, right.port())).unwrap();
    }
    // A bundle in a bundle is a packet with an unknown opcode, if its ICRC is right, and else a
    // damaged one.
    let mut inner = bundle(68, 1, &good[1]);
    inner.truncate(68);
    let nested = sealed(&inner[..64], 1, ports);
    let with = |second: &[u8]| bundle(68, 3, &[&good[0][..], second, &good[2]].concat());
    for datagram in [with(&inner), with(&nested)] {
        stranger.send_to(&datagram, (RIGHT, right.port())).unwrap();
    }
    // The last one is shorter than a packet.
    let cut = [&good[0][..], &good[1], &good[2][..15]].concat();
    let cut = bundle(68, 3, &cut);
    stranger.send_to(&cut, (RIGHT, right.port())).unwrap();
    let arrived = receive_bundled(&mut right, 2 + 3 + 2);
    assert!(arrived.iter().all(|(_, is_bundled)| *is_bundled));
    let firsts: Vec<u8> = arrived.iter().map(|(bytes, _)| bytes[0]).collect();
    assert_eq!(firsts, [0, 26, 0, 0xd9, 26, 0, 13]);
    let counters = right.counters();
    assert_eq!(counters.rx_bad_bundle, malformed.len() as u64);
    assert_eq!((counters.rx_bad_icrc, counters.rx_short), (1, 1));
}

#[test]
fn a_bundle_longer_than_the_buffer_is_counted_and_not_delivered() {
    let (mut left, mut right) = pair_with(
        config(),
        UdpConfig {
            datagram_bytes_max: 4096,
            ..config()
        },
    );
    let mut batch = batch();
    for number in 0..4 {
        add(&mut batch, &packet(1036, number), bundled(RIGHT));
    }
    left.transmit(&mut batch).unwrap();
    add(&mut batch, &packet(1036, 4), bundled(RIGHT));
    left.transmit(&mut batch).unwrap();
    assert_eq!(receive_bundled(&mut right, 1), [(packet(1036, 4), false)]);
    assert_eq!(right.counters().rx_truncated, 1);
}
