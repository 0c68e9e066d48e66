//! Reads by datagrams: a queue pair asks for memory of a peer, again for what was lost.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::impair::Impaired;
use airdma_port::{Destination, Port, TransmitBatch, sim};
use airdma_wire::{
    Bth, Deth, Opcode, Packet, RECORD_READ_LEN, RECORD_READ_LEN_MAX, Rceth, ReadRanges,
    RecordHeaders, RecordPacket, RecordRead, RecordReadKind, Reth, UnitRange,
};
use common::*;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const QKEY: Qkey = Qkey(0x1234);
const BYTES: usize = 1 << 20;

struct Reads {
    from: End,
    to: End,
    region: Arc<Mr>,
}

fn taker(device: &Arc<Device>) -> End {
    let end = End::new(device, QpType::Ud, BYTES);
    datagram_to_rts(&end.qp, QKEY);
    end.qp.enable_records(RecordConfig::default()).unwrap();
    end
}

fn ready(left: &Arc<Device>, right: &Arc<Device>) -> Reads {
    let (from, to) = (taker(left), taker(right));
    let address = from.memory.address();
    let region = from.pd.reg_record_read_mr(address, BYTES, None).unwrap();
    Reads { from, to, region }
}

/// On a wire that loses packets both ways.
fn lossy(loss: &str) -> Reads {
    let addresses = [IpAddr::from(LEFT), IpAddr::from(RIGHT)];
    let (a, b) = sim::pair(&addresses[..1], &addresses[1..]).unwrap();
    let a = Impaired::new(a, format!("drop={loss},seed=7").parse().unwrap());
    let b = Impaired::new(b, format!("drop={loss},seed=8").parse().unwrap());
    let (left, right) = wired_on((addresses[0], Box::new(a)), (addresses[1], Box::new(b)));
    ready(&left, &right)
}

impl Reads {
    fn request(&self, length: usize) -> DatagramRead {
        DatagramRead {
            datagram: Datagram {
                path: self.from.path(),
                qpn: self.from.qp.number(),
                qkey: QKEY,
            },
            va: self.from.memory.address(),
            rkey: self.region.rkey(),
            length: length as u32,
            lkey: self.to.memory.mr.lkey(),
            to: self.to.memory.address(),
            deadline: Duration::from_secs(10),
            tries: 8,
        }
    }

    fn reads(&self, request: &DatagramRead) -> (Ended, u32) {
        let handle = self.to.qp.read_record(request).unwrap();
        self.ends(handle)
    }

    /// How the record ended, which is freed, and its valid bytes.
    fn ends(&self, handle: RecordHandle) -> (Ended, u32) {
        let mut told = None;
        wait_until("the record", || {
            // Both ends make progress here.
            self.from.cq.poll(0, |_| ()).unwrap();
            self.to
                .cq
                .poll(1, |completion| told = Some(completion))
                .unwrap();
            told.is_some()
        });
        let completion = told.unwrap();
        assert_eq!(completion.opcode, CompletionOpcode::ReceiveRecord);
        assert_eq!(completion.wr_id, handle.0);
        let seen = self.to.qp.record(handle, |record| {
            assert!(record.is_read && record.group.is_none());
            assert_eq!(record.src_qpn, self.from.qp.number());
            (record.ended.unwrap(), record.valid_bytes)
        });
        assert!(self.to.qp.free_record(handle));
        seen.unwrap()
    }

    fn counted(&self, name: &str) -> u64 {
        counter(&self.from.device, name)
    }
}

fn memory_of_many_sizes(reads: &Reads) {
    let mut challenged = None;
    for length in [1, 2, 3, 1000, 1408, 1409, 4096, 65_536, 300_001] {
        let data = pattern(length, length as u8);
        reads.from.memory.fill(0, &data);
        reads.to.memory.fill(0, &vec![0; length + 1]);
        let whole = (Ended::Whole, length as u32);
        assert_eq!(reads.reads(&reads.request(length)), whole);
        assert_eq!(reads.to.memory.bytes(0, length), data);
        assert_eq!(reads.to.memory.byte(length), 0, "behind the memory");
        // The first one alone had no token, and repeats its request on a busy host.
        let count = reads.counted("reads_challenged");
        assert_eq!(*challenged.get_or_insert(count), count);
    }
    assert!(challenged.is_some_and(|count| count > 0));
}

#[test]
fn memory_of_any_size_is_read() {
    let (left, right) = wired();
    memory_of_many_sizes(&ready(&left, &right));
}

