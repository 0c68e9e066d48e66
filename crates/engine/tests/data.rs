//! Data goes where it should: every operation between two devices.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::impair::Impaired;
use airdma_port::sim;
use common::*;
use std::net::IpAddr;

#[test]
fn a_message_is_gathered_and_scattered_by_its_elements() {
    let (left, right) = pair(8192);
    let text = pattern(3000, 1);
    left.memory.fill(0, &text[..1]);
    left.memory.fill(100, &text[1..2500]);
    left.memory.fill(4000, &text[2500..]);
    let scatter = [
        right.memory.sge(5000, 700),
        right.memory.sge(10, 0),
        right.memory.sge(0, 2305),
    ];
    right
        .qp
        .post_recv(&RecvWr {
            wr_id: 9,
            sges: &scatter,
        })
        .unwrap();
    let gather = [
        left.memory.sge(0, 1),
        left.memory.sge(100, 2499),
        left.memory.sge(4000, 500),
    ];
    let wr = SendWr {
        wr_id: 5,
        operation: Operation::SendImm([1, 2, 3, 4]),
        sges: &gather,
        flags: SendFlags::SIGNALLED | SendFlags::SOLICITED,
        datagram: None,
        srqn: 0,
    };
    left.qp.post_send(&wr).unwrap();

    let received = right.ok();
    assert_eq!((received.wr_id, received.byte_len), (9, 3000));
    assert_eq!(received.opcode, CompletionOpcode::Receive);
    assert_eq!(received.imm, Some([1, 2, 3, 4]));
    assert!(received.solicited && received.grh.is_none());
    assert_eq!(received.qpn, right.qp.number());
    assert_eq!(right.memory.bytes(5000, 700), text[..700]);
    assert_eq!(right.memory.bytes(0, 2300), text[700..]);
    assert_eq!(right.memory.bytes(2300, 2700), [0; 2700]);
    let sent = left.ok();
    assert_eq!((sent.wr_id, sent.opcode), (5, CompletionOpcode::Send));
}

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    let (left, right) = pair(256);
    right.recv(1, 0, 256);
    // Unregistered memory, which changes right after the call.
    let mut secret = *b"early bird";
    let sge = Sge {
        addr: secret.as_ptr().expose_provenance() as u64,
        length: 10,
        lkey: 0,
    };
    let wr = SendWr {
        wr_id: 5,
        operation: Operation::Send,
        sges: &[
            sge,
            Sge {
                addr: 0,
                length: 0,
                lkey: 0,
            },
            sge,
        ],
        flags: SendFlags::INLINE | SendFlags::SIGNALLED,
        datagram: None,
        srqn: 0,
    };
    left.qp.post_send(&wr).unwrap();
    secret.fill(b'x');
    assert_eq!(std::hint::black_box(secret)[0], b'x');
    assert_eq!(right.ok().byte_len, 20);
    assert_eq!(right.memory.bytes(0, 21), b"early birdearly bird\0");
}

#[test]
fn writes_and_reads_of_many_sizes_arrive_whole() {
    let (left, right) = pair(1 << 20);
    for (seed, length) in [0, 1, 2, 3, 1023, 1024, 1025, 4096, 65_536, 100_001, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let data = pattern(length, seed as u8);
        left.memory.fill(0, &data);
        left.qp.post_send(&left.write(&right, 0, length)).unwrap();
        assert_eq!(left.ok().opcode, CompletionOpcode::Write);
        assert_eq!(right.memory.bytes(0, length), data, "write of {length}");

        left.memory.fill(0, &vec![0xaa; length]);
        let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
        left.send(Operation::Read { va, rkey }, 0, length);
        let read = left.ok();
        assert_eq!(
            (read.opcode, read.byte_len as usize),
            (CompletionOpcode::Read, length)
        );
        assert_eq!(left.memory.bytes(0, length), data, "read of {length}");
    }
}

