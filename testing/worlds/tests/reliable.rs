//! Reliable datagrams from one queue pair to many targets, over a network that loses, repeats and
//! reorders packets in both directions, in virtual time. The reference model judges every step.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use airdma_model::reliable::Reliable;
use airdma_sim::Random;
use airdma_transport::{
    Completion, Counter, Ended, Host, LocalFault, Operation, QueuePair, Receive, RecordAnswerOwed,
    RecordConfig, RecordHost, RecordOrigin, RecordTarget, ReliableConfig, RemoteFault, SendRequest,
    Slot, Status, Time,
};
use airdma_wire::{
    GRH_LEN, Neighbour, PathMtu, Qpn, RECORD_ACK_OPCODE, RecordAck, RecordPacket, Rkey,
};
use airdma_worlds::datagrams::{self, Flight, Link, PERCENT, arrival};
use airdma_worlds::only_datagrams;

const KEY: Rkey = Rkey(0x5eed_0001);
const SENDER: [u8; 4] = [10, 0, 0, 1];
/// Longest message.
const LONGEST: u64 = 6000;
/// Receives that a target has posted.
const RECEIVES: usize = 4;

#[derive(Default)]
struct Sends {
    messages: Vec<Vec<u8>>,
    completed: Vec<(u64, Status)>,
    repeated: u64,
}

#[rustfmt::skip]
impl Host for Sends {
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        out.copy_from_slice(&self.messages[slot.0 as usize][offset as usize..][..out.len()]);
        Ok(())
    }
    only_datagrams!();
    fn complete_send(&mut self, _: Slot, completion: Option<Completion>) {
        let completion = completion.unwrap();
        self.completed.push((completion.wr_id, completion.status));
    }
    fn count(&mut self, counter: Counter) {
        self.repeated += u64::from(counter == Counter::Retransmits);
    }
}

/// The memory and the receives of a target. The upper half of an address is the name of a message,
/// so that none shares memory with another.
#[derive(Default)]
struct Receives {
    memory: BTreeMap<u64, Vec<u8>>,
    posted: VecDeque<u32>,
    buffers: Vec<Vec<u8>>,
    completed: Vec<Completion>,
    counters: BTreeMap<&'static str, u64>,
}

impl Receives {
    fn post(&mut self) {
        self.posted.push_back(self.buffers.len() as u32);
        self.buffers.push(vec![0; LONGEST as usize + GRH_LEN]);
    }
}

