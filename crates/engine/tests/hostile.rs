//! Hostile input: packets made by hand against a live queue pair.
//!
//! For each kind: no byte changes that was not granted, the counter of its reason rises, and the
//! queue pair is in the specified state.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::impair::Impaired;
use airdma_port::{Destination, Port, TransmitBatch, sim};
use airdma_wire::local_probe::LocalProbe;
use airdma_wire::{
    Aeth, AtomicEth, Bth, Deth, HEADERS_LEN_MAX, Headers, NakCode, Opcode, Packet, Reth, Syndrome,
};
use common::*;
use std::net::IpAddr;
use std::sync::Arc;

const OTHER: [u8; 4] = [192, 0, 2, 66];
const PEER_QPN: Qpn = Qpn::new(0x4321);
/// Begin and end of the granted part of the victim's memory.
const GRANTED: std::ops::Range<usize> = 1024..2048;
const BYTES: usize = 4096;

/// A device with one connected queue pair, and the raw other end of its wire.
struct Siege {
    end: End,
    /// Granted to peers: the middle of `end.memory`.
    granted: Arc<Mr>,
    port: Box<dyn Port>,
    batch: TransmitBatch,
    destination: Destination,
    psn: Psn,
}

impl Siege {
    fn new() -> Self {
        Self::with_access(ALL)
    }

    fn with_access(access: Access) -> Self {
        Self::with(access, |port| Box::new(port))
    }

    fn with(access: Access, wrap: impl FnOnce(sim::SimPort) -> Box<dyn Port>) -> Self {
        let left = IpAddr::from(LEFT);
        let (a, b) = sim::pair(&[left], &[IpAddr::from(RIGHT), IpAddr::from(OTHER)]).unwrap();
        let device = Device::plain_with_port(info("left", left), Box::new(a)).unwrap();
        let end = End::new(&device, QpType::Rc, BYTES);
        let path = Path {
            gid: Gid::from(IpAddr::from(RIGHT)),
            ..Path::default()
        };
        connect(&end.qp, PEER_QPN, path);
        end.memory.fill(0, &pattern(BYTES, 0));
        let va = end.memory.address() + GRANTED.start as u64;
        let granted = end.pd.reg_mr(va, GRANTED.len(), va, access).unwrap();
        let destination = Destination {
            address: left.into(),
            source_index: 0,
            tos: 0,
            hop_limit: 64,
            flow_label: 0,
            bundles: false,
        };
        let batch = TransmitBatch::with_capacity(1 << 16, 64);
        Siege {
            end,
            granted,
            port: wrap(b),
            batch,
            destination,
            psn: PSN,
        }
    }

    fn va(&self) -> u64 {
        self.end.memory.address() + GRANTED.start as u64
    }

    fn bth(&self, opcode: Opcode) -> Bth {
        let mut bth = Bth::new(opcode, self.end.qp.number(), self.psn);
        bth.ack_request = true;
        bth
    }

    fn write(&self, opcode: Opcode, va: u64, rkey: Rkey, length: u32) -> Headers {
        Headers {
            reth: Some(Reth { va, rkey, length }),
            ..Headers::new(self.bth(opcode))
        }
    }

