//! An unreliable connection: what it sends, and what it makes of what arrives.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const WRITE: Operation = Operation::Write {
    va: 0x9000,
    rkey: Rkey(5),
};
const BIND: Operation = Operation::BindWindow(Bind {
    window: Rkey(0x100),
    new_key: Rkey(0x101),
    region: Lkey(1),
    va: 0x1000,
    length: 8,
    access: Access::REMOTE_READ,
});

fn reth(va: u64, length: u32) -> Option<Reth> {
    Some(Reth {
        va,
        rkey: RKEY,
        length,
    })
}

#[test]
fn a_request_is_done_when_its_last_packet_has_left() {
    let mut b = Bench::unreliable();
    b.post(WRITE, 600);
    b.post_with(Operation::SendImm([1; 4]), 8, |r| r.signalled = false);
    b.post(
        Operation::WriteImm {
            va: 0x9000,
            rkey: Rkey(5),
            imm: [2; 4],
        },
        0,
    );
    assert_eq!(
        b.sends_one().unwrap(),
        "UcWriteFirst 16777214 va=0x9000+600 [256]"
    );
    assert_eq!(b.sends_one().unwrap(), "UcWriteMiddle 16777215 [256]");
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.qp.in_flight_bytes(), 0);
    assert_eq!(b.qp.poll_timeout(), None);
    assert_eq!(
        b.sends(),
        [
            "UcWriteLast 0 [88]",
            "UcSendOnlyImm 1 [8]",
            "UcWriteOnlyImm 2 va=0x9000+0"
        ]
    );
    assert_eq!(
        b.log(),
        ["send 0 Success", "retire slot 1", "send 2 Success"]
    );
    assert!(!b.qp.wants_transmit());
}

#[test]
fn what_it_cannot_carry_stops_the_send_queue_alone() {
    let read = Operation::Read {
        va: 0x9000,
        rkey: Rkey(5),
    };
    let add = Operation::FetchAdd {
        va: 0x9000,
        rkey: Rkey(5),
        add: 1,
    };
    let write = Operation::AtomicWrite {
        va: 0x9000,
        rkey: Rkey(5),
    };
    for operation in [read, add, write, Operation::SendInvalidate(Rkey(5))] {
        let mut b = Bench::unreliable();
        b.post_with(WRITE, 8, |r| r.signalled = false);
        b.post(operation, 8);
        b.post(WRITE, 8);
        assert_eq!(b.sends(), ["UcWriteOnly 16777214 va=0x9000+8 [8]"]);
        assert_eq!(
            b.log(),
            [
                "retire slot 0",
                "send 1 LocalQpOperationError",
                "send 2 WrFlushError"
            ]
        );
        assert_eq!(b.qp.state(), QpState::SendQueueError);
        b.post_receive(1, 8);
        b.arrives(Opcode::UcSendOnly, 100, &[9; 8], |_| {});
        assert_eq!(b.log(), ["recv 1 Success 8"]);
        b.modify(QpState::ReadyToSend);
        b.post(WRITE, 8);
        assert_eq!(b.sends(), ["UcWriteOnly 16777215 va=0x9000+8 [8]"]);
    }
}

#[test]
fn memory_lost_within_a_message_stops_the_send_queue() {
    let mut b = Bench::unreliable();
    b.post(WRITE, 600);
    assert!(b.sends_one().is_some());
    b.host.local_fault = true;
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), ["send 0 LocalProtectionError"]);
    b.host.local_fault = false;
    b.modify(QpState::ReadyToSend);
    b.post(Operation::Send, 300);
    assert_eq!(
        b.sends(),
        ["UcSendFirst 16777215 [256]", "UcSendLast 0 [44]"]
    );
}

#[test]
fn a_drain_ends_with_the_message_that_was_begun() {
    let mut b = Bench::unreliable();
    b.post(WRITE, 300);
    b.post(WRITE, 8);
    assert!(b.sends_one().is_some());
    let drain = QpAttributes {
        state: QpState::SendQueueDrain,
        en_sqd_async_notify: true,
        ..attributes()
    };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    b.qp.modify(&drain, mask, &mut b.host).unwrap();
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.sends(), ["UcWriteLast 16777215 [44]"]);
    assert_eq!(b.log(), ["send 0 Success", "event SendQueueDrained"]);
    assert!(!b.qp.wants_transmit());
    b.modify(QpState::ReadyToSend);
    assert_eq!(b.sends(), ["UcWriteOnly 0 va=0x9000+8 [8]"]);
}

#[test]
fn local_requests_are_done_in_their_turn() {
    let mut b = Bench::unreliable();
    b.post(Operation::Send, 8);
    b.post(BIND, 0);
    b.post_with(Operation::LocalInvalidate(Rkey(3)), 0, |r| {
        r.signalled = false
    });
    b.post(Operation::Send, 8);
    assert_eq!(b.sends_one().unwrap(), "UcSendOnly 16777214 [8]");
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(b.sends_one().unwrap(), "UcSendOnly 16777215 [8]");
    assert_eq!(
        b.log(),
        [
            "bind 256 as 257",
            "send 1 Success",
            "invalidate own 3",
            "retire slot 2",
            "send 3 Success"
        ]
    );
    b.host.bind_fault = true;
    b.post(BIND, 0);
    assert!(b.qp.wants_transmit());
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), ["bind 256 as 257", "send 4 MwBindError"]);
    assert_eq!(b.qp.state(), QpState::SendQueueError);
}

