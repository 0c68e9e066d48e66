//! What a connected queue pair answers to its peer's requests.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

fn reth(va: u64, length: u32) -> Option<Reth> {
    Some(Reth {
        va,
        rkey: RKEY,
        length,
    })
}

#[test]
fn a_send_of_three_packets_fills_one_receive_with_one_ack() {
    let mut b = Bench::connected();
    b.post_receive(9, 1000);
    b.arrives(Opcode::RcSendFirst, 100, &[1; 256], |_| {});
    b.arrives(Opcode::RcSendMiddle, 101, &[2; 256], |_| {});
    b.arrives(Opcode::RcSendLastImm, 102, &[3; 5], |h| {
        h.imm = Some(77u32.to_be_bytes())
    });
    assert_eq!(b.sends(), ["Acknowledge 102 msn=1"]);
    assert_eq!(b.log(), ["recv 9 Success 517 imm=77"]);
    let expected = [[1; 256].as_slice(), &[2; 256], &[3; 5]].concat();
    assert_eq!(b.host.received[&9], expected);
}

#[test]
fn acknowledgements_of_one_burst_are_merged() {
    let mut b = Bench::connected();
    for i in 0..3 {
        b.post_receive(i, 8);
        b.arrives(Opcode::RcSendOnly, 100 + i as u32, &[0; 8], |_| {});
    }
    assert_eq!(b.sends(), ["Acknowledge 102 msn=3"]);
}

