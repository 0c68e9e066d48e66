#![allow(clippy::unwrap_used)]

use super::*;
use crate::link::gbit;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn frame(network: &Network, from: usize, to: usize, len: usize) -> Frame {
    Frame {
        source: network.address(from),
        destination: network.address(to),
        source_port: Frame::SOURCE_PORT,
        tos: 2,
        ttl: 64,
        flow_label: 0,
        bytes: vec![from as u8; len],
    }
}

/// Lets everything happen.
fn deliveries(network: &mut Network) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while let Some(at) = network.next_event() {
        network.deliver(at, &mut |delivery| deliveries.push(delivery));
    }
    deliveries
}

#[test]
fn frames_take_the_shortest_way() {
    let slow = || Link::new().delay(us(100));
    let mut network = Topology::new()
        .hosts(3)
        .switches(3)
        .join(Node::Host(0), Node::Switch(0), Link::new)
        .join(Node::Switch(0), Node::Switch(1), Link::new)
        .join(Node::Switch(1), Node::Switch(2), Link::new)
        .join(Node::Switch(0), Node::Switch(2), slow)
        .join(Node::Switch(2), Node::Host(1), Link::new)
        .network(1);
    let there = frame(&network, 0, 1, 100);
    network.send(Time::ZERO, 0, there.clone());
    let lost = frame(&network, 0, 2, 100);
    network.send(Time::ZERO, 0, lost);
    let arrived = deliveries(&mut network);
    assert_eq!(arrived.len(), 1);
    assert_eq!((arrived[0].to, arrived[0].at), (1, Time::ZERO + us(100)));
    assert_eq!(arrived[0].frame, there);
    assert_eq!(network.path(0, 1).longest, us(100));
    assert_eq!((network.path(0, 2).lost, network.unroutable()), (1, 1));
}

#[test]
fn a_cut_is_one_way_and_a_partition_both() {
    let mut network = Network::mesh(1, 4, |_, _| Link::new().delay(us(1)));
    let reaches = |network: &mut Network| {
        let mut pairs = Vec::new();
        for from in 0..4 {
            for to in 0..4 {
                let frame = frame(network, from, to, 64);
                network.send(Time::ZERO, from, frame);
            }
        }
        for delivery in deliveries(network) {
            let from = network.host_at(delivery.frame.source).unwrap();
            pairs.push((from, delivery.to));
        }
        pairs.sort_unstable();
        pairs
    };
    assert_eq!(reaches(&mut network).len(), 16);
    network.cut(1, 2);
    let pairs = reaches(&mut network);
    assert!(!pairs.contains(&(1, 2)) && pairs.contains(&(2, 1)) && pairs.len() == 15);
    network.mend(1, 2);
    network.partition(&[&[0], &[3]]);
    let pairs = reaches(&mut network);
    assert_eq!(pairs, [(0, 0), (1, 1), (1, 2), (2, 1), (2, 2), (3, 3)]);
    network.heal();
    assert_eq!(reaches(&mut network).len(), 16);
}

#[test]
fn a_topology_prints_as_it_was_written() {
    let network = Network::star(
        7,
        32,
        |_| Link::new().rate(gbit(100)).delay(us(1)),
        |_| Link::new().bottleneck(gbit(100), 9000).drop(0.25),
    );
    assert_eq!(
        format!("{network:?}"),
        "Topology::new().hosts(32).switches(1)\n    \
         .line(Host(0..=31), Switch(0), Link::new().rate(gbit(100)).delay(1µs))\n    \
         .line(Switch(0), Host(0..=31), Link::new().bottleneck(gbit(100), 9000).drop(0.25))\n    \
         .network(7) at 0 ns"
    );
}
