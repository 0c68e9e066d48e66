//! A host on the path of sealed connections: it sees every packet between hosts, and forges from
//! them.
//!
//! Hosts share a secret that it does not know. It may withhold or delay a packet, as any network
//! does, and the judge is told of these. Anything else it does changes no byte, no completion and
//! no connection, and causes no packet: the judge is not told, and a world in which nothing is
//! withheld, delayed or lost is a calm one (`World::check_calm`).

mod forge;

use crate::plan::OnPathPlan;
use crate::world::World;
use airdma_port::sim::Frame;
use airdma_sim::Random;
use core::time::Duration;
use std::collections::VecDeque;

/// Packets that it records.
const RECORDED_MAX: usize = 64;
/// Most packets forged per passing packet.
const BURST_MAX: u64 = 3;
/// Longest delay of a packet: a queue may cause as much.
const HELD_MAX: Duration = Duration::from_micros(50);

/// A packet between two hosts.
#[derive(Clone, Debug)]
pub(crate) struct Passing {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Time at which it was sent.
    pub(crate) sent: Duration,
    pub(crate) frame: Frame,
}

/// The host on the path.
pub(crate) struct OnPath {
    plan: OnPathPlan,
    random: Random,
    hosts: usize,
    /// Datagrams that it may still send.
    left: u32,
    /// Whether it lets all packets pass.
    is_over: bool,
    recorded: VecDeque<Passing>,
    held: Vec<(Duration, Passing)>,
    /// Packets withheld and packets delayed, at `from * hosts + to`.
    withheld: Vec<u64>,
    delayed: Vec<u64>,
    /// Datagrams forged.
    pub(crate) sent: u64,
}

impl OnPath {
    pub(crate) fn new(seed: u64, plan: OnPathPlan, hosts: usize) -> OnPath {
        OnPath {
            plan,
            random: Random::new(seed ^ 0x0a_9a74),
            hosts,
            left: plan.datagrams,
            is_over: false,
            recorded: VecDeque::new(),
            held: Vec::new(),
            withheld: vec![0; hosts * hosts],
            delayed: vec![0; hosts * hosts],
            sent: 0,
        }
    }

    /// Packets from one host to another withheld and delayed.
    pub(crate) fn path(&self, from: usize, to: usize) -> (u64, u64) {
        let at = from * self.hosts + to;
        (self.withheld[at], self.delayed[at])
    }

    /// Packets that it withheld or delayed.
    pub(crate) fn touched(&self) -> u64 {
        self.withheld.iter().chain(&self.delayed).sum()
    }

    /// Whether it may change the order of packets, or has.
    pub(crate) fn delays(&self) -> bool {
        self.plan.delays
    }

    /// Whether it holds no packet.
    pub(crate) fn is_quiet(&self) -> bool {
        self.held.is_empty()
    }

    /// Time at which it releases a packet.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.held.iter().map(|(until, _)| *until).min()
    }

    /// Time in flight of the oldest packet that it holds between two hosts.
    pub(crate) fn oldest_held(&self, now: Duration, from: usize, to: usize) -> Duration {
        let held = self.held.iter().map(|(_, passing)| passing);
        let held = held.filter(|passing| (passing.from, passing.to) == (from, to));
        held.map(|passing| now - passing.sent)
            .max()
            .unwrap_or_default()
    }

    /// Ends its work: from now on no packet is withheld or delayed.
    pub(crate) fn stop(&mut self) {
        self.is_over = true;
    }

    fn record(&mut self, passing: Passing) {
        if self.recorded.len() == RECORDED_MAX {
            let oldest = self.random.index(RECORDED_MAX);
            self.recorded.remove(oldest);
        }
        self.recorded.push_back(passing);
    }
}

impl World {
    /// Handles a passing packet: delivers it and what is forged from it.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn pass_by(&mut self, passing: Passing) -> Result<(), String> {
        let Some(mut on_path) = self.on_path.take() else {
            return self.arrive(passing.to, passing.frame);
        };
        let mut forged = on_path.forge_some(self, &passing);
        let after = forged.split_off(forged.len() / 2);
        let passes = on_path.pass(self, passing);
        self.on_path = Some(on_path);
        for (to, frame) in forged {
            self.arrive(to, frame)?;
        }
        if let Some(passing) = passes {
            self.arrive_itself(passing)?;
        }
        for (to, frame) in after {
            self.arrive(to, frame)?;
        }
        Ok(())
    }

    /// Delivers a packet as it was sent, and records it for replay.
    ///
    /// It is not recorded if the host has no keys for it yet: then a replay would be its first
    /// delivery, as with a delayed packet.
    fn arrive_itself(&mut self, passing: Passing) -> Result<(), String> {
        let before = self.unkeyed_at(passing.to);
        self.arrive(passing.to, passing.frame.clone())?;
        let is_opened = self.unkeyed_at(passing.to) == before;
        if let Some(on_path) = self.on_path.as_mut().filter(|_| is_opened) {
            on_path.record(passing);
        }
        Ok(())
    }

    /// Delivers the packets whose delay has ended.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn let_go(&mut self) -> Result<(), String> {
        let Some(on_path) = &mut self.on_path else {
            return Ok(());
        };
        let now = self.now;
        let due = on_path.held.extract_if(.., |(until, _)| *until <= now);
        for (_, passing) in due.collect::<Vec<_>>() {
            self.note_delay(passing.from, passing.to, now - passing.sent);
            self.arrive_itself(passing)?;
        }
        Ok(())
    }
}

impl OnPath {
    /// Forges datagrams from a passing packet.
    fn forge_some(&mut self, world: &mut World, passing: &Passing) -> Vec<(usize, Frame)> {
        if !self.random.chance(0.5) {
            return Vec::new();
        }
        let tries = 1 + self.random.below(BURST_MAX);
        let forged = (0..tries).filter_map(|_| self.forge(world, passing));
        let forged: Vec<_> = forged.collect();
        self.left -= forged.len() as u32;
        self.sent += forged.len() as u64;
        forged
    }

    /// Decides whether the packet itself passes now.
    fn pass(&mut self, world: &mut World, passing: Passing) -> Option<Passing> {
        let (from, to) = (passing.from, passing.to);
        let at = from * self.hosts + to;
        let interferes = !self.is_over;
        if interferes && self.plan.withholds && self.random.chance(0.02) {
            self.withheld[at] += 1;
            world.note(|_| format!("a packet from host {from} to {to} is withheld"));
            return None;
        }
        if interferes && self.plan.delays && self.random.chance(0.05) {
            self.delayed[at] += 1;
            let wait = self.random.below(HELD_MAX.as_nanos() as u64);
            let until = world.now + Duration::from_nanos(1 + wait);
            world.note(|_| {
                format!("a packet from host {from} to {to} is held back until {until:?}")
            });
            self.held.push((until, passing));
            return None;
        }
        Some(passing)
    }
}
