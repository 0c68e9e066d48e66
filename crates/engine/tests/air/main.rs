//! Two airdma hosts that agree on more than RoCEv2, and their behaviour towards hosts that do not.
#![allow(clippy::unwrap_used)]

mod application;
mod attacks;
mod bundles;
#[path = "../common/mod.rs"]
mod common;
mod congestion;
mod datagrams;
#[path = "../common/fragile.rs"]
mod fragile;
mod long_payload;
mod many_peers;
mod narrow;
mod peer_proof;
mod peers;
mod rate;
mod sack;
mod who_asks;
mod wires;

use airdma_engine::cm_protocol::ConnectionId;
use airdma_engine::*;
use airdma_port::sim::Frame;
use common::*;
use std::time::Duration;
use wires::{TICK, TICKS_AWAY, Wires, reset};

/// Its opcode.
const READ_RESPONSE_ONLY: u8 = 0x10;
/// Bytes before a management datagram.
const BTH_AND_DETH: usize = 20;
const MS: Duration = Duration::from_millis(1);

/// A middle packet of a WRITE, from the left.
fn is_middle(from: usize, bytes: &[u8]) -> bool {
    from == 0 && bytes[0] == 0x07
}

/// An answer to a Hello, from the right.
fn is_answer_of_right(from: usize, bytes: &[u8]) -> bool {
    from == 1 && bytes[5..8] == [0, 0, 1] && {
        let mad = &bytes[BTH_AND_DETH..];
        mad[16..18] == [0, 1] && mad[64..72] != [0; 8]
    }
}

#[test]
fn what_is_lost_is_sent_again_and_nothing_else() {
    const LEN: usize = 400 * 1024;
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let data = pattern(LEN, 3);
    wires.ends[0].memory.fill(0, &data);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    let (mut middle, mut lost) = (0, 0);
    wires.pass(500 * MS, &mut |from, bytes| {
        let is_lost = is_middle(from, bytes) && {
            middle += 1;
            middle % 9 == 0
        };
        lost += u64::from(is_lost);
        is_lost
    });
    assert!(lost >= 10, "{lost}");
    wires.ends[0].ok();
    assert!(wires.ends[1].memory.bytes(0, LEN) == data);
    let again = wires.hosts[0].count("retransmits");
    // A probe where the same packet is lost twice, and nothing else comes meanwhile.
    assert!(
        (lost..=lost + lost / 3).contains(&again),
        "{again} for {lost} lost"
    );
    assert_eq!(wires.hosts[1].count("naks_sent"), 0);
    assert_eq!(wires.hosts[1].count("acks_sent"), 0);
    assert_eq!(wires.hosts[0].count("timeouts"), 0);
}

#[test]
fn acknowledgements_are_sparse() {
    const LEN: usize = 1 << 20;
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let before = wires.messages(1);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    let begun = wires.now();
    while wires.hosts[0].count("messages_sent") == 0 {
        wires.quietly(MS);
        assert!(wires.now() < 10 * begun + 500 * MS, "no end");
    }
    let round_trips = (wires.now() - begun).as_micros() as usize / 1000 + 1;
    let reports = wires.messages(1) - before;
    // Four in a round trip of 1 ms, and answers to pings.
    assert!(
        reports <= 6 * round_trips,
        "{reports} in {round_trips} round trips"
    );
    wires.ends[0].ok();
    // The last one is in flight.
    wires.quietly(2 * MS);
    for host in &wires.hosts {
        assert_eq!(host.count("air_agreed"), 1);
    }
    let sent = wires.hosts[1].count("air_reports_sent");
    assert!(sent >= reports as u64);
    assert_eq!(wires.hosts[0].count("air_reports_received"), sent);
}

#[test]
fn a_lost_end_of_a_message_is_repeated_long_before_the_timeout() {
    let mut wires = Wires::new([true, true], 8192);
    wires.quietly(5 * MS);
    let write = wires.ends[0].write(&wires.ends[1], 0, 8192);
    wires.ends[0].qp.post_send(&write).unwrap();
    let mut first = true;
    // Timeout 14 is 67 ms.
    wires.pass(20 * MS, &mut |from, bytes| {
        from == 0 && bytes[0] == 0x08 && std::mem::take(&mut first)
    });
    wires.ends[0].ok();
    assert_eq!(wires.hosts[0].count("timeouts"), 0);
}

