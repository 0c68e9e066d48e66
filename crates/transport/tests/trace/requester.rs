//! What a connected queue pair sends, and how it takes the answers.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
const WRITE: Operation = Operation::Write {
    va: 0x9000,
    rkey: Rkey(5),
};
const READ: Operation = Operation::Read {
    va: 0x9000,
    rkey: Rkey(5),
};

/// The bench's first PSN is 0xfffffe.
const P0: u32 = 0xff_fffe;
const P1: u32 = 0xff_ffff;

#[test]
fn a_message_is_cut_at_the_path_mtu_and_psns_wrap_around() {
    let mut b = Bench::connected();
    b.post(WRITE, 600);
    assert_eq!(
        b.sends(),
        [
            "WriteFirst 16777214 va=0x9000+600 [256]",
            "WriteMiddle 16777215 [256]",
            "WriteLast 0 A [88]"
        ]
    );
    b.acknowledged(0, ACK);
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(b.qp.poll_timeout(), None);
    assert_eq!(b.qp.in_flight_bytes(), 0);
}

#[test]
fn an_empty_message_is_one_packet_and_padding_is_zero() {
    let mut b = Bench::connected();
    b.post(Operation::Send, 0);
    b.post(Operation::SendImm([1, 2, 3, 4]), 1);
    assert_eq!(b.sends_one().unwrap(), "SendOnly 16777214 A");
    let bytes = b.sends_bytes().unwrap();
    assert_eq!(bytes.len(), 12 + 4 + 4);
    assert_eq!(bytes[17..], [0, 0, 0]);
}

#[test]
fn one_acknowledgement_retires_all_before_it() {
    let mut b = Bench::connected();
    b.post_with(Operation::Send, 8, |r| r.signalled = false);
    b.post(Operation::Send, 8);
    b.post(Operation::Send, 8);
    assert_eq!(
        b.sends(),
        [
            "SendOnly 16777214 [8]",
            "SendOnly 16777215 A [8]",
            "SendOnly 0 A [8]"
        ]
    );
    b.acknowledged(P1, ACK);
    assert_eq!(b.log(), ["retire slot 0", "send 1 Success"]);
}

#[test]
fn the_last_posted_request_asks_for_an_answer_even_unsignalled() {
    let mut b = Bench::connected();
    b.post_with(Operation::Send, 8, |r| r.signalled = false);
    assert_eq!(b.sends(), ["SendOnly 16777214 A [8]"]);
}

#[test]
fn a_sequence_nak_rewinds_once_to_the_gap() {
    let mut b = Bench::connected();
    b.post(WRITE, 600);
    b.sends();
    b.acknowledged(P1, GAP);
    b.acknowledged(P1, GAP);
    assert_eq!(
        b.sends(),
        ["WriteMiddle 16777215 [256]", "WriteLast 0 A [88]"]
    );
    assert_eq!(b.counted(Counter::Retransmits), 2);
    assert_eq!(b.qp.take_loss(), Some(Loss::Gap));
    b.acknowledged(P1, GAP);
    assert_eq!(b.sends(), [""; 0]);
    b.acknowledged(0, ACK);
    assert_eq!(b.log(), ["send 0 Success"]);
}

#[test]
fn each_refusal_has_its_status_and_ends_the_connection() {
    let refusals = [
        (NakCode::InvalidRequest, "send 1 RemoteInvalidRequest"),
        (NakCode::RemoteAccessError, "send 1 RemoteAccessError"),
        (
            NakCode::RemoteOperationalError,
            "send 1 RemoteOperationError",
        ),
    ];
    for (code, failed) in refusals {
        let mut b = Bench::connected();
        for _ in 0..3 {
            b.post(WRITE, 8);
        }
        b.sends();
        b.acknowledged(P1, Syndrome::Nak(code));
        assert_eq!(b.log(), ["send 0 Success", failed, "send 2 WrFlushError"]);
        b.post(WRITE, 8);
        assert_eq!(b.log(), ["send 3 WrFlushError"]);
        assert_eq!(b.sends(), [""; 0]);
    }
}

