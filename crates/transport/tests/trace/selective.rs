//! Selective repeat: what comes after a gap is kept, and only what is missing is sent again.

use std::time::Duration;

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const RTT: Duration = Duration::from_millis(4);
const ASKED: Owed = Owed {
    is_asked: true,
    has_gap: false,
};
const WRITE: Operation = Operation::Write {
    va: REGION_VA,
    rkey: RKEY,
};
const NONE: PsnRange = PsnRange {
    first: Psn::new(0),
    packets: 0,
};

fn selective() -> Bench {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    b
}

fn reth(length: u32) -> Option<Reth> {
    Some(Reth {
        va: REGION_VA,
        rkey: RKEY,
        length,
    })
}

/// What the queue pair tells its peer: the expected PSN, and what is missing.
fn tells(b: &mut Bench) -> (u32, Vec<(u32, u32)>) {
    let mut missing = [NONE; 8];
    let (expected, count) = b.qp.take_report(&mut missing).unwrap();
    let ranges = missing[..count].iter();
    let ranges = ranges.map(|range| (range.first.get(), range.packets));
    (expected.get(), ranges.collect())
}

/// The peer reports the expected PSN, and what is missing.
pub fn told(b: &mut Bench, expected: u32, missing: &[(u32, u32)]) {
    let missing: Vec<PsnRange> = missing
        .iter()
        .map(|&(first, packets)| PsnRange {
            first: Psn::new(first),
            packets,
        })
        .collect();
    let told = Acknowledgement {
        expected: Psn::new(expected),
        missing: &missing,
        rtt: RTT,
        told_within: Duration::from_millis(1),
    };
    b.qp.handle_acknowledgement(b.now, &told, &mut b.host);
}

fn pass(b: &mut Bench, time: Duration) {
    b.now = b.now + time;
}

#[test]
fn the_middle_of_a_write_is_placed_at_once_and_its_end_last() {
    let mut b = selective();
    let start = (REGION_VA - 0x1000) as usize;
    b.write_arrives(Opcode::RcWriteFirst, 100, &[1; 256], reth(1024));
    b.write_arrives(Opcode::RcWriteMiddle, 102, &[3; 256], None);
    b.write_arrives(Opcode::RcWriteLast, 103, &[4; 256], None);
    assert_eq!(b.host.memory[start + 512..][..256], [3; 256]);
    assert_ne!(b.host.memory[start + 768..][..256], [4; 256], "not yet");
    let owed = Owed {
        is_asked: true,
        has_gap: true,
    };
    assert_eq!(b.qp.owes_acknowledgement(), Some(owed), "asked by the last");
    assert_eq!(tells(&mut b), (101, vec![(101, 1)]));
    assert_eq!(b.qp.owes_acknowledgement(), None);
    b.write_arrives(Opcode::RcWriteMiddle, 101, &[2; 256], None);
    let expected = [[1; 256], [2; 256], [3; 256], [4; 256]].concat();
    assert_eq!(b.host.memory[start..][..1024], expected);
    assert_eq!(b.qp.owes_acknowledgement(), Some(ASKED), "by the last");
    assert_eq!(tells(&mut b), (104, vec![]));
    assert_eq!(b.sends(), [""; 0], "no ACK packets");
    assert_eq!(b.counted(Counter::MessagesReceived), 1);
}

#[test]
fn only_a_sender_that_cannot_send_more_asks() {
    let mut b = selective();
    b.post(WRITE, 8);
    b.post(WRITE, 512);
    assert_eq!(
        b.sends(),
        [
            "WriteOnly 16777214 va=0x1000+8 [8]",
            "WriteFirst 16777215 va=0x1000+512 [256]",
            "WriteLast 0 A [256]",
        ],
        "there is no more"
    );
    b.post(WRITE, 1024);
    b.credit = 512;
    let first = b.sends_one().unwrap();
    assert_eq!(first, "WriteFirst 1 va=0x1000+1024 [256]");
    b.credit = 256;
    let last = b.sends_one().unwrap();
    assert_eq!(last, "WriteMiddle 2 A [256]", "the window is full");
    b.write_arrives(Opcode::RcWriteFirst, 100, &[1; 256], reth(512));
    assert_eq!(b.qp.owes_acknowledgement(), Some(Owed::default()));
    b.write_arrives(Opcode::RcWriteLast, 101, &[1; 256], None);
    assert_eq!(b.qp.owes_acknowledgement(), Some(ASKED));
    tells(&mut b);
    b.write_arrives(Opcode::RcWriteFirst, 102, &[1; 256], reth(512));
    assert_eq!(b.qp.owes_acknowledgement(), Some(Owed::default()));
}

