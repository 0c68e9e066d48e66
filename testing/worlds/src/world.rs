//! Hosts, a network and a judge, in virtual time.
//!
//! One packet arrives at a time, and after every packet, timer and action the judge looks at the memory of the host that ran.
//!
//! | to change | look at |
//! |---|---|
//! | what a world consists of, and how its connections come up | [`build`] |
//! | its network | [`network`] |
//! | what happens as time passes | here |
//! | what the judge hears of the way between two ends | [`path`] |
//! | what is counted | [`counts`] |

mod build;
mod counts;
mod network;
mod path;

pub use build::{granted, rnr_timer, timeout};
pub use counts::{Counts, Seen};
pub(crate) use network::{to_network, to_port};

use crate::attacker::Attacker;
use crate::delays::Delays;
use crate::host::{Air, End, Host};
use crate::on_path::{OnPath, Passing};
use crate::plan::{Plan, Service};
use airdma_engine::Qkey;
use airdma_model::Contract;
use airdma_port::sim::Frame as PortFrame;
use airdma_sim::{Network, Random};
use airdma_transport::Time;
use core::time::Duration;
use network::network;
use std::collections::HashMap;

/// The key that all datagrams carry.
pub const QKEY: Qkey = Qkey(0x1111_1111);

/// What hosts share where another sits on the path.
const SECRET: &[u8] = b"what the host on the path has not";

/// What is outstanding under an identifier.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Which end; of a shared receive, one that uses the queue.
    pub end: usize,
    /// A receive.
    pub receives: bool,
    /// Its queue pair was destroyed: it may have completed before, or never does.
    pub orphan: bool,
}

/// A world.
pub struct World {
    /// As it was decoded.
    pub plan: Plan,
    /// Hosts.
    pub hosts: Vec<Host>,
    /// What connects them.
    pub network: Network,
    /// The present moment.
    pub now: Duration,
    /// Two for each connection.
    pub ends: Vec<End>,
    /// The judge; its queue pairs have the numbers of the ends.
    pub judge: Contract,
    /// By identifier.
    pub tickets: HashMap<u64, Ticket>,
    /// The last identifier.
    pub last_id: u64,
    /// For contents.
    pub random: Random,
    /// What went by.
    pub counts: Counts,
    /// What completed, and how, and how often.
    pub seen: Seen,
    /// What happened, in words, if somebody wants to know.
    pub log: Option<Vec<(Duration, String)>>,
    /// Times that regions were registered again.
    pub registrations: u64,
    /// Packets that got congestion marks: what is sent at a low rate is late.
    pub marked: u64,
    /// A queue pair or a host came to its end before the world did, or a link was cut.
    pub violent: bool,
    /// A send queue was drained.
    pub drained: bool,
    /// The host that forges datagrams, if there is one.
    pub(crate) attacker: Option<Attacker>,
    /// The host on the path, if there is one.
    pub(crate) on_path: Option<OnPath>,
    /// How long packets were under way, at `from * hosts + to`.
    delays: Vec<Delays>,
}

/// Times that a host may fill its port at one moment before it counts as one that never ends.
const ROUNDS_MAX: u32 = 100_000;

/// Steps of a device or the network at which a world counts as one that never ends.
const STEPS_MAX: u64 = 2_000_000;

impl World {
    /// Builds a world. `logs`: keeps what happens in words, and every packet for a capture.
    pub fn new(plan: Plan, logs: bool) -> World {
        let mut random = Random::new(plan.seed);
        let mut network = network(&plan.network, plan.hosts, random.next_u64());
        if plan.v6 {
            network = network.with_ipv6();
        }
        if logs {
            network.start_trace();
            for host in 0..plan.hosts {
                network.capture_at(host);
            }
        }
        // In a third of the worlds nobody offers more than RoCEv2, in a third all do, and in the others each as it likes.
        let air = |seed: u64| match plan.seed % 3 {
            0 => Air::Nothing,
            1 => Air::Asks,
            _ => [Air::Asks, Air::Answers, Air::Nothing, Air::Asks][(seed % 4) as usize],
        };
        let hosts = (0..plan.hosts).map(|index| {
            let seed = random.next_u64();
            let host = Host::new(index, network.address(index), seed, air(seed));
            if plan.on_path.is_some() {
                let shared = host.device.device().share_secret(SECRET);
                shared.expect("a secret that is long enough");
            }
            if offers_sack(plan.seed) {
                host.device.offer_sack();
            }
            if air(seed) != Air::Nothing && offers_bundles(&plan) {
                host.device.offer_bundles();
            }
            host
        });
        let mut world = World {
            hosts: hosts.collect(),
            network,
            now: Duration::ZERO,
            ends: Vec::new(),
            judge: Contract::default(),
            tickets: HashMap::new(),
            last_id: 0,
            random,
            counts: Counts {
                worlds: 1,
                ..Counts::default()
            },
            seen: Seen::new(),
            log: logs.then(Vec::new),
            registrations: 0,
            marked: 0,
            violent: false,
            drained: false,
            attacker: None,
            on_path: None,
            delays: vec![Delays::default(); plan.hosts * plan.hosts],
            plan,
        };
        world.judge.careful = world.plan.careful;
        let on_path = world.plan.on_path;
        world.on_path = on_path.map(|of| OnPath::new(world.plan.seed, of, world.hosts.len()));
        world.introduce_hosts();
        for index in 0..world.plan.connections.len() {
            world.connect(world.plan.connections[index]);
        }
        if let Some(of) = world.plan.attacker {
            let mut attacker = Attacker::new(&world.plan, of, &world.hosts, &world.ends);
            for end in 0..world.ends.len() {
                attacker.note_start(end, world.plan.connections[end / 2].psns[end % 2]);
            }
            world.attacker = Some(attacker);
        }
        world
    }

