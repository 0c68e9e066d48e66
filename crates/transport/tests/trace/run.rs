//! Runs of middle packets: whole exchanges between two queue pairs are the same, packet by packet,
//! whether these are written and taken one by one or many at a time.

use std::collections::VecDeque;

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

const MTU: usize = 256;

/// Numbers by chance, the same ones for the same seed (PCG's multiplier).
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as u32 % sides
    }
}

/// What an exchange came to, with every packet in order.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    packets: Vec<Vec<u8>>,
    said: Vec<Vec<String>>,
    counted: Vec<Vec<(&'static str, u32)>>,
    memory: Vec<u64>,
}

/// How often a run was written, and a middle packet taken at once.
#[derive(Debug, Default)]
struct Shortcuts {
    runs: usize,
    taken: usize,
    refused: usize,
}

struct Exchange {
    ends: [Bench; 2],
    wires: [VecDeque<Vec<u8>>; 2],
    window: u32,
    /// Decides how runs are cut, and nothing that both ways of going have in common.
    cuts: Option<Dice>,
    trace: Trace,
    shortcuts: Shortcuts,
}

impl Exchange {
    fn credit(&self, end: usize) -> u32 {
        match self.ends[end].qp.in_flight_bytes() {
            0 => u32::MAX,
            in_flight => self.window.saturating_sub(in_flight),
        }
    }

    /// Lets an end send all that it may.
    fn send(&mut self, end: usize) {
        let mut full = false;
        loop {
            let credit = self.credit(end);
            let mut out = [0xee; 4096];
            let bench = &mut self.ends[end];
            if full && let Some(cuts) = &mut self.cuts {
                let packets = cuts.below(12) as usize;
                let spare = 4 * cuts.below(9) as usize;
                let limits = RunLimits { packets, spare };
                let room = &mut out[..cuts.below(4096) as usize];
                if let Some(run) =
                    bench
                        .qp
                        .poll_run(bench.now, credit, limits, &mut bench.host, room)
                {
                    self.shortcuts.runs += 1;
                    assert!(run.packets >= 2 && run.packets <= packets);
                    assert_eq!(run.stride(), run.len + spare + ICRC_LEN);
                    for packet in room.chunks(run.stride()).take(run.packets) {
                        assert!(packet[run.len..].iter().all(|&byte| byte == 0xee));
                        self.wires[end].push_back(packet[..run.len].to_vec());
                    }
                    continue;
                }
            }
            let sent = bench
                .qp
                .poll_transmit(bench.now, credit, &mut bench.host, &mut out);
            let Some(sent) = sent else { return };
            full = sent.len > MTU;
            self.wires[end].push_back(out[..sent.len].to_vec());
        }
    }

    /// Brings a packet to the other end, whose PSNs begin elsewhere.
    fn deliver(&mut self, from: usize, mut bytes: Vec<u8>) {
        self.trace.packets.push(bytes.clone());
        let is_request = Packet::parse(&bytes)
            .unwrap()
            .headers
            .bth
            .opcode
            .is_request();
        let header = attributes();
        let (ours, theirs) = (header.sq_psn, header.rq_psn);
        let shift = theirs.distance_from(ours);
        let shift = if is_request { shift } else { -shift };
        let number = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
        let moved = number.wrapping_add_signed(shift) & 0x00ff_ffff;
        bytes[9..12].copy_from_slice(&moved.to_be_bytes()[1..]);
        let bench = &mut self.ends[1 - from];
        if self.cuts.is_some()
            && let Some((bth, payload)) = split_middle(&bytes)
        {
            if bench
                .qp
                .take_middle(bench.now, &bth, payload, &mut bench.host)
            {
                self.shortcuts.taken += 1;
                return;
            }
            self.shortcuts.refused += 1;
        }
        let packet = Packet::parse(&bytes).unwrap();
        bench
            .qp
            .handle_packet(bench.now, &bench.arrival, &packet, &mut bench.host);
    }
}

