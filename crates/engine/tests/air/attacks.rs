//! A third host that is connected to one end, sees only packets addressed to it, and sends with any
//! source address.

use crate::common::*;
use crate::wires::{Wires, reset};
use crate::{BTH_AND_DETH, MS, inject, is_middle, rate};
use airdma_engine::*;
use airdma_port::sim::Frame;
use airdma_wire::air::{Hello, Message, Report, ReportWriter, feature, hello, parse};
use airdma_wire::cnp::cnp;
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{IpPseudo, Psn, Qpn, ROCE_PORT, icrc};
use std::time::Duration;

const LEN: usize = 64 * 1024;
/// The third host, which has an address of the same network.
const THIRD: [u8; 4] = [192, 0, 2, 66];

/// A queue pair of the left host that is connected to the third one.
fn connected_to_the_third(wires: &Wires) -> End {
    let left = End::new(wires.hosts[0].device.device(), QpType::Rc, 64);
    let path = Path {
        gid: GidEntry::from(std::net::IpAddr::from(THIRD)).gid,
        hop_limit: 64,
        ..Path::default()
    };
    connect(&left.qp, Qpn::new(0x77_7777), path);
    left
}

/// The Hellos that the left host has sent, the last one last.
fn hellos(wires: &Wires) -> Vec<Hello> {
    let from_left = wires.sent.iter().filter(|(from, _)| *from == 0);
    let mads = from_left.filter_map(|(_, bytes)| bytes.get(BTH_AND_DETH..BTH_AND_DETH + MAD_LEN));
    let hellos = mads.filter_map(|mad| match parse(mad) {
        Ok(Message::Hello(hello, _)) => Some(hello),
        Ok(Message::Report(..) | Message::Key(_)) | Err(_) => None,
    });
    hellos.collect()
}

/// The Hello that the third host gets for its own.
fn heard_by_the_third(wires: &mut Wires) -> (End, Hello) {
    let before = hellos(wires).len();
    let end = connected_to_the_third(wires);
    wires.quietly(2 * MS);
    let heard = hellos(wires);
    assert!(heard.len() > before, "it is asked");
    (end, heard[heard.len() - 1])
}

fn range_of_right(wires: &Wires) -> u32 {
    range_of(wires, 1)
}

fn range_of(wires: &Wires, end: usize) -> u32 {
    (wires.ends[end].qp.number().get() >> 12 & 0xff) << 24
}

/// A report of the right host on the left one's queue pair: all before `expected` has arrived.
fn report(wires: &Wires, report: Report, expected: Psn) -> [u8; MAD_LEN] {
    let sender = range_of_right(wires);
    let mut writer = ReportWriter::new(&Report { sender, ..report });
    writer.add(wires.ends[0].qp.number(), expected, [].into_iter());
    writer.finish(0)
}

/// Loses all 64 packets of a WRITE, while `forge` forges the third host's datagrams to the left
/// one. Returns whether it completed.
fn completes_though_all_is_lost(wires: &mut Wires, forge: impl Fn(&Wires)) -> bool {
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    for _ in 0..20 {
        wires.pass(MS / 2, &mut |from, bytes| {
            from == 0 && bytes[5..8] != [0, 0, 1]
        });
        forge(wires);
    }
    wires.ends[0].try_complete().is_some()
}

#[test]
fn messages_of_a_third_host_acknowledge_nothing() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let (_end, heard) = heard_by_the_third(&mut wires);
    let number = std::cell::Cell::new(5_000);
    let completes = completes_though_all_is_lost(&mut wires, |wires| {
        // Guesses, one of which is right: the odds are those of an ACK packet.
        for packets in 1..=46 {
            let forged = Report {
                instance: heard.instance,
                number: number.replace(number.get() + 1),
                ..Report::default()
            };
            inject(wires, &report(wires, forged, PSN.add(packets)));
        }
    });
    assert!(!completes, "nothing has arrived");
    assert!(wires.hosts[0].count("drop_air") > 0);
    wires.quietly(500 * MS);
    wires.ends[0].ok();
}