#[test]
fn what_was_sent_before_the_agreement_is_asked_about() {
    let mut b = Bench::connected();
    b.post(WRITE, 1024);
    b.credit = 100_000;
    b.sends_one();
    b.sends_one();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    b.credit = 0;
    assert_eq!(b.sends(), ["WriteMiddle 16777215 A [256]"]);
}

#[test]
fn messages_that_came_early_complete_in_their_order() {
    let mut b = selective();
    for i in 0..4 {
        b.post_receive(i, 8);
    }
    b.arrives(Opcode::RcSendOnly, 103, &[3; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 101, &[1; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 101, &[1; 8], |_| {});
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.counted(Counter::Duplicates), 1);
    assert_eq!(tells(&mut b), (100, vec![(100, 1), (102, 1)]));
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.log(), ["recv 0 Success 8", "recv 1 Success 8"]);
    b.arrives(Opcode::RcSendOnly, 102, &[2; 8], |_| {});
    assert_eq!(b.log(), ["recv 2 Success 8", "recv 3 Success 8"]);
    assert_eq!(b.host.received[&3], [3; 8]);
}

#[test]
fn an_early_message_without_a_receive_is_retried_in_its_turn() {
    let mut b = selective();
    b.post_receive(0, 8);
    b.arrives(Opcode::RcSendOnly, 101, &[1; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.log(), ["recv 0 Success 8"]);
    assert_eq!(b.sends(), ["Acknowledge 101 RNR timer=12"]);
    // What comes behind it does not make it missing: it is to come when the timer says.
    b.arrives(Opcode::RcSendOnly, 103, &[3; 8], |_| {});
    assert_eq!(tells(&mut b), (101, vec![(102, 1)]));
    b.post_receive(1, 8);
    b.arrives(Opcode::RcSendOnly, 101, &[1; 8], |_| {});
    assert_eq!(b.log(), ["recv 1 Success 8"]);
}

#[test]
fn an_early_write_to_forbidden_memory_is_refused_in_its_turn() {
    let mut b = selective();
    b.write_arrives(Opcode::RcWriteFirst, 100, &[1; 256], reth(1024));
    b.host.granted = false;
    b.write_arrives(Opcode::RcWriteMiddle, 102, &[3; 256], None);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
    b.host.granted = true;
    b.write_arrives(Opcode::RcWriteMiddle, 101, &[2; 256], None);
    assert_eq!(b.counted(Counter::RemoteAccessErrors), 0, "allowed by then");
    b.host.granted = false;
    b.write_arrives(Opcode::RcWriteLast, 103, &[4; 256], None);
    assert_eq!(b.sends(), ["Acknowledge 103 NAK RemoteAccessError"]);
}

#[test]
fn early_reads_and_atomics_are_executed_in_their_turn_and_once() {
    let mut b = selective();
    b.read_arrives(101, REGION_VA, 600);
    b.arrives(Opcode::RcFetchAdd, 104, &[], |headers| {
        headers.atomic_eth = Some(AtomicEth {
            va: REGION_VA,
            rkey: RKEY,
            swap_add: 1,
            compare: 0,
        });
    });
    assert_eq!(tells(&mut b), (100, vec![(100, 1)]));
    assert_eq!(b.sends(), [""; 0]);
    b.write_arrives(Opcode::RcWriteOnly, 100, &[0; 8], reth(8));
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 101 msn=2 [256]",
            "ReadResponseMiddle 102 [256]",
            "ReadResponseLast 103 msn=2 [88]",
            "AtomicAcknowledge 104 msn=3 original=0",
        ]
    );
    assert_eq!(tells(&mut b), (105, vec![]));
}

