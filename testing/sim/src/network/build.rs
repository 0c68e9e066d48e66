//! Building networks.

use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_transport::Time;

use crate::link::Link;
use crate::network::{Network, PathCounters, Wire};
use crate::random::Random;
use crate::topology::{Node, Topology};

impl Network {
    pub(crate) fn new(seed: u64, topology: Topology) -> Self {
        let sentence = format!("{topology:?}");
        let (hosts, switches) = (topology.hosts, topology.switches);
        let routes = (0..hosts).map(|host| topology.lines_to(host)).collect();
        let index = |node| match node {
            Node::Host(host) => host,
            Node::Switch(switch) => hosts + switch,
        };
        let mut random = Random::new(seed);
        let mut leaving = vec![Vec::new(); hosts + switches];
        let mut wires = Vec::new();
        for (from, to, way) in topology.lines {
            leaving[index(from)].push(wires.len());
            wires.push(Wire {
                from,
                to,
                to_index: index(to),
                way,
                random: random.fork(),
            });
        }
        let network = Network {
            seed,
            sentence,
            hosts,
            switches,
            addresses: Vec::new(),
            by_address: BTreeMap::new(),
            udp_checksums: false,
            wires,
            leaving,
            routes,
            floods: BTreeMap::new(),
            media: topology.media,
            on_media: BTreeMap::new(),
            severed: vec![false; hosts * hosts],
            paths: vec![PathCounters::default(); hosts * hosts],
            refused: BTreeMap::new(),
            unroutable: 0,
            events: BinaryHeap::new(),
            now: Time::ZERO,
            frames: 0,
            order: 0,
            trace: None,
            captures: BTreeMap::new(),
            everywhere: None,
            exits: Vec::new(),
            fates: Vec::new(),
        };
        let addresses = (1..=hosts as u32).map(|n| Ipv4Addr::from(0x0a05_0000 + n).into());
        network.with_addresses(addresses.collect())
    }

    /// Two hosts; `to_b` carries what host 0 sends, `to_a` what host 1 sends.
    pub fn pair(seed: u64, to_b: Link, to_a: Link) -> Self {
        Topology::new()
            .hosts(2)
            .line(Node::Host(0), Node::Host(1), to_b)
            .line(Node::Host(1), Node::Host(0), to_a)
            .network(seed)
    }

    /// Hosts around one switch: `up` carries what a host sends, and a queue in `down` is the
    /// switch's for that host.
    pub fn star(
        seed: u64,
        hosts: usize,
        up: impl FnMut(usize) -> Link,
        down: impl FnMut(usize) -> Link,
    ) -> Self {
        Topology::new()
            .hosts(hosts)
            .switches(1)
            .join_hosts(0..hosts, Node::Switch(0), up, down)
            .network(seed)
    }

    /// A link from every host to every other.
    pub fn mesh(seed: u64, hosts: usize, mut link: impl FnMut(usize, usize) -> Link) -> Self {
        let mut topology = Topology::new().hosts(hosts);
        for from in 0..hosts {
            for to in (0..hosts).filter(|&to| to != from) {
                topology = topology.line(Node::Host(from), Node::Host(to), link(from, to));
            }
        }
        topology.network(seed)
    }

    /// Changes to IPv6 addresses.
    pub fn with_ipv6(self) -> Self {
        let address = |n: u16| Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, n).into();
        let addresses = (1..=self.hosts as u16).map(address).collect();
        self.with_addresses(addresses)
    }

    /// Sets the hosts' addresses.
    pub fn with_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        assert_eq!(addresses.len(), self.hosts, "one address for each host");
        let canonical = addresses.iter().map(IpAddr::to_canonical);
        self.by_address = canonical.zip(0..).collect();
        assert_eq!(self.by_address.len(), self.hosts, "addresses differ");
        self.addresses = addresses;
        self
    }

    /// Makes senders fill in the UDP checksum; without it only the ICRC detects damage.
    pub fn with_udp_checksums(mut self) -> Self {
        self.udp_checksums = true;
        self
    }
}
