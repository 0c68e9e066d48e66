//! Paths that are narrower than the interfaces: long packets vanish, others arrive.

use crate::common::*;
use crate::long_payload::answer_hello;
use crate::wires::{Wires, reset};
use crate::{MS, inject_packet, is_middle};
use airdma_engine::*;
use airdma_wire::air::feature;
use airdma_wire::piece::{PIECE_OPCODE, emit_piece};
use std::time::Duration;

const LEN: usize = 64 * 1024;
/// Bytes of a UDP datagram's content that get through.
const WIDTH: usize = 1_200;
const USUAL: usize = 12 + 1024 + 4;
const LONG: usize = 12 + 1428 + 4;
const S: Duration = Duration::from_secs(1);

fn is_wide(_: usize, bytes: &[u8]) -> bool {
    bytes.len() > WIDTH
}

/// Hosts that have agreed, on a wire or on the air.
fn wires(on_air: bool) -> Wires {
    let mut wires = Wires::with([None; 2], LEN);
    for host in &wires.hosts {
        if on_air {
            host.device.offer_air(RateControl::Buffers);
        } else {
            host.device.offer_wired(RateControl::Buffers);
        }
    }
    wires.connect_again();
    wires
}

/// Runs one request of an end on the narrow path; returns how long it took.
fn run(wires: &mut Wires, from: usize, operation: Operation, length: usize) -> Duration {
    let begun = wires.now();
    wires.ends[from].send(operation, 0, length);
    loop {
        if let Some(completion) = wires.ends[from].try_complete() {
            assert_eq!(completion.status, Status::Success);
            return wires.now() - begun;
        }
        wires.pass(MS, &mut is_wide);
        assert!(wires.now() - begun < 3 * S, "no end");
    }
}

/// Writes a pattern through the narrow path; returns the lengths of the middle packets.
fn write(wires: &mut Wires, seed: u8) -> (Duration, Vec<usize>) {
    let data = pattern(LEN, seed);
    wires.ends[0].memory.fill(0, &data);
    let peer = &wires.ends[1].memory;
    let (va, rkey) = (peer.address(), peer.mr.rkey());
    let since = wires.sent.len();
    let took = run(wires, 0, Operation::Write { va, rkey }, LEN);
    assert!(wires.ends[1].memory.bytes(0, LEN) == data);
    let sent = wires.sent[since..].iter();
    let middles = sent.filter(|(from, bytes)| is_middle(*from, bytes));
    (took, middles.map(|(_, bytes)| bytes.len()).collect())
}

#[test]
fn a_write_of_long_packets_that_vanish_arrives() {
    for on_air in [false, true] {
        let mut wires = wires(on_air);
        let (took, middles) = write(&mut wires, 1);
        assert!(took < S, "{took:?}");
        assert!(middles.contains(&LONG));
        assert_eq!(wires.hosts[0].count("air_narrow_paths"), 1);
        let pieces = wires.sent.iter().filter(|sent| sent.1[0] == PIECE_OPCODE);
        assert!(pieces.count() >= LEN / 1452);
        let (took, middles) = write(&mut wires, 2);
        assert!(took < 100 * MS, "{took:?}");
        assert_eq!(middles, [USUAL].repeat(LEN / 1024 - 2));
        // The other end was told.
        let peer = &wires.ends[0].memory;
        let (va, rkey) = (peer.address(), peer.mr.rkey());
        let took = run(&mut wires, 1, Operation::Write { va, rkey }, LEN);
        assert!(took < 100 * MS, "{took:?}");
        assert_eq!(wires.hosts[1].count("air_narrow_paths"), 0);
    }
}

#[test]
fn pieces_have_the_traffic_class_of_their_packet() {
    let mut wires = Wires::with([Some(RateControl::Dctcp); 2], LEN);
    wires.connect_again();
    write(&mut wires, 1);
    let mut sent = wires.sent.iter().rev();
    let last = sent.find(|(from, bytes)| *from == 0 && bytes[5..8] != [0, 0, 1]);
    assert_eq!(last.unwrap().1[0], PIECE_OPCODE);
    // Congestion is marked.
    assert_eq!(wires.traffic_class[0] & 3, 2);
}