    /// Sends a packet; sets the pad unless the caller has.
    fn send(&mut self, mut headers: Headers, payload: &[u8]) {
        if headers.bth.pad == 0 {
            headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        }
        let mut bytes = vec![0; HEADERS_LEN_MAX];
        let length = headers.emit(&mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.send_bytes(&bytes);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.batch
            .reserve(bytes.len())
            .unwrap()
            .copy_from_slice(bytes);
        self.batch.commit(bytes.len(), self.destination);
        self.port.transmit(&mut self.batch).unwrap();
    }

    /// The answer, as (opcode, PSN, syndrome).
    fn answer(&mut self) -> (Opcode, Psn, Option<Syndrome>) {
        let mut answer = None;
        let port = &mut self.port;
        let cq = &self.end.cq;
        wait_until("an answer", || {
            cq.poll(0, |_| ()).unwrap();
            port.receive(1, &mut |received| {
                let headers = Packet::parse(received.bytes).unwrap().headers;
                answer = Some((
                    headers.bth.opcode,
                    headers.bth.psn,
                    headers.aeth.map(|aeth| aeth.syndrome),
                ));
            })
            .unwrap();
            answer.is_some()
        });
        answer.unwrap()
    }

    fn nak(&mut self, code: NakCode) {
        let psn = self.psn;
        assert_eq!(
            self.answer(),
            (Opcode::RcAcknowledge, psn, Some(Syndrome::Nak(code)))
        );
    }

    fn dropped(&mut self, reason: &str) {
        self.dropped_again(reason, 1);
    }

    fn dropped_again(&mut self, reason: &str, times: u64) {
        let (device, cq) = (&self.end.device, &self.end.cq);
        wait_until(reason, || {
            cq.poll(0, |_| ()).unwrap();
            counter(device, reason) == times
        });
    }

    fn untouched(&self) {
        assert_eq!(self.end.memory.bytes(0, BYTES), pattern(BYTES, 0));
    }

    /// Checks that the queue pair works.
    fn alive(&mut self) {
        assert_eq!(self.end.qp.state(), QpState::ReadyToSend);
        let headers = self.write(Opcode::RcWriteOnly, self.va(), self.granted.rkey(), 4);
        self.send(headers, b"fine");
        let psn = self.psn;
        assert!(
            matches!(self.answer(), (Opcode::RcAcknowledge, at, Some(Syndrome::Ack { .. })) if at == psn)
        );
        assert_eq!(self.end.memory.bytes(GRANTED.start, 4), b"fine");
    }

    fn in_error(&self, event: QpEvent) {
        assert_eq!(self.end.qp.state(), QpState::Error);
        let told = self.end.device.wait_async_event().unwrap();
        assert!(
            matches!(told, AsyncEvent::Qp { event: told, .. } if told == event),
            "{told:?}"
        );
    }
}

#[test]
fn the_siege_itself_can_write_where_it_may() {
    Siege::new().alive();
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let impairment = "corrupt=100%,seed=5".parse().unwrap();
    let mut siege = Siege::with(ALL, |port| Box::new(Impaired::new(port, impairment)));
    for _ in 0..300 {
        let headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 400);
        siege.send(headers, &[0xee; 400]);
    }
    let (device, cq) = (&siege.end.device, &siege.end.cq);
    wait_until("all drops", || {
        cq.poll(0, |_| ()).unwrap();
        counter(device, "drop_bad_icrc") == 300
    });
    siege.untouched();
    assert_eq!(siege.end.qp.state(), QpState::ReadyToSend);
}

#[test]
fn truncated_packets_are_dropped_at_every_length() {
    let mut siege = Siege::new();
    let headers = siege.write(Opcode::RcWriteOnlyImm, siege.va(), siege.granted.rkey(), 0);
    let headers = Headers {
        imm: Some([0; 4]),
        ..headers
    };
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    let mut lengths = 0;
    for length in (12..bytes.len()).step_by(4) {
        siege.send_bytes(&bytes[..length]);
        lengths += 1;
    }
    let (device, cq) = (&siege.end.device, &siege.end.cq);
    wait_until("all drops", || {
        cq.poll(0, |_| ()).unwrap();
        counter(device, "drop_truncated") == lengths
    });
    siege.untouched();
    siege.alive();
}

/// rxe of Linux 6.1 does not survive them.
#[test]
fn datagrams_without_a_whole_header_are_counted() {
    let [left, right] = [LEFT, RIGHT].map(IpAddr::from);
    let (port, carrier) = sim::carried(&[left]).unwrap();
    let host = simulated::Simulated::open(info("left", left), Box::new(port), 7).unwrap();
    let _end = End::new(host.device(), QpType::Rc, 64);
    for len in 0..16 {
        carrier.give(sim::Frame {
            source: right,
            destination: left,
            source_port: airdma_wire::ROCE_PORT,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            bytes: vec![7; len],
        });
    }
    host.run(std::time::Duration::from_millis(1));
    assert_eq!(counter(host.device(), "drop_short"), 16);
}

