//! Hosts, a network and a judge, in virtual time.
//!
//! One packet arrives at a time, and after every packet, timer and action the judge checks the
//! memory of the host that ran.
//!
//! | to change | look at |
//! |---|---|
//! | what a world consists of, and how its connections come up | [`build`] |
//! | its network | [`mod@network`] |
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
use crate::one_host::{OneHost, PROCESSES};
use crate::plan::{Plan, Service};
use crate::reads::SHARED_BYTES;
use crate::records::RecordEnd;
use airdma_engine::Qkey;
use airdma_model::Contract;
use airdma_port::sim::Frame as PortFrame;
use airdma_sim::{Network, Random};
use airdma_transport::Time;
use airdma_wire::sealed::is_sealed;
use airdma_wire::{Bth, ICRC_LEN};
use core::time::Duration;
use network::network;
use std::collections::HashMap;

/// Key of all datagrams.
pub const QKEY: Qkey = Qkey(0x1111_1111);

/// Secret of the hosts if another host is on the path.
const SECRET: &[u8] = b"what the host on the path has not";

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Its end; for a shared receive, an end that uses the queue.
    pub end: usize,
    /// Whether it is a receive.
    pub receives: bool,
    /// Whether its queue pair was destroyed: it may have completed before, or never does.
    pub orphan: bool,
}

/// A world.
pub struct World {
    /// The decoded plan.
    pub plan: Plan,
    /// Hosts.
    pub hosts: Vec<Host>,
    /// Network between the hosts.
    pub network: Network,
    /// Current time.
    pub now: Duration,
    /// Ends, two for each connection.
    pub ends: Vec<End>,
    /// The judge; its queue pairs have the numbers of the ends.
    pub judge: Contract,
    /// Outstanding requests by identifier.
    pub tickets: HashMap<u64, Ticket>,
    /// The last identifier.
    pub last_id: u64,
    /// Source of contents.
    pub random: Random,
    /// Counts of what happened.
    pub counts: Counts,
    /// Completions by kind.
    pub seen: Seen,
    /// Log lines, if enabled.
    pub log: Option<Vec<(Duration, String)>>,
    /// Number of repeated registrations of regions.
    pub registrations: u64,
    /// Packets with congestion marks: packets sent at a low rate are late.
    pub marked: u64,
    /// Whether a queue pair or a host ended before the world did, or a link was cut.
    pub violent: bool,
    /// Whether a send queue was drained.
    pub drained: bool,
    /// The host that forges datagrams, if there is one.
    pub(crate) attacker: Option<Attacker>,
    /// The host on the path, if there is one.
    pub(crate) on_path: Option<OnPath>,
    /// The host whose processes the first two hosts are, if they are.
    pub(crate) one_host: Option<OneHost>,
    /// Queue pairs for records, one for each host, if the plan has any.
    pub(crate) records: Vec<RecordEnd>,
    /// Delays of packets in flight, at `from * hosts + to`.
    delays: Vec<Delays>,
}

/// Most times that a host fills its port at one moment; beyond, it counts as endless.
const ROUNDS_MAX: u32 = 100_000;

/// Most steps of a device or the network; beyond, the world counts as endless.
const STEPS_MAX: u64 = 2_000_000;