#[test]
fn one_nak_for_a_gap_then_silence_until_it_is_filled() {
    let mut b = Bench::connected();
    for i in 0..3 {
        b.post_receive(i, 8);
    }
    b.arrives(Opcode::RcSendOnly, 101, &[0; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 102, &[0; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 NAK PsnSequenceError"]);
    b.arrives(Opcode::RcSendOnly, 103, &[0; 8], |_| {});
    assert_eq!(b.sends(), [""; 0]);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    b.arrives(Opcode::RcSendOnly, 102, &[0; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 101 NAK PsnSequenceError"]);
    assert_eq!(b.log(), ["recv 0 Success 8"]);
}

#[test]
fn a_duplicate_send_is_acknowledged_and_not_applied() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.post_receive(2, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[7; 8], |_| {});
    b.sends();
    b.arrives(Opcode::RcSendOnly, 100, &[9; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 msn=1"]);
    assert_eq!(b.log(), ["recv 1 Success 8"]);
    assert_eq!(b.host.received[&1], [7; 8]);
    assert_eq!(b.counted(Counter::Duplicates), 1);
}

#[test]
fn without_a_receive_the_peer_is_told_to_come_again() {
    let mut b = Bench::connected();
    b.arrives(Opcode::RcSendFirst, 100, &[1; 256], |_| {});
    b.arrives(Opcode::RcSendLast, 101, &[1; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 RNR timer=12"]);
    b.post_receive(1, 300);
    b.arrives(Opcode::RcSendFirst, 100, &[1; 256], |_| {});
    b.arrives(Opcode::RcSendLast, 101, &[1; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 101 msn=1"]);
    assert_eq!(b.log(), ["recv 1 Success 264"]);
}

#[test]
fn a_write_lands_where_it_should_and_nowhere_else() {
    let mut b = Bench::connected();
    let before = b.host.memory.clone();
    b.write_arrives(
        Opcode::RcWriteFirst,
        100,
        &[0xaa; 256],
        reth(REGION_VA + 8, 300),
    );
    b.write_arrives(Opcode::RcWriteLast, 101, &[0xbb; 44], None);
    assert_eq!(b.sends(), ["Acknowledge 101 msn=1"]);
    assert_eq!(b.host.memory[8..264], [0xaa; 256]);
    assert_eq!(b.host.memory[264..308], [0xbb; 44]);
    assert_eq!(b.host.memory[..8], before[..8]);
    assert_eq!(b.host.memory[308..], before[308..]);
    assert_eq!(b.log(), [""; 0]);
}

#[test]
fn a_write_with_immediate_needs_a_receive_at_its_last_packet() {
    let mut b = Bench::connected();
    let last = |h: &mut Headers| h.imm = Some([0, 0, 0, 5]);
    b.write_arrives(Opcode::RcWriteFirst, 100, &[1; 256], reth(REGION_VA, 260));
    b.arrives(Opcode::RcWriteLastImm, 101, &[1; 4], last);
    assert_eq!(b.sends(), ["Acknowledge 101 RNR timer=12"]);
    b.post_receive(3, 0);
    b.arrives(Opcode::RcWriteLastImm, 101, &[1; 4], last);
    assert_eq!(b.sends(), ["Acknowledge 101 msn=1"]);
    assert_eq!(b.log(), ["recv 3 Success 260 imm=5"]);
}

#[test]
fn a_read_is_answered_in_packets_of_the_path_mtu() {
    let mut b = Bench::connected();
    b.read_arrives(100, REGION_VA, 600);
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 100 msn=1 [256]",
            "ReadResponseMiddle 101 [256]",
            "ReadResponseLast 102 msn=1 [88]"
        ]
    );
    b.read_arrives(103, REGION_VA, 0);
    assert_eq!(b.sends(), ["ReadResponseOnly 103 msn=2"]);
}

#[test]
fn an_acknowledgement_waits_behind_an_earlier_read() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.read_arrives(100, REGION_VA, 300);
    b.arrives(Opcode::RcSendOnly, 102, &[0; 8], |_| {});
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 100 msn=1 [256]",
            "ReadResponseLast 101 msn=1 [44]",
            "Acknowledge 102 msn=2"
        ]
    );
}

#[test]
fn a_read_is_resumed_within_its_original_range_only() {
    let mut b = Bench::connected();
    b.read_arrives(100, REGION_VA, 600);
    b.sends();
    b.read_arrives(101, REGION_VA + 256, 344);
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 101 msn=1 [256]",
            "ReadResponseLast 102 msn=1 [88]"
        ]
    );
    b.read_arrives(101, REGION_VA + 256, 345);
    b.read_arrives(101, REGION_VA + 256, 256);
    b.read_arrives(101, REGION_VA + 255, 10);
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
}

#[test]
fn a_duplicate_read_keeps_the_order_of_answers() {
    let mut b = Bench::connected();
    b.read_arrives(100, REGION_VA, 300);
    b.read_arrives(102, REGION_VA, 10);
    assert_eq!(b.sends_one().unwrap(), "ReadResponseFirst 100 msn=1 [256]");
    b.read_arrives(100, REGION_VA, 300);
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 100 msn=2 [256]",
            "ReadResponseLast 101 msn=2 [44]",
            "ReadResponseOnly 102 msn=2 [10]"
        ]
    );
}

#[test]
fn a_repeated_read_is_not_one_more_in_flight() {
    let mut b = Bench::connected();
    for psn in [100, 101] {
        b.read_arrives(psn, REGION_VA, 8);
    }
    b.sends();
    // Both again, and with them two new ones: max_dest_rd_atomic = 2 holds for the new ones.
    for psn in [100, 101, 102, 103] {
        b.read_arrives(psn, REGION_VA, 8);
    }
    let lines = b.sends();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(lines[3], "ReadResponseOnly 103 msn=4 [8]");
}

/// The headers of a FETCH and ADD of 2 to the first word of the region.
fn adds_two(headers: &mut Headers) {
    headers.atomic_eth = Some(AtomicEth {
        va: REGION_VA,
        rkey: RKEY,
        swap_add: 2,
        compare: 0,
    });
}

#[test]
fn a_duplicate_atomic_is_replayed_not_executed() {
    let mut b = Bench::connected();
    b.host.memory[..8].copy_from_slice(&40u64.to_ne_bytes());
    b.arrives(Opcode::RcFetchAdd, 100, &[], adds_two);
    assert_eq!(b.sends(), ["AtomicAcknowledge 100 msn=1 original=40"]);
    b.arrives(Opcode::RcFetchAdd, 100, &[], adds_two);
    assert_eq!(b.sends(), ["AtomicAcknowledge 100 msn=1 original=40"]);
    assert_eq!(b.host.memory[..8], 42u64.to_ne_bytes());
    // Two more push the first out of the cache of max_dest_rd_atomic = 2: then it is not answered.
    b.arrives(Opcode::RcFetchAdd, 101, &[], adds_two);
    b.arrives(Opcode::RcFetchAdd, 102, &[], adds_two);
    b.sends();
    b.arrives(Opcode::RcFetchAdd, 100, &[], adds_two);
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.host.memory[..8], 46u64.to_ne_bytes());
}

