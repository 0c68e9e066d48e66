//! Sealed connections in virtual time, and attacks of hosts on the path and off it.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::simulated::Simulated;
use airdma_engine::*;
use airdma_port::sim::{Carrier, Frame, carried};
use airdma_wire::{IpPseudo, ROCE_PORT};
use common::{End, LEFT, RIGHT, info};
use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SEALED_OPCODE: u8 = 0xda;
/// Opcode of a datagram to queue pair 1.
const MAD_OPCODE: u8 = 0x64;
/// BTH, DETH, MAD header, and 16 bytes: offset of the content of airdma's messages.
const CONTENT: usize = 12 + 8 + 24 + 16;
/// Offset of the byte of FECN and BECN in a BTH.
const CONGESTION_AT: usize = 4;
const SECRET: &[u8] = b"0123456789abcdef";

struct Host {
    device: Simulated,
    carrier: Carrier,
}

impl Host {
    fn new(name: &str, address: [u8; 4]) -> Self {
        let seed = u64::from(address[3]);
        let address = IpAddr::from(address);
        let (port, carrier) = carried(&[address]).unwrap();
        let device = Simulated::open(info(name, address), Box::new(port), seed).unwrap();
        Host { device, carrier }
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.device.device().counters();
        let found = counters.iter().find(|(other, _)| *other == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

/// Two hosts, and a third one on the wire between them.
struct Wire {
    hosts: [Host; 2],
    now: Duration,
}

impl Wire {
    fn new() -> Self {
        Wire {
            hosts: [Host::new("left", LEFT), Host::new("right", RIGHT)],
            now: Duration::ZERO,
        }
    }

    fn ends(&self, bytes: usize) -> [End; 2] {
        let end = |host: &Host| End::new(host.device.device(), QpType::Rc, bytes);
        [end(&self.hosts[0]), end(&self.hosts[1])]
    }

    /// Two queue pairs that seal and have their keys.
    fn sealed(bytes: usize) -> (Self, [End; 2]) {
        let mut wire = Wire::new();
        let ends = wire.ends(bytes);
        seal(&ends);
        connect(&ends);
        wire.pass(2 * MS);
        for host in &wire.hosts {
            assert_eq!(host.counter("seals_agreed"), 1);
        }
        (wire, ends)
    }

    fn pass(&mut self, time: Duration) {
        self.pass_through(time, &mut |_, frame| vec![frame]);
    }

    /// Lets time pass. Each packet passes `middle` with its sender, and what that returns arrives.
    fn pass_through(&mut self, time: Duration, middle: &mut dyn FnMut(usize, Frame) -> Vec<Frame>) {
        let until = self.now + time;
        while self.now <= until {
            for host in &self.hosts {
                host.device.run(self.now);
            }
            let mut moved = false;
            for from in 0..2 {
                while let Some(frame) = self.hosts[from].carrier.take() {
                    for frame in middle(from, frame) {
                        let is_own = frame.source == frame.destination;
                        let to = if is_own { from } else { 1 - from };
                        self.hosts[to].carrier.give(frame);
                    }
                    moved = true;
                }
            }
            if !moved {
                let due = self.hosts.iter().filter_map(|host| host.device.deadline());
                let next = due.min().filter(|due| *due > self.now);
                self.now = next.unwrap_or(until).min(until).max(self.now + MS / 10);
            }
        }
        self.now = until;
    }
}

/// Sets the right ICRC of a changed packet: any host can compute it.
fn with_icrc(mut frame: Frame) -> Frame {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (frame.source, frame.destination) else {
        panic!("IPv4");
    };
    let ip = IpPseudo::V4 {
        src,
        dst,
        id: 0,
        dont_fragment: true,
    };
    let (packet, icrc) = frame.bytes.split_last_chunk_mut().unwrap();
    *icrc = airdma_wire::icrc(&ip, frame.source_port, ROCE_PORT, packet).to_le_bytes();
    frame
}

fn seal(ends: &[End; 2]) {
    ends.iter().for_each(|end| end.qp.seal().unwrap());
}

fn connect(ends: &[End; 2]) {
    ends[0].connect(&ends[1]);
    ends[1].connect(&ends[0]);
}

fn write(ends: &[End; 2], offset: usize, bytes: &[u8]) {
    ends[0].memory.fill(offset, bytes);
    let write = ends[0].write(&ends[1], offset, bytes.len());
    ends[0].qp.post_send(&write).unwrap();
}

#[test]
fn every_operation_works_both_ways_and_is_unreadable() {
    let (mut wire, ends) = Wire::sealed(1 << 20);
    let binding = ends[0].qp.sealed_binding().unwrap();
    assert_eq!(ends[1].qp.sealed_binding(), Some(binding));
    let text = b"what nobody on the path may read";
    let pattern = text.repeat(10_000);
    write(&ends, 1000, &pattern);
    ends[0].recv(5, 500_000, 70_000);
    let mut packets = 0;
    let mut watch = |_, frame: Frame| {
        assert_eq!(frame.bytes[0], SEALED_OPCODE);
        let seen = frame.bytes.windows(16).any(|some| text.starts_with(some));
        assert!(!seen, "readable");
        packets += 1;
        vec![frame]
    };
    wire.pass_through(50 * MS, &mut watch);
    ends[1].send(Operation::Send, 1000, 70_000);
    let read = Operation::Read {
        va: ends[1].memory.address() + 1000,
        rkey: ends[1].memory.mr.rkey(),
    };
    ends[0].send(read, 600_000, 100_000);
    wire.pass_through(50 * MS, &mut watch);
    for end in [0, 0, 0, 1] {
        ends[end].ok();
    }
    assert!(packets > 400);
    assert!(ends[1].memory.bytes(1000, pattern.len()) == pattern);
    assert!(ends[0].memory.bytes(500_000, 70_000) == pattern[..70_000]);
    assert!(ends[0].memory.bytes(600_000, 100_000) == pattern[..100_000]);
    assert!(
        wire.hosts
            .iter()
            .all(|host| host.counter("drop_unsealed") == 0)
    );
}

#[test]
fn requests_wait_for_the_keys_and_leave_when_they_are_there() {
    let mut wire = Wire::new();
    let ends = wire.ends(4096);
    seal(&ends);
    ends[0].connect(&ends[1]);
    write(&ends, 64, b"early");
    // One timeout is 67 ms.
    wire.pass(60 * MS);
    assert!(ends[0].try_complete().is_none());
    ends[1].connect(&ends[0]);
    wire.pass(2 * MS);
    ends[0].ok();
    assert_eq!(ends[1].memory.bytes(64, 5), *b"early");
    assert_eq!(wire.hosts[0].counter("timeouts"), 0, "nothing was lost");
}

#[test]
fn lost_offers_of_keys_are_repeated() {
    let mut wire = Wire::new();
    let ends = wire.ends(4096);
    seal(&ends);
    connect(&ends);
    write(&ends, 64, b"early");
    let mut state = 1u32;
    let half = &mut |_, frame: Frame| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let is_lost = frame.bytes[0] != SEALED_OPCODE && state >> 31 == 0;
        if is_lost { vec![] } else { vec![frame] }
    };
    wire.pass_through(9000 * MS, half);
    ends[0].ok();
    assert_eq!(ends[1].memory.bytes(64, 5), *b"early");
}

#[test]
fn every_connection_has_keys_of_its_own() {
    let mut wire = Wire::new();
    let mut seen = HashSet::new();
    let ends = wire.ends(4096);
    seal(&ends);
    for _ in 0..3 {
        connect(&ends);
        wire.pass(2 * MS);
        let binding = ends[0].qp.sealed_binding().unwrap();
        assert_eq!(ends[1].qp.sealed_binding(), Some(binding));
        assert!(seen.insert(binding));
        for end in &ends {
            let reset = QpAttributes::default();
            end.qp.modify(&reset, AttrMask::STATE).unwrap();
            assert_eq!(end.qp.sealed_binding(), None);
        }
    }
}

#[test]
fn a_peer_that_does_not_seal_is_not_there() {
    let mut wire = Wire::new();
    let ends = wire.ends(4096);
    ends[0].qp.seal().unwrap();
    connect(&ends);
    write(&ends, 64, b"sealed");
    ends[1].memory.fill(0, b"plain");
    ends[1]
        .qp
        .post_send(&ends[1].write(&ends[0], 0, 5))
        .unwrap();
    wire.pass(Duration::from_secs(15));
    for end in &ends {
        assert_eq!(end.complete().status, Status::RetryExceeded);
    }
    assert_eq!(ends[0].memory.bytes(0, 5), [0; 5]);
    assert_eq!(ends[1].memory.bytes(64, 6), [0; 6]);
    assert!(wire.hosts[0].counter("drop_unsealed") >= 8);
    assert_eq!(ends[0].qp.sealed_binding(), None);
}

#[test]
fn a_peer_lost_before_the_keys_is_detected_by_the_timers() {
    let mut wire = Wire::new();
    let ends = wire.ends(4096);
    seal(&ends);
    ends[0].connect(&ends[1]);
    write(&ends, 64, b"sealed");
    // Eight tries of four timers of 67 ms, and one timer for the keys.
    wire.pass(33 * 67 * MS);
    assert!(ends[0].try_complete().is_none());
    wire.pass(20 * MS);
    assert_eq!(ends[0].complete().status, Status::RetryExceeded);
}

#[test]
fn a_shared_secret_seals_what_programs_do_not_ask_for() {
    let mut wire = Wire::new();
    for host in &wire.hosts {
        host.device.device().share_secret(SECRET).unwrap();
        assert!(host.device.device().share_secret(&SECRET[1..]).is_err());
    }
    let ends = wire.ends(4096);
    connect(&ends);
    write(&ends, 64, b"secret");
    wire.pass(5 * MS);
    ends[0].ok();
    assert_eq!(ends[1].memory.bytes(64, 6), *b"secret");
}

#[test]
fn hosts_with_different_secrets_or_none_reach_nothing() {
    for other in [Some(&b"0123456789abcdeg"[..]), None] {
        let mut wire = Wire::new();
        let share = |host: usize, secret| wire.hosts[host].device.device().share_secret(secret);
        share(0, SECRET).unwrap();
        if let Some(other) = other {
            share(1, other).unwrap();
        }
        let ends = wire.ends(4096);
        connect(&ends);
        write(&ends, 64, b"secret");
        ends[1].memory.fill(128, b"forged");
        ends[1]
            .qp
            .post_send(&ends[1].write(&ends[0], 128, 6))
            .unwrap();
        wire.pass(Duration::from_secs(15));
        for end in &ends {
            assert_eq!(end.complete().status, Status::RetryExceeded);
        }
        assert_eq!(ends[1].memory.bytes(64, 6), [0; 6]);
        assert_eq!(ends[0].memory.bytes(128, 6), [0; 6]);
        assert!(wire.hosts[0].counter("drop_unsealed") >= 1);
    }
}

/// A host on the path changes, repeats and replays all packets, and adds packets in the clear;
/// these are dropped and counted.
#[test]
fn a_host_on_the_path_cannot_change_add_or_replay_a_packet() {
    let (mut wire, ends) = Wire::sealed(1 << 20);
    let data: Vec<u8> = (0..200_000u32).map(|at| (at * 7 + 1) as u8).collect();
    write(&ends, 0, &data);
    let mut recorded: Vec<[Vec<Frame>; 2]> = vec![[vec![], vec![]]];
    let mut state = 1u32;
    let mut forged = 0;
    wire.pass_through(400 * MS, &mut |from, frame| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bit = (state >> 8) as usize % (frame.bytes.len() * 8);
        let mut changed = frame.clone();
        changed.bytes[bit / 8] ^= 1 << (bit % 8);
        let mut plain = frame.clone();
        plain.bytes[0] = 0x0a;
        forged += 2 + usize::from(bit / 8 != CONGESTION_AT);
        recorded[0][from].push(frame.clone());
        let replayed = recorded[0][from][(state >> 4) as usize % recorded[0][from].len()].clone();
        // The changed one comes first: it must not replace the good one.
        let all = [changed, plain, frame.clone(), frame, replayed];
        all.into_iter().map(with_icrc).collect()
    });
    ends[0].ok();
    assert!(ends[1].memory.bytes(0, data.len()) == data);
    let dropped: u64 = (wire.hosts.iter())
        .map(|host| host.counter("drop_unsealed") + host.counter("drop_unknown_qp"))
        .sum();
    assert!(dropped as usize >= forged / 2, "{dropped} of {forged}");
    // All of it again, once the memory has changed.
    ends[1].memory.fill(0, &vec![0x55; data.len()]);
    for (from, frames) in recorded.remove(0).into_iter().enumerate() {
        for frame in frames {
            wire.hosts[1 - from].carrier.give(frame);
        }
    }
    wire.pass(10 * MS);
    assert!(
        ends[1]
            .memory
            .bytes(0, data.len())
            .iter()
            .all(|&byte| byte == 0x55)
    );
    write(&ends, 0, b"alive");
    wire.pass(10 * MS);
    ends[0].ok();
}

#[test]
fn messages_of_air_mode_travel_sealed_and_losses_are_repaired() {
    let mut wire = Wire::new();
    for host in &wire.hosts {
        host.device.offer_air(RateControl::Buffers);
    }
    let ends = wire.ends(1 << 20);
    seal(&ends);
    connect(&ends);
    wire.pass(1000 * MS);
    for host in &wire.hosts {
        assert_eq!(host.counter("air_agreed"), 1);
    }
    let data: Vec<u8> = (0..300_000u32).map(|at| (at * 5 + 1) as u8).collect();
    write(&ends, 0, &data);
    let mut state = 1u32;
    let mut clear = 0;
    wire.pass_through(1000 * MS, &mut |_, frame| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        clear += usize::from(frame.bytes[0] == MAD_OPCODE);
        if state >> 24 < 8 { vec![] } else { vec![frame] }
    });
    ends[0].ok();
    assert!(ends[1].memory.bytes(0, data.len()) == data);
    assert_eq!(clear, 0, "reports are sealed");
    assert!(wire.hosts[0].counter("air_reports_received") > 0);
    assert_eq!(wire.hosts[0].counter("timeouts"), 0);
    assert!(
        wire.hosts
            .iter()
            .all(|host| host.counter("drop_unsealed") == 0)
    );
}