#[test]
fn what_a_host_tells_a_third_one_answers_no_question_to_another() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let (_end, heard) = heard_by_the_third(&mut wires);
    let sender = range_of_right(&wires);
    let question = Hello {
        asks: true,
        sender,
        instance: 0x6666,
        answers: None,
        ..heard
    };
    let answer = Hello {
        asks: false,
        features: feature::SELECTIVE | feature::BUFFERS,
        answers: Some(heard.instance),
        ..question
    };
    // The question makes the left one ask.
    for mad in [hello(&question, 0), hello(&answer, 0)] {
        inject(&wires, &mad);
        wires.quietly(MS / 5);
    }
    let write = wires.ends[1].write(&wires.ends[0], 0, LEN);
    wires.ends[1].qp.post_send(&write).unwrap();
    let mut middle = 0;
    wires.pass(100 * MS, &mut |from, bytes| {
        from == 1 && bytes[0] == 0x07 && {
            middle += 1;
            middle == 7
        }
    });
    wires.ends[1].ok();
    assert_eq!(wires.hosts[1].count("timeouts"), 0);
    assert_eq!(wires.hosts[0].count("air_agreed"), 1, "with the right one");
    assert_eq!(wires.hosts[1].count("retransmits"), 1);
}

/// Each forged question was answered, and made the host ask its peer again, which answered: three
/// datagrams, and all effects of an answer.
#[test]
fn forged_questions_cause_at_most_ten_questions_a_second() {
    for has_other_instance in [true, false] {
        let mut wires = Wires::new([true, true], LEN);
        wires.quietly(5 * MS);
        let receiver = range_of(&wires, 0);
        let asked = asked_by_forged_questions(&mut wires, receiver, has_other_instance);
        assert!((1..=3).contains(&asked), "{asked} times in 200 ms");
    }
}

/// The questions within the answers had a name that the peer did not know, so none was answered:
/// that ended air mode.
#[test]
fn forged_questions_to_another_process_do_not_end_air_mode() {
    for has_other_instance in [true, false] {
        let mut wires = Wires::new([true, true], LEN);
        wires.quietly(5 * MS);
        asked_by_forged_questions(&mut wires, 0, has_other_instance);
        wires.quietly(1_000 * MS);
        let write = wires.ends[1].write(&wires.ends[0], 0, LEN);
        wires.ends[1].qp.post_send(&write).unwrap();
        let mut middle = 0;
        wires.pass(100 * MS, &mut |from, bytes| {
            from == 1 && bytes[0] == 0x07 && {
                middle += 1;
                middle == 7
            }
        });
        wires.ends[1].ok();
        assert_eq!(wires.hosts[1].count("timeouts"), 0);
        assert_eq!(wires.hosts[1].count("retransmits"), 1);
    }
}

/// Number of the left host's questions while it gets 200 forged ones in 200 ms.
fn asked_by_forged_questions(wires: &mut Wires, receiver: u32, has_other_instance: bool) -> usize {
    let from_right = wires.sent.iter().filter(|(from, _)| *from == 1);
    let mads = from_right.filter_map(|(_, it)| it.get(BTH_AND_DETH..BTH_AND_DETH + MAD_LEN));
    let mut said = mads.filter_map(|mad| match parse(mad) {
        Ok(Message::Hello(hello, _)) => Some(hello),
        Ok(Message::Report(..) | Message::Key(_)) | Err(_) => None,
    });
    let said = said.next().expect("the right one has answered");
    let before = asked(wires);
    for number in 0..200 {
        let forged = Hello {
            asks: true,
            instance: said.instance ^ u64::from(has_other_instance),
            long_payload: 1_000 + number,
            nonce: number.into(),
            answers: None,
            ..said
        };
        inject(wires, &hello(&forged, receiver));
        wires.quietly(MS);
    }
    asked(wires) - before
}

/// Questions that the left host has sent.
pub fn asked(wires: &Wires) -> usize {
    hellos(wires).iter().filter(|hello| hello.asks).count()
}

