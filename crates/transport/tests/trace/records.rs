//! Write-Records as their requester sends them.

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const INSTANCE: Psn = Psn::new(0x12_3456);
const VA: u64 = 0x7000;

fn requester() -> Bench {
    let mut bench = Bench::datagram();
    // 256 bytes of payload, with the headers of IPv6.
    bench.qp.set_record_requester(INSTANCE, 360);
    bench
}

fn post(bench: &mut Bench, operation: Operation, length: u32) {
    bench.post_with(operation, length, |request| {
        request.datagram = Some(Datagram {
            path: Path::default(),
            qpn: Qpn::new(0x33),
            qkey: Qkey(5),
        });
    });
}

fn record() -> Operation {
    Operation::Record { va: VA, rkey: RKEY }
}

/// Number, offset, unit and payload of each packet that leaves.
fn sent(bench: &mut Bench) -> Vec<(u32, u32, u16, usize)> {
    let packets = std::iter::from_fn(|| bench.sends_bytes());
    packets
        .map(|bytes| {
            let packet = RecordPacket::parse(&bytes).unwrap();
            let Rceth {
                id, offset, unit, ..
            } = packet.headers.rceth;
            (id, offset, unit, packet.payload.len())
        })
        .collect()
}

#[test]
fn a_message_leaves_in_packets_of_equal_length() {
    let mut b = requester();
    post(&mut b, record(), 1000);
    assert_eq!(
        sent(&mut b),
        [
            (0, 0, 252, 252),
            (0, 252, 252, 252),
            (0, 504, 252, 252),
            (0, 756, 252, 244)
        ]
    );
    assert_eq!(b.log(), ["send 0 Success"]);
    let completion = b.host.last_sent.unwrap();
    assert_eq!(completion.opcode, CompletionOpcode::Record);
    assert_eq!(completion.byte_len, 1000);
}

#[test]
fn each_packet_describes_the_whole_message() {
    let mut b = requester();
    let imm = [9, 8, 7, 6];
    post(
        &mut b,
        Operation::RecordImm {
            va: VA,
            rkey: RKEY,
            imm,
        },
        600,
    );
    for _ in 0..3 {
        let bytes = b.sends_bytes().unwrap();
        let packet = RecordPacket::parse(&bytes).unwrap();
        let headers = packet.headers;
        assert_eq!(headers.bth.psn, INSTANCE);
        assert_eq!(headers.bth.dest_qpn, Qpn::new(0x33));
        let deth = Deth {
            qkey: Qkey(5),
            src_qpn: Qpn::new(QPN),
        };
        assert_eq!(headers.deth, deth);
        let reth = Reth {
            va: VA,
            rkey: RKEY,
            length: 600,
        };
        assert_eq!((headers.reth, headers.imm), (reth, Some(imm)));
        let offset = headers.rceth.offset as usize;
        let message = &b.host.messages[&0];
        assert_eq!(packet.payload, &message[offset..][..packet.payload.len()]);
    }
    assert_eq!(b.sends_bytes(), None);
}

#[test]
fn messages_are_numbered_and_a_short_one_is_one_packet() {
    let mut b = requester();
    for length in [1, 256, 257] {
        post(&mut b, record(), length);
    }
    assert_eq!(
        sent(&mut b),
        [
            (0, 0, 1, 1),
            (1, 0, 256, 256),
            (2, 0, 132, 132),
            (2, 132, 132, 125)
        ]
    );
}

#[test]
fn a_message_that_failed_in_the_middle_keeps_its_number() {
    let mut b = requester();
    post(&mut b, record(), 600);
    b.sends_bytes().unwrap();
    b.host.local_fault = true;
    assert_eq!(b.sends_bytes(), None);
    assert_eq!(b.log(), ["send 0 LocalProtectionError"]);
    b.host.local_fault = false;
    b.modify(QpState::ReadyToSend);
    post(&mut b, record(), 8);
    assert_eq!(sent(&mut b), [(1, 0, 8, 8)], "and its offset is not kept");
}

#[test]
fn a_message_of_no_bytes_is_refused() {
    let mut b = requester();
    post(&mut b, record(), 0);
    assert_eq!(sent(&mut b), []);
    assert_eq!(b.log(), ["send 0 LocalLengthError"]);
}

#[test]
fn unreliable_connections_have_no_records() {
    let mut b = Bench::unreliable();
    b.post(record(), 8);
    assert_eq!(b.sends_bytes(), None);
    assert_eq!(b.log(), ["send 0 LocalQpOperationError"]);
}