/// A radio delivers all packets of one access at once.
#[test]
fn what_comes_at_once_is_told_when_it_is_taken_in() {
    const LEN: usize = 256 * 1024;
    let mut wires = Wires::new([true, true], LEN);
    for _ in 0..20 {
        let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
        wires.ends[0].qp.post_send(&write).unwrap();
        wires.quietly(10 * MS);
        wires.ends[0].ok();
    }
    // The last report was long ago.
    wires.quietly(100 * MS);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.away = usize::MAX / 2;
    let mut middle = 0;
    wires.pass(3 * MS, &mut |from, bytes| {
        middle += usize::from(is_middle(from, bytes));
        is_middle(from, bytes) && [20, 150].contains(&middle)
    });
    assert!(middle > 170, "{middle} of them are under way");
    let now = wires.tick + 1;
    (wires.under_way[0].iter_mut()).for_each(|(at, _)| *at = now);
    wires.away = TICKS_AWAY;
    let before = (wires.messages(1), wires.hosts[0].count("retransmits"));
    // It is received 64 packets at a time.
    wires.quietly(4 * TICK);
    assert_eq!(wires.messages(1) - before.0, 1, "in one report");
    // Packets reported missing come again: two ways of 0.5 ms. Their report is a third.
    wires.quietly(2 * MS);
    wires.ends[0].ok();
    assert_eq!(wires.hosts[0].count("retransmits") - before.1, 2);
}

/// Two READs of 64 bytes, the first of ones and the second of twos, with the response to the first
/// lost.
fn with_the_first_answer_lost(wires: &mut Wires, results: [Sge; 2]) {
    wires.quietly(20 * MS);
    for (from, results) in (0..).zip(results) {
        wires.ends[1].memory.fill(from * 64, &[from as u8 + 1; 64]);
        let read = Operation::Read {
            va: wires.ends[1].memory.address() + from as u64 * 64,
            rkey: wires.ends[1].memory.mr.rkey(),
        };
        wires.ends[0]
            .qp
            .post_send(&signalled(read, results))
            .unwrap();
    }
    let mut answers = 0;
    wires.pass(100 * MS, &mut |from, bytes| {
        let is_answer = from == 1 && bytes[0] == READ_RESPONSE_ONLY;
        answers += usize::from(is_answer);
        is_answer && answers == 1
    });
    assert!(answers > 2, "the first one came again");
    wires.ends[0].ok();
    wires.ends[0].ok();
}

#[test]
fn the_later_of_two_results_in_one_memory_stays_after_a_loss() {
    let mut wires = Wires::new([true, true], 8192);
    let results = wires.ends[0].memory.sge(0, 64);
    with_the_first_answer_lost(&mut wires, [results; 2]);
    assert_eq!(wires.ends[0].memory.bytes(0, 64), [2; 64]);
}

#[test]
fn so_it_does_where_two_regions_name_that_memory_differently() {
    for (iova, access) in [(1 << 40, ALL), (1 << 40, ALL | Access::ZERO_BASED)] {
        let mut wires = Wires::new([true, true], 8192);
        let end = &wires.ends[0];
        let address = end.memory.address();
        let other = end.pd.reg_mr(address, 8192, iova, access).unwrap();
        let is_zero_based = access.contains(Access::ZERO_BASED);
        let by_other = Sge {
            addr: if is_zero_based { 32 } else { iova + 32 },
            length: 64,
            lkey: other.lkey().0,
        };
        let results = [end.memory.sge(0, 64), by_other];
        with_the_first_answer_lost(&mut wires, results);
        let expected = [[1; 32], [2; 32], [2; 32]].concat();
        assert_eq!(wires.ends[0].memory.bytes(0, 96), expected);
    }
}