/// The two hosts are in air mode before a connection between them is sealed, and their earlier
/// messages come late.
#[test]
fn a_report_in_the_clear_acknowledges_no_sealed_packet() {
    let mut wire = Wire::new();
    for host in &wire.hosts {
        host.device.offer_air(RateControl::Buffers);
    }
    let plain = wire.ends(1 << 16);
    connect(&plain);
    wire.pass(1000 * MS);
    write(&plain, 0, &[1; 5000]);
    let mut held = Vec::new();
    wire.pass_through(100 * MS, &mut |from, frame| {
        let is_report = from == 1 && frame.bytes[0] == MAD_OPCODE;
        if is_report {
            held.push(frame);
            return vec![];
        }
        vec![frame]
    });
    assert!(plain[0].try_complete().is_none() && !held.is_empty());
    let ends = wire.ends(1 << 16);
    seal(&ends);
    connect(&ends);
    let left = &wire.hosts[0];
    let before = ["air_reports_received", "drop_air"].map(|name| left.counter(name));
    let late = held.len() as u64;
    held.into_iter().for_each(|frame| left.carrier.give(frame));
    left.device.run(wire.now);
    assert_eq!(left.counter("air_reports_received"), before[0]);
    assert_eq!(left.counter("drop_air"), before[1] + late);
    wire.pass(1000 * MS);
    plain[0].ok();
}