/// The request, the NAK it gets and what is logged beside the flush.
fn refused(feed: impl FnOnce(&mut Bench), nak: &str, log: &[&str]) {
    let mut b = Bench::connected();
    b.post_receive(1, 100);
    b.post_receive(2, 100);
    let before = b.host.memory.clone();
    feed(&mut b);
    assert_eq!(b.sends(), [nak]);
    assert_eq!(b.log(), log);
    assert_eq!(b.qp.state(), QpState::Error);
    assert!(b.host.memory == before, "memory was touched");
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.counted(Counter::DropBadState), 1);
}

const FLUSHED: [&str; 3] = [
    "recv 1 WrFlushError 0",
    "recv 2 WrFlushError 0",
    "event RequestError",
];
const DENIED: [&str; 3] = [
    "recv 1 WrFlushError 0",
    "recv 2 WrFlushError 0",
    "event AccessError",
];

#[test]
fn a_message_longer_than_its_receive_is_refused() {
    refused(
        |b| b.arrives(Opcode::RcSendOnly, 100, &[0; 101], |_| {}),
        "Acknowledge 100 NAK InvalidRequest",
        &[
            "recv 1 LocalLengthError 0",
            "recv 2 WrFlushError 0",
            "event RequestError",
        ],
    );
}

#[test]
fn packets_out_of_sequence_or_of_wrong_size_are_refused() {
    let invalid = "Acknowledge 100 NAK InvalidRequest";
    refused(
        |b| b.arrives(Opcode::RcSendMiddle, 100, &[0; 256], |_| {}),
        invalid,
        &FLUSHED,
    );
    refused(
        |b| b.arrives(Opcode::RcSendFirst, 100, &[0; 255], |_| {}),
        invalid,
        &FLUSHED,
    );
    refused(
        |b| b.arrives(Opcode::RcSendOnly, 100, &[0; 257], |_| {}),
        invalid,
        &FLUSHED,
    );
    let only = Opcode::RcWriteOnly;
    refused(
        |b| b.write_arrives(only, 100, &[0; 8], reth(REGION_VA, 9)),
        invalid,
        &FLUSHED,
    );
    refused(
        |b| b.write_arrives(only, 100, &[0; 8], reth(REGION_VA, 7)),
        invalid,
        &FLUSHED,
    );
}

#[test]
fn keys_and_bounds_that_were_not_granted_are_refused() {
    let denied = "Acknowledge 100 NAK RemoteAccessError";
    let only = Opcode::RcWriteOnly;
    let end = REGION_VA + REGION_LEN as u64;
    refused(
        |b| b.write_arrives(only, 100, &[0; 8], reth(end - 7, 8)),
        denied,
        &DENIED,
    );
    refused(
        |b| b.write_arrives(only, 100, &[0; 8], reth(REGION_VA - 1, 8)),
        denied,
        &DENIED,
    );
    refused(
        |b| b.write_arrives(only, 100, &[0; 8], reth(u64::MAX - 3, 8)),
        denied,
        &DENIED,
    );
    refused(|b| b.read_arrives(100, end - 1, 2), denied, &DENIED);
    refused(
        |b| {
            let wrong = Some(Reth {
                va: REGION_VA,
                rkey: Rkey(8),
                length: 8,
            });
            b.write_arrives(only, 100, &[0; 8], wrong);
        },
        denied,
        &DENIED,
    );
    refused(
        |b| {
            b.arrives(Opcode::RcFetchAdd, 100, &[], |h| {
                h.atomic_eth = Some(AtomicEth {
                    va: end,
                    rkey: RKEY,
                    swap_add: 2,
                    compare: 0,
                });
            });
        },
        denied,
        &DENIED,
    );
}

#[test]
fn an_unaligned_atomic_is_an_invalid_request() {
    refused(
        |b| {
            b.arrives(Opcode::RcCompareSwap, 100, &[], |h| {
                h.atomic_eth = Some(AtomicEth {
                    va: REGION_VA + 4,
                    rkey: RKEY,
                    swap_add: 2,
                    compare: 0,
                });
            });
        },
        "Acknowledge 100 NAK InvalidRequest",
        &FLUSHED,
    );
}

#[test]
fn more_reads_than_agreed_are_refused() {
    refused(
        |b| {
            for i in 0..3 {
                b.read_arrives(100 + i, REGION_VA, 8);
            }
            assert_eq!(b.sends_one().unwrap(), "ReadResponseOnly 100 msn=1 [8]");
            assert_eq!(b.sends_one().unwrap(), "ReadResponseOnly 101 msn=2 [8]");
        },
        "Acknowledge 102 NAK InvalidRequest",
        &FLUSHED,
    );
}

