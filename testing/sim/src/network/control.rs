//! Changes of a running network.

use crate::link::Link;
use crate::network::Network;
use crate::topology::{Node, Way};

impl Network {
    /// Cuts the path from `from` to `to`; the other direction stays. Packets in flight arrive.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.severed[from * self.hosts + to] = true;
    }

    /// Restores a path that [`Network::cut`] cut.
    pub fn mend(&mut self, from: usize, to: usize) {
        self.severed[from * self.hosts + to] = false;
    }

    /// Separates hosts of different groups. Hosts in no group form one more group. Paths cut inside
    /// a group stay cut.
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

    /// Separates a host from all others.
    pub fn isolate(&mut self, host: usize) {
        for other in (0..self.hosts).filter(|&other| other != host) {
            self.cut(host, other);
            self.cut(other, host);
        }
    }

    /// Restores all paths.
    pub fn heal(&mut self) {
        self.severed.fill(false);
    }

    /// Changes the MTU of every link, for packets that enter it from now on.
    pub fn set_mtu(&mut self, bytes: Option<usize>) {
        for wire in &mut self.wires {
            if let Way::Link(link) = &mut wire.way {
                link.set_mtu(bytes);
            }
        }
    }

    /// The link between two nodes joined by a line, for changes.
    pub fn link_mut(&mut self, from: Node, to: Node) -> &mut Link {
        let index = self.wire(from, to);
        match &mut self.wires[index].way {
            Way::Link(link) => link,
            Way::Shared { .. } => panic!("{from:?} and {to:?} share a medium"),
        }
    }

    /// The link between two nodes joined by a line.
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
