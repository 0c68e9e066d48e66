//! Devices in virtual time, with packets under the test's control.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::simulated::{Inventory, Simulated};
use airdma_engine::*;
use airdma_port::sim::{Carrier, carried};
use common::*;
use std::net::IpAddr;
use std::time::Duration;

struct Host {
    device: Simulated,
    carrier: Carrier,
    nothing: Inventory,
}

fn host(name: &str, address: [u8; 4]) -> Host {
    let address = IpAddr::from(address);
    let (port, carrier) = carried(&[address]).unwrap();
    let device = Simulated::open(info(name, address), Box::new(port), 7).unwrap();
    let nothing = device.inventory();
    Host {
        device,
        carrier,
        nothing,
    }
}

/// Delivers the packets of `from`, except those that `lose` selects, and returns their lengths.
fn carry(from: &Host, to: &Host, lose: impl Fn(usize) -> bool) -> Vec<usize> {
    let frames = std::iter::from_fn(|| from.carrier.take());
    let sent: Vec<_> = frames.collect();
    let lengths = sent.iter().map(|frame| frame.bytes.len()).collect();
    for (index, frame) in sent.into_iter().enumerate() {
        if !lose(index) {
            to.carrier.give(frame);
        }
    }
    lengths
}

#[test]
fn time_passes_when_it_is_moved_and_not_before() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    let left = End::new(a.device.device(), QpType::Rc, 4096);
    let right = End::new(b.device.device(), QpType::Rc, 4096);
    left.connect(&right);
    right.connect(&left);
    left.memory.fill(0, &pattern(3000, 1));
    left.qp.post_send(&left.write(&right, 0, 3000)).unwrap();
    assert_eq!(carry(&a, &b, |_| true).len(), 3);

    // Timeout 14 is 67 ms: lost packets are sent again then, and not a nanosecond earlier.
    let due = a.device.deadline().unwrap();
    a.device.run(due - Duration::from_nanos(1));
    assert!(carry(&a, &b, |_| false).is_empty());
    std::thread::sleep(Duration::from_millis(80));
    a.device.run(due - Duration::from_nanos(1));
    assert!(carry(&a, &b, |_| false).is_empty());
    // One packet probes the peer; its acknowledgement releases the rest.
    for packets in [1, 2] {
        a.device.run(due);
        assert_eq!(carry(&a, &b, |_| false).len(), packets);
        b.device.run(due);
        assert_eq!(carry(&b, &a, |_| false).len(), 1);
    }
    assert_eq!(right.memory.bytes(0, 3000), pattern(3000, 1));
    a.device.run(due);
    assert_eq!(left.ok().opcode, CompletionOpcode::Write);
    // A superfluous timer fires once, and does nothing.
    a.device.run(due * 2);
    assert_eq!(a.device.deadline(), None);
    assert!(carry(&a, &b, |_| false).is_empty());
}

/// A host that did not run for a while finds the acknowledgement behind many other packets, and its
/// timer due.
#[test]
fn an_answer_that_is_here_already_is_heard_before_the_timer() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    let left = End::new(a.device.device(), QpType::Rc, 4096);
    let right = End::new(b.device.device(), QpType::Rc, 4096);
    left.connect(&right);
    right.connect(&left);
    let answer = || {
        left.qp.post_send(&left.write(&right, 0, 8)).unwrap();
        carry(&a, &b, |_| false);
        b.device.run(Duration::ZERO);
        b.carrier.take().unwrap()
    };
    let first = answer();
    a.carrier.give(first.clone());
    a.device.run(Duration::ZERO);
    left.ok();
    let second = answer();
    for _ in 0..300 {
        a.carrier.give(first.clone());
    }
    a.carrier.give(second);
    let late = a.device.deadline().unwrap() * 3;
    while left.try_complete().is_none() {
        a.device.run(late);
    }
    assert_eq!(counter(a.device.device(), "timeouts"), 0);
    assert!(carry(&a, &b, |_| false).is_empty());
}

/// A program that posts to many queue pairs, and polls then, pays for one batch.
#[test]
fn requests_of_many_queue_pairs_leave_with_the_next_poll() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    let pairs = [(); 8].map(|()| {
        let left = End::new(a.device.device(), QpType::Rc, 64);
        let right = End::new(b.device.device(), QpType::Rc, 64);
        left.connect(&right);
        right.connect(&left);
        (left, right)
    });
    for round in 0..3 {
        // A program that asked for an event may sleep without a further poll.
        let polls = round < 2;
        if !polls {
            pairs
                .iter()
                .for_each(|(left, _)| left.cq.arm(false).unwrap());
        }
        let mut at_once = Vec::new();
        for (left, right) in &pairs {
            left.qp.post_send(&left.write(right, 0, 8)).unwrap();
            let frames: Vec<_> = std::iter::from_fn(|| a.carrier.take()).collect();
            at_once.push(frames.len());
            frames.into_iter().for_each(|frame| b.carrier.give(frame));
        }
        let others = usize::from(!polls);
        assert_eq!(at_once[0], 1);
        assert_eq!(at_once[1..], [others; 7]);
        assert_eq!(pairs[0].0.cq.poll(1, &mut |_| ()).unwrap(), 0);
        let frames: Vec<_> = std::iter::from_fn(|| a.carrier.take()).collect();
        assert_eq!(frames.len(), if polls { 7 } else { 0 });
        frames.into_iter().for_each(|frame| b.carrier.give(frame));
        b.device.run(Duration::ZERO);
        carry(&b, &a, |_| false);
        for (left, _) in &pairs {
            left.ok();
        }
    }
}

