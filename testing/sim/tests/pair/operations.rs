//! Every operation, with sizes around every edge, over every path MTU, both ways.

use std::net::{IpAddr, Ipv6Addr};

use airdma_sim::{Link, Pair, Random, Region, SendWr, Setup, Sge, Side};
use airdma_transport::{Access, Completion, CompletionOpcode, Operation, Status};
use airdma_wire::{Opcode, PathMtu, Rkey};

use crate::scene::{
    assert_untroubled, bad, clean, connected, connected_over, count, open_access, open_region,
    outcomes, pattern, post, receives, sends, sent, us, write_to,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    SendImm,
    SendInvalidate,
    Write,
    WriteImm,
    Read,
}

const KINDS: [Kind; 6] = [
    Kind::Send,
    Kind::SendImm,
    Kind::SendInvalidate,
    Kind::Write,
    Kind::WriteImm,
    Kind::Read,
];

const SIZES: [usize; 10] = [0, 1, 2, 3, 4, 1023, 1024, 1025, 3000, (64 << 10) + 1];

const IMM: [u8; 4] = [0xca, 0xfe, 0, 1];

/// Guard bytes on both sides of every buffer.
const GUARD: usize = 16;

/// A buffer of `len` bytes in the middle of a region.
struct Buffer {
    region: Region,
    len: usize,
}

impl Buffer {
    fn new(pair: &mut Pair, side: Side, bytes: &[u8], access: Access) -> Self {
        let mut guarded = vec![0xa5; bytes.len() + 2 * GUARD];
        guarded[GUARD..GUARD + bytes.len()].copy_from_slice(bytes);
        let region = pair[side].register(&guarded, access);
        let len = bytes.len();
        Buffer { region, len }
    }

    fn va(&self) -> u64 {
        self.region.va + GUARD as u64
    }

    /// The buffer in three pieces of uneven length.
    fn sges(&self) -> Vec<Sge> {
        let (start, end) = (GUARD as u32, (GUARD + self.len) as u32);
        let (one, two) = (start + (end - start) / 7, start + (end - start) / 2);
        [start..one, one..two, two..end]
            .map(|range| self.region.part(range))
            .to_vec()
    }

    fn assert_holds(&self, pair: &Pair, side: Side, bytes: &[u8]) {
        let all = pair[side].bytes(&self.region);
        assert!(all[..GUARD].iter().all(|byte| *byte == 0xa5));
        assert!(all[GUARD + self.len..].iter().all(|byte| *byte == 0xa5));
        assert!(&all[GUARD..GUARD + self.len] == bytes, "bytes differ");
    }
}

/// Runs one operation of `from` to its end and checks everything that both sides can see.
fn exchange(pair: &mut Pair, qp: usize, from: Side, kind: Kind, size: usize) {
    let to = from.other();
    let data = pattern(size, size as u64 + 1);
    let blank = vec![0; size];
    // The side whose memory is read, and the one whose memory is filled.
    let (reader, filled) = match kind {
        Kind::Read => (to, from),
        Kind::Send | Kind::SendImm | Kind::SendInvalidate | Kind::Write | Kind::WriteImm => {
            (from, to)
        }
    };
    let (source_access, target_access) = match kind {
        Kind::Read => (Access::REMOTE_READ, Access::LOCAL_WRITE),
        Kind::Write | Kind::WriteImm => (Access::empty(), Access::REMOTE_WRITE),
        Kind::Send | Kind::SendImm | Kind::SendInvalidate => (Access::empty(), Access::LOCAL_WRITE),
    };
    let source = Buffer::new(pair, reader, &data, source_access);
    let target = Buffer::new(pair, filled, &blank, target_access);
    let doomed = pair[to].register(&[], Access::empty());

    let operation = match kind {
        Kind::Send => Operation::Send,
        Kind::SendImm => Operation::SendImm(IMM),
        Kind::SendInvalidate => Operation::SendInvalidate(doomed.rkey()),
        Kind::Write => Operation::Write {
            va: target.va(),
            rkey: target.region.rkey(),
        },
        Kind::WriteImm => Operation::WriteImm {
            va: target.va(),
            rkey: target.region.rkey(),
            imm: IMM,
        },
        Kind::Read => Operation::Read {
            va: source.va(),
            rkey: source.region.rkey(),
        },
    };
    match kind {
        Kind::Send | Kind::SendImm | Kind::SendInvalidate => {
            pair[to].post_receive(qp, 70, target.sges());
        }
        Kind::WriteImm => pair[to].post_receive(qp, 70, Vec::new()),
        Kind::Write | Kind::Read => {}
    }
    let local = if kind == Kind::Read { &target } else { &source };
    pair[from].post_send(qp, SendWr::new(7, operation, local.sges()));
    pair.run_until_idle();
    pair.assert_nothing_left();

    source.assert_holds(pair, reader, &data);
    target.assert_holds(pair, filled, &data);
    let invalidated = (kind == Kind::SendInvalidate).then(|| doomed.rkey());
    assert_eq!(pair[to].is_valid(doomed.key), invalidated.is_none());
    check_completions(pair, qp, from, kind, size, invalidated);
}