impl World {
    /// Builds a world. `logs` keeps log lines, and every packet for a capture.
    pub fn new(plan: Plan, logs: bool) -> World {
        let mut random = Random::new(plan.seed);
        let mut network = network(&plan.network, plan.hosts, random.next_u64(), plan.one_host);
        if plan.v6 {
            network = network.with_ipv6();
        }
        if logs {
            network.start_trace();
            for host in 0..plan.hosts {
                network.capture_at(host);
            }
        }
        // In a sixth of the worlds no host offers more than RoCEv2, in a third all are on a wire,
        // in a sixth on the air, and in the others each host is any of these by chance.
        let air = |seed: u64| match plan.seed % 6 {
            0 => Air::Nothing,
            1 | 4 => Air::Wired,
            3 => Air::Radio,
            _ => [Air::Radio, Air::Wired, Air::Nothing, Air::Wired][(seed % 4) as usize],
        };
        let mut one_host = plan.one_host.then(OneHost::new);
        let hosts = (0..plan.hosts).map(|index| {
            let seed = random.next_u64();
            let of = one_host.as_mut().filter(|_| index < PROCESSES);
            let host = Host::within(index, network.address(index), seed, air(seed), of);
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
        let hosts = hosts.collect();
        let mut world = World {
            hosts,
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
            one_host,
            records: Vec::new(),
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
        if world.plan.records {
            let hosts = world.hosts.iter();
            let content =
                |at: usize| Random::new(world.plan.seed ^ at as u64 ^ 0x7ead).bytes(SHARED_BYTES);
            let ends = hosts
                .zip(0..)
                .map(|(host, at)| RecordEnd::new(host, content(at)));
            world.records = ends.collect();
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

    /// Adds a line to the log.
    pub fn note(&mut self, line: impl FnOnce(&World) -> String) {
        if self.log.is_some() {
            let line = line(self);
            let now = self.now;
            self.log
                .iter_mut()
                .for_each(|log| log.push((now, line.clone())));
        }
    }

    /// All log lines and packets, in the order of time.
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

    /// Lets time pass, with all events until then.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn pass(&mut self, time: Duration) -> Result<(), String> {
        self.pass_until(self.now + time, |_| false)
    }

    /// As [`pass`](Self::pass), and stops when `done`.
    ///
    /// # Errors
    /// A violation that the judge finds.
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
        if let Some(one_host) = &self.one_host {
            one_host.move_clock(now);
        }
        for host in self.hosts.iter().filter(|host| host.alive) {
            host.device.move_clock(now);
        }
    }

    /// Time of the next event.
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
            // A queue pair finds that a sealed packet is damaged.
            let bytes = &delivery.frame.bytes;
            let by_port = !is_sealed(bytes) || bytes.len() < Bth::LEN + ICRC_LEN;
            self.hosts[to].harmed += u64::from(delivery.harmed && by_port);
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

    /// Records that a packet that arrives now was in flight for `delay`.
    pub(crate) fn note_delay(&mut self, from: usize, to: usize, delay: Duration) {
        self.delays[from * self.hosts.len() + to].add(self.now, delay);
    }

    /// Delivers a packet to a host.
    ///
    /// # Errors
    /// A violation that the judge finds.
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

    /// Runs a host at this moment, takes its packets, and checks its memory; and so processes of
    /// the same host, as long as they have packets for each other.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn run(&mut self, index: usize) -> Result<(), String> {
        self.run_alone(index)?;
        for _ in 0..ROUNDS_MAX {
            let Some(next) = self.process_with_packets() else {
                return Ok(());
            };
            self.judge.now += 1;
            self.run_alone(next)?;
        }
        Err(format!(
            "packets go to and fro without end at {:?}",
            self.now
        ))
    }

    /// Lets a process write garbage into its rings before an action, if the plan says so. Their
    /// reader, which runs, gives them up.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn damage_rings(&mut self, action: usize) -> Result<(), String> {
        let damage = self.plan.damage_before(action);
        let Some((one_host, (process, by))) = self.one_host.as_ref().zip(damage) else {
            return Ok(());
        };
        let reader = 1 - process;
        if !self.hosts[process].alive || !self.hosts[reader].alive {
            return Ok(());
        }
        one_host.damage(process, by);
        self.counts.damaged_rings += 1;
        self.note(|_| format!("host {process} writes garbage into its rings"));
        self.judge.now += 1;
        self.run(reader)
    }

    /// A process that packets of the other one on its host may wait for.
    pub(crate) fn process_with_packets(&self) -> Option<usize> {
        let one_host = self.one_host.as_ref()?;
        let mut processes = 0..PROCESSES;
        processes.find(|&process| self.hosts[process].alive && one_host.has_packets(process))
    }

    fn run_alone(&mut self, index: usize) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            if let Some(one_host) = self.one_host.as_ref().filter(|_| index < PROCESSES) {
                one_host.allow(index);
            }
            self.hosts[index].device.run(self.now);
            if self.collect(index) {
                continue;
            }
            self.observe(index)?;
            // One packet at a time, as from other hosts.
            let Some(frame) = self.hosts[index].to_itself.pop_front() else {
                return Ok(());
            };
            self.judge.now += 1;
            self.hosts[index].carrier.give(frame);
        }
        Err(format!("host {index} sends without end at {:?}", self.now))
    }

    /// Moves a host's packets to the network, as far as its port takes them. Returns whether it may
    /// have more.
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
                // To itself: not through the network.
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
        // It may have no packets; then one search is in vain.
        let since = *host.waits_since.get_or_insert(self.now);
        host.port_waits.add(self.now, self.now - since);
        if took > 0 {
            host.waits_since = Some(self.now);
        }
        false
    }

    /// Lets the judge check the memory of a host.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn observe(&mut self, index: usize) -> Result<(), String> {
        let host = &self.hosts[index];
        let seen = self.judge.memories[index].observe(host.bytes());
        seen.map_err(|why| format!("memory of host {index}: {why}"))?;
        let Some(end) = self.records.get_mut(index) else {
            return Ok(());
        };
        end.check()
            .map_err(|why| format!("records of host {index}: {why}"))?;
        self.observe_reads(index)
    }
}

impl World {
    /// Whether any host may offer its peers more than RoCEv2.
    pub fn offers_air(&self) -> bool {
        !self.plan.seed.is_multiple_of(6) || offers_sack(self.plan.seed)
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

/// Whether all hosts of the world of this seed offer selective ACKs, whatever else they offer.
fn offers_sack(seed: u64) -> bool {
    seed.is_multiple_of(5)
}

/// Whether hosts in air mode offer bundles too: no radio takes frames of their length, and the
/// simulation does not fragment.
fn offers_bundles(plan: &Plan) -> bool {
    plan.seed % 6 == 2 && plan.network.wifi.is_none()
}

/// ECN bits of a packet that may be marked (RFC 3168), and of a marked one.
const ECT_0: u8 = 2;
const ECN: u8 = 3;
/// Share of those packets that the network marks.
const MARKED: f64 = 0.1;

fn time(at: Duration) -> Time {
    Time::from_nanos(at.as_nanos() as u64)
}

fn duration(at: Time) -> Duration {
    Duration::from_nanos(at.as_nanos())
}