#[test]
fn reads_go_through_sockets() {
    let (left, right) = sockets("127.0.0.65", "127.0.0.66");
    memory_of_many_sizes(&ready(&left, &right));
}

#[test]
fn reads_are_sealed_where_datagrams_are() {
    let (left, right) = wired();
    for device in [&left, &right] {
        device.share_secret(b"sixteen bytes or more").unwrap();
    }
    memory_of_many_sizes(&ready(&left, &right));
    assert_eq!(counter(&left, "seals_agreed"), 1);
}

#[test]
fn what_is_lost_is_asked_for_again() {
    let reads = lossy("10%");
    for seed in 0..4 {
        let data = pattern(BYTES, seed);
        reads.from.memory.fill(0, &data);
        let whole = (Ended::Whole, BYTES as u32);
        assert_eq!(reads.reads(&reads.request(BYTES)), whole);
        assert!(reads.to.memory.bytes(0, BYTES) == data);
    }
}

#[test]
fn many_reads_at_once_are_told_one_by_one() {
    let (left, right) = wired();
    let reads = ready(&left, &right);
    let data = pattern(BYTES, 3);
    reads.from.memory.fill(0, &data);
    let part = BYTES / 32;
    let handles: Vec<RecordHandle> = (0..32)
        .map(|nth| {
            let mut request = reads.request(part);
            request.va += (nth * part) as u64;
            request.to += (nth * part) as u64;
            reads.to.qp.read_record(&request).unwrap()
        })
        .collect();
    let mut told = Vec::new();
    wait_until("all", || {
        reads.from.cq.poll(0, |_| ()).unwrap();
        reads
            .to
            .cq
            .poll(16, |completion| told.push(completion))
            .unwrap();
        told.len() == 32
    });
    for completion in told {
        let handle = RecordHandle(completion.wr_id);
        assert!(handles.contains(&handle) && completion.byte_len == part as u32);
        assert!(reads.to.qp.free_record(handle));
    }
    assert!(reads.to.memory.bytes(0, BYTES) == data);
}

#[test]
fn a_key_for_reads_opens_nothing_else_and_no_other_key_does() {
    let (left, right) = wired();
    let reads = ready(&left, &right);
    let address = reads.from.memory.address();
    let pd = &reads.from.pd;
    let records = pd.reg_record_mr(address, BYTES, None).unwrap();
    let other = Gid::from(IpAddr::from([192, 0, 2, 9]));
    let others = pd.reg_record_read_mr(address, BYTES, Some(other)).unwrap();
    let ours = reads.to.path().gid;
    let for_us = pd.reg_record_read_mr(address, BYTES, Some(ours)).unwrap();
    let foreign = left.alloc_pd().unwrap();
    let of_foreign = foreign.reg_record_read_mr(address, BYTES, None).unwrap();
    let good = reads.request(4096);
    let refused = [
        DatagramRead {
            // It may be read by a connection.
            rkey: reads.from.memory.mr.rkey(),
            ..good
        },
        DatagramRead {
            rkey: records.rkey(),
            ..good
        },
        DatagramRead {
            rkey: others.rkey(),
            ..good
        },
        DatagramRead {
            rkey: of_foreign.rkey(),
            ..good
        },
        DatagramRead {
            rkey: Rkey(reads.region.rkey().0 ^ 1 << 20),
            ..good
        },
        DatagramRead {
            va: address - 1,
            ..good
        },
        DatagramRead {
            va: address + BYTES as u64 - 4095,
            ..good
        },
    ];
    for request in refused {
        assert_eq!(reads.reads(&request), (Ended::Refused, 0), "{request:?}");
    }
    assert_eq!(reads.counted("drop_record_refused"), refused.len() as u64);
    assert_eq!(
        reads.reads(&DatagramRead {
            rkey: for_us.rkey(),
            ..good
        }),
        (Ended::Whole, 4096)
    );
    // It is not written by records.
    let mut wr = signalled(
        Operation::Record {
            va: address,
            rkey: reads.region.rkey(),
        },
        reads.to.memory.sge(0, 64),
    );
    wr.datagram = Some(good.datagram);
    reads.to.qp.post_send(&wr).unwrap();
    reads.to.ok();
    let times = refused.len() as u64 + 1;
    wait_until("a refusal", || {
        reads.from.cq.poll(0, |_| ()).unwrap();
        reads.counted("drop_record_refused") == times
    });
}

