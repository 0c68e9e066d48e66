//! Write-Records over a network that loses, repeats and reorders packets, in virtual time, with an
//! attacker that replays what it saw and forges what it does not know. The reference model judges
//! every step.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::time::Duration;

use airdma_model::records::{Name, Record, Records};
use airdma_sim::Random;
use airdma_transport::{
    Completion, Counter, Ended, Host, LocalFault, Operation, QueuePair, RecordConfig, RecordHandle,
    RecordHost, RecordOrigin, RecordTarget, RemoteFault, Slot, Time,
};
use airdma_wire::{Neighbour, PathMtu, Qpn, RecordPacket, Rkey};
use airdma_worlds::datagrams::{self, Flight, Link, PERCENT, arrival};
use airdma_worlds::only_datagrams;

const TARGET: [u8; 4] = [10, 0, 0, 1];
const VA: u64 = 0x10_0000;
const KEY: Rkey = Rkey(0x5eed_0001);
/// Memory of one source, in slots of the longest message.
const SLOT: u64 = 1024;
const SLOTS: u64 = 64;
/// A slot whose message never came is used again when that many later ones have ended: late packets
/// of it are dropped then.
const REUSE_AFTER: usize = 40;

/// Worlds of each test.
const SEEDS: u64 = 6;

/// What happens to packets, and how far messages are apart.
#[derive(Clone, Copy, Debug)]
struct Network {
    link: Link,
    /// Longest pause between two messages.
    pause_us: u64,
    attacks: bool,
}

/// The host of a requester: one message.
#[derive(Default)]
struct Sender {
    message: Vec<u8>,
    completed: Option<Completion>,
}

#[rustfmt::skip]
impl Host for Sender {
    fn gather(&mut self, _: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        out.copy_from_slice(&self.message[offset as usize..][..out.len()]);
        Ok(())
    }
    only_datagrams!();
    fn complete_send(&mut self, _: Slot, completion: Option<Completion>) { self.completed = completion; }
    fn count(&mut self, _: Counter) {}
}

/// The memory of the target.
struct Memory {
    bytes: Vec<u8>,
    counters: BTreeMap<&'static str, u64>,
}

impl Memory {
    fn range(&self, rkey: Rkey, va: u64, length: usize) -> Result<usize, RemoteFault> {
        let at = va.checked_sub(VA).ok_or(RemoteFault::Access)?;
        let fits = rkey == KEY && at + length as u64 <= self.bytes.len() as u64;
        fits.then_some(at as usize).ok_or(RemoteFault::Access)
    }
}

impl RecordHost for Memory {
    fn check_record(
        &mut self,
        _: RecordOrigin,
        rkey: Rkey,
        va: u64,
        length: u32,
    ) -> Result<(), RemoteFault> {
        self.range(rkey, va, length as usize).map(|_| ())
    }

