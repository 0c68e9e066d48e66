//! Packets as long as the interface permits, instead of a path MTU.

use crate::common::*;
use crate::wires::{Wires, reset};
use crate::{BTH_AND_DETH, MS, inject, inject_packet, is_middle};
use airdma_engine::*;
use airdma_wire::air::{Hello, Message, feature, hello, parse};
use airdma_wire::padded::pad_packet;
use airdma_wire::{Bth, Headers, Opcode, Psn};

const LEN: usize = 64 * 1024;
/// A packet without its ICRC (BTH and payload) of a message that is divided evenly, into as many as
/// of 1,452 bytes.
const EVEN: usize = 12 + 1428;
const USUAL: usize = 12 + 1024;

/// Lengths of the middle packets of one WRITE, which arrives.
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
fn agreed_peers_fill_packets_up_to_the_interfaces_mtu() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    for left in [0, 1] {
        let since = wires.sent.len();
        let middles = middles(&mut wires, left);
        assert_eq!(middles, [EVEN].repeat(LEN / 1452 - 1));
        let sent = wires.sent[since..].iter();
        let write = sent.filter(|(from, bytes)| *from == left && (6..=8).contains(&bytes[0]));
        assert!(write.map(|(_, bytes)| bytes.len()).eq([EVEN + 4; 46]));
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
        assert_eq!(middles, [12 + 1216].repeat(LEN / 1232 - 1), "{left}");
    }
}

#[test]
fn an_interface_that_takes_less_from_now_on_ends_no_connection() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let write = wires.ends[1].write(&wires.ends[0], 0, LEN);
    wires.ends[1].qp.post_send(&write).unwrap();
    // Some of it is in flight.
    wires.quietly(MS / 5);
    wires.hosts[0].device.set_interface_mtu(1280);
    wires.quietly(30 * MS);
    wires.ends[1].ok();
    for left in [0, 1] {
        let middles = middles(&mut wires, left);
        assert_eq!(middles, [12 + 1216].repeat(LEN / 1232 - 1), "{left}");
    }
}

#[test]
fn an_interface_that_takes_more_from_now_on_ends_no_connection() {
    let mut wires = Wires::on([Some(RateControl::Buffers); 2], [1280, 1500], LEN);
    wires.quietly(5 * MS);
    wires.hosts[0].device.set_interface_mtu(1500);
    // The peer learns and uses it, but its answer is lost.
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
    assert!(sent.any(|length| length == EVEN + 4));
}

/// Answers the left one's Hello in the right one's name.
pub fn answer_hello(wires: &Wires, long_payload: u16, features: u64) {
    let asked = wires.sent.iter().find_map(|(_, bytes)| {
        let mad = bytes.get(BTH_AND_DETH..BTH_AND_DETH + 256)?;
        match parse(mad) {
            Ok(Message::Hello(hello, _)) => Some(hello),
            Ok(Message::Report(..) | Message::Key(_)) | Err(_) => None,
        }
    });
    let answer = Hello {
        asks: false,
        long_payload,
        features,
        sender: (wires.ends[1].qp.number().get() >> 12 & 0xff) << 24,
        instance: 9,
        answers: asked.map(|asked| asked.instance),
        echo: asked.map_or(0, |asked| asked.nonce),
        ..Hello::default()
    };
    inject(wires, &hello(&answer, 0));
}

#[test]
fn a_peer_that_takes_no_whole_words_gets_some() {
    let mut wires = Wires::new([true, false], LEN);
    wires.quietly(MS);
    answer_hello(&wires, 1433, feature::SELECTIVE);
    wires.quietly(MS);
    assert_eq!(wires.hosts[0].count("air_agreed"), 1);
    let since = wires.sent.len();
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(5 * MS);
    let mut sent = wires.sent[since..].iter().map(|(_, bytes)| bytes.len());
    assert!(sent.any(|length| length == 12 + 1432 + 4));
}

/// Reads all that the other end has, with the losses of `loses`. Returns the lengths of the
/// responses.
fn answers(
    wires: &mut Wires,
    left: usize,
    loses: &mut dyn FnMut(usize, &[u8]) -> bool,
) -> Vec<usize> {
    let since = wires.sent.len();
    let data = pattern(LEN, since as u8);
    wires.ends[1 - left].memory.fill(0, &data);
    let peer = &wires.ends[1 - left].memory;
    let read = Operation::Read {
        va: peer.address(),
        rkey: peer.mr.rkey(),
    };
    wires.ends[left].send(read, 0, LEN);
    wires.pass(80 * MS, loses);
    wires.ends[left].ok();
    assert!(wires.ends[left].memory.bytes(0, LEN) == data);
    let sent = wires.sent[since..].iter();
    let answers = sent.filter(|(from, bytes)| *from != left && (0x0d..=0x10).contains(&bytes[0]));
    answers.map(|(_, bytes)| bytes.len() - 4).collect()
}

/// Lengths of the responses to one request of a peer that divides evenly, without a loss.
fn equal(full: usize, most: usize) -> Vec<usize> {
    [12 + full].repeat(LEN.div_ceil(most))
}

/// Lengths of the responses to one request of another peer, without a loss.
fn whole(full: usize) -> Vec<usize> {
    let packets = LEN.div_ceil(full);
    let rest = LEN - (packets - 1) * full;
    let middle = [12 + full].repeat(packets - 2);
    [&[16 + full], &middle[..], &[16 + rest]].concat()
}

#[test]
fn agreed_peers_answer_reads_in_packets_of_the_interfaces_mtu() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    for left in [0, 1] {
        let answers = answers(&mut wires, left, &mut |_, _| false);
        assert_eq!(answers, equal(1428, 1452));
    }
}