#[test]
fn numbers_and_keys_follow_from_the_seed() {
    let names = || {
        let host = host("a", LEFT);
        let end = End::new(host.device.device(), QpType::Rc, 64);
        (end.qp.number(), end.memory.mr.rkey())
    };
    assert_eq!(names(), names());
}

#[test]
fn a_full_port_takes_no_packets_until_it_is_emptied() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    let left = End::new(a.device.device(), QpType::Uc, 1 << 20);
    let right = End::new(b.device.device(), QpType::Uc, 1 << 20);
    for (end, peer) in [(&left, &right), (&right, &left)] {
        connect_unreliable(&end.qp, peer.qp.number(), peer.path());
    }
    left.memory.fill(0, &pattern(100_000, 3));
    left.qp.post_send(&left.write(&right, 0, 100_000)).unwrap();
    let mut packets = 0;
    let mut steps = 0;
    while packets < 98 {
        let carried = carry(&a, &b, |_| false).len();
        assert!((1..=64).contains(&carried), "{carried} at once");
        packets += carried;
        a.device.run(Duration::ZERO);
        b.device.run(Duration::ZERO);
        steps += 1;
    }
    assert_eq!((packets, steps), (98, 2));
    assert_eq!(right.memory.bytes(0, 100_000), pattern(100_000, 3));
}

#[test]
fn the_inventory_is_empty_again_when_everything_is_destroyed() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    {
        let left = End::new(a.device.device(), QpType::Rc, 4096);
        let right = End::new(b.device.device(), QpType::Rc, 4096);
        left.connect(&right);
        left.qp.post_send(&left.write(&right, 0, 3000)).unwrap();
        let Inventory {
            queue_pairs,
            regions,
            completion_queues,
            timers,
            peers,
            ring_bytes,
            ..
        } = a.device.inventory();
        assert_eq!((queue_pairs, regions, completion_queues), (1, 1, 1));
        assert_eq!((timers, peers), (1, 1));
        assert!(ring_bytes > a.nothing.ring_bytes);
    }
    assert_eq!(a.device.inventory(), a.nothing);
    assert_eq!(b.device.inventory(), b.nothing);
}

/// `count` connected pairs, whose left ends have a megabyte each to write.
fn pairs(a: &Host, b: &Host, count: usize) -> Vec<(End, End)> {
    let pair = |_| {
        let left = End::new(a.device.device(), QpType::Rc, 1 << 20);
        let right = End::new(b.device.device(), QpType::Rc, 1 << 20);
        left.connect(&right);
        right.connect(&left);
        (left, right)
    };
    (0..count).map(pair).collect()
}

#[test]
fn retries_towards_a_dead_host_run_side_by_side() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    let pairs = pairs(&a, &b, 8);
    for (left, right) in &pairs {
        left.qp.post_send(&left.write(right, 0, 1 << 20)).unwrap();
    }
    let lose_all = |now| {
        a.device.run(now);
        while !carry(&a, &b, |_| true).is_empty() {
            a.device.run(now);
        }
    };
    let mut now = Duration::ZERO;
    lose_all(now);
    while let Some(next) = a.device.deadline() {
        now = next;
        lose_all(now);
    }
    for (left, _) in &pairs {
        assert_eq!(left.complete().status, Status::RetryExceeded);
    }
    // Timeout 14 is 67.1 ms, four for each try. The first fills the window, and only its timer lets
    // the others start.
    let timeout = Duration::from_nanos(4096 << 14);
    assert!(now <= timeout * (1 + 32), "{now:?}");
}

#[test]
fn an_endless_sender_leaves_the_others_their_turn() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    let pairs = pairs(&a, &b, 3);
    let (greedy, modest) = pairs.split_at(1);
    let [(left, right)] = greedy else {
        unreachable!()
    };
    for _ in 0..16 {
        left.qp.post_send(&left.write(right, 0, 1 << 20)).unwrap();
    }
    for (left, right) in modest {
        left.qp.post_send(&left.write(right, 0, 3000)).unwrap();
    }
    // One packet at a time, as on a wire, so that an acknowledgement makes room for some.
    let mut on_the_wire = std::collections::VecDeque::new();
    let (mut packets, mut done) = (0, 0);
    while done < modest.len() {
        on_the_wire.extend(std::iter::from_fn(|| a.carrier.take()));
        b.carrier.give(on_the_wire.pop_front().unwrap());
        packets += 1;
        b.device.run(Duration::ZERO);
        carry(&b, &a, |_| false);
        a.device.run(Duration::ZERO);
        for (left, _) in modest {
            done += left.cq.poll(1, |_| ()).unwrap();
        }
        assert!(packets < 1024, "one message of the greedy went before");
    }
}
