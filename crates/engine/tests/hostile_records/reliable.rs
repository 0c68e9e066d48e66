//! Hostile packets of reliable datagrams: records and SENDs that ask to be acknowledged, and
//! answers to them.

use super::*;
use airdma_wire::{RECORD_ACK_LEN, RecordAck, RecordAnswer};

const TOKEN: u64 = 0x0123_4567_89ab_cdef;
/// Bytes of the header at the start of a receive.
const AREA: usize = 40;

impl Siege {
    /// A unit of a reliable message of 64 bytes, which asks.
    fn reliable(&self, id: u32, unit: u32) -> RecordHeaders {
        let mut headers = self.headers();
        headers.bth.ack_request = true;
        (headers.rceth.id, headers.rceth.offset) = (id, 16 * unit);
        headers.token = Some(TOKEN);
        headers
    }

    /// The same of a SEND.
    fn reliable_send(&self, id: u32, unit: u32) -> RecordHeaders {
        RecordHeaders {
            is_send: true,
            reth: Reth {
                length: 64,
                ..Reth::default()
            },
            ..self.reliable(id, unit)
        }
    }

    /// Sends a packet, whose payload is its number.
    fn give(&mut self, headers: &RecordHeaders) {
        let bytes = self.bytes(headers, &[headers.rceth.id as u8; 16]);
        self.send(&bytes);
    }

    /// What the sender of a packet is answered.
    fn asks(&mut self, headers: &RecordHeaders) -> RecordAnswer {
        self.give(headers);
        let mut seen = Vec::new();
        wait_until("an answer", || {
            self.end.cq.poll(0, |_| ()).unwrap();
            seen.append(&mut self.answered());
            !seen.is_empty()
        });
        let [answer] = seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!((answer.token, answer.id), (TOKEN, headers.rceth.id));
        assert_eq!(answer.bth.dest_qpn, headers.deth.src_qpn);
        answer.answer
    }

    fn answered(&mut self) -> Vec<RecordAck> {
        let mut answers = Vec::new();
        let mut take = |received: airdma_port::Received<'_>| {
            answers.extend(RecordAck::parse(received.bytes));
        };
        self.port.receive(64, &mut take).unwrap();
        answers
    }
}

#[test]
fn each_lie_of_a_reliable_datagram_is_counted_by_its_reason() {
    let lies: &[(&str, Lie)] = &[
        ("drop_bad_qkey", |_, h| h.deth.qkey = Qkey(0x1235)),
        ("drop_record_refused", |_, h| h.reth.rkey.0 ^= 1),
        ("drop_record_refused", |_, h| h.reth.va -= 1),
        ("drop_record_refused", |_, h| h.reth.length = 2049),
        ("drop_malformed", |_, h| h.reth.length = 0),
        ("drop_malformed", |_, h| h.reth.length = u32::MAX),
        ("drop_malformed", |_, h| h.rceth.unit = 0),
        ("drop_malformed", |_, h| h.rceth.offset = 64),
        // SENDs: without a receive, acknowledged by none, of lengths that do not fit.
        ("drop_no_receive", |s, h| *h = s.reliable_send(1, 1)),
        ("drop_malformed", |s, h| {
            *h = s.reliable_send(1, 1);
            h.token = None;
        }),
        ("drop_malformed", |s, h| {
            *h = s.reliable_send(1, 1);
            h.reth.length = 0;
        }),
        ("drop_malformed", |s, h| {
            *h = s.reliable_send(1, 1);
            h.reth.va = u64::MAX;
        }),
    ];
    for (number, (reason, lie)) in lies.iter().enumerate() {
        let mut siege = Siege::new();
        let mut headers = siege.reliable(0, 1);
        lie(&siege, &mut headers);
        siege.give(&headers);
        siege.counts(reason, 1);
        siege.untouched();
        siege.alive(b"fine");
        siege.untouched();
        assert_eq!(counter(&siege.end.device, reason), 1, "lie {number}");
    }
}

