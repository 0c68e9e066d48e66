//! What is counted.

use core::fmt::Write as _;
use core::time::Duration;
use std::collections::BTreeMap;

use airdma_transport::Time;

use crate::ip::IpDrop;
use crate::link::{Carried, Goal, LinkCounters};
use crate::network::Network;
use crate::topology::{Node, Way};

/// What happened so far to the frames from one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Frames sent.
    pub sent: u64,
    /// Frames delivered undamaged, copies among them.
    pub delivered: u64,
    /// Frames or copies dropped, for whatever reason, or damaged. What was damaged and dropped
    /// later may count twice. A frame to a group that is lost counts for all whom it did not reach
    /// by then, and perhaps for some whom it did.
    pub lost: u64,
    /// The longest time that a frame that arrived was under way.
    pub longest: Duration,
}

impl Network {
    /// What happened so far to the frames from one host to another.
    pub fn path(&self, from: usize, to: usize) -> PathCounters {
        self.paths[from * self.hosts + to]
    }

    /// The longest time that a frame from one host to another was under way, or is by now.
    pub fn longest_under_way(&self, now: Time, from: usize, to: usize) -> Duration {
        let present = self
            .travellers()
            .map(|carried| carried.trip)
            .filter(|trip| trip.from == from && trip.goal == Goal::Host(to))
            .map(|trip| now.duration_since(trip.sent));
        let present = present.max().unwrap_or_default();
        present.max(self.path(from, to).longest)
    }

    /// Packets under way, copies among them.
    pub fn under_way(&self) -> usize {
        self.travellers().count()
    }

    fn travellers(&self) -> impl Iterator<Item = &Carried> {
        let flying = self.events.iter().map(|event| &event.carried);
        flying.chain(self.on_media.values().map(|(_, carried)| carried))
    }

    /// Packets that the IP layer of a host dropped, by reason.
    pub fn refused(&self, host: usize) -> BTreeMap<IpDrop, u64> {
        let own = self.refused.iter().filter(|((at, _), _)| *at == host);
        own.map(|((_, reason), count)| (*reason, *count)).collect()
    }

    /// Frames to nobody.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// What the line from one node to another did, be it a link or a shared medium.
    pub fn counters(&self, from: Node, to: Node) -> LinkCounters {
        counters(&self.wires[self.wire(from, to)].way)
    }

    /// What all lines did, as a table.
    ///
    /// ```
    /// use airdma_sim::{Link, Network};
    ///
    /// let network = Network::pair(1, Link::new(), Link::new());
    /// let table = network.table();
    /// assert!(table.starts_with("line "));
    /// assert_eq!(table.lines().count(), 3);
    /// ```
    pub fn table(&self) -> String {
        let mut table = String::new();
        let names = [
            "entered",
            "bytes",
            "left",
            "dropped",
            "lost",
            "overflow",
            "too big",
            "copies",
            "held",
            "damaged",
            "marked",
            "queue max",
        ];
        let _ = write!(table, "{:<24}", "line");
        for name in names {
            let _ = write!(table, "{name:>11}");
        }
        table.push('\n');
        for wire in &self.wires {
            let line = format!("{:?} > {:?}", wire.from, wire.to);
            let _ = write!(table, "{line:<24}");
            let counters = counters(&wire.way);
            let columns = [
                counters.entered,
                counters.entered_bytes,
                counters.left,
                counters.dropped,
                counters.lost,
                counters.overflowed,
                counters.too_large,
                counters.duplicated,
                counters.held_back,
                counters.damaged,
                counters.marked,
                counters.queue_longest_bytes,
            ];
            for column in columns {
                let _ = write!(table, "{column:>11}");
            }
            table.push('\n');
        }
        table
    }
}

fn counters(way: &Way) -> LinkCounters {
    match way {
        Way::Link(link) => link.counters(),
        Way::Shared { counters, .. } => *counters,
    }
}