#[test]
fn a_read_that_cannot_begin_is_an_error() {
    let (left, right) = wired();
    let reads = ready(&left, &right);
    let good = reads.request(64);
    let group = Gid::from(IpAddr::from([239, 1, 1, 1]));
    let to_group = Datagram {
        path: Path {
            gid: group,
            ..good.datagram.path
        },
        ..good.datagram
    };
    let wrong = [
        DatagramRead { length: 0, ..good },
        DatagramRead {
            length: 1 << 31,
            ..good
        },
        DatagramRead { tries: 0, ..good },
        DatagramRead {
            deadline: Duration::ZERO,
            ..good
        },
        DatagramRead {
            lkey: Lkey(good.lkey.0 ^ 1),
            ..good
        },
        DatagramRead {
            to: good.to + BYTES as u64,
            ..good
        },
        DatagramRead {
            datagram: to_group,
            ..good
        },
    ];
    for request in wrong {
        let error = reads.to.qp.read_record(&request).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{request:?}");
    }
    let plain = End::new(&right, QpType::Ud, 64);
    datagram_to_rts(&plain.qp, QKEY);
    assert_eq!(
        plain.qp.read_record(&good).unwrap_err().errno(),
        libc::EINVAL
    );
}

#[test]
fn a_read_without_an_answer_ends_by_its_tries_or_its_deadline() {
    let (left, right) = wired();
    let reads = ready(&left, &right);
    let silent = Datagram {
        qpn: Qpn::new(0x77_7777),
        ..reads.request(64).datagram
    };
    for (tries, deadline, ended) in [(2, 10_000, Ended::Idle), (1000, 40, Ended::Age)] {
        let request = DatagramRead {
            datagram: silent,
            tries,
            deadline: Duration::from_millis(deadline),
            ..reads.request(64)
        };
        reads.to.qp.read_record(&request).unwrap();
        let completion = reads.to.ok();
        let handle = RecordHandle(completion.wr_id);
        let seen = reads.to.qp.record(handle, |record| record.ended);
        assert_eq!(seen, Some(Some(ended)));
        assert!(reads.to.qp.free_record(handle));
    }
    let many: Vec<_> = (0..=64)
        .map(|_| {
            reads.to.qp.read_record(&DatagramRead {
                datagram: silent,
                ..reads.request(64)
            })
        })
        .collect();
    let full = many.into_iter().find_map(Result::err).unwrap();
    assert_eq!(full.errno(), libc::ENOMEM);
}

#[test]
fn reads_of_a_queue_pair_in_the_error_state_are_flushed() {
    let reads = lossy("100%");
    let handles: Vec<_> = (0..3)
        .map(|_| reads.to.qp.read_record(&reads.request(5000)).unwrap())
        .collect();
    let attributes = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    let begun = std::time::Instant::now();
    reads.to.qp.modify(&attributes, AttrMask::STATE).unwrap();
    for handle in handles {
        assert_eq!(reads.ends(handle), (Ended::Flushed, 0));
    }
    // Their deadline is ten seconds, and their tries end after two and a half.
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(reads.to.qp.read_record(&reads.request(5000)).is_err());
}

#[test]
fn reads_are_flushed_when_a_send_fails() {
    let reads = lossy("100%");
    let handle = reads.to.qp.read_record(&reads.request(5000)).unwrap();
    // Longer than a packet: it cannot be sent, and stops the send queue.
    let send = SendWr {
        datagram: Some(reads.request(1).datagram),
        ..signalled(Operation::Send, reads.to.memory.sge(0, 5000))
    };
    reads.to.qp.post_send(&send).unwrap();
    let mut told = Vec::new();
    wait_until("both completions", || {
        let taken = reads.to.cq.poll(2, |completion| told.push(completion));
        taken.is_ok() && told.len() == 2
    });
    let record = told.iter().find(|told| told.wr_id == handle.0).unwrap();
    assert_eq!(record.opcode, CompletionOpcode::ReceiveRecord);
    let ended = reads.to.qp.record(handle, |record| record.ended);
    assert_eq!(ended, Some(Some(Ended::Flushed)));
}