#[test]
fn wrong_keys_are_refused() {
    for case in 0..6 {
        let mut siege = Siege::new();
        let other_pd = siege.end.device.alloc_pd().unwrap();
        let va = siege.va();
        let of_other_pd = other_pd.reg_mr(va, GRANTED.len(), va, ALL).unwrap();
        let gone = siege.end.pd.reg_mr(va, GRANTED.len(), va, ALL).unwrap();
        gone.deregister().unwrap();
        let good = siege.granted.rkey().0;
        let key = [
            0,
            good ^ 1,
            good ^ 1 << 20,
            u32::MAX,
            of_other_pd.rkey().0,
            gone.rkey().0,
        ][case];
        let headers = siege.write(Opcode::RcWriteOnly, va, Rkey(key), 16);
        siege.send(headers, &[0xee; 16]);
        siege.nak(NakCode::RemoteAccessError);
        siege.in_error(QpEvent::AccessError);
        assert_eq!(counter(&siege.end.device, "remote_access_errors"), 1);
        siege.untouched();
    }
}

#[test]
fn wrong_bounds_are_refused_for_writes_reads_and_atomics() {
    let (low, high) = (0u64, GRANTED.len() as u64);
    for (offset, length) in [
        (low.wrapping_sub(1), 1),
        (high, 1),
        (high - 1, 2),
        (low.wrapping_sub(4), 8),
        (low, 1025),
        (low.wrapping_sub(1024), 1024),
        (u64::MAX / 2, 8),
    ] {
        for opcode in [Opcode::RcWriteOnly, Opcode::RcReadRequest] {
            let mut siege = Siege::new();
            let va = siege.va().wrapping_add(offset);
            let headers = siege.write(opcode, va, siege.granted.rkey(), length);
            let payload = vec![
                0xee;
                if opcode == Opcode::RcWriteOnly {
                    length as usize
                } else {
                    0
                }
            ];
            if payload.len() > 1024 {
                continue;
            }
            siege.send(headers, &payload);
            siege.nak(NakCode::RemoteAccessError);
            siege.in_error(QpEvent::AccessError);
            siege.untouched();
        }
    }
    for offset in [low.wrapping_sub(8), high, high + 8, u64::MAX - 15] {
        let mut siege = Siege::new();
        let va = siege.va().wrapping_add(offset);
        let eth = AtomicEth {
            va,
            rkey: siege.granted.rkey(),
            swap_add: 1,
            compare: 0,
        };
        let headers = Headers {
            atomic_eth: Some(eth),
            ..Headers::new(siege.bth(Opcode::RcFetchAdd))
        };
        siege.send(headers, &[]);
        siege.nak(NakCode::RemoteAccessError);
        siege.untouched();
    }
}

#[test]
fn addresses_that_wrap_around_are_refused() {
    for va in [u64::MAX, u64::MAX - 7, u64::MAX - 1023] {
        let mut siege = Siege::new();
        let headers = siege.write(Opcode::RcWriteFirst, va, siege.granted.rkey(), 1 << 30);
        siege.send(headers, &[0xee; 1024]);
        siege.nak(NakCode::RemoteAccessError);
        siege.untouched();
    }
}