#[test]
fn only_what_is_missing_is_sent_again_and_once_in_a_round_trip() {
    let mut b = selective();
    b.post(WRITE, 256 * 6);
    assert_eq!(b.sends().len(), 6);
    told(&mut b, 0xff_ffff, &[(0xff_ffff, 2), (2, 1)]);
    let again = [
        "WriteMiddle 16777215 [256]",
        "WriteMiddle 0 [256]",
        "WriteMiddle 2 A [256]",
    ];
    assert_eq!(b.sends(), again);
    assert_eq!(b.counted(Counter::Retransmits), 3);
    // Said before they came.
    pass(&mut b, RTT / 4);
    told(&mut b, 0xff_ffff, &[(0xff_ffff, 2), (2, 1)]);
    assert_eq!(b.sends(), [""; 0]);
    // One was lost again.
    pass(&mut b, RTT);
    told(&mut b, 2, &[(2, 1)]);
    assert_eq!(b.sends(), ["WriteMiddle 2 A [256]"]);
    told(&mut b, 4, &[]);
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn what_is_lost_again_comes_again_as_soon_as_that_is_seen() {
    let mut b = selective();
    b.post(WRITE, 5 * 256);
    b.sends();
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1), (0, 2)]);
    let again = [
        "WriteFirst 16777214 va=0x1000+1280 [256]",
        "WriteMiddle 0 [256]",
        "WriteMiddle 1 A [256]",
    ];
    assert_eq!(b.sends(), again);
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1), (0, 2)]);
    assert_eq!(b.sends(), [""; 0], "it was said before they came");
    pass(&mut b, RTT / 16);
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1), (1, 1)]);
    assert_eq!(b.sends(), [""; 0], "it came before that was sent again");
    pass(&mut b, RTT / 4);
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1), (1, 1)]);
    let first = "WriteFirst 16777214 A va=0x1000+1280 [256]";
    assert_eq!(b.sends(), [first], "the one after it has come");
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1)]);
    assert_eq!(b.sends(), [""; 0], "no later one has come");
}

#[test]
fn retransmissions_precede_new_packets_even_with_a_full_window() {
    let mut b = selective();
    b.post(WRITE, 512);
    b.sends();
    b.post(WRITE, 8);
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1)]);
    b.credit = 0;
    assert_eq!(
        b.sends(),
        ["WriteFirst 16777214 A va=0x1000+512 [256]"],
        "it is under way already"
    );
    b.credit = 4096;
    assert_eq!(b.sends(), ["WriteOnly 0 A va=0x1000+8 [8]"]);
}

#[test]
fn a_lost_read_request_is_one_packet_again() {
    let mut b = selective();
    let read = Operation::Read {
        va: REGION_VA,
        rkey: RKEY,
    };
    b.post(read, 600);
    b.post(WRITE, 8);
    assert_eq!(b.sends().len(), 2);
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 3)]);
    assert_eq!(b.sends(), ["ReadRequest 16777214 A va=0x1000+600"]);
}

#[test]
fn after_silence_the_last_packet_is_sent_as_a_probe() {
    let mut b = selective();
    b.post(WRITE, 512);
    b.sends();
    told(&mut b, 0xff_fffe, &[]);
    for _ in 0..2 {
        b.next_timer();
        assert_eq!(b.sends(), ["WriteLast 16777215 A [256]"]);
    }
    assert_eq!(b.counted(Counter::Timeouts), 0);
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1)]);
    assert_eq!(b.sends(), ["WriteFirst 16777214 A va=0x1000+512 [256]"]);
    told(&mut b, 0, &[]);
    assert_eq!(b.log(), ["send 0 Success"]);
}

