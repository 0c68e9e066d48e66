#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use super::*;
use crate::Destination;

/// Parts of a [`Received`] that a test keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrived {
    source: Neighbour,
    source_port: u16,
    destination: Neighbour,
    tos: u8,
    ttl: u8,
    flow_label: u32,
    bytes: Vec<u8>,
}

const LEFT: &str = "127.0.0.1";
const RIGHT: &str = "127.0.0.2";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A free UDP port, so that tests neither meet each other nor a program on 4791.
fn config() -> UdpConfig {
    UdpConfig {
        port: 0,
        ..UdpConfig::default()
    }
}

/// Ports at 127.0.0.1 and 127.0.0.2 that talk to each other.
fn pair_with(left: UdpConfig, right: UdpConfig) -> (UdpPort, UdpPort) {
    // A UDP port that is free at one address may be taken at the other.
    for _ in 0..100 {
        let right = UdpPort::bind(&[address(RIGHT)], 0, right.clone()).unwrap();
        let left = UdpConfig {
            port: right.port(),
            ..left.clone()
        };
        match UdpPort::bind(&[address(LEFT)], 0, left) {
            Ok(left) => return (left, right),
            Err(error) => assert_eq!(error.errno(), libc::EADDRINUSE, "{error}"),
        }
    }
    panic!("no UDP port is free at both {LEFT} and {RIGHT}");
}

fn pair() -> (UdpPort, UdpPort) {
    pair_with(config(), config())
}

/// A port, and the one that it sends to, which over IPv6 is itself: loopback has one such address.
struct Way {
    peer: &'static str,
    left: UdpPort,
    right: Option<UdpPort>,
}

impl Way {
    fn of_each_family() -> [Self; 2] {
        let (left, right) = pair();
        let itself = UdpPort::bind(&[address("::1")], 0, config()).unwrap();
        [(RIGHT, left, Some(right)), ("::1", itself, None)].map(|(peer, left, right)| Way {
            peer,
            left,
            right,
        })
    }

    fn receiver(&mut self) -> &mut UdpPort {
        self.right.as_mut().unwrap_or(&mut self.left)
    }
}

fn to(text: &str) -> Destination {
    Destination {
        address: address(text).into(),
        source_index: 0,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    }
}

fn packet(len: usize, number: usize) -> Vec<u8> {
    let mut bytes: Vec<_> = (0..len).map(|i| (i * 7 + number * 13) as u8).collect();
    // All for one queue pair, or they would not leave together.
    bytes[5..8].fill(9);
    bytes
}

fn batch() -> TransmitBatch {
    TransmitBatch::with_capacity(1 << 20, 1024)
}

fn add(batch: &mut TransmitBatch, bytes: &[u8], destination: Destination) {
    let room = batch.reserve(bytes.len()).expect("room in the batch");
    room.copy_from_slice(bytes);
    batch.commit(bytes.len(), destination);
}

/// Waits until the port is readable, for at most `limit`.
fn readable(port: &UdpPort, limit: Duration) -> bool {
    let mut descriptors = Vec::new();
    port.wait_descriptors(&mut descriptors);
    let mut polled: Vec<_> = descriptors
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: as many descriptors as the length says, all open.
    unsafe {
        libc::poll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            limit.as_millis() as libc::c_int,
        ) > 0
    }
}

/// One receive call.
fn take(port: &mut UdpPort, budget: usize, arrived: &mut Vec<Arrived>) -> usize {
    port.receive(budget, &mut |packet| {
        arrived.push(Arrived {
            source: packet.source,
            source_port: packet.source_port,
            destination: packet.destination,
            tos: packet.tos,
            ttl: packet.ttl,
            flow_label: packet.flow_label,
            bytes: packet.bytes.to_vec(),
        });
    })
    .unwrap()
}

/// Receives until `done` says so of what has arrived and of the counters.
fn receive_until(port: &mut UdpPort, done: impl Fn(usize, &PortCounters) -> bool) -> Vec<Arrived> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut arrived = Vec::new();
    while !done(arrived.len(), &port.counters()) {
        assert!(
            Instant::now() < deadline,
            "only {} packets, {:?}",
            arrived.len(),
            port.counters()
        );
        readable(port, Duration::from_millis(100));
        take(port, usize::MAX, &mut arrived);
    }
    arrived
}

fn receive(port: &mut UdpPort, count: usize) -> Vec<Arrived> {
    receive_until(port, |arrived, _| arrived >= count)
}

fn bytes_of(arrived: &[Arrived]) -> Vec<&[u8]> {
    arrived
        .iter()
        .map(|packet| packet.bytes.as_slice())
        .collect()
}

