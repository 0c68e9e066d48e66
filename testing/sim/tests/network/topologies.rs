//! Paths through networks, and cuts.

use airdma_sim::{
    Delivery, Fate, GilbertElliott, Link, Marking, Network, Node, Random, Topology, gbit, mbit,
};
use airdma_transport::Time;

use crate::scene::{deliveries, frame, ns, packet, us};

#[test]
fn frames_take_the_way_with_the_fewest_lines() {
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
    // Host 2 has no line.
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
fn hosts_forward_nothing() {
    let mut network = Topology::new()
        .hosts(3)
        .join(Node::Host(0), Node::Host(1), Link::new)
        .join(Node::Host(1), Node::Host(2), Link::new)
        .network(1);
    let lost = frame(&network, 0, 2, 100);
    network.send(Time::ZERO, 0, lost);
    assert_eq!(deliveries(&mut network), []);
    assert_eq!(network.path(0, 2).lost, 1);
}

/// Pairs of hosts with a path.
fn reach(network: &mut Network) -> Vec<(usize, usize)> {
    let hosts = network.hosts();
    let now = Time::ZERO;
    for from in 0..hosts {
        for to in 0..hosts {
            let frame = frame(network, from, to, 64);
            network.send(now, from, frame);
        }
    }
    let arrived = deliveries(network).into_iter();
    let pair = arrived.map(|d| (network.host_at(d.frame.source).unwrap(), d.to));
    let mut pairs: Vec<_> = pair.collect();
    pairs.sort_unstable();
    pairs
}

#[test]
fn a_cut_is_one_way_and_a_partition_both() {
    let mut network = Network::mesh(1, 4, |_, _| Link::new().delay(us(1)));
    assert_eq!(reach(&mut network).len(), 16);
    network.cut(1, 2);
    let pairs = reach(&mut network);
    assert!(!pairs.contains(&(1, 2)) && pairs.contains(&(2, 1)) && pairs.len() == 15);
    assert_eq!(network.path(1, 2).lost, 1);
    network.mend(1, 2);
    network.partition(&[&[0], &[3]]);
    let pairs = reach(&mut network);
    assert_eq!(pairs, [(0, 0), (1, 1), (1, 2), (2, 1), (2, 2), (3, 3)]);
    network.heal();
    assert_eq!(reach(&mut network).len(), 16);
    network.isolate(2);
    let pairs = reach(&mut network);
    assert_eq!(pairs.len(), 10);
    assert!(pairs.iter().all(|&(from, to)| (from == 2) == (to == 2)));
}

#[test]
fn a_cable_that_is_pulled_lets_arrive_what_is_under_way() {
    let link = || Link::new().delay(us(10));
    let mut network = Network::star(1, 2, |_| link(), |_| link());
    let one = frame(&network, 0, 1, 64);
    network.send(Time::ZERO, 0, one.clone());
    network
        .link_mut(Node::Host(0), Node::Switch(0))
        .set_cut(true);
    network.send(Time::ZERO, 0, one.clone());
    assert_eq!(network.under_way(), 1);
    let late = Time::ZERO + us(15);
    assert_eq!(network.longest_under_way(late, 0, 1), us(15));
    assert_eq!(deliveries(&mut network).len(), 1);
    assert_eq!(network.longest_under_way(late, 0, 1), us(20));
    assert_eq!(network.path(0, 1).lost, 1);
}

#[test]
fn a_frame_to_a_group_reaches_every_other_host_once() {
    let mut network = Topology::new()
        .hosts(5)
        .switches(3)
        .join_hosts(0..2, Node::Switch(0), |_| Link::new(), |_| Link::new())
        .join_hosts(2..5, Node::Switch(1), |_| Link::new(), |_| Link::new())
        // A ring.
        .join(Node::Switch(0), Node::Switch(1), Link::new)
        .join(Node::Switch(1), Node::Switch(2), Link::new)
        .join(Node::Switch(2), Node::Switch(0), Link::new)
        .network(1);
    network.cut(3, 4);
    let mut all = frame(&network, 3, 0, 64);
    all.destination = "239.1.2.3".parse().unwrap();
    network.send(Time::ZERO, 3, all);
    let mut reached: Vec<_> = deliveries(&mut network).iter().map(|d| d.to).collect();
    reached.sort_unstable();
    assert_eq!(reached, [0, 1, 2]);
    assert_eq!(network.path(3, 4).lost, 1);
}

#[test]
fn a_frame_to_nobody_is_counted() {
    let mut network = Network::pair(1, Link::new(), Link::new());
    network.start_trace();
    let mut lost = frame(&network, 0, 1, 64);
    lost.destination = "10.9.9.9".parse().unwrap();
    network.send(Time::ZERO, 0, lost);
    assert_eq!((network.next_event(), network.unroutable()), (None, 1));
    let trace = network.trace().unwrap();
    let fates: Vec<_> = trace.records().map(|record| record.fate).collect();
    assert_eq!(fates, [Fate::Sent, Fate::NoRoute]);
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

#[test]
fn a_link_prints_as_it_was_written() {
    let p = GilbertElliott {
        p: 0.01,
        r: 0.25,
        h: 0.5,
        k: 1.0,
    };
    let ramp = Marking::Ramp {
        kmin: 1000,
        kmax: 2000,
        pmax: 0.5,
    };
    let link = Link::new()
        .rate(gbit(400))
        .delay(ns(300))
        .jitter(us(1))
        .jitter_reordering(us(2))
        .bottleneck(mbit(2500), 10_000)
        .marking_bottleneck(1_234_567, 3000, Marking::Above(2000))
        .marking_bottleneck(gbit(1), 3000, ramp)
        .drop(0.5)
        .drop_in_bursts(p)
        .drop_if(|_, _| false)
        .duplicate(0.25)
        .reorder(0.125)
        .reorder_by(1.0, us(5))
        .corrupt(0.01)
        .corrupt_any(0.02)
        .truncate(0.03)
        .batch(us(50))
        .mtu(1500);
    let expected = [
        "Link::new()",
        "rate(gbit(400))",
        "delay(300ns)",
        "jitter(1µs)",
        "jitter_reordering(2µs)",
        "bottleneck(mbit(2500), 10000)",
        "marking_bottleneck(1234567, 3000, Marking::Above(2000))",
        "marking_bottleneck(gbit(1), 3000, Marking::Ramp { kmin: 1000, kmax: 2000, pmax: 0.5 })",
        "drop(0.5)",
        "drop_in_bursts(GilbertElliott { p: 0.01, r: 0.25, h: 0.5, k: 1.0 })",
        "drop_if(..)",
        "duplicate(0.25)",
        "reorder_by(0.125, 100µs)",
        "reorder_by(1, 5µs)",
        "corrupt(0.01)",
        "corrupt_any(0.02)",
        "truncate(0.03)",
        "batch(50µs)",
        "mtu(1500)",
    ];
    assert_eq!(format!("{link:?}"), expected.join("."));
}

#[test]
fn a_line_of_the_trace_says_what_happened_where() {
    let mut network = Network::star(
        1,
        2,
        |_| Link::new().delay(us(2)),
        |_| Link::new().drop(1.0),
    );
    network.start_trace();
    let sent = packet(&network, 1, 0, &[0; 8]);
    network.send(Time::from_nanos(1500), 1, sent);
    deliveries(&mut network);
    let records = network.trace().unwrap().records();
    let lines: Vec<_> = records.map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "        1.500 us   1 > 0   #0      Sent       UC_SEND_ONLY             \
             qp 0x11 psn 0x000007 8 B",
            "        3.500 us   1 > 0   #0      Lost       UC_SEND_ONLY             \
             qp 0x11 psn 0x000007 8 B, on Switch(0) > Host(0)",
        ]
    );
}

