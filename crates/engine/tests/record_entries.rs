//! Sources of records begin no more messages than the table of their target holds, in virtual time.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const QKEY: Qkey = Qkey(0x1234);
const SLOT: usize = 8192;
/// Requests that are posted and not completed.
const AHEAD: u32 = 32;
const STEP: Duration = Duration::from_micros(5);

/// A source and a target whose program is slower.
struct World {
    now: Duration,
    hosts: [Host; 2],
    from: End,
    to: End,
    region: Arc<Mr>,
    length: usize,
    posted: u32,
    completed: u32,
    whole: u32,
    /// Records that the program has not freed.
    held: VecDeque<RecordHandle>,
    freed_at: Duration,
    /// Lengths of packets of records, BTH to ICRC.
    lengths: Vec<usize>,
    /// Each of these answers and questions is lost, of the next ones.
    lost: u32,
    questions: u32,
}

impl World {
    fn new(config: RecordConfig, length: usize) -> World {
        let hosts = [host("a", LEFT), host("b", RIGHT)];
        let from = End::new(hosts[0].device.device(), QpType::Ud, SLOT);
        let to = End::new(hosts[1].device.device(), QpType::Ud, SLOT);
        for end in [&from, &to] {
            datagram_to_rts(&end.qp, QKEY);
        }
        to.qp.enable_records(config).unwrap();
        let region = to.pd.reg_record_mr(to.memory.address(), SLOT, None);
        World {
            now: Duration::ZERO,
            hosts,
            from,
            to,
            region: region.unwrap(),
            length,
            posted: 0,
            completed: 0,
            whole: 0,
            held: VecDeque::new(),
            freed_at: Duration::ZERO,
            lengths: Vec::new(),
            lost: 0,
            questions: 0,
        }
    }

    fn post(&mut self) {
        let va = self.to.memory.address();
        let rkey = self.region.rkey();
        let sge = self.from.memory.sge(0, self.length);
        let mut wr = signalled(Operation::Record { va, rkey }, sge);
        wr.datagram = Some(Datagram {
            path: self.to.path(),
            qpn: self.to.qp.number(),
            qkey: QKEY,
        });
        self.from.qp.post_send(&wr).unwrap();
        self.posted += 1;
    }

    /// A step: packets cross, and the program of the target frees a record each `pace`.
    fn step(&mut self, messages: u32, pace: Duration) {
        self.now += STEP;
        while self.posted < messages && self.posted - self.completed < AHEAD {
            self.post();
        }
        for (one, other) in [(0, 1), (1, 0)] {
            self.hosts[one].device.run(self.now);
            while let Some(frame) = self.hosts[one].carrier.take() {
                let is_echo = frame.bytes[0] == 0xc2;
                if frame.bytes[0] == 0xc0 {
                    self.lengths.push(frame.bytes.len());
                }
                self.questions += u32::from(is_echo && one == 0);
                if is_echo && self.lost > 0 {
                    self.lost -= 1;
                } else {
                    self.hosts[other].carrier.give(frame);
                }
            }
        }
        while let Some(completion) = self.from.try_complete() {
            assert_eq!(completion.status, Status::Success);
            self.completed += 1;
        }
        while let Some(completion) = self.to.try_complete() {
            assert_eq!(completion.opcode, CompletionOpcode::ReceiveRecord);
            self.whole += u32::from(completion.byte_len as usize == self.length);
            self.held.push_back(RecordHandle(completion.wr_id));
        }
        if self.now >= self.freed_at + pace
            && let Some(record) = self.held.pop_front()
        {
            assert!(self.to.qp.free_record(record));
            self.freed_at = self.now;
        }
    }

    fn run(&mut self, messages: u32, pace: Duration, limit: Duration) {
        let end = self.now + limit;
        while self.now < end && self.whole < messages {
            self.step(messages, pace);
        }
    }

    fn full(&self) -> u64 {
        counter(&self.to.device, "drop_record_full")
    }
}

fn small(entries: u32) -> RecordConfig {
    RecordConfig {
        open_max: entries / 4,
        closed_max: entries - entries / 4,
        ..RecordConfig::default()
    }
}

/// A program that frees a record each 20 us takes 50,000 messages a second at most.
#[test]
fn a_source_waits_for_a_slow_program_and_loses_nothing() {
    for length in [64, 4096] {
        for config in [RecordConfig::default(), small(64)] {
            let mut world = World::new(config, length);
            let pace = Duration::from_micros(20);
            world.run(600, pace, Duration::from_millis(60));
            assert_eq!((world.whole, world.full()), (600, 0), "{length} bytes");
            assert!(world.questions > 0, "it had to wait");
            // Nothing but the program held it up.
            assert!(world.now < pace * 750, "{:?}", world.now);
        }
    }
}

/// Three packets of 1,368 bytes, of which the last has 1,360 of the message.
#[test]
fn packets_of_messages_have_one_length_once_the_target_answered() {
    let mut world = World::new(RecordConfig::default(), 4096);
    let data = pattern(4096, 3);
    world.from.memory.fill(0, &data);
    world.run(12, Duration::ZERO, Duration::from_millis(1));
    assert_eq!(world.lengths[..3], [1420, 1420, 1412], "not known yet");
    world.lengths.clear();
    world.run(14, Duration::ZERO, Duration::from_millis(1));
    assert_eq!(world.lengths, [1420; 6]);
    assert_eq!(world.to.memory.bytes(0, 4096), data);
    assert_eq!(world.to.memory.byte(4096), 0, "behind the message");
    assert_eq!(world.whole, 14);
}

#[test]
fn a_table_of_two_entries_takes_one_message_at_a_time() {
    let config = RecordConfig {
        open_max: 1,
        closed_max: 1,
        ..RecordConfig::default()
    };
    let mut world = World::new(config, 4096);
    // The first answer states the entries.
    world.run(1, Duration::ZERO, Duration::from_millis(1));
    let pace = Duration::from_micros(50);
    world.run(200, pace, Duration::from_millis(100));
    assert!(world.whole >= 200 - AHEAD, "{}", world.whole);
    assert!(world.full() <= u64::from(AHEAD) * 3, "{}", world.full());
}

#[test]
fn lost_answers_and_questions_are_asked_again() {
    let mut world = World::new(small(64), 4096);
    let pace = Duration::from_micros(20);
    for _ in 0..4 {
        world.run(world.whole + 200, pace, Duration::from_millis(30));
        world.lost = 6;
    }
    world.run(1_000, pace, Duration::from_millis(100));
    assert_eq!((world.whole, world.full()), (1_000, 0));
}

#[test]
fn a_program_that_frees_nothing_delays_a_source_and_no_more() {
    let mut world = World::new(small(64), 4096);
    let never = Duration::from_secs(1000);
    world.run(200, never, Duration::from_millis(190));
    // An address has half of the entries.
    assert_eq!((world.whole, world.full()), (32, 0));
    assert!(world.completed < 50, "{}", world.completed);
    // Questions become rare: 20 us, 40, ... 10 ms.
    assert!(world.questions < 40, "{}", world.questions);
    world.run(200, never, Duration::from_millis(30));
    assert!(world.full() > 0 && world.completed > 50);
    world.run(200, never, Duration::from_secs(2));
    assert_eq!(world.completed, 200);
}