const SIZES: [usize; 12] = [
    12, 16, 28, 64, 268, 1036, 1052, 2060, 4108, 9000, 32_768, 65_000,
];

#[test]
fn packets_of_every_size_arrive_as_they_were_sent() {
    let (mut left, mut right) = pair();
    let sent: Vec<_> = SIZES
        .iter()
        .enumerate()
        .map(|(i, &len)| packet(len, i))
        .collect();
    for bytes in &sent {
        let mut batch = batch();
        add(&mut batch, bytes, to(RIGHT));
        left.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
    }
    let arrived = receive(&mut right, sent.len());
    assert_eq!(bytes_of(&arrived), sent);
    for packet in &arrived {
        assert_eq!(packet.source, address(LEFT).into());
        assert_eq!(packet.source_port, left.port());
        assert_eq!(packet.destination, address(RIGHT).into());
    }
    let counters = right.counters();
    let wire_bytes: usize = SIZES.iter().map(|len| len + 4).sum();
    assert_eq!(counters.rx_packets, SIZES.len() as u64);
    assert_eq!(counters.rx_bytes, wire_bytes as u64);
    assert_eq!(counters.rx_id_recovered, 0);
    assert_eq!(left.counters().tx_bytes, wire_bytes as u64);
}

#[test]
fn packets_of_every_size_arrive_over_ipv6() {
    // Loopback has one IPv6 address: the port talks to itself.
    let mut port = UdpPort::bind(&[address("::1")], 0, config()).unwrap();
    let sent: Vec<_> = SIZES
        .iter()
        .enumerate()
        .map(|(i, &len)| packet(len, i))
        .collect();
    let mut batch = batch();
    for bytes in &sent {
        add(&mut batch, bytes, to("::1"));
    }
    port.transmit(&mut batch).unwrap();
    let arrived = receive(&mut port, sent.len());
    assert_eq!(bytes_of(&arrived), sent);
    assert!(
        arrived
            .iter()
            .all(|packet| packet.source == address("::1").into())
    );
    assert_eq!(port.counters().rx_bad_icrc, 0);
}

#[test]
fn equal_packets_and_a_shorter_last_one_leave_and_arrive_as_one() {
    for mut way in Way::of_each_family() {
        let mut sent: Vec<_> = (0..61).map(|i| packet(1036, i)).collect();
        sent.push(packet(516, 61));
        let mut batch = batch();
        for bytes in &sent {
            add(&mut batch, bytes, to(way.peer));
        }
        way.left.transmit(&mut batch).unwrap();
        let counters = way.left.counters();
        assert_eq!((counters.tx_sends, counters.tx_segmented_sends), (1, 1));
        let peer = way.peer;
        let receiver = way.receiver();
        assert_eq!(bytes_of(&receive(receiver, sent.len())), sent);
        let counters = receiver.counters();
        assert_eq!((counters.rx_buffers, counters.rx_batches), (1, 1), "{peer}");
        assert_eq!((counters.rx_bad_icrc, counters.rx_id_recovered), (0, 0));
    }
}

#[test]
fn order_is_kept_through_groups_of_every_kind() {
    let (mut left, mut right) = pair();
    // 64 equal and one short: more than one send takes. Then growing, shrinking and lonely sizes.
    let mut lens = vec![1036; 64];
    lens.push(12);
    lens.extend([1052, 1036, 1036, 1036, 520, 16, 16, 16, 4108, 4108, 28]);
    lens.extend(vec![4108; 40]);
    let sent: Vec<_> = lens
        .iter()
        .enumerate()
        .map(|(i, &len)| packet(len, i))
        .collect();
    let mut batch = batch();
    for bytes in &sent {
        add(&mut batch, bytes, to(RIGHT));
    }
    left.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(bytes_of(&receive(&mut right, sent.len())), sent);
    let counters = left.counters();
    assert_eq!(counters.tx_packets, sent.len() as u64);
    // [62 x 1036] [2 x 1036, 12] [1052, 1036] [2 x 1036, 520] [3 x 16] [2 x 4108, 28] [15 x 4108] x
    // 2 [10 x 4108]
    assert_eq!(counters.tx_sends, 9);
    assert_eq!(right.counters().rx_id_recovered, 0);
}