#[test]
fn the_queue_pair_checks_state_partition_and_key() {
    let mut b = requester();
    post(&mut b, record(), 8);
    let bytes = b.sends_bytes().unwrap();
    let mut packet = RecordPacket::parse(&bytes).unwrap();
    let mut records = RecordTarget::new(RecordConfig::default(), [1, 2]).unwrap();
    let mut host = crate::record_target::Memory::default();
    let arrival = Arrival {
        source: [10, 0, 0, 2].into(),
        destination: [10, 0, 0, 1].into(),
        tos: 0,
        ttl: 64,
        flow_label: 0,
    };
    let mut counted = |qp: &QueuePair, packet: &RecordPacket<'_>, counter| {
        qp.handle_record(Time::ZERO, &arrival, packet, &mut records, &mut host);
        assert_eq!(host.counted(counter), 1, "{counter:?}");
    };
    counted(&b.qp, &packet, Counter::DropBadQkey);
    packet.headers.bth.pkey = 0x7ffe;
    counted(&b.qp, &packet, Counter::DropBadPkey);
    packet.headers.bth.pkey = 0xffff;
    packet.headers.deth.qkey = QKEY;
    counted(&Bench::connected().qp, &packet, Counter::DropMalformed);
    counted(&Bench::reset(QpType::Ud).qp, &packet, Counter::DropBadState);
    counted(&b.qp, &packet, Counter::DropRecordRefused);
}

fn post_to(bench: &mut Bench, last: u8, length: u32) {
    bench.post_with(record(), length, |request| {
        let gid = std::net::IpAddr::from([192, 0, 2, last]).into();
        request.datagram = Some(Datagram {
            path: Path {
                gid,
                ..Path::default()
            },
            qpn: Qpn::new(last.into()),
            qkey: Qkey(5),
        });
    });
}

/// The next packet of a destination: its place, number, offset, and whether it asks.
fn leaves(b: &mut Bench, to: u8, asks: bool) -> Option<(u64, u32, u32)> {
    let mut place = 0;
    loop {
        let next = b.qp.next_datagram_at(place)?;
        let (at, qpn) = (next.place, next.qpn);
        place = at + 1;
        if qpn != Qpn::new(to.into()) {
            continue;
        }
        let mut out = [0; 4300];
        let sent =
            b.qp.poll_datagram_at(at, RecordForm { asks, pads: false }, &mut b.host, &mut out)?;
        let packet = RecordPacket::parse(&out[..sent.transmit.len]).unwrap();
        let Rceth { id, offset, .. } = packet.headers.rceth;
        assert_eq!(sent.part, Some((id, offset)));
        assert_eq!(packet.headers.bth.ack_request, asks);
        return Some((at, id, offset));
    }
}

#[test]
fn destinations_are_taken_apart_and_completions_stay_in_order() {
    let mut b = requester();
    post_to(&mut b, 1, 600);
    post_to(&mut b, 2, 400);
    post_to(&mut b, 1, 10);
    post_to(&mut b, 2, 10);
    assert!(b.qp.has_records());
    assert_eq!(leaves(&mut b, 1, false), Some((0, 0, 0)));
    // Messages are numbered in the order of posting.
    assert_eq!(leaves(&mut b, 2, true), Some((1, 1, 0)));
    assert_eq!(leaves(&mut b, 2, false), Some((1, 1, 200)));
    assert_eq!(leaves(&mut b, 2, false), Some((3, 3, 0)));
    assert_eq!(leaves(&mut b, 2, false), None);
    assert_eq!(b.log(), [""; 0], "the first one is not done");
    assert_eq!(leaves(&mut b, 1, false), Some((0, 0, 200)));
    assert_eq!(leaves(&mut b, 1, true), Some((0, 0, 400)));
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
    assert_eq!(leaves(&mut b, 1, false), Some((2, 2, 0)));
    assert_eq!(b.log(), ["send 2 Success", "send 3 Success"]);
    assert!(!b.qp.has_records() && b.qp.next_datagram_at(0).is_none());
}

#[test]
fn a_request_that_fails_ahead_of_others_fails_in_its_turn() {
    let mut b = requester();
    post_to(&mut b, 1, 10);
    post_to(&mut b, 2, 0);
    post_to(&mut b, 3, 10);
    assert_eq!(leaves(&mut b, 2, false), None);
    // As if all had been sent in order.
    assert_eq!(leaves(&mut b, 3, false), None);
    assert_eq!(b.log(), [""; 0]);
    assert_eq!(leaves(&mut b, 1, false), Some((0, 0, 0)));
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(leaves(&mut b, 2, false), None);
    assert_eq!(b.log(), ["send 1 LocalLengthError", "send 2 WrFlushError"]);
}

#[test]
fn what_left_ahead_of_a_failure_succeeds() {
    let mut b = requester();
    for to in [1, 2, 3] {
        post_to(&mut b, to, 10);
    }
    assert_eq!(leaves(&mut b, 2, false), Some((1, 1, 0)));
    b.qp.modify(
        &QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        },
        AttrMask::STATE,
        &mut b.host,
    )
    .unwrap();
    assert_eq!(
        b.log(),
        [
            "send 0 WrFlushError",
            "send 1 Success",
            "send 2 WrFlushError"
        ]
    );
}