#[test]
fn offers_of_keys_from_elsewhere_change_nothing() {
    let (mut wire, ends) = Wire::sealed(4096);
    // First offers of another connection between the same hosts, changed to be for this one.
    let others = wire.ends(4096);
    seal(&others);
    connect(&others);
    let mut offers = Vec::new();
    wire.pass_through(2 * MS, &mut |from, frame| {
        if frame.bytes[0] != SEALED_OPCODE {
            offers.push((from, frame.clone()));
        }
        vec![frame]
    });
    assert!(offers.len() >= 3);
    let binding = ends[0].qp.sealed_binding();
    let before = wire.hosts[1].counter("drop_air");
    for (from, mut frame) in offers {
        let number = |at: usize| ends[at].qp.number().get().to_be_bytes();
        frame.bytes[CONTENT + 4..CONTENT + 8].copy_from_slice(&number(from));
        frame.bytes[CONTENT + 8..CONTENT + 12].copy_from_slice(&number(1 - from));
        wire.hosts[1 - from].carrier.give(with_icrc(frame));
    }
    let mut answers = 0;
    wire.pass_through(10 * MS, &mut |_, frame| {
        answers += 1;
        vec![frame]
    });
    assert_eq!(answers, 0);
    assert!(wire.hosts[1].counter("drop_air") > before);
    assert_eq!(ends[0].qp.sealed_binding(), binding);
    write(&ends, 0, b"alive");
    wire.pass(10 * MS);
    ends[0].ok();
    assert_eq!(ends[1].memory.bytes(0, 5), *b"alive");
}

