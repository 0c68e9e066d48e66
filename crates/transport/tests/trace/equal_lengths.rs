//! Messages in packets of one length, the last one padded, between peers that have agreed on long
//! packets (400 bytes; the path MTU is 256) and on this.

use std::collections::VecDeque;

use airdma_transport::*;
use airdma_wire::padded::{PADDING_MIN, pad_packet};
use airdma_wire::*;

use crate::bench::*;

const LONG: u32 = 400;
const P0: u32 = 0xff_fffe;
const WRITE: Operation = Operation::Write {
    va: REGION_VA,
    rkey: RKEY,
};
const READ: Operation = Operation::Read {
    va: REGION_VA,
    rkey: RKEY,
};

fn bench() -> Bench {
    let mut b = Bench::connected();
    b.qp.set_selective(Some(&ReorderMemory::new(1 << 20)));
    b.qp.set_equal_lengths(true);
    b.qp.set_long_payloads(LONG, LONG, true);
    b
}

/// Lengths of packets, BTH to padding.
fn lengths(b: &mut Bench) -> Vec<usize> {
    let packets = std::iter::from_fn(|| b.sends_bytes());
    packets.map(|bytes| bytes.len()).collect()
}

#[test]
fn a_message_is_divided_evenly_and_its_end_padded() {
    let mut b = bench();
    b.post(WRITE, 1000);
    b.post(Operation::Send, 1001);
    b.post(Operation::Send, 401);
    b.post(Operation::SendImm([1; 4]), 1000);
    b.post(Operation::Send, 400);
    b.post(WRITE, 385);
    assert_eq!(
        b.sends(),
        [
            // 1,016 bytes with the RETH are three times 339.
            "WriteFirst 16777214 va=0x1000+1000 [324]",
            "WriteMiddle 16777215 [340]",
            "WriteLast 0 [336] pad=4",
            // Three bytes are a pad.
            "SendFirst 1 [336]",
            "SendMiddle 2 [336]",
            "SendLast 3 [329] pad=7",
            "SendFirst 4 [204]",
            "SendLast 5 [197] pad=7",
            "SendFirst 6 [336]",
            "SendMiddle 7 [336]",
            "SendLastImm 8 [328] pad=4",
            "SendOnly 9 [400]",
            "WriteFirst 10 va=0x1000+385 [188]",
            "WriteLast 11 A [197] pad=7",
        ]
    );
}

#[test]
fn a_first_packet_of_the_path_mtu_would_mean_another_division() {
    let mut b = bench();
    // 256 and 16 bytes of RETH would be 272.
    b.post(WRITE, 2 * 272 - 16);
    b.post(Operation::Send, 2 * 256);
    assert_eq!(
        b.sends(),
        [
            "WriteFirst 16777214 va=0x1000+528 [260]",
            "WriteLast 16777215 [268] pad=8",
            "SendFirst 0 [256]",
            "SendLast 1 A [256]",
        ]
    );
}

#[test]
fn packets_of_every_message_have_one_length() {
    let operations = [
        Operation::Send,
        Operation::SendImm([1; 4]),
        Operation::SendInvalidate(RKEY),
        WRITE,
        Operation::WriteImm {
            va: REGION_VA,
            rkey: RKEY,
            imm: [1; 4],
        },
    ];
    for operation in operations {
        for length in (1..3000).step_by(7) {
            let mut b = bench();
            b.post(operation, length);
            let lengths = lengths(&mut b);
            let (first, all) = (lengths[0], lengths.iter().sum::<usize>());
            assert!(lengths.iter().all(|&other| other == first), "{lengths:?}");
            let headers = 12 * lengths.len() + 20;
            assert!(first <= Bth::LEN + LONG as usize + 16, "{lengths:?}");
            let padding = all.saturating_sub(length as usize + headers);
            assert!(padding <= 8 * lengths.len(), "{length}: {padding}");
            let wanted = (length as usize + 20).div_ceil(LONG as usize);
            assert!(lengths.len() <= wanted, "{length}: {lengths:?}");
        }
    }
}

#[test]
fn to_a_peer_without_it_no_packet_is_padded() {
    let mut b = bench();
    b.qp.set_equal_lengths(false);
    b.post(WRITE, 1000);
    b.post(READ, 1000);
    assert_eq!(
        b.sends(),
        [
            "WriteFirst 16777214 va=0x1000+1000 [384]",
            "WriteMiddle 16777215 [400]",
            "WriteLast 0 [216]",
            "ReadRequest 1 A va=0x1000+1000 each=400",
        ]
    );
    // Requests that have begun stay as they are.
    b.post(WRITE, 1000);
    b.qp.set_equal_lengths(true);
    assert_eq!(b.sends()[1], "WriteMiddle 5 [340]");
}

