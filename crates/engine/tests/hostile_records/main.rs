//! Hostile records: packets made by hand against a queue pair that takes records. Each is counted
//! by its reason, no byte outside of the granted region changes, and the next message arrives.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod reliable;

use airdma_engine::*;
use airdma_port::{Destination, Port, TransmitBatch, sim};
use airdma_wire::{Bth, Deth, Opcode, RECORD_OPCODE, Rceth, RecordEcho, RecordHeaders, Reth};
use common::*;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const QKEY: Qkey = Qkey(0x1234);
const BYTES: usize = 4096;
/// Begin and end of the memory for records.
const GRANTED: std::ops::Range<usize> = 1024..3072;

struct Siege {
    end: End,
    region: Arc<Mr>,
    port: Box<dyn Port>,
    batch: TransmitBatch,
    id: u32,
}

impl Siege {
    fn new() -> Self {
        Self::with(RecordConfig::default())
    }

    fn with(config: RecordConfig) -> Self {
        let left = IpAddr::from(LEFT);
        let (a, b) = sim::pair(&[left], &[IpAddr::from(RIGHT)]).unwrap();
        let device = Device::plain_with_port(info("left", left), Box::new(a)).unwrap();
        let end = End::new(&device, QpType::Ud, BYTES);
        datagram_to_rts(&end.qp, QKEY);
        end.qp.enable_records(config).unwrap();
        end.memory.fill(0, &pattern(BYTES, 0));
        let va = end.memory.address() + GRANTED.start as u64;
        let region = end.pd.reg_record_mr(va, GRANTED.len(), None).unwrap();
        Siege {
            end,
            region,
            port: Box::new(b),
            batch: TransmitBatch::with_capacity(1 << 16, 64),
            id: 0,
        }
    }

    fn va(&self) -> u64 {
        self.end.memory.address() + GRANTED.start as u64
    }

    /// A message of 64 bytes in units of 16.
    fn headers(&self) -> RecordHeaders {
        RecordHeaders {
            bth: Bth::new(Opcode::UdSendOnly, self.end.qp.number(), Psn::new(9)),
            deth: Deth {
                qkey: QKEY,
                src_qpn: Qpn::new(0x4321),
            },
            reth: Reth {
                va: self.va(),
                rkey: self.region.rkey(),
                length: 64,
            },
            rceth: Rceth {
                id: self.id,
                offset: 16,
                unit: 16,
                round: 0,
            },
            is_send: false,
            token: None,
            read: None,
            imm: None,
        }
    }