#[test]
fn a_host_that_has_not_seen_the_exchange_gets_no_keys() {
    let mut wire = Wire::new();
    let others = wire.ends(4096);
    seal(&others);
    connect(&others);
    let mut offers = Vec::new();
    wire.pass_through(2 * MS, &mut |from, frame| {
        if from == 1 && frame.bytes[0] != SEALED_OPCODE {
            offers.push(frame.clone());
        }
        vec![frame]
    });
    let ends = wire.ends(4096);
    seal(&ends);
    ends[0].connect(&ends[1]);
    // It knows addresses and numbers, and has a key of its own.
    for mut frame in offers {
        let number = |end: &End| end.qp.number().get().to_be_bytes();
        frame.bytes[CONTENT + 4..CONTENT + 8].copy_from_slice(&number(&ends[1]));
        frame.bytes[CONTENT + 8..CONTENT + 12].copy_from_slice(&number(&ends[0]));
        wire.hosts[0].carrier.give(with_icrc(frame));
    }
    wire.pass_through(5 * MS, &mut |_, _| vec![]);
    assert_eq!(ends[0].qp.sealed_binding(), None);
    ends[1].connect(&ends[0]);
    write(&ends, 64, b"sealed");
    wire.pass(1000 * MS);
    ends[0].ok();
    assert_eq!(ends[1].memory.bytes(64, 6), *b"sealed");
}