    /// Writes a line of the log.
    pub fn note(&mut self, line: impl FnOnce(&World) -> String) {
        if self.log.is_some() {
            let line = line(self);
            let now = self.now;
            self.log
                .iter_mut()
                .for_each(|log| log.push((now, line.clone())));
        }
    }

    /// Everything that was noted, and every packet, in the order of time.
    pub fn events(&self) -> Vec<String> {
        let in_micros = |at: Duration| at.as_nanos() as f64 / 1000.0;
        let noted = self.log.iter().flatten();
        let noted = noted.map(|(at, line)| (*at, format!("{:>12.3} us  {line}", in_micros(*at))));
        let packets = self.network.trace().into_iter();
        let packets = packets.flat_map(|trace| trace.records());
        let packets = packets.map(|passage| (duration(passage.at), passage.to_string()));
        let mut all: Vec<_> = noted.chain(packets).collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, line)| line).collect()
    }

    /// Lets time pass, and all happen that happens until then.
    ///
    /// # Errors
    /// What the judge says.
    pub fn pass(&mut self, time: Duration) -> Result<(), String> {
        self.pass_until(self.now + time, |_| false)
    }

    /// The same, and stops when `done`.
    ///
    /// # Errors
    /// What the judge says.
    pub fn pass_until(
        &mut self,
        end: Duration,
        done: impl Fn(&World) -> bool,
    ) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            if done(self) {
                return Ok(());
            }
            let Some(at) = self.next_event().filter(|&at| at <= end) else {
                self.move_clocks(end);
                return Ok(());
            };
            self.move_clocks(self.now.max(at));
            self.happen()?;
            self.lay_ghosts();
        }
        Err(format!("no end after {STEPS_MAX} steps, at {:?}", self.now))
    }

    fn move_clocks(&mut self, now: Duration) {
        self.now = now;
        for host in self.hosts.iter().filter(|host| host.alive) {
            host.device.move_clock(now);
        }
    }

    /// When something happens by itself.
    pub fn next_event(&self) -> Option<Duration> {
        let network = self.network.next_event().map(duration);
        let alive = self.hosts.iter().enumerate().filter(|(_, host)| host.alive);
        let hosts = alive.flat_map(|(index, host)| {
            let port = host
                .waits_since
                .map(|_| duration(self.network.ready_at(index)).max(self.now));
            [host.device.deadline(), port]
        });
        let attacker = self.attacker.as_ref().and_then(Attacker::deadline);
        let attacker = attacker.map(|at| at.max(self.now));
        let held = self.on_path.as_ref().and_then(OnPath::deadline);
        let own = attacker.into_iter().chain(held);
        hosts.flatten().chain(network).chain(own).min()
    }

    fn happen(&mut self) -> Result<(), String> {
        self.attack();
        self.let_go()?;
        let mut deliveries = Vec::new();
        self.network
            .deliver(time(self.now), &mut |delivery| deliveries.push(delivery));
        for delivery in deliveries {
            let to = delivery.to;
            let (from, sent) = (delivery.from, duration(delivery.sent));
            self.note_delay(from, to, duration(delivery.at) - sent);
            if !self.hosts[to].alive {
                continue;
            }
            self.counts.packets += 1;
            self.counts.damaged += u64::from(delivery.damaged);
            self.hosts[to].harmed += u64::from(delivery.harmed);
            let mut frame = to_port(delivery.frame);
            if frame.tos & ECN == ECT_0 && self.random.chance(MARKED) {
                frame.tos |= ECN;
                self.marked += 1;
            }
            if delivery.damaged {
                self.arrive(to, frame)?;
                continue;
            }
            let passing = Passing {
                from,
                to,
                sent,
                frame,
            };
            self.pass_by(passing)?;
        }
        for host in 0..self.hosts.len() {
            let of = &self.hosts[host];
            let due = of.device.deadline().is_some_and(|at| at <= self.now);
            if of.alive && (due || of.waits_since.is_some()) {
                self.judge.now += 1;
                self.run(host)?;
            }
        }
        self.attend()
    }

    /// A packet was under way for so long, up to now.
    pub(crate) fn note_delay(&mut self, from: usize, to: usize, delay: Duration) {
        self.delays[from * self.hosts.len() + to].add(self.now, delay);
    }

    /// A packet comes to a host.
    ///
    /// # Errors
    /// What the judge says.
    pub(crate) fn arrive(&mut self, to: usize, frame: PortFrame) -> Result<(), String> {
        if !self.hosts[to].alive {
            return Ok(());
        }
        self.judge.now += 1;
        if let Some(attacker) = &mut self.attacker {
            attacker.note_arrival(&frame);
        }
        self.hosts[to].carrier.give(frame);
        self.run(to)
    }

    /// Lets a host do what is to be done now, takes what it sends, and looks at its memory.
    ///
    /// # Errors
    /// What the judge says.
    pub fn run(&mut self, index: usize) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            self.hosts[index].device.run(self.now);
            if self.collect(index) {
                continue;
            }
            self.observe(index)?;
            // One packet at a time, as from elsewhere.
            let Some(frame) = self.hosts[index].to_itself.pop_front() else {
                return Ok(());
            };
            self.judge.now += 1;
            self.hosts[index].carrier.give(frame);
        }
        Err(format!("host {index} sends without end at {:?}", self.now))
    }

    /// Hands the packets of a host to the network, as far as its port takes them. Returns whether it may have more.
    fn collect(&mut self, index: usize) -> bool {
        let mut took = 0;
        while duration(self.network.ready_at(index)) <= self.now {
            let Some(frame) = self.hosts[index].carrier.take() else {
                break;
            };
            took += 1;
            if let Some(attacker) = &mut self.attacker {
                attacker.note_packet(&frame, &self.ends, &self.hosts);
            }
            if frame.destination == self.hosts[index].address {
                // To itself: no network sees it.
                self.hosts[index].to_itself.push_back(frame);
                continue;
            }
            self.network.send(time(self.now), index, to_network(frame));
        }
        let host = &mut self.hosts[index];
        let full = duration(self.network.ready_at(index)) > self.now;
        if !full {
            host.waits_since = None;
            return took > 0;
        }
        // It may have none, and then it is looked for in vain once.
        let since = *host.waits_since.get_or_insert(self.now);
        host.port_waits.add(self.now, self.now - since);
        if took > 0 {
            host.waits_since = Some(self.now);
        }
        false
    }

    /// The judge looks at the memory of a host.
    ///
    /// # Errors
    /// What it says.
    pub fn observe(&mut self, index: usize) -> Result<(), String> {
        let host = &self.hosts[index];
        let seen = self.judge.memories[index].observe(host.bytes());
        seen.map_err(|why| format!("memory of host {index}: {why}"))
    }
}