#[test]
fn a_read_whose_long_responses_vanish_arrives() {
    for on_air in [false, true] {
        let mut wires = wires(on_air);
        for (seed, limit) in [(3, S), (4, 100 * MS)] {
            let data = pattern(LEN, seed);
            wires.ends[1].memory.fill(0, &data);
            let peer = &wires.ends[1].memory;
            let (va, rkey) = (peer.address(), peer.mr.rkey());
            let took = run(&mut wires, 0, Operation::Read { va, rkey }, LEN);
            assert!(took < limit, "{took:?}");
            assert!(wires.ends[0].memory.bytes(0, LEN) == data);
        }
    }
}

#[test]
fn a_message_of_one_long_packet_arrives() {
    for on_air in [false, true] {
        let mut wires = wires(on_air);
        for limit in [S, 100 * MS] {
            wires.ends[1].recv(1, 0, 1_400);
            let took = run(&mut wires, 0, Operation::Send, 1_400);
            assert!(took < limit, "{took:?}");
            wires.ends[1].ok();
        }
        // Many messages behind each other.
        for _ in 0..20 {
            wires.ends[1].recv(1, 0, 1_400);
            run(&mut wires, 0, Operation::Send, 1_400);
            wires.ends[1].ok();
        }
    }
}

#[test]
fn a_narrow_path_is_remembered_and_tried_again() {
    let mut wires = wires(false);
    write(&mut wires, 1);
    for end in &wires.ends {
        reset(end);
    }
    wires.pass(S, &mut is_wide);
    wires.ends[0].connect(&wires.ends[1]);
    wires.ends[1].connect(&wires.ends[0]);
    wires.pass(5 * MS, &mut is_wide);
    let (took, middles) = write(&mut wires, 2);
    assert!(took < 100 * MS, "{took:?}");
    assert!(!middles.contains(&LONG));
    assert_eq!(wires.hosts[0].count("air_narrow_paths"), 1);
    // It stays narrow, and is found to be so again.
    wires.pass(31 * S, &mut is_wide);
    let (took, middles) = write(&mut wires, 3);
    assert!(took < S, "{took:?}");
    assert!(middles.contains(&LONG));
    assert_eq!(wires.hosts[0].count("air_narrow_paths"), 2);
    // It is wide from now on.
    wires.quietly(61 * S);
    let since = wires.sent.len();
    wires.ends[0]
        .qp
        .post_send(&wires.ends[0].write(&wires.ends[1], 0, LEN))
        .unwrap();
    wires.quietly(100 * MS);
    wires.ends[0].ok();
    let sent = wires.sent[since..].iter();
    assert!(sent.clone().any(|(_, bytes)| bytes.len() == LONG));
}

/// The peer is plain after that for lack of an answer, and still knows what was agreed.
#[test]
fn long_packets_go_in_pieces_after_an_outage_without_answers() {
    for on_air in [false, true] {
        let mut wires = wires(on_air);
        let data = pattern(LEN, 5);
        wires.ends[0].memory.fill(0, &data);
        let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
        wires.ends[0].qp.post_send(&write).unwrap();
        while wires.hosts[0].count("air_narrow_paths") == 0 {
            wires.pass(MS, &mut is_wide);
        }
        wires.pass(800 * MS, &mut |_, _| true);
        for _ in 0..40 {
            wires.pass(100 * MS, &mut is_wide);
        }
        wires.ends[0].ok();
        assert!(wires.ends[1].memory.bytes(0, LEN) == data);
    }
}

#[test]
fn a_peer_that_is_silent_for_long_is_no_narrow_path() {
    let mut wires = wires(false);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.pass(200 * MS, &mut |_, _| true);
    wires.quietly(2 * S);
    wires.ends[0].ok();
    assert_eq!(wires.hosts[0].count("air_narrow_paths"), 0);
}

