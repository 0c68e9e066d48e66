//! What a test changes while the network runs.

use crate::link::Link;
use crate::network::Network;
use crate::topology::{Node, Way};

impl Network {
    /// From now on, nothing that `from` sends reaches `to`. The other direction stays as it is.
    /// What is under way arrives.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.severed[from * self.hosts + to] = true;
    }

    /// Mends what [`Network::cut`] cut.
    pub fn mend(&mut self, from: usize, to: usize) {
        self.severed[from * self.hosts + to] = false;
    }

    /// From now on, hosts of different groups do not reach each other. Hosts in no group are one
    /// more group. What was cut inside a group stays cut.
    pub fn partition(&mut self, groups: &[&[usize]]) {
        let group = |host| groups.iter().position(|group| group.contains(&host));
        for from in 0..self.hosts {
            for to in 0..self.hosts {
                if group(from) != group(to) {
                    self.cut(from, to);
                }
            }
        }
    }

    /// From now on, a host reaches nobody and nobody reaches it.
    pub fn isolate(&mut self, host: usize) {
        for other in (0..self.hosts).filter(|&other| other != host) {
            self.cut(host, other);
            self.cut(other, host);
        }
    }

    /// Everybody reaches everybody again.
    pub fn heal(&mut self) {
        self.severed.fill(false);
    }

    /// Changes the MTU of every link, for packets that come to it from now on.
    pub fn set_mtu(&mut self, bytes: Option<usize>) {
        for wire in &mut self.wires {
            if let Way::Link(link) = &mut wire.way {
                link.set_mtu(bytes);
            }
        }
    }

    /// The link between two nodes that a line joins, to change it.
    pub fn link_mut(&mut self, from: Node, to: Node) -> &mut Link {
        let index = self.wire(from, to);
        match &mut self.wires[index].way {
            Way::Link(link) => link,
            Way::Shared { .. } => panic!("{from:?} and {to:?} share a medium"),
        }
    }

    /// The same, to look at it only.
    pub fn link(&self, from: Node, to: Node) -> &Link {
        match &self.wires[self.wire(from, to)].way {
            Way::Link(link) => link,
            Way::Shared { .. } => panic!("{from:?} and {to:?} share a medium"),
        }
    }

    pub(super) fn wire(&self, from: Node, to: Node) -> usize {
        let mut wires = self.wires.iter();
        let found = wires.position(|wire| (wire.from, wire.to) == (from, to));
        found.unwrap_or_else(|| panic!("no line from {from:?} to {to:?}"))
    }
}