#[test]
fn a_timeout_shorter_than_a_report_does_not_expire() {
    let mut b = selective();
    b.modify(QpState::SendQueueDrain);
    let short = QpAttributes {
        timeout: 1,
        ..attributes()
    };
    b.qp.modify(&short, AttrMask::TIMEOUT, &mut b.host).unwrap();
    b.modify(QpState::ReadyToSend);
    b.post(WRITE, 8);
    b.sends();
    pass(&mut b, Duration::from_millis(20));
    b.qp.handle_timeout(b.now, &mut b.host);
    assert_eq!(b.counted(Counter::Timeouts), 0);
    told(&mut b, 0xff_ffff, &[]);
    assert_eq!(b.log(), ["send 0 Success"]);
}

#[test]
fn a_dead_peer_is_given_up() {
    let mut b = selective();
    b.post(WRITE, 8);
    for _ in 0..1000 {
        b.sends();
        if b.qp.poll_timeout().is_none() {
            break;
        }
        b.next_timer();
    }
    assert_eq!(b.log(), ["send 0 RetryExceeded"]);
    assert_eq!(b.counted(Counter::Timeouts), 48, "retry_count is 2");
}

#[test]
fn what_a_hostile_peer_says_changes_nothing() {
    let mut b = selective();
    b.post(WRITE, 256 * 6);
    b.sends();
    // Beyond what was sent, before what is acknowledged, and ranges without end.
    told(&mut b, 5, &[]);
    told(&mut b, 0xff_fff0, &[(0xff_fffe, 1)]);
    told(&mut b, 0x80_0000, &[]);
    assert_eq!(b.sends(), [""; 0]);
    told(
        &mut b,
        0xff_fffe,
        &[(3, u32::MAX), (4, 7), (0x7f_0000, u32::MAX), (3, 1)],
    );
    assert_eq!(b.sends(), ["WriteLast 3 A [256]"]);
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
}

#[test]
fn memory_that_vanished_before_the_repetition_fails_its_request() {
    let mut b = selective();
    b.post(WRITE, 512);
    b.sends();
    b.host.local_fault = true;
    told(&mut b, 0xff_fffe, &[(0xff_fffe, 1)]);
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), ["send 0 LocalProtectionError"]);
}

