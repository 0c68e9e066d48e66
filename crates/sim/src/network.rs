//! Hosts, switches and links in virtual time: what is sent arrives, or not, and it is known why.

use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_transport::Time;

use crate::capture::Capture;
use crate::frame::{self, Frame};
use crate::ip::{self, IpDrop};
use crate::link::{Carried, Exit, Link, Trip};
use crate::medium::Passed;
use crate::random::Random;
use crate::topology::{Node, Topology, Way};
use crate::trace::{Fate, Passage, Trace};

/// A frame that arrived at a host and passed its IP layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When.
    pub at: Time,
    /// Which host.
    pub to: usize,
    /// What the host's IP layer hands on. The ICRC was not looked at.
    pub frame: Frame,
    /// Bits were flipped on the way, or the end was cut off.
    pub damaged: bool,
}

/// What happened so far to the frames from one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Frames sent.
    pub sent: u64,
    /// Frames delivered undamaged, copies among them.
    pub delivered: u64,
    /// Frames or copies dropped, for whatever reason, or damaged. What was damaged and dropped
    /// later may count twice.
    pub lost: u64,
    /// The longest time that a frame that arrived was under way.
    pub longest: Duration,
}

/// A network of hosts. See [`Topology`] for what can be built.
///
/// The caller moves time: it sends at [`Network::ready_at`] or later, and calls
/// [`Network::deliver`] at [`Network::next_event`] or earlier. The same seed and the same calls
/// give the same deliveries.
///
/// ```
/// use airdma_sim::{Frame, Link, Network, gbit};
/// use airdma_transport::Time;
/// use core::time::Duration;
///
/// let ns = Duration::from_nanos;
/// let mut network = Network::star(
///     7,
///     32,
///     |_| Link::new().rate(gbit(400)).delay(ns(300)),
///     |_| Link::new().bottleneck(gbit(400), 1 << 20).delay(ns(300)),
/// );
/// let frame = Frame {
///     source: network.address(3),
///     destination: network.address(5),
///     source_port: Frame::SOURCE_PORT,
///     tos: 0,
///     ttl: 64,
///     flow_label: 0,
///     bytes: vec![0; 4096],
/// };
/// network.send(Time::ZERO, 3, frame.clone());
/// while let Some(at) = network.next_event() {
///     network.deliver(at, &mut |delivery| {
///         assert_eq!(delivery.to, 5);
///         assert_eq!(delivery.frame, frame);
///         // 4096 + 66 bytes, twice, 83.24 ns each; and two cables.
///         assert_eq!(delivery.at, Time::from_nanos(2 * (84 + 300)));
///     });
/// }
/// ```
pub struct Network {
    seed: u64,
    /// As it was when it was built.
    sentence: String,
    hosts: usize,
    addresses: Vec<IpAddr>,
    by_address: BTreeMap<IpAddr, usize>,
    udp_checksums: bool,
    wires: Vec<Wire>,
    media: Vec<Box<dyn crate::medium::Medium>>,
    /// Packets on media, by token, with the wire that they pass.
    on_media: BTreeMap<u64, (usize, Carried)>,
    /// For each destination and node, the wire that leads there.
    routes: Vec<Vec<Option<usize>>>,
    /// Which hosts cannot reach which, at `from * hosts + to`.
    severed: Vec<bool>,
    paths: Vec<PathCounters>,
    refused: BTreeMap<(usize, IpDrop), u64>,
    unroutable: u64,
    events: BinaryHeap<Event>,
    now: Time,
    /// Frames sent.
    frames: u64,
    /// Events made.
    order: u64,
    trace: Option<Trace<Passage>>,
    captures: BTreeMap<Tap, Capture>,
    exits: Vec<Exit>,
    fates: Vec<Fate>,
}

struct Wire {
    from: Node,
    to: Node,
    to_index: usize,
    way: Way,
    random: Random,
}

/// Where packets are listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tap {
    Wire(usize),
    Host(usize),
}

struct Event {
    at: Time,
    order: u64,
    place: Place,
    carried: Carried,
}

#[derive(Clone, Copy)]
enum Place {
    /// In front of a stage of the link of a wire.
    Stage { wire: usize, stage: usize },
    /// Where a wire ends.
    End { wire: usize },
    /// At the host it is for, past all wires.
    Host,
}

