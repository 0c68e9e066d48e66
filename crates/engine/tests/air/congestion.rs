//! Congestion notification packets: their senders, and their effect on the rate.

use crate::common::*;
use crate::wires::Wires;
use crate::{MS, rate};
use airdma_engine::*;
use airdma_port::sim::Frame;
use airdma_wire::{IpPseudo, ROCE_PORT, icrc};
use std::time::Duration;

const LEN: usize = 512 * 1024;
const ECT_0: u8 = 2;

/// Two hosts without an agreement, behind a line of 100 Mb/s, with a grown window: the right one is
/// no airdma host, and did not answer the left one's Hello.
fn plain() -> Wires {
    let mut wires = Wires::with([None; 2], LEN);
    wires.hosts[0].device.offer_wired(RateControl::default());
    wires.connect_again();
    wires.quietly(800 * MS);
    wires.line = Some(rate::line(false));
    for _ in 0..3 {
        let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
        wires.ends[0].qp.post_send(&write).unwrap();
        wires.quietly(200 * MS);
        wires.ends[0].ok();
    }
    wires
}

/// Duration of a WRITE of [`LEN`] bytes.
fn write(wires: &mut Wires, (left, right): (&End, &End)) -> Duration {
    let begun = wires.now();
    left.qp.post_send(&left.write(right, 0, LEN)).unwrap();
    loop {
        wires.quietly(MS / 10);
        if let Some(completion) = left.try_complete() {
            assert_eq!(completion.status, Status::Success);
            return wires.now() - begun;
        }
        assert!(wires.now() - begun < 10_000 * MS, "no end");
    }
}

/// Duration between other queue pairs than those of [`Wires`].
fn write_once(wires: &mut Wires) -> Duration {
    let (left, right) = rate::pair(wires);
    write(wires, (&left, &right))
}

#[test]
fn marked_packets_cause_a_notification_to_their_queue_pair() {
    let mut wires = plain();
    wires.marks = true;
    let (left, right) = rate::pair(&wires);
    write(&mut wires, (&left, &right));
    let cnps = wires.cnps();
    assert!(!cnps.is_empty());
    for bytes in &cnps {
        let mut expected = [0; 28];
        expected[..4].copy_from_slice(&[0x81, 0, 0xff, 0xff]);
        // BECN.
        expected[4] = 0x40;
        expected[5..8].copy_from_slice(&left.qp.number().get().to_be_bytes()[1..]);
        assert_eq!(bytes[..28], expected);
    }
    assert_eq!(wires.hosts[1].count("cnps_sent"), cnps.len() as u64);
    assert_eq!(wires.hosts[0].count("cnps_received"), cnps.len() as u64);
    // Several packets that come at a time cause one.
    let packets = wires.sent.iter().filter(|(from, _)| *from == 0).count();
    assert!(cnps.len() < packets, "{} of {packets}", cnps.len());
}

#[test]
fn without_marks_nobody_is_notified_and_nothing_is_slower() {
    let mut wires = plain();
    let first = write_once(&mut wires);
    assert_eq!(write_once(&mut wires), first);
    assert!(wires.cnps().is_empty());
    assert_eq!(wires.traffic_class[0], 0);
}

#[test]
fn notifications_slow_all_senders_to_the_host_down() {
    let mut wires = plain();
    let (left, right) = rate::pair(&wires);
    let before = write(&mut wires, (&left, &right));
    assert_eq!(wires.traffic_class[0], 0);
    wires.marks = true;
    write(&mut wires, (&left, &right));
    let slow = write(&mut wires, (&left, &right));
    assert!(2 * slow > 3 * before, "{slow:?} after {before:?}");
    assert_eq!(wires.traffic_class[0], ECT_0);
    // A queue pair connected now shares the rate.
    let other = write_once(&mut wires);
    assert!(2 * other > 3 * before, "{other:?}");
    // So does one that was connected before.
    let begun = wires.now();
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(before * 3 / 2);
    assert!(wires.ends[0].try_complete().is_none(), "since {begun:?}");
}

#[test]
fn when_no_more_notifications_come_it_is_as_fast_as_before() {
    let mut wires = plain();
    let before = write_once(&mut wires);
    wires.marks = true;
    let slow = write_once(&mut wires);
    assert!(2 * slow > 3 * before);
    wires.marks = false;
    wires.quietly(500 * MS);
    assert_eq!(write_once(&mut wires), before);
}