fn response(b: &mut Bench, opcode: Opcode, psn: u32, payload: &[u8]) {
    b.arrives(opcode, psn, payload, |h| {
        h.bth.ack_request = false;
        if opcode.has_aeth() {
            h.aeth = Some(Aeth {
                syndrome: ACK,
                msn: 0,
            });
        }
    });
}

#[test]
fn a_read_places_its_responses_and_resumes_after_a_gap() {
    let mut b = Bench::connected();
    b.post(READ, 600);
    assert_eq!(b.sends(), ["ReadRequest 16777214 A va=0x9000+600"]);
    response(&mut b, Opcode::RcReadResponseFirst, P0, &[1; 256]);
    response(&mut b, Opcode::RcReadResponseLast, 0, &[3; 88]);
    assert_eq!(b.sends(), ["ReadRequest 16777215 A va=0x9100+344"]);
    assert_eq!(b.counted(Counter::ImpliedNaks), 1);
    response(&mut b, Opcode::RcReadResponseFirst, P1, &[2; 256]);
    response(&mut b, Opcode::RcReadResponseLast, 0, &[3; 88]);
    assert_eq!(b.log(), ["send 0 Success"]);
    let expected = [[1; 256].as_slice(), &[2; 256], &[3; 88]].concat();
    assert_eq!(b.host.messages[&0], expected);
}

#[test]
fn an_acknowledgement_beyond_a_read_shows_a_lost_response() {
    let mut b = Bench::connected();
    b.post(READ, 8);
    b.post(Operation::Send, 8);
    b.sends();
    b.acknowledged(P1, ACK);
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 A va=0x9000+8",
            "SendOnly 16777215 A [8]"
        ]
    );
    response(&mut b, Opcode::RcReadResponseOnly, P0, &[1; 8]);
    b.acknowledged(P1, ACK);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn reads_in_flight_are_bounded_and_a_fence_waits_for_them() {
    let mut b = Bench::connected();
    for _ in 0..3 {
        b.post(READ, 8);
    }
    b.post_with(Operation::Send, 8, |r| r.fence = true);
    assert_eq!(b.sends().len(), 2);
    response(&mut b, Opcode::RcReadResponseOnly, P0, &[1; 8]);
    assert_eq!(b.sends(), ["ReadRequest 0 A va=0x9000+8"]);
    response(&mut b, Opcode::RcReadResponseOnly, P1, &[1; 8]);
    assert_eq!(b.sends(), [""; 0]);
    response(&mut b, Opcode::RcReadResponseOnly, 0, &[1; 8]);
    assert_eq!(b.sends(), ["SendOnly 1 A [8]"]);
}

#[test]
fn a_long_read_is_asked_for_in_pieces() {
    let mut b = Bench::connected();
    b.post(READ, 100_000);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 A va=0x9000+65536",
            "ReadRequest 254 A va=0x19000+34464"
        ]
    );
}

#[test]
fn an_atomic_returns_the_original_value() {
    let mut b = Bench::connected();
    b.post(
        Operation::FetchAdd {
            va: 0x9000,
            rkey: Rkey(5),
            add: 3,
        },
        8,
    );
    assert_eq!(b.sends(), ["FetchAdd 16777214 A"]);
    b.arrives(Opcode::RcAtomicAcknowledge, P0, &[], |h| {
        h.aeth = Some(Aeth {
            syndrome: ACK,
            msn: 1,
        });
        h.atomic_ack = Some(0x1234);
    });
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(b.host.messages[&0], 0x1234u64.to_ne_bytes());
}

#[test]
fn a_response_of_the_wrong_kind_or_size_is_a_bad_response() {
    let mut b = Bench::connected();
    b.post(READ, 8);
    b.sends();
    response(&mut b, Opcode::RcReadResponseOnly, P0, &[1; 9]);
    assert_eq!(b.log(), ["send 0 BadResponse"]);

    let mut b = Bench::connected();
    b.post(Operation::Send, 8);
    b.sends();
    response(&mut b, Opcode::RcReadResponseOnly, P0, &[1; 8]);
    assert_eq!(b.log(), ["send 0 BadResponse"]);

    let add = Operation::FetchAdd {
        va: 0x9000,
        rkey: Rkey(5),
        add: 3,
    };
    let mut b = Bench::connected();
    b.post(add, 8);
    b.sends();
    response(&mut b, Opcode::RcReadResponseOnly, P0, &[]);
    assert_eq!(b.log(), ["send 0 BadResponse"]);

    let mut b = Bench::connected();
    b.post(READ, 0);
    b.sends();
    b.arrives(Opcode::RcAtomicAcknowledge, P0, &[], |h| {
        h.aeth = Some(Aeth {
            syndrome: ACK,
            msn: 1,
        });
        h.atomic_ack = Some(0x1234);
    });
    assert_eq!(b.log(), ["send 0 BadResponse"]);
}