/// A link of stages drawn at random.
fn draw_link(random: &mut Random) -> Link {
    let mut link = Link::new();
    for _ in 0..random.between(1, 6) {
        let p = random.pick(&[0.01, 0.1, 0.5]);
        let bits_per_s = gbit(random.pick(&[1, 10, 400]));
        let bytes_max = random.between(1_000, 100_000);
        link = match random.index(15) {
            0 => link.rate(bits_per_s),
            1 => link.delay(us(random.between(0, 50))),
            2 => link.jitter(us(random.between(0, 50))),
            3 => link.jitter_reordering(us(random.between(0, 50))),
            4 => link.bottleneck(bits_per_s, bytes_max),
            5 => link.marking_bottleneck(bits_per_s, bytes_max, Marking::Above(bytes_max / 2)),
            6 => link.drop(p),
            7 => link.drop_in_bursts(GilbertElliott::bursts(p / 2.0, 4.0)),
            8 => link.duplicate(p),
            9 => link.reorder_by(p, us(random.between(1, 500))),
            10 => link.corrupt(p),
            11 => link.corrupt_any(p),
            12 => link.truncate(p),
            13 => link.batch(us(random.between(1, 100))),
            _ => link.drop_if(|number, _| number % 7 == 0),
        };
    }
    link.mtu(random.pick(&[1500, 9000]))
}