#[test]
fn datagrams_and_connected_queue_pairs_do_not_begin_to_seal() {
    let wire = Wire::new();
    let datagrams = End::new(wire.hosts[0].device.device(), QpType::Ud, 4096);
    assert_eq!(datagrams.qp.seal().unwrap_err().errno(), libc::EINVAL);
    let ends = wire.ends(4096);
    connect(&ends);
    assert_eq!(ends[0].qp.seal().unwrap_err().errno(), libc::EINVAL);
}

const QKEY: Qkey = Qkey(0x1111_1111);

/// Two hosts with a secret, each with a datagram queue pair.
fn datagrams(secrets: [Option<&[u8]>; 2]) -> (Wire, [End; 2]) {
    let wire = Wire::new();
    for (host, secret) in wire.hosts.iter().zip(secrets) {
        if let Some(secret) = secret {
            host.device.device().share_secret(secret).unwrap();
        }
    }
    let end = |host: &Host| End::new(host.device.device(), QpType::Ud, 1 << 16);
    let ends = [end(&wire.hosts[0]), end(&wire.hosts[1])];
    for end in &ends {
        common::datagram_to_rts(&end.qp, QKEY);
    }
    (wire, ends)
}

fn datagram(from: &End, to: &End, offset: usize, bytes: &[u8]) {
    from.memory.fill(offset, bytes);
    let mut wr = common::signalled(Operation::Send, from.memory.sge(offset, bytes.len()));
    wr.datagram = Some(Datagram {
        path: to.path(),
        qpn: to.qp.number(),
        qkey: QKEY,
    });
    from.qp.post_send(&wr).unwrap();
}

