//! Nodes and the lines between them, in one expression.

use core::fmt;
use core::ops::Range;

use crate::link::{Link, LinkCounters};
use crate::medium::Medium;
use crate::network::Network;

/// An end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A host, counted from zero. It forwards nothing.
    Host(usize),
    /// A switch, counted from zero. It forwards on the way with the fewest lines; among equals on
    /// the one that was written first. Its queues are the stages of the lines that leave it.
    Switch(usize),
}

/// Carrier of packets from one node to another.
pub(crate) enum Way {
    Link(Link),
    /// Station `from` of a medium to its station `to`.
    Shared {
        medium: usize,
        from: usize,
        to: usize,
        counters: LinkCounters,
    },
}

/// Hosts, switches and the lines between them.
///
/// ```
/// use airdma_sim::{Link, Node, Topology, gbit};
/// use core::time::Duration;
///
/// let us = Duration::from_micros;
/// let network = Topology::new()
///     .hosts(4)
///     .switches(2)
///     .join_hosts(0..2, Node::Switch(0), |_| Link::new().rate(gbit(100)), |_| Link::new())
///     .join_hosts(2..4, Node::Switch(1), |_| Link::new().rate(gbit(100)), |_| Link::new())
///     .join(Node::Switch(0), Node::Switch(1), || {
///         Link::new().bottleneck(gbit(40), 1 << 20).delay(us(5))
///     })
///     .network(7);
/// assert_eq!(network.hosts(), 4);
/// ```
#[derive(Default)]
pub struct Topology {
    pub(crate) hosts: usize,
    pub(crate) switches: usize,
    pub(crate) lines: Vec<(Node, Node, Way)>,
    pub(crate) media: Vec<Box<dyn Medium>>,
}

impl Topology {
    /// An empty topology.
    pub fn new() -> Self {
        Topology::default()
    }

    /// Adds hosts.
    pub fn hosts(mut self, count: usize) -> Self {
        self.hosts += count;
        self
    }

    /// Adds switches.
    pub fn switches(mut self, count: usize) -> Self {
        self.switches += count;
        self
    }

    /// Adds a line in one direction.
    pub fn line(mut self, from: Node, to: Node, link: Link) -> Self {
        self.add(from, to, Way::Link(link));
        self
    }

    /// Adds a line in each direction, both alike.
    pub fn join(self, one: Node, other: Node, mut link: impl FnMut() -> Link) -> Self {
        self.line(one, other, link()).line(other, one, link())
    }

    /// Joins these hosts to a switch: `up` carries what a host sends, `down` what it gets. The
    /// queue of the switch for a host is a stage of `down`.
    pub fn join_hosts(
        mut self,
        hosts: Range<usize>,
        switch: Node,
        mut up: impl FnMut(usize) -> Link,
        mut down: impl FnMut(usize) -> Link,
    ) -> Self {
        for host in hosts.clone() {
            self = self.line(Node::Host(host), switch, up(host));
        }
        for host in hosts {
            self = self.line(switch, Node::Host(host), down(host));
        }
        self
    }

    /// Lets nodes share a medium, the first of them as its access point: the others speak only
    /// with that one. (An access point that connects them with each other is a switch.)
    pub fn share(mut self, medium: impl Medium + 'static, stations: &[Node]) -> Self {
        let index = self.media.len();
        self.media.push(Box::new(medium));
        for station in 1..stations.len() {
            for (from, to) in [(station, 0), (0, station)] {
                let way = Way::Shared {
                    medium: index,
                    from,
                    to,
                    counters: LinkCounters::default(),
                };
                self.add(stations[from], stations[to], way);
            }
        }
        self
    }

    /// Builds the network. Everything that happens in it follows from `seed` and from what is sent
    /// when.
    pub fn network(self, seed: u64) -> Network {
        Network::new(seed, self)
    }

    fn add(&mut self, from: Node, to: Node, way: Way) {
        for node in [from, to] {
            assert!(self.index(node).is_some(), "{node:?} does not exist");
        }
        assert_ne!(from, to, "a line joins two nodes");
        let known = self.lines.iter();
        let mut same = known.filter(|line| (line.0, line.1) == (from, to));
        assert!(same.next().is_none(), "two lines from {from:?} to {to:?}");
        self.lines.push((from, to, way));
    }

    /// Hosts first, then switches.
    pub(crate) fn index(&self, node: Node) -> Option<usize> {
        match node {
            Node::Host(host) => (host < self.hosts).then_some(host),
            Node::Switch(switch) => (switch < self.switches).then_some(self.hosts + switch),
        }
    }

    /// For each node, the line that leads to a host.
    pub(crate) fn lines_to(&self, host: usize) -> Vec<Option<usize>> {
        let index = |node| self.index(node).expect("checked when the line was added");
        let mut lines_to = vec![None; self.hosts + self.switches];
        let mut reached = vec![host];
        while !reached.is_empty() {
            let mut next = Vec::new();
            for (line, &(from, to, _)) in self.lines.iter().enumerate() {
                let from = index(from);
                if !reached.contains(&index(to)) || from == host || lines_to[from].is_some() {
                    continue;
                }
                lines_to[from] = Some(line);
                // Hosts do not forward.
                if from >= self.hosts {
                    next.push(from);
                }
            }
            reached = next;
        }
        lines_to
    }
}

/// Source text, with runs of equal lines in one.
impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology::new().hosts({})", self.hosts)?;
        if self.switches > 0 {
            write!(f, ".switches({})", self.switches)?;
        }
        let text = |way: &Way| match way {
            Way::Link(link) => format!("{link:?}"),
            Way::Shared { medium, .. } => self.media[*medium].sentence(),
        };
        let mut lines = self.lines.iter().peekable();
        while let Some((from, to, way)) = lines.next() {
            let sentence = text(way);
            let mut last = (*from, *to);
            while let Some((from, to, way)) = lines.peek()
                && (follows(last.0, *from) && last.1 == *to
                    || last.0 == *from && follows(last.1, *to))
                && text(way) == sentence
            {
                last = (*from, *to);
                lines.next();
            }
            let (from, to) = (Run(*from, last.0), Run(*to, last.1));
            write!(f, "\n    .line({from}, {to}, {sentence})")?;
        }
        Ok(())
    }
}

fn follows(one: Node, other: Node) -> bool {
    match (one, other) {
        (Node::Host(one), Node::Host(other)) | (Node::Switch(one), Node::Switch(other)) => {
            other == one + 1
        }
        (Node::Host(_) | Node::Switch(_), _) => false,
    }
}

/// A run of nodes.
struct Run(Node, Node);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (first, last) if first == last => write!(f, "{first:?}"),
            (Node::Host(first), Node::Host(last)) => write!(f, "Host({first}..={last})"),
            (first, last) => write!(f, "{first:?}..={last:?}"),
        }
    }
}