#[test]
fn a_message_beyond_its_announced_length_is_refused_in_time() {
    let mut siege = Siege::new();
    let headers = siege.write(
        Opcode::RcWriteFirst,
        siege.va(),
        siege.granted.rkey(),
        1024 + 8,
    );
    siege.send(headers, &pattern(GRANTED.end, 0)[GRANTED]);
    siege.psn = siege.psn.add(1);
    let headers = Headers::new(siege.bth(Opcode::RcWriteLast));
    siege.send(headers, &[0xee; 64]);
    // The region has 1024 bytes, so the announced 1032 were too many already.
    siege.psn = PSN;
    siege.nak(NakCode::RemoteAccessError);
    siege.untouched();

    let mut siege = Siege::new();
    let headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 8);
    siege.send(headers, &[0xee; 64]);
    siege.nak(NakCode::InvalidRequest);
    siege.in_error(QpEvent::RequestError);
    siege.untouched();
}

#[test]
fn rights_that_were_not_granted_are_not_taken() {
    let mut siege = Siege::with_access(Access::LOCAL_WRITE | Access::REMOTE_READ);
    let headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 4);
    siege.send(headers, &[0xee; 4]);
    siege.nak(NakCode::RemoteAccessError);
    siege.untouched();

    let mut siege = Siege::with_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let headers = siege.write(Opcode::RcReadRequest, siege.va(), siege.granted.rkey(), 4);
    siege.send(headers, &[]);
    siege.nak(NakCode::RemoteAccessError);

    let mut siege =
        Siege::with_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
    let eth = AtomicEth {
        va: siege.va(),
        rkey: siege.granted.rkey(),
        swap_add: 1,
        compare: 0,
    };
    let headers = Headers {
        atomic_eth: Some(eth),
        ..Headers::new(siege.bth(Opcode::RcFetchAdd))
    };
    siege.send(headers, &[]);
    siege.nak(NakCode::RemoteAccessError);
    siege.untouched();
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut siege = Siege::new();
    let eth = AtomicEth {
        va: siege.va() + 4,
        rkey: siege.granted.rkey(),
        swap_add: 1,
        compare: 0,
    };
    let headers = Headers {
        atomic_eth: Some(eth),
        ..Headers::new(siege.bth(Opcode::RcFetchAdd))
    };
    siege.send(headers, &[]);
    siege.nak(NakCode::InvalidRequest);
    siege.in_error(QpEvent::RequestError);
    siege.untouched();
}

#[test]
fn a_packet_for_a_state_that_does_not_take_it_is_dropped() {
    let mut siege = Siege::new();
    let fresh = create_qp(&siege.end.pd, &siege.end.cq, QpType::Rc, CAPS);
    let mut headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 4);
    headers.bth.dest_qpn = fresh.number();
    siege.send(headers, &[0xee; 4]);
    siege.dropped("drop_bad_state");
    assert_eq!(fresh.state(), QpState::Reset);
    siege.untouched();
    siege.alive();
}

#[test]
fn a_packet_from_a_stranger_is_dropped() {
    let mut siege = Siege::new();
    siege.destination.source_index = 1;
    let headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 4);
    siege.send(headers, &[0xee; 4]);
    siege.dropped("drop_bad_source");
    siege.untouched();
    siege.destination.source_index = 0;
    siege.alive();
}

#[test]
fn packets_for_nobody_are_dropped() {
    let mut siege = Siege::new();
    let number = siege.end.qp.number().get();
    for wrong in [0, 1, number ^ 1, number ^ 1 << 16, 0xff_ffff] {
        let mut headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 4);
        headers.bth.dest_qpn = Qpn::new(wrong);
        siege.send(headers, &[0xee; 4]);
    }
    let (device, cq) = (&siege.end.device, &siege.end.cq);
    wait_until("all drops", || {
        cq.poll(0, |_| ()).unwrap();
        counter(device, "drop_unknown_qp") == 5
    });
    siege.untouched();
    siege.alive();
}