#[test]
fn datagrams_are_sealed_and_the_first_one_arrives() {
    let (mut wire, ends) = datagrams([Some(SECRET); 2]);
    let text = b"what nobody on the path may read";
    for number in 0..3 {
        ends[1].recv(number, 1000 * number as usize, 200);
        ends[0].recv(number, 1000 * number as usize, 200);
    }
    let mut recorded = Vec::new();
    let mut watch = |from: usize, frame: Frame| {
        let seen = frame.bytes.windows(16).any(|some| text.starts_with(some));
        assert!(!seen, "readable");
        recorded.push((1 - from, frame.clone()));
        vec![frame]
    };
    for _ in 0..3 {
        datagram(&ends[0], &ends[1], 8000, text);
    }
    wire.pass_through(5 * MS, &mut watch);
    datagram(&ends[1], &ends[0], 8000, text);
    wire.pass_through(5 * MS, &mut watch);
    for (to, from, count) in [(1, 0, 3), (0, 1, 1)] {
        for _ in 0..count {
            assert_eq!(ends[from].ok().opcode, CompletionOpcode::Send);
        }
        for number in 0..count {
            let received = ends[to].ok();
            assert_eq!(received.opcode, CompletionOpcode::Receive);
            assert_eq!(received.src_qpn, ends[from].qp.number());
            assert_eq!(received.byte_len as usize, 40 + text.len());
            assert_eq!(ends[to].memory.bytes(1000 * number + 40, text.len()), text);
        }
    }
    let sealed = recorded
        .iter()
        .filter(|(_, frame)| frame.bytes[0] == SEALED_OPCODE);
    assert_eq!(sealed.count(), 4);
    // All of it again, and with every bit of the first changed.
    ends[1].recv(9, 0, 200);
    let (to, first) = (recorded.iter())
        .find(|(_, frame)| frame.bytes[0] == SEALED_OPCODE)
        .unwrap()
        .clone();
    for bit in (0..(first.bytes.len() - 4) * 8).filter(|bit| bit / 8 != CONGESTION_AT) {
        let mut changed = first.clone();
        changed.bytes[bit / 8] ^= 1 << (bit % 8);
        recorded.push((to, with_icrc(changed)));
    }
    for (to, frame) in recorded {
        wire.hosts[to].carrier.give(frame);
        wire.hosts[to].device.run(wire.now);
    }
    wire.pass(5 * MS);
    assert!(ends.iter().all(|end| end.try_complete().is_none()));
    datagram(&ends[0], &ends[1], 8000, b"alive");
    wire.pass(5 * MS);
    ends[0].ok();
    ends[1].ok();
}

#[test]
fn a_queue_pair_reaches_itself() {
    let (mut wire, [end, _]) = datagrams([Some(SECRET); 2]);
    for round in 0..3 {
        end.recv(round, 0, 200);
        datagram(&end, &end, 8000, b"to itself");
        wire.pass(1_500 * MS);
        assert_eq!(end.ok().opcode, CompletionOpcode::Send);
        assert_eq!(end.ok().src_qpn, end.qp.number());
        assert_eq!(end.memory.bytes(40, 9), b"to itself");
    }
    let mut wire = Wire::new();
    let [end, _] = wire.ends(4096);
    end.qp.seal().unwrap();
    end.connect(&end);
    end.memory.fill(0, b"to itself");
    end.recv(1, 1000, 9);
    end.send(Operation::Send, 0, 9);
    let mut is_readable = false;
    wire.pass_through(5 * MS, &mut |_, frame| {
        is_readable |= frame.bytes.windows(9).any(|some| some == b"to itself");
        vec![frame]
    });
    assert!(!is_readable);
    let opcodes = [end.ok().opcode, end.ok().opcode];
    assert!(opcodes.contains(&CompletionOpcode::Send));
    assert_eq!(end.memory.bytes(1000, 9), b"to itself");
}

#[test]
fn datagrams_need_the_secret_at_both_hosts() {
    for other in [Some(&b"0123456789abcdeg"[..]), None] {
        let (mut wire, ends) = datagrams([Some(SECRET), other]);
        for (from, to) in [(0, 1), (1, 0)] {
            ends[to].recv(1, 0, 200);
            datagram(&ends[from], &ends[to], 8000, b"secret");
        }
        let mut is_readable = false;
        wire.pass_through(20_000 * MS, &mut |from, frame| {
            is_readable |= from == 0 && frame.bytes.windows(6).any(|some| some == b"secret");
            vec![frame]
        });
        assert!(!is_readable);
        for end in &ends {
            assert_eq!(end.ok().opcode, CompletionOpcode::Send, "it has left");
            assert!(end.try_complete().is_none());
        }
        assert_eq!(wire.hosts[0].counter("drop_unkeyed"), 1);
        assert!(wire.hosts[0].counter("drop_unsealed") >= 1);
    }
}

#[test]
fn datagrams_to_groups_are_refused_beside_a_secret() {
    let (_wire, ends) = datagrams([Some(SECRET); 2]);
    let group = Gid::from(IpAddr::from([224, 0, 1, 7]));
    let refused = ends[0].qp.attach_multicast(group).unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    let mut wr = common::signalled(Operation::Send, ends[0].memory.sge(0, 8));
    wr.datagram = Some(Datagram {
        path: Path {
            gid: group,
            hop_limit: 1,
            ..Path::default()
        },
        qpn: Qpn::MULTICAST,
        qkey: QKEY,
    });
    let refused = ends[0].qp.post_send(&wr).unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
}