    fn write_record(
        &mut self,
        _: RecordOrigin,
        rkey: Rkey,
        va: u64,
        data: &[u8],
    ) -> Result<(), RemoteFault> {
        let at = self.range(rkey, va, data.len())?;
        self.bytes[at..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn count_record(&mut self, counter: Counter) {
        *self.counters.entry(counter.name()).or_default() += 1;
    }
}

/// With 256 bytes of payload.
fn queue_pair(number: u32) -> QueuePair {
    datagrams::queue_pair(Qpn::new(number), PathMtu::M256, 360)
}

struct Source {
    qp: QueuePair,
    address: Neighbour,
    /// First address of its memory.
    va: u64,
    number: u32,
    /// Numbers of messages that ended.
    ended: Vec<u32>,
    /// The message that has each slot, until its record is freed or its number is old.
    slots: Vec<Option<Name>>,
}

struct World {
    random: Random,
    network: Network,
    now: Time,
    sources: Vec<Source>,
    target: QueuePair,
    records: RecordTarget,
    memory: Memory,
    judge: Records,
    flight: Flight<(Neighbour, Vec<u8>)>,
    /// Packets that the attacker saw.
    seen: Vec<(Neighbour, Vec<u8>)>,
    held: Vec<(RecordHandle, Name)>,
    sent: u64,
    sent_bytes: u64,
    ended: u64,
    valid_bytes: u64,
    ends: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64, network: Network, config: RecordConfig, sources: u32) -> Self {
        let source = |index: u32| Source {
            qp: queue_pair(0x100 + index),
            address: [10, 0, 1, index as u8 / 2].into(),
            va: VA + u64::from(index) * SLOT * SLOTS,
            number: 0,
            ended: Vec::new(),
            slots: vec![None; SLOTS as usize],
        };
        let bytes = vec![0xee; (u64::from(sources) * SLOT * SLOTS) as usize];
        World {
            random: Random::new(seed),
            network,
            now: Time::ZERO,
            sources: (0..sources).map(source).collect(),
            target: queue_pair(1),
            records: RecordTarget::new(config, [seed, !seed]).unwrap(),
            judge: Records::new(VA, &bytes, (config.open_max + config.closed_max) as usize),
            memory: Memory {
                bytes,
                counters: BTreeMap::new(),
            },
            flight: Flight::new(network.link),
            seen: Vec::new(),
            held: Vec::new(),
            sent: 0,
            sent_bytes: 0,
            ended: 0,
            valid_bytes: 0,
            ends: BTreeMap::new(),
        }
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    /// One source sends a message, if one of its slots is free.
    fn send(&mut self) {
        let index = self.random.below(self.sources.len() as u64) as usize;
        let slot = self.random.below(SLOTS) as usize;
        let source = &mut self.sources[index];
        let is_free = source.slots[slot].is_none_or(|name| {
            let later = source.ended.iter().filter(|&&ended| ended > name.number);
            !self.judge.has_ended(name) && later.count() > REUSE_AFTER
        });
        if !is_free {
            return;
        }
        let length = 1 + self.random.below(SLOT) as u32;
        let message: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
        let name = Name {
            source: index as u64,
            number: source.number,
        };
        let va = source.va + slot as u64 * SLOT;
        source.number += 1;
        source.slots[slot] = Some(name);
        self.judge.sent(name, va, &message).unwrap();
        (self.sent, self.sent_bytes) = (self.sent + 1, self.sent_bytes + u64::from(length));
        let mut host = Sender {
            message,
            completed: None,
        };
        let operation = Operation::Record { va, rkey: KEY };
        let request = datagrams::request(0, operation, length, TARGET.into(), Qpn::new(1));
        source.qp.post_send(request, &mut host);
        let mut out = vec![0; 5000];
        let mut packets = Vec::new();
        while let Some(sent) = source.qp.poll_transmit(self.now, 0, &mut host, &mut out) {
            packets.push(out[..sent.len].to_vec());
        }
        assert_eq!(host.completed.unwrap().byte_len, length);
        let address = source.address;
        for packet in packets {
            self.travel(address, packet);
        }
    }

    fn travel(&mut self, address: Neighbour, packet: Vec<u8>) {
        if self.network.attacks && self.seen.len() < 1000 && self.percent(10) {
            self.seen.push((address, packet.clone()));
        }
        self.flight
            .send(&mut self.random, self.now, &(address, packet));
    }

    /// Nothing happens to it.
    fn arrive(&mut self, address: Neighbour, packet: Vec<u8>) {
        self.flight
            .keep(&mut self.random, self.now, (address, packet));
    }

    /// A packet that was seen before arrives again, as it was or with another key.
    fn attack(&mut self) {
        let Some(at) = (self.seen.len() as u64).checked_sub(1) else {
            return;
        };
        let at = self.random.between(0, at) as usize;
        let (address, mut packet) = self.seen[at].clone();
        match self.random.below(4) {
            // The Q_Key, the address, the key of a message that may be open or of another one.
            0 => packet[12 + self.random.below(4) as usize] ^= 0x40,
            1 => packet[20 + self.random.below(4) as usize] ^= 0x40,
            2 => {
                packet[28 + self.random.below(4) as usize] ^= 0x40;
                packet[36] ^= self.random.below(2) as u8;
            }
            _ => {}
        }
        self.arrive(address, packet);
    }

    fn deliver(&mut self, address: Neighbour, bytes: &[u8]) {
        let packet = RecordPacket::parse(bytes).unwrap();
        let arrival = arrival(address, TARGET.into());
        self.target.handle_record(
            self.now,
            &arrival,
            &packet,
            &mut self.records,
            &mut self.memory,
        );
        self.judge();
    }

    fn judge(&mut self) {
        self.judge.check(&self.memory.bytes).unwrap();
        while let Some(handle) = self.records.poll_record() {
            let record = self.records.record(handle).unwrap();
            let source = record.src_qpn.get() - 0x100;
            let name = Name {
                source: source.into(),
                number: record.id,
            };
            let ended = record.ended.unwrap();
            let seen = Record {
                name,
                va: record.va,
                length: record.length,
                unit: record.unit.into(),
                valid: record.ranges().collect(),
                valid_bytes: record.valid_bytes,
                is_whole: ended == Ended::Whole,
            };
            self.ended += 1;
            self.valid_bytes += u64::from(seen.valid_bytes);
            *self.ends.entry(text(ended)).or_default() += 1;
            self.judge.told(&seen).unwrap();
            self.sources[source as usize].ended.push(name.number);
            self.held.push((handle, name));
        }
    }

    /// The application frees the record that it has had longest.
    fn free(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (handle, name) = self.held.remove(0);
        assert!(self.records.free(handle));
        self.judge.freed(name).unwrap();
        for source in &mut self.sources {
            for slot in &mut source.slots {
                slot.take_if(|of| *of == name);
            }
        }
    }

    /// Goes to `until`, with what is due before.
    fn run(&mut self, until: Time) {
        loop {
            let arrival = self.flight.next();
            let timer = self.records.poll_timeout();
            let next = [arrival, timer].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= until) else {
                break;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (address, packet) = self.flight.take().unwrap();
                self.deliver(address, &packet);
            } else {
                self.records.handle_timeout(self.now, &mut self.memory);
                self.judge();
            }
        }
        self.now = until;
    }

    /// Sends `messages` messages with random pauses, and waits until all have ended.
    fn play(&mut self, messages: u64) {
        while self.sent < messages {
            self.send();
            if self.network.attacks && self.percent(50) {
                self.attack();
            }
            if self.percent(60) {
                self.free();
            }
            let pause = Duration::from_micros(self.random.below(self.network.pause_us));
            self.run(self.now + pause);
        }
        self.run(self.now + Duration::from_secs(2));
        while !self.held.is_empty() {
            self.free();
        }
        assert_eq!(self.records.poll_timeout(), None, "nothing is open");
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.memory
            .counters
            .get(counter.name())
            .copied()
            .unwrap_or(0)
    }
}

fn text(ended: Ended) -> &'static str {
    match ended {
        Ended::Whole => "whole",
        Ended::Idle => "idle",
        Ended::Age => "age",
        Ended::Displaced => "displaced",
        Ended::Asked => "asked",
        Ended::TakenBack => "taken back",
        Ended::Last => "last",
        Ended::Refused => "refused",
        Ended::Flushed => "flushed",
    }
}

