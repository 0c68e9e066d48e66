//! Hosts that send no first Hello, and answer: those on a wire, whose peer may be wireless.

use crate::MS;
use crate::wires::{Wires, reset};
use airdma_engine::*;

const LEN: usize = 64 * 1024;

/// The left host asks if `left_asks`, and the right one answers.
fn wires(left_asks: bool) -> Wires {
    let mut wires = Wires::new([false, false], LEN);
    let [left, right] = &wires.hosts;
    if left_asks {
        left.device.offer_air(RateControl::Buffers);
    } else {
        left.device.offer_air_to_who_asks(RateControl::Buffers);
    }
    right.device.offer_air_to_who_asks(RateControl::Buffers);
    wires.connect_again();
    wires
}

fn agreed(wires: &Wires) -> [u64; 2] {
    wires.hosts.each_ref().map(|host| host.count("air_agreed"))
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

#[test]
fn who_is_asked_agrees_and_asks_in_turn() {
    let mut wires = wires(true);
    assert_eq!(agreed(&wires), [1, 1]);
    write_both_ways(&mut wires, true);
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

#[test]
fn hosts_of_which_none_asks_say_nothing() {
    let mut wires = wires(false);
    write_both_ways(&mut wires, false);
    wires.quietly(1000 * MS);
    assert_eq!(agreed(&wires), [0, 0]);
    assert_eq!([wires.messages(0), wires.messages(1)], [0, 0]);
    assert!(wires.hosts.iter().all(|host| host.count("drop_air") == 0));
}

#[test]
fn an_early_caller_is_asked_once_a_queue_pair_is_connected() {
    let mut wires = wires(true);
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
