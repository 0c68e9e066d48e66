//! The radio between two hosts, step by step: the model of a Wi-Fi cell, fed with
//! what was counted at two queues, says what rate and what loss each of them has next. Reads no
//! clock and does no I/O, so that it runs by wall time and by virtual time alike.
//!
//! The packets of the model are shadows of those of the kernel. Whatever entered a queue since the
//! last step enters the model, spread over that time; the model moves to the present; and a copy of
//! it is asked how much it is going to serve. The rate is such that the kernel has then sent as
//! much as the model:
//!
//! rate = (served by the copy within the horizon + served by the model so far - sent by the kernel
//! so far) / horizon
//!
//! so that every error of one step is corrected by the next, and in the long run the kernel's bytes
//! are the model's. So it is with losses: what the model lost and the kernel has not yet is the
//! share of the next step's packets that is lost.

use std::time::Duration;

use airdma_sim::wifi::{Airtime, Fate, Medium, Outcome, StationCounters, StationId};
use airdma_sim::{Random, Time};

use crate::profile::Profile;
use crate::shaper::{Counted, FRAME_HEADER_BYTES};
use crate::twin::cell;

/// Time that the copy runs ahead: long enough that some aggregates end, the longest of which
/// lasts 5.5 ms.
const HORIZON: Duration = Duration::from_millis(12);
/// Even a dead link hands something on, to be lost: a class of HTB cannot have the rate 0, and one
/// that is much slower than this would sleep over the link's return.
const BYTES_PER_S_MIN: u64 = 125_000;
/// Time after which an empty and unused queue is queried more seldom.
const QUIET: Duration = Duration::from_millis(50);
/// Longer packets cannot take the air.
const PACKET_BYTES_MAX: u64 = 9_000;
/// Most packets that are taken over in one step; more were a jump of a counter.
const ARRIVALS_MAX: u64 = 1 << 17;

/// A host, as a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// Its place in a pair.
    pub const fn index(self) -> usize {
        match self {
            Side::A => 0,
            Side::B => 1,
        }
    }
}

/// Counts at a queue until now.
pub type Seen = Counted;

/// Settings of a queue until the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Order {
    /// Bytes of frames (Ethernet header included) that may leave in a second.
    pub bytes_per_s: u64,
    /// The probability that one that left does not arrive.
    pub loss: f64,
}

/// Use of the air so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// All of it.
    pub airtime: Airtime,
    /// Counters of host A and host B.
    pub stations: [StationCounters; 2],
    /// Packets that the MAC of host A and of host B delivered to the other.
    pub delivered: [u64; 2],
    /// The same in bytes of IP packets.
    pub delivered_bytes: [u64; 2],
    /// Packets that they gave up.
    pub lost: [u64; 2],
    /// The scheme that each thinks is best, if it ever sent.
    pub mcs: [Option<u8>; 2],
}

/// One direction.
#[derive(Clone, Debug)]
struct Direction {
    from: StationId,
    to: StationId,
    seen: Seen,
    /// Frames that entered the model.
    entered_packets: u64,
    /// Bytes that did not divide by their number: they enter with the next ones. If they were
    /// forgotten, the kernel would be ahead of the model by ever more, and the link get slower by
    /// the minute.
    over_bytes: u64,
    /// Bytes of frames that left the model, delivered or given up.
    served_bytes: u64,
    delivered: u64,
    delivered_bytes: u64,
    lost: u64,
    /// Packets that the model lost and, as far as probabilities say, the kernel has not; below zero
    /// if it lost more.
    owed: f64,
    /// Packets that left the kernel's queue in the last step.
    left: u64,
    /// Length of the IP packets that came last.
    packet_bytes: u32,
    /// Packets that arrived, per step of the last length.
    arrived: u64,
    quiet_since: Time,
    asked_at: Option<Time>,
    order: Order,
    /// Result of the copy, in bytes of frames within the horizon.
    ahead_bytes: u64,
}

/// The cell with two hosts, and others.
#[derive(Debug)]
pub struct Air {
    medium: Medium,
    random: Random,
    now: Time,
    directions: [Direction; 2],
    outcomes: Vec<Outcome>,
}

impl Air {
    /// At time zero: two hosts and `stations` other stations. The same seed and counters give the
    /// same results.
    pub fn new(profile: &Profile, stations: usize, seed: u64) -> Air {
        // The queue is the kernel's; the model only has to follow.
        let (medium, [a, b]) = cell(profile, stations, usize::MAX);
        let direction = |from, to| Direction {
            from,
            to,
            seen: Seen::default(),
            entered_packets: 0,
            over_bytes: 0,
            served_bytes: 0,
            delivered: 0,
            delivered_bytes: 0,
            lost: 0,
            owed: 0.0,
            left: 0,
            packet_bytes: 1_500,
            arrived: 0,
            quiet_since: Time::ZERO,
            asked_at: None,
            order: Order {
                bytes_per_s: BYTES_PER_S_MIN,
                loss: 0.0,
            },
            ahead_bytes: 0,
        };
        let mut air = Air {
            medium,
            random: Random::new(seed),
            now: Time::ZERO,
            directions: [direction(a, b), direction(b, a)],
            outcomes: Vec::new(),
        };
        air.set_snr(profile.snr_db);
        air
    }