#[test]
fn a_peer_without_selective_repeat_gets_acks_and_naks_again() {
    let mut b = selective();
    for i in 0..3 {
        b.post_receive(i, 8);
    }
    b.arrives(Opcode::RcSendOnly, 101, &[1; 8], |_| {});
    b.qp.set_selective(None);
    b.arrives(Opcode::RcSendOnly, 102, &[2; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 NAK PsnSequenceError"]);
    for i in 0..3 {
        b.arrives(Opcode::RcSendOnly, 100 + i, &[i as u8; 8], |_| {});
    }
    assert_eq!(b.sends(), ["Acknowledge 102 msn=3"]);
    assert_eq!(b.log().len(), 3);
}

pub struct Dice(pub u64);

impl Dice {
    /// Below `n`.
    pub fn roll(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }
}

/// PSNs of the left bench start where the right one's do not.
pub fn shift(bytes: &mut [u8], by: u32) {
    let psn = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
    bytes[9..12].copy_from_slice(&Psn::new(psn.wrapping_add(by)).get().to_be_bytes()[1..]);
}

#[test]
fn links_that_lose_and_repeat_deliver_once_and_in_order() {
    const TO_RIGHT: u32 = 102;
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let mut left = selective();
        let mut right = selective();
        let memory = ReorderMemory::new(20_000);
        right.qp.set_selective(None);
        right.qp.set_selective(Some(&memory));
        let mut wire: Vec<Vec<u8>> = Vec::new();
        let mut sent = Vec::new();
        let mut lost = 0;
        for round in 0..4_000_u64 {
            if sent.len() < 40 && dice.roll(3) == 0 {
                let length = dice.roll(2_000) as u32;
                let is_send = dice.roll(2) == 0;
                left.post(if is_send { Operation::Send } else { WRITE }, length);
                if is_send {
                    right.post_receive(sent.len() as u64, 2_000);
                }
                sent.push((is_send, length));
            }
            while let Some(mut bytes) = left.sends_bytes() {
                shift(&mut bytes, TO_RIGHT);
                match dice.roll(20) {
                    0 => lost += 1,
                    1 => wire.extend([bytes.clone(), bytes]),
                    2 if !wire.is_empty() => {
                        let at = dice.roll(wire.len() as u64) as usize;
                        wire.insert(at, bytes);
                    }
                    _ => wire.push(bytes),
                }
            }
            for bytes in wire.drain(..) {
                right.bytes_arrive(&bytes);
            }
            for mut bytes in std::iter::from_fn(|| right.sends_bytes()) {
                shift(&mut bytes, TO_RIGHT.wrapping_neg());
                left.bytes_arrive(&bytes);
            }
            if round % 3 == 0 && right.qp.owes_acknowledgement().is_some() {
                let (expected, missing) = tells(&mut right);
                let back = |psn: u32| Psn::new(psn.wrapping_sub(TO_RIGHT)).get();
                let missing: Vec<_> = missing.iter().map(|&(psn, n)| (back(psn), n)).collect();
                if dice.roll(10) > 0 {
                    told(&mut left, back(expected), &missing);
                }
            }
            for bench in [&mut left, &mut right] {
                pass(bench, RTT / 8);
                if bench.qp.poll_timeout().is_some_and(|at| at <= bench.now) {
                    bench.qp.handle_timeout(bench.now, &mut bench.host);
                }
            }
            if sent.len() == 40 && left.host.log.len() == 40 {
                break;
            }
        }
        let expected: Vec<String> = (0..40).map(|i| format!("send {i} Success")).collect();
        assert_eq!(left.log(), expected, "seed {seed}");
        let sends = sent.iter().enumerate().filter(|(_, (is_send, _))| *is_send);
        let received: Vec<String> = sends
            .map(|(i, (_, length))| format!("recv {i} Success {length}"))
            .collect();
        let log = right.log();
        let log: Vec<&String> = log.iter().filter(|line| line.starts_with("recv")).collect();
        assert_eq!(log, received.iter().collect::<Vec<_>>(), "seed {seed}");
        for (i, (is_send, length)) in sent.iter().enumerate() {
            if *is_send && *length > 0 {
                let message = &left.host.messages[&(i as u32)];
                assert_eq!(&right.host.received[&(i as u32)], message, "seed {seed}");
            }
        }
        assert_eq!(memory.left(), 20_000, "seed {seed}");
        assert!(
            left.counted(Counter::Retransmits) <= 3 * lost + 40,
            "seed {seed}: {lost} lost, {} sent again",
            left.counted(Counter::Retransmits)
        );
    }
}

#[test]
fn buffered_packets_are_freed_when_execution_ends() {
    let ends: [fn(&mut Bench); 2] = [|b| b.modify(QpState::Error), |b| b.modify(QpState::Reset)];
    for end in ends {
        let mut b = Bench::connected();
        let memory = ReorderMemory::new(1 << 20);
        b.qp.set_selective(Some(&memory));
        for psn in 101..110 {
            b.arrives(Opcode::RcSendOnly, psn, &[1; 8], |_| {});
        }
        assert!(memory.left() < (1 << 20) - 9 * 8);
        end(&mut b);
        assert_eq!(memory.left(), 1 << 20);
        b.arrives(Opcode::RcSendOnly, 111, &[1; 8], |_| {});
        assert_eq!(memory.left(), 1 << 20);
    }
}

#[test]
fn what_is_missed_is_counted_once() {
    let mut b = selective();
    b.arrives(Opcode::RcSendOnly, 103, &[1; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 102, &[1; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 104, &[1; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 107, &[1; 8], |_| {});
    assert_eq!(b.qp.take_missed(), 3 + 2);
    assert_eq!(b.qp.take_missed(), 0);
}

#[test]
fn what_was_told_before_an_answer_that_comes_late_is_taken_then() {
    let mut b = selective();
    let (va, rkey) = (REGION_VA, RKEY);
    b.post(Operation::Read { va, rkey }, 8);
    b.post(Operation::Send, 8);
    assert_eq!(b.sends().len(), 2);
    told(&mut b, 0, &[]);
    assert_eq!(b.log(), [""; 0], "the READ has no answer");
    b.arrives(Opcode::RcReadResponseOnly, 0xff_fffe, &[7; 8], |headers| {
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 1,
        });
    });
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}
