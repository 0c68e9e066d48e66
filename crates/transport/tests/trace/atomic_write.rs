//! Atomic writes: eight bytes that replace eight bytes at once, answered as a READ without data.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const WRITE: Operation = Operation::AtomicWrite {
    va: 0x9000,
    rkey: Rkey(5),
};

/// The bench's first PSN is 0xfffffe.
const P0: u32 = 0xff_fffe;
const P1: u32 = 0xff_ffff;

/// A response to a READ of one packet.
pub fn answered(b: &mut Bench, psn: u32, payload: &[u8]) {
    b.arrives(Opcode::RcReadResponseOnly, psn, payload, |h| {
        h.bth.ack_request = false;
        h.aeth = Some(Aeth {
            syndrome: ACK,
            msn: 0,
        });
    });
}

fn arrives(b: &mut Bench, psn: u32, va: u64, length: u32, payload: &[u8]) {
    b.arrives(Opcode::RcAtomicWrite, psn, payload, |h| {
        h.reth = Some(Reth {
            va,
            rkey: RKEY,
            length,
        });
    });
}

#[test]
fn it_is_sent_whole_and_ended_by_a_response_without_data() {
    let mut b = Bench::connected();
    b.post(WRITE, 8);
    let bytes = b.sends_bytes().unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.opcode(), Opcode::RcAtomicWrite);
    assert_eq!(
        packet.headers.reth,
        Some(Reth {
            va: 0x9000,
            rkey: Rkey(5),
            length: 8
        })
    );
    assert!(packet.headers.bth.ack_request);
    assert_eq!(packet.payload, [0, 1, 2, 3, 4, 5, 6, 7]);
    answered(&mut b, P0, &[]);
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn only_its_own_response_ends_it_and_data_is_bad() {
    let mut b = Bench::connected();
    b.post(WRITE, 8);
    b.sends();
    b.acknowledged(P0, ACK);
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.counted(Counter::ImpliedNaks), 1);
    answered(&mut b, P0, &[1; 8]);
    assert_eq!(b.log(), ["send 0 BadResponse"]);
}

#[test]
fn it_counts_as_a_read_in_flight_and_a_fence_waits_for_it() {
    counts_as_a_read_in_flight(WRITE, 8, "AtomicWrite 0 A va=0x9000+8 [8]");
}

/// Two of three may be in flight; `last` is the third. A SEND behind them has a fence.
pub fn counts_as_a_read_in_flight(operation: Operation, length: u32, last: &str) {
    let mut b = Bench::connected();
    for _ in 0..3 {
        b.post(operation, length);
    }
    b.post_with(Operation::Send, 8, |r| r.fence = true);
    assert_eq!(b.sends().len(), 2);
    answered(&mut b, P0, &[]);
    answered(&mut b, P1, &[]);
    assert_eq!(b.sends(), [last]);
    answered(&mut b, 0, &[]);
    assert_eq!(b.sends(), ["SendOnly 1 A [8]"]);
}

#[test]
fn other_lengths_than_eight_are_not_sent() {
    for length in [0, 4, 9, 600] {
        let mut b = Bench::connected();
        b.post(WRITE, length);
        assert_eq!(b.sends(), [""; 0]);
        assert_eq!(b.log(), ["send 0 LocalLengthError"]);
    }
}

#[test]
fn it_is_executed_once_and_answered_as_often_as_asked() {
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    arrives(&mut b, 100, REGION_VA + 8, 8, &[7; 8]);
    assert_eq!(b.sends(), ["ReadResponseOnly 100 msn=1"]);
    assert_eq!(b.host.memory[8..16], [7; 8]);
    b.host.memory[8..16].fill(9);
    arrives(&mut b, 100, REGION_VA + 8, 8, &[7; 8]);
    assert_eq!(b.sends(), ["ReadResponseOnly 100 msn=1"]);
    assert_eq!(b.host.memory[8..16], [9; 8]);
    b.arrives(Opcode::RcSendOnly, 101, &[0; 8], |_| {});
    arrives(&mut b, 100, REGION_VA + 8, 8, &[7; 8]);
    assert_eq!(
        b.sends(),
        ["ReadResponseOnly 100 msn=2", "Acknowledge 101 msn=2"]
    );
    // Neither an atomic nor a READ at its PSN is a repetition of it.
    b.read_arrives(100, REGION_VA, 8);
    b.arrives(Opcode::RcFetchAdd, 100, &[], |h| {
        h.atomic_eth = Some(AtomicEth {
            va: REGION_VA,
            rkey: RKEY,
            swap_add: 2,
            compare: 0,
        });
    });
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.counted(Counter::MessagesReceived), 2);
}

#[test]
fn what_is_not_eight_aligned_bytes_is_refused() {
    let invalid = "Acknowledge 100 NAK InvalidRequest";
    for (va, length, payload) in [
        (REGION_VA + 4, 8, &[7; 8][..]),
        (REGION_VA, 16, &[7; 8]),
        (REGION_VA, 8, &[]),
        (REGION_VA, 8, &[7; 16]),
        (REGION_VA, 0, &[]),
    ] {
        let mut b = Bench::connected();
        let before = b.host.memory.clone();
        arrives(&mut b, 100, va, length, payload);
        assert_eq!(b.sends(), [invalid]);
        assert!(b.host.memory == before);
        assert_eq!(b.log(), ["event RequestError"]);
    }
}

#[test]
fn it_needs_the_right_to_write_and_a_key() {
    let denied = "Acknowledge 100 NAK RemoteAccessError";
    let mut b = Bench::connected();
    let none = QpAttributes {
        access: Access::REMOTE_ATOMIC | Access::REMOTE_READ,
        ..attributes()
    };
    b.qp.modify(&none, AttrMask::ACCESS_FLAGS, &mut b.host)
        .unwrap();
    arrives(&mut b, 100, REGION_VA, 8, &[7; 8]);
    assert_eq!(b.sends(), ["Acknowledge 100 NAK InvalidRequest"]);
    let mut b = Bench::connected();
    arrives(&mut b, 100, REGION_VA + REGION_LEN as u64, 8, &[7; 8]);
    assert_eq!(b.sends(), [denied]);
    let mut b = Bench::connected();
    for psn in 100..103 {
        arrives(&mut b, psn, REGION_VA, 8, &[7; 8]);
    }
    assert_eq!(b.sends()[2], "Acknowledge 102 NAK InvalidRequest");
}

#[test]
fn it_repeats_no_read_that_was_at_its_psn() {
    let mut b = Bench::connected();
    b.read_arrives(100, REGION_VA, 8);
    b.sends();
    let before = b.host.memory.clone();
    arrives(&mut b, 100, REGION_VA, 8, &[7; 8]);
    assert_eq!(b.sends(), [""; 0]);
    assert!(b.host.memory == before);
}