    fn bytes(&self, headers: &RecordHeaders, payload: &[u8]) -> Vec<u8> {
        let mut headers = *headers;
        headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        let mut bytes = vec![0; 64];
        let length = headers.emit(&mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn send(&mut self, bytes: &[u8]) {
        let destination = Destination {
            address: IpAddr::from(LEFT).into(),
            source_index: 0,
            tos: 0,
            hop_limit: 64,
            flow_label: 0,
            bundles: false,
        };
        self.batch
            .reserve(bytes.len())
            .unwrap()
            .copy_from_slice(bytes);
        self.batch.commit(bytes.len(), destination);
        self.port.transmit(&mut self.batch).unwrap();
    }

    fn counts(&self, reason: &str, times: u64) {
        let (device, cq) = (&self.end.device, &self.end.cq);
        wait_until(reason, || {
            cq.poll(0, |_| ()).unwrap();
            counter(device, reason) == times
        });
    }

    /// A whole message of 4 bytes arrives.
    fn alive(&mut self, payload: &[u8; 4]) {
        self.id += 1;
        let mut headers = self.headers();
        headers.reth.length = 4;
        headers.rceth.offset = 0;
        let bytes = self.bytes(&headers, payload);
        self.send(&bytes);
        loop {
            let completion = self.end.ok();
            assert_eq!(completion.opcode, CompletionOpcode::ReceiveRecord);
            let handle = RecordHandle(completion.wr_id);
            let seen = self
                .end
                .qp
                .record(handle, |record| (record.id, record.ended));
            assert!(self.end.qp.free_record(handle));
            // Others may have been displaced.
            if seen == Some((self.id, Some(Ended::Whole))) {
                break;
            }
        }
        assert_eq!(self.end.memory.bytes(GRANTED.start, 4), payload);
    }

    /// Nothing but the first four bytes of the region changed.
    fn untouched(&self) {
        self.untouched_but(GRANTED.start..GRANTED.start + 4);
    }

    fn untouched_but(&self, range: std::ops::Range<usize>) {
        let mut expected = pattern(BYTES, 0);
        let bytes = self.end.memory.bytes(range.start, range.len());
        expected[range].copy_from_slice(&bytes);
        assert_eq!(self.end.memory.bytes(0, BYTES), expected);
    }
}

/// What is wrong with a packet.
type Lie = fn(&Siege, &mut RecordHeaders);

#[test]
fn each_lie_is_counted_by_its_reason() {
    let lies: &[(&str, Lie)] = &[
        ("drop_bad_qkey", |_, h| h.deth.qkey = Qkey(0x1235)),
        ("drop_bad_pkey", |_, h| h.bth.pkey = 0x7ffe),
        ("drop_unknown_qp", |_, h| {
            h.bth.dest_qpn = Qpn::new(0x77_7777)
        }),
        ("drop_record_refused", |_, h| h.reth.rkey.0 ^= 1),
        ("drop_record_refused", |_, h| h.reth.rkey.0 ^= 1 << 20),
        ("drop_record_refused", |s, h| {
            h.reth.rkey = s.end.memory.mr.rkey();
        }),
        ("drop_record_refused", |_, h| h.reth.va -= 1),
        ("drop_record_refused", |_, h| {
            h.reth.va += GRANTED.len() as u64 - 63;
        }),
        ("drop_record_refused", |_, h| h.reth.va = 0),
        ("drop_record_refused", |_, h| h.reth.length = 2049),
        ("drop_record_refused", |_, h| h.reth.length = (1 << 31) - 1),
        ("drop_malformed", |_, h| h.reth.va = u64::MAX - 8),
        ("drop_malformed", |_, h| h.reth.length = 0),
        ("drop_malformed", |_, h| h.reth.length = 31),
        ("drop_malformed", |_, h| h.reth.length = 1 << 31),
        ("drop_malformed", |_, h| h.reth.length = u32::MAX),
        ("drop_malformed", |_, h| h.rceth.unit = 0),
        ("drop_malformed", |_, h| h.rceth.unit = 15),
        ("drop_malformed", |_, h| h.rceth.unit = u16::MAX),
        ("drop_malformed", |_, h| h.rceth.offset = 17),
        ("drop_malformed", |_, h| h.rceth.offset = 64),
        ("drop_malformed", |_, h| h.rceth.offset = u32::MAX - 15),
    ];
    for (number, (reason, lie)) in lies.iter().enumerate() {
        let mut siege = Siege::new();
        let mut headers = siege.headers();
        lie(&siege, &mut headers);
        let bytes = siege.bytes(&headers, &[0xee; 16]);
        siege.send(&bytes);
        siege.counts(reason, 1);
        siege.untouched();
        siege.alive(b"fine");
        siege.untouched();
        assert_eq!(counter(&siege.end.device, reason), 1, "lie {number}");
    }
}

#[test]
fn packets_of_other_shapes_are_dropped() {
    let mut siege = Siege::new();
    let good = siege.bytes(&siege.headers(), &[0xee; 16]);
    let mut truncated = 0;
    for length in (16..48).step_by(4) {
        siege.send(&good[..length]);
        truncated += 1;
    }
    siege.counts("drop_truncated", truncated);
    let mut versions = 0;
    for (at, byte) in [(46, 0x20), (46, 0), (1, 0x41)] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        siege.send(&bytes);
        versions += 1;
    }
    siege.counts("drop_malformed", versions);
    assert_eq!(good[0], RECORD_OPCODE);
    siege.untouched();
    siege.alive(b"fine");
}

#[test]
fn a_packet_after_its_record_was_read_changes_nothing() {
    let mut siege = Siege::new();
    siege.alive(b"good");
    let mut headers = siege.headers();
    headers.reth.length = 4;
    headers.rceth.offset = 0;
    let replay = siege.bytes(&headers, b"evil");
    siege.send(&replay);
    siege.counts("drop_record_late", 1);
    assert_eq!(siege.end.memory.bytes(GRANTED.start, 4), b"good");
    siege.alive(b"next");
}

/// Memory that two messages share belongs to neither, and each ends as it would alone.
#[test]
fn messages_that_overlap_end_each_for_itself() {
    let mut siege = Siege::new();
    let mut ends = Vec::new();
    for (id, unit) in [
        (1, 1),
        (2, 2),
        (1, 0),
        (2, 0),
        (1, 2),
        (2, 1),
        (1, 3),
        (2, 3),
    ] {
        let mut headers = siege.headers();
        (headers.rceth.id, headers.rceth.offset) = (id, 16 * unit);
        headers.reth.va += 8 * u64::from(id);
        let bytes = siege.bytes(&headers, &[id as u8; 16]);
        siege.send(&bytes);
    }
    for _ in 0..2 {
        let handle = RecordHandle(siege.end.ok().wr_id);
        let seen = |record: &Record<'_>| (record.id, record.valid_bytes, record.ended);
        ends.push(siege.end.qp.record(handle, seen).unwrap());
    }
    let whole = Some(Ended::Whole);
    assert_eq!(ends, [(1, 64, whole), (2, 64, whole)]);
    let memory = siege.end.memory.bytes(0, BYTES);
    let (first, last) = (GRANTED.start + 8, GRANTED.start + 16 + 64);
    assert!(memory[first..last].iter().all(|byte| [1, 2].contains(byte)));
    let untouched = pattern(BYTES, 0);
    assert_eq!(memory[..first], untouched[..first]);
    assert_eq!(memory[last..], untouched[last..]);
}

/// A message whose number is far ahead of all others makes those late that follow it, and no
/// message of another source.
#[test]
fn a_number_that_jumps_costs_its_source_only() {
    let mut siege = Siege::new();
    for jump in 0..40 {
        let mut headers = siege.headers();
        headers.reth.length = 4;
        (headers.rceth.id, headers.rceth.offset) = (0x4000_0000 + jump, 0);
        let bytes = siege.bytes(&headers, b"jump");
        siege.send(&bytes);
        let handle = RecordHandle(siege.end.ok().wr_id);
        assert!(siege.end.qp.free_record(handle));
    }
    let mut late = siege.headers();
    late.reth.length = 4;
    (late.rceth.id, late.rceth.offset) = (1, 0);
    let bytes = siege.bytes(&late, b"late");
    siege.send(&bytes);
    siege.counts("drop_record_late", 1);
    late.bth.psn = Psn::new(10);
    let bytes = siege.bytes(&late, b"good");
    siege.send(&bytes);
    siege.end.ok();
    assert_eq!(siege.end.memory.bytes(GRANTED.start, 4), b"good");
}

#[test]
fn an_address_that_opens_messages_without_end_is_bounded() {
    let mut siege = Siege::with(RecordConfig {
        idle: Duration::from_secs(600),
        age: Duration::from_secs(600),
        ..RecordConfig::default()
    });
    for number in 0..1000 {
        let mut headers = siege.headers();
        headers.rceth.id = number * 1_000_003;
        headers.deth.src_qpn = Qpn::new(number);
        let payload = siege.end.memory.bytes(GRANTED.start + 16, 16);
        let bytes = siege.bytes(&headers, &payload);
        siege.send(&bytes);
        siege.end.cq.poll(0, |_| ()).unwrap();
    }
    // Half of 256 entries: 64 messages that stay open, and 64 that these displaced.
    siege.counts("drop_record_full", 1000 - 128);
    assert_eq!(counter(&siege.end.device, "records_partial"), 64);
    let mut displaced = 0;
    while let Some(completion) = siege.end.try_complete() {
        displaced += u32::from(completion.byte_len == 16);
        assert!(siege.end.qp.free_record(RecordHandle(completion.wr_id)));
    }
    assert_eq!(displaced, 64);
    siege.untouched();
    siege.alive(b"fine");
}

#[test]
fn records_that_are_never_freed_cost_no_other_service() {
    let mut siege = Siege::with(RecordConfig {
        open_max: 4,
        closed_max: 4,
        ..RecordConfig::default()
    });
    for id in 0..10 {
        let mut headers = siege.headers();
        headers.reth.length = 4;
        (headers.rceth.id, headers.rceth.offset) = (id, 0);
        let bytes = siege.bytes(&headers, b"full");
        siege.send(&bytes);
    }
    siege.counts("drop_record_full", 6);
    // Datagrams to the same queue pair arrive.
    siege.end.recv(8, 3072, 100);
    let mut send = airdma_wire::Headers::new(Bth::new(
        Opcode::UdSendOnly,
        siege.end.qp.number(),
        Psn::new(0),
    ));
    send.deth = Some(siege.headers().deth);
    let mut bytes = vec![0; send.len()];
    send.emit(&mut bytes);
    bytes.extend([7; 8]);
    siege.send(&bytes);
    let opcodes: Vec<_> = (0..5).map(|_| siege.end.ok().opcode).collect();
    assert_eq!(opcodes[..4], [CompletionOpcode::ReceiveRecord; 4]);
    assert_eq!(opcodes[4], CompletionOpcode::Receive);
}

/// The answers that the device has sent to this host.
fn answers(siege: &mut Siege) -> Vec<RecordEcho> {
    let mut answers = Vec::new();
    let mut take = |received: airdma_port::Received<'_>| {
        answers.extend(RecordEcho::parse(received.bytes));
    };
    siege.port.receive(64, &mut take).unwrap();
    answers
}