#[test]
fn foreign_partitions_opcodes_and_versions_are_dropped() {
    let mut siege = Siege::new();
    let good = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 4);
    let mut headers = good;
    headers.bth.pkey = 0x8001;
    siege.send(headers, &[0xee; 4]);
    siege.dropped("drop_bad_pkey");

    let mut bytes = vec![0; good.len() + 4];
    good.emit(&mut bytes);
    let mut unknown = bytes.clone();
    unknown[0] = 0x3f;
    siege.send_bytes(&unknown);
    siege.dropped("drop_unknown_opcode");

    // A probe, to a device that shares no memory (AIRDMA_LOCAL).
    let probe = LocalProbe {
        to: good.bth.dest_qpn,
        token: [1; 16],
        nonce: [2; 16],
    };
    siege.send_bytes(&probe.to_bytes());
    siege.dropped_again("drop_unknown_opcode", 2);

    // Transport version 1; more pad than payload; a datagram for a connection.
    let mut version = bytes.clone();
    version[1] |= 1;
    siege.send_bytes(&version);
    let mut pad = bytes.clone();
    pad.truncate(good.len());
    pad[1] |= 3 << 4;
    siege.send_bytes(&pad);
    let mut datagram = Headers::new(siege.bth(Opcode::UdSendOnly));
    datagram.deth = Some(Deth {
        qkey: Qkey(0),
        src_qpn: PEER_QPN,
    });
    siege.send(datagram, &[0xee; 4]);
    let (device, cq) = (&siege.end.device, &siege.end.cq);
    wait_until("all drops", || {
        cq.poll(0, |_| ()).unwrap();
        counter(device, "drop_malformed") == 3
    });
    siege.untouched();
    siege.alive();
}

#[test]
fn past_psns_change_nothing_and_future_ones_cause_one_nak() {
    let mut siege = Siege::new();
    siege.alive();
    // The same write again, with other data: acknowledged, not applied.
    let headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 4);
    siege.send(headers, b"evil");
    assert!(matches!(
        siege.answer(),
        (Opcode::RcAcknowledge, _, Some(Syndrome::Ack { .. }))
    ));
    assert_eq!(siege.end.memory.bytes(GRANTED.start, 4), b"fine");
    assert_eq!(counter(&siege.end.device, "duplicates"), 1);

    let expected = siege.psn.add(1);
    for ahead in [5, 6, 7] {
        siege.psn = expected.add(ahead);
        let headers = siege.write(Opcode::RcWriteOnly, siege.va(), siege.granted.rkey(), 4);
        siege.send(headers, b"evil");
    }
    siege.psn = expected;
    siege.nak(NakCode::PsnSequenceError);
    assert_eq!(siege.end.memory.bytes(GRANTED.start, 4), b"fine");
    siege.alive();
    assert_eq!(counter(&siege.end.device, "naks_sent"), 1);
}

#[test]
fn answers_to_nothing_are_dropped() {
    let mut siege = Siege::new();
    for opcode in [
        Opcode::RcAcknowledge,
        Opcode::RcReadResponseOnly,
        Opcode::RcAtomicAcknowledge,
    ] {
        let mut headers = Headers::new(siege.bth(opcode));
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 5,
        });
        headers.atomic_ack = (opcode == Opcode::RcAtomicAcknowledge).then_some(5);
        let payload: &[u8] = if opcode == Opcode::RcReadResponseOnly {
            &[0xee; 8]
        } else {
            &[]
        };
        siege.send(headers, payload);
    }
    let (device, cq) = (&siege.end.device, &siege.end.cq);
    wait_until("all drops", || {
        cq.poll(0, |_| ()).unwrap();
        counter(device, "drop_ghost") == 3
    });
    siege.untouched();
    siege.alive();
}

#[test]
fn an_answer_longer_than_asked_for_does_not_leave_its_buffer() {
    let mut siege = Siege::new();
    let read = Operation::Read {
        va: 0,
        rkey: Rkey(1),
    };
    siege.end.send(read, 100, 8);
    assert_eq!(siege.answer().0, Opcode::RcReadRequest);
    let mut headers = Headers::new(siege.bth(Opcode::RcReadResponseOnly));
    headers.aeth = Some(Aeth {
        syndrome: Syndrome::Ack { credits: 31 },
        msn: 1,
    });
    siege.send(headers, &[0xee; 64]);
    assert_eq!(siege.end.complete().status, Status::BadResponse);
    siege.untouched();
}

