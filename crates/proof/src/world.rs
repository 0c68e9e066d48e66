//! Hosts, a network and a judge, in virtual time.
//!
//! One packet arrives at a time, and after every packet, timer and action the judge looks at the memory of the host that ran.

use crate::attacker::Attacker;
use crate::delays::{Delays, slow_since};
use crate::host::{Air, End, Host};
use crate::plan::{Connection, NetworkPlan, Plan, Service};
use airdma_engine::{
    Access, AttrMask, Path, PathMtu, Psn, Qkey, QpAttributes, QpCaps, QpInit, QpState, QpType,
};
use airdma_model::{Contract, Memory, Owner, QueuePair, Region, Rights, Span};
use airdma_port::sim::Frame as PortFrame;
use airdma_sim::wifi::{Cell, Profile};
use airdma_sim::{Frame, GilbertElliott, Link, Network, Node, Random, Topology, gbit};
use airdma_transport::Time;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

/// The key that all datagrams carry.
pub const QKEY: Qkey = Qkey(0x1111_1111);

/// What went by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub worlds: u64,
    pub actions: u64,
    pub packets: u64,
    pub lost: u64,
    pub damaged: u64,
    pub requests: u64,
    pub receives: u64,
    pub completions: u64,
    pub failures: u64,
    pub kills: u64,
    pub bytes: u64,
    pub events: u64,
    /// Datagrams that an attacker forged.
    pub forged: u64,
}

impl Counts {
    /// Adds others.
    pub fn add(&mut self, other: &Counts) {
        let Counts {
            worlds,
            actions,
            packets,
            lost,
            damaged,
            requests,
            receives,
            completions,
            failures,
            kills,
            bytes,
            events,
            forged,
        } = other;
        self.worlds += worlds;
        self.actions += actions;
        self.packets += packets;
        self.lost += lost;
        self.damaged += damaged;
        self.requests += requests;
        self.receives += receives;
        self.completions += completions;
        self.failures += failures;
        self.kills += kills;
        self.bytes += bytes;
        self.events += events;
        self.forged += forged;
    }
}

/// Completions, by what they are of: how many.
pub type Seen = HashMap<
    (
        airdma_model::Service,
        airdma_model::Opcode,
        airdma_model::Status,
    ),
    u64,