#[test]
fn messages_arrive_whole_and_are_never_answered() {
    let mut b = Bench::unreliable();
    b.post_receive(1, 600);
    b.post_receive(2, 0);
    b.arrives(Opcode::UcSendFirst, 100, &[1; 256], |_| {});
    b.arrives(Opcode::UcSendMiddle, 101, &[2; 256], |_| {});
    b.arrives(Opcode::UcSendLastImm, 102, &[3; 5], |h| {
        h.imm = Some(77u32.to_be_bytes());
        h.bth.solicited = true;
    });
    b.write_arrives(
        Opcode::UcWriteFirst,
        103,
        &[0xaa; 256],
        reth(REGION_VA + 8, 300),
    );
    b.arrives(Opcode::UcWriteLastImm, 104, &[0xbb; 44], |h| {
        h.imm = Some([0, 0, 0, 5])
    });
    assert_eq!(
        b.log(),
        [
            "recv 1 Success 517 imm=77 solicited",
            "recv 2 Success 300 imm=5"
        ]
    );
    let expected = [[1; 256].as_slice(), &[2; 256], &[3; 5]].concat();
    assert_eq!(b.host.received[&1], expected);
    assert_eq!(b.host.memory[8..264], [0xaa; 256]);
    assert_eq!(b.host.memory[264..308], [0xbb; 44]);
    assert!(!b.qp.wants_transmit());
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn a_message_that_lost_a_packet_leaves_its_receive_to_the_next() {
    // Lost: the middle; the last; the first.
    for arriving in [&[0, 2, 3, 4, 5][..], &[0, 1, 3, 4, 5], &[1, 2, 3, 4, 5]] {
        let mut b = Bench::unreliable();
        b.post_receive(1, 600);
        b.post_receive(2, 600);
        for &at in arriving {
            let (opcode, length) = match at % 3 {
                0 => (Opcode::UcSendFirst, 256),
                1 => (Opcode::UcSendMiddle, 256),
                _ => (Opcode::UcSendLast, 40),
            };
            b.arrives(opcode, 100 + at, &vec![at as u8; length], |_| {});
        }
        assert_eq!(b.log(), ["recv 1 Success 552"], "{arriving:?}");
        let expected = [[3; 256].as_slice(), &[4; 256], &[5; 40]].concat();
        assert_eq!(b.host.received[&1], expected);
        assert_eq!(b.counted(Counter::OutOfOrder), 1);
        b.arrives(Opcode::UcSendOnly, 106, &[7; 8], |_| {});
        assert_eq!(b.log(), ["recv 2 Success 8"]);
    }
}

#[test]
fn packets_of_two_messages_never_make_one() {
    let mut b = Bench::unreliable();
    b.post_receive(1, 600);
    b.arrives(Opcode::UcSendFirst, 100, &[1; 256], |_| {});
    // The last of this message and the first of the next are lost.
    b.arrives(Opcode::UcSendLast, 103, &[2; 40], |_| {});
    b.arrives(Opcode::UcSendFirst, 104, &[3; 256], |_| {});
    b.write_arrives(Opcode::UcWriteMiddle, 105, &[4; 256], None);
    b.arrives(Opcode::UcSendLast, 106, &[5; 40], |_| {});
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.counted(Counter::OutOfOrder), 1);
    assert_eq!(b.counted(Counter::DropMalformed), 1);
    b.arrives(Opcode::UcSendOnly, 107, &[6; 8], |_| {});
    assert_eq!(b.log(), ["recv 1 Success 8"]);
    assert_eq!(b.host.received[&1][..8], [6; 8]);
}