#[test]
fn a_read_asks_for_one_length_and_gets_it() {
    let mut b = bench();
    b.post(READ, 1000);
    b.post(READ, 400);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 A va=0x1000+1000 equal=336",
            "ReadRequest 1 A va=0x1000+400 each=400",
        ]
    );
    let mut b = bench();
    let equal = Lreth {
        payload: 336,
        is_equal: true,
    };
    b.read_arrives_with(100, REGION_VA, 1000, &equal.to_bytes());
    let whole = [
        "ReadResponseMiddle 100 [336]",
        "ReadResponseMiddle 101 [336]",
        "ReadResponseMiddle 102 [328] pad=8",
    ];
    assert_eq!(b.sends(), whole);
    // From the middle on, and with whatever the request states.
    b.read_arrives(101, REGION_VA + 336, 664);
    assert_eq!(b.sends(), whole[1..]);
    b.read_arrives(102, REGION_VA + 672, 328);
    assert_eq!(b.sends(), ["ReadResponseMiddle 102 [328]"]);
    assert_eq!(b.qp.state(), QpState::ReadyToSend);
}

#[test]
fn a_very_long_read_has_pieces_of_whole_packets() {
    let mut b = bench();
    b.post(READ, 100_000);
    let sent = b.sends();
    assert_eq!(
        sent,
        [
            "ReadRequest 16777214 A va=0x1000+65600 equal=400",
            "ReadRequest 162 A va=0x11040+34400 equal=400"
        ]
    );
    // A last piece that is less than the path MTU, in one packet.
    let mut b = bench();
    b.post(READ, 65_600 + 100);
    assert_eq!(
        b.sends(),
        [
            "ReadRequest 16777214 A va=0x1000+65600 equal=400",
            "ReadRequest 162 A va=0x11040+100"
        ]
    );
}

/// Two ends that lose packets.
struct Exchange {
    ends: [Bench; 2],
    wires: [VecDeque<Vec<u8>>; 2],
    seed: u64,
}

impl Exchange {
    fn below(&mut self, sides: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.seed >> 33) % sides
    }

    /// Brings a packet to the other end, whose PSNs begin elsewhere.
    fn deliver(&mut self, from: usize, mut bytes: Vec<u8>) {
        let is_request = parse(&bytes).headers.bth.opcode.is_request();
        let header = attributes();
        let shift = header.rq_psn.distance_from(header.sq_psn);
        let shift = if is_request { shift } else { -shift };
        let number = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
        let moved = number.wrapping_add_signed(shift) & 0x00ff_ffff;
        bytes[9..12].copy_from_slice(&moved.to_be_bytes()[1..]);
        let bench = &mut self.ends[1 - from];
        if let Some((bth, payload)) = split_middle(&bytes)
            && bench
                .qp
                .take_middle(bench.now, &bth, payload, &mut bench.host)
        {
            return;
        }
        bench.bytes_arrive(&bytes);
    }

    fn report(&mut self, end: usize) {
        let mut missing = [PsnRange {
            first: Psn::new(0),
            packets: 0,
        }; 23];
        let header = attributes();
        let shift = header.sq_psn.distance_from(header.rq_psn) as u32;
        let Some((expected, count)) = self.ends[end].qp.take_report(&mut missing) else {
            return;
        };
        for range in &mut missing[..count] {
            range.first = range.first.add(shift);
        }
        let told = Acknowledgement {
            expected: expected.add(shift),
            missing: &missing[..count],
            rtt: std::time::Duration::from_millis(4),
            told_within: std::time::Duration::from_millis(1),
        };
        let other = &mut self.ends[1 - end];
        other
            .qp
            .handle_acknowledgement(other.now, &told, &mut other.host);
    }
}