fn operation(dice: &mut Dice, length: u32) -> Operation {
    let rkey = if dice.below(40) == 0 { Rkey(8) } else { RKEY };
    let va = REGION_VA + u64::from(dice.below(64)) * 8;
    match dice.below(6) {
        0 => Operation::Send,
        1 => Operation::SendImm([1, 2, 3, 4]),
        2 => Operation::WriteImm {
            va,
            rkey,
            imm: [5; 4],
        },
        3 if length > 0 => Operation::Read { va, rkey },
        _ => Operation::Write { va, rkey },
    }
}

/// Messages of all lengths, losses, repeats, a window that changes, memory that is not granted.
fn exchange(seed: u64, runs: bool) -> (Trace, Shortcuts) {
    let mut dice = Dice(seed);
    let mut exchange = Exchange {
        ends: [Bench::connected(), Bench::connected()],
        wires: Default::default(),
        window: 0,
        cuts: runs.then_some(Dice(!seed)),
        trace: Trace::default(),
        shortcuts: Shortcuts::default(),
    };
    let loss = [0, 0, 60, 15][dice.below(4) as usize];
    for round in 0..60 {
        exchange.window = 1 + dice.below(5000);
        for end in 0..2 {
            let bench = &mut exchange.ends[end];
            if bench.qp.state() == QpState::ReadyToSend && round < 20 && dice.below(3) > 0 {
                let most = [300, 3_000, 12_000][dice.below(3) as usize];
                let length = dice.below(most);
                let operation = operation(&mut dice, length);
                let fence = dice.below(4) == 0;
                bench.post_with(operation, length, |request| request.fence = fence);
            }
            if dice.below(2) == 0 {
                let length = [13_000, 13_000, 13_000, 700][dice.below(4) as usize];
                bench.post_receive(100 + round, length);
            }
            exchange.send(end);
        }
        for from in 0..2 {
            while let Some(packet) = exchange.wires[from].pop_front() {
                if loss > 0 && dice.below(loss) == 0 {
                    continue;
                }
                if loss > 0 && dice.below(loss) == 0 {
                    exchange.deliver(from, packet.clone());
                }
                exchange.deliver(from, packet);
            }
        }
        let idle = exchange.ends.iter().all(|bench| !bench.qp.wants_transmit());
        for bench in &mut exchange.ends {
            if idle && bench.qp.poll_timeout().is_some() {
                bench.next_timer();
            }
        }
    }
    for bench in &mut exchange.ends {
        let host = &mut bench.host;
        exchange.trace.said.push(std::mem::take(&mut host.log));
        let counters = host.counters.iter();
        let counters = counters.map(|(name, count)| (*name, *count)).collect();
        exchange.trace.counted.push(counters);
        let bytes = host
            .memory
            .iter()
            .chain(host.received.values().flatten())
            .chain(host.messages.values().flatten());
        let sum = bytes.fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(*byte));
        exchange.trace.memory.push(sum);
    }
    (exchange.trace, exchange.shortcuts)
}

#[test]
fn an_exchange_is_the_same_with_runs_and_without() {
    let mut all = Shortcuts::default();
    for seed in 0..400 {
        let (plain, none) = exchange(seed, false);
        let (with_runs, shortcuts) = exchange(seed, true);
        for (index, (a, b)) in plain.packets.iter().zip(&with_runs.packets).enumerate() {
            assert_eq!(a, b, "seed {seed}, packet {index}");
        }
        assert_eq!(plain, with_runs, "seed {seed}");
        assert_eq!(none.runs + none.taken, 0);
        all.runs += shortcuts.runs;
        all.taken += shortcuts.taken;
        all.refused += shortcuts.refused;
    }
    assert!(all.runs > 500 && all.taken > 5_000, "{all:?}");
    assert!(all.refused > 200, "{all:?}");
}

