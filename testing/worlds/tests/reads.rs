//! Reads by datagrams in virtual time, on a link that loses packets: what the loss leaves is used.
#![allow(clippy::unwrap_used)]

use airdma_sim::Random;
use airdma_transport::{
    Arrival, AttrMask, Completion, Counter, Ended, Host, LocalFault, Path, QpAttributes, QpConfig,
    QpEvent, QpState, QpType, QueuePair, ReadAsked, ReadRequest, Receive, RecordConfig, RecordHost,
    RecordOrigin, RecordTarget, RemoteAccess, RemoteFault, Slot, Time,
};
use airdma_transport::{AtomicOperation, Bind};
use airdma_wire::{
    Neighbour, PathMtu, Psn, Qkey, Qpn, RECORD_READ_OPCODE, RecordPacket, RecordRead,
    RecordReadKind, Reth, Rkey,
};
use std::collections::BTreeMap;
use std::time::Duration;

const QKEY: Qkey = Qkey(0x1234);
const KEY: Rkey = Rkey(7);
const LENGTH: u32 = 4 << 20;
/// Headers below the BTH, and the ICRC.
const AROUND: usize = 28 + 18 + 4;

/// Ends of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Reader,
    Server,
}

impl End {
    fn address(self) -> Neighbour {
        match self {
            End::Reader => [10, 0, 0, 1].into(),
            End::Server => [10, 0, 0, 2].into(),
        }
    }
}

/// The memory of both ends, one the copy of the other.
struct Memory {
    source: Vec<u8>,
    copy: Vec<u8>,
    counters: BTreeMap<&'static str, u64>,
}

#[rustfmt::skip]
impl Host for Memory {
    fn gather(&mut self, _: Slot, _: u32, _: &mut [u8]) -> Result<(), LocalFault> { Err(LocalFault) }
    fn scatter(&mut self, _: Slot, _: u32, _: &[u8]) -> Result<(), LocalFault> { Err(LocalFault) }
    fn share_memory(&mut self, _: Slot, _: Slot) -> bool { false }
    fn take_receive(&mut self) -> Option<Receive> { None }
    fn take_shared_receive(&mut self, _: u32) -> Result<Option<Receive>, RemoteFault> { Ok(None) }
    fn scatter_receive(&mut self, _: Slot, _: u32, _: &[u8]) -> Result<(), LocalFault> { Err(LocalFault) }
    fn check_remote(&mut self, _: Rkey, _: u64, _: u32, _: RemoteAccess) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn read_remote(&mut self, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn write_remote(&mut self, _: Rkey, _: u64, _: &[u8]) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn atomic(&mut self, _: Rkey, _: u64, _: AtomicOperation) -> Result<u64, RemoteFault> { Err(RemoteFault::Access) }
    fn write_atomic(&mut self, _: Rkey, _: u64, _: [u8; 8]) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn invalidate(&mut self, _: Rkey) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn invalidate_local(&mut self, _: Rkey) -> Result<(), LocalFault> { Err(LocalFault) }
    fn bind(&mut self, _: &Bind) -> Result<(), LocalFault> { Err(LocalFault) }
    fn complete_send(&mut self, _: Slot, _: Option<Completion>) {}
    fn complete_receive(&mut self, _: Slot, _: Completion) {}
    fn event(&mut self, _: QpEvent) {}
    fn count(&mut self, counter: Counter) { *self.counters.entry(counter.name()).or_default() += 1; }

    fn check_read(&mut self, _: Neighbour, rkey: Rkey, va: u64, length: u32) -> Result<(), RemoteFault> {
        let fits = rkey == KEY && va + u64::from(length) <= self.source.len() as u64;
        fits.then_some(()).ok_or(RemoteFault::Access)
    }

    fn read_for(&mut self, source: Neighbour, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        self.check_read(source, rkey, va, out.len() as u32)?;
        out.copy_from_slice(&self.source[va as usize..][..out.len()]);
        Ok(())
    }
}

#[rustfmt::skip]
impl RecordHost for Memory {
    fn check_record(&mut self, _: RecordOrigin, _: Rkey, _: u64, _: u32) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn write_record(&mut self, _: RecordOrigin, _: Rkey, _: u64, _: &[u8]) -> Result<(), RemoteFault> { Err(RemoteFault::Access) }
    fn count_record(&mut self, counter: Counter) { self.count(counter); }

