//! Reads by datagrams in virtual time: on a link that loses packets what the loss leaves is used,
//! and on one that repeats and reorders them as well the reference model judges every step.
#![allow(clippy::unwrap_used)]

use airdma_model::reads::Reads;
use airdma_model::records::{Name, Record};
use airdma_sim::Random;
use airdma_transport::{
    Completion, Counter, Ended, Host, LocalFault, Path, QueuePair, ReadAsked, ReadRequest,
    RecordConfig, RecordHandle, RecordHost, RecordOrigin, RecordTarget, RemoteFault, Slot, Time,
};
use airdma_wire::{
    Neighbour, PathMtu, Qpn, RECORD_READ_OPCODE, RecordPacket, RecordRead, RecordReadKind, Reth,
    Rkey,
};
use airdma_worlds::datagrams::{self, Flight, Link, PERCENT, QKEY, arrival};
use airdma_worlds::only_datagrams;
use std::collections::BTreeMap;
use std::time::Duration;

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
    only_datagrams!();
    fn complete_send(&mut self, _: Slot, _: Option<Completion>) {}
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

fn queue_pair(number: u32) -> QueuePair {
    let mut qp = datagrams::queue_pair(Qpn::new(number), PathMtu::M1024, 1500);
    qp.reserve_answers([3, u64::from(number)]);
    qp
}

/// A link of one gigabit per second, 100 us long.
fn link(loss_ppm: u64, repeat_ppm: u64, jitter_us: u64) -> Link {
    Link {
        loss_ppm,
        repeat_ppm,
        delay_us: 100,
        jitter_us,
    }
}

struct World {
    random: Random,
    now: Time,
    reader: QueuePair,
    server: QueuePair,
    records: RecordTarget,
    memory: Memory,
    flight: Flight<(End, Vec<u8>)>,
    /// When the server's end of the link is free.
    free_at: Time,
    /// How often a read asks.
    tries: u32,
}

impl World {
    fn new(loss_ppm: u64) -> World {
        World::with(5, link(loss_ppm, 0, 0), LENGTH)
    }

    fn with(seed: u64, link: Link, length: u32) -> World {
        let memory = Memory {
            source: (0..length).map(|at| (at * 7 + at / 251) as u8).collect(),
            copy: vec![0; length as usize],
            counters: BTreeMap::new(),
        };
        World {
            random: Random::new(seed),
            now: Time::ZERO,
            reader: queue_pair(1),
            server: queue_pair(2),
            records: RecordTarget::new(RecordConfig::default(), [1, 2]).unwrap(),
            memory,
            flight: Flight::new(link),
            free_at: Time::ZERO,
            tries: 8,
        }
    }

    fn sends(&mut self, to: End, at: Time, bytes: Vec<u8>) {
        self.flight.send(&mut self.random, at, &(to, bytes));
    }

    fn takes(&mut self, end: End, bytes: &[u8]) {
        let source = match end {
            End::Reader => End::Server.address(),
            End::Server => End::Reader.address(),
        };
        let arrival = arrival(source, end.address());
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
        let begun = self.now;
        let handle = self.begins(from);
        loop {
            self.polls();
            if self.records.has_record() {
                assert_eq!(self.records.poll_record(), Some(handle));
                let ended = self.records.record(handle).unwrap().ended.unwrap();
                assert!(self.records.free(handle));
                return (self.now.duration_since(begun), ended);
            }
            self.steps();
        }
    }

    fn begins(&mut self, from: Reth) -> RecordHandle {
        let request = ReadRequest {
            path: Path::default(),
            address: End::Server.address(),
            qpn: Qpn::new(2),
            qkey: QKEY,
            from,
            lkey: Rkey(9),
            va: 0,
            deadline: Duration::from_secs(10),
            tries: self.tries,
        };
        let reader = self.reader.reader(&Path::default()).unwrap();
        self.records.read(self.now, request, reader).unwrap()
    }

