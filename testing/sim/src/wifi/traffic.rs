//! A saturated sender and a receiver that acknowledges, which measure goodput.

use core::time::Duration;
use std::collections::VecDeque;

use airdma_transport::Time;

use super::medium::Medium;
use super::outcome::{Fate, Outcome};
use super::station::{StationCounters, StationId};
use crate::random::Random;

/// Bytes of an IP packet with 1,472 bytes of UDP payload.
pub const PACKET_BYTES: u32 = 1_500;

/// Bytes that do not count: the headers of IPv4 and UDP.
pub const HEADERS_BYTES: u32 = 28;

/// An IP packet with a TCP acknowledgement and its timestamps.
pub const ACK_PACKET_BYTES: u32 = 52;

/// Acknowledgement policy of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Never.
    None,
    /// After this number of packets.
    Packets(u64),
    /// After the first packet in each period of this length.
    Period(Duration),
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Payload that arrived, in Mb/s.
    pub goodput_mbit: f64,
    /// Mean number of MPDUs in the sender's PPDUs.
    pub mpdus_per_ppdu: f64,
    /// Accesses of the receiver for each of the sender's.
    pub reverse_accesses: f64,
    /// Share of the sender's accesses that collided.
    pub collisions: f64,
    /// Packets that were lost, of those that were delivered or lost.
    pub lost: f64,
}

/// One saturated direction, and acknowledgements in the other.
#[derive(Debug)]
pub struct OneWay {
    /// The medium; other stations may have been added.
    pub medium: Medium,
    /// Sender.
    pub from: StationId,
    /// Receiver, which acknowledges.
    pub to: StationId,
    /// Length of its IP packets, with the 28 bytes of UDP and IP.
    pub packet_bytes: u32,
    /// Acknowledgement policy.
    pub acks: Acks,
    /// Time that the receiving host spends on each packet, one after the other.
    pub host: Duration,
    random: Random,
    now: Time,
    outcomes: Vec<Outcome>,
    /// Times at which acknowledgements leave the receiving host.
    pending: VecDeque<Time>,
    host_free: Time,
    unacknowledged: u64,
    period_ends: Time,
    delivered: u64,
    lost: u64,
    token: u64,
}

impl OneWay {
    /// A sender in this cell, saturated from now on.
    pub fn new(medium: Medium, from: StationId, to: StationId, seed: u64) -> Self {
        OneWay {
            medium,
            from,
            to,
            packet_bytes: PACKET_BYTES,
            acks: Acks::None,
            host: Duration::ZERO,
            random: Random::new(seed),
            now: Time::ZERO,
            outcomes: Vec::new(),
            pending: VecDeque::new(),
            host_free: Time::ZERO,
            unacknowledged: 0,
            period_ends: Time::ZERO,
            delivered: 0,
            lost: 0,
            token: 0,
        }
    }

    /// The present moment.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Lets time pass and measures.
    pub fn run_for(&mut self, duration: Duration) -> Measured {
        let end = self.now + duration;
        let before = (self.delivered, self.lost);
        let sender = self.medium.counters(self.from);
        let receiver = self.medium.counters(self.to);
        while self.now < end {
            self.fill();
            let next = [self.medium.poll_at(), self.pending.front().copied()];
            let at = next.into_iter().flatten().min().unwrap_or(end).min(end);
            self.now = self.now.max(at);
            self.medium
                .advance(self.now, &mut self.random, &mut self.outcomes);
            self.deliver();
            self.acknowledge();
        }
        let (delivered, lost) = (self.delivered - before.0, self.lost - before.1);
        let sent = Difference(sender, self.medium.counters(self.from));
        let acks = Difference(receiver, self.medium.counters(self.to));
        let accesses = sent.of(|counters| counters.accesses);
        let payload_bytes = f64::from(self.packet_bytes - HEADERS_BYTES);
        let bits = delivered as f64 * payload_bytes * 8.0;
        Measured {
            goodput_mbit: bits / duration.as_secs_f64() / 1e6,
            mpdus_per_ppdu: sent.of(|counters| counters.mpdus_sent) / accesses,
            reverse_accesses: acks.of(|counters| counters.accesses) / accesses,
            collisions: sent.of(|counters| counters.collisions) / accesses,
            lost: lost as f64 / (delivered + lost).max(1) as f64,
        }
    }

    fn fill(&mut self) {
        let room = self.medium.profile().queue_packets_max;
        for _ in self.medium.backlog(self.from).packets..room {
            let entered =
                self.medium
                    .enqueue(self.now, self.from, self.to, self.packet_bytes, self.token);
            entered.expect("there is room");
            self.token += 1;
        }
    }

    fn deliver(&mut self) {
        for index in 0..self.outcomes.len() {
            let outcome = self.outcomes[index];
            if outcome.from != self.from {
                continue;
            }
            if outcome.fate != Fate::Delivered {
                self.lost += 1;
                continue;
            }
            self.delivered += 1;
            self.host_free = self.host_free.max(outcome.at) + self.host;
            self.unacknowledged += 1;
            let is_due = match self.acks {
                Acks::None => false,
                Acks::Packets(packets) => self.unacknowledged >= packets,
                Acks::Period(_) => self.period_ends <= self.host_free,
            };
            if is_due {
                self.unacknowledged = 0;
                if let Acks::Period(period) = self.acks {
                    self.period_ends = self.host_free + period;
                }
                self.pending.push_back(self.host_free);
            }
        }
        self.outcomes.clear();
    }

    fn acknowledge(&mut self) {
        while self.pending.front().is_some_and(|&at| at <= self.now) {
            self.pending.pop_front();
            // A full queue drops acknowledgements; later ones carry the same.
            let _ = self
                .medium
                .enqueue(self.now, self.to, self.from, ACK_PACKET_BYTES, 0);
        }
    }
}

struct Difference(StationCounters, StationCounters);

impl Difference {
    fn of(&self, count: impl Fn(&StationCounters) -> u64) -> f64 {
        (count(&self.1) - count(&self.0)) as f64
    }
}