/// After its DREQ a peer gets no report, and would retry in vain for that acknowledgement.
#[test]
fn owed_reports_leave_before_a_dreq_within_a_batch() {
    const LEN: usize = 256 * 1024;
    let mut wires = Wires::new([true, true], LEN);
    for _ in 0..20 {
        let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
        wires.ends[0].qp.post_send(&write).unwrap();
        wires.quietly(10 * MS);
        wires.ends[0].ok();
    }
    wires.quietly(100 * MS);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.away = usize::MAX / 2;
    wires.quietly(3 * MS);
    let right = &wires.hosts[1];
    for (_, frame) in wires.under_way[0].drain(..) {
        right.carrier.give(frame);
    }
    right.device.run(wires.now());
    assert!(right.carrier.take().is_none(), "more waits");
    right.device.device().cm_destroy(ConnectionId(0));
    let report = right.carrier.take().map(|frame| frame.bytes[5..8].to_vec());
    assert_eq!(report, Some(vec![0, 0, 1]), "to queue pair 1");
}

#[test]
fn a_host_that_knows_nothing_of_it_gets_four_hellos_and_roce() {
    let mut wires = Wires::new([true, false], 64 * 1024);
    wires.quietly(1000 * MS);
    assert_eq!(wires.messages(0), 4);
    assert_eq!(wires.messages(1), 0);
    let write = wires.ends[0].write(&wires.ends[1], 0, 64 * 1024);
    wires.ends[0].qp.post_send(&write).unwrap();
    let mut middle = 0;
    wires.pass(300 * MS, &mut |from, bytes| {
        is_middle(from, bytes) && {
            middle += 1;
            middle == 5
        }
    });
    wires.ends[0].ok();
    assert_eq!(wires.hosts[1].count("naks_sent"), 1);
    assert_eq!(wires.messages(0), 4);
    for counter in ["air_agreed", "air_reports_sent"] {
        assert_eq!(wires.hosts[0].count(counter), 0, "{counter}");
    }
}

#[test]
fn a_peer_that_is_stopped_for_seconds_has_agreed_as_before() {
    let mut wires = Wires::new([true; 2], 64 * 1024);
    wires.connect_again();
    let begin = |wires: &Wires| {
        let write = wires.ends[0].write(&wires.ends[1], 0, 64 * 1024);
        wires.ends[0].qp.post_send(&write).unwrap();
    };
    begin(&wires);
    // Long packets do not arrive either: the path may be narrow, so the peer is asked, and is
    // silent.
    let before = attacks::asked(&wires);
    wires.pass(5500 * MS, &mut |_, _| true);
    let asked = attacks::asked(&wires) - before;
    assert!((6..=12).contains(&asked), "asked {asked} times");
    wires.pass(200 * MS, &mut |_, _| false);
    wires.ends[0].ok();
    // What was agreed on still is: no timer is needed for a loss.
    begin(&wires);
    let mut middle = 0;
    wires.pass(30 * MS, &mut |from, bytes| {
        is_middle(from, bytes) && {
            middle += 1;
            middle == 5
        }
    });
    wires.ends[0].ok();
    assert_eq!(wires.hosts[1].count("naks_sent"), 0);
}

#[test]
fn a_lost_hello_is_said_again() {
    let mut wires = Wires::new([true, true], 4096);
    let mut hellos = 0;
    wires.pass(600 * MS, &mut |_, _| {
        hellos += 1;
        hellos <= 3
    });
    let write = wires.ends[0].write(&wires.ends[1], 0, 4096);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(20 * MS);
    wires.ends[0].ok();
    assert_eq!(wires.hosts[1].count("acks_sent"), 0, "agreed");
}

/// As in connection management: the passive end is connected before the active one.
#[test]
fn an_early_question_is_answered_once_its_peer_is_connected() {
    let mut wires = Wires::new([true, true], 16 * 1024);
    wires.ends.iter().for_each(reset);
    wires.quietly(1000 * MS);
    let (acks, unheard) = (
        wires.hosts[1].count("acks_sent"),
        wires.hosts[0].count("drop_air"),
    );
    wires.ends[1].connect(&wires.ends[0]);
    wires.quietly(2 * MS);
    assert_eq!(
        wires.hosts[0].count("drop_air"),
        unheard + 1,
        "heard by nobody"
    );
    wires.ends[0].connect(&wires.ends[1]);
    // A round trip, and the way of the last answer.
    wires.quietly(2 * MS);
    let write = wires.ends[0].write(&wires.ends[1], 0, 16 * 1024);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(20 * MS);
    wires.ends[0].ok();
    assert_eq!(wires.hosts[1].count("acks_sent"), acks, "agreed");
}