#[test]
fn every_packet_that_enters_a_link_leaves_it_or_is_counted() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let hosts = random.between(2, 5) as usize;
        let mut drawn = (random.fork(), random.fork());
        let up = |_| draw_link(&mut drawn.0);
        let down = |_| draw_link(&mut drawn.1);
        let mut network = Network::star(seed, hosts, up, down);
        let mut now = Time::ZERO;
        let mut arrived: Vec<Delivery> = Vec::new();
        for _ in 0..200 {
            now = now + ns(random.below(2_000));
            network.deliver(now, &mut |delivery| arrived.push(delivery));
            let (from, to) = (random.index(hosts), random.index(hosts));
            let len = random.between(0, 2_000) as usize;
            let frame = frame(&network, from, to, len);
            network.send(now, from, frame);
        }
        arrived.extend(deliveries(&mut network));
        assert_eq!(network.under_way(), 0);
        assert!(arrived.windows(2).all(|pair| pair[0].at <= pair[1].at));
        let mut reached = 0;
        for host in 0..hosts {
            let up = network.counters(Node::Host(host), Node::Switch(0));
            let down = network.counters(Node::Switch(0), Node::Host(host));
            for link in [up, down] {
                assert_eq!(
                    link.entered + link.duplicated,
                    link.left + link.dropped,
                    "seed {seed}"
                );
            }
            let refused: u64 = network.refused(host).values().sum();
            let loopback = network.path(host, host);
            assert_eq!(loopback.lost, 0);
            let got = arrived.iter().filter(|d| d.to == host).count() as u64;
            assert_eq!(down.left + loopback.sent, got + refused, "seed {seed}");
            reached += down.entered;
        }
        let left = |host| network.counters(Node::Host(host), Node::Switch(0)).left;
        assert_eq!(reached, (0..hosts).map(left).sum::<u64>());
    }
}

#[test]
fn the_same_seed_gives_the_same_deliveries() {
    let run = |seed| {
        let bad = || {
            let link = Link::new().rate(gbit(10)).jitter_reordering(us(30));
            link.drop(0.05)
                .duplicate(0.05)
                .corrupt_any(0.05)
                .truncate(0.02)
        };
        let queue = || bad().bottleneck(gbit(1), 20_000);
        let mut network = Network::star(seed, 4, |_| bad(), |_| queue());
        network.start_trace();
        for turn in 0..400 {
            let frame = frame(&network, turn % 4, (turn / 4) % 4, 100 + turn);
            network.send(Time::ZERO, turn % 4, frame);
        }
        let arrived = deliveries(&mut network);
        (arrived, format!("{network:?}"), network.table())
    };
    let (one, two, other) = (run(5), run(5), run(6));
    assert!(one == two);
    assert!(one.0 != other.0);
}

#[test]
#[should_panic(expected = "something was due before")]
fn nothing_is_sent_behind_the_networks_back() {
    let mut network = Network::pair(1, Link::new().delay(us(1)), Link::new());
    let one = frame(&network, 0, 1, 64);
    network.send(Time::ZERO, 0, one.clone());
    network.send(Time::ZERO + us(2), 0, one);
}