#[test]
fn only_a_sender_with_the_right_to_write_is_answered() {
    let mut siege = Siege::new();
    let mut asked = siege.headers();
    asked.bth.ack_request = true;
    let mut unasked = siege.headers();
    unasked.rceth.offset = 0;
    let mut wrong_key = asked;
    wrong_key.reth.rkey.0 ^= 1;
    wrong_key.rceth.id = 77;
    let mut wrong_qkey = asked;
    wrong_qkey.deth.qkey = Qkey(0x1235);
    let mut beyond = asked;
    beyond.reth.va -= 1;
    beyond.rceth.id = 78;
    for headers in [&wrong_key, &wrong_qkey, &beyond, &unasked] {
        let bytes = siege.bytes(headers, &[0xee; 16]);
        siege.send(&bytes);
    }
    siege.counts("drop_record_refused", 2);
    siege.counts("drop_bad_qkey", 1);
    assert_eq!(answers(&mut siege), []);
    // One in time, one that comes again.
    for _ in 0..2 {
        let bytes = siege.bytes(&asked, &[0xee; 16]);
        siege.send(&bytes);
        let mut seen = Vec::new();
        wait_until("an answer", || {
            siege.end.cq.poll(0, |_| ()).unwrap();
            seen.append(&mut answers(&mut siege));
            !seen.is_empty()
        });
        let [echo] = seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!(
            (echo.dest_qpn, echo.src_qpn),
            (Qpn::new(0x4321), siege.end.qp.number())
        );
        assert_eq!((echo.instance, echo.qkey), (Psn::new(9), QKEY));
        assert_eq!((echo.id, echo.offset), (0, 16));
        assert!(echo.socket_bytes_max > 0);
    }
}