#[test]
fn memory_that_is_deregistered_at_either_end_ends_the_read() {
    let reads = lossy("20%");
    let request = reads.request(BYTES);
    let handle = reads.to.qp.read_record(&request).unwrap();
    let va = reads.to.memory.address();
    let lkey = Rkey(request.lkey.0);
    let arrives = || {
        wait_until("some of it", || {
            reads.from.cq.poll(0, |_| ()).unwrap();
            reads.to.cq.poll(0, |_| ()).unwrap();
            let valid = reads
                .to
                .qp
                .peek_record(lkey, va, |record| record.valid_bytes);
            valid.is_some_and(|valid| valid > 0)
        });
    };
    arrives();
    reads.region.deregister().unwrap();
    let (ended, valid) = reads.ends(handle);
    assert_eq!(ended, Ended::Refused);
    assert!((1..BYTES as u32).contains(&valid));

    let address = reads.from.memory.address();
    let again = reads
        .from
        .pd
        .reg_record_read_mr(address, BYTES, None)
        .unwrap();
    let request = DatagramRead {
        rkey: again.rkey(),
        ..request
    };
    let handle = reads.to.qp.read_record(&request).unwrap();
    arrives();
    reads.to.memory.mr.deregister().unwrap();
    assert_eq!(reads.ends(handle).0, Ended::TakenBack);
}

/// A queue pair with memory to read, and a port on which an attacker sends what it likes, from two
/// addresses.
struct Siege {
    end: End,
    region: Arc<Mr>,
    port: Box<dyn Port>,
    batch: TransmitBatch,
}

const OTHER: [u8; 4] = [192, 0, 2, 3];

impl Siege {
    fn new() -> Siege {
        let left = IpAddr::from(LEFT);
        let others = [IpAddr::from(RIGHT), IpAddr::from(OTHER)];
        let (a, b) = sim::pair(&[left], &others).unwrap();
        let device = Device::plain_with_port(info("left", left), Box::new(a)).unwrap();
        let end = taker(&device);
        let address = end.memory.address();
        let region = end.pd.reg_record_read_mr(address, BYTES, None).unwrap();
        Siege {
            end,
            region,
            port: Box::new(b),
            batch: TransmitBatch::with_capacity(1 << 16, 64),
        }
    }

    /// A request for eight units of 256 bytes.
    fn request(&self, token: u64) -> RecordRead {
        let mut ranges = ReadRanges::default();
        ranges.push(UnitRange { first: 0, count: 8 });
        RecordRead {
            bth: Bth::new(Opcode::UdSendOnly, self.end.qp.number(), Psn::new(9)),
            deth: Deth {
                qkey: QKEY,
                src_qpn: Qpn::new(0x4321),
            },
            reth: Reth {
                va: self.end.memory.address(),
                rkey: self.region.rkey(),
                length: 2048,
            },
            id: 1,
            nonce: 77,
            token,
            answer_qkey: Qkey(5),
            unit: 256,
            kind: RecordReadKind::Request,
            ranges,
        }
    }

    fn send(&mut self, bytes: &[u8], source_index: u8) {
        let destination = Destination {
            address: IpAddr::from(LEFT).into(),
            source_index,
            tos: 0,
            hop_limit: 64,
            flow_label: 0,
            bundles: false,
        };
        let out = self.batch.reserve(bytes.len()).unwrap();
        out.copy_from_slice(bytes);
        self.batch.commit(bytes.len(), destination);
        self.port.transmit(&mut self.batch).unwrap();
    }

    /// Sends a request, and returns all that comes within 50 ms.
    fn asks(&mut self, request: &RecordRead, source_index: u8) -> Vec<Vec<u8>> {
        let mut bytes = vec![0; RECORD_READ_LEN_MAX];
        let length = request.emit(&mut bytes);
        self.send(&bytes[..length], source_index);
        self.answers()
    }

    fn answers(&mut self) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        for _ in 0..50 {
            self.end.cq.poll(0, |_| ()).unwrap();
            let mut take = |received: airdma_port::Received<'_>| {
                answers.push(received.bytes.to_vec());
            };
            self.port.receive(64, &mut take).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        answers
    }

    fn token(&mut self, source_index: u8) -> u64 {
        let request = self.request(0);
        let answers = self.asks(&request, source_index);
        let [answer] = &answers[..] else {
            panic!("{} answers", answers.len());
        };
        let answer = RecordRead::parse(answer).unwrap();
        assert_eq!(answer.kind, RecordReadKind::Challenge);
        answer.token
    }
}

#[test]
fn an_address_without_proof_gets_fewer_bytes_than_it_sends() {
    let mut siege = Siege::new();
    for token in [0, 1, u64::MAX] {
        let request = siege.request(token);
        let answers = siege.asks(&request, 0);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].len(), RECORD_READ_LEN);
        let mut bytes = [0; RECORD_READ_LEN_MAX];
        assert!(answers[0].len() < request.emit(&mut bytes));
        let answer = RecordRead::parse(&answers[0]).unwrap();
        assert_eq!(answer.kind, RecordReadKind::Challenge);
        assert_eq!((answer.nonce, answer.id), (77, 1));
    }
    assert_eq!(counter(&siege.end.device, "reads_challenged"), 3);
}