impl RecordHost for Receives {
    fn check_record(
        &mut self,
        _: RecordOrigin,
        rkey: Rkey,
        _: u64,
        _: u32,
    ) -> Result<(), RemoteFault> {
        (rkey == KEY).then_some(()).ok_or(RemoteFault::Access)
    }
    fn write_record(
        &mut self,
        _: RecordOrigin,
        _: Rkey,
        va: u64,
        data: &[u8],
    ) -> Result<(), RemoteFault> {
        let message = self.memory.entry(va >> 32).or_default();
        message.resize(LONGEST as usize, 0);
        message[va as u32 as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn count_record(&mut self, counter: Counter) {
        *self.counters.entry(counter.name()).or_default() += 1;
    }
    fn take_message(&mut self) -> Option<Receive> {
        let slot = self.posted.pop_front()?;
        Some(Receive {
            slot: Slot(slot),
            wr_id: slot.into(),
            length: LONGEST as u32 + GRH_LEN as u32,
        })
    }
    fn place_message(&mut self, receive: Slot, offset: u32, data: &[u8]) -> bool {
        let at = GRH_LEN + offset as usize;
        self.buffers[receive.0 as usize][at..][..data.len()].copy_from_slice(data);
        true
    }
    fn complete_message(&mut self, _: Slot, completion: Completion) {
        self.completed.push(completion);
    }
}

struct Target {
    qp: QueuePair,
    records: RecordTarget,
    host: Receives,
    is_dead: bool,
    /// Messages of it that were posted and have not completed.
    waiting: u64,
    completed: u64,
}

fn queue_pair(number: u32) -> QueuePair {
    datagrams::queue_pair(Qpn::new(number), PathMtu::M256, 360)
}

fn address(target: usize) -> Neighbour {
    [10, 0, 1, target as u8].into()
}

struct World {
    random: Random,
    now: Time,
    qp: QueuePair,
    host: Sends,
    targets: Vec<Target>,
    /// To a target, or an answer of it.
    flight: Flight<(usize, Vec<u8>)>,
    judge: Reliable,
}

impl World {
    fn new(seed: u64, link: Link, targets: usize, config: RecordConfig) -> Self {
        let mut qp = queue_pair(0x100);
        qp.enable_reliable(ReliableConfig::default(), [seed, !seed])
            .unwrap();
        let target = |number: usize| {
            let mut host = Receives::default();
            for _ in 0..RECEIVES {
                host.post();
            }
            Target {
                qp: queue_pair(1 + number as u32),
                records: RecordTarget::new(config, [!seed, seed]).unwrap(),
                host,
                is_dead: false,
                waiting: 0,
                completed: 0,
            }
        };
        World {
            random: Random::new(seed),
            now: Time::from_nanos(1_000_000_000),
            qp,
            host: Sends::default(),
            targets: (0..targets).map(target).collect(),
            flight: Flight::new(link),
            judge: Reliable::default(),
        }
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    /// A message of `length` bytes, whose first eight name it.
    fn post(&mut self, to: usize, length: u64, is_send: bool) {
        let name = self.host.messages.len() as u64;
        let mut message: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
        message[..8].copy_from_slice(&name.to_le_bytes());
        self.judge.sent(name, to as u64, &message).unwrap();
        self.targets[to].waiting += 1;
        self.host.messages.push(message);
        let va = name << 32;
        let operation = if is_send {
            Operation::Send
        } else {
            Operation::Record { va, rkey: KEY }
        };
        let qpn = Qpn::new(1 + to as u32);
        let request = SendRequest {
            reliable: true,
            ..datagrams::request(name as u32, operation, length as u32, address(to), qpn)
        };
        self.qp.post_send(request, &mut self.host);
    }

    fn fly(&mut self, target: usize, bytes: Vec<u8>) {
        self.flight
            .send(&mut self.random, self.now, &(target, bytes));
    }

    fn transmit(&mut self) {
        let mut out = vec![0; 5000];
        while let Some(sent) = self.qp.poll_transmit(self.now, 0, &mut self.host, &mut out) {
            let packet = RecordPacket::parse(&out[..sent.len]).unwrap();
            let target = packet.headers.bth.dest_qpn.get() as usize - 1;
            self.fly(target, out[..sent.len].to_vec());
        }
    }

    fn arrive(&mut self, target: usize, bytes: &[u8]) {
        if bytes[0] == RECORD_ACK_OPCODE {
            let answer = RecordAck::parse(bytes).unwrap();
            let arrival = arrival(address(target), SENDER.into());
            self.qp
                .handle_answer(self.now, &arrival, &answer, &mut self.host);
            return;
        }
        let at = &mut self.targets[target];
        if at.is_dead {
            return;
        }
        let packet = RecordPacket::parse(bytes).unwrap();
        let arrival = arrival(SENDER.into(), address(target));
        let (records, host) = (&mut at.records, &mut at.host);
        let answer = at
            .qp
            .handle_record(self.now, &arrival, &packet, records, host);
        self.read(target);
        if let Some(RecordAnswerOwed::Ack(answer)) = answer {
            let mut out = vec![0; bytes.len()];
            let len = answer.emit(&mut out);
            out.truncate(len);
            self.fly(target, out);
        }
    }

    /// The application of a target reads what came, and makes room for more.
    fn read(&mut self, target: usize) {
        let Target { records, host, .. } = &mut self.targets[target];
        for completion in std::mem::take(&mut host.completed) {
            assert_eq!(completion.status, Status::Success);
            let buffer = &host.buffers[completion.wr_id as usize];
            let message = buffer[GRH_LEN..completion.byte_len as usize].to_vec();
            let name = u64::from_le_bytes(message[..8].try_into().unwrap());
            host.post();
            self.judge.delivered(name, target as u64, &message).unwrap();
        }
        while let Some(handle) = records.poll_record() {
            let record = records.record(handle).unwrap();
            if record.ended == Some(Ended::Whole) {
                let name = record.va >> 32;
                let message = &host.memory[&name][..record.length as usize];
                self.judge.delivered(name, target as u64, message).unwrap();
            }
            records.free(handle);
        }
    }

    fn settle(&mut self) {
        self.transmit();
        for (name, status) in std::mem::take(&mut self.host.completed) {
            self.judge
                .completed(name, status == Status::Success)
                .unwrap();
            let target = self.destination_of(name);
            self.targets[target].waiting -= 1;
            self.targets[target].completed += u64::from(status == Status::Success);
        }
    }

    fn destination_of(&self, name: u64) -> usize {
        self.judge.destination(name).unwrap() as usize
    }

    /// Goes to the next packet or timer; false if there is none by `until`.
    fn step(&mut self, until: Time) -> bool {
        self.settle();
        let arrival = self.flight.next();
        let timer = self.qp.poll_timeout();
        let next = [arrival, timer].into_iter().flatten().min();
        let Some(next) = next.filter(|&next| next <= until) else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (target, bytes) = self.flight.take().unwrap();
            self.arrive(target, &bytes);
        } else {
            self.qp.handle_timeout(self.now, &mut self.host);
        }
        self.settle();
        true
    }

    fn run(&mut self, until: Time) {
        while self.step(until) {}
    }
}

/// Messages of random sizes to random targets; returns how many succeeded.
fn play(world: &mut World, messages: u64) -> usize {
    for _ in 0..messages {
        let to = world.random.below(world.targets.len() as u64) as usize;
        let length = 8 + world.random.below(LONGEST - 8);
        let is_send = world.percent(50);
        world.post(to, length, is_send);
        let pause = Duration::from_micros(world.random.below(500));
        world.run(world.now + pause);
    }
    // With much loss a window is two packets, and half a second passes for each that is lost.
    let end = world.now + Duration::from_secs(200);
    world.run(end);
    world.judge.end().unwrap()
}

const LINK: Link = Link {
    loss_ppm: 5 * PERCENT,
    repeat_ppm: 5 * PERCENT,
    delay_us: 300,
    jitter_us: 300,
};

#[test]
fn all_messages_arrive_once_in_spite_of_loss() {
    for seed in 0..4 {
        let mut world = World::new(seed, LINK, 5, RecordConfig::default());
        assert_eq!(play(&mut world, 300), 300);
        assert!(world.host.repeated > 0);
    }
}

#[test]
fn small_tables_and_much_loss_keep_the_contract() {
    let link = Link {
        loss_ppm: 30 * PERCENT,
        repeat_ppm: 30 * PERCENT,
        delay_us: 100,
        jitter_us: 30_000,
    };
    let config = RecordConfig {
        open_max: 2,
        closed_max: 2,
        units_max: 64,
        sources_max: 4,
        ..RecordConfig::default()
    };
    let mut arrived = 0;
    for seed in 0..6 {
        let mut world = World::new(seed, link, 3, config);
        world.targets[2].is_dead = seed % 2 == 0;
        arrived += play(&mut world, 100);
    }
    assert!(arrived > 100, "{arrived}");
}

const LASTS: Duration = Duration::from_millis(50);

/// Messages that each target but the last takes, when 8 to each are always posted.
fn rounds(link: Link, is_dead: bool) -> Vec<u64> {
    let mut world = World::new(1, link, 64, RecordConfig::default());
    world.targets[63].is_dead = is_dead;
    let start = world.now;
    while world.now.duration_since(start) < LASTS {
        for to in 0..64 {
            while world.targets[to].waiting < 8 {
                world.post(to, 1024, false);
            }
        }
        world.step(start + LASTS);
    }
    let done = world.targets[..63].iter().map(|target| target.completed);
    let done: Vec<u64> = done.collect();
    world.run(world.now + Duration::from_secs(3));
    let lost: u64 = world.targets[..63]
        .iter()
        .map(|target| target.waiting)
        .sum();
    assert_eq!(lost, 0);
    let given_up = world.host.messages.len() - world.judge.end().unwrap();
    assert_eq!(given_up > 0, is_dead);
    done
}

#[test]
fn one_dead_target_of_sixty_four_slows_no_other_down() {
    let link = Link {
        loss_ppm: 0,
        repeat_ppm: 0,
        delay_us: 2_000,
        jitter_us: 0,
    };
    let (all_live, one_dead) = (rounds(link, false), rounds(link, true));
    let sum = |done: &[u64]| done.iter().sum::<u64>();
    let share = sum(&one_dead) as f64 / sum(&all_live) as f64;
    assert!(share > 0.95, "{share}");
    let least = one_dead.iter().min().unwrap() * 100 / all_live.iter().min().unwrap();
    assert!(least > 80, "{least} %");
}