#[test]
fn it_works_without_segmentation_and_without_coalescing() {
    for (segmentation, coalescing) in [(true, false), (false, true), (false, false)] {
        let switches = UdpConfig {
            segmentation,
            coalescing,
            ..config()
        };
        let (mut left, mut right) = pair_with(switches.clone(), switches);
        assert_eq!(left.granted().segmentation, segmentation);
        assert_eq!(right.granted().coalescing, coalescing);
        let mut sent: Vec<_> = (0..64).map(|i| packet(1036, i)).collect();
        sent.push(packet(20, 64));
        let mut batch = batch();
        for bytes in &sent {
            add(&mut batch, bytes, to(RIGHT));
        }
        left.transmit(&mut batch).unwrap();
        assert_eq!(bytes_of(&receive(&mut right, sent.len())), sent);
        let (tx, rx) = (left.counters(), right.counters());
        assert_eq!(tx.tx_segmented_sends > 0, segmentation);
        if !segmentation {
            assert_eq!(tx.tx_sends, 65);
            assert_eq!(rx.rx_id_recovered, 0, "plain sends have identification 0");
        }
        if segmentation {
            // Cut at the receiving socket: segment k has an ICRC for k but arrives alone.
            assert_eq!(rx.rx_id_recovered, 65 - 2);
        }
        assert_eq!(rx.rx_buffers, 65);
    }
}

#[test]
fn what_the_kernel_drops_is_found_out_when_asked_for() {
    let (mut left, mut right) = pair();
    // More packets than any receive buffer holds while they are not received.
    let mut batch = batch();
    let mut sent = 0;
    while right.counters().rx_overflow == 0 {
        assert!(sent < 1 << 20);
        for number in 0..500 {
            add(&mut batch, &packet(1036, number), to(RIGHT));
        }
        left.transmit(&mut batch).unwrap();
        sent += 500;
        right.look_for_drops();
    }
    let dropped = right.counters().rx_overflow;
    assert!(dropped <= sent);
    assert_eq!(left.counters().rx_overflow, 0);
}

#[test]
fn packets_for_two_processes_of_a_host_do_not_share_a_send() {
    let (mut left, mut right) = pair();
    let mut batch = batch();
    let mut sent = Vec::new();
    // Two ranges of queue pair numbers, then queue pair 1, where each message may be for another
    // process.
    for number in [0x51_2000_u32, 0x31_2fff, 0x51_3000, 0x51_3001, 1, 1] {
        let mut bytes = packet(1036, sent.len());
        bytes[5..8].copy_from_slice(&number.to_be_bytes()[1..]);
        add(&mut batch, &bytes, to(RIGHT));
        sent.push(bytes);
    }
    left.transmit(&mut batch).unwrap();
    assert_eq!(bytes_of(&receive(&mut right, sent.len())), sent);
    assert_eq!(left.counters().tx_sends, 4);
    assert_eq!(left.counters().tx_segmented_sends, 2);
}

#[test]
fn different_destinations_and_header_fields_do_not_share_a_send() {
    let (mut left, mut right) = pair();
    let fields = [(0, 0), (0x02, 0), (0x02, 9), (0x02, 9), (0xbb, 255), (3, 1)];
    let mut batch = batch();
    for (number, (tos, hop_limit)) in fields.into_iter().enumerate() {
        let destination = Destination {
            tos,
            hop_limit,
            ..to(RIGHT)
        };
        add(&mut batch, &packet(64, number), destination);
    }
    left.transmit(&mut batch).unwrap();
    let arrived = receive(&mut right, fields.len());
    let seen: Vec<_> = arrived.iter().map(|p| (p.tos, p.ttl)).collect();
    assert_eq!(
        seen,
        [(0, 64), (2, 64), (2, 9), (2, 9), (0xbb, 255), (3, 1)]
    );
    assert_eq!(left.counters().tx_sends, 5);
}

#[test]
fn traffic_class_hop_limit_and_flow_label_of_ipv6_are_seen() {
    let mut port = UdpPort::bind(&[address("::1")], 0, config()).unwrap();
    let mut batch = batch();
    let destination = Destination {
        tos: 0x6b,
        hop_limit: 77,
        flow_label: 0xa_bcde,
        ..to("::1")
    };
    add(&mut batch, &packet(64, 1), destination);
    add(&mut batch, &packet(64, 2), destination);
    add(&mut batch, &packet(64, 3), to("::1"));
    port.transmit(&mut batch).unwrap();
    let arrived = receive(&mut port, 3);
    let seen: Vec<_> = arrived.iter().map(|p| (p.tos, p.ttl)).collect();
    assert_eq!(seen, [(0x6b, 77), (0x6b, 77), (0, 64)]);
    let labels: Vec<_> = arrived.iter().map(|p| p.flow_label).collect();
    assert_eq!(labels[..2], [0xa_bcde; 2]);
    assert_ne!(labels[2], 0xa_bcde, "the kernel's own, if any");
}