#[test]
fn only_questions_with_the_right_q_key_are_answered() {
    let mut siege = Siege::new();
    let question = RecordEcho {
        dest_qpn: siege.end.qp.number(),
        instance: Psn::new(9),
        qkey: QKEY,
        src_qpn: Qpn::new(0x4321),
        id: 7,
        offset: u32::MAX,
        socket_bytes: 0,
        socket_bytes_max: 0,
        entries: None,
        asks: true,
    };
    let wrong = RecordEcho {
        qkey: Qkey(0x1235),
        ..question
    };
    let to_none = RecordEcho {
        dest_qpn: Qpn::new(0x77_7777),
        ..question
    };
    siege.send(&wrong.to_bytes());
    siege.send(&to_none.to_bytes());
    siege.counts("drop_bad_qkey", 1);
    siege.counts("drop_unknown_qp", 1);
    assert_eq!(answers(&mut siege), []);
    siege.send(&question.to_bytes());
    let mut seen = Vec::new();
    wait_until("an answer", || {
        siege.end.cq.poll(0, |_| ()).unwrap();
        seen.append(&mut answers(&mut siege));
        !seen.is_empty()
    });
    let [echo] = seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(
        (echo.dest_qpn, echo.src_qpn),
        (question.src_qpn, question.dest_qpn)
    );
    assert_eq!(
        (echo.instance, echo.id, echo.offset),
        (Psn::new(9), 7, u32::MAX)
    );
    assert!(!echo.asks && echo.entries.is_some_and(|entries| entries > 0));
    siege.alive(b"fine");
}

#[test]
fn answers_without_a_question_change_nothing() {
    let mut siege = Siege::new();
    let forged = RecordEcho {
        dest_qpn: siege.end.qp.number(),
        instance: Psn::new(9),
        qkey: QKEY,
        src_qpn: Qpn::new(0x4321),
        id: 0,
        offset: 0,
        socket_bytes: u32::MAX,
        socket_bytes_max: 1,
        entries: Some(0),
        asks: false,
    };
    siege.send(&forged.to_bytes());
    siege.counts("drop_ghost", 1);
    let to_none = RecordEcho {
        dest_qpn: Qpn::new(0x77_7777),
        ..forged
    };
    siege.send(&to_none.to_bytes());
    siege.counts("drop_unknown_qp", 1);
    let mut longer = forged.to_bytes().to_vec();
    longer.extend_from_slice(&[0; 4]);
    siege.send(&longer);
    siege.counts("drop_malformed", 1);
    siege.alive(b"fine");
}