#[test]
fn a_reliable_datagram_that_is_replayed_is_taken_once() {
    let mut siege = Siege::new();
    siege.end.recv(8, 3072, 200);
    for unit in 0..3 {
        assert_eq!(
            siege.asks(&siege.reliable_send(1, unit)),
            RecordAnswer::Arrives
        );
    }
    assert_eq!(siege.asks(&siege.reliable_send(1, 3)), RecordAnswer::Whole);
    let received = siege.end.ok();
    assert_eq!((received.wr_id, received.byte_len), (8, 64 + AREA as u32));
    siege.end.recv(9, 3072, 200);
    siege.end.memory.fill(3072, &[0xee; 200]);
    for unit in 0..4 {
        assert_eq!(
            siege.asks(&siege.reliable_send(1, unit)),
            RecordAnswer::Whole
        );
    }
    assert_eq!(siege.end.memory.bytes(3072, 200), [0xee; 200]);
    assert_eq!(siege.end.try_complete(), None);
    // The same for a record that was read and freed.
    for unit in 0..4 {
        siege.asks(&siege.reliable(2, unit));
    }
    let handle = RecordHandle(siege.end.ok().wr_id);
    assert!(siege.end.qp.free_record(handle));
    siege.end.memory.fill(GRANTED.start, &[0xee; 64]);
    assert_eq!(siege.asks(&siege.reliable(2, 1)), RecordAnswer::Whole);
    assert_eq!(siege.end.memory.bytes(GRANTED.start, 64), [0xee; 64]);
}

#[test]
fn packets_that_contradict_a_reliable_message_are_dropped() {
    let mut siege = Siege::new();
    siege.end.recv(8, 3072, AREA + 64);
    siege.asks(&siege.reliable_send(1, 0));
    let lies: [fn(&mut RecordHeaders); 4] = [
        |h| h.reth.length = 2000,
        |h| h.rceth.unit = 8,
        |h| h.imm = Some([1; 4]),
        |h| h.reth.va = 8,
    ];
    for (count, lie) in (1..).zip(lies) {
        let mut headers = siege.reliable_send(1, 1);
        lie(&mut headers);
        siege.give(&headers);
        siege.counts("drop_malformed", count);
    }
    for unit in 1..4 {
        siege.asks(&siege.reliable_send(1, unit));
    }
    assert_eq!(siege.end.ok().byte_len, 64 + AREA as u32);
    assert_eq!(siege.end.memory.bytes(3072 + AREA, 64), [1; 64]);
    siege.untouched_but(3072..3072 + AREA + 64);
}

#[test]
fn memory_that_is_taken_back_ends_a_reliable_message() {
    let mut siege = Siege::new();
    assert_eq!(siege.asks(&siege.reliable(1, 0)), RecordAnswer::Arrives);
    siege.region.deregister().unwrap();
    let before = siege.end.memory.bytes(0, BYTES);
    assert_eq!(siege.asks(&siege.reliable(1, 1)), RecordAnswer::Ended);
    assert_eq!(siege.asks(&siege.reliable(2, 1)), RecordAnswer::Refused);
    assert_eq!(siege.end.memory.bytes(0, BYTES), before);
    let handle = RecordHandle(siege.end.ok().wr_id);
    let ended = siege.end.qp.record(handle, |record| record.ended);
    assert_eq!(ended, Some(Some(Ended::TakenBack)));
}

#[test]
fn records_that_are_never_freed_hold_their_address_up_only() {
    let mut siege = Siege::with(RecordConfig {
        open_max: 4,
        closed_max: 4,
        ..RecordConfig::default()
    });
    let mut last = RecordAnswer::Whole;
    for id in 0..10 {
        for unit in 0..4 {
            last = siege.asks(&siege.reliable(id, unit));
        }
        let expected = if id < 4 {
            RecordAnswer::Whole
        } else {
            RecordAnswer::NotReady
        };
        assert_eq!(last, expected, "{id}");
    }
    // A message that was delayed is taken once there is room.
    let handle = RecordHandle(siege.end.ok().wr_id);
    assert!(siege.end.qp.free_record(handle));
    assert_eq!(siege.asks(&siege.reliable(9, 0)), RecordAnswer::Arrives);
}

#[test]
fn answers_to_no_reliable_datagram_change_nothing() {
    let mut siege = Siege::new();
    let config = ReliableConfig::default();
    siege.end.qp.enable_reliable(config).unwrap();
    let all = [
        RecordAnswer::Whole,
        RecordAnswer::Arrives,
        RecordAnswer::NotReady,
        RecordAnswer::Refused,
        RecordAnswer::TooLong,
        RecordAnswer::Ended,
    ];
    for (count, answer) in (1..).zip(all) {
        let forged = RecordAck {
            bth: Bth::new(Opcode::UdSendOnly, siege.end.qp.number(), Psn::new(9)),
            deth: Deth {
                qkey: QKEY,
                src_qpn: Qpn::new(0x4321),
            },
            id: 0,
            token: TOKEN,
            answer,
            round: 0,
            base: 0,
            map: u128::MAX,
        };
        let mut bytes = vec![0; RECORD_ACK_LEN];
        forged.emit(&mut bytes);
        siege.send(&bytes);
        siege.counts("drop_ghost", count);
    }
    siege.alive(b"fine");
    siege.untouched();
}