    /// The mean SNR between the hosts from now on, both ways, in dB.
    pub fn set_snr(&mut self, snr_db: f64) {
        let [Direction { from, to, .. }, _] = self.directions;
        self.medium.set_snr(from, to, snr_db);
    }

    /// Sends with this scheme only, for calibration.
    pub fn fix_mcs(&mut self, mcs: Option<u8>) {
        for direction in &self.directions {
            self.medium.fix_mcs(direction.from, mcs);
        }
    }

    /// Takes the counters of both queues at `now`; returns their settings until the next step.
    pub fn step(&mut self, now: Time, seen: [Seen; 2]) -> [Order; 2] {
        let before = [self.ended(Side::A), self.ended(Side::B)];
        let arrivals = [
            self.directions[0].arrivals(&seen[0]),
            self.directions[1].arrivals(&seen[1]),
        ];
        self.take_over(now, arrivals);
        self.medium
            .advance(now, &mut self.random, &mut self.outcomes);
        self.settle();
        let passed = now.duration_since(self.now);
        self.now = now;
        for side in Side::BOTH {
            self.decide(side, before[side.index()], passed);
        }
        [self.directions[0].order, self.directions[1].order]
    }

    /// Returns the use of the air until now.
    pub fn used(&self) -> Used {
        let each = |what: fn(&Direction) -> u64| [0, 1].map(|index| what(&self.directions[index]));
        let stations = [0, 1].map(|index| self.medium.counters(self.directions[index].from));
        Used {
            airtime: self.medium.airtime(),
            stations,
            delivered: each(|direction| direction.delivered),
            delivered_bytes: each(|direction| direction.delivered_bytes),
            lost: each(|direction| direction.lost),
            mcs: [0, 1].map(|index| {
                let Direction { from, to, .. } = self.directions[index];
                self.medium.mcs(from, to)
            }),
        }
    }

    /// Packets delivered and lost.
    fn ended(&self, side: Side) -> (u64, u64) {
        let direction = &self.directions[side.index()];
        (direction.delivered, direction.lost)
    }

    /// Feeds the arrivals since the last step to the model, evenly over the time that passed.
    fn take_over(&mut self, now: Time, arrivals: [u64; 2]) {
        let passed_ns = now.duration_since(self.now).as_nanos() as u64;
        let at = |number: u64, of: u64| {
            let share = u128::from(passed_ns) * u128::from(2 * number + 1) / u128::from(2 * of);
            self.now + Duration::from_nanos(share as u64)
        };
        let mut next = [0, 0];
        loop {
            let due = [0, 1]
                .map(|side| (next[side] < arrivals[side]).then(|| at(next[side], arrivals[side])));
            let side = match due {
                [None, None] => return,
                [Some(_), None] => 0,
                [None, Some(_)] => 1,
                [Some(a), Some(b)] => usize::from(b < a),
            };
            let Some(time) = due[side] else { return };
            next[side] += 1;
            self.medium
                .advance(time, &mut self.random, &mut self.outcomes);
            let direction = &self.directions[side];
            let bytes = direction.packet_bytes;
            let entered =
                self.medium
                    .enqueue(time, direction.from, direction.to, bytes, bytes.into());
            debug_assert!(entered.is_ok(), "the model's queue has no end");
        }
    }

    fn settle(&mut self) {
        for outcome in self.outcomes.drain(..) {
            let index = usize::from(outcome.from != self.directions[0].from);
            let direction = &mut self.directions[index];
            direction.served_bytes += outcome.token + FRAME_HEADER_BYTES;
            match outcome.fate {
                Fate::Delivered => {
                    direction.delivered += 1;
                    direction.delivered_bytes += outcome.token;
                }
                Fate::Lost(_) => direction.lost += 1,
            }
        }
    }

    fn decide(&mut self, side: Side, before: (u64, u64), passed: Duration) {
        let (delivered, lost) = self.ended(side);
        let (delivered, lost) = (delivered - before.0, lost - before.1);
        let now = self.now;
        let direction = &mut self.directions[side.index()];
        if direction.arrived > 0 || direction.seen.backlog_packets > 0 {
            direction.quiet_since = now;
        }
        let is_quiet = now.duration_since(direction.quiet_since) > QUIET;
        let known = direction.asked_at;
        if !is_quiet || known.is_none_or(|at| now.duration_since(at) > QUIET) {
            let ahead_bytes = self.ahead(side, passed);
            let direction = &mut self.directions[side.index()];
            direction.ahead_bytes = ahead_bytes;
            direction.asked_at = Some(now);
        }
        let direction = &mut self.directions[side.index()];
        direction.order.bytes_per_s = direction.rate();
        direction.owed += lost as f64;
        // As many of the packets about to leave are lost as in the model. Without traffic
        // the value stays: a host that sends seldom loses packets, too.
        let next = direction.left.max(delivered + lost);
        if next > 0 {
            direction.order.loss = (direction.owed / next as f64).clamp(0.0, 1.0);
        }
    }