#[test]
fn any_mutation_of_good_packets_stays_within_what_was_granted() {
    let mut siege = Siege::new();
    let seed = std::env::var("AIRDMA_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0x5eed_u64);
    eprintln!("AIRDMA_SEED={seed}");
    let mut random = Random(seed);
    for round in 0..20_000 {
        if siege.end.qp.state() != QpState::ReadyToSend {
            let kept = siege.end.memory.bytes(0, BYTES);
            assert_eq!(
                kept[..GRANTED.start],
                pattern(BYTES, 0)[..GRANTED.start],
                "seed {seed}, round {round}"
            );
            assert_eq!(
                kept[GRANTED.end..],
                pattern(BYTES, 0)[GRANTED.end..],
                "seed {seed}, round {round}"
            );
            let reset = QpAttributes {
                state: QpState::Reset,
                ..QpAttributes::default()
            };
            siege.end.qp.modify(&reset, AttrMask::STATE).unwrap();
            let path = Path {
                gid: Gid::from(IpAddr::from(RIGHT)),
                ..Path::default()
            };
            connect(&siege.end.qp, PEER_QPN, path);
            siege.psn = PSN;
        }
        let opcode = random.pick(&[
            Opcode::RcWriteOnly,
            Opcode::RcWriteFirst,
            Opcode::RcWriteMiddle,
            Opcode::RcWriteLast,
            Opcode::RcReadRequest,
            Opcode::RcFetchAdd,
            Opcode::RcSendOnly,
            Opcode::RcAcknowledge,
        ]);
        let va = siege
            .va()
            .wrapping_add(random.below(1100))
            .wrapping_sub(random.below(40));
        let length = random.pick(&[0, 1, 4, 64, 1024, 2000, u32::MAX]);
        let mut headers = siege.write(opcode, va, siege.granted.rkey(), length);
        headers.atomic_eth = Some(AtomicEth {
            va: va & !7,
            rkey: siege.granted.rkey(),
            swap_add: 3,
            compare: 0,
        });
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            msn: 1,
        });
        let mut only = Headers::new(headers.bth);
        only.feth = opcode.has_feth().then_some(Feth {
            placement: Feth::GLOBAL,
            selectivity: Feth::RANGE,
        });
        only.reth = headers.reth.filter(|_| opcode.has_reth());
        only.atomic_eth = headers.atomic_eth.filter(|_| opcode.has_atomic_eth());
        only.aeth = headers.aeth.filter(|_| opcode.has_aeth());
        let mut bytes = vec![0; only.len()];
        only.emit(&mut bytes);
        bytes.resize(bytes.len() + random.pick(&[0, 0, 4, 64, 1024]), 0xee);
        for _ in 0..random.below(3) {
            // Not the destination, so that most reach the queue pair.
            let at = random
                .pick(&[0, 1, 8, 9, 10, 11, 12, 16, 20, 24, 28, 32])
                .min(bytes.len() - 1);
            bytes[at] ^= 1 << random.below(8);
        }
        siege.send_bytes(&bytes);
        if random.below(4) == 0 {
            siege.psn = siege.psn.add(1);
        }
        if round % 16 == 0 {
            siege.end.cq.poll(64, |_| ()).unwrap();
            siege.port.receive(4096, &mut |_| ()).unwrap();
        }
    }
    siege.end.cq.poll(64, |_| ()).unwrap();
    let kept = siege.end.memory.bytes(0, BYTES);
    assert_eq!(
        kept[..GRANTED.start],
        pattern(BYTES, 0)[..GRANTED.start],
        "seed {seed}"
    );
    assert_eq!(
        kept[GRANTED.end..],
        pattern(BYTES, 0)[GRANTED.end..],
        "seed {seed}"
    );
    assert!(kept[GRANTED].contains(&0xee), "some got through");
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