#[test]
fn access_that_the_queue_pair_does_not_grant_is_refused() {
    let mut b = Bench::connected();
    let none = QpAttributes {
        access: Access::empty(),
        ..attributes()
    };
    b.qp.modify(&none, AttrMask::ACCESS_FLAGS, &mut b.host)
        .unwrap();
    b.read_arrives(100, REGION_VA, 8);
    assert_eq!(b.sends(), ["Acknowledge 100 NAK InvalidRequest"]);
    assert_eq!(b.log(), ["event RequestError"]);
}

#[test]
fn memory_that_goes_away_under_a_read_ends_it_with_a_nak() {
    let mut b = Bench::connected();
    b.read_arrives(100, REGION_VA, 600);
    assert_eq!(b.sends_one().unwrap(), "ReadResponseFirst 100 msn=1 [256]");
    b.host.granted = false;
    assert_eq!(b.sends(), ["Acknowledge 101 NAK RemoteAccessError"]);
    assert_eq!(b.log(), ["event AccessError"]);
    assert_eq!(b.qp.state(), QpState::Error);
}

#[test]
fn a_receive_whose_memory_is_gone_fails_on_both_sides() {
    let mut b = Bench::connected();
    b.post_receive(1, 100);
    b.host.local_fault = true;
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 NAK RemoteOperationalError"]);
    assert_eq!(b.log(), ["recv 1 LocalProtectionError 0", "event Fatal"]);
}

#[test]
fn requests_to_an_orphan_are_refused_each_time() {
    let mut b = Bench::connected();
    b.post_receive(1, 100);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    b.sends();
    b.modify(QpState::Error);
    b.log();
    b.arrives(Opcode::RcSendOnly, 101, &[0; 8], |_| {});
    assert_eq!(
        b.sends(),
        [""; 0],
        "its program may still read what was flushed"
    );
    b.qp.orphan();
    for psn in [101, 102, 101] {
        b.arrives(Opcode::RcSendOnly, psn, &[0; 8], |_| {});
        // The first that was not executed is refused, since a NAK acknowledges all before it.
        assert_eq!(b.sends(), ["Acknowledge 101 NAK RemoteOperationalError"]);
    }
    b.acknowledged(100, Syndrome::Ack { credits: 31 });
    assert_eq!(b.sends(), [""; 0], "answers are not answered");
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.counted(Counter::DropBadState), 5);
}

#[test]
fn packets_for_another_partition_or_service_are_dropped() {
    let mut b = Bench::connected();
    b.post_receive(1, 100);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |h| h.bth.pkey = 0x1234);
    assert_eq!(b.counted(Counter::DropBadPkey), 1);
    b.arrives(Opcode::UdSendOnly, 100, &[0; 8], |h| {
        h.deth = Some(Deth {
            qkey: QKEY,
            src_qpn: Qpn::new(1),
        });
    });
    assert_eq!(b.counted(Counter::DropMalformed), 1);
    b.modify(QpState::Reset);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.counted(Counter::DropBadState), 1);
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), [""; 0]);
}