#[test]
fn undeliverable_packets_are_counted_and_cost_no_receive() {
    let mut b = Bench::unreliable();
    b.arrives(Opcode::UcSendFirst, 100, &[1; 256], |_| {});
    assert_eq!(b.counted(Counter::DropNoReceive), 1);
    b.post_receive(1, 300);
    b.arrives(Opcode::UcSendLast, 101, &[1; 40], |_| {});
    b.arrives(Opcode::UcSendFirst, 102, &[1; 256], |_| {});
    b.arrives(Opcode::UcSendLast, 103, &[1; 45], |_| {});
    assert_eq!(b.counted(Counter::DropTooLong), 1);
    b.arrives(Opcode::UcSendFirst, 104, &[1; 255], |_| {});
    assert_eq!(b.counted(Counter::DropMalformed), 1);
    let before = b.host.memory.clone();
    let end = REGION_VA + REGION_LEN as u64;
    b.write_arrives(Opcode::UcWriteFirst, 105, &[1; 256], reth(end - 299, 300));
    b.write_arrives(Opcode::UcWriteLast, 106, &[1; 44], None);
    assert_eq!(b.counted(Counter::RemoteAccessErrors), 1);
    b.write_arrives(Opcode::UcWriteOnly, 107, &[1; 8], reth(REGION_VA, 9));
    assert_eq!(b.counted(Counter::DropMalformed), 2);
    assert!(b.host.memory == before);
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(b.counted(Counter::OutOfOrder), 0);
    b.arrives(Opcode::UcSendOnly, 108, &[9; 8], |_| {});
    assert_eq!(b.log(), ["recv 1 Success 8"]);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn a_write_with_immediate_that_is_refused_keeps_the_receive() {
    let mut b = Bench::unreliable();
    let imm = |h: &mut Headers| h.imm = Some([0, 0, 0, 5]);
    b.write_arrives(Opcode::UcWriteFirst, 100, &[1; 256], reth(REGION_VA, 260));
    b.arrives(Opcode::UcWriteLastImm, 101, &[1; 4], imm);
    assert_eq!(b.counted(Counter::DropNoReceive), 1);
    b.post_receive(3, 8);
    b.write_arrives(Opcode::UcWriteFirst, 102, &[1; 256], reth(REGION_VA, 260));
    b.host.granted = false;
    b.arrives(Opcode::UcWriteLastImm, 103, &[1; 4], imm);
    b.host.granted = true;
    assert_eq!(b.log(), [""; 0]);
    b.arrives(Opcode::UcSendOnly, 104, &[1; 4], |_| {});
    assert_eq!(b.log(), ["recv 3 Success 4"]);
}

#[test]
fn access_that_the_queue_pair_does_not_grant_is_dropped() {
    let mut b = Bench::unreliable();
    let none = QpAttributes {
        access: Access::REMOTE_READ,
        ..attributes()
    };
    b.qp.modify(&none, AttrMask::ACCESS_FLAGS, &mut b.host)
        .unwrap();
    b.write_arrives(Opcode::UcWriteOnly, 100, &[1; 8], reth(REGION_VA, 8));
    assert_eq!(b.counted(Counter::RemoteAccessErrors), 1);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
}

#[test]
fn a_receive_whose_memory_is_gone_ends_the_connection() {
    let mut b = Bench::unreliable();
    b.post_receive(1, 100);
    b.post_receive(2, 100);
    b.post(WRITE, 8);
    b.host.local_fault = true;
    b.arrives(Opcode::UcSendOnly, 100, &[0; 8], |_| {});
    assert_eq!(
        b.log(),
        [
            "recv 1 LocalProtectionError 0",
            "send 0 WrFlushError",
            "recv 2 WrFlushError 0"
        ]
    );
    assert_eq!(b.qp.state(), QpState::Error);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn the_error_state_flushes_the_receive_of_a_partial_message() {
    let mut b = Bench::unreliable();
    b.post_receive(1, 600);
    b.post_receive(2, 600);
    b.post(WRITE, 600);
    b.sends_one();
    b.arrives(Opcode::UcSendFirst, 100, &[1; 256], |_| {});
    b.modify(QpState::Error);
    assert_eq!(
        b.log(),
        [
            "send 0 WrFlushError",
            "recv 1 WrFlushError 0",
            "recv 2 WrFlushError 0"
        ]
    );
    b.arrives(Opcode::UcSendOnly, 101, &[1; 8], |_| {});
    assert_eq!(b.counted(Counter::DropBadState), 1);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn packets_of_another_service_are_dropped() {
    let mut b = Bench::unreliable();
    b.post_receive(1, 8);
    b.arrives(Opcode::RcSendOnly, 100, &[1; 8], |_| {});
    b.acknowledged(100, Syndrome::Ack { credits: 31 });
    assert_eq!(b.counted(Counter::DropMalformed), 2);
    assert_eq!(b.log(), [""; 0]);
    let mut b = Bench::connected();
    b.post_receive(1, 8);
    b.arrives(Opcode::UcSendOnly, 100, &[1; 8], |_| {});
    assert_eq!(b.counted(Counter::DropMalformed), 1);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn what_the_sender_marked_as_solicited_is_solicited() {
    let mut b = Bench::unreliable();
    for operation in [
        Operation::Send,
        Operation::WriteImm {
            va: 0x9000,
            rkey: Rkey(5),
            imm: [2; 4],
        },
    ] {
        b.post_with(operation, 300, |r| r.solicited = true);
        let marks: Vec<bool> = std::iter::from_fn(|| b.sends_bytes())
            .map(|bytes| Packet::parse(&bytes).unwrap().headers.bth.solicited)
            .collect();
        assert_eq!(marks, [false, true], "the last packet says it");
    }
    b.log();
    b.post_receive(1, 8);
    b.post_receive(2, 8);
    b.arrives(Opcode::UcSendOnly, 100, &[9; 8], |h| h.bth.solicited = true);
    b.arrives(Opcode::UcWriteOnlyImm, 101, &[9; 8], |h| {
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
