//! Packets that carry as much as the interface takes, and not only a path MTU.

use crate::common::*;
use crate::wires::{Wires, reset};
use crate::{BTH_AND_DETH, MS, inject, is_middle};
use airdma_engine::*;
use airdma_wire::air::{Hello, Message, feature, hello, parse};

const LEN: usize = 64 * 1024;
/// A middle packet without its ICRC: BTH and payload.
const LONG: usize = 12 + 1452;
const USUAL: usize = 12 + 1024;

/// The lengths of the middle packets of one WRITE, which arrives.
fn middles(wires: &mut Wires, left: usize) -> Vec<usize> {
    let since = wires.sent.len();
    let data = pattern(LEN, since as u8);
    wires.ends[left].memory.fill(0, &data);
    let write = wires.ends[left].write(&wires.ends[1 - left], 0, LEN);
    wires.ends[left].qp.post_send(&write).unwrap();
    wires.quietly(30 * MS);
    wires.ends[left].ok();
    assert!(wires.ends[1 - left].memory.bytes(0, LEN) == data);
    let sent = wires.sent[since..].iter();
    let middle = sent.filter(|(from, bytes)| *from == left && is_middle(0, bytes));
    middle.map(|(_, bytes)| bytes.len() - 4).collect()
}

#[test]
fn who_has_agreed_fills_packets_as_far_as_the_interface_takes_them() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    for left in [0, 1] {
        let middles = middles(&mut wires, left);
        assert_eq!(middles, [LONG].repeat(LEN / 1452 - 1));
    }
}

#[test]
fn whoever_has_not_agreed_gets_packets_of_the_path_mtu() {
    for offers in [[true, false], [false, true]] {
        let mut wires = Wires::new(offers, LEN);
        wires.quietly(5 * MS);
        assert_eq!(middles(&mut wires, 0), [USUAL].repeat(LEN / 1024 - 2));
    }
}

#[test]
fn a_program_that_asked_for_a_smaller_path_mtu_gets_it() {
    let mut wires = Wires::new([true, true], LEN);
    let [left, right] = &wires.ends;
    for (end, peer) in [(left, right), (right, left)] {
        reset(end);
        to_rtr_with(&end.qp, peer.qp.number(), peer.path(), PathMtu::M512);
        to_rts(&end.qp, 14);
    }
    wires.quietly(5 * MS);
    assert_eq!(middles(&mut wires, 0), [12 + 512].repeat(LEN / 512 - 2));
}

#[test]
fn what_goes_through_a_router_has_the_path_mtu() {
    let mut wires = Wires::new([true, true], LEN);
    let (left, right) = wires.pair_at_second_address(LEN);
    wires.quietly(5 * MS);
    assert_eq!(wires.hosts[0].count("air_agreed"), 2);
    let since = wires.sent.len();
    left.qp.post_send(&left.write(&right, 0, LEN)).unwrap();
    wires.quietly(30 * MS);
    left.ok();
    let sent = wires.sent[since..].iter();
    let middles = sent.filter(|(from, bytes)| is_middle(*from, bytes));
    assert!(
        middles
            .map(|(_, bytes)| bytes.len())
            .eq([USUAL + 4].repeat(LEN / 1024 - 2))
    );
}

#[test]
fn where_an_interface_takes_less_both_send_what_fits_it() {
    let mut wires = Wires::on([Some(RateControl::Buffers); 2], [1500, 1280], LEN);
    wires.quietly(5 * MS);
    for left in [0, 1] {
        let middles = middles(&mut wires, left);
        assert_eq!(middles, [12 + 1232].repeat(LEN / 1232 - 1), "{left}");
    }
}

#[test]
fn an_interface_that_takes_less_from_now_on_ends_no_connection() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let write = wires.ends[1].write(&wires.ends[0], 0, LEN);
    wires.ends[1].qp.post_send(&write).unwrap();
    // Some of it is under way.
    wires.quietly(MS / 5);
    wires.hosts[0].device.set_interface_mtu(1280);
    wires.quietly(30 * MS);
    wires.ends[1].ok();
    for left in [0, 1] {
        let middles = middles(&mut wires, left);
        assert_eq!(middles, [12 + 1232].repeat(LEN / 1232 - 1), "{left}");
    }
}

#[test]
fn an_interface_that_takes_more_from_now_on_ends_no_connection() {
    let mut wires = Wires::on([Some(RateControl::Buffers); 2], [1280, 1500], LEN);
    wires.quietly(5 * MS);
    wires.hosts[0].device.set_interface_mtu(1500);
    // The peer hears of it and goes by it, but what it answers is lost.
    let mut answers = |from: usize, bytes: &[u8]| {
        let mad = bytes.get(BTH_AND_DETH..BTH_AND_DETH + 256);
        from == 1
            && mad.is_some_and(
                |mad| matches!(parse(mad), Ok(Message::Hello(hello, _)) if !hello.asks),
            )
    };
    wires.pass(MS, &mut answers);
    let since = wires.sent.len();
    for _ in 0..2 {
        let write = wires.ends[1].write(&wires.ends[0], 0, LEN);
        wires.ends[1].qp.post_send(&write).unwrap();
        wires.pass(9 * MS, &mut answers);
        wires.ends[1].ok();
    }
    let mut sent = wires.sent[since..].iter().map(|(_, bytes)| bytes.len());
    assert!(sent.any(|length| length == LONG + 4));
}

#[test]
fn a_peer_that_takes_no_whole_words_gets_some() {
    let mut wires = Wires::new([true, false], LEN);
    wires.quietly(MS);
    let asked = wires.sent.iter().find_map(|(_, bytes)| {
        let mad = bytes.get(BTH_AND_DETH..BTH_AND_DETH + 256)?;
        match parse(mad) {
            Ok(Message::Hello(hello, _)) => Some(hello),
            Ok(Message::Report(..)) | Err(_) => None,
        }
    });
    let answer = Hello {
        asks: false,
        long_payload: 1433,
        features: feature::SELECTIVE,
        sender: (wires.ends[1].qp.number().get() >> 12 & 0xff) << 24,
        instance: 9,
        answers: asked.map(|asked| asked.instance),
    };
    inject(&wires, &hello(&answer, 0));
    wires.quietly(MS);
    assert_eq!(wires.hosts[0].count("air_agreed"), 1);
    let since = wires.sent.len();
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(5 * MS);
    let mut sent = wires.sent[since..].iter().map(|(_, bytes)| bytes.len());
    assert!(sent.any(|length| length == 12 + 1432 + 4));
}