#[test]
fn messages_arrive_whole_whatever_is_lost() {
    for seed in 0..40 {
        let mut exchange = Exchange {
            ends: [bench(), bench()],
            wires: Default::default(),
            seed,
        };
        exchange.ends[0].host.memory.fill(0);
        for (at, byte) in (0..).zip(&mut exchange.ends[1].host.memory) {
            *byte = (at % 251) as u8;
        }
        let loss = [0, 20, 6][seed as usize % 3];
        let mut lengths = Vec::new();
        for index in 0..8 {
            let length = 1 + exchange.below(3000) as u32;
            lengths.push(length);
            let operation = [Operation::Send, READ, Operation::SendImm([7; 4])][index % 3];
            exchange.ends[1].post_receive(100 + index as u64, 3000);
            exchange.ends[0].post(operation, length);
        }
        for _ in 0..400 {
            for end in 0..2 {
                while let Some(bytes) = exchange.ends[end].sends_bytes() {
                    exchange.wires[end].push_back(bytes);
                }
            }
            for from in 0..2 {
                while let Some(packet) = exchange.wires[from].pop_front() {
                    if loss == 0 || exchange.below(loss) > 0 {
                        exchange.deliver(from, packet);
                    }
                }
            }
            for end in 0..2 {
                exchange.report(end);
                let bench = &mut exchange.ends[end];
                bench.now = bench.now + std::time::Duration::from_millis(50);
                bench.qp.handle_timeout(bench.now, &mut bench.host);
            }
        }
        let sent = exchange.ends[0].log();
        assert_eq!(sent.len(), lengths.len(), "{seed}: {sent:?}");
        assert!(sent.iter().all(|line| line.contains("Success")), "{sent:?}");
        let received = exchange.ends[1].log();
        let sends: Vec<_> = (0..8).filter(|index| index % 3 != 1).collect();
        assert_eq!(received.len(), sends.len(), "{received:?}");
        for index in (0..8).filter(|index| index % 3 == 1) {
            let length = lengths[index] as usize;
            let message = &exchange.ends[0].host.messages[&(index as u32)];
            assert!(message[..length] == exchange.ends[1].host.memory[..length]);
        }
    }
}

/// The first 664 of 1,000 bytes arrived.
fn with_two_packets_of_a_write() -> Bench {
    let mut b = bench();
    b.write_arrives(
        Opcode::RcWriteFirst,
        100,
        &[1; 324],
        Some(Reth {
            va: REGION_VA,
            rkey: RKEY,
            length: 1000,
        }),
    );
    b.write_arrives(Opcode::RcWriteMiddle, 101, &[2; 340], None);
    b
}

#[test]
fn padding_of_a_write_is_not_written() {
    let mut b = with_two_packets_of_a_write();
    let last = padded(Opcode::RcWriteLast, 102, &[3; 336], 4);
    b.bytes_arrive(&last);
    assert_eq!(b.counted(Counter::MessagesReceived), 1);
    let start = (REGION_VA - 0x1000) as usize;
    assert!(b.host.memory[start + 664..][..336] == [3; 336]);
    assert_ne!(b.host.memory[start + 1000..][..4], [0; 4], "as before");
    assert!(b.qp.takes_padded());
}

#[test]
fn the_payload_of_a_padded_packet_is_checked_as_any() {
    // More than the message has left, and less.
    for length in [335, 337] {
        let mut b = with_two_packets_of_a_write();
        b.bytes_arrive(&padded(Opcode::RcWriteLast, 102, &vec![3; length], 7));
        assert_eq!(b.qp.state(), QpState::Error, "{length}");
    }
    // Padding does not make a middle response of a READ shorter.
    let mut b = bench();
    b.post(READ, 1000);
    b.sends();
    b.bytes_arrive(&padded(Opcode::RcReadResponseMiddle, P0, &[1; 332], 4));
    assert_eq!(b.log()[0], "send 0 BadResponse");
    // A message does not begin with a last packet.
    let mut b = bench();
    b.bytes_arrive(&padded(Opcode::RcSendLast, 100, &[1; 332], 4));
    assert_eq!(b.qp.state(), QpState::Error);
}

#[test]
fn a_queue_pair_that_agreed_on_nothing_takes_no_padding() {
    assert!(!Bench::connected().qp.takes_padded());
}

fn padded(opcode: Opcode, psn: u32, payload: &[u8], padding: usize) -> Vec<u8> {
    assert!(padding >= PADDING_MIN);
    let headers = Headers::new(Bth::new(opcode, Qpn::new(QPN), Psn::new(psn)));
    let mut bytes = vec![0; Bth::LEN];
    headers.emit(&mut bytes);
    bytes.extend(payload);
    bytes.resize((bytes.len() + padding).next_multiple_of(4), 0);
    let padding = bytes.len() - Bth::LEN - payload.len();
    pad_packet(&mut bytes, padding as u16);
    bytes
}
