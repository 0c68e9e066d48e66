//! Unreliable datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_sim::{Pair, Region, SendWr, Side};
use airdma_transport::{
    Access, AttrMask, CompletionOpcode, Counter, GrhHeader, Operation, QpAttributes, QpState,
    Status,
};
use airdma_wire::{PathMtu, Qkey, Qpn, grh_area};

use crate::scene::{clean, count, open_region, outcomes, pattern, receives, sends, state};

const QKEY: Qkey = Qkey(0x1111_1111);

fn started() -> (Pair, usize) {
    let mut pair = Pair::new(1, clean(), clean());
    let qp = pair.datagrams(PathMtu::M1024, QKEY);
    (pair, qp)
}

fn send(pair: &mut Pair, qp: usize, wr_id: u64, source: &Region, operation: Operation) {
    let to = pair.datagram_to(Side::B, qp, QKEY);
    let wr = SendWr::new(wr_id, operation, vec![source.all()]);
    pair[Side::A].post_send(qp, wr.to(to));
}

#[test]
fn datagrams_of_every_size_arrive_behind_the_ip_header() {
    for size in [0, 1, 2, 3, 4, 1000, 1023, 1024] {
        let (mut pair, qp) = started();
        let data = pattern(size, 1);
        let source = pair[Side::A].register(&data, Access::empty());
        let target = open_region(&mut pair, Side::B, size + 100);
        pair[Side::B].post_receive(
            qp,
            5,
            vec![
                target.part(0..30),
                target.part(30..2000.min(size as u32 + 100)),
            ],
        );
        send(&mut pair, qp, 1, &source, Operation::SendImm([1, 2, 3, 4]));
        pair.run_until_idle();
        pair.assert_nothing_left();

        let sent = sends(&pair, Side::A, qp);
        assert_eq!(outcomes(sent), [(1, Status::Success)]);
        assert_eq!(sent[0].byte_len as usize, size);
        let received = receives(&pair, Side::B, qp);
        assert_eq!(outcomes(received), [(5, Status::Success)]);
        let completion = received[0];
        assert_eq!(completion.byte_len as usize, size + 40);
        assert_eq!(completion.opcode, CompletionOpcode::Receive);
        assert_eq!(completion.imm, Some([1, 2, 3, 4]));
        assert_eq!(completion.grh, Some(GrhHeader::Ipv4));
        assert_eq!(completion.src_qpn, pair[Side::A].queue_pair(qp).qpn());

        let payload_len = 8 + 12 + 8 + 4 + size.next_multiple_of(4) + 4;
        let [a, b] = Side::BOTH.map(|side| pair[side].address());
        let area = grh_area(a, b, 0, 64, 0, payload_len as u16);
        let bytes = pair[Side::B].bytes(&target);
        assert_eq!(bytes[..40], area);
        assert_eq!(area[..20], [0; 20]);
        assert!(bytes[40..40 + size] == data);
        assert!(bytes[40 + size..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn over_ipv6_the_whole_area_is_the_header() {
    let addresses = [1, 2].map(|n| IpAddr::from(Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, n)));
    let mut pair = Pair::with_addresses(1, addresses, clean(), clean());
    let qp = pair.datagrams(PathMtu::M1024, QKEY);
    let source = pair[Side::A].register(b"four", Access::empty());
    let target = open_region(&mut pair, Side::B, 44);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    send(&mut pair, qp, 1, &source, Operation::Send);
    pair.run_until_idle();
    let area = grh_area(addresses[0], addresses[1], 0, 64, 0, 8 + 12 + 8 + 4 + 4);
    assert_eq!(area[0] >> 4, 6);
    assert_eq!(pair[Side::B].bytes(&target)[..40], area);
    assert_eq!(pair[Side::B].bytes(&target)[40..], *b"four");
}

#[test]
fn the_marks_of_the_path_are_seen_by_the_receiver() {
    let (mut pair, qp) = started();
    let source = pair[Side::A].register(b"four", Access::empty());
    let target = open_region(&mut pair, Side::B, 44);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    let mut to = pair.datagram_to(Side::B, qp, QKEY);
    to.path.traffic_class = 0x28;
    to.path.hop_limit = 3;
    let wr = SendWr::new(1, Operation::Send, vec![source.all()]);
    pair[Side::A].post_send(qp, wr.to(to));
    pair.run_until_idle();
    let header = &pair[Side::B].bytes(&target)[20..40];
    assert_eq!((header[1], header[8]), (0x28, 3));
}

#[test]
fn datagrams_without_a_receive_or_with_a_wrong_key_are_dropped() {
    let (mut pair, qp) = started();
    let source = open_region(&mut pair, Side::A, 10);
    send(&mut pair, qp, 1, &source, Operation::Send);
    pair.run_until_idle();
    assert_eq!(count(&pair, Side::B, qp, Counter::DropNoReceive), 1);

    let target = open_region(&mut pair, Side::B, 100);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    let mut to = pair.datagram_to(Side::B, qp, QKEY);
    to.qkey = Qkey(0x2222_2222);
    let wr = SendWr::new(2, Operation::Send, vec![source.all()]);
    pair[Side::A].post_send(qp, wr.to(to));
    pair.run_until_idle();
    assert_eq!(count(&pair, Side::B, qp, Counter::DropBadQkey), 1);

    to.qpn = Qpn::new(0x77);
    let wr = SendWr::new(3, Operation::Send, vec![source.all()]);
    pair[Side::A].post_send(qp, wr.to(to));
    pair.run_until_idle();
    assert_eq!(pair[Side::B].port_counters().no_queue_pair, 1);
    assert_eq!(receives(&pair, Side::B, qp), []);
    assert_eq!(sends(&pair, Side::A, qp).len(), 3);
}

#[test]
fn a_controlled_key_is_replaced_by_the_queue_pairs_own() {
    let (mut pair, qp) = started();
    let source = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 100);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    let to = pair.datagram_to(Side::B, qp, Qkey(0x8000_0000));
    let wr = SendWr::new(1, Operation::Send, vec![source.all()]);
    pair[Side::A].post_send(qp, wr.to(to));
    pair.run_until_idle();
    assert_eq!(receives(&pair, Side::B, qp).len(), 1);
}

#[test]
fn a_receive_too_short_is_kept_for_the_next_datagram() {
    let (mut pair, qp) = started();
    let long = open_region(&mut pair, Side::A, 100);
    let short = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 50);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    send(&mut pair, qp, 1, &long, Operation::Send);
    send(&mut pair, qp, 2, &short, Operation::Send);
    pair.run_until_idle();
    assert_eq!(count(&pair, Side::B, qp, Counter::DropTooLong), 1);
    let received = receives(&pair, Side::B, qp);
    assert_eq!(outcomes(received), [(5, Status::Success)]);
    assert_eq!(received[0].byte_len, 50);
}

#[test]
fn an_invalid_datagram_stops_the_send_queue_until_a_restart() {
    let (mut pair, qp) = started();
    let too_long = open_region(&mut pair, Side::A, 1025);
    let fine = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 100);
    pair[Side::B].post_receive(qp, 5, vec![target.all()]);
    send(&mut pair, qp, 1, &too_long, Operation::Send);
    send(&mut pair, qp, 2, &fine, Operation::Send);
    pair.run_until_idle();
    let expected = [(1, Status::LocalLengthError), (2, Status::WrFlushError)];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(state(&pair, Side::A, qp), QpState::SendQueueError);

    let attributes = QpAttributes {
        state: QpState::ReadyToSend,
        ..QpAttributes::default()
    };
    let moved = pair[Side::A].modify(qp, &attributes, AttrMask::STATE);
    moved.unwrap();
    send(&mut pair, qp, 3, &fine, Operation::Send);
    pair.run_until_idle();
    assert_eq!(sends(&pair, Side::A, qp)[2].status, Status::Success);
    assert_eq!(receives(&pair, Side::B, qp).len(), 1);
}

#[test]
fn what_is_lost_stays_lost_and_what_is_doubled_comes_twice() {
    let mut pair = Pair::new(9, clean().drop(0.1).duplicate(0.1), clean());
    let qp = pair.datagrams(PathMtu::M1024, QKEY);
    let source = open_region(&mut pair, Side::A, 10);
    let target = open_region(&mut pair, Side::B, 100);
    for wr_id in 0..300 {
        pair[Side::B].post_receive(qp, wr_id, vec![target.all()]);
    }
    for wr_id in 0..200 {
        send(&mut pair, qp, wr_id, &source, Operation::Send);
    }
    pair.run_until_idle();
    let counters = pair.link(Side::A).counters();
    assert!(counters.dropped > 5 && counters.duplicated > 5);
    let expected = 200 - counters.dropped + counters.duplicated;
    assert_eq!(receives(&pair, Side::B, qp).len() as u64, expected);
    assert_eq!(sends(&pair, Side::A, qp).len(), 200);
    assert_eq!(pair[Side::A].address(), Ipv4Addr::new(10, 5, 0, 1));
}