#[test]
fn a_queue_pair_that_is_connected_again_asks_again() {
    let mut wires = Wires::new([true, true], 16 * 1024);
    // Another one keeps the peers known.
    let others =
        (wires.hosts.each_ref()).map(|host| End::new(host.device.device(), QpType::Rc, 64));
    others[0].connect(&others[1]);
    others[1].connect(&others[0]);
    wires.quietly(5 * MS);
    let hellos = wires.messages(0);
    wires.connect_again();
    assert!(
        wires.messages(0) > hellos,
        "it may be another process by now"
    );
    let write = wires.ends[0].write(&wires.ends[1], 0, 16 * 1024);
    wires.ends[0].qp.post_send(&write).unwrap();
    let mut first = true;
    wires.pass(30 * MS, &mut |from, bytes| {
        is_middle(from, bytes) && std::mem::take(&mut first)
    });
    wires.ends[0].ok();
    assert_eq!(wires.hosts[1].count("naks_sent"), 0);
    assert_eq!(wires.hosts[0].count("retransmits"), 1);
}

#[test]
fn who_hears_a_report_without_having_agreed_asks_again() {
    let mut wires = Wires::new([true, true], 4096);
    // The left one gives up its question, the right one has its answer.
    wires.pass(1000 * MS, &mut is_answer_of_right);
    let write = wires.ends[1].write(&wires.ends[0], 0, 4096);
    wires.ends[1].qp.post_send(&write).unwrap();
    wires.pass(50 * MS, &mut is_answer_of_right);
    wires.ends[1].ok();
    assert_eq!(
        wires.hosts[0].count("acks_sent"),
        1,
        "the left one is plain"
    );
    wires.quietly(500 * MS);
    wires.ends[1].qp.post_send(&write).unwrap();
    wires.quietly(50 * MS);
    wires.ends[1].ok();
    assert_eq!(wires.hosts[0].count("acks_sent"), 1, "and is so no more");
}

/// A short timer of the connection does not wait until it is asked again.
#[test]
fn a_report_acknowledges_before_its_sender_has_answered() {
    let mut wires = Wires::new([true, true], 4096);
    wires.pass(5 * MS, &mut is_answer_of_right);
    assert_eq!(wires.hosts[0].count("air_agreed"), 0);
    assert_eq!(wires.hosts[1].count("air_agreed"), 1);
    let write = wires.ends[0].write(&wires.ends[1], 0, 4096);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.pass(4 * MS, &mut is_answer_of_right);
    wires.ends[0].ok();
    assert_eq!(wires.hosts[1].count("acks_sent"), 0);
}

#[test]
fn who_only_receives_tells_by_the_round_trip_too() {
    let mut wires = Wires::new([true, true], 1 << 20);
    wires.away = 200;
    wires.line = Some(rate::line(true));
    wires.quietly(200 * MS);
    // More than the line carries in a second.
    for _ in 0..16 {
        let write = wires.ends[0].write(&wires.ends[1], 0, 1 << 20);
        wires.ends[0].qp.post_send(&write).unwrap();
    }
    wires.quietly(400 * MS);
    let before = wires.messages(1);
    wires.quietly(400 * MS);
    // Ten round trips of 40 ms: four reports in each, and answers to pings.
    let reports = wires.messages(1) - before;
    assert!((10..=80).contains(&reports), "{reports}");
}