#[test]
fn reads_of_other_peers_are_answered_in_path_mtu_packets() {
    for offers in [[true, false], [false, true], [false, false]] {
        let mut wires = Wires::new(offers, LEN);
        wires.quietly(5 * MS);
        for left in [0, 1] {
            let answers = answers(&mut wires, left, &mut |_, _| false);
            assert_eq!(answers, whole(1024), "{offers:?}");
        }
        let requests = wires.sent.iter().filter(|(_, bytes)| bytes[0] == 0x0c);
        let lengths: Vec<usize> = requests.map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lengths, [12 + 16 + 4; 2], "{offers:?}");
    }
}

#[test]
fn a_peer_without_long_reads_answers_in_path_mtu_packets() {
    let mut wires = Wires::new([true, false], LEN);
    wires.quietly(MS);
    answer_hello(&wires, 1452, feature::SELECTIVE);
    wires.quietly(MS);
    assert_eq!(wires.hosts[0].count("air_agreed"), 1);
    assert_eq!(answers(&mut wires, 0, &mut |_, _| false), whole(1024));
}

#[test]
fn lost_answers_of_a_read_come_again_as_long_as_they_were() {
    // A request, and a response: the first, one in the middle, the last.
    for (opcode, nth) in [(0x0c, 0), (0x0e, 0), (0x0e, 20), (0x0e, 45)] {
        let mut wires = Wires::new([true, true], LEN);
        wires.quietly(5 * MS);
        let mut count = 0;
        let answers = answers(&mut wires, 0, &mut |_, bytes| {
            count += usize::from(bytes[0] == opcode);
            bytes[0] == opcode && count == nth + 1
        });
        assert!(count > nth);
        let long = answers.iter().filter(|&&length| length == EVEN).count();
        assert!(long >= LEN / 1452, "{nth}: {answers:?}");
        let last_alone = 12 + 1276;
        let others = answers.iter().filter(|&&length| length != EVEN);
        assert!(
            others.copied().all(|length| length == last_alone),
            "{nth}: {answers:?}"
        );
    }
}

#[test]
fn a_read_goes_on_where_an_interface_takes_less_from_now_on() {
    // At the requester, and at the responder.
    for shrinks in [0, 1] {
        let mut wires = Wires::new([true, true], LEN);
        wires.quietly(5 * MS);
        let data = pattern(LEN, 9);
        wires.ends[1].memory.fill(0, &data);
        let peer = &wires.ends[1].memory;
        let (va, rkey) = (peer.address(), peer.mr.rkey());
        wires.ends[0].send(Operation::Read { va, rkey }, 0, LEN);
        let mut answers = 0;
        // Some responses are in flight, and one is lost.
        let mut loses = |_: usize, bytes: &[u8]| {
            answers += usize::from(bytes[0] == 0x0e);
            bytes[0] == 0x0e && answers == 20
        };
        wires.pass(MS / 2, &mut loses);
        wires.hosts[shrinks].device.set_interface_mtu(1280);
        wires.pass(60 * MS, &mut loses);
        wires.ends[0].ok();
        assert!(wires.ends[0].memory.bytes(0, LEN) == data, "{shrinks}");
        let answers = self::answers(&mut wires, 0, &mut |_, _| false);
        assert_eq!(answers, equal(1216, 1232), "{shrinks}");
    }
}

#[test]
fn a_peer_without_equal_lengths_gets_a_short_last_packet() {
    let mut wires = Wires::new([true, false], LEN);
    wires.quietly(MS);
    answer_hello(&wires, 1452, feature::SELECTIVE);
    wires.quietly(MS);
    let since = wires.sent.len();
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(5 * MS);
    let sent = wires.sent[since..].iter();
    let write: Vec<_> = sent
        .filter(|(_, bytes)| (6..=8).contains(&bytes[0]))
        .collect();
    assert!(write.iter().all(|(_, bytes)| bytes[1] & 0xf == 0));
    let last = write.iter().find(|(_, bytes)| bytes[0] == 8).unwrap();
    assert_eq!(last.1.len(), 12 + (LEN + 16) % 1452 + 4);
}

#[test]
fn padding_of_a_peer_that_agreed_on_nothing_is_dropped() {
    for offers in [true, false] {
        let mut wires = Wires::new([offers, false], LEN);
        wires.quietly(MS);
        let mut bytes = vec![0; 12];
        let qpn = wires.ends[0].qp.number();
        let header = Bth::new(Opcode::RcWriteLast, qpn, Psn::new(7));
        Headers::new(header).emit(&mut bytes);
        bytes.resize(12 + 64, 0);
        pad_packet(&mut bytes, 8);
        let before = wires.hosts[0].count("drop_malformed");
        inject_packet(&wires, 0, bytes);
        wires.quietly(MS);
        let dropped = wires.hosts[0].count("drop_malformed") - before;
        assert_eq!(dropped, u64::from(!offers));
    }
}

#[test]
fn reads_ask_for_no_more_than_both_interfaces_take() {
    for (said, used) in [(65_535, 1452), (1433, 1432), (1040, 1024), (0, 1024)] {
        let mut wires = Wires::new([true, true], LEN);
        wires.pass(MS, &mut |from, bytes| from == 1 && bytes[5..8] == [0, 0, 1]);
        answer_hello(&wires, said, feature::SELECTIVE | feature::LONG_READS);
        wires.pass(MS, &mut |from, bytes| from == 1 && bytes[5..8] == [0, 0, 1]);
        assert_eq!(answers(&mut wires, 0, &mut |_, _| false), whole(used));
    }
}