/// The right host's question, as a third one can forge it: with a nonce of its own.
fn question(wires: &Wires, nonce: u64) -> [u8; MAD_LEN] {
    let question = Hello {
        asks: true,
        features: feature::SELECTIVE | feature::SACK,
        sender: range_of_right(wires),
        instance: 0x6666 + nonce,
        nonce,
        ..Hello::default()
    };
    hello(&question, range_of(wires, 0))
}

#[test]
fn a_forged_question_behind_a_genuine_one_takes_no_answer() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let before = hellos(&wires).len();
    let nonces = [1, 2, 3];
    for nonce in nonces {
        inject(&wires, &question(&wires, nonce));
    }
    wires.quietly(MS);
    let answered = hellos(&wires).split_off(before);
    let answered: Vec<_> = answered.iter().map(|answer| answer.echo).collect();
    assert!(
        nonces.iter().all(|nonce| answered.contains(nonce)),
        "{answered:?}"
    );
}

/// It is RoCEv2 that answers nothing.
#[test]
fn a_forged_question_does_not_keep_a_plain_peer_in_the_books() {
    let mut wires = Wires::new([true, false], LEN);
    wires.quietly(1_000 * MS);
    assert_eq!(wires.hosts[0].device.inventory().air_peers, 0);
    inject(&wires, &question(&wires, 1));
    wires.quietly(MS);
    assert_eq!(wires.hosts[0].device.inventory().air_peers, 1);
    wires.quietly(1_000 * MS);
    assert_eq!(wires.hosts[0].device.inventory().air_peers, 0);
}

#[test]
fn forged_callers_hide_no_genuine_one() {
    let mut wires = Wires::new([true, false], LEN);
    wires.quietly(1_000 * MS);
    wires.hosts[1].device.offer_air(RateControl::Buffers);
    reset(&wires.ends[1]);
    wires.ends[1].connect(&wires.ends[0]);
    let forged = Hello {
        asks: true,
        sender: range_of_right(&wires) ^ 1 << 24,
        instance: 1,
        ..Hello::default()
    };
    for _ in 0..10_000 {
        inject(&wires, &hello(&forged, 0));
        wires.quietly(MS / 10);
    }
    let agreed = wires.hosts.each_ref().map(|host| host.count("air_agreed"));
    assert_eq!(agreed, [1, 1]);
}

/// An on-path host, or a peer with a fault: all but the number is right.
#[test]
fn a_report_number_far_ahead_does_not_silence_later_ones() {
    for jump in [1 << 30, i32::MAX as u32] {
        let mut wires = Wires::new([true, true], LEN);
        wires.quietly(5 * MS);
        let genuine = genuine_report(&mut wires);
        let far = Report {
            number: genuine.number.wrapping_add(jump),
            ..genuine
        };
        inject(&wires, &report(&wires, far, PSN));
        for _ in 0..3 {
            let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
            wires.ends[0].qp.post_send(&write).unwrap();
            wires.quietly(40 * MS);
            wires.ends[0].ok();
        }
        assert_eq!(wires.hosts[0].count("timeouts"), 0);
    }
}

/// The last report of the right host, after it had something to report.
fn genuine_report(wires: &mut Wires) -> Report {
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(40 * MS);
    wires.ends[0].ok();
    let from_right = wires.sent.iter().rev().filter(|(from, _)| *from == 1);
    let mut mads =
        from_right.filter_map(|(_, bytes)| bytes.get(BTH_AND_DETH..BTH_AND_DETH + MAD_LEN));
    mads.find_map(|mad| match parse(mad) {
        Ok(Message::Report(report, _)) => Some(report),
        Ok(Message::Hello(..) | Message::Key(_)) | Err(_) => None,
    })
    .unwrap()
}