/// A port at these addresses, all with one number.
fn port_at(addresses: &[IpAddr]) -> UdpPort {
    let first = UdpPort::bind(&addresses[..1], 0, config()).unwrap();
    let config = UdpConfig {
        port: first.port(),
        coalescing: false,
        ..config()
    };
    drop(first);
    UdpPort::bind(addresses, 0, config).unwrap()
}

/// It sends packets to one of its own addresses.
fn send_to_itself(port: &mut UdpPort, address: IpAddr, packets: usize) {
    let mut batch = batch();
    let destination = Destination {
        address: address.into(),
        ..to(LEFT)
    };
    for number in 0..packets {
        add(&mut batch, &packet(64, number), destination);
    }
    port.transmit(&mut batch).unwrap();
}

#[test]
fn a_busy_address_does_not_starve_another() {
    let own = ["127.0.0.7", "127.0.0.8"].map(address);
    let mut port = port_at(&own);
    for address in own {
        send_to_itself(&mut port, address, 40);
    }
    assert!(readable(&port, Duration::from_secs(60)));
    let served: Vec<_> = (0..4)
        .map(|_| {
            let mut arrived = Vec::new();
            assert!(take(&mut port, 1, &mut arrived) > 0);
            let first = arrived[0].destination;
            assert!(arrived.iter().all(|p| p.destination == first), "budget");
            first
        })
        .collect();
    assert_eq!(served, [0, 1, 0, 1].map(|at: usize| own[at].into()));
}

#[test]
fn each_address_sends_and_receives_as_itself() {
    let own = ["127.0.0.3", "127.0.0.4", "::1"].map(address);
    let mut port = UdpPort::bind(&own[..2], 0, config()).unwrap();
    // With port 0 each socket got its own; bind again with one for all.
    let number = port.port();
    drop(port);
    port = UdpPort::bind(
        &own,
        0,
        UdpConfig {
            port: number,
            ..config()
        },
    )
    .unwrap();
    let mut batch = batch();
    for (source_index, target) in [(0, 1), (1, 0), (2, 2), (0, 0)] {
        let destination = Destination {
            address: own[target].into(),
            source_index,
            ..to(LEFT)
        };
        add(&mut batch, &packet(64, target), destination);
    }
    port.transmit(&mut batch).unwrap();
    let mut seen: Vec<_> = receive(&mut port, 4)
        .iter()
        .map(|p| (p.source, p.destination))
        .collect();
    seen.sort();
    let expected = [(2, 2), (0, 0), (0, 1), (1, 0)];
    assert_eq!(
        seen,
        expected.map(|(from, to): (usize, usize)| (own[from].into(), own[to].into()))
    );
}

#[test]
fn an_inactive_address_is_looked_at_now_and_then() {
    let (mut left, mut right) = pair();
    right.skipped_max = Duration::MAX;
    right.set_active(0, false);
    right.set_active(77, false);
    let mut batch = batch();
    add(&mut batch, &packet(64, 1), to(RIGHT));
    left.transmit(&mut batch).unwrap();
    assert!(readable(&right, Duration::from_secs(60)));
    let mut arrived = Vec::new();
    let calls = (1..=IDLE_POLL_INTERVAL)
        .find(|_| take(&mut right, 8, &mut arrived) > 0)
        .expect("seen within one interval");
    assert_eq!(calls, IDLE_POLL_INTERVAL);

    right.set_active(0, true);
    add(&mut batch, &packet(64, 2), to(RIGHT));
    left.transmit(&mut batch).unwrap();
    assert!(readable(&right, Duration::from_secs(60)));
    assert_eq!(take(&mut right, 8, &mut arrived), 1);
}

#[test]
fn an_address_to_which_nothing_comes_is_looked_at_less_often() {
    let own = ["127.0.0.9", "127.0.0.10"].map(address);
    let mut port = port_at(&own);
    port.skipped_max = Duration::MAX;
    let mut arrived = Vec::new();
    let mut calls_until_heard = |port: &mut UdpPort, target: usize| {
        send_to_itself(port, own[target], 1);
        assert!(readable(port, Duration::from_secs(60)));
        (1..=QUIET_POLL_INTERVAL)
            .find(|_| take(port, 8, &mut arrived) > 0)
            .expect("seen within one interval")
    };
    let pass = |port: &mut UdpPort| {
        for _ in 0..QUIET_AFTER {
            take(port, 8, &mut Vec::new());
        }
        for socket in port.sockets.iter_mut().flatten() {
            socket.skipped = 0;
        }
    };
    assert_eq!(calls_until_heard(&mut port, 0), 1);
    assert_eq!(calls_until_heard(&mut port, 1), 1);
    pass(&mut port);
    assert_eq!(calls_until_heard(&mut port, 1), 1, "the last one");
    pass(&mut port);
    assert_eq!(calls_until_heard(&mut port, 0), QUIET_POLL_INTERVAL);
    assert_eq!(calls_until_heard(&mut port, 0), 1, "it is quiet no more");
}