    /// Goes to the next packet or timer.
    fn steps(&mut self) {
        let arrival = self.flight.next();
        let waits = self.server.next_read(0).map(|_| self.free_at);
        let next = [arrival, self.records.poll_timeout(), waits];
        let Some(next) = next.into_iter().flatten().min() else {
            return;
        };
        self.now = next.max(self.now);
        if arrival == Some(self.now) {
            let (end, bytes) = self.flight.take().unwrap();
            self.takes(end, &bytes);
        } else {
            self.records.handle_timeout(self.now, &mut self.memory);
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
fn an_answer_from_another_address_ends_no_read() {
    let mut world = World::new(0);
    world.begins(all());
    world.polls();
    let (_, bytes) = world.flight.take().unwrap();
    let asked = RecordRead::parse(&bytes).unwrap();
    let mut refused = RecordRead {
        kind: RecordReadKind::Refused,
        ..asked
    };
    refused.deth.src_qpn = Qpn::new(2);
    let mut answers = |from: Neighbour| {
        let (records, memory) = (&mut world.records, &mut world.memory);
        records.handle_read_answer(world.now, from, &refused, memory);
        (
            records.has_record(),
            memory.counters.get("drop_ghost").copied(),
        )
    };
    assert_eq!(answers([10, 0, 0, 3].into()), (false, Some(1)));
    assert_eq!(answers(End::Server.address()), (true, Some(1)));
}

#[test]
fn a_read_of_a_silent_peer_ends_after_its_tries() {
    let mut world = World::new(1_000_000);
    let (time, ended) = world.reads(all());
    assert_eq!(ended, Ended::Idle);
    assert!(time < Duration::from_secs(3), "{time:?}");
}

#[test]
fn a_slow_answer_is_no_failed_try() {
    // Longer than the time after which a read asks again: each request is answered by a demand for
    // a proof before the first answer is there.
    let slow = Link {
        delay_us: 18_000,
        ..link(0, 0, 0)
    };
    let mut world = World::with(5, slow, LENGTH);
    world.tries = 2;
    let (time, ended) = world.reads(all());
    assert_eq!(ended, Ended::Whole, "{time:?}");
    assert_eq!(world.memory.copy, world.memory.source);
}

/// Places for reads in the reader's memory, and the longest one.
const PLACES: u64 = 8;
const PLACE: u64 = 20_000;

/// A world in which reads of random parts, with random deadlines, are judged.
struct Judged {
    world: World,
    judge: Reads,
    begun: u64,
    /// Which read has a place, until its record is freed.
    places: Vec<Option<u64>>,
    /// Handles by the number of the read, its place, and whether its key is wrong.
    open: BTreeMap<u64, (RecordHandle, u64, bool)>,
    held: Vec<(RecordHandle, u64)>,
    ends: BTreeMap<u8, u64>,
    partial: u64,
}

impl Judged {
    fn new(seed: u64, link: Link) -> Judged {
        let world = World::with(seed, link, (PLACES * PLACE) as u32);
        let judge = Reads::new(0, &world.memory.copy, PLACES as usize);
        Judged {
            world,
            judge,
            begun: 0,
            places: vec![None; PLACES as usize],
            open: BTreeMap::new(),
            held: Vec::new(),
            ends: BTreeMap::new(),
            partial: 0,
        }
    }

    fn now(&self) -> u64 {
        self.world.now.duration_since(Time::ZERO).as_nanos() as u64
    }

    fn begin(&mut self) {
        let world = &mut self.world;
        let place = world.random.below(PLACES);
        if self.places[place as usize].is_some() {
            return;
        }
        let length = 1 + world.random.below(PLACE) as u32;
        let from = world.random.below(PLACES * PLACE - u64::from(length) + 1);
        let is_wrong = world.random.below(10) == 0;
        let deadline = Duration::from_micros(200 + world.random.below(60_000));
        let request = ReadRequest {
            path: Path::default(),
            address: End::Server.address(),
            qpn: Qpn::new(2),
            qkey: QKEY,
            from: Reth {
                va: from,
                rkey: Rkey(KEY.0 + u32::from(is_wrong)),
                length,
            },
            lkey: Rkey(9),
            va: place * PLACE,
            deadline,
            tries: 1 + world.random.below(6) as u32,
        };
        let reader = world.reader.reader(&Path::default()).unwrap();
        let handle = world.records.read(world.now, request, reader).unwrap();
        let bytes = world.memory.source[from as usize..][..length as usize].to_vec();
        let until = self.now() + deadline.as_nanos() as u64;
        let name = name(self.begun);
        self.judge
            .begun(name, place * PLACE, &bytes, until)
            .unwrap();
        self.places[place as usize] = Some(self.begun);
        self.open.insert(self.begun, (handle, place, is_wrong));
        self.begun += 1;
    }

    fn judge(&mut self) {
        let now = self.now();
        let World {
            records, memory, ..
        } = &mut self.world;
        while let Some(handle) = records.poll_record() {
            let seen = records.record(handle).unwrap();
            let (&number, &(_, place, is_wrong)) = (self.open.iter())
                .find(|(_, (open, ..))| *open == handle)
                .expect("a read that was begun");
            let ended = seen.ended.unwrap();
            let told = Record {
                name: name(number),
                va: seen.va,
                length: seen.length,
                unit: seen.unit.into(),
                valid: seen.ranges().collect(),
                valid_bytes: seen.valid_bytes,
                is_whole: ended == Ended::Whole,
            };
            assert!(!is_wrong || told.valid_bytes == 0, "{told:?}");
            assert!(is_wrong || ended != Ended::Refused, "{told:?}");
            assert_eq!(told.va, place * PLACE);
            self.partial += u64::from(told.valid_bytes > 0 && !told.is_whole);
            *self.ends.entry(ended as u8).or_default() += 1;
            self.judge.check(&memory.copy, now).unwrap();
            self.judge.told(&told, ended == Ended::Age, now).unwrap();
            self.open.remove(&number);
            self.held.push((handle, number));
        }
        self.judge.check(&memory.copy, now).unwrap();
    }

    fn free(&mut self) {
        let (handle, number) = self.held.remove(0);
        assert!(self.world.records.free(handle));
        self.judge.freed(name(number)).unwrap();
        for place in &mut self.places {
            place.take_if(|of| *of == number);
        }
    }

    fn play(&mut self, reads: u64) {
        while self.begun < reads || !self.open.is_empty() {
            if self.begun < reads {
                self.begin();
            }
            if !self.held.is_empty() && self.world.random.below(2) == 0 {
                self.free();
            }
            self.world.polls();
            self.world.steps();
            self.judge();
        }
        // What is still on its way changes nothing.
        while self.world.flight.next().is_some() {
            self.world.polls();
            self.world.steps();
            self.judge();
        }
        self.judge.end().unwrap();
    }
}

fn name(number: u64) -> Name {
    Name {
        source: 0,
        number: number as u32,
    }
}

#[test]
fn reads_keep_the_contract_whatever_the_network_does() {
    let links = [
        link(0, 0, 0),
        link(5 * PERCENT, 10 * PERCENT, 1_000),
        link(40 * PERCENT, 30 * PERCENT, 30_000),
    ];
    let (mut ends, mut partial) = (BTreeMap::new(), 0);
    for link in links {
        for seed in 0..4 {
            let mut judged = Judged::new(seed, link);
            judged.play(100);
            partial += judged.partial;
            for (ended, times) in judged.ends {
                *ends.entry(ended).or_insert(0) += times;
            }
        }
    }
    for ended in [Ended::Whole, Ended::Age, Ended::Idle, Ended::Refused] {
        assert!(ends.contains_key(&(ended as u8)), "{ends:?}");
    }
    assert_eq!(ends.values().sum::<u64>(), 3 * 4 * 100);
    assert!(partial > 20, "{partial}");
}