fn check_completions(
    pair: &mut Pair,
    qp: usize,
    from: Side,
    kind: Kind,
    size: usize,
    invalidated: Option<Rkey>,
) {
    let byte_len = u32::try_from(size).unwrap();
    let opcode = match kind {
        Kind::Send | Kind::SendImm | Kind::SendInvalidate => CompletionOpcode::Send,
        Kind::Write | Kind::WriteImm => CompletionOpcode::Write,
        Kind::Read => CompletionOpcode::Read,
    };
    let qpn = pair[from].queue_pair(qp).qpn();
    let sent = std::mem::take(&mut pair[from].rings_mut(qp).send_completions);
    let expected = Completion {
        byte_len,
        ..Completion::with_status(7, opcode, Status::Success, qpn)
    };
    assert_eq!(sent, [expected]);

    let (opcode, imm) = match kind {
        Kind::Send | Kind::SendInvalidate => (CompletionOpcode::Receive, None),
        Kind::SendImm => (CompletionOpcode::Receive, Some(IMM)),
        Kind::WriteImm => (CompletionOpcode::ReceiveWriteImm, Some(IMM)),
        Kind::Write | Kind::Read => {
            assert_eq!(receives(pair, from.other(), qp), []);
            return;
        }
    };
    let qpn = pair[from.other()].queue_pair(qp).qpn();
    let received = std::mem::take(&mut pair[from.other()].rings_mut(qp).receive_completions);
    let expected = Completion {
        byte_len,
        imm,
        invalidated,
        ..Completion::with_status(70, opcode, Status::Success, qpn)
    };
    assert_eq!(received, [expected]);
}

fn every_operation_over(mtu: PathMtu, link: impl Fn() -> Link, sizes: &[usize], clean: bool) {
    for kind in KINDS {
        let setup = Setup {
            mtu,
            ..Setup::default()
        };
        let (mut pair, qp) = connected_over(link(), link(), &setup);
        for &size in sizes {
            exchange(&mut pair, qp, Side::A, kind, size);
            exchange(&mut pair, qp, Side::B, kind, size);
        }
        if clean {
            assert_untroubled(&pair, qp);
        }
    }
}

#[test]
fn every_operation_and_size_over_the_smaller_path_mtus() {
    for mtu in [PathMtu::M256, PathMtu::M512] {
        every_operation_over(mtu, clean, &SIZES, true);
    }
}

#[test]
fn every_operation_and_size_over_the_larger_path_mtus() {
    for mtu in [PathMtu::M1024, PathMtu::M2048, PathMtu::M4096] {
        every_operation_over(mtu, clean, &SIZES, true);
    }
}

#[test]
fn every_operation_with_a_mebibyte() {
    for mtu in [PathMtu::M256, PathMtu::M4096] {
        every_operation_over(mtu, clean, &[1 << 20], true);
    }
}

#[test]
fn every_operation_over_a_bad_link() {
    every_operation_over(PathMtu::M1024, || bad(0.02), &SIZES, false);
}

#[test]
fn every_operation_when_packets_arrive_in_batches() {
    let link = || clean().batch(us(40));
    every_operation_over(PathMtu::M1024, link, &SIZES, true);
}

#[test]
fn every_operation_over_ipv6() {
    let addresses = [1, 2].map(|n| IpAddr::from(Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, n)));
    for kind in KINDS {
        let mut pair = Pair::with_addresses(1, addresses, bad(0.02), bad(0.02));
        let qp = pair.connect(&Setup::default());
        exchange(&mut pair, qp, Side::A, kind, 5000);
        exchange(&mut pair, qp, Side::B, kind, 5000);
    }
}