#[test]
fn a_quiet_address_is_heard_between_two_busy_ones() {
    let own = ["127.0.0.11", "127.0.0.12", "127.0.0.13"].map(address);
    let mut port = port_at(&own);
    port.skipped_max = Duration::MAX;
    port.sockets[2].as_mut().unwrap().silent = QUIET_AFTER;
    for (&address, packets) in own.iter().zip([200, 200, 1]) {
        send_to_itself(&mut port, address, packets);
    }
    let mut arrived = Vec::new();
    // Each busy one fills the budget of a call.
    for _ in 0..2 * QUIET_POLL_INTERVAL + 2 {
        assert!(take(&mut port, 1, &mut arrived) > 0);
    }
    assert!(
        arrived
            .iter()
            .any(|packet| packet.destination == own[2].into())
    );
}

#[test]
fn who_polls_seldom_hears_a_quiet_address_at_the_next_poll() {
    let own = ["127.0.0.14", "127.0.0.15"].map(address);
    let mut port = port_at(&own);
    port.sockets[0].as_mut().unwrap().silent = QUIET_AFTER;
    port.heard_last = 1;
    port.set_active(1, false);
    for target in own {
        take(&mut port, 8, &mut Vec::new());
        std::thread::sleep(2 * SKIPPED_MAX);
        send_to_itself(&mut port, target, 1);
        assert!(readable(&port, Duration::from_secs(60)));
        assert_eq!(take(&mut port, 8, &mut Vec::new()), 1, "{target}");
    }
}

/// Link-local address and index of an interface that has one; loopback never does.
fn link_local() -> Option<(IpAddr, u32)> {
    let table = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
    table.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let bits = u128::from_str_radix(words[0], 16).ok()?;
        let flags = u32::from_str_radix(words[4], 16).ok()?;
        let ip = std::net::Ipv6Addr::from_bits(bits);
        let ready = ip.is_unicast_link_local() && flags & 0x48 == 0;
        ready.then_some((IpAddr::V6(ip), u32::from_str_radix(words[1], 16).ok()?))
    })
}

#[test]
fn a_link_local_address_is_used_on_its_interface() {
    let Some((own, interface_index)) = link_local() else {
        eprintln!("not tested: no interface of this host has a link-local address");
        return;
    };
    let mut port = UdpPort::bind(&[own], interface_index, config()).unwrap();
    let mut batch = batch();
    let destination = Destination {
        address: own.into(),
        ..to(LEFT)
    };
    add(&mut batch, &packet(64, 1), destination);
    port.transmit(&mut batch).unwrap();
    let arrived = receive(&mut port, 1);
    assert_eq!(
        (arrived[0].source, arrived[0].destination),
        (own.into(), own.into())
    );
}

#[test]
fn a_second_process_is_told_that_the_address_is_taken() {
    let (left, _right) = pair();
    let again = UdpConfig {
        port: left.port(),
        ..config()
    };
    let error = UdpPort::bind(&[address(LEFT)], 0, again)
        .err()
        .expect("the port is taken");
    assert_eq!(error.errno(), libc::EADDRINUSE);
    assert_eq!(error.address(), Some(address(LEFT)));
    let text = error.to_string();
    assert!(text.contains("somebody else"), "{text}");
    assert!(text.contains(LEFT), "{text}");
}

#[test]
fn addresses_that_are_not_ours_are_refused_with_a_reason() {
    for foreign in ["192.0.2.1", "2001:db8::1"] {
        let error = UdpPort::bind(&[address(foreign)], 0, config())
            .err()
            .expect("a documentation address");
        assert!(
            matches!(error, BindError::AddressUnavailable { .. }),
            "{error:?}"
        );
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
        assert!(error.to_string().contains(foreign), "{error}");
    }
    assert!(matches!(
        UdpPort::bind(&[], 0, config()),
        Err(BindError::AddressCount { count: 0 })
    ));
}

mod addresses;
mod bundles;
mod hostile;
mod refusals;
