//! Requests that are done without a packet, among others that are sent.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
const INVALIDATE: Operation = Operation::LocalInvalidate(Rkey(3));
const BIND: Operation = Operation::BindWindow(Bind {
    window: Rkey(0x100),
    new_key: Rkey(0x101),
    region: Lkey(1),
    va: 0x1000,
    length: 8,
    access: Access::REMOTE_READ,
});
const READ: Operation = Operation::Read {
    va: 0x9000,
    rkey: Rkey(5),
};

/// The bench's first PSN is 0xfffffe.
const P0: u32 = 0xff_fffe;
const P1: u32 = 0xff_ffff;

fn read_answered(b: &mut Bench, psn: u32) {
    b.arrives(Opcode::RcReadResponseOnly, psn, &[1; 8], |h| {
        h.bth.ack_request = false;
        h.aeth = Some(Aeth {
            syndrome: ACK,
            msn: 0,
        });
    });
}

#[test]
fn alone_in_the_queue_they_are_done_at_once() {
    let mut b = Bench::connected();
    b.post(BIND, 0);
    b.post_with(INVALIDATE, 0, |r| r.signalled = false);
    assert!(b.qp.wants_transmit());
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(
        b.log(),
        [
            "bind 256 as 257",
            "invalidate own 3",
            "send 0 Success",
            "retire slot 1"
        ]
    );
    assert!(!b.qp.wants_transmit());
    assert_eq!(b.qp.poll_timeout(), None);
    assert_eq!(b.counted(Counter::MessagesSent), 0);
}

#[test]
fn done_in_their_turn_and_completed_in_the_order_of_the_queue() {
    let mut b = Bench::connected();
    b.post(Operation::Send, 8);
    b.post(BIND, 0);
    b.post(Operation::Send, 8);
    assert_eq!(b.sends_one().unwrap(), "SendOnly 16777214 A [8]");
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.sends_one().unwrap(), "SendOnly 16777215 A [8]");
    assert_eq!(b.log(), ["bind 256 as 257"]);
    b.acknowledged(P1, ACK);
    assert_eq!(
        b.log(),
        ["send 0 Success", "send 1 Success", "send 2 Success"]
    );
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn the_last_one_completes_with_the_answer_before_it() {
    let mut b = Bench::connected();
    b.post_with(Operation::Send, 8, |r| r.signalled = false);
    b.post_with(Operation::Send, 8, |r| r.signalled = false);
    b.post(BIND, 0);
    // The second is the last packet, though not the last request: its answer is waited for.
    assert_eq!(
        b.sends(),
        ["SendOnly 16777214 [8]", "SendOnly 16777215 A [8]"]
    );
    assert_eq!(b.log(), ["bind 256 as 257"]);
    b.acknowledged(P1, ACK);
    assert_eq!(
        b.log(),
        ["retire slot 0", "retire slot 1", "send 2 Success"]
    );
}

#[test]
fn nothing_is_done_twice_when_packets_are_sent_again() {
    let mut b = Bench::connected();
    b.post(Operation::Send, 8);
    b.post(BIND, 0);
    b.post(INVALIDATE, 0);
    b.post(Operation::Send, 8);
    b.sends();
    assert_eq!(b.log(), ["bind 256 as 257", "invalidate own 3"]);
    b.acknowledged(P0, GAP);
    assert!(b.qp.wants_transmit());
    assert_eq!(
        b.sends(),
        ["SendOnly 16777214 A [8]", "SendOnly 16777215 A [8]"]
    );
    b.next_timer();
    b.acknowledged(P0, ACK);
    assert_eq!(
        b.log(),
        ["send 0 Success", "send 1 Success", "send 2 Success"]
    );
    assert_eq!(b.sends(), ["SendOnly 16777215 A [8]"]);
    b.acknowledged(P1, ACK);
    assert_eq!(b.log(), ["send 3 Success"]);
}

#[test]
fn a_fence_waits_for_reads_and_holds_back_what_follows() {
    let mut b = Bench::connected();
    b.post(READ, 8);
    b.post_with(INVALIDATE, 0, |r| r.fence = true);
    b.post(Operation::Send, 8);
    assert_eq!(b.sends(), ["ReadRequest 16777214 A va=0x9000+8"]);
    assert!(!b.qp.wants_transmit());
    assert_eq!(b.log(), [""; 0]);
    read_answered(&mut b, P0);
    assert!(b.qp.wants_transmit());
    assert_eq!(b.sends(), ["SendOnly 16777215 A [8]"]);
    assert_eq!(
        b.log(),
        ["send 0 Success", "invalidate own 3", "send 1 Success"]
    );
}