#[test]
fn a_queue_pair_that_goes_says_once_more_what_arrived() {
    let mut b = Bench::connected();
    b.qp.repeat_last_ack();
    assert_eq!(b.sends(), [""; 0], "nothing arrived");
    let mut part = Bench::connected();
    part.post_receive(1, 1000);
    part.arrives(Opcode::RcSendFirst, 100, &[7; 256], |_| {});
    part.qp.repeat_last_ack();
    assert_eq!(part.sends(), [""; 0], "no whole message arrived");
    b.post_receive(1, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[7; 8], |_| {});
    b.qp.repeat_last_ack();
    assert_eq!(
        b.sends(),
        ["Acknowledge 100 msn=1"],
        "still owed, not twice"
    );
    b.read_arrives(101, REGION_VA, 300);
    b.qp.repeat_last_ack();
    assert_eq!(
        b.sends(),
        [
            "ReadResponseFirst 101 msn=2 [256]",
            "ReadResponseLast 102 msn=2 [44]",
            "Acknowledge 100 msn=2"
        ]
    );
    b.modify(QpState::Error);
    b.qp.repeat_last_ack();
    assert!(b.qp.wants_transmit());
    assert_eq!(b.sends(), ["Acknowledge 100 msn=2"]);
    b.modify(QpState::Reset);
    b.qp.repeat_last_ack();
    assert_eq!(b.sends(), [""; 0]);
    let mut b = Bench::unreliable();
    b.post_receive(1, 8);
    b.arrives(Opcode::UcSendOnly, 100, &[7; 8], |_| {});
    b.qp.repeat_last_ack();
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn a_repeated_read_of_memory_that_is_gone_is_not_answered() {
    let mut b = Bench::connected();
    b.read_arrives(100, REGION_VA, 8);
    b.read_arrives(101, REGION_VA, 0);
    assert_eq!(b.sends().len(), 2);
    b.host.granted = false;
    b.read_arrives(100, REGION_VA, 8);
    assert_eq!(b.sends(), [""; 0]);
    // One of nothing needs no memory.
    b.read_arrives(101, REGION_VA, 0);
    assert_eq!(b.sends(), ["ReadResponseOnly 101 msn=2"]);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
}

#[test]
fn empty_messages_need_no_memory() {
    let mut b = Bench::connected();
    b.post_receive(1, 0);
    b.host.local_fault = true;
    b.host.granted = false;
    b.arrives(Opcode::RcSendOnly, 100, &[], |_| {});
    b.write_arrives(Opcode::RcWriteOnly, 101, &[], reth(1, 0));
    b.read_arrives(102, 1, 0);
    assert_eq!(
        b.sends(),
        ["Acknowledge 101 msn=2", "ReadResponseOnly 102 msn=3"]
    );
    assert_eq!(b.log(), ["recv 1 Success 0"]);
    let mut b = Bench::unreliable();
    b.post_receive(1, 0);
    b.host.local_fault = true;
    b.host.granted = false;
    b.arrives(Opcode::UcSendOnly, 100, &[], |_| {});
    b.write_arrives(Opcode::UcWriteOnly, 101, &[], reth(1, 0));
    assert_eq!(b.log(), ["recv 1 Success 0"]);
    assert_eq!(b.counted(Counter::MessagesReceived), 2);
}

#[test]
fn answers_of_every_kind_wait_for_their_turn_together() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.host.memory[..8].copy_from_slice(&40u64.to_ne_bytes());
    b.arrives(Opcode::RcFetchAdd, 100, &[], adds_two);
    b.arrives(Opcode::RcFetchAdd, 101, &[], adds_two);
    b.arrives(Opcode::RcSendOnly, 102, &[0; 8], |_| {});
    // Repeated before they were answered: answered once.
    b.arrives(Opcode::RcFetchAdd, 100, &[], adds_two);
    b.arrives(Opcode::RcFetchAdd, 101, &[], adds_two);
    assert_eq!(
        b.sends(),
        [
            "AtomicAcknowledge 100 msn=1 original=40",
            "AtomicAcknowledge 101 msn=2 original=42",
            "Acknowledge 102 msn=3"
        ]
    );
}

#[test]
fn what_the_sender_marked_as_solicited_is_solicited() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.post_receive(2, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[9; 8], |h| h.bth.solicited = true);
    b.arrives(Opcode::RcWriteOnlyImm, 101, &[9; 8], |h| {
        h.bth.solicited = true;
        h.reth = reth(REGION_VA, 8);
        h.imm = Some([0, 0, 0, 5]);
    });
    assert_eq!(
        b.log(),
        [
            "recv 1 Success 8 solicited",
            "recv 2 Success 8 imm=5 solicited"
        ]
    );
}

#[test]
fn a_read_repeated_before_its_answer_is_still_in_flight() {
    refused(
        |b| {
            b.read_arrives(100, REGION_VA, 8);
            b.read_arrives(101, REGION_VA, 8);
            b.read_arrives(100, REGION_VA, 8);
            b.read_arrives(102, REGION_VA, 8);
            assert_eq!(b.sends_one().unwrap(), "ReadResponseOnly 100 msn=2 [8]");
            assert_eq!(b.sends_one().unwrap(), "ReadResponseOnly 101 msn=2 [8]");
        },
        "Acknowledge 102 NAK InvalidRequest",
        &FLUSHED,
    );
}

#[test]
fn an_answer_goes_before_the_acknowledgement_that_speaks_of_it() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.read_arrives(100, REGION_VA, 8);
    b.arrives(Opcode::RcSendOnly, 101, &[0; 8], |_| {});
    b.sends();
    // All of it was lost, and is sent again; the network changed the order. After the ACK, the peer
    // would take the READ's response for lost.
    b.arrives(Opcode::RcSendOnly, 101, &[0; 8], |_| {});
    b.read_arrives(100, REGION_VA, 8);
    assert_eq!(
        b.sends(),
        ["ReadResponseOnly 100 msn=2 [8]", "Acknowledge 101 msn=2"]
    );
}