    /// Bytes of frames that a copy of the model serves within the horizon, if the queue stays
    /// as long as it is, because whoever fills it goes on when there is room; an empty queue, if it
    /// fills at once. The other host goes on as it did in the last step.
    fn ahead(&self, side: Side, passed: Duration) -> u64 {
        let mut medium = self.medium.clone();
        let mut random = self.random.clone();
        let mut outcomes = Vec::new();
        let ours = &self.directions[side.index()];
        let other = &self.directions[1 - side.index()];
        let hold = |medium: &Medium, direction: &Direction| {
            let model = medium.backlog(direction.from).packets as u64;
            model.max(direction.seen.backlog_packets)
        };
        let mut room = hold(&medium, ours);
        if ours.seen.backlog_packets == 0 {
            room = room.max(2 * u64::from(medium.profile().window));
        }
        let other_holds = other.seen.backlog_packets > 0;
        let other_room = if other_holds { hold(&medium, other) } else { 0 };
        let apart = (!other_holds && other.arrived > 0)
            .then(|| passed.max(Duration::from_nanos(1)) / other.arrived as u32);
        let end = self.now + HORIZON;
        let (mut now, mut served) = (self.now, 0);
        let mut other_at = apart.map(|apart| now + apart);
        while now < end {
            top_up(&mut medium, now, ours, room);
            top_up(&mut medium, now, other, other_room);
            let next = [medium.poll_at(), other_at];
            let at = next.into_iter().flatten().min().unwrap_or(end).min(end);
            now = now.max(at);
            medium.advance(now, &mut random, &mut outcomes);
            let ended = outcomes.drain(..).filter(|end| end.from == ours.from);
            served += ended.map(|end| end.token + FRAME_HEADER_BYTES).sum::<u64>();
            if let (Some(due), Some(apart)) = (other_at, apart)
                && due <= now
            {
                let bytes = other.packet_bytes;
                let _ = medium.enqueue(now, other.from, other.to, bytes, bytes.into());
                other_at = Some(due + apart.max(Duration::from_micros(1)));
            }
        }
        served
    }
}

/// Keeps at least `room` packets of this direction in the model's queue.
fn top_up(medium: &mut Medium, now: Time, direction: &Direction, room: u64) {
    let bytes = direction.packet_bytes;
    for _ in medium.backlog(direction.from).packets as u64..room {
        let _ = medium.enqueue(now, direction.from, direction.to, bytes, bytes.into());
    }
}

impl Direction {
    /// Counts the packets since the last step, and updates their mean length.
    fn arrivals(&mut self, seen: &Seen) -> u64 {
        let total = |seen: &Seen| seen.sent_bytes + seen.backlog_bytes;
        let come = total(seen).saturating_sub(total(&self.seen));
        self.left = seen.sent_packets.saturating_sub(self.seen.sent_packets);
        self.owed -= self.order.loss * self.left as f64;
        self.seen = *seen;
        self.arrived = 0;
        if come == 0 {
            return 0;
        }
        let bytes = come + self.over_bytes;
        let counted = seen.sent_packets + seen.backlog_packets;
        // A queue that does not split segmented packets counts each as one until it is sent.
        let packets = counted
            .saturating_sub(self.entered_packets)
            .max(bytes.div_ceil(PACKET_BYTES_MAX))
            .min(bytes / (FRAME_HEADER_BYTES + 1))
            .min(ARRIVALS_MAX);
        self.arrived = packets;
        self.over_bytes = bytes;
        if let Some(mean) = bytes.checked_div(packets) {
            let length = (mean - FRAME_HEADER_BYTES).min(PACKET_BYTES_MAX);
            self.packet_bytes = length as u32;
            self.entered_packets += packets;
            self.over_bytes -= packets * (length + FRAME_HEADER_BYTES);
        }
        packets
    }

    fn rate(&self) -> u64 {
        let horizon_s = HORIZON.as_secs_f64();
        let late_bytes = self.served_bytes as f64 - self.seen.sent_bytes as f64;
        let ahead_bytes = self.ahead_bytes as f64;
        // What is late is caught up with at twice the rate at most, as a radio cannot do more
        // either.
        let bytes = (ahead_bytes + late_bytes).min(2.0 * ahead_bytes);
        ((bytes / horizon_s).max(0.0) as u64).max(BYTES_PER_S_MIN)
    }
}

#[cfg(test)]
mod tests;
