//! Hosts on a wire, beside others on a wire, on the air, and of other makers.

use crate::common::End;
use crate::wires::{Wires, reset};
use crate::{MS, is_middle};
use airdma_engine::*;

const LEN: usize = 64 * 1024;
/// Last of the four questions, and the wait for its answer.
const GIVEN_UP: std::time::Duration = std::time::Duration::from_millis(761);

/// What a host offers.
#[derive(Clone, Copy, PartialEq)]
enum Offers {
    Nothing,
    Wired,
    Radio,
}

fn wires(offers: [Offers; 2]) -> Wires {
    let mut wires = Wires::new([false, false], LEN);
    for (host, offers) in wires.hosts.iter().zip(offers) {
        match offers {
            Offers::Nothing => {}
            Offers::Wired => host.device.offer_wired(RateControl::Buffers),
            Offers::Radio => host.device.offer_air(RateControl::Buffers),
        }
    }
    wires.connect_again();
    wires
}

fn agreed(wires: &Wires) -> [u64; 2] {
    wires.hosts.each_ref().map(|host| host.count("air_agreed"))
}

fn reports(wires: &Wires) -> u64 {
    let sent = wires
        .hosts
        .iter()
        .map(|host| host.count("air_reports_sent"));
    sent.sum()
}

/// A WRITE from each end, in packets as long as between agreed peers if `is_long`.
fn write_both_ways(wires: &mut Wires, is_long: bool) {
    for left in [0, 1] {
        let since = wires.sent.len();
        let write = wires.ends[left].write(&wires.ends[1 - left], 0, LEN);
        wires.ends[left].qp.post_send(&write).unwrap();
        wires.quietly(30 * MS);
        wires.ends[left].ok();
        let mut middles = wires.sent[since..].iter().filter(|sent| sent.1[0] == 0x07);
        let len = 12 + if is_long { 1428 } else { 1024 } + 4;
        assert!(middles.all(|(from, bytes)| *from == left && bytes.len() == len));
    }
}

/// A WRITE of which one packet is lost: whether that alone is sent again.
fn repairs(wires: &mut Wires) -> bool {
    let before = wires.hosts[0].count("retransmits");
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    let mut middles = 0;
    wires.pass(100 * MS, &mut |from, bytes| {
        middles += u32::from(is_middle(from, bytes));
        is_middle(from, bytes) && middles == 9
    });
    wires.ends[0].ok();
    wires.hosts[0].count("retransmits") == before + 1
}

#[test]
fn hosts_on_a_wire_agree_on_acks_with_ranges_and_long_packets() {
    let mut wires = wires([Offers::Wired; 2]);
    assert_eq!(agreed(&wires), [1, 1]);
    let hellos = [wires.messages(0), wires.messages(1)];
    assert!(hellos.iter().all(|&count| count <= 3), "{hellos:?}");
    write_both_ways(&mut wires, true);
    assert!(repairs(&mut wires));
    wires.quietly(2000 * MS);
    assert_eq!([wires.messages(0), wires.messages(1)], hellos);
    assert_eq!(reports(&wires), 0);
    assert!(wires.hosts.iter().all(|host| host.count("drop_air") == 0));
}

#[test]
fn beside_a_host_on_the_air_one_on_a_wire_reports() {
    for offers in [
        [Offers::Radio, Offers::Wired],
        [Offers::Wired, Offers::Radio],
    ] {
        let mut wires = wires(offers);
        assert_eq!(agreed(&wires), [1, 1]);
        write_both_ways(&mut wires, true);
        assert!(repairs(&mut wires));
        assert!(reports(&wires) > 0);
        assert!(wires.hosts.iter().all(|host| host.count("acks_sent") == 0));
        // Another queue pair to the same process.
        let (left, right) = crate::rate::pair(&wires);
        wires.quietly(5 * MS);
        let since = wires.sent.len();
        right.qp.post_send(&right.write(&left, 0, LEN)).unwrap();
        wires.quietly(30 * MS);
        right.ok();
        let mut lengths = wires.sent[since..].iter().map(|(_, bytes)| bytes.len());
        assert!(lengths.any(|length| length == 12 + 1428 + 4));
    }
}

#[test]
fn a_silent_host_is_asked_four_times_and_leaves_nothing() {
    let mut wires = wires([Offers::Wired, Offers::Nothing]);
    write_both_ways(&mut wires, false);
    wires.quietly(GIVEN_UP);
    write_both_ways(&mut wires, false);
    assert!(!repairs(&mut wires));
    assert_eq!([wires.messages(0), wires.messages(1)], [4, 0]);
    assert_eq!(agreed(&wires), [0, 0]);
    // It wants nothing at any time.
    assert_eq!(wires.hosts[0].device.deadline(), None);
}

#[test]
fn one_that_was_silent_agrees_when_it_asks() {
    let mut wires = wires([Offers::Wired, Offers::Nothing]);
    wires.quietly(GIVEN_UP);
    wires.hosts[1].device.offer_wired(RateControl::Buffers);
    reset(&wires.ends[1]);
    wires.ends[1].connect(&wires.ends[0]);
    wires.quietly(5 * MS);
    assert_eq!(agreed(&wires), [1, 1]);
}

#[test]
fn an_early_caller_is_asked_once_a_queue_pair_is_connected() {
    let mut wires = wires([Offers::Wired; 2]);
    let [left, right] = &wires.ends;
    for end in [left, right] {
        reset(end);
    }
    left.connect(right);
    wires.quietly(1000 * MS);
    assert_eq!(agreed(&wires), [1, 1], "nobody is connected to it");
    wires.ends[1].connect(&wires.ends[0]);
    wires.quietly(5 * MS);
    assert_eq!(agreed(&wires), [2, 2]);
    write_both_ways(&mut wires, true);
}

#[test]
fn hosts_agree_while_connections_come_faster_than_answers() {
    let mut wires = wires([Offers::Wired; 2]);
    // A round trip of 4 ms.
    wires.away = 20;
    let before = wires.messages(0);
    let mut pairs = Vec::new();
    for _ in 0..20 {
        pairs.push(crate::rate::pair(&wires));
        wires.quietly(MS);
    }
    let since = wires.sent.len();
    let (left, right) = &pairs[0];
    left.qp.post_send(&left.write(right, 0, LEN)).unwrap();
    wires.quietly(30 * MS);
    left.ok();
    let mut middles = wires.sent[since..].iter().filter(|sent| sent.1[0] == 0x07);
    assert!(middles.all(|(_, bytes)| bytes.len() == 12 + 1428 + 4));
    // Questions and answers: two of each in a round trip suffice.
    let messages = wires.messages(0) - before;
    assert!(messages < pairs.len(), "{messages}");
}

#[test]
fn a_question_on_its_way_does_not_hide_a_smaller_mtu() {
    let mut wires = wires([Offers::Wired; 2]);
    // Its own question states the earlier MTU.
    let one = End::new(wires.hosts[0].device.device(), QpType::Rc, LEN);
    one.connect(&wires.ends[1]);
    wires.quietly(MS / 5);
    wires.hosts[0].device.set_interface_mtu(1280);
    wires.quietly(20 * MS);
    let since = wires.sent.len();
    let write = wires.ends[1].write(&wires.ends[0], 0, LEN);
    wires.ends[1].qp.post_send(&write).unwrap();
    wires.quietly(30 * MS);
    wires.ends[1].ok();
    let mut middles = wires.sent[since..].iter().filter(|sent| sent.1[0] == 0x07);
    assert!(middles.all(|(_, bytes)| bytes.len() <= 12 + 1232 + 4));
}