impl Network {
    pub(crate) fn new(seed: u64, topology: Topology) -> Self {
        let sentence = format!("{topology:?}");
        let hosts = topology.hosts;
        let routes = (0..hosts).map(|host| topology.lines_to(host)).collect();
        let mut random = Random::new(seed);
        let mut ends = Vec::new();
        for (_, to, _) in &topology.lines {
            ends.push(topology.index(*to).expect("checked when it was added"));
        }
        let wires = topology.lines.into_iter().zip(ends);
        let wires = wires.map(|((from, to, way), to_index)| Wire {
            from,
            to,
            to_index,
            way,
            random: random.fork(),
        });
        let network = Network {
            seed,
            sentence,
            hosts,
            addresses: Vec::new(),
            by_address: BTreeMap::new(),
            udp_checksums: false,
            wires: wires.collect(),
            media: topology.media,
            on_media: BTreeMap::new(),
            routes,
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

    /// The same with IPv6 addresses.
    pub fn with_ipv6(self) -> Self {
        let address = |n: u16| Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, n).into();
        let addresses = (1..=self.hosts as u16).map(address).collect();
        self.with_addresses(addresses)
    }

    /// The same with these addresses, one for each host.
    pub fn with_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        assert_eq!(addresses.len(), self.hosts, "one address for each host");
        let canonical = addresses.iter().map(IpAddr::to_canonical);
        self.by_address = canonical.zip(0..).collect();
        assert_eq!(self.by_address.len(), self.hosts, "addresses differ");
        self.addresses = addresses;
        self
    }

    /// The same, and senders fill in the UDP checksum. Without it damage is the ICRC's to find.
    pub fn with_udp_checksums(mut self) -> Self {
        self.udp_checksums = true;
        self
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// The address of a host: 10.5.0.1 for the first, if not told otherwise.
    pub fn address(&self, host: usize) -> IpAddr {
        self.addresses[host]
    }

    /// The host with this address.
    pub fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.by_address.get(&address.to_canonical()).copied()
    }

    /// When the host's port takes the next frame. With several links, when the last of them does.
    pub fn ready_at(&self, host: usize) -> Time {
        let own = self.wires.iter().filter(|w| w.from == Node::Host(host));
        let ready = own.map(|wire| match &wire.way {
            Way::Link(link) => link.ready_at(),
            Way::Shared { medium, from, .. } => self.media[*medium].ready_at(*from),
        });
        ready.max().unwrap_or(Time::ZERO)
    }

    /// A host hands a frame to its IP layer, at the present moment: not before anything that was
    /// delivered. A frame to the host itself arrives at once; one to an address that nobody has is
    /// dropped.
    pub fn send(&mut self, now: Time, host: usize, frame: Frame) {
        self.now = self.now.max(now);
        let to = self.host_at(frame.destination);
        let carried = self.carried(host, to.unwrap_or(host), &frame);
        self.listen(Tap::Host(host), &carried);
        self.record(None, Fate::Sent, &carried);
        let Some(to) = to else {
            self.unroutable += 1;
            return self.record(None, Fate::NoRoute, &carried);
        };
        self.path_mut(host, to).sent += 1;
        if to == host {
            self.push(Place::Host, carried);
        } else if self.severed[host * self.hosts + to] {
            self.path_mut(host, to).lost += 1;
            self.record(None, Fate::Cut, &carried);
        } else {
            self.forward(host, carried);
        }
    }

    /// A frame from nowhere reaches a host's IP layer at `at`, past all links.
    pub fn inject(&mut self, at: Time, to: usize, frame: &Frame) {
        let from = self.host_at(frame.source).unwrap_or(to);
        let mut carried = self.carried(from, to, frame);
        carried.at = at.max(self.now);
        self.record(None, Fate::Injected, &carried);
        self.push(Place::Host, carried);
    }

    fn carried(&mut self, from: usize, to: usize, frame: &Frame) -> Carried {
        self.frames += 1;
        Carried {
            at: self.now,
            packet: ip::packet(frame, self.udp_checksums),
            damaged: false,
            number_here: 0,
            trip: Trip {
                number: self.frames - 1,
                from,
                to,
                sent: self.now,
                v6: ip::is_v6(frame),
            },
        }
    }

    /// When something happens next; [`Network::deliver`] is to be called then.
    pub fn next_event(&self) -> Option<Time> {
        let media = self.media.iter().filter_map(|medium| medium.poll_at());
        let event = self.events.peek().map(|event| event.at);
        media.chain(event).min()
    }

    /// Lets everything happen that is due up to `now`, and hands over what arrives: in order of
    /// time, and among equals in the order in which it entered the last link.
    pub fn deliver(&mut self, now: Time, each: &mut dyn FnMut(Delivery)) {
        while let Some(at) = self.next_event().filter(|&at| at <= now) {
            self.now = self.now.max(at);
            if self.events.peek().is_some_and(|event| event.at <= at) {
                let event = self.events.pop().expect("peeked at");
                self.happen(event, each);
            } else {
                self.advance_media(at);
            }
        }
        self.now = self.now.max(now);
    }