/// Reports after it are ignored, but not for ever: the next answer to a Hello has the numbers to
/// come.
#[test]
fn after_a_tenth_of_a_second_of_silence_reports_are_heard_again() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let genuine = genuine_report(&mut wires);
    let far = Report {
        number: genuine.number.wrapping_add(1 << 20),
        ..genuine
    };
    inject(&wires, &report(&wires, far, PSN));
    let agreed = hellos(&wires).len();
    wires.quietly(MS);
    let write = |wires: &Wires| {
        let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
        wires.ends[0].qp.post_send(&write).unwrap();
    };
    write(&wires);
    wires.quietly(50 * MS);
    assert_eq!(wires.ends[0].try_complete(), None, "silent");
    wires.quietly(150 * MS);
    wires.ends[0].ok();
    assert!(hellos(&wires).len() > agreed, "it was asked");
    let timeouts = wires.hosts[0].count("timeouts");
    for _ in 0..3 {
        write(&wires);
        wires.quietly(40 * MS);
        wires.ends[0].ok();
    }
    assert_eq!(wires.hosts[0].count("timeouts"), timeouts);
}

#[test]
fn of_the_records_of_a_report_one_counts_for_each_queue_pair() {
    let mut wires = Wires::new([true, true], LEN);
    wires.quietly(5 * MS);
    let genuine = genuine_report(&mut wires);
    let number = wires.ends[0].qp.number();
    let mut writer = ReportWriter::new(&Report {
        number: genuine.number + 1,
        ..genuine
    });
    let mut records = 0;
    while writer.room().is_some() {
        // A report of packets that were never sent.
        writer.add(number, PSN.add(5_000), [].into_iter());
        records += 1;
    }
    assert_eq!(records, 18);
    let dropped = wires.hosts[0].count("drop_air");
    inject(&wires, &writer.finish(0));
    wires.quietly(MS);
    assert_eq!(wires.hosts[0].count("drop_ghost"), 1);
    assert_eq!(wires.hosts[0].count("drop_air") - dropped, 17);
}

#[test]
fn a_peer_with_full_buffers_delays_only_itself() {
    let mut wires = Wires::new([true, true], LEN);
    let (left, right) = wires.pair_at_second_address(LEN);
    wires.quietly(5 * MS);
    let genuine = genuine_report(&mut wires);
    let mut full = Report {
        socket_bytes: 1 << 20,
        socket_bytes_max: 1 << 20,
        application_bytes: 1 << 20,
        application_bytes_max: 1 << 20,
        ..genuine
    };
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    for _ in 0..20 {
        full.number += 1_000;
        inject(&wires, &report(&wires, full, PSN));
        wires.quietly(MS);
    }
    wires.ends[0].qp.post_send(&write).unwrap();
    left.qp.post_send(&left.write(&right, 0, LEN)).unwrap();
    for _ in 0..40 {
        full.number += 1_000;
        inject(&wires, &report(&wires, full, PSN));
        wires.quietly(MS);
    }
    left.ok();
    assert_eq!(wires.ends[0].try_complete(), None, "it is held up");
    wires.quietly(1000 * MS);
    wires.ends[0].ok();
}