    fn write_read(&mut self, _: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        self.copy[va as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn queue_pair(number: u32, memory: &mut Memory) -> QueuePair {
    let mut qp = QueuePair::new(QpConfig {
        qp_type: QpType::Ud,
        qpn: Qpn::new(number),
        port_mtu: PathMtu::M1024,
        shared_receives: false,
    });
    let steps = [
        (
            QpState::Init,
            AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
        ),
        (QpState::ReadyToReceive, AttrMask::empty()),
        (QpState::ReadyToSend, AttrMask::SQ_PSN),
    ];
    for (state, mask) in steps {
        let attributes = QpAttributes {
            state,
            qkey: QKEY,
            port: 1,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE | mask, memory)
            .unwrap();
    }
    qp.set_record_requester(Psn::new(number), 1500);
    qp.reserve_answers([3, u64::from(number)]);
    qp
}

/// A link of one gigabit per second, 100 us long.
struct World {
    random: Random,
    loss_ppm: u64,
    now: Time,
    reader: QueuePair,
    server: QueuePair,
    records: RecordTarget,
    memory: Memory,
    flight: BTreeMap<(Time, u64), (End, Vec<u8>)>,
    sequence: u64,
    /// When the server's end of the link is free.
    free_at: Time,
}

impl World {
    fn new(loss_ppm: u64) -> World {
        let mut memory = Memory {
            source: (0..LENGTH).map(|at| (at * 7 + at / 251) as u8).collect(),
            copy: vec![0; LENGTH as usize],
            counters: BTreeMap::new(),
        };
        World {
            random: Random::new(5),
            loss_ppm,
            now: Time::ZERO,
            reader: queue_pair(1, &mut memory),
            server: queue_pair(2, &mut memory),
            records: RecordTarget::new(RecordConfig::default(), [1, 2]).unwrap(),
            memory,
            flight: BTreeMap::new(),
            sequence: 0,
            free_at: Time::ZERO,
        }
    }

    fn sends(&mut self, to: End, at: Time, bytes: Vec<u8>) {
        if self.random.below(1_000_000) >= self.loss_ppm {
            self.sequence += 1;
            let arrives = at + Duration::from_micros(100);
            self.flight.insert((arrives, self.sequence), (to, bytes));
        }
    }

    fn takes(&mut self, end: End, bytes: &[u8]) {
        let source = match end {
            End::Reader => End::Server.address(),
            End::Server => End::Reader.address(),
        };
        let arrival = Arrival {
            source,
            destination: end.address(),
            tos: 0,
            ttl: 64,
            flow_label: 0,
        };
        if bytes[0] != RECORD_READ_OPCODE {
            let packet = RecordPacket::parse(bytes).unwrap();
            let (records, memory) = (&mut self.records, &mut self.memory);
            self.reader
                .handle_record(self.now, &arrival, &packet, records, memory);
            return;
        }
        let packet = &RecordRead::parse(bytes).unwrap();
        if packet.kind == RecordReadKind::Request {
            let asked = ReadAsked {
                packet,
                source,
                path: Path::default(),
            };
            self.server.handle_read(self.now, &asked, &mut self.memory);
        } else {
            self.records
                .handle_read_answer(self.now, source, packet, &mut self.memory);
        }
    }

    /// All that may leave now leaves.
    fn polls(&mut self) {
        let mut out = vec![0; 5000];
        while let Some((request, path)) = self.records.poll_request() {
            self.reader.owe_read(request, path);
        }
        while let Some(sent) = (self.reader).poll_transmit(self.now, 0, &mut self.memory, &mut out)
        {
            self.sends(End::Server, self.now, out[..sent.len].to_vec());
        }
        while self.free_at <= self.now
            && let Some(sent) = (self.server).poll_transmit(self.now, 0, &mut self.memory, &mut out)
        {
            let takes = Duration::from_nanos(8 * (sent.len + AROUND) as u64);
            self.free_at = self.now + takes;
            self.sends(End::Reader, self.free_at, out[..sent.len].to_vec());
        }
    }

    /// Reads all once, and returns how long that took and how it ended.
    fn reads(&mut self, from: Reth) -> (Duration, Ended) {
        self.memory.copy.fill(0);
        let request = ReadRequest {
            path: Path::default(),
            address: End::Server.address(),
            qpn: Qpn::new(2),
            qkey: QKEY,
            from,
            lkey: Rkey(9),
            va: 0,
            deadline: Duration::from_secs(10),
            tries: 8,
        };
        let reader = self.reader.reader(&Path::default()).unwrap();
        let begun = self.now;
        let handle = self.records.read(self.now, request, reader).unwrap();
        loop {
            self.polls();
            if self.records.has_record() {
                assert_eq!(self.records.poll_record(), Some(handle));
                let ended = self.records.record(handle).unwrap().ended.unwrap();
                assert!(self.records.free(handle));
                return (self.now.duration_since(begun), ended);
            }
            let arrival = self.flight.first_key_value().map(|(&(at, _), _)| at);
            let waits = self.server.next_read(0).map(|_| self.free_at);
            let next = [arrival, self.records.poll_timeout(), waits];
            self.now = next.into_iter().flatten().min().unwrap().max(self.now);
            if arrival == Some(self.now) {
                let (_, (end, bytes)) = self.flight.pop_first().unwrap();
                self.takes(end, &bytes);
            } else {
                self.records.handle_timeout(self.now, &mut self.memory);
            }
        }
    }
}

fn all() -> Reth {
    Reth {
        va: 0,
        rkey: KEY,
        length: LENGTH,
    }
}

/// Bytes per second of 30 reads, one after the other.
fn goodput(loss_ppm: u64) -> f64 {
    let mut world = World::new(loss_ppm);
    let mut took = Duration::ZERO;
    for _ in 0..30 {
        let (time, ended) = world.reads(all());
        assert_eq!(ended, Ended::Whole);
        assert_eq!(world.memory.copy, world.memory.source);
        took += time;
    }
    30.0 * f64::from(LENGTH) / took.as_secs_f64()
}

#[test]
fn a_read_uses_nine_tenths_of_what_the_loss_leaves() {
    let clean = goodput(0);
    // 1,408 of 1,490 bytes are payload.
    assert!((100e6..118.2e6).contains(&clean), "{clean}");
    for (loss_ppm, share) in [(1_000, 0.95), (10_000, 0.9), (50_000, 0.75)] {
        let left = clean * (1.0 - loss_ppm as f64 / 1e6);
        let measured = goodput(loss_ppm);
        assert!(measured >= share * left, "{loss_ppm}: {}", measured / left);
    }
}

#[test]
fn a_read_that_is_not_allowed_ends_after_two_round_trips() {
    let refused = [
        Reth {
            rkey: Rkey(8),
            ..all()
        },
        Reth { va: 1, ..all() },
    ];
    for from in refused {
        let mut world = World::new(0);
        let (time, ended) = world.reads(from);
        assert_eq!(ended, Ended::Refused);
        assert!(time < Duration::from_micros(450), "{time:?}");
        assert!(world.memory.copy.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_read_of_a_silent_peer_ends_after_its_tries() {
    let mut world = World::new(1_000_000);
    let (time, ended) = world.reads(all());
    assert_eq!(ended, Ended::Idle);
    assert!(time < Duration::from_secs(3), "{time:?}");
}