/// The shortcut leaves alone what is not the next packet in the middle of a message that arrives.
#[test]
fn unexpected_middle_packets_take_the_full_check() {
    let full = [7; MTU];
    let middle = |b: &mut Bench, opcode, psn, payload: &[u8]| {
        let bth = Bth::new(opcode, Qpn::new(QPN), Psn::new(psn));
        b.qp.take_middle(b.now, &bth, payload, &mut b.host)
    };
    let reth = Reth {
        va: REGION_VA,
        rkey: RKEY,
        length: 3 * MTU as u32,
    };
    let mut b = Bench::connected();
    assert!(!middle(&mut b, Opcode::RcWriteMiddle, 100, &full));
    b.write_arrives(Opcode::RcWriteFirst, 100, &full, Some(reth));
    assert!(!middle(&mut b, Opcode::RcSendMiddle, 101, &full));
    assert!(!middle(&mut b, Opcode::RcWriteMiddle, 102, &full));
    assert!(!middle(&mut b, Opcode::RcWriteMiddle, 101, &full[4..]));
    b.host.granted = false;
    assert!(!middle(&mut b, Opcode::RcWriteMiddle, 101, &full));
    b.host.granted = true;
    assert!(middle(&mut b, Opcode::RcWriteMiddle, 101, &full));
    // Now the last is due.
    assert!(!middle(&mut b, Opcode::RcWriteMiddle, 102, &full));
    b.write_arrives(Opcode::RcWriteMiddle, 102, &full, None);
    assert_eq!(b.sends(), ["Acknowledge 102 NAK InvalidRequest"]);
    assert_eq!(b.qp.state(), QpState::Error);
    assert!(!middle(&mut b, Opcode::RcWriteMiddle, 102, &full));

    let mut b = Bench::connected();
    b.post_receive(1, 2 * MTU as u32);
    b.arrives(Opcode::RcSendFirst, 100, &full, |_| {});
    assert!(middle(&mut b, Opcode::RcSendMiddle, 101, &full));
    // More than the receive holds.
    assert!(!middle(&mut b, Opcode::RcSendMiddle, 102, &full));
}

#[test]
fn unexpected_or_last_read_responses_take_the_full_check() {
    let response = |b: &mut Bench, psn| {
        let bth = Bth::new(Opcode::RcReadResponseMiddle, Qpn::new(QPN), Psn::new(psn));
        b.qp.take_middle(b.now, &bth, &[7; MTU], &mut b.host)
    };
    let mut b = Bench::connected();
    let (va, rkey) = (REGION_VA, RKEY);
    b.post(Operation::Read { va, rkey }, 3 * MTU as u32);
    assert!(!response(&mut b, 0xff_fffe), "it was not sent");
    assert_eq!(b.sends().len(), 1);
    assert!(!response(&mut b, 0xff_ffff));
    assert!(response(&mut b, 0xff_fffe));
    assert!(response(&mut b, 0xff_ffff));
    assert!(!response(&mut b, 0), "the last");
    // A WRITE has no response.
    let mut b = Bench::connected();
    b.post(Operation::Write { va, rkey }, 3 * MTU as u32);
    assert_eq!(b.sends().len(), 3);
    assert!(!response(&mut b, 0xff_fffe));
}

/// With nothing in flight the window allows one packet, of any size, and then another number.
#[test]
fn no_run_starts_idle_or_at_a_retransmission() {
    let mut b = Bench::connected();
    let (va, rkey) = (REGION_VA, RKEY);
    b.post(Operation::Write { va, rkey }, 8 * MTU as u32);
    let run = |b: &mut Bench, packets| {
        let mut out = [0; 4096];
        let limits = RunLimits { packets, spare: 0 };
        b.qp.poll_run(b.now, b.credit, limits, &mut b.host, &mut out)
    };
    assert_eq!(run(&mut b, 5), None, "the first packet has a RETH");
    b.sends_one();
    assert_eq!(run(&mut b, 1), None);
    assert_eq!(run(&mut b, 2).map(|run| run.packets), Some(2));
    b.acknowledged(0, Syndrome::Ack { credits: 0x1f });
    assert_eq!(run(&mut b, 5), None);
    b.sends_one();
    assert_eq!(run(&mut b, 2).map(|run| run.packets), Some(2));
    b.next_timer();
    b.sends_one();
    assert_eq!(run(&mut b, 2), None);
    assert_eq!(b.counted(Counter::Retransmits), 1);
}