/// Delivers a packet to the right host in the left one's name.
fn forge_to_right(wires: &Wires, mut bytes: Vec<u8>) {
    let ip = IpPseudo::V4 {
        src: LEFT.into(),
        dst: RIGHT.into(),
        id: 0,
        dont_fragment: true,
    };
    let sum = icrc(&ip, ROCE_PORT, ROCE_PORT, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    wires.hosts[1].carrier.give(Frame {
        source: LEFT.into(),
        destination: RIGHT.into(),
        source_port: ROCE_PORT,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        bytes,
    });
}

#[test]
fn a_forged_congestion_notification_needs_the_tag() {
    let mut wires = Wires::with([Some(RateControl::Dcqcn); 2], LEN);
    wires.quietly(5 * MS);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(40 * MS);
    wires.ends[0].ok();
    // As the left one sends it, except for its tag.
    forge_to_right(&wires, cnp(wires.ends[1].qp.number()).to_vec());
    wires.quietly(MS);
    assert_eq!(wires.hosts[1].count("drop_untagged"), 1);
    assert_eq!(wires.hosts[1].count("cnps_received"), 0);
    // Genuine ones have it.
    wires.marks = true;
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(40 * MS);
    wires.ends[0].ok();
    assert!(wires.hosts[0].count("cnps_received") > 0);
    assert_eq!(wires.hosts[0].count("drop_untagged"), 0);
}

/// One packet whose odds are 1 where the queue pair number is known.
#[test]
fn a_forged_congestion_notification_keeps_nobody_from_agreeing() {
    let mut wires = Wires::new([false, false], LEN);
    wires.hosts[1].device.offer_wired(RateControl::Buffers);
    wires.connect_again();
    forge_to_right(&wires, cnp(wires.ends[1].qp.number()).to_vec());
    wires.quietly(MS);
    assert_eq!(wires.hosts[1].count("cnps_received"), 1);
    wires.hosts[0].device.offer_air(RateControl::Buffers);
    let (_left, _right) = rate::pair(&wires);
    wires.quietly(5 * MS);
    let agreed = wires.hosts.each_ref().map(|host| host.count("air_agreed"));
    assert_eq!(agreed, [1, 1]);
}

/// Nor one that came between the connection and the question.
#[test]
fn one_that_comes_before_the_question_does_neither() {
    let mut wires = Wires::new([false, false], LEN);
    wires.hosts[0].device.offer_air(RateControl::Buffers);
    wires.hosts[1].device.offer_wired(RateControl::Buffers);
    wires.ends.iter().for_each(reset);
    wires.ends[1].connect(&wires.ends[0]);
    forge_to_right(&wires, cnp(wires.ends[1].qp.number()).to_vec());
    wires.quietly(MS);
    assert_eq!(wires.hosts[1].count("cnps_received"), 1);
    wires.ends[0].connect(&wires.ends[1]);
    wires.quietly(5 * MS);
    let agreed = wires.hosts.each_ref().map(|host| host.count("air_agreed"));
    assert_eq!(agreed, [1, 1]);
    let write = wires.ends[1].write(&wires.ends[0], 0, LEN);
    wires.ends[1].qp.post_send(&write).unwrap();
    wires.quietly(40 * MS);
    wires.ends[1].ok();
}

/// A generator (SplitMix64).
fn random(state: &mut u64) -> u32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 32) as u32
}

/// From 2^16 forged packets with random numbers, a window of 8,191 packets alone would accept 32.
#[test]
fn forged_packets_ahead_of_their_turn_place_no_byte() {
    const BIG: usize = 16 << 20;
    let mut wires = Wires::new([true, true], BIG);
    wires.quietly(5 * MS);
    wires.ends[1].memory.fill(0, &vec![0; BIG]);
    wires.ends[0].memory.fill(0, &vec![0; BIG]);
    let write = wires.ends[0].write(&wires.ends[1], 0, BIG);
    wires.ends[0].qp.post_send(&write).unwrap();
    wires.quietly(3 * MS);
    let full = wires
        .sent
        .iter()
        .filter(|(from, bytes)| is_middle(*from, bytes));
    let full = full.map(|(_, bytes)| bytes.len() - 16).max().unwrap();
    let mut seed = 28;
    for _ in 0..1 << 10 {
        for _ in 0..64 {
            let (psn, reserved) = (random(&mut seed), random(&mut seed));
            let number = wires.ends[1].qp.number().get();
            let mut bytes = vec![0xff; 12 + full];
            bytes[0] = 0x07;
            bytes[1] = 0x40;
            bytes[2..4].copy_from_slice(&[0xff, 0xff]);
            bytes[4..8].copy_from_slice(&((reserved & 0x3f) << 24 | number).to_be_bytes());
            bytes[8..12].copy_from_slice(&((reserved >> 8 & 0x7f) << 24 | psn >> 8).to_be_bytes());
            forge_to_right(&wires, bytes);
        }
        // The left one is stopped.
        wires.hosts[1].device.run(wires.now());
    }
    let placed = wires.ends[1].memory.bytes(0, BIG);
    let placed = placed.iter().filter(|&&byte| byte == 0xff).count();
    assert_eq!(placed, 0, "bytes that the peer has not sent");
    wires.quietly(Duration::from_secs(6));
    wires.ends[0].ok();
}