>;

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
            delays: vec![Delays::default(); plan.hosts * plan.hosts],
            plan,
        };
        world.judge.careful = world.plan.careful;
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

    fn introduce_hosts(&mut self) {
        for index in 0..self.hosts.len() {
            self.judge.addresses.push(self.hosts[index].address);
            self.judge
                .memories
                .push(Memory::new(self.hosts[index].bytes()));
            for region in 0..crate::host::REGIONS.len() {
                self.introduce_region(index, region);
            }
            // Shared receive queues have the first numbers, those of the hosts.
            self.judge.add_queue(true);
        }
    }

    /// Tells the judge of a region that was registered.
    pub fn introduce_region(&mut self, host: usize, number: usize) {
        let layout = crate::host::REGIONS[number];
        let registered = &self.hosts[host].regions[number];
        self.judge.grants.add(Region {
            host,
            domain: usize::from(layout.foreign),
            key: registered.key,
            va: registered.va,
            length: layout.area.range().len() as u64,
            at: layout.area.at,
            rights: Rights(layout.access.bits()),
            owner: Owner::Domain,
            span: Span::since(self.judge.now),
            closers: 0,
        });
    }

    fn connect(&mut self, connection: Connection) {
        let first = self.ends.len();
        for side in 0..2 {
            let end = self.create(connection, side);
            self.ends.push(end);
            let host = connection.hosts[side];
            let service = match connection.service {
                Service::Rc => airdma_model::Service::Rc,
                Service::Uc => airdma_model::Service::Uc,
                Service::Ud => airdma_model::Service::Ud,
            };
            let shared = connection.shared[side];
            let queue = if shared {
                host
            } else {
                self.judge.add_queue(false)
            };
            let mut qp = QueuePair::new(host, 0, service, queue);
            qp.peer = (connection.service != Service::Ud).then_some(first + 1 - side);
            // Four timers for each retry: IBTA's longest, as none of these takes long.
            qp.timeout = 4 * timeout(&connection);
            qp.retry_count = connection.retry_count;
            qp.rnr_retry = connection.rnr_retry;
            qp.answers_max = connection.answers_max;
            qp.mtu = 1024;
            self.judge.queue_pairs.push(qp);
        }
        for side in 0..2 {
            self.bring_up(connection, first + side, first + 1 - side);
        }
    }

    fn create(&mut self, connection: Connection, side: usize) -> End {
        let index = connection.hosts[side];
        let host = &self.hosts[index];
        let caps = QpCaps {
            max_send_wr: connection.depth,
            max_recv_wr: connection.depth,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
        };
        let qp = host.pd.create_qp(QpInit {
            qp_type: match connection.service {
                Service::Rc => QpType::Rc,
                Service::Uc => QpType::Uc,
                Service::Ud => QpType::Ud,
            },
            send_cq: Arc::clone(&host.cqs[usize::from(connection.cqs[0])]),
            recv_cq: Arc::clone(&host.cqs[usize::from(connection.cqs[1])]),
            srq: host
                .srq
                .as_ref()
                .filter(|_| connection.shared[side])
                .map(Arc::clone),
            caps,
            signal_all: connection.signal_all,
        });
        let qp = qp.expect("a queue pair");
        if self.plan.sealed && connection.service == Service::Rc {
            qp.seal().expect("it is not connected");
        }
        let granted = qp.caps();
        End {
            number: qp.number(),
            granted: (granted.max_send_wr, granted.max_recv_wr),
            qp: Some(qp),
            host: index,
            window: None,
            drained: false,
            draining: false,
            haunted: None,
            events: Vec::new(),
            owed: Vec::new(),
        }
    }

    /// Moves a queue pair from RESET to ready-to-send.
    pub fn bring_up(&mut self, connection: Connection, own: usize, peer: usize) {
        let side = own % 2;
        let reliable = connection.service == Service::Rc;
        let datagrams = connection.service == Service::Ud;
        let path = Path {
            gid: self.hosts[self.ends[peer].host].address.into(),
            hop_limit: 64,
            traffic_class: self.traffic_class(),
            ..Path::default()
        };
        let attributes = QpAttributes {
            path_mtu: mtu(connection.mtu),
            sq_psn: Psn::new(connection.psns[side]),
            rq_psn: Psn::new(connection.psns[1 - side]),
            dest_qpn: self.ends[peer].number,
            access: granted(connection.rights[side]),
            path,
            port: 1,
            qkey: QKEY,
            max_rd_atomic: connection.answers_max,
            max_dest_rd_atomic: 16,
            min_rnr_timer: connection.min_rnr_timer,
            timeout: connection.timeout,
            retry_count: connection.retry_count,
            rnr_retry: connection.rnr_retry,
            ..QpAttributes::default()
        };
        let mut masks = [
            AttrMask::PKEY_INDEX | AttrMask::PORT,
            AttrMask::empty(),
            AttrMask::SQ_PSN,
        ];
        if datagrams {
            masks[0] |= AttrMask::QKEY;
        } else {
            masks[0] |= AttrMask::ACCESS_FLAGS;
            masks[1] |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        }
        if reliable {
            masks[1] |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            masks[2] |= AttrMask::MAX_QP_RD_ATOMIC
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::TIMEOUT;
        }
        if let Some(attacker) = &mut self.attacker {
            attacker.note_start(own, connection.psns[side]);
        }
        let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        let of = &mut self.judge.queue_pairs[own];
        of.rights = Rights(attributes.access.bits());
        of.rights_surely = of.rights;
        of.rnr_timer = rnr_timer(connection.min_rnr_timer);
        let qp = self.ends[own].qp.as_ref().expect("just created");
        for (state, mask) in states.into_iter().zip(masks) {
            let attributes = QpAttributes {
                state,
                ..attributes
            };
            qp.modify(&attributes, mask | AttrMask::STATE)
                .expect("a connection comes up");
        }
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
        hosts.flatten().chain(network).chain(attacker).min()
    }

    fn happen(&mut self) -> Result<(), String> {
        self.attack();
        let mut deliveries = Vec::new();
        self.network
            .deliver(time(self.now), &mut |delivery| deliveries.push(delivery));
        for delivery in deliveries {
            let to = delivery.to;
            let delay = duration(delivery.at) - duration(delivery.sent);
            self.delays[delivery.from * self.hosts.len() + to].add(self.now, delay);
            if !self.hosts[to].alive {
                continue;
            }
            self.counts.packets += 1;
            self.counts.damaged += u64::from(delivery.damaged);
            self.hosts[to].harmed += u64::from(delivery.harmed);
            self.judge.now += 1;
            let mut frame = to_port(delivery.frame);
            if let Some(attacker) = &mut self.attacker {
                attacker.note_arrival(&frame);
            }
            if frame.tos & ECN == ECT_0 && self.random.chance(MARKED) {
                frame.tos |= ECN;
                self.marked += 1;
            }
            self.hosts[to].carrier.give(frame);
            self.run(to)?;
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

    /// Whether packets may arrive twice, or after later ones.
    pub fn is_disorderly(&self) -> bool {
        // A Wi-Fi cell keeps the order, and repeats nothing that has arrived.
        let link = self.plan.network.link;
        self.plan.network.wifi.is_none() && link.reorder + link.duplicate > 0
    }

    /// What the network did between an end and its peer.
    pub fn path(&self, end: usize) -> airdma_model::Path {
        self.path_to(end, end ^ 1)
    }

    /// The same between any two ends.
    pub fn path_to(&self, end: usize, other: usize) -> airdma_model::Path {
        let (a, b) = (self.ends[end].host, self.ends[other].host);
        let counted = [self.network.path(a, b), self.network.path(b, a)];
        let lost: u64 = counted.iter().map(|path| path.lost).sum();
        let lost = lost + self.unkeyed([a, b]);
        let astray: u64 = counted.iter().map(|path| path.astray).sum();
        let slow = self.slow_since(end);
        let is_calm = lost + astray == 0 && slow.is_none() && !self.violent;
        airdma_model::Path {
            now: self.now,
            lost,
            astray: astray + self.disturbances(is_calm),
            slow,
            haunted: self.ends[end].haunted,
            disorderly: self.is_disorderly(),
        }
    }

    /// Packets that were dropped by hosts that had no keys for them.
    fn unkeyed(&self, hosts: [usize; 2]) -> u64 {
        if !self.plan.sealed {
            return 0;
        }
        let counters = hosts.map(|host| self.hosts[host].device.device().counters());
        let dropped = counters.iter().flatten();
        let dropped = dropped.filter(|(name, _)| *name == "drop_unkeyed");
        dropped.map(|(_, count)| count).sum()
    }

    /// What the attacker did that RoCEv2 has spend a retry, which may be missed later. Where nothing else does, no connection ends by that.
    fn disturbances(&self, is_calm: bool) -> u64 {
        let attacker = self.attacker.as_ref().filter(|_| !is_calm);
        attacker.map_or(0, Attacker::disturbances)
    }

    /// What was posted at that moment or before may have been answered after its timer ran out: by then a round trip could
    /// take half a timeout.
    pub fn slow_since(&self, end: usize) -> Option<Duration> {
        let (a, b) = (self.ends[end].host, self.ends[end ^ 1].host);
        let under_way = [(a, b), (b, a)].map(|(from, to)| {
            let mut delays = self.delays[from * self.hosts.len() + to].clone();
            let present = self.network.oldest_under_way(time(self.now), from, to);
            delays.add(self.now, present);
            delays
        });
        let waited = [a, b].map(|host| {
            let host = &self.hosts[host];
            let mut delays = host.port_waits.clone();
            if let Some(since) = host.waits_since {
                delays.add(self.now, self.now - since);
            }
            delays
        });
        let timeout = timeout(&self.plan.connections[end / 2]);
        let [there, back] = under_way;
        let [here, afar] = waited;
        slow_since(&[there, back, here, afar], timeout / 2)
    }

    /// Nothing is under way, and nobody has anything to send.
    pub fn is_quiet(&self) -> bool {
        let alive = self.hosts.iter().filter(|host| host.alive);
        let mut busy =
            alive.map(|host| host.waits_since.is_some() || host.device.inventory().waiting > 0);
        self.network.under_way() == 0 && !busy.any(|busy| busy)
    }

    /// Packets of earlier connections are gone once nothing is under way.
    fn lay_ghosts(&mut self) {
        let haunted = |end: &End| end.haunted == Some(Duration::MAX);
        if self.ends.iter().any(haunted) && self.is_quiet() {
            for end in self.ends.iter_mut().filter(|end| haunted(end)) {
                end.haunted = Some(self.now);
            }
        }
    }
}

impl World {
    /// Whether any host may offer its peers more than RoCEv2.
    pub fn offers_air(&self) -> bool {
        !self.plan.seed.is_multiple_of(3) || offers_sack(self.plan.seed)
    }

    /// Whether hosts may send bundles of packets.
    pub fn offers_bundles(&self) -> bool {
        offers_bundles(&self.plan)
    }

    /// The traffic class of connections: in some worlds the network may mark their packets.
    fn traffic_class(&self) -> u8 {
        if self.plan.seed % 4 == 1 { ECT_0 } else { 0 }
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

/// How long a queue pair waits for an answer, at least.
pub fn timeout(connection: &Connection) -> Duration {
    Duration::from_nanos(4096 << connection.timeout)
}

/// How long a queue pair makes its peer wait that found no receive (IBTA table 45), for the values that plans have.
pub fn rnr_timer(number: u8) -> Duration {
    Duration::from_micros(match number {
        1 => 10,
        5 => 60,
        12 => 640,
        _ => 1280,
    })
}

fn network(plan: &NetworkPlan, hosts: usize, seed: u64) -> Network {
    let plan = *plan;
    let share = |of_10_000: u32| f64::from(of_10_000) / 10_000.0;
    let link = move || {
        let of = plan.link;
        let mut link = Link::new();
        if let Some(rate) = of.gbit {
            link = link.rate(gbit(rate));
        }
        if let (Some(bytes), Some(rate)) = (of.queue_bytes, of.gbit) {
            link = link.bottleneck(gbit(rate), bytes);
        }
        link = link.delay(of.delay);
        if !of.jitter.is_zero() {
            link = link.jitter(of.jitter);
        }
        if of.loss > 0 {
            link = if of.bursts {
                link.drop_in_bursts(GilbertElliott::bursts(share(of.loss), 4.0))
            } else {
                link.drop(share(of.loss))
            };
        }
        if of.duplicate > 0 {
            link = link.duplicate(share(of.duplicate));
        }
        if of.reorder > 0 {
            link = link.reorder_by(share(of.reorder), of.held);
        }
        if of.corrupt > 0 {
            link = link.corrupt_any(share(of.corrupt));
        }
        if of.truncate > 0 {
            link = link.truncate(share(of.truncate));
        }
        link
    };
    if let Some((profile, snr)) = plan.wifi {
        let profile = Profile::ALL[usize::from(profile) % Profile::ALL.len()].clone();
        let mut cell = Cell::new(seed, profile, hosts + 1).waits_above(64 << 10);
        for station in 1..=hosts {
            cell = cell.snr(station, f64::from(snr));
        }
        let nodes = std::iter::once(Node::Switch(0)).chain((0..hosts).map(Node::Host));
        let topology = Topology::new().hosts(hosts).switches(1);
        return topology
            .share(cell, &nodes.collect::<Vec<_>>())
            .network(seed);
    }
    if plan.star {
        Network::star(seed, hosts, |_| link(), |_| link())
    } else {
        Network::mesh(seed, hosts, |_, _| link())
    }
}

/// What bits of a plan grant.
pub fn granted(bits: u8) -> Access {
    let rights = [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ];
    let chosen = rights
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| bits >> bit & 1 == 1);
    chosen.map(|(_, right)| right).collect()
}

fn mtu(number: u8) -> PathMtu {
    match number {
        1 => PathMtu::M256,
        2 => PathMtu::M512,
        _ => PathMtu::M1024,
    }
}

fn time(at: Duration) -> Time {
    Time::from_nanos(at.as_nanos() as u64)
}

fn duration(at: Time) -> Duration {
    Duration::from_nanos(at.as_nanos())
}

pub(crate) fn to_network(frame: PortFrame) -> Frame {
    Frame {
        source: frame.source,
        destination: frame.destination,
        source_port: frame.source_port,
        tos: frame.tos,
        ttl: frame.ttl,
        flow_label: frame.flow_label,
        bytes: frame.bytes,
    }
}

pub(crate) fn to_port(frame: Frame) -> PortFrame {
    PortFrame {
        source: frame.source,
        destination: frame.destination,
        source_port: frame.source_port,
        tos: frame.tos,
        ttl: frame.ttl,
        flow_label: frame.flow_label,
        bytes: frame.bytes,
    }
}