impl World {
    /// Whether any host may offer its peers more than RoCEv2.
    pub fn offers_air(&self) -> bool {
        !self.plan.seed.is_multiple_of(3) || offers_sack(self.plan.seed)
    }

    /// Whether packets of an end are sealed.
    pub fn is_sealed(&self, end: usize) -> bool {
        // Only a secret seals datagrams.
        let is_connected = self.plan.connections[end / 2].service != Service::Ud;
        self.plan.sealed && (is_connected || self.plan.on_path.is_some())
    }

    /// Whether hosts may send bundles of packets.
    pub fn offers_bundles(&self) -> bool {
        offers_bundles(&self.plan)
    }
}

/// Whether all hosts of the world of this seed offer ACKs that say what is missing, whatever else they offer.
fn offers_sack(seed: u64) -> bool {
    seed.is_multiple_of(5)
}

/// Whether hosts that are in air mode offer bundles of packets, too. No radio takes frames of their length, and nothing here cuts them.
fn offers_bundles(plan: &Plan) -> bool {
    plan.seed % 6 == 2 && plan.network.wifi.is_none()
}

/// ECN bits of a packet that may be marked (RFC 3168), and of one that is.
const ECT_0: u8 = 2;
const ECN: u8 = 3;
/// The part of those packets that are marked on the way.
const MARKED: f64 = 0.1;

fn time(at: Duration) -> Time {
    Time::from_nanos(at.as_nanos() as u64)
}

fn duration(at: Time) -> Duration {
    Duration::from_nanos(at.as_nanos())
}