#[test]
fn answers_to_what_was_never_sent_and_stale_ones_change_nothing() {
    let mut b = Bench::connected();
    b.post(Operation::Send, 8);
    b.sends();
    b.acknowledged(P1, ACK);
    assert_eq!(b.counted(Counter::DropGhost), 1);
    b.acknowledged(P0 - 1, ACK);
    b.acknowledged(P0 - 1, Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!(b.counted(Counter::Duplicates), 2);
    b.acknowledged(P0, Syndrome::Reserved(0x40));
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
    b.acknowledged(P0, ACK);
    assert_eq!(b.log(), ["send 0 Success"]);
}

#[test]
fn an_answer_is_requested_before_the_window_closes() {
    let mut b = Bench::connected();
    b.post(WRITE, 1280);
    b.credit = 1800;
    assert_eq!(
        b.sends_one().unwrap(),
        "WriteFirst 16777214 va=0x9000+1280 [256]"
    );
    // 1288 bytes are left after this packet; 512 unasked ones are more than a quarter of that.
    b.credit = 1544;
    assert_eq!(b.sends_one().unwrap(), "WriteMiddle 16777215 A [256]");
    b.credit = 0;
    assert_eq!(b.sends_one(), None);
    assert_eq!(b.qp.in_flight_bytes(), 512);
}

#[test]
fn small_packets_count_as_much_of_the_window_as_large_ones() {
    let mut b = Bench::connected();
    for _ in 0..3 {
        b.post_with(WRITE, 8, |r| r.signalled = false);
    }
    b.credit = 1800;
    assert_eq!(b.sends_one().unwrap(), "WriteOnly 16777214 va=0x9000+8 [8]");
    b.credit = 1544;
    assert_eq!(
        b.sends_one().unwrap(),
        "WriteOnly 16777215 A va=0x9000+8 [8]"
    );
}

#[test]
fn local_memory_that_is_gone_fails_the_request() {
    let mut b = Bench::connected();
    b.post(WRITE, 8);
    b.post(WRITE, 8);
    b.host.local_fault = true;
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(
        b.log(),
        ["send 0 LocalProtectionError", "send 1 WrFlushError"]
    );
}

#[test]
fn a_request_that_cannot_be_sent_lets_the_earlier_ones_complete() {
    let mut b = Bench::connected();
    b.post_with(WRITE, 8, |r| r.signalled = false);
    b.post(WRITE, 8);
    b.post(WRITE, 8);
    assert_eq!(b.sends_one().unwrap(), "WriteOnly 16777214 va=0x9000+8 [8]");
    b.host.faulty = Some(1);
    // The first packet did not ask; now its answer is needed.
    assert_eq!(b.sends(), ["WriteOnly 16777214 A va=0x9000+8 [8]"]);
    assert_eq!(b.log(), [""; 0]);
    b.acknowledged(P0, ACK);
    assert_eq!(
        b.log(),
        [
            "retire slot 0",
            "send 1 LocalProtectionError",
            "send 2 WrFlushError"
        ]
    );
    assert_eq!(b.qp.state(), QpState::Error);
}

#[test]
fn an_earlier_request_without_memory_fails_instead() {
    let mut b = Bench::connected();
    b.post_with(WRITE, 8, |r| r.signalled = false);
    b.post(WRITE, 8);
    assert_eq!(b.sends_one().unwrap(), "WriteOnly 16777214 va=0x9000+8 [8]");
    b.host.local_fault = true;
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(
        b.log(),
        ["send 0 LocalProtectionError", "send 1 WrFlushError"]
    );
}

#[test]
fn a_late_acknowledgement_does_not_fail_the_next_request() {
    let mut b = Bench::connected();
    b.post_with(WRITE, 8, |r| r.signalled = false);
    b.post_with(WRITE, 8, |r| r.signalled = false);
    let va = REGION_VA;
    b.post(Operation::AtomicWrite { va, rkey: RKEY }, 4);
    b.sends_one().unwrap();
    b.sends_one().unwrap();
    b.host.local_fault = true;
    assert_eq!(b.sends(), [""; 0]);
    b.acknowledged(0xff_ffff, Syndrome::Ack { credits: 31 });
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(
        b.log(),
        ["retire slot 0", "retire slot 1", "send 2 LocalLengthError"]
    );
}

/// Without a packet, the caller assumes that the path has no room, and waits for an answer that
/// will not come.
#[test]
fn unasked_packets_are_asked_about_when_nothing_can_follow() {
    let asked = [
        "WriteOnly 16777214 va=0x9000+8 [8]",
        "WriteOnly 16777214 A va=0x9000+8 [8]",
    ];
    let mut b = Bench::connected();
    b.post_with(WRITE, 8, |r| r.signalled = false);
    b.post(WRITE, 8);
    b.host.faulty = Some(1);
    let sent = [b.sends_one().unwrap(), b.sends_one().unwrap()];
    assert_eq!(sent, asked);
    b.acknowledged(P0, ACK);
    assert_eq!(b.log(), ["retire slot 0", "send 1 LocalProtectionError"]);

    // An atomic write is of eight bytes.
    let mut b = Bench::connected();
    b.post_with(WRITE, 8, |r| r.signalled = false);
    let (va, rkey) = (0x9000, Rkey(5));
    b.post(Operation::AtomicWrite { va, rkey }, 4);
    let sent = [b.sends_one().unwrap(), b.sends_one().unwrap()];
    assert_eq!(sent, asked);
    assert_eq!(b.sends_one(), None);
    b.acknowledged(P0, ACK);
    assert_eq!(b.log(), ["retire slot 0", "send 1 LocalLengthError"]);
}

#[test]
fn a_drain_whose_question_cannot_be_asked_fails_the_request() {
    let mut b = Bench::connected();
    b.post_with(WRITE, 8, |r| r.signalled = false);
    b.post(WRITE, 8);
    assert_eq!(b.sends_one().unwrap(), "WriteOnly 16777214 va=0x9000+8 [8]");
    let drain = QpAttributes {
        state: QpState::SendQueueDrain,
        ..attributes()
    };
    b.qp.modify(&drain, AttrMask::STATE, &mut b.host).unwrap();
    b.host.local_fault = true;
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(
        b.log(),
        ["send 0 LocalProtectionError", "send 1 WrFlushError"]
    );
}

#[test]
fn a_drain_finishes_what_was_begun_and_holds_the_rest() {
    let mut b = Bench::connected();
    b.post(WRITE, 8);
    b.sends();
    let drain = QpAttributes {
        state: QpState::SendQueueDrain,
        en_sqd_async_notify: true,
        ..attributes()
    };
    b.qp.modify(
        &drain,
        AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY,
        &mut b.host,
    )
    .unwrap();
    assert!(b.qp.attributes().sq_draining);
    b.post(WRITE, 8);
    assert_eq!(b.sends(), [""; 0]);
    b.acknowledged(P0, ACK);
    assert_eq!(b.log(), ["send 0 Success", "event SendQueueDrained"]);
    assert!(!b.qp.attributes().sq_draining);
    b.modify(QpState::ReadyToSend);
    assert!(!b.qp.attributes().sq_draining);
    assert_eq!(b.sends(), ["WriteOnly 16777215 A va=0x9000+8 [8]"]);
}

fn drain_with_event(b: &mut Bench) {
    let drain = QpAttributes {
        state: QpState::SendQueueDrain,
        en_sqd_async_notify: true,
        ..attributes()
    };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    b.qp.modify(&drain, mask, &mut b.host).unwrap();
}

#[test]
fn a_drain_is_not_over_in_the_middle_of_a_message() {
    let mut b = Bench::connected();
    b.post(WRITE, 600);
    b.credit = 600;
    assert_eq!(
        b.sends_one().unwrap(),
        "WriteFirst 16777214 A va=0x9000+600 [256]"
    );
    drain_with_event(&mut b);
    b.acknowledged(P0, ACK);
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(
        b.sends(),
        ["WriteMiddle 16777215 A [256]", "WriteLast 0 A [88]"]
    );
    b.acknowledged(0, ACK);
    assert_eq!(b.log(), ["send 0 Success", "event SendQueueDrained"]);
}

#[test]
fn a_shrinking_window_makes_the_sender_ask() {
    let mut b = Bench::connected();
    b.post(WRITE, 1024);
    assert_eq!(
        b.sends_one().unwrap(),
        "WriteFirst 16777214 va=0x9000+1024 [256]"
    );
    assert_eq!(b.sends_one().unwrap(), "WriteMiddle 16777215 [256]");
    b.credit = 0;
    assert_eq!(b.sends(), ["WriteMiddle 16777215 A [256]"]);
    b.acknowledged(P1, ACK);
    b.credit = u32::MAX;
    assert_eq!(b.sends(), ["WriteMiddle 0 [256]", "WriteLast 1 A [256]"]);
}

#[test]
fn the_error_state_flushes_in_order_and_reset_forgets() {
    let mut b = Bench::connected();
    b.post_with(WRITE, 8, |r| r.signalled = false);
    b.post(WRITE, 8);
    b.post_receive(3, 8);
    b.sends();
    b.modify(QpState::Error);
    assert_eq!(
        b.log(),
        [
            "send 0 WrFlushError",
            "send 1 WrFlushError",
            "recv 3 WrFlushError 0"
        ]
    );
    b.acknowledged(P1, ACK);
    assert_eq!(b.counted(Counter::DropBadState), 1);
    b.modify(QpState::Reset);
    assert_eq!(*b.qp.attributes(), QpAttributes::default());
    assert_eq!(b.log(), [""; 0]);
}

#[test]
fn an_empty_message_needs_no_memory() {
    for mut b in [Bench::connected(), Bench::unreliable()] {
        b.host.local_fault = true;
        b.post(Operation::Send, 0);
        b.post(WRITE, 0);
        assert_eq!(b.sends().len(), 2);
        assert_eq!(b.qp.state(), QpState::ReadyToSend);
    }
}

#[test]
fn attributes_are_those_that_were_set_last() {
    let mut b = Bench::connected();
    let was = *b.qp.attributes();
    assert_eq!(was.state, QpState::ReadyToSend);
    assert_eq!(was.cur_state, QpState::ReadyToSend);
    assert_eq!(was.sq_psn, attributes().sq_psn);
    assert_eq!(was.rq_psn, attributes().rq_psn);
    assert_eq!(was.dest_qpn, attributes().dest_qpn);
    assert_eq!(was.timeout, attributes().timeout);
    let new = QpAttributes {
        min_rnr_timer: 3,
        access: Access::REMOTE_READ,
        ..QpAttributes::default()
    };
    b.qp.modify(&new, AttrMask::MIN_RNR_TIMER, &mut b.host)
        .unwrap();
    let expected = QpAttributes {
        min_rnr_timer: 3,
        ..was
    };
    assert_eq!(*b.qp.attributes(), expected);
}

#[test]
fn nothing_is_sent_and_no_answer_taken_before_the_state_says_so() {
    let ways = [
        AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN,
    ];
    let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    for (qp_type, more) in [(QpType::Rc, answers), (QpType::Uc, AttrMask::empty())] {
        let mut b = Bench::reset(qp_type);
        for (state, mask) in [
            (QpState::Init, ways[0]),
            (QpState::ReadyToReceive, ways[1] | more),
        ] {
            let new = QpAttributes {
                state,
                ..attributes()
            };
            b.qp.modify(&new, mask | AttrMask::STATE, &mut b.host)
                .unwrap();
        }
        b.post(Operation::Send, 8);
        assert!(!b.qp.wants_transmit());
        assert_eq!(b.sends(), [""; 0]);
        assert_eq!(b.log(), [""; 0]);
        if qp_type == QpType::Rc {
            b.acknowledged(P0, ACK);
            assert_eq!(b.counted(Counter::DropBadState), 1);
        }
    }
}

#[test]
fn much_unanswered_data_is_asked_about() {
    let mut b = Bench::connected();
    for i in 0..3000 {
        b.post(Operation::Send, 8);
        b.sends();
        b.acknowledged((P0 + i) & 0xff_ffff, ACK);
    }
    b.log();
    b.post(Operation::Send, 8);
    b.post(WRITE, 9000 * 256);
    let sent = b.sends();
    // No more than 8192 packets are in flight, and the last of them asks.
    assert_eq!(sent.len(), 8192);
    let asking: Vec<_> = (0..8192).filter(|&i| sent[i].contains(" A")).collect();
    let mut expected: Vec<_> = (0..8192).step_by(128).collect();
    expected.push(8191);
    assert_eq!(asking, expected);
}

#[test]
fn a_loss_is_signalled_once_and_an_rnr_nak_is_no_loss() {
    let mut b = Bench::connected();
    b.post(Operation::Send, 8);
    b.sends();
    assert_eq!(b.qp.take_loss(), None);
    b.acknowledged(P0, Syndrome::RnrNak { timer: 12 });
    assert_eq!(b.qp.take_loss(), None);
    b.next_timer();
    b.sends();
    b.next_timer();
    assert_eq!(b.qp.take_loss(), Some(Loss::Timeout));
    assert_eq!(b.qp.take_loss(), None);
    for mut b in [Bench::unreliable(), Bench::datagram()] {
        assert_eq!(b.qp.take_loss(), None);
    }
}

#[test]
fn completions_of_every_service_have_opcode_and_length() {
    for (mut b, opcode) in [
        (Bench::connected(), CompletionOpcode::Write),
        (Bench::unreliable(), CompletionOpcode::Write),
        (Bench::datagram(), CompletionOpcode::Send),
    ] {
        let writes = opcode == CompletionOpcode::Write;
        let operation = if writes { WRITE } else { Operation::Send };
        b.post_with(operation, 200, |r| {
            r.datagram = Some(Datagram {
                path: Path::default(),
                qpn: Qpn::new(0x33),
                qkey: QKEY,
            });
        });
        b.sends();
        b.acknowledged(P0, ACK);
        let completion = b.host.last_sent.unwrap();
        assert_eq!(completion.opcode, opcode);
        assert_eq!(completion.byte_len, 200);
        assert_eq!(completion.qpn, Qpn::new(QPN));
    }
}

#[test]
fn what_was_answered_unasked_is_not_asked_about() {
    let mut b = Bench::connected();
    b.post_with(Operation::Send, 8, |r| r.signalled = false);
    b.post(Operation::Send, 8);
    assert_eq!(b.sends_one().unwrap(), "SendOnly 16777214 [8]");
    b.acknowledged(P0, ACK);
    drain_with_event(&mut b);
    assert!(!b.qp.wants_transmit());
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), ["retire slot 0", "event SendQueueDrained"]);
}

/// Linux 6.1's rxe answers such a READ with nothing but the program's key when it comes again, that
/// of 6.12 with nothing but 0.
#[test]
fn a_repeated_empty_read_alternates_between_two_keys() {
    let mut b = Bench::connected();
    let patient = QpAttributes {
        retry_count: 4,
        ..attributes()
    };
    b.modify(QpState::SendQueueDrain);
    b.qp.modify(&patient, AttrMask::RETRY_CNT, &mut b.host)
        .unwrap();
    b.modify(QpState::ReadyToSend);
    let (va, rkey) = (REGION_VA, RKEY);
    for length in [0, 0] {
        b.post(Operation::Read { va, rkey }, length);
    }
    for first in [rkey, rkey, Rkey(0), rkey, Rkey(0)] {
        for key in [first, rkey] {
            let bytes = b.sends_bytes().unwrap();
            let reth = Packet::parse(&bytes).unwrap().headers.reth.unwrap();
            assert_eq!((reth.va, reth.rkey), (va, key));
        }
        b.next_timer();
    }
}
