//! Several devices that send to one, through a switch whose queue marks before it is full, in
//! virtual time.
//!
//! The figures are the same on every machine.
//!
//! Includes all that programs use except the sockets: engine, transport, congestion notifications,
//! reports, rate control.

use crate::world::{to_network, to_port};
use crate::writer::{MESSAGE, MESSAGES, Writer};
use airdma_engine::{Qp, RateControl};
use airdma_sim::{Delivery, Link, Marking, Network, Node};
use airdma_transport::Time;
use core::time::Duration;
use std::sync::Arc;

/// Delay of each of the two lines between hosts.
const DELAY: Duration = Duration::from_micros(2);
/// Capacity of the switch's queue.
const QUEUE_BYTES: u64 = 4 << 20;
/// WRITEs that a sender has in flight.
const AHEAD: u64 = 16;
/// Largest jitter of the receiver's packets, without which senders would keep in step and get
/// shares of their own.
const ANSWERS_JITTER: Duration = Duration::from_micros(20);
const SEED: u64 = 7;
const NANOS_PER_S: u64 = 1_000_000_000;
const _: () = assert!(AHEAD <= MESSAGES);

/// Number of senders, their rate control, and the switch.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Number of senders.
    pub senders: usize,
    /// Whether the hosts offer each other more than RoCEv2.
    pub air: bool,
    /// Rate control of the senders.
    pub control: RateControl,
    /// Rate of every line, Mb/s.
    pub line_mbps: u32,
    /// Marking of the queue in front of the receiver.
    pub marking: Marking,
    /// Delay between the starts of two senders.
    pub apart: Duration,
}

/// Observations over a period.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Payload rate of each sender's completed WRITEs, in Mb/s.
    pub mbps: Vec<f64>,
    /// Bytes queued in front of each forwarded packet: mean, median and 99 %.
    pub queue_bytes: [u64; 3],
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Share of the forwarded packets that were marked.
    pub marked: f64,
}

impl Setting {
    fn bits_per_s(&self) -> u64 {
        u64::from(self.line_mbps) * 1_000_000
    }

    /// Time of a frame of `bytes` (BTH to ICRC) on a line, with UDP, IPv4 and Ethernet.
    fn time_for(&self, bytes: usize) -> Duration {
        let bits = (bytes + OVERHEAD) as u64 * 8;
        Duration::from_nanos((bits * NANOS_PER_S).div_ceil(self.bits_per_s()))
    }

    /// Largest payload rate of a line, Mb/s.
    pub fn payload_mbps(&self) -> f64 {
        let payload = 4096.0 / (4096.0 + 12.0 + 4.0 + OVERHEAD as f64);
        f64::from(self.line_mbps) * payload
    }

    /// Time at which a sender starts.
    fn begins_at(&self, sender: usize) -> Duration {
        self.apart * sender as u32
    }
}

impl Seen {
    /// Sum over all senders.
    pub fn sum_mbps(&self) -> f64 {
        self.mbps.iter().sum()
    }

    /// Jain's index: 1 if all have the same, 1/n if one has everything.
    pub fn fairness(&self) -> f64 {
        let squares: f64 = self.mbps.iter().map(|rate| rate * rate).sum();
        self.sum_mbps().powi(2) / (self.mbps.len() as f64 * squares)
    }
}

/// Senders, a switch and a receiver.
pub struct Bottleneck {
    setting: Setting,
    network: Network,
    /// Hosts; the last one is the receiver.
    hosts: Vec<Writer>,
    qps: Vec<Arc<Qp>>,
    _theirs: Vec<Arc<Qp>>,
    /// Time at which each host's line is free.
    free_at: Vec<Duration>,
    /// Hosts whose packets wait for their line.
    waits: Vec<bool>,
    /// WRITEs of each sender in flight.
    ahead: Vec<u64>,
    now: Duration,
    done: Vec<u64>,
    queue: Vec<u64>,
    marked: u64,
    dropped: u64,
}

impl Bottleneck {
    /// Builds the hosts; nothing is sent yet.
    pub fn new(setting: Setting) -> Self {
        let receiver = setting.senders;
        // The host's own line is simulated here, so that a packet's time begins when it is on the
        // line.
        let bits_per_s = setting.bits_per_s();
        let line = |host| {
            let link = Link::new().rate(bits_per_s).delay(DELAY);
            if host == receiver {
                link.jitter(ANSWERS_JITTER)
            } else {
                link
            }
        };
        let switch = |host| {
            let marking = if host == receiver {
                setting.marking
            } else {
                Marking::Never
            };
            let link = Link::new().marking_bottleneck(bits_per_s, QUEUE_BYTES, marking);
            link.delay(DELAY)
        };
        let network = Network::star(SEED, receiver + 1, line, switch);
        let host = |index| Writer::new(index as u8 + 1, network.address(index), setting.line_mbps);
        let hosts: Vec<_> = (0..=receiver).map(host).collect();
        for host in &hosts {
            if setting.air {
                host.device.offer_air(setting.control);
            } else {
                host.device.control_rate(setting.control);
            }
        }
        let qps = (hosts[..receiver].iter()).map(|sender| {
            let (own, theirs) = (sender.queue_pair(), hosts[receiver].queue_pair());
            sender.connect(&own, &hosts[receiver], &theirs);
            hosts[receiver].connect(&theirs, sender, &own);
            (own, theirs)
        });
        let (qps, theirs): (Vec<_>, Vec<_>) = qps.unzip();
        Bottleneck {
            network,
            free_at: vec![Duration::ZERO; hosts.len()],
            waits: vec![false; hosts.len()],
            ahead: vec![0; receiver],
            done: vec![0; receiver],
            hosts,
            qps,
            _theirs: theirs,
            setting,
            now: Duration::ZERO,
            queue: Vec::new(),
            marked: 0,
            dropped: 0,
        }
    }