/// Seen with rxe over a network that changes the order: the ACK came before the answer to the
/// atomic, and rxe completed the atomic without its result.
#[test]
fn a_repeated_acknowledgement_names_no_read_and_no_atomic() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    b.read_arrives(101, REGION_VA, 300);
    b.arrives(Opcode::RcFetchAdd, 103, &[], adds_two);
    b.sends();
    b.arrives(Opcode::RcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(b.sends(), ["Acknowledge 100 msn=3"]);
    b.qp.repeat_last_ack();
    assert_eq!(b.sends(), ["Acknowledge 100 msn=3"]);
    let mut b = Bench::connected();
    b.arrives(Opcode::RcFetchAdd, 100, &[], adds_two);
    b.sends();
    b.qp.repeat_last_ack();
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn nothing_else_arrives_in_the_middle_of_a_message() {
    for (first, middle, last) in [
        (
            Opcode::RcWriteFirst,
            Opcode::RcSendMiddle,
            Opcode::RcSendLast,
        ),
        (
            Opcode::RcSendFirst,
            Opcode::RcWriteMiddle,
            Opcode::RcWriteLast,
        ),
    ] {
        for opcode in [
            middle,
            last,
            Opcode::RcSendFirst,
            Opcode::RcSendOnly,
            Opcode::RcWriteFirst,
            Opcode::RcWriteOnly,
            Opcode::RcReadRequest,
            Opcode::RcFetchAdd,
            Opcode::RcAtomicWrite,
        ] {
            let mut b = Bench::connected();
            b.host.memory[..256].fill(0);
            b.post_receive(1, 600);
            b.arrives(first, 100, &[0; 256], |h| {
                h.reth = reth(REGION_VA, 512).filter(|_| first.has_reth());
            });
            let before = b.host.memory.clone();
            let asks = [Opcode::RcReadRequest, Opcode::RcFetchAdd].contains(&opcode);
            let payload: &[u8] = if asks {
                &[]
            } else if opcode == Opcode::RcAtomicWrite {
                &[7; 8]
            } else {
                &[7; 256]
            };
            b.arrives(opcode, 101, payload, |h| {
                let atomic = AtomicEth {
                    va: REGION_VA,
                    rkey: RKEY,
                    swap_add: 2,
                    compare: 0,
                };
                let length = 8.max(payload.len() as u32);
                h.reth = reth(REGION_VA, length).filter(|_| opcode.has_reth());
                h.atomic_eth = Some(atomic).filter(|_| opcode.has_atomic_eth());
            });
            let refused = "Acknowledge 101 NAK InvalidRequest";
            assert_eq!(b.sends(), [refused], "{opcode:?}");
            assert!(b.host.memory == before, "{opcode:?}");
        }
    }
}

#[test]
fn a_message_longer_than_any_is_invalid_whatever_the_key_opens() {
    let refusals = [
        (1 << 31, "Acknowledge 100 NAK InvalidRequest"),
        ((1 << 31) - 1, "Acknowledge 100 NAK RemoteAccessError"),
    ];
    for (length, nak) in refusals {
        let mut b = Bench::connected();
        b.write_arrives(
            Opcode::RcWriteFirst,
            100,
            &[0; 256],
            reth(REGION_VA, length),
        );
        assert_eq!(b.sends(), [nak]);
        let mut b = Bench::connected();
        b.read_arrives(100, REGION_VA, length);
        assert_eq!(b.sends(), [nak]);
    }
}

/// As airdma's requester repeats it without an answer: rxe answers one with a key or one without.
#[test]
fn a_repeated_read_of_nothing_is_answered_whatever_key_it_names() {
    let mut b = Bench::connected();
    b.read_arrives(100, REGION_VA, 0);
    assert_eq!(b.sends(), ["ReadResponseOnly 100 msn=1"]);
    b.arrives(Opcode::RcReadRequest, 100, &[], |headers| {
        headers.reth = Some(Reth {
            va: REGION_VA,
            rkey: Rkey(0),
            length: 0,
        });
    });
    assert_eq!(b.sends(), ["ReadResponseOnly 100 msn=1"]);
}
