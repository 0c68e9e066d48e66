//! The same over real sockets, on two addresses of the loopback interface.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;

#[test]
fn data_goes_through_sockets_whole() {
    let (left, right) = sockets("127.0.0.21", "127.0.0.22");
    let length = 1 << 20;
    let (left, right) = pair_on(&left, &right, length);
    for seed in 0..10 {
        let data = pattern(length, seed);
        left.memory.fill(0, &data);
        left.qp.post_send(&left.write(&right, 0, length)).unwrap();
        left.ok();
        assert_eq!(right.memory.bytes(0, length), data);
        left.memory.fill(0, &vec![0; length]);
        let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
        left.send(Operation::Read { va, rkey }, 0, length);
        left.ok();
        assert_eq!(left.memory.bytes(0, length), data);
    }
    assert!(counter(&left.device, "tx_segmented_sends") > 0);
}

#[test]
fn messages_bounce_between_two_threads_that_wait_for_events() {
    let (left, right) = sockets("127.0.0.23", "127.0.0.24");
    let (left, right) = pair_on(&left, &right, 64);
    let bounce = |end: &End, starts: bool| {
        end.recv(0, 0, 8);
        if starts {
            end.send(Operation::Send, 8, 8);
        }
        let (mut received, mut sent) = (0, u64::from(starts));
        while received < 1000 {
            end.cq.arm(false).unwrap();
            let mut found = 0;
            end.cq
                .poll(16, |completion| {
                    assert_eq!(completion.status, Status::Success);
                    found += u64::from(completion.opcode == CompletionOpcode::Receive);
                })
                .unwrap();
            if found == 0 {
                end.channel.wait_event().unwrap();
            }
            for _ in 0..found {
                received += 1;
                end.recv(received, 0, 8);
                if sent < 1000 {
                    end.send(Operation::Send, 8, 8);
                    sent += 1;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| bounce(&right, false));
        bounce(&left, true);
    });
}

#[test]
fn datagrams_go_through_sockets() {
    let (left, right) = sockets("127.0.0.25", "127.0.0.26");
    let (left, right) = (
        End::new(&left, QpType::Ud, 2048),
        End::new(&right, QpType::Ud, 2048),
    );
    datagram_to_rts(&left.qp, Qkey(1));
    datagram_to_rts(&right.qp, Qkey(1));
    for round in 0..100 {
        right.recv(round, 0, 1064);
        left.memory.fill(0, &pattern(1024, round as u8));
        let datagram = Datagram {
            path: right.path(),
            qpn: right.qp.number(),
            qkey: Qkey(1),
        };
        let wr = SendWr {
            datagram: Some(datagram),
            ..signalled(Operation::Send, left.memory.sge(0, 1024))
        };
        left.qp.post_send(&wr).unwrap();
        left.ok();
        assert_eq!(right.ok().byte_len, 1064);
        assert_eq!(right.memory.bytes(40, 1024), pattern(1024, round as u8));
    }
}