/// One packet is lost six times, of a WRITE or of a READ, while long ones that leave later arrive.
#[test]
fn a_path_on_which_later_long_packets_arrive_is_not_narrow() {
    for (on_air, reads) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut wires = wires(on_air);
        let peer = &wires.ends[1].memory;
        let (va, rkey) = (peer.address(), peer.mr.rkey());
        let operation = match reads {
            true => Operation::Read { va, rkey },
            false => Operation::Write { va, rkey },
        };
        // Its tag is known then, and early packets are held.
        wires.ends[0].send(operation, 0, LEN);
        wires.quietly(100 * MS);
        wires.ends[0].ok();
        let (mut victim, mut losses) = (None, 0);
        let mut loses = |from: usize, bytes: &[u8]| {
            let is_long = from == usize::from(reads) && bytes.len() == LONG;
            let is_it = is_long && *victim.get_or_insert(bytes[9..12].to_vec()) == bytes[9..12];
            losses += usize::from(is_it && losses < 6);
            is_it && losses < 6
        };
        for _ in 0..60 {
            wires.ends[0].send(operation, 0, LEN);
            wires.pass(5 * MS, &mut loses);
        }
        wires.pass(S, &mut loses);
        for _ in 0..60 {
            wires.ends[0].ok();
        }
        assert_eq!(losses, 6);
        let pieces = wires
            .sent
            .iter()
            .filter(|(_, bytes)| bytes[0] == PIECE_OPCODE);
        assert_eq!(pieces.count(), 0, "on the air: {on_air}, reads: {reads}");
        assert_eq!(wires.hosts[0].count("air_narrow_paths"), 0);
    }
}

#[test]
fn forged_pieces_need_the_tag() {
    let mut wires = wires(false);
    write(&mut wires, 1);
    let genuine = wires.sent.iter().find(|(_, bytes)| bytes[0] == 0x07);
    let packet = genuine.unwrap().1[..LONG - 4].to_vec();
    let mut piece = vec![0; 1024];
    let (len, _) = emit_piece(&packet, 0, 700, &mut piece).unwrap();
    piece.truncate(len);
    let dropped = wires.hosts[1].count("drop_air");
    let mut forged = piece.clone();
    forged[8] ^= 1;
    inject_packet(&wires, 1, forged);
    wires.pass(MS, &mut is_wide);
    assert_eq!(wires.hosts[1].count("drop_air"), dropped + 1);
    inject_packet(&wires, 1, piece);
    wires.pass(MS, &mut is_wide);
    assert_eq!(wires.hosts[1].count("drop_air"), dropped + 1);
    // It does no more than to lose a packet.
    write(&mut wires, 2);
}

/// It has agreed to everything, and speaks RoCEv2.
#[test]
fn a_peer_that_lies_about_features_ends_its_connection() {
    let mut wires = Wires::with([None; 2], LEN);
    wires.hosts[0].device.offer_wired(RateControl::Buffers);
    wires.connect_again();
    let (left, right) = wires.pair_at_second_address(LEN);
    answer_hello(&wires, 1452, !feature::REPORTS);
    wires.quietly(MS);
    assert_eq!(wires.hosts[0].count("air_agreed"), 1);
    let peer = &wires.ends[1].memory;
    let (va, rkey) = (peer.address(), peer.mr.rkey());
    wires.ends[0].send(Operation::Read { va, rkey }, 0, LEN);
    wires.quietly(10 * S);
    let completion = wires.ends[0].try_complete().unwrap();
    assert_ne!(completion.status, Status::Success);
    left.qp.post_send(&left.write(&right, 0, LEN)).unwrap();
    wires.quietly(30 * MS);
    left.ok();
}

/// A process of an earlier version, without Hello, has taken its place.
#[test]
fn a_peer_that_restarts_without_hello_gets_roce() {
    let mut wires = wires(false);
    let hosts = Wires::with([None; 2], LEN).hosts;
    let [_, plain] = hosts;
    wires.ends[1] = End::new(plain.device.device(), QpType::Rc, LEN);
    wires.hosts[1] = plain;
    reset(&wires.ends[0]);
    wires.ends[0].connect(&wires.ends[1]);
    wires.ends[1].connect(&wires.ends[0]);
    let since = wires.sent.len();
    for _ in 0..3 {
        let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
        wires.ends[0].qp.post_send(&write).unwrap();
        wires.quietly(500 * MS);
        wires.ends[0].ok();
    }
    let sent = wires.sent[since..].iter();
    assert!(
        sent.clone()
            .all(|(_, bytes)| bytes.len() <= 12 + 16 + 8 + 1024 + 4)
    );
}