    fn happen(&mut self, event: Event, each: &mut dyn FnMut(Delivery)) {
        match event.place {
            Place::Stage { wire, stage } => self.pass(wire, Some(stage), event.carried),
            Place::End { wire } => {
                let node = self.wires[wire].to_index;
                if node < self.hosts {
                    self.receive(event.carried, each);
                } else {
                    self.forward(node, event.carried);
                }
            }
            Place::Host => self.receive(event.carried, each),
        }
    }

    fn forward(&mut self, node: usize, carried: Carried) {
        let Trip { from, to, .. } = carried.trip;
        match self.routes[to][node] {
            Some(wire) => self.pass(wire, None, carried),
            None => {
                self.unroutable += 1;
                self.path_mut(from, to).lost += 1;
                self.record(None, Fate::NoRoute, &carried);
            }
        }
    }

    /// Gives a packet to a wire, or goes on with it at a stage.
    fn pass(&mut self, index: usize, stage: Option<usize>, carried: Carried) {
        if stage.is_none() {
            self.listen(Tap::Wire(index), &carried);
        }
        let trip = carried.trip;
        // As it was before anything happened to it.
        let seen = self.trace.is_some();
        let seen = seen.then(|| self.passage(Some(index), Fate::Sent, &carried));
        let wire = &mut self.wires[index];
        let link = match &mut wire.way {
            Way::Link(link) => link,
            &mut Way::Shared { medium, from, to } => {
                let token = self.order;
                self.order += 1;
                let bytes = carried.packet.len();
                self.on_media.insert(token, (index, carried));
                return self.media[medium].enqueue(self.now, from, to, bytes, token);
            }
        };
        let mut exits = core::mem::take(&mut self.exits);
        match stage {
            None => link.enter(carried, &mut wire.random, &mut exits),
            Some(stage) => link.resume(stage, carried, &mut wire.random, &mut exits),
        }
        let mut fates = core::mem::take(&mut self.fates);
        fates.clear();
        fates.extend_from_slice(link.fates());
        for &fate in &fates {
            if fate.is_drop() || fate == Fate::Damaged {
                self.path_mut(trip.from, trip.to).lost += 1;
            }
            if let Some(seen) = seen {
                self.note(Passage { fate, ..seen });
            }
        }
        self.fates = fates;
        for exit in exits.drain(..) {
            match exit {
                Exit::Leaves(carried) => self.push(Place::End { wire: index }, carried),
                Exit::WaitsAt(stage, carried) => {
                    self.push(Place::Stage { wire: index, stage }, carried);
                }
            }
        }
        self.exits = exits;
    }

    fn advance_media(&mut self, now: Time) {
        let mut done: Vec<Passed> = Vec::new();
        for medium in &mut self.media {
            if medium.poll_at().is_some_and(|at| at <= now) {
                medium.advance(now, &mut |passed| done.push(passed));
            }
        }
        for passed in done {
            let (wire, mut carried) = self
                .on_media
                .remove(&passed.token)
                .expect("a medium speaks once of each packet");
            carried.at = passed.at.max(now);
            let Trip { from, to, .. } = carried.trip;
            match passed.dropped {
                None => self.push(Place::End { wire }, carried),
                Some(fate) => {
                    self.path_mut(from, to).lost += 1;
                    self.record(Some(wire), fate, &carried);
                }
            }
        }
    }

    fn receive(&mut self, carried: Carried, each: &mut dyn FnMut(Delivery)) {
        let Trip {
            from, to, sent, v6, ..
        } = carried.trip;
        self.listen(Tap::Host(to), &carried);
        let received = ip::receive(&carried.packet, v6, self.addresses[to]);
        let fate = match &received {
            Ok(_) => Fate::Delivered,
            Err(reason) => Fate::Refused(*reason),
        };
        self.record(None, fate, &carried);
        let path = self.path_mut(from, to);
        path.longest = path.longest.max(carried.at.duration_since(sent));
        match received {
            Ok(frame) => {
                path.delivered += u64::from(!carried.damaged);
                each(Delivery {
                    at: carried.at,
                    to,
                    frame,
                    damaged: carried.damaged,
                });
            }
            Err(reason) => {
                path.lost += u64::from(!carried.damaged);
                *self.refused.entry((to, reason)).or_default() += 1;
            }
        }
    }

    fn push(&mut self, place: Place, carried: Carried) {
        self.events.push(Event {
            at: carried.at,
            order: self.order,
            place,
            carried,
        });
        self.order += 1;
    }

    fn path_mut(&mut self, from: usize, to: usize) -> &mut PathCounters {
        &mut self.paths[from * self.hosts + to]
    }