#[test]
fn unfenced_it_overtakes_the_answer_not_the_completion() {
    let mut b = Bench::connected();
    b.post(READ, 8);
    b.post(INVALIDATE, 0);
    b.sends();
    assert_eq!(b.log(), ["invalidate own 3"]);
    read_answered(&mut b, P0);
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn one_that_fails_lets_the_earlier_ones_complete() {
    for operation in [BIND, INVALIDATE] {
        let mut b = Bench::connected();
        b.post_with(Operation::Send, 8, |r| r.signalled = false);
        b.post_with(BIND, 0, |r| r.signalled = false);
        b.post(Operation::Send, 8);
        assert_eq!(
            b.sends(),
            ["SendOnly 16777214 [8]", "SendOnly 16777215 A [8]"]
        );
        b.post_with(operation, 0, |r| r.signalled = false);
        b.post(Operation::Send, 8);
        b.log();
        b.host.bind_fault = true;
        assert_eq!(b.sends(), [""; 0]);
        assert_eq!(b.log().len(), 1, "tried once");
        b.host.bind_fault = false;
        b.acknowledged(P0, GAP);
        assert_eq!(
            b.sends(),
            ["SendOnly 16777214 A [8]", "SendOnly 16777215 A [8]"]
        );
        assert_eq!(b.log(), [""; 0], "and never again");
        b.acknowledged(P1, ACK);
        assert_eq!(
            b.log(),
            [
                "retire slot 0",
                "retire slot 1",
                "send 2 Success",
                "send 3 MwBindError",
                "send 4 WrFlushError"
            ]
        );
        assert_eq!(b.qp.state(), QpState::Error);
    }
}

#[test]
fn one_that_fails_makes_the_sender_ask_for_what_it_did_not() {
    let mut b = Bench::connected();
    b.post_with(Operation::Send, 8, |r| r.signalled = false);
    b.post_with(BIND, 0, |r| r.signalled = false);
    b.post(INVALIDATE, 0);
    b.post(Operation::Send, 8);
    assert_eq!(b.sends_one().unwrap(), "SendOnly 16777214 [8]");
    b.host.bind_fault = true;
    assert_eq!(b.sends(), ["SendOnly 16777214 A [8]"]);
    assert_eq!(b.log(), ["bind 256 as 257"]);
    b.acknowledged(P0, ACK);
    assert_eq!(
        b.log(),
        [
            "retire slot 0",
            "send 1 MwBindError",
            "send 2 WrFlushError",
            "send 3 WrFlushError"
        ]
    );
}

#[test]
fn a_step_back_goes_past_what_was_done() {
    let mut b = Bench::connected();
    b.post_with(Operation::Send, 8, |r| r.signalled = false);
    b.post_with(BIND, 0, |r| r.signalled = false);
    b.post(INVALIDATE, 0);
    b.post(Operation::Send, 8);
    assert_eq!(b.sends_one().unwrap(), "SendOnly 16777214 [8]");
    b.credit = 0;
    assert_eq!(b.sends(), ["SendOnly 16777214 A [8]"]);
    assert_eq!(b.log(), ["bind 256 as 257", "invalidate own 3"]);
    b.credit = u32::MAX;
    assert_eq!(b.sends(), ["SendOnly 16777215 A [8]"]);
    b.acknowledged(P1, ACK);
    assert_eq!(
        b.log(),
        [
            "retire slot 0",
            "retire slot 1",
            "send 2 Success",
            "send 3 Success"
        ]
    );
}

#[test]
fn a_drain_begins_none_of_them() {
    let mut b = Bench::connected();
    b.post(Operation::Send, 8);
    b.sends();
    let drain = QpAttributes {
        state: QpState::SendQueueDrain,
        en_sqd_async_notify: true,
        ..attributes()
    };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    b.qp.modify(&drain, mask, &mut b.host).unwrap();
    b.post(BIND, 0);
    b.acknowledged(P0, ACK);
    assert!(!b.qp.wants_transmit());
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), ["send 0 Success", "event SendQueueDrained"]);
    b.modify(QpState::ReadyToSend);
    assert!(b.qp.wants_transmit());
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), ["bind 256 as 257", "send 1 Success"]);
}

#[test]
fn the_error_state_flushes_them_done_or_not() {
    let mut b = Bench::connected();
    b.post(Operation::Send, 8);
    b.post(BIND, 0);
    b.sends();
    b.post(INVALIDATE, 0);
    b.modify(QpState::Error);
    assert_eq!(
        b.log(),
        [
            "bind 256 as 257",
            "send 0 WrFlushError",
            "send 1 WrFlushError",
            "send 2 WrFlushError"
        ]
    );
}

#[test]
fn flushing_ends_though_the_program_posts_on() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.host.posts_again = true;
    b.modify(QpState::Error);
    let first = b.log().len();
    b.qp.flush_receives(&mut b.host);
    assert!(first > 0 && b.log().len() == first);
}