#[test]
fn a_token_is_for_one_address_and_queue_pair() {
    let mut siege = Siege::new();
    let token = siege.token(0);
    let request = siege.request(token);
    assert_eq!(siege.asks(&request, 0).len(), 8);
    let mut other_qp = request;
    other_qp.deth.src_qpn = Qpn::new(0x4322);
    for (request, source) in [(request, 1), (other_qp, 0)] {
        let answers = siege.asks(&request, source);
        assert_eq!(answers.len(), 1);
        let answer = RecordRead::parse(&answers[0]).unwrap();
        assert_eq!(answer.kind, RecordReadKind::Challenge);
        assert_ne!(answer.token, token);
    }
}

#[test]
fn the_packets_of_an_answer_have_the_memory_that_was_asked_for() {
    let mut siege = Siege::new();
    let data = pattern(2048, 6);
    siege.end.memory.fill(0, &data);
    let token = siege.token(0);
    let mut request = siege.request(token);
    request.ranges = ReadRanges::default();
    for (first, count) in [(1, 2), (7, 1)] {
        request.ranges.push(UnitRange { first, count });
    }
    let answers = siege.asks(&request, 0);
    let mut offsets = Vec::new();
    for bytes in &answers {
        let packet = RecordPacket::parse(bytes).unwrap();
        let RecordHeaders {
            deth, reth, rceth, ..
        } = packet.headers;
        let offset = rceth.offset as usize;
        assert_eq!(packet.payload, &data[offset..offset + 256]);
        assert_eq!((packet.headers.read, deth.qkey), (Some(77), Qkey(5)));
        assert_eq!((reth.va, reth.rkey, reth.length), (0, Rkey(0), 2048));
        assert_eq!((rceth.id, packet.headers.bth.psn), (1, Psn::new(9)));
        offsets.push(offset);
    }
    assert_eq!(offsets, [256, 512, 1792]);
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    let mut siege = Siege::new();
    let token = siege.token(0);
    let good = siege.request(token);
    let ranges = |list: &[(u32, u32)]| {
        let mut ranges = ReadRanges::default();
        for &(first, count) in list {
            ranges.push(UnitRange { first, count });
        }
        RecordRead { ranges, ..good }
    };
    let lies = [
        ranges(&[(0, 0)]),
        ranges(&[(0, 9)]),
        ranges(&[(8, 1)]),
        ranges(&[(1, u32::MAX)]),
        // A unit is sent once for each request.
        ranges(&[(0, 8), (0, 8)]),
        ranges(&[(3, 2), (4, 1)]),
        ranges(&[(4, 1), (3, 1)]),
        RecordRead { unit: 0, ..good },
        RecordRead { unit: 4, ..good },
        RecordRead { unit: 258, ..good },
        RecordRead { unit: 9000, ..good },
    ];
    for (number, lie) in lies.iter().enumerate() {
        let answers = siege.asks(lie, 0);
        assert_eq!(answers.len(), 1, "lie {number}");
        let answer = RecordRead::parse(&answers[0]).unwrap();
        assert_eq!(answer.kind, RecordReadKind::Refused, "lie {number}");
    }
    for (wrong, reason) in [(QKEY.0 ^ 1, "drop_bad_qkey"), (QKEY.0, "drop_bad_pkey")] {
        let mut request = good;
        request.deth.qkey = Qkey(wrong);
        if wrong == QKEY.0 {
            request.bth.pkey = 0x7ffe;
        }
        assert_eq!(siege.asks(&request, 0).len(), 0);
        assert_eq!(counter(&siege.end.device, reason), 1);
    }
    assert_eq!(siege.asks(&good, 0).len(), 8, "a good one is answered");
}

#[test]
fn a_replay_of_a_request_is_one_answer_at_a_time() {
    let mut siege = Siege::new();
    let token = siege.token(0);
    let mut request = siege.request(token);
    // More than leaves before the next request is taken: nothing answers the packets.
    request.reth.length = 512 * 256;
    request.ranges = ReadRanges::default();
    let all = UnitRange {
        first: 0,
        count: 512,
    };
    request.ranges.push(all);
    let mut bytes = vec![0; RECORD_READ_LEN_MAX];
    let mut length = request.emit(&mut bytes);
    for nth in 0..2000 {
        if nth >= 1000 {
            length = RecordRead { id: nth, ..request }.emit(&mut bytes);
        }
        siege.send(&bytes[..length], 0);
        // The wire would lose what waits for too long.
        if nth % 64 == 0 {
            siege.end.cq.poll(0, |_| ()).unwrap();
        }
    }
    siege.answers();
    // Half of 64 answers at once are for one address.
    assert!(counter(&siege.end.device, "drop_record_full") > 900);
}

