//! Packets in bundles, to peers that accept them.

use crate::common::*;
use crate::wires::Wires;
use crate::{MS, is_answer_of_right, is_middle};
use airdma_engine::*;
use airdma_port::sim::Frame;
use airdma_wire::bundle::{Bundle, is_bundle};
use std::time::Duration;

const LEN: usize = 400 * 1024;

/// Two hosts in air mode, which have agreed; those of `offers` offer bundles, too.
fn wires(offers: [bool; 2]) -> Wires {
    let mut wires = Wires::new([true, true], LEN);
    for (host, offers) in wires.hosts.iter().zip(offers) {
        if offers {
            host.device.offer_bundles();
        }
    }
    wires.connect_again();
    wires
}

/// Number of frames that `from` has sent since the first `since`: bundles and others.
fn frames(wires: &Wires, from: usize, since: usize) -> [usize; 2] {
    let sent = wires.sent[since..]
        .iter()
        .filter(|(sender, _)| *sender == from);
    let (bundles, others): (Vec<_>, Vec<_>) = sent.partition(|(_, bytes)| is_bundle(bytes));
    [bundles.len(), others.len()]
}

/// Writes while frames are lost. Returns the number of frames: bundles and others.
fn write(wires: &mut Wires, mut loses: impl FnMut(usize, &[u8]) -> bool) -> [usize; 2] {
    let since = wires.sent.len();
    let data = pattern(LEN, since as u8);
    wires.ends[0].memory.fill(0, &data);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    let done = (0..60).find_map(|_| {
        wires.pass(5 * MS, &mut |from, bytes| loses(from, bytes));
        wires.ends[0].try_complete()
    });
    assert_eq!(done.map(|done| done.status), Some(Status::Success));
    assert!(wires.ends[1].memory.bytes(0, LEN) == data);
    frames(wires, 0, since)
}

#[test]
fn only_peers_that_accept_bundles_get_them() {
    for offers in [[true, true], [true, false], [false, true], [false, false]] {
        let mut wires = wires(offers);
        let [bundles, others] = write(&mut wires, |_, _| false);
        if offers == [true, true] {
            assert!((7..60).contains(&bundles), "{bundles}");
            assert!(others < 40, "{others}");
        } else {
            assert_eq!(bundles, 0);
            assert!(others >= 280, "{others}");
        }
        for host in &wires.hosts {
            assert_eq!(host.count("drop_bad_icrc") + host.count("drop_air"), 0);
            assert_eq!(host.count("retransmits"), 0);
        }
        assert_eq!(wires.hosts[0].count("tx_bundles"), bundles as u64);
    }
}

#[test]
fn with_ack_packets_in_place_of_reports_there_are_none() {
    let mut wires = Wires::with([None; 2], LEN);
    for host in &wires.hosts {
        host.device.offer_sack();
        host.device.offer_bundles();
    }
    wires.connect_again();
    assert_eq!(write(&mut wires, |_, _| false)[0], 0);
}

#[test]
fn what_is_in_a_lost_bundle_comes_again_by_itself() {
    let mut wires = wires([true, true]);
    let (mut bundles, mut lost) = (0, 0);
    let seen = write(&mut wires, |_, bytes| {
        let is_lost = is_bundle(bytes) && {
            bundles += 1;
            bundles == 4
        };
        if is_lost {
            lost = Bundle::parse(bytes).unwrap().packets().count() as u64;
        }
        is_lost
    });
    assert!(lost > 1);
    let retransmits = wires.hosts[0].count("retransmits");
    assert!((lost..lost + 3).contains(&retransmits), "{retransmits}");
    assert!(seen[1] as u64 >= lost, "{seen:?}");
    assert_eq!(wires.hosts[0].count("timeouts"), 0);
    assert_eq!(wires.hosts[0].count("air_bundles_stopped"), 0);
}

#[test]
fn answers_to_reads_come_by_themselves() {
    let mut wires = wires([true, true]);
    let since = wires.sent.len();
    let (va, rkey) = (
        wires.ends[1].memory.address(),
        wires.ends[1].memory.mr.rkey(),
    );
    wires.ends[0].send(Operation::Read { va, rkey }, 0, LEN);
    wires.quietly(300 * MS);
    wires.ends[0].ok();
    assert_eq!(frames(&wires, 1, since)[0], 0);
}