#[test]
fn long_messages_are_gathered_from_memory_of_every_kind() {
    const LEN: usize = 300_000;
    let (left, right) = pair(LEN);
    let data = pattern(LEN, 3);
    left.memory.fill(0, &data);
    let on_demand = Memory::new(&left.pd, LEN, Access::ON_DEMAND | Access::LOCAL_WRITE);
    on_demand.fill(0, &data);
    let nothing = left.pd.alloc_null_mr().unwrap();
    let zeros = Sge {
        addr: 4096,
        length: 70_001,
        lkey: nothing.lkey().0,
    };
    // Elements end in the middle of packets, and in the middle of runs of packets.
    let sges = [
        left.memory.sge(0, 99_999),
        zeros,
        on_demand.sge(170_000, 64_003),
        left.memory.sge(234_003, LEN - 234_003),
    ];
    let mut expected = data.clone();
    expected[99_999..170_000].fill(0);
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    for operation in [Operation::Write { va, rkey }, Operation::Send] {
        right.memory.fill(0, &vec![0xaa; LEN]);
        right.recv(3, 0, LEN);
        let wr = SendWr {
            sges: &sges,
            ..signalled(operation, zeros)
        };
        left.qp.post_send(&wr).unwrap();
        left.ok();
        let arrived = right.memory.bytes(0, LEN);
        assert!(arrived == expected, "{operation:?}");
    }
    // The responder of a READ reads on-demand memory, too.
    let served = Memory::new(
        &right.pd,
        LEN,
        Access::ON_DEMAND | Access::LOCAL_WRITE | Access::REMOTE_READ,
    );
    served.fill(0, &data);
    let va = served.address() + 1;
    let rkey = served.mr.rkey();
    left.memory.fill(0, &vec![0xaa; LEN]);
    left.send(Operation::Read { va, rkey }, 0, LEN - 1);
    left.ok();
    assert!(left.memory.bytes(0, LEN - 1) == data[1..]);
}

#[test]
fn a_write_with_immediate_data_consumes_a_receive() {
    let (left, right) = pair(4096);
    right.recv(3, 0, 0);
    left.memory.fill(50, b"data");
    let (va, rkey) = (right.memory.address() + 1000, right.memory.mr.rkey());
    left.send(
        Operation::WriteImm {
            va,
            rkey,
            imm: [9, 8, 7, 6],
        },
        50,
        4,
    );
    let received = right.ok();
    assert_eq!((received.wr_id, received.byte_len), (3, 4));
    assert_eq!(received.opcode, CompletionOpcode::ReceiveWriteImm);
    assert_eq!(received.imm, Some([9, 8, 7, 6]));
    assert_eq!(right.memory.bytes(1000, 4), b"data");
    left.ok();
}

#[test]
fn atomics_change_remote_memory_and_return_what_it_held() {
    let (left, right) = pair(64);
    right.memory.fill(8, &5u64.to_ne_bytes());
    let (va, rkey) = (right.memory.address() + 8, right.memory.mr.rkey());
    left.send(Operation::FetchAdd { va, rkey, add: 37 }, 0, 8);
    assert_eq!(left.ok().opcode, CompletionOpcode::FetchAdd);
    assert_eq!((left.memory.word(0), right.memory.word(8)), (5, 42));
    left.send(
        Operation::CompareSwap {
            va,
            rkey,
            compare: 42,
            swap: 1,
        },
        0,
        8,
    );
    assert_eq!(left.ok().opcode, CompletionOpcode::CompareSwap);
    assert_eq!((left.memory.word(0), right.memory.word(8)), (42, 1));
    left.send(
        Operation::CompareSwap {
            va,
            rkey,
            compare: 42,
            swap: 2,
        },
        0,
        8,
    );
    left.ok();
    assert_eq!((left.memory.word(0), right.memory.word(8)), (1, 1));
    left.send(
        Operation::FetchAdd {
            va: va + 4,
            rkey,
            add: 1,
        },
        0,
        8,
    );
    assert_eq!(left.complete().status, Status::RemoteInvalidRequest);
}

