//! State of the paths between the ends of a world: losses and delays, which the judge depends on.

use super::{World, time, timeout};
use crate::attacker::Attacker;
use crate::delays::slow_since;
use crate::host::End;
use crate::on_path::OnPath;
use crate::one_host::{OneHost, PROCESSES};
use core::time::Duration;

impl World {
    /// Whether packets may arrive twice, or after later ones.
    pub fn is_disorderly(&self) -> bool {
        // A Wi-Fi cell keeps the order, and repeats nothing that has arrived.
        let link = self.plan.network.link;
        let holds_back = self.on_path.as_ref().is_some_and(OnPath::delays);
        holds_back || self.plan.network.wifi.is_none() && link.reorder + link.duplicate > 0
    }

    /// Losses and delays between an end and its peer.
    pub fn path(&self, end: usize) -> airdma_model::Path {
        self.path_to(end, end ^ 1)
    }

    /// Losses and delays between any two ends.
    pub fn path_to(&self, end: usize, other: usize) -> airdma_model::Path {
        let (a, b) = (self.ends[end].host, self.ends[other].host);
        let counted = [self.network.path(a, b), self.network.path(b, a)];
        let lost: u64 = counted.iter().map(|path| path.lost).sum();
        let (withheld, delayed) = self.held_up([a, b]);
        let lost = lost + withheld + self.unkeyed([a, b]) + self.lost_in_rings([a, b]);
        let astray: u64 = counted.iter().map(|path| path.astray).sum();
        let astray = astray + delayed;
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

    /// Packets that a host on the path withheld and delayed.
    pub(crate) fn held_up(&self, [a, b]: [usize; 2]) -> (u64, u64) {
        let Some(on_path) = &self.on_path else {
            return (0, 0);
        };
        let (there, back) = (on_path.path(a, b), on_path.path(b, a));
        (there.0 + back.0, there.1 + back.1)
    }

    /// Packets in rings of processes that have ended, or do not keep to the rules.
    pub(crate) fn lost_in_rings(&self, hosts: [usize; 2]) -> u64 {
        let is_inside = hosts.iter().all(|&host| host < PROCESSES);
        let one_host = self.one_host.as_ref().filter(|_| is_inside);
        let (sent, received) = one_host.map_or((0, 0), OneHost::carried);
        sent - received
    }

    /// Packets that hosts dropped because they had no keys for them.
    fn unkeyed(&self, hosts: [usize; 2]) -> u64 {
        if !self.plan.sealed {
            return 0;
        }
        hosts.iter().map(|host| self.unkeyed_at(*host)).sum()
    }

    pub(crate) fn unkeyed_at(&self, host: usize) -> u64 {
        let counters = self.hosts[host].device.device().counters();
        let dropped = counters.iter().find(|(name, _)| *name == "drop_unkeyed");
        dropped.map_or(0, |(_, count)| *count)
    }

    /// Disturbances of the attacker that cost a retry, which may be missing later; alone they end
    /// no connection.
    fn disturbances(&self, is_calm: bool) -> u64 {
        let attacker = self.attacker.as_ref().filter(|_| !is_calm);
        attacker.map_or(0, Attacker::disturbances)
    }

    /// Time until which posted requests may have been answered after their timer: a round trip
    /// could take half a timeout.
    pub fn slow_since(&self, end: usize) -> Option<Duration> {
        let (a, b) = (self.ends[end].host, self.ends[end ^ 1].host);
        let under_way = [(a, b), (b, a)].map(|(from, to)| {
            let mut delays = self.delays[from * self.hosts.len() + to].clone();
            let present = self.network.oldest_under_way(time(self.now), from, to);
            let held = self.on_path.as_ref();
            let held = held.map(|on_path| on_path.oldest_held(self.now, from, to));
            delays.add(self.now, present.max(held.unwrap_or_default()));
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

    /// Whether no packet is in flight, and no host has packets to send.
    pub fn is_quiet(&self) -> bool {
        let alive = self.hosts.iter().filter(|host| host.alive);
        let mut busy =
            alive.map(|host| host.waits_since.is_some() || host.device.inventory().waiting > 0);
        let lets_go = self.on_path.as_ref().is_none_or(OnPath::is_quiet);
        let is_empty = self.process_with_packets().is_none();
        self.network.under_way() == 0 && lets_go && is_empty && !busy.any(|busy| busy)
    }

    /// Forgets packets of earlier connections once no packet is in flight.
    pub(super) fn lay_ghosts(&mut self) {
        let haunted = |end: &End| end.haunted == Some(Duration::MAX);
        if self.ends.iter().any(haunted) && self.is_quiet() {
            for end in self.ends.iter_mut().filter(|end| haunted(end)) {
                end.haunted = Some(self.now);
            }
        }
    }
}