#[test]
fn a_path_that_drops_bundles_still_carries_everything() {
    let mut wires = wires([true, true]);
    let mut bundles = 0;
    for _ in 0..8 {
        bundles += write(&mut wires, |_, bytes| is_bundle(bytes))[0];
    }
    assert_eq!(wires.hosts[0].count("air_bundles_stopped"), 1);
    // Bundles of a few packets each, as slow as the path is.
    assert!(bundles < 100, "{bundles}");
    let seen = write(&mut wires, |_, bytes| is_bundle(bytes));
    assert_eq!(seen[0], 0, "given up");
    assert_eq!(wires.hosts[0].count("timeouts"), 0);
}

#[test]
fn losses_end_bundles_until_a_later_try() {
    let mut wires = wires([true, true]);
    let mut frame = 0;
    for _ in 0..20 {
        write(&mut wires, |from, bytes| {
            frame += usize::from(from == 0);
            from == 0 && frame.is_multiple_of(7) && (is_bundle(bytes) || is_middle(from, bytes))
        });
    }
    assert_eq!(wires.hosts[0].count("air_bundles_stopped"), 1);
    // Some good seconds, of which most are skipped.
    wires.tick += (Duration::from_secs(20).as_micros() / 100) as usize;
    assert_eq!(write(&mut wires, |_, _| false)[0], 0, "not yet");
    wires.tick += (Duration::from_secs(15).as_micros() / 100) as usize;
    let seen = (0..100).find(|_| write(&mut wires, |_, _| false)[0] > 0);
    assert!(seen.is_some(), "tried again");
}

#[test]
fn a_bundle_of_a_peer_without_our_offer_is_dropped_and_counted() {
    let mut wires = wires([true, true]);
    let since = wires.sent.len();
    write(&mut wires, |_, _| false);
    let sent = wires.sent[since..].iter();
    let bundles: Vec<_> = sent.filter(|(_, bytes)| is_bundle(bytes)).collect();
    let packets: usize = bundles
        .iter()
        .map(|(_, bytes)| Bundle::parse(bytes).unwrap().packets().count())
        .sum();
    // The same connection, and its packets were good; but the left one now agrees on less.
    let mut other = Wires::new([true, true], LEN);
    other.quietly(5 * MS);
    for (_, bytes) in &bundles {
        other.hosts[1].carrier.give(Frame {
            source: LEFT.into(),
            destination: RIGHT.into(),
            source_port: airdma_wire::ROCE_PORT,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            bytes: bytes.clone(),
        });
    }
    assert_eq!(wires.ends[1].qp.number(), other.ends[1].qp.number());
    other.quietly(5 * MS);
    assert_eq!(other.hosts[1].count("drop_air"), packets as u64);
    assert_eq!(other.hosts[1].count("duplicates"), 0);
}

#[test]
fn a_peer_with_our_offer_may_send_bundles_with_its_answers_lost() {
    let mut wires = wires([true, true]);
    // The left one asks again, and becomes plain. The right one has its earlier answer.
    let (left, right) = crate::rate::pair(&wires);
    wires.pass(1000 * MS, &mut is_answer_of_right);
    let since = wires.sent.len();
    right.qp.post_send(&right.write(&left, 0, LEN)).unwrap();
    wires.pass(300 * MS, &mut is_answer_of_right);
    right.ok();
    assert!(wires.hosts[0].count("acks_sent") > 0, "it is plain");
    assert!(frames(&wires, 1, since)[0] > 0);
    assert_eq!(wires.hosts[0].count("drop_air"), 0);
    assert_eq!(wires.hosts[1].count("retransmits"), 0);
}

#[test]
fn with_everything_lost_at_random_all_arrives() {
    for seed in 0..20_u64 {
        let mut wires = wires([true, true]);
        let mut dice = seed * 7919 + 1;
        for _ in 0..3 {
            write(&mut wires, |_, _| {
                dice = dice
                    .wrapping_mul(6_364_136_223_846_793_005_u64)
                    .wrapping_add(1_442_695_040_888_963_407);
                (dice >> 33).is_multiple_of(15)
            });
        }
    }
}
