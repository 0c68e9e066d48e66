//! Selective repeat with ACK packets that say what is missing.

use std::time::Duration;

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;
use crate::selective::{Dice, shift};

const MS: Duration = Duration::from_millis(1);
const WRITE: Operation = Operation::Write {
    va: REGION_VA,
    rkey: RKEY,
};

fn sacks() -> Bench {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    b.qp.tell_by_acks(true);
    b
}

fn reth(length: u32) -> Option<Reth> {
    Some(Reth {
        va: REGION_VA,
        rkey: RKEY,
        length,
    })
}

/// An ACK of everything up to this PSN, but for these packets behind it.
fn sacked(b: &mut Bench, psn: u32, missing: &[(u16, u16)]) {
    let mut seth = [0; SETH_LEN_MAX];
    let ranges = missing.iter();
    let ranges = ranges.map(|&(first, packets)| SethRange { first, packets });
    let len = emit_seth(ranges, &mut seth);
    b.arrives(Opcode::RcAcknowledge, psn, &seth[..len], |headers| {
        let syndrome = Syndrome::Ack { credits: 0x1f };
        headers.aeth = Some(Aeth { syndrome, msn: 0 });
    });
}

#[test]
fn without_a_gap_an_ack_that_is_asked_for_says_so() {
    let mut b = sacks();
    b.post_receive(0, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 msn=1 missing=[]"]);
    b.write_arrives(Opcode::RcWriteFirst, 101, &[1; 256], reth(512));
    assert_eq!(b.sends(), [""; 0], "nobody asked");
    assert_eq!(b.qp.owes_acknowledgement(), None, "nor by a report");
}

#[test]
fn a_gap_is_reported_at_once_and_later_packets_on_request() {
    let mut b = sacks();
    b.write_arrives(Opcode::RcWriteFirst, 100, &[1; 256], reth(2048));
    b.write_arrives(Opcode::RcWriteMiddle, 103, &[4; 256], None);
    assert_eq!(b.sends(), [r#"Acknowledge 100 msn=0 missing=["0x2"]"#]);
    b.write_arrives(Opcode::RcWriteMiddle, 104, &[5; 256], None);
    assert_eq!(b.sends(), [""; 0], "no news");
    b.write_arrives(Opcode::RcWriteLast, 107, &[8; 256], None);
    let both = [r#"Acknowledge 100 msn=0 missing=["0x2", "4x2"]"#];
    assert_eq!(b.sends(), both);
    for psn in [101, 102] {
        b.write_arrives(Opcode::RcWriteMiddle, psn, &[9; 256], None);
    }
    b.arrives(Opcode::RcWriteMiddle, 105, &[6; 256], |headers| {
        headers.bth.ack_request = true;
    });
    assert_eq!(b.sends(), [r#"Acknowledge 105 msn=0 missing=["0x1"]"#]);
    b.arrives(Opcode::RcWriteMiddle, 106, &[7; 256], |headers| {
        headers.bth.ack_request = true;
    });
    // The last packet was there already.
    assert_eq!(b.sends(), ["Acknowledge 107 msn=1 missing=[]"]);
}

#[test]
fn what_came_before_is_acknowledged_again() {
    let mut b = sacks();
    b.post_receive(0, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    b.sends();
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 msn=1 missing=[]"]);
    assert_eq!(b.log(), ["recv 0 Success 8"]);
}

#[test]
fn a_probe_that_was_kept_already_is_answered() {
    let mut b = sacks();
    b.write_arrives(Opcode::RcWriteFirst, 100, &[1; 256], reth(768));
    b.write_arrives(Opcode::RcWriteLast, 102, &[3; 256], None);
    b.sends();
    b.write_arrives(Opcode::RcWriteLast, 102, &[3; 256], None);
    assert_eq!(b.sends(), [r#"Acknowledge 100 msn=0 missing=["0x1"]"#]);
}

#[test]
fn behind_an_ack_answers_come_in_their_order() {
    let mut b = sacks();
    b.post_receive(0, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    b.read_arrives(101, REGION_VA, 300);
    let expected = [
        "Acknowledge 100 msn=1 missing=[]",
        "ReadResponseFirst 101 msn=2 [256]",
        "ReadResponseLast 102 msn=2 [44]",
    ];
    assert_eq!(b.sends(), expected);
}

#[test]
fn what_is_missing_is_sent_again_and_nothing_else() {
    let mut b = sacks();
    b.post(WRITE, 2048);
    assert_eq!(b.sends().len(), 8);
    // 0xfffffe and 0xffffff have come, 0 and 3, 4 have not.
    sacked(&mut b, 0xff_ffff, &[(0, 1), (3, 2)]);
    let again = b.sends();
    let again: Vec<_> = (again.iter().map(|line| line.as_str())).collect();
    assert_eq!(
        again,
        [
            "WriteMiddle 0 [256]",
            "WriteMiddle 3 [256]",
            "WriteMiddle 4 A [256]"
        ]
    );
    // The same, said before they came.
    sacked(&mut b, 0xff_ffff, &[(0, 1), (3, 2)]);
    assert_eq!(b.sends(), [""; 0]);
    sacked(&mut b, 5, &[]);
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(b.counted(Counter::Retransmits), 3);
    assert_eq!(b.counted(Counter::NaksReceived), 0);
}

#[test]
fn the_round_trip_is_measured_and_repairs_wait_for_it() {
    let mut b = sacks();
    b.post(WRITE, 8);
    b.sends();
    b.now = b.now + 20 * MS;
    sacked(&mut b, 0xff_fffe, &[]);
    b.post(WRITE, 768);
    b.sends();
    sacked(&mut b, 0xff_fffe, &[(0, 1)]);
    assert_eq!(b.sends().len(), 1);
    b.now = b.now + 24 * MS;
    sacked(&mut b, 0xff_fffe, &[(0, 1)]);
    assert_eq!(b.sends().len(), 0, "within 1.25 round trips of 20 ms");
    b.now = b.now + 2 * MS;
    sacked(&mut b, 0xff_fffe, &[(0, 1)]);
    assert_eq!(b.sends().len(), 1);
}

#[test]
fn the_last_packet_is_sent_again_as_a_probe_if_nothing_is_heard() {
    let mut b = sacks();
    b.post(WRITE, 512);
    b.sends();
    // Two round trips of 5 ms, which is what is taken before one is measured, and a millisecond.
    assert_eq!(b.next_timer(), 11 * MS);
    assert_eq!(b.sends(), ["WriteLast 16777215 A [256]"]);
}

#[test]
fn whoever_does_not_repeat_selectively_takes_it_for_an_ack() {
    let mut b = Bench::connected();
    b.post(WRITE, 512);
    b.sends();
    sacked(&mut b, 0xff_ffff, &[(3, 7)]);
    assert_eq!(b.log(), ["send 0 Success"]);
}

#[test]
fn an_ack_of_what_was_never_sent_is_a_ghost() {
    let mut b = sacks();
    b.post(WRITE, 512);
    b.sends();
    sacked(&mut b, 50, &[(0, 0xffff)]);
    assert_eq!(b.counted(Counter::DropGhost), 1);
    sacked(&mut b, 0xff_fffe, &[(0, 0xffff), (0xffff, 0xffff)]);
    assert_eq!(b.sends().len(), 1, "no more than is under way");
}

#[test]
fn a_read_between_is_retired_by_its_answer_alone() {
    let mut b = sacks();
    b.post(
        Operation::Read {
            va: REGION_VA,
            rkey: RKEY,
        },
        8,
    );
    b.post(WRITE, 8);
    b.sends();
    sacked(&mut b, 0xff_ffff, &[]);
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.counted(Counter::ImpliedNaks), 0);
    b.arrives(Opcode::RcReadResponseOnly, 0xff_fffe, &[5; 8], |headers| {
        let syndrome = Syndrome::Ack { credits: 0x1f };
        headers.aeth = Some(Aeth { syndrome, msn: 1 });
    });
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn lossy_reordering_links_deliver_once_and_in_order() {
    const TO_RIGHT: u32 = 102;
    for seed in 0..200 {
        let mut dice = Dice(seed);
        let (mut left, mut right) = (sacks(), sacks());
        let mut sent = 0;
        let mut lost = 0;
        for _ in 0..8_000 {
            if sent < 40 && dice.roll(3) == 0 {
                left.post(Operation::Send, dice.roll(2_000) as u32);
                right.post_receive(sent, 2_000);
                sent += 1;
            }
            let mut wire: Vec<Vec<u8>> = Vec::new();
            while let Some(mut bytes) = left.sends_bytes() {
                shift(&mut bytes, TO_RIGHT);
                match dice.roll(20) {
                    0 => lost += 1,
                    1 if !wire.is_empty() => wire.insert(wire.len() - 1, bytes),
                    _ => wire.push(bytes),
                }
            }
            for bytes in wire {
                right.bytes_arrive(&bytes);
            }
            while let Some(mut bytes) = right.sends_bytes() {
                shift(&mut bytes, TO_RIGHT.wrapping_neg());
                if dice.roll(10) > 0 {
                    left.bytes_arrive(&bytes);
                }
            }
            for bench in [&mut left, &mut right] {
                bench.now = bench.now + MS / 2;
                if bench.qp.poll_timeout().is_some_and(|at| at <= bench.now) {
                    bench.qp.handle_timeout(bench.now, &mut bench.host);
                }
            }
            if sent == 40 && left.host.log.len() == 40 {
                break;
            }
        }
        let expected: Vec<String> = (0..40).map(|i| format!("send {i} Success")).collect();
        assert_eq!(left.log(), expected, "seed {seed}");
        for i in 0..40 {
            let received = right.host.received.get(&i).map_or(&[][..], Vec::as_slice);
            assert_eq!(received, left.host.messages[&i], "seed {seed}");
        }
        let again = left.counted(Counter::Retransmits);
        assert!(again <= 3 * lost + 40, "seed {seed}: {lost} lost, {again}");
    }
}
