//! Sealed connections between two devices on a wire in memory, and what a third host can do to them.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::{End, PATIENCE, wired};
use std::time::{Duration, Instant};

fn sealed_pair(bytes: usize) -> (End, End) {
    let (left, right) = wired();
    let ends = (
        End::new(&left, QpType::Rc, bytes),
        End::new(&right, QpType::Rc, bytes),
    );
    ends.0.qp.seal().unwrap();
    ends.1.qp.seal().unwrap();
    ends
}

fn counter(end: &End, name: &str) -> u64 {
    let counters = end.device.counters();
    let found = counters.iter().find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

/// The binding of both, once they have agreed.
fn binding(left: &End, right: &End) -> [u8; 32] {
    let until = Instant::now() + PATIENCE;
    loop {
        // Polling makes progress.
        (left.try_complete(), right.try_complete());
        if let (Some(ours), Some(theirs)) = (left.qp.sealed_binding(), right.qp.sealed_binding()) {
            assert_eq!(ours, theirs);
            return ours;
        }
        assert!(Instant::now() < until, "no keys");
    }
}

#[test]
fn sealed_connections_carry_every_operation_both_ways() {
    let (left, right) = sealed_pair(1 << 20);
    left.connect(&right);
    right.connect(&left);
    binding(&left, &right);
    let pattern: Vec<u8> = (0..300_000u32).map(|at| (at * 7) as u8).collect();
    left.memory.fill(1000, &pattern);
    left.qp
        .post_send(&left.write(&right, 1000, pattern.len()))
        .unwrap();
    left.ok();
    assert!(right.memory.bytes(1000, pattern.len()) == pattern);
    // And back, by a SEND and a READ.
    left.recv(5, 500_000, 70_000);
    right.send(Operation::Send, 1000, 70_000);
    assert_eq!(left.ok().byte_len, 70_000);
    assert!(left.memory.bytes(500_000, 70_000) == pattern[..70_000]);
    right.ok();
    let read = Operation::Read {
        va: right.memory.address() + 1000,
        rkey: right.memory.mr.rkey(),
    };
    left.send(read, 600_000, 100_000);
    left.ok();
    assert!(left.memory.bytes(600_000, 100_000) == pattern[..100_000]);
    for end in [&left, &right] {
        assert_eq!(counter(end, "drop_unsealed"), 0);
        assert_eq!(counter(end, "seals_agreed"), 1);
    }
}

#[test]
fn what_is_posted_before_the_keys_are_there_leaves_when_they_are() {
    let (left, right) = sealed_pair(4096);
    left.connect(&right);
    left.memory.fill(64, b"early");
    left.qp.post_send(&left.write(&right, 64, 5)).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert!(left.try_complete().is_none());
    assert_eq!(right.memory.bytes(64, 5), [0; 5]);
    right.connect(&left);
    left.ok();
    assert_eq!(right.memory.bytes(64, 5), *b"early");
    assert_eq!(counter(&left, "timeouts"), 0, "nothing was lost");
}

#[test]
fn every_connection_has_keys_of_its_own() {
    let (left, right) = wired();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let a = End::new(&left, QpType::Rc, 4096);
        let b = End::new(&right, QpType::Rc, 4096);
        a.qp.seal().unwrap();
        b.qp.seal().unwrap();
        a.connect(&b);
        b.connect(&a);
        let binding = binding(&a, &b);
        assert!(!seen.contains(&binding));
        seen.push(binding);
    }
}

#[test]
fn a_peer_that_does_not_seal_gets_nothing_and_is_told_nothing() {
    let (left, right) = wired();
    let sealing = End::new(&left, QpType::Rc, 4096);
    let plain = End::new(&right, QpType::Rc, 4096);
    sealing.qp.seal().unwrap();
    sealing.connect(&plain);
    plain.connect(&sealing);
    plain.memory.fill(0, b"plain");
    plain.qp.post_send(&plain.write(&sealing, 0, 5)).unwrap();
    sealing.memory.fill(64, b"sealed");
    sealing.qp.post_send(&sealing.write(&plain, 64, 6)).unwrap();
    // It fails as towards a host that is not there.
    assert_eq!(plain.complete().status, Status::RetryExceeded);
    assert_eq!(sealing.complete().status, Status::RetryExceeded);
    assert_eq!(sealing.memory.bytes(0, 5), [0; 5]);
    assert_eq!(plain.memory.bytes(64, 6), [0; 6]);
    assert!(counter(&sealing, "drop_unsealed") >= 1);
}

#[test]
fn a_shared_secret_seals_what_programs_do_not_ask_for() {
    let (left, right) = wired();
    left.share_secret(b"0123456789abcdef").unwrap();
    right.share_secret(b"0123456789abcdef").unwrap();
    let a = End::new(&left, QpType::Rc, 4096);
    let b = End::new(&right, QpType::Rc, 4096);
    a.connect(&b);
    b.connect(&a);
    a.memory.fill(64, b"secret");
    a.qp.post_send(&a.write(&b, 64, 6)).unwrap();
    a.ok();
    assert_eq!(b.memory.bytes(64, 6), *b"secret");
    assert_eq!(counter(&a, "seals_agreed"), 1);
    let init = QpInit {
        qp_type: QpType::Ud,
        send_cq: a.cq.clone(),
        recv_cq: a.cq.clone(),
        srq: None,
        caps: common::CAPS,
        signal_all: false,
    };
    let refused = a.pd.create_qp(init).err().unwrap();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    assert!(left.share_secret(b"0123456789").is_err());
}

#[test]
fn hosts_with_different_secrets_or_none_reach_nothing() {
    for other in [Some(&b"0123456789abcdeg"[..]), None] {
        let (left, right) = wired();
        left.share_secret(b"0123456789abcdef").unwrap();
        if let Some(other) = other {
            right.share_secret(other).unwrap();
        }
        let a = End::new(&left, QpType::Rc, 4096);
        let b = End::new(&right, QpType::Rc, 4096);
        a.connect(&b);
        b.connect(&a);
        a.memory.fill(64, b"secret");
        b.memory.fill(128, b"forged");
        a.qp.post_send(&a.write(&b, 64, 6)).unwrap();
        b.qp.post_send(&b.write(&a, 128, 6)).unwrap();
        assert_eq!(b.complete().status, Status::RetryExceeded);
        assert_eq!(a.complete().status, Status::RetryExceeded);
        assert_eq!(b.memory.bytes(64, 6), [0; 6]);
        assert_eq!(a.memory.bytes(128, 6), [0; 6]);
        assert_eq!(counter(&a, "seals_agreed"), 0);
    }
}

#[test]
fn datagrams_and_connected_queue_pairs_do_not_begin_to_seal() {
    let (left, right) = wired();
    let datagrams = End::new(&left, QpType::Ud, 4096);
    assert_eq!(datagrams.qp.seal().unwrap_err().errno(), libc::EINVAL);
    let a = End::new(&left, QpType::Rc, 4096);
    let b = End::new(&right, QpType::Rc, 4096);
    a.connect(&b);
    assert_eq!(a.qp.seal().unwrap_err().errno(), libc::EINVAL);
}
