//! Capture files can be parsed.

use airdma_sim::{Fate, Link, Marking, Network, Node, gbit};
use airdma_transport::Time;
use airdma_wire::icrc_of_ip_packet;

use crate::scene::{CE, deliveries, packet, us};

/// The packets of a pcap file, with their times.
fn read_pcap(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let (header, mut rest) = file.split_first_chunk::<24>().unwrap();
    assert_eq!(header[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    assert_eq!(header[20..], 101_u32.to_le_bytes());
    let mut packets = Vec::new();
    while let Some((header, behind)) = rest.split_first_chunk::<16>() {
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(word(8), word(12));
        let (packet, behind) = behind.split_at(word(8) as usize);
        let nanos = u64::from(word(0)) * 1_000_000_000 + u64::from(word(4));
        packets.push((nanos, packet.to_vec()));
        rest = behind;
    }
    assert!(rest.is_empty());
    packets
}

fn has_right_icrc(packet: &[u8]) -> bool {
    let (covered, icrc) = packet.split_last_chunk::<4>().unwrap();
    icrc_of_ip_packet(covered) == Some(u32::from_le_bytes(*icrc))
}

#[test]
fn a_link_and_a_host_can_be_listened_to() {
    for ipv6 in [false, true] {
        let queue = Link::new().marking_bottleneck(gbit(1), 8_000, Marking::Above(4_000));
        let mut queue = Some(queue);
        let mut network = Network::star(
            3,
            2,
            |_| Link::new().rate(gbit(10)).delay(us(1)),
            |to| {
                if to == 1 {
                    queue.take().unwrap()
                } else {
                    Link::new()
                }
            },
        );
        if ipv6 {
            network = network.with_ipv6();
        }
        network.capture_link(Node::Switch(0), Node::Host(1));
        network.capture_at(1);
        for _ in 0..20 {
            let frame = packet(&network, 0, 1, &[1; 1000]);
            network.send(Time::ZERO, 0, frame);
        }
        let arrived = deliveries(&mut network);
        let entered = read_pcap(network.captured(Node::Switch(0), Node::Host(1)));
        let got = read_pcap(network.captured_at(1));
        assert_eq!(entered.len(), 20);
        assert_eq!(got.len(), arrived.len());
        assert!(arrived.len() < 20);
        for ((at, bytes), delivery) in got.iter().zip(&arrived) {
            assert_eq!(*at, delivery.at.as_nanos());
            assert!(bytes.ends_with(&delivery.frame.bytes));
            assert!(has_right_icrc(bytes));
        }
        let marked = arrived.iter().filter(|d| d.frame.tos == CE).count();
        assert!(marked > 0);
    }
}

/// A block of a pcapng file: its type and its body.
fn blocks(file: &[u8]) -> Vec<(u32, &[u8])> {
    let mut rest = file;
    let mut blocks = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let len = word(4) as usize;
        assert_eq!((len % 4, word(len - 4) as usize), (0, len));
        blocks.push((word(0), &rest[8..len - 4]));
        rest = &rest[len..];
    }
    blocks
}

#[test]
fn everything_can_be_listened_to_at_once() {
    let bad = Link::new().delay(us(5)).drop(0.3).corrupt_any(0.3);
    let mut network = Network::pair(5, bad, Link::new());
    network.start_trace();
    network.capture_everywhere();
    for _ in 0..100 {
        let frame = packet(&network, 0, 1, &[1; 200]);
        network.send(Time::ZERO, 0, frame);
    }
    deliveries(&mut network);
    let blocks = blocks(network.captured_everywhere());
    assert_eq!(blocks[0].0, 0x0a0d_0d0a);
    let kinds = |kind| blocks.iter().filter(move |block| block.0 == kind);
    assert_eq!(kinds(1).count(), 4, "two hosts, two lines");
    let on = |interface: u32| {
        let packets = kinds(6).map(|block| block.1);
        packets.filter(move |body| body[..4] == interface.to_le_bytes())
    };
    let trace = network.trace().unwrap();
    let fate = |fate| trace.count(|record| record.fate == fate);
    assert_eq!(on(0).count(), 100);
    assert_eq!(on(2).count(), fate(Fate::Lost));
    assert_eq!(on(1).count(), 100 - fate(Fate::Lost));
    let mentions = |body: &&[u8]| body.windows(7).any(|text| text == b"damaged");
    assert_eq!(on(1).filter(mentions).count(), fate(Fate::Damaged));
    assert!(on(2).all(|body| body.windows(4).any(|text| text == b"Lost")));
}