/// What is forged in a packet, and the source that it comes from.
type Forgery<'a> = (&'a dyn Fn(&mut RecordHeaders), u8);

#[test]
fn what_was_not_asked_for_changes_nothing() {
    let mut siege = Siege::new();
    siege.end.memory.fill(0, &pattern(4096, 0));
    let read = DatagramRead {
        datagram: Datagram {
            path: Path {
                gid: Gid::from(IpAddr::from(RIGHT)),
                ..Path::default()
            },
            qpn: Qpn::new(0x4321),
            qkey: QKEY,
        },
        va: 0x1000,
        rkey: Rkey(5),
        length: 64,
        lkey: siege.end.memory.mr.lkey(),
        to: siege.end.memory.address(),
        deadline: Duration::from_secs(20),
        tries: 100,
    };
    siege.end.qp.read_record(&read).unwrap();
    let asked = siege.answers();
    let asked = RecordRead::parse(&asked[0]).unwrap();
    let number = siege.end.qp.number();
    let data = move |change: &dyn Fn(&mut RecordHeaders)| {
        let mut headers = RecordHeaders {
            bth: Bth::new(Opcode::UdSendOnly, number, asked.bth.psn),
            deth: Deth {
                qkey: QKEY,
                src_qpn: Qpn::new(0x4321),
            },
            reth: Reth {
                va: 0,
                rkey: Rkey(0),
                length: 64,
            },
            rceth: Rceth {
                id: asked.id,
                offset: 0,
                unit: 64,
                round: 0,
            },
            is_send: false,
            token: None,
            read: Some(asked.nonce),
            imm: None,
        };
        change(&mut headers);
        let mut bytes = vec![0; 128];
        let length = headers.emit(&mut bytes);
        bytes.truncate(length);
        bytes.extend([0xee; 64]);
        bytes
    };
    let forged: [Forgery<'_>; 9] = [
        (&|h| h.read = Some(asked.nonce ^ 1), 0),
        (&|h| h.read = None, 0),
        (&|h| h.bth.psn = Psn::new(asked.bth.psn.get() ^ 1), 0),
        (&|h| h.rceth.id += 1, 0),
        (&|h| h.deth.src_qpn = Qpn::new(0x4322), 0),
        (&|h| h.deth.qkey = Qkey(1), 0),
        (&|h| h.reth.length = 65, 0),
        (&|h| h.token = Some(3), 0),
        (&|_| (), 1),
    ];
    for (change, source) in forged {
        let bytes = data(change);
        siege.send(&bytes, source);
    }
    // A challenge and a refusal of another request.
    for kind in [RecordReadKind::Challenge, RecordReadKind::Refused] {
        let answer = RecordRead {
            bth: Bth::new(Opcode::UdSendOnly, siege.end.qp.number(), asked.bth.psn),
            deth: Deth {
                qkey: Qkey(0),
                src_qpn: Qpn::new(0x4321),
            },
            nonce: asked.nonce ^ 1,
            kind,
            ranges: ReadRanges::default(),
            ..asked
        };
        let mut bytes = vec![0; RECORD_READ_LEN_MAX];
        let length = answer.emit(&mut bytes);
        siege.send(&bytes[..length], 0);
    }
    siege.answers();
    assert_eq!(siege.end.memory.bytes(0, 4096), pattern(4096, 0));
    assert_eq!(counter(&siege.end.device, "drop_ghost"), 2);
    assert!(siege.end.try_complete().is_none());
    let bytes = data(&|_| ());
    siege.send(&bytes, 0);
    let completion = siege.end.ok();
    assert_eq!(completion.byte_len, 64);
    assert_eq!(siege.end.memory.bytes(0, 64), [0xee; 64]);
    // It comes again.
    siege.end.memory.fill(0, &[0; 64]);
    siege.send(&bytes, 0);
    siege.answers();
    assert_eq!(siege.end.memory.bytes(0, 64), [0; 64]);
    assert!(Packet::parse(&bytes).is_err(), "no packet of RoCEv2");
}
