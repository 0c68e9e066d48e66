//! The two halves of an extended connection (XRC): one sends, the other receives into the shared
//! queue that each message names.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const WRITE: Operation = Operation::Write {
    va: 0x9000,
    rkey: Rkey(5),
};

/// The bench's first PSN is 0xfffffe.
const P0: u32 = 0xff_fffe;

fn acknowledged(b: &mut Bench, psn: u32, syndrome: Syndrome) {
    b.arrives(Opcode::XrcAcknowledge, psn, &[], |h| {
        h.aeth = Some(Aeth { syndrome, msn: 0 });
    });
}

fn to_queue(srqn: u32) -> impl Fn(&mut Headers) {
    move |h| h.xrceth = Some(XrcEth { srqn })
}

#[test]
fn every_request_packet_names_the_shared_queue_of_its_message() {
    let mut b = Bench::extended(QpType::XrcSend);
    b.post_with(Operation::SendImm([1; 4]), 300, |r| r.srqn = 9);
    b.post_with(WRITE, 600, |r| r.srqn = 8);
    b.post_with(Operation::SendInvalidate(Rkey(1)), 8, |r| r.srqn = 7);
    assert_eq!(
        b.sends(),
        [
            "XrcSendFirst 16777214 srq=9 [256]",
            "XrcSendLastImm 16777215 A srq=9 [44]",
            "XrcWriteFirst 0 srq=8 va=0x9000+600 [256]",
            "XrcWriteMiddle 1 srq=8 [256]",
            "XrcWriteLast 2 A srq=8 [88]",
            "XrcSendOnlyInvalidate 3 A srq=7 [8]"
        ]
    );
    acknowledged(&mut b, 2, ACK);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
    acknowledged(&mut b, 3, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(b.sends(), ["XrcSendOnlyInvalidate 3 A srq=7 [8]"]);
    acknowledged(&mut b, 3, Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(b.log(), ["send 2 RemoteInvalidRequest"]);
}

#[test]
fn reads_and_atomics_name_it_too_and_their_answers_do_not() {
    let (va, rkey) = (0x9000, Rkey(5));
    let mut b = Bench::extended(QpType::XrcSend);
    b.post_with(Operation::Read { va, rkey }, 300, |r| r.srqn = 9);
    b.post_with(Operation::FetchAdd { va, rkey, add: 1 }, 8, |r| r.srqn = 9);
    b.post_with(Operation::AtomicWrite { va, rkey }, 8, |r| r.srqn = 9);
    assert_eq!(
        b.sends(),
        [
            "XrcReadRequest 16777214 A srq=9 va=0x9000+300",
            "XrcFetchAdd 0 A srq=9"
        ]
    );
    let aeth = |h: &mut Headers| {
        h.bth.ack_request = false;
        h.aeth = Some(Aeth {
            syndrome: ACK,
            msn: 0,
        });
    };
    b.arrives(Opcode::XrcReadResponseFirst, P0, &[1; 256], aeth);
    b.arrives(Opcode::XrcReadResponseLast, P0 + 1, &[1; 44], aeth);
    b.arrives(Opcode::XrcAtomicAcknowledge, 0, &[], |h| {
        aeth(h);
        h.atomic_ack = Some(7);
    });
    assert_eq!(b.sends(), ["XrcAtomicWrite 1 A srq=9 va=0x9000+8 [8]"]);
    b.arrives(Opcode::XrcReadResponseOnly, 1, &[], aeth);
    assert_eq!(
        b.log(),
        ["send 0 Success", "send 1 Success", "send 2 Success"]
    );
    assert_eq!(b.host.messages[&1], 7u64.to_ne_bytes());
}

#[test]
fn messages_fill_receives_of_the_queue_that_they_name() {
    let mut b = Bench::extended(QpType::XrcReceive);
    b.post_receive(1, 600);
    b.post_receive(2, 600);
    b.arrives(Opcode::XrcSendFirst, 100, &[1; 256], to_queue(9));
    b.arrives(Opcode::XrcSendLast, 101, &[2; 8], to_queue(9));
    b.arrives(Opcode::XrcWriteOnlyImm, 102, &[3; 8], |h| {
        to_queue(8)(h);
        h.imm = Some([0, 0, 0, 5]);
        h.reth = Some(Reth {
            va: REGION_VA,
            rkey: RKEY,
            length: 8,
        });
    });
    assert_eq!(b.sends(), ["XrcAcknowledge 102 msn=2"]);
    assert_eq!(
        b.log(),
        [
            "take from shared queue 9",
            "recv 1 Success 264",
            "take from shared queue 8",
            "recv 2 Success 8 imm=5"
        ]
    );
    assert_eq!(b.host.memory[..8], [3; 8]);
    b.arrives(Opcode::XrcReadRequest, 103, &[], |h| {
        to_queue(0)(h);
        h.reth = Some(Reth {
            va: REGION_VA,
            rkey: RKEY,
            length: 300,
        });
    });
    b.arrives(Opcode::XrcFetchAdd, 105, &[], |h| {
        to_queue(0)(h);
        h.atomic_eth = Some(AtomicEth {
            va: REGION_VA,
            rkey: RKEY,
            swap_add: 1,
            compare: 0,
        });
    });
    let lines = b.sends();
    assert_eq!(
        lines[..2],
        [
            "XrcReadResponseFirst 103 msn=3 [256]",
            "XrcReadResponseLast 104 msn=3 [44]"
        ]
    );
    assert!(
        lines[2].starts_with("XrcAtomicAcknowledge 105 msn=4 original="),
        "{lines:?}"
    );
    assert_eq!(b.log(), [""; 0]);
}

#[test]
fn an_empty_queue_is_awaited_and_a_missing_one_is_refused() {
    let mut b = Bench::extended(QpType::XrcReceive);
    b.arrives(Opcode::XrcSendOnly, 100, &[1; 8], to_queue(9));
    assert_eq!(b.sends(), ["XrcAcknowledge 100 RNR timer=12"]);
    assert_eq!(b.log(), ["take from shared queue 9"]);
    b.host.granted = false;
    b.arrives(Opcode::XrcSendOnly, 100, &[1; 8], to_queue(9));
    assert_eq!(b.sends(), ["XrcAcknowledge 100 NAK InvalidRequest"]);
    assert_eq!(
        b.log(),
        [
            "take from shared queue 9",
            "event LastWqeReached",
            "event RequestError"
        ]
    );
    assert_eq!(b.qp.state(), QpState::Error);
}

#[test]
fn the_error_state_leaves_the_shared_queues_alone() {
    let mut b = Bench::extended(QpType::XrcReceive);
    b.post_receive(1, 600);
    b.post_receive(2, 600);
    b.arrives(Opcode::XrcSendFirst, 100, &[1; 256], to_queue(9));
    b.log();
    b.modify(QpState::Error);
    assert_eq!(b.log(), ["recv 1 WrFlushError 0", "event LastWqeReached"]);
    assert_eq!(b.host.receives.len(), 1);
    let mut b = Bench::extended(QpType::XrcSend);
    b.post(WRITE, 8);
    b.modify(QpState::Error);
    assert_eq!(b.log(), ["send 0 WrFlushError"]);
}

#[test]
fn each_half_drops_what_the_other_would_take() {
    let mut b = Bench::extended(QpType::XrcSend);
    b.post_receive(1, 8);
    b.post(WRITE, 8);
    b.sends();
    b.arrives(Opcode::XrcSendOnly, 100, &[1; 8], to_queue(9));
    b.acknowledged(P0, ACK);
    assert_eq!(b.counted(Counter::DropMalformed), 2);
    acknowledged(&mut b, P0, ACK);
    assert_eq!(b.log(), ["send 0 Success"]);
    let mut b = Bench::extended(QpType::XrcReceive);
    b.post_receive(1, 8);
    acknowledged(&mut b, P0, ACK);
    b.arrives(Opcode::RcSendOnly, 100, &[1; 8], |_| {});
    assert_eq!(b.counted(Counter::DropMalformed), 2);
    assert_eq!(b.sends(), [""; 0]);
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.arrives(Opcode::XrcSendOnly, 100, &[1; 8], to_queue(9));
    assert_eq!(b.counted(Counter::DropMalformed), 1);
    assert_eq!(b.log(), [""; 0]);
}