#[test]
fn many_requests_at_once_complete_in_order() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = pair[Side::A].register(&pattern(4096, 1), Access::empty());
    let target = open_region(&mut pair, Side::B, 100 * 4096);
    for index in 0..100 {
        let write = Operation::Write {
            va: target.va + index * 4096,
            rkey: target.rkey(),
        };
        post(&mut pair, qp, index, write, &source);
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    let expected: Vec<_> = (0..100).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    let data = pattern(4096, 1).repeat(100);
    assert!(pair[Side::B].bytes(&target) == data);
    assert_untroubled(&pair, qp);
}

#[test]
fn unsignalled_requests_cost_few_acknowledgements() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = pair[Side::A].register(&pattern(64, 1), Access::empty());
    let target = open_region(&mut pair, Side::B, 64);
    for wr_id in 0..50 {
        let wr = SendWr::new(wr_id, write_to(&target), vec![source.all()]);
        pair[Side::A].post_send(qp, wr.signalled_if(wr_id % 10 == 9));
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    let expected = [9, 19, 29, 39, 49].map(|wr_id| (wr_id, Status::Success));
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(pair[Side::A].rings(qp).unsignalled, 45);
    assert!(sent(&pair, Side::B, Opcode::RcAcknowledge) <= 5);
    assert_untroubled(&pair, qp);
}

#[test]
fn the_solicited_bit_reaches_the_peers_completion() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = pair[Side::A].register(&pattern(3000, 1), Access::empty());
    let target = open_region(&mut pair, Side::B, 3000);
    for wr_id in 0..4 {
        pair[Side::B].post_receive(qp, wr_id, vec![target.all()]);
    }
    let imm = Operation::WriteImm {
        va: target.va,
        rkey: target.rkey(),
        imm: IMM,
    };
    for (wr_id, operation) in [Operation::Send, imm].into_iter().enumerate() {
        let wr = SendWr::new(wr_id as u64, operation, vec![source.all()]);
        pair[Side::A].post_send(qp, wr.clone().solicited());
        pair[Side::A].post_send(qp, wr);
    }
    pair.run_until_idle();
    let solicited: Vec<bool> = receives(&pair, Side::B, qp)
        .iter()
        .map(|completion| completion.solicited)
        .collect();
    assert_eq!(solicited, [true, false, true, false]);
}

#[test]
fn both_sides_use_one_connection_at_once() {
    let (mut pair, qp) = connected_over(bad(0.01), bad(0.01), &Setup::default());
    let mut halves = Vec::new();
    for side in Side::BOTH {
        let data = pattern(300_000, side as u64);
        let source = pair[side].register(&data, Access::empty());
        let target = pair[side.other()].register(&vec![0; data.len()], open_access());
        let wr = SendWr::new(1, write_to(&target), vec![source.all()]);
        pair[side].post_send(qp, wr);
        halves.push((side.other(), target, data));
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    for (side, target, data) in halves {
        assert!(pair[side].bytes(&target) == data);
        let done = sends(&pair, side.other(), qp);
        assert_eq!(outcomes(done), [(1, Status::Success)]);
    }
}

#[test]
fn queue_pairs_on_one_link_keep_their_bytes_apart() {
    let mut pair = Pair::new(3, bad(0.01), bad(0.01));
    let mut random = Random::new(3);
    let mut all = Vec::new();
    for _ in 0..8 {
        let qp = pair.connect(&Setup::default());
        let data = random.bytes(50_000);
        let source = pair[Side::A].register(&data, Access::empty());
        let target = open_region(&mut pair, Side::B, data.len());
        post(&mut pair, qp, 1, write_to(&target), &source);
        all.push((qp, target, data));
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    for (qp, target, data) in all {
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
        assert!(pair[Side::B].bytes(&target) == data);
    }
}

#[test]
fn messages_are_counted_on_both_sides() {
    let (mut pair, qp) = connected(&Setup::default());
    let source = open_region(&mut pair, Side::A, 100);
    let target = open_region(&mut pair, Side::B, 100);
    for wr_id in 0..3 {
        post(&mut pair, qp, wr_id, write_to(&target), &source);
    }
    pair.run_until_idle();
    use airdma_transport::Counter::{MessagesReceived, MessagesSent};
    assert_eq!(count(&pair, Side::A, qp, MessagesSent), 3);
    assert_eq!(count(&pair, Side::B, qp, MessagesReceived), 3);
    assert_eq!(count(&pair, Side::B, qp, MessagesSent), 0);
}
