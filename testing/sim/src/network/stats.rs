//! Counters of a network.

use core::fmt::Display;
use core::time::Duration;
use std::collections::BTreeMap;

use airdma_transport::Time;

use crate::ip::IpDrop;
use crate::link::{Carried, Goal, LinkCounters};
use crate::network::Network;
use crate::topology::{Node, Way};

/// Counters of the frames from one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Frames sent.
    pub sent: u64,
    /// Frames delivered undamaged, copies among them.
    pub delivered: u64,
    /// Frames or copies dropped or damaged. One that was damaged and then dropped may count twice.
    /// A lost frame to a group counts for all hosts that it had not reached, and perhaps for some
    /// that it had.
    pub lost: u64,
    /// Duplications, frames held back so that others overtake them, and arrivals of the latter.
    pub astray: u64,
    /// Longest time in flight of a frame that arrived.
    pub longest: Duration,
}

impl Network {
    /// Counters of the frames from one host to another.
    pub fn path(&self, from: usize, to: usize) -> PathCounters {
        self.paths[from * self.hosts + to]
    }

    /// Longest time in flight of a frame from one host to another, including frames still in
    /// flight.
    pub fn longest_under_way(&self, now: Time, from: usize, to: usize) -> Duration {
        let present = self.oldest_under_way(now, from, to);
        present.max(self.path(from, to).longest)
    }

    /// Time in flight of the oldest frame from one host to another.
    pub fn oldest_under_way(&self, now: Time, from: usize, to: usize) -> Duration {
        let present = self
            .travellers()
            .map(|carried| carried.trip)
            .filter(|trip| trip.from == from && trip.goal == Goal::Host(to))
            .map(|trip| now.duration_since(trip.sent));
        present.max().unwrap_or_default()
    }

    /// Packets in flight, copies among them.
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

    /// Frames to addresses without a host.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Counters of the line from one node to another, a link or a shared medium.
    pub fn counters(&self, from: Node, to: Node) -> LinkCounters {
        counters(&self.wires[self.wire(from, to)].way)
    }

    /// Counters of the lines that carried anything, and of frames between hosts, as two tables.
    ///
    /// ```
    /// use airdma_sim::{Frame, Link, Network};
    /// use airdma_transport::Time;
    ///
    /// let mut network = Network::pair(1, Link::new().drop(1.0), Link::new());
    /// let frame = Frame {
    ///     source: network.address(0),
    ///     destination: network.address(1),
    ///     source_port: Frame::SOURCE_PORT,
    ///     tos: 0,
    ///     ttl: 64,
    ///     flow_label: 0,
    ///     bytes: vec![0; 72],
    /// };
    /// network.send(Time::ZERO, 0, frame);
    /// let table = network.table();
    /// let squeezed: Vec<String> = table
    ///     .lines()
    ///     .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
    ///     .collect();
    /// assert_eq!(squeezed[1], "Host(0) > Host(1) 1 100 0 1 1 0 0 0 0 0 0 0");
    /// assert_eq!(squeezed[4], "0 > 1 1 0 1 0");
    /// ```
    pub fn table(&self) -> String {
        let names = [
            "entered",
            "bytes",
            "left",
            "dropped",
            "lost",
            "overflowed",
            "too large",
            "copies",
            "held back",
            "damaged",
            "marked",
            "queue max",
        ];
        let mut table = row("line", &names);
        for wire in &self.wires {
            let counters = counters(&wire.way);
            if counters.entered > 0 {
                let line = format!("{:?} > {:?}", wire.from, wire.to);
                table.push_str(&row(&line, &columns(&counters)));
            }
        }
        let names = ["sent", "delivered", "lost", "longest ns"];
        table.push('\n');
        table.push_str(&row("path", &names));
        for from in 0..self.hosts {
            for to in 0..self.hosts {
                let path = self.path(from, to);
                if path.sent > 0 {
                    let longest = u64::try_from(path.longest.as_nanos()).unwrap_or(u64::MAX);
                    let columns = [path.sent, path.delivered, path.lost, longest];
                    table.push_str(&row(&format!("{from} > {to}"), &columns));
                }
            }
        }
        table
    }
}

fn columns(counters: &LinkCounters) -> [u64; 12] {
    [
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
    ]
}

fn row(name: &str, columns: &[impl Display]) -> String {
    let columns = columns.iter().map(|column| format!("{column:>12}"));
    format!("{name:<24}{}\n", columns.collect::<String>())
}

fn counters(way: &Way) -> LinkCounters {
    match way {
        Way::Link(link) => link.counters(),
        Way::Shared { counters, .. } => *counters,
    }
}
