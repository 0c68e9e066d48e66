//! RoCE over a Wi-Fi cell that is part of a network.

use core::time::Duration;

use airdma_sim::wifi::{Cell, Fading, Profile};
use airdma_sim::{Frame, Link, Network, Node, Pair, SendWr, Setup, Side, Topology, gbit};
use airdma_transport::{Access, Counter, Operation, Status, Time};

/// Times of a connection over Wi-Fi: 134 ms until a packet counts as lost.
fn patient() -> Setup {
    Setup {
        timeout: 15,
        ..Setup::default()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8).collect()
}

/// Each side writes `len` bytes to the other, in messages of 64 KiB.
fn write_both_ways(pair: &mut Pair, len: usize) -> [airdma_sim::Region; 2] {
    let qp = pair.connect(&patient());
    let data = pattern(len);
    let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let near = Side::BOTH.map(|side| pair[side].register(&data, Access::empty()));
    let far = Side::BOTH.map(|side| pair[side].register(&vec![0; len], open));
    for side in Side::BOTH {
        let (source, target) = (&near[side as usize], &far[side.other() as usize]);
        for (id, offset) in (0..len).step_by(64 << 10).enumerate() {
            let end = (offset + (64 << 10)).min(len);
            let write = Operation::Write {
                va: target.va + offset as u64,
                rkey: target.rkey(),
            };
            let sge = source.part(offset as u32..end as u32);
            pair[side].post_send(qp, SendWr::new(id as u64, write, vec![sge]));
        }
    }
    far
}

#[test]
fn a_connection_over_ac_80_in_both_directions() {
    const LEN: usize = 4 << 20;
    let cell = Cell::new(3, Profile::AC_80, 2)
        .snr(1, 30.0)
        .waits_above(200_000);
    let mut pair = Pair::over(3, Network::wifi_direct(3, cell.clone()));
    let far = write_both_ways(&mut pair, LEN);
    pair.run_until_idle();
    for side in Side::BOTH {
        assert!(
            pair[side].bytes(&far[side as usize]) == pattern(LEN),
            "{side:?}"
        );
        assert_eq!(pair[side].rings(0).count(Counter::Timeouts), 0);
    }
    pair.assert_nothing_left();
    let seconds = pair.now().as_nanos() as f64 / 1e9;
    let mbit = 2.0 * LEN as f64 * 8.0 / seconds / 1e6;
    eprintln!("{mbit:.0} Mb/s, both directions together");
    assert!((250.0..668.0).contains(&mbit));
    let airtime = cell.medium().airtime();
    assert!(airtime.busy_ns() <= pair.now().as_nanos());
    assert!(airtime.collided_ns > 0, "both directions contend");
}

/// Where the MAC gives packets up, the transport repairs it.
#[test]
fn at_the_edge_of_the_cell_packets_are_lost_and_sent_again() {
    const LEN: usize = 1_000_000;
    let profile = Profile {
        attempts_max: 3,
        ..Profile::AC_80
    };
    let cell = Cell::new(4, profile, 2).snr(1, 1.0).waits_above(100_000);
    let mut pair = Pair::over(4, Network::wifi_direct(4, cell.clone()));
    let far = write_both_ways(&mut pair, LEN);
    pair.run_until_idle();
    let given_up: u64 = [0, 1]
        .map(|station| cell.medium().counters(cell.station(station)).given_up)
        .iter()
        .sum();
    assert!(given_up > 0);
    for side in Side::BOTH {
        assert!(
            pair[side].bytes(&far[side as usize]) == pattern(LEN),
            "{side:?}"
        );
    }
}

/// Out of the cell nothing arrives, and the queue pairs say so.
#[test]
fn out_of_the_cell_everything_fails() {
    let cell = Cell::new(5, Profile::AC_80, 2).snr(1, -30.0);
    let mut pair = Pair::over(5, Network::wifi_direct(5, cell));
    write_both_ways(&mut pair, 1_000);
    pair.run_until_idle();
    for side in Side::BOTH {
        let completions = &pair[side].rings(0).send_completions;
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].status, Status::RetryExceeded);
    }
}

#[test]
fn a_seed_says_all() {
    let run = |seed| {
        let cell = Cell::new(seed, Profile::AC_80, 2).snr(1, 16.0);
        let mut pair = Pair::over(seed, Network::wifi_direct(seed, cell));
        write_both_ways(&mut pair, 1 << 20);
        pair.run_until_idle();
        (
            pair.now(),
            pair.trace().records().copied().collect::<Vec<_>>(),
        )
    };
    assert_eq!(run(6), run(6));
    assert_ne!(run(6).0, run(7).0);
}

fn frame(network: &Network, from: usize, to: usize) -> Frame {
    Frame {
        source: network.address(from),
        destination: network.address(to),
        source_port: Frame::SOURCE_PORT,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        bytes: vec![7; 1_000],
    }
}

fn run(network: &mut Network) -> Vec<(usize, Time)> {
    let mut arrived = Vec::new();
    while let Some(at) = network.next_event() {
        network.deliver(at, &mut |delivery| arrived.push((delivery.to, delivery.at)));
    }
    arrived
}

#[test]
fn hosts_reach_each_other_through_the_access_point() {
    let mut network = Network::wifi(8, Profile::AX_80, 3);
    let (across, back) = (frame(&network, 0, 2), frame(&network, 2, 0));
    network.send(Time::ZERO, 0, across);
    network.send(Time::ZERO, 2, back);
    let mut arrived = run(&mut network);
    arrived.sort_unstable();
    assert_eq!(
        arrived.iter().map(|(to, _)| *to).collect::<Vec<_>>(),
        [0, 2]
    );
}

/// A host on a cable behind the access point, and one in its cell whose signal fades.
#[test]
fn a_cell_is_a_part_of_a_larger_network() {
    let profile = Profile {
        fading: Fading::NONE,
        ..Profile::AC_80
    };
    let cell = Cell::new(9, profile, 2);
    let mut network = Topology::new()
        .hosts(2)
        .switches(1)
        .share(cell.clone(), &[Node::Switch(0), Node::Host(0)])
        .join(Node::Switch(0), Node::Host(1), || {
            Link::new().rate(gbit(1)).delay(Duration::from_micros(20))
        })
        .network(9);
    let (up, down) = (frame(&network, 0, 1), frame(&network, 1, 0));
    network.send(Time::ZERO, 0, up.clone());
    network.send(Time::ZERO, 1, down);
    assert_eq!(run(&mut network).len(), 2);
    cell.set_snr(1, -30.0);
    let now = Time::from_nanos(100_000_000);
    network.send(now, 0, up);
    assert_eq!(run(&mut network), []);
    assert_eq!(network.path(0, 1).lost, 1);
    assert_eq!(network.counters(Node::Host(0), Node::Switch(0)).lost, 1);
}

#[test]
fn a_full_queue_drops_what_does_not_wait() {
    let cell = Cell::new(10, Profile::AC_80, 2);
    let mut network = Network::wifi_direct(10, cell.clone());
    let frame = frame(&network, 0, 1);
    for _ in 0..1_500 {
        network.send(Time::ZERO, 0, frame.clone());
    }
    assert_eq!(cell.medium().backlog(cell.station(0)).packets, 1_400);
    assert_eq!(run(&mut network).len(), 1_400);
    let counters = network.counters(Node::Host(0), Node::Host(1));
    assert_eq!(counters.overflowed, 100);
}