#[test]
fn an_unreliable_connection_is_slowed_down_too() {
    let mut wires = plain();
    let [left, right] =
        (wires.hosts.each_ref()).map(|host| End::new(host.device.device(), QpType::Uc, LEN));
    connect_unreliable(&left.qp, right.qp.number(), right.path());
    connect_unreliable(&right.qp, left.qp.number(), left.path());
    wires.marks = true;
    for _ in 0..3 {
        left.qp.post_send(&left.write(&right, 0, LEN)).unwrap();
    }
    wires.quietly(10 * MS);
    let count = wires.sent.len();
    wires.quietly(10 * MS);
    // On a line of 100 Mb/s.
    let sent = wires.sent[count..].iter().filter(|(from, _)| *from == 0);
    assert!(sent.count() < 30);
}

#[test]
fn window_rate_control_only_counts_notifications() {
    let mut wires = plain();
    wires.hosts[0].device.control_rate(RateControl::Window);
    let before = write_once(&mut wires);
    wires.marks = true;
    for _ in 0..6 {
        assert_eq!(write_once(&mut wires), before);
    }
    assert!(wires.hosts[0].count("cnps_received") > 0);
}

#[test]
fn dcqcn_sends_markable_packets_from_the_first_on() {
    let mut wires = plain();
    wires.hosts[0].device.control_rate(RateControl::Dcqcn);
    write_once(&mut wires);
    assert_eq!(wires.traffic_class[0], ECT_0);
    wires.marks = true;
    let slow = write_once(&mut wires);
    wires.marks = false;
    wires.quietly(500 * MS);
    let fast = write_once(&mut wires);
    assert!(2 * slow > 3 * fast, "{slow:?}, {fast:?}");
}

#[test]
fn between_hosts_that_repeat_selectively_it_works_the_same() {
    let mut wires = Wires::with([Some(RateControl::Dcqcn); 2], LEN);
    wires.line = Some(rate::line(false));
    wires.quietly(5 * MS);
    write_once(&mut wires);
    let (left, right) = rate::pair(&wires);
    wires.quietly(5 * MS);
    let before = write(&mut wires, (&left, &right));
    assert_eq!(wires.traffic_class[0], ECT_0);
    wires.marks = true;
    let slow = write(&mut wires, (&left, &right));
    assert!(!wires.cnps().is_empty());
    assert!(2 * slow > 3 * before, "{slow:?} after {before:?}");
}

#[test]
fn who_hears_of_marks_in_reports_gets_no_notifications() {
    let mut wires = Wires::with([Some(RateControl::Dctcp); 2], LEN);
    wires.quietly(5 * MS);
    wires.marks = true;
    let (left, right) = rate::pair(&wires);
    wires.quietly(5 * MS);
    write(&mut wires, (&left, &right));
    assert!(wires.cnps().is_empty());
}

#[test]
fn a_notification_that_somebody_else_sends_changes_nothing() {
    let mut wires = plain();
    let (left, right) = rate::pair(&wires);
    let before = write(&mut wires, (&left, &right));
    let frame = notification(&left, [192, 0, 2, 77], 0);
    for _ in 0..100 {
        wires.hosts[0].carrier.give(frame.clone());
        wires.quietly(MS / 10);
    }
    assert_eq!(wires.hosts[0].count("drop_bad_source"), 100);
    assert_eq!(write(&mut wires, (&left, &right)), before);
}

#[test]
fn a_mark_on_a_notification_is_answered_by_none() {
    let mut wires = plain();
    let (left, right) = rate::pair(&wires);
    write(&mut wires, (&left, &right));
    wires.hosts[0].carrier.give(notification(&left, RIGHT, 3));
    wires.quietly(MS);
    assert_eq!(wires.hosts[0].count("cnps_received"), 1);
    assert_eq!(wires.hosts[0].count("cnps_sent"), 0);
}

/// A CNP for the queue pair of this end.
fn notification(to: &End, source: [u8; 4], tos: u8) -> Frame {
    let ip = IpPseudo::V4 {
        src: source.into(),
        dst: LEFT.into(),
        id: 0,
        dont_fragment: true,
    };
    let mut bytes = airdma_wire::cnp::cnp(to.qp.number()).to_vec();
    let sum = icrc(&ip, ROCE_PORT, ROCE_PORT, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    Frame {
        source: source.into(),
        destination: LEFT.into(),
        source_port: ROCE_PORT,
        tos,
        ttl: 64,
        flow_label: 0,
        bytes,
    }
}