#[test]
fn with_everything_lost_at_random_all_arrives() {
    for seed in 0..20_u64 {
        const LEN: usize = 100_000;
        let mut wires = Wires::new([true, true], LEN);
        let mut dice = seed * 7919 + 1;
        let mut loses = move |_: usize, _: &[u8]| {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005_u64)
                .wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33).is_multiple_of(15)
        };
        let data = pattern(LEN, seed as u8);
        wires.ends[0].memory.fill(0, &data);
        for at in 0..10 {
            wires.ends[1].recv(at, 0, 0);
        }
        let (va, rkey) = (
            wires.ends[1].memory.address(),
            wires.ends[1].memory.mr.rkey(),
        );
        for _ in 0..5 {
            let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
            wires.ends[0].qp.post_send(&write).unwrap();
            wires.ends[0].send(Operation::Read { va, rkey }, 0, LEN);
            wires.ends[0].send(Operation::Send, 0, 0);
        }
        wires.pass(4000 * MS, &mut loses);
        for operation in 0..15 {
            let completion = wires.ends[0].complete();
            assert_eq!(
                completion.status,
                Status::Success,
                "seed {seed}, {operation}"
            );
        }
        for at in 0..5 {
            assert_eq!(wires.ends[1].ok().wr_id, at);
        }
        assert!(wires.ends[1].memory.bytes(0, LEN) == data, "seed {seed}");
        assert!(wires.ends[0].memory.bytes(0, LEN) == data, "seed {seed}");
    }
}

#[test]
fn what_strangers_say_is_counted_and_changes_nothing() {
    use airdma_wire::air::{Hello, Report, ReportWriter, hello};
    use airdma_wire::{Psn, Qpn};
    let mut wires = Wires::new([true, true], 64 * 1024);
    wires.quietly(5 * MS);
    let agreed_on = wires.messages(0);
    // Reports whose instance is a guess; Hellos of a range without a queue pair.
    let number = wires.ends[0].qp.number();
    let mut writer = ReportWriter::new(&Report {
        instance: 1,
        number: 7,
        sender: (wires.ends[1].qp.number().get() >> 12 & 0xff) << 24,
        ..Report::default()
    });
    writer.add(Qpn::new(number.get()), Psn::new(5), [].into_iter());
    let stranger = Hello {
        asks: true,
        long_payload: 0,
        features: 0,
        sender: (wires.ends[1].qp.number().get() >> 12 & 0xff) << 24 ^ 0x5500_0000,
        instance: 9,
        ..Hello::default()
    };
    // An unsolicited answer without the nonce of a question.
    let answer = Hello {
        asks: false,
        sender: (wires.ends[1].qp.number().get() >> 12 & 0xff) << 24,
        answers: Some(9),
        ..stranger
    };
    for mad in [writer.finish(0), hello(&stranger, 0), hello(&answer, 0)] {
        inject(&wires, &mad);
    }
    wires.quietly(5 * MS);
    assert_eq!(wires.hosts[0].count("drop_air"), 3);
    assert_eq!(wires.messages(0), agreed_on);
    let write = wires.ends[0].write(&wires.ends[1], 0, 64 * 1024);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(50 * MS);
    wires.ends[0].ok();
}

/// Delivers a datagram to queue pair 1 of the left host, in the right one's name.
fn inject(wires: &Wires, mad: &[u8]) {
    inject_into(wires, 0, mad);
}

/// Delivers a datagram to queue pair 1 of a host, in the other one's name.
fn inject_into(wires: &Wires, to: usize, mad: &[u8]) {
    use airdma_wire::mad::GSI_QKEY;
    use airdma_wire::{Bth, Deth, Headers, Opcode, Psn, Qpn};
    let mut headers = Headers::new(Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(1)));
    headers.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qpn: Qpn::GSI,
    });
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend_from_slice(mad);
    inject_packet(wires, to, bytes);
}

/// Delivers a packet, BTH to pad, to a host in the other one's name.
fn inject_packet(wires: &Wires, to: usize, mut bytes: Vec<u8>) {
    use airdma_wire::{IpPseudo, ROCE_PORT, icrc};
    let [destination, source] = if to == 0 {
        [LEFT, RIGHT]
    } else {
        [RIGHT, LEFT]
    };
    let ip = IpPseudo::V4 {
        src: source.into(),
        dst: destination.into(),
        id: 0,
        dont_fragment: true,
    };
    let sum = icrc(&ip, ROCE_PORT, ROCE_PORT, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    wires.hosts[to].carrier.give(Frame {
        source: source.into(),
        destination: destination.into(),
        source_port: ROCE_PORT,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        bytes,
    });
}