    /// Notes what happened to a packet, on a wire or at a host.
    fn record(&mut self, wire: Option<usize>, fate: Fate, carried: &Carried) {
        if self.trace.is_some() {
            let passage = self.passage(wire, fate, carried);
            self.note(passage);
        }
    }

    fn note(&mut self, passage: Passage) {
        if let Some(trace) = &mut self.trace {
            trace.add(passage);
        }
    }

    fn passage(&self, wire: Option<usize>, fate: Fate, carried: &Carried) -> Passage {
        let bytes = ip::transport(&carried.packet);
        let parsed = frame::parse(bytes).ok().filter(|_| !carried.damaged);
        Passage {
            at: self.now,
            number: carried.trip.number,
            from: carried.trip.from,
            to: carried.trip.to,
            line: wire.map(|index| (self.wires[index].from, self.wires[index].to)),
            fate,
            headers: parsed.map(|packet| packet.headers),
            payload_len: parsed.map_or(bytes.len(), |packet| packet.payload.len()),
        }
    }

    fn listen(&mut self, tap: Tap, carried: &Carried) {
        if let Some(capture) = self.captures.get_mut(&tap) {
            capture.add(carried.at, &carried.packet);
        }
    }
}

/// Control and looks.
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

    /// Everybody reaches everybody again.
    pub fn heal(&mut self) {
        self.severed.fill(false);
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

    fn wire(&self, from: Node, to: Node) -> usize {
        let mut wires = self.wires.iter();
        let found = wires.position(|wire| (wire.from, wire.to) == (from, to));
        found.unwrap_or_else(|| panic!("no line from {from:?} to {to:?}"))
    }

    /// What happened so far to the frames from one host to another.
    pub fn path(&self, from: usize, to: usize) -> PathCounters {
        self.paths[from * self.hosts + to]
    }

    /// The longest time that a frame from one host to another was under way, or is by now.
    pub fn longest_under_way(&self, now: Time, from: usize, to: usize) -> Duration {
        let flying = self.events.iter().map(|event| event.carried.trip);
        let sharing = self.on_media.values().map(|(_, carried)| carried.trip);
        let present = flying
            .chain(sharing)
            .filter(|trip| (trip.from, trip.to) == (from, to))
            .map(|trip| now.duration_since(trip.sent));
        present
            .max()
            .unwrap_or_default()
            .max(self.path(from, to).longest)
    }

    /// Frames under way.
    pub fn under_way(&self) -> usize {
        self.events.len() + self.on_media.len()
    }

    /// Packets that the IP layer of a host dropped, by reason.
    pub fn refused(&self, host: usize) -> BTreeMap<IpDrop, u64> {
        let range = self.refused.iter().filter(|((at, _), _)| *at == host);
        range
            .map(|((_, reason), count)| (*reason, *count))
            .collect()
    }

    /// Frames to nobody.
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }

    /// Keeps what happens to each frame from now on.
    pub fn start_trace(&mut self) {
        self.trace.get_or_insert_with(Trace::new);
    }

    /// What happened since [`Network::start_trace`].
    pub fn trace(&self) -> Option<&Trace<Passage>> {
        self.trace.as_ref()
    }

    pub(crate) fn trace_mut(&mut self) -> Option<&mut Trace<Passage>> {
        self.trace.as_mut()
    }

    /// Keeps the packets that enter this link, for [`Network::captured`].
    pub fn capture_link(&mut self, from: Node, to: Node) {
        let tap = Tap::Wire(self.wire(from, to));
        self.captures.entry(tap).or_insert_with(Capture::new);
    }

    /// A pcap file of the packets that entered this link since [`Network::capture_link`].
    pub fn captured(&self, from: Node, to: Node) -> &[u8] {
        let tap = Tap::Wire(self.wire(from, to));
        self.captures.get(&tap).map_or(&[], Capture::file)
    }

    /// Keeps the packets that a host sends and gets, for [`Network::captured_at`].
    pub fn capture_at(&mut self, host: usize) {
        let tap = Tap::Host(host);
        self.captures.entry(tap).or_insert_with(Capture::new);
    }

    /// A pcap file of the packets that a host sent and got since [`Network::capture_at`].
    pub fn captured_at(&self, host: usize) -> &[u8] {
        let tap = Tap::Host(host);
        self.captures.get(&tap).map_or(&[], Capture::file)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The earliest is the greatest, as the heap wants it.
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// The topology as it was built, and the latest of the trace.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.sentence)?;
        write!(
            f,
            "    .network({}) at {} ns",
            self.seed,
            self.now.as_nanos()
        )?;
        match &self.trace {
            Some(trace) => write!(f, "\n{trace}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
