//! Receives that come from a shared queue: in the error state they stay there.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

#[test]
fn the_error_state_completes_what_was_taken_and_leaves_the_rest() {
    let mut b = Bench::sharing(QpType::Rc);
    b.post(Operation::Send, 8);
    b.post_receive(1, 600);
    b.post_receive(2, 600);
    b.arrives(Opcode::RcSendFirst, 100, &[1; 256], |_| {});
    b.modify(QpState::Error);
    assert_eq!(
        b.log(),
        [
            "send 0 WrFlushError",
            "recv 1 WrFlushError 0",
            "event LastWqeReached"
        ]
    );
    b.post_receive(3, 600);
    b.qp.flush_receives(&mut b.host);
    b.post(Operation::Send, 8);
    b.modify(QpState::Error);
    assert_eq!(b.log(), ["send 1 WrFlushError"], "said once");
    assert_eq!(b.host.receives.len(), 2);
    b.modify(QpState::Reset);
    b.modify(QpState::Error);
    assert_eq!(b.log(), ["event LastWqeReached"], "and again next time");
}

#[test]
fn an_error_of_the_connection_says_it_too() {
    let mut b = Bench::sharing(QpType::Rc);
    b.post(Operation::Send, 8);
    b.post_receive(1, 600);
    b.sends();
    b.acknowledged(0xff_fffe, Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(
        b.log(),
        ["send 0 RemoteInvalidRequest", "event LastWqeReached"]
    );

    let mut b = Bench::sharing(QpType::Rc);
    b.post_receive(1, 8);
    b.post_receive(2, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[1; 9], |_| {});
    assert_eq!(
        b.log(),
        [
            "recv 1 LocalLengthError 0",
            "event LastWqeReached",
            "event RequestError"
        ]
    );
    b.modify(QpState::Error);
    assert_eq!(b.log(), [""; 0]);
}

#[test]
fn lost_read_memory_in_the_error_state_is_no_further_error() {
    let mut b = Bench::sharing(QpType::Rc);
    b.arrives(Opcode::RcReadRequest, 100, &[], |h| {
        h.reth = Some(Reth {
            va: REGION_VA,
            rkey: RKEY,
            length: 600,
        });
    });
    assert!(b.sends_one().is_some());
    b.arrives(Opcode::RcSendMiddle, 103, &[1; 256], |_| {});
    assert_eq!(b.log(), ["event LastWqeReached", "event RequestError"]);
    b.host.granted = false;
    b.sends();
    assert!(!b.log().contains(&"event LastWqeReached".to_owned()));
}

#[test]
fn unreliable_services_complete_what_they_keep() {
    let mut b = Bench::sharing(QpType::Uc);
    b.post_receive(1, 600);
    b.post_receive(2, 600);
    b.arrives(Opcode::UcSendFirst, 100, &[1; 256], |_| {});
    b.modify(QpState::Error);
    assert_eq!(b.log(), ["recv 1 WrFlushError 0", "event LastWqeReached"]);
    assert_eq!(b.host.receives.len(), 1);

    let mut b = Bench::sharing(QpType::Ud);
    b.post_receive(1, 47);
    b.post_receive(2, 48);
    b.arrives(Opcode::UdSendOnly, 7, &[9; 8], |h| {
        h.deth = Some(Deth {
            qkey: QKEY,
            src_qpn: Qpn::new(0x44),
        });
    });
    assert_eq!(b.counted(Counter::DropTooLong), 1);
    b.modify(QpState::Error);
    assert_eq!(b.log(), ["recv 1 WrFlushError 0", "event LastWqeReached"]);
    assert_eq!(b.host.receives.len(), 1);
}