/// A table that holds all that the sources of a test can send.
fn roomy() -> RecordConfig {
    RecordConfig {
        open_max: 256,
        closed_max: 768,
        units_max: 64,
        sources_max: 1024,
        ..RecordConfig::default()
    }
}

const fn link(loss_percent: u64, repeat_percent: u64, jitter_us: u64) -> Link {
    Link {
        loss_ppm: loss_percent * PERCENT,
        repeat_ppm: repeat_percent * PERCENT,
        delay_us: 0,
        jitter_us,
    }
}

const CLEAN: Network = Network {
    link: link(0, 0, 2_000),
    pause_us: 400,
    attacks: false,
};

#[test]
fn without_loss_every_message_is_whole() {
    for seed in 0..SEEDS / 2 {
        let mut world = World::new(seed, CLEAN, roomy(), 4);
        world.play(300);
        assert_eq!((world.ended, world.valid_bytes), (300, world.sent_bytes));
        assert_eq!(world.ends.keys().collect::<Vec<_>>(), [&"whole"]);
    }
}

#[test]
fn of_what_is_lost_the_rest_is_valid() {
    let network = Network {
        link: link(5, 10, 2_000),
        ..CLEAN
    };
    let (mut valid, mut sent) = (0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed, network, roomy(), 4);
        world.play(300);
        assert!(world.ended <= 300 && world.counted(Counter::Duplicates) > 0);
        valid += world.valid_bytes;
        sent += world.sent_bytes;
    }
    // A packet is lost, and not repeated, with 4.5 %.
    let share = valid as f64 / sent as f64;
    assert!((0.945..0.965).contains(&share), "{share}");
}

#[test]
fn replays_and_forgeries_change_nothing() {
    let network = Network {
        link: link(5, 5, 5_000),
        attacks: true,
        ..CLEAN
    };
    let mut late = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, network, roomy(), 4);
        world.play(300);
        assert!(world.counted(Counter::DropBadQkey) > 0);
        assert!(world.counted(Counter::DropRecordRefused) > 0);
        late += world.counted(Counter::DropRecordLate);
    }
    assert!(late > 100 * SEEDS, "{late}");
}

#[test]
fn small_tables_keep_the_contract() {
    let network = Network {
        link: link(20, 20, 30_000),
        pause_us: 10_000,
        attacks: true,
    };
    let config = RecordConfig {
        open_max: 3,
        closed_max: 3,
        units_max: 8,
        sources_max: 16,
        ..RecordConfig::default()
    };
    let mut ends = BTreeMap::new();
    let mut full = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, network, config, 4);
        world.play(300);
        full += world.counted(Counter::DropRecordFull);
        for (end, times) in world.ends {
            *ends.entry(end).or_insert(0) += times;
        }
    }
    assert!(
        full > 0 && ends["displaced"] > 0 && ends["idle"] > 0,
        "{ends:?}"
    );
}