    /// Lets time pass; returns what was observed.
    pub fn run(&mut self, time: Duration) -> Seen {
        let end = self.now + time;
        let mut deliveries = Vec::new();
        while self.now < end {
            self.network
                .deliver(virtual_time(self.now), &mut |delivery| {
                    deliveries.push(delivery);
                });
            let mut busy = vec![false; self.hosts.len()];
            for delivery in deliveries.drain(..) {
                busy[delivery.to] = true;
                self.arrive(delivery);
            }
            for (host, busy) in busy.into_iter().enumerate() {
                let due = self.hosts[host].device.deadline();
                if busy
                    || self.begins(host)
                    || self.waits[host]
                    || due.is_some_and(|at| at <= self.now)
                {
                    self.serve(host);
                }
            }
            self.now = self.next_event(end).clamp(self.now, end);
        }
        self.seen(time)
    }

    /// Whether a sender's start is due.
    fn begins(&self, host: usize) -> bool {
        let is_sender = host < self.qps.len();
        is_sender && self.ahead[host] == 0 && self.now >= self.setting.begins_at(host)
    }

    fn next_event(&self, end: Duration) -> Duration {
        let network = self.network.next_event().map(duration);
        let hosts = self.hosts.iter().enumerate().flat_map(|(host, writer)| {
            let free_at = self.waits[host].then_some(self.free_at[host]);
            [writer.device.deadline(), free_at]
        });
        let begins = (0..self.qps.len())
            .map(|sender| self.setting.begins_at(sender))
            .filter(|&at| at > self.now);
        let all = hosts.flatten().chain(network).chain(begins);
        all.min().unwrap_or(end)
    }

    fn arrive(&mut self, delivery: Delivery) {
        let Delivery { to, frame, .. } = delivery;
        let is_write = frame.bytes.len() > MTU_BYTES;
        if to == self.qps.len() && is_write {
            let took = delivery.at.duration_since(delivery.sent);
            let unhindered = 2 * (DELAY + self.setting.time_for(frame.bytes.len()));
            let waited = took.saturating_sub(unhindered).as_nanos() as u64;
            let bits = u128::from(waited) * u128::from(self.setting.bits_per_s());
            self.queue.push((bits / u128::from(8 * NANOS_PER_S)) as u64);
            self.marked += u64::from(frame.tos & 3 == 3);
        }
        self.hosts[to].carrier.give(to_port(frame));
    }

    /// Runs a host at this moment, and takes its packets as far as its line permits.
    fn serve(&mut self, host: usize) {
        loop {
            let writer = &self.hosts[host];
            writer.device.move_clock(self.now);
            if host < self.qps.len() && self.now >= self.setting.begins_at(host) {
                let done = writer.completed();
                self.done[host] += done;
                self.ahead[host] -= done;
                while self.ahead[host] < AHEAD {
                    writer.write(&self.qps[host], &self.hosts[self.qps.len()]);
                    self.ahead[host] += 1;
                }
            }
            writer.device.run(self.now);
            let mut took = false;
            while self.free_at[host] <= self.now
                && let Some(frame) = writer.carrier.take()
            {
                took = true;
                self.free_at[host] = self.now + self.setting.time_for(frame.bytes.len());
                let now = virtual_time(self.now);
                self.network.send(now, host, to_network(frame));
            }
            self.waits[host] = self.free_at[host] > self.now;
            if !took || self.waits[host] {
                return;
            }
        }
    }

    fn seen(&mut self, time: Duration) -> Seen {
        let mbps = |done: &mut u64| {
            let bytes = std::mem::take(done) * MESSAGE as u64;
            bytes as f64 * 8.0 / time.as_secs_f64() / 1e6
        };
        let mut queue = std::mem::take(&mut self.queue);
        queue.sort_unstable();
        let packets = queue.len().max(1) as u64;
        let at = |percent: usize| queue.get(queue.len() * percent / 100).copied().unwrap_or(0);
        let receiver = self.qps.len();
        let counters = self.network.counters(Node::Switch(0), Node::Host(receiver));
        let dropped = counters.dropped - std::mem::replace(&mut self.dropped, counters.dropped);
        Seen {
            mbps: self.done.iter_mut().map(mbps).collect(),
            queue_bytes: [queue.iter().sum::<u64>() / packets, at(50), at(99)],
            dropped,
            marked: std::mem::take(&mut self.marked) as f64 / packets as f64,
        }
    }
}

/// Bytes that UDP, IPv4 and Ethernet add to a frame on a line.
const OVERHEAD: usize = 66;
/// Payload of a packet from the middle of a WRITE.
const MTU_BYTES: usize = 4096;

fn virtual_time(at: Duration) -> Time {
    Time::from_nanos(at.as_nanos() as u64)
}

fn duration(at: Time) -> Duration {
    Duration::from_nanos(at.as_nanos())
}