#[test]
fn datagrams_come_with_the_header_they_arrived_under() {
    let (left, right) = wired();
    let (left, right) = (
        End::new(&left, QpType::Ud, 2048),
        End::new(&right, QpType::Ud, 2048),
    );
    datagram_to_rts(&left.qp, Qkey(0x1111));
    datagram_to_rts(&right.qp, Qkey(0x2222));
    right.recv(8, 0, 1100);
    let ah = left.pd.create_ah(right.path()).unwrap();
    let send = |qkey| {
        let datagram = Datagram {
            path: *ah.path(),
            qpn: right.qp.number(),
            qkey: Qkey(qkey),
        };
        let sges = [left.memory.sge(0, 5)];
        let flags = SendFlags::SIGNALLED;
        let operation = Operation::SendImm([0, 0, 0, 1]);
        left.qp
            .post_send(&SendWr {
                wr_id: 1,
                operation,
                sges: &sges,
                flags,
                datagram: Some(datagram),
                srqn: 0,
            })
            .unwrap();
        left.ok();
    };
    left.memory.fill(0, b"hello");
    send(0x1111);
    send(0x2222);
    let received = right.ok();
    assert_eq!(
        (received.byte_len, received.src_qpn),
        (45, left.qp.number())
    );
    assert_eq!(received.grh, Some(GrhHeader::Ipv4));
    assert_eq!(right.memory.bytes(40, 5), b"hello");
    assert_eq!(right.memory.bytes(32, 8), [LEFT, RIGHT].concat());
    wait_until("the wrong key to be counted", || {
        counter(&right.device, "drop_bad_qkey") == 1
    });
}

#[test]
fn a_bad_network_delays_and_changes_nothing() {
    let (left, right) = (IpAddr::from(LEFT), IpAddr::from(RIGHT));
    let (a, b) = sim::pair(&[left], &[right]).unwrap();
    let spec = |seed| {
        format!("drop=2%,dup=2%,reorder=2%,corrupt=1%,seed={seed}")
            .parse()
            .unwrap()
    };
    let (a, b) = (Impaired::new(a, spec(3)), Impaired::new(b, spec(4)));
    let (left, right) = wired_on((left, Box::new(a)), (right, Box::new(b)));
    let (left, right) = pair_on(&left, &right, 300_000);
    for seed in 0..4 {
        let data = pattern(300_000, seed);
        left.memory.fill(0, &data);
        left.qp.post_send(&left.write(&right, 0, 300_000)).unwrap();
        left.ok();
        assert_eq!(right.memory.bytes(0, 300_000), data);
        left.memory.fill(0, &[0; 300_000]);
        let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
        left.send(Operation::Read { va, rkey }, 0, 300_000);
        left.ok();
        assert_eq!(left.memory.bytes(0, 300_000), data);
        right.memory.fill(0, &seed.to_ne_bytes().repeat(8));
        let before = right.memory.word(0);
        left.send(Operation::FetchAdd { va, rkey, add: 1 }, 0, 8);
        left.ok();
        assert_eq!(
            (left.memory.word(0), right.memory.word(0)),
            (before, before + 1)
        );
    }
    assert!(counter(&left.device, "retransmits") > 0);
    assert!(counter(&right.device, "drop_bad_icrc") > 0);
}

#[test]
fn many_queue_pairs_share_the_way_and_all_arrive() {
    let (left, right) = wired();
    let pairs: Vec<_> = (0..16).map(|_| pair_on(&left, &right, 64 << 10)).collect();
    for (seed, (left, right)) in pairs.iter().enumerate() {
        left.memory.fill(0, &pattern(64 << 10, seed as u8));
        for _ in 0..8 {
            left.qp.post_send(&left.write(right, 0, 64 << 10)).unwrap();
        }
    }
    for (seed, (left, right)) in pairs.iter().enumerate() {
        for _ in 0..8 {
            left.ok();
        }
        assert_eq!(
            right.memory.bytes(0, 64 << 10),
            pattern(64 << 10, seed as u8)
        );
    }
}
