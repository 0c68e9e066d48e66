//! Two endpoints, two links, and the clock.

use core::fmt;
use core::ops::{Index, IndexMut};
use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr};

use airdma_transport::{Arrival, Datagram, QpState, QpType, Time};
use airdma_wire::{HEADERS_LEN_MAX, Headers, PathMtu, Psn, Qkey};

use crate::capture::Capture;
use crate::endpoint::Endpoint;
use crate::frame::{self, Frame};
use crate::ip;
use crate::link::Link;
use crate::network::{Delivery, Network};
use crate::random::Random;
use crate::setup::{self, Setup};
use crate::topology::Node;
use crate::trace::{Fate, Record, Trace};

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first.
    A = 0,
    /// The second.
    B = 1,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// The peer.
    pub const fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Longest packet: largest headers, 4,096 bytes, padding.
const PACKET_LEN_MAX: usize = HEADERS_LEN_MAX + 4096 + 3;

/// Most packets and wake-ups of a run; beyond, it counts as endless.
const STEPS_MAX: u64 = 20_000_000;

/// Longest virtual time of a run; beyond, it counts as endless.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// Two endpoints over two links in virtual time.
///
/// A step goes to the next moment at which something happens, gives each endpoint every packet
/// that arrived until then, runs the timers that are due, and lets both send what they want to:
/// the order of calls that an engine keeps.
pub struct Pair {
    seed: u64,
    replay: String,
    now: Time,
    steps: u64,
    endpoints: [Endpoint; 2],
    network: Network,
    trace: Trace,
    capture: Option<Capture>,
    out: Vec<u8>,
}

impl Pair {
    /// Two endpoints with IPv4 addresses; `to_b` carries what A sends, `to_a` what B sends.
    pub fn new(seed: u64, to_b: Link, to_a: Link) -> Self {
        let addresses = [Ipv4Addr::new(10, 5, 0, 1), Ipv4Addr::new(10, 5, 0, 2)];
        Pair::with_addresses(seed, addresses.map(IpAddr::from), to_b, to_a)
    }

    /// Two endpoints with these addresses.
    pub fn with_addresses(seed: u64, addresses: [IpAddr; 2], to_b: Link, to_a: Link) -> Self {
        let network = Network::pair(seed, to_b, to_a).with_addresses(addresses.to_vec());
        Pair::over(seed, network)
    }

    /// Two endpoints, the hosts of any network with two hosts.
    pub fn over(seed: u64, mut network: Network) -> Self {
        assert_eq!(network.hosts(), 2, "a pair is two hosts");
        network.start_trace();
        let addresses = [network.address(0), network.address(1)];
        let mut random = Random::new(seed);
        // Skips the forks of the links.
        let _ = [random.fork(), random.fork()];
        let endpoints = [
            Endpoint::new(addresses[0], 0x11, random.fork()),
            Endpoint::new(addresses[1], 0x0022_0022, random.fork()),
        ];
        Pair {
            seed,
            replay: String::new(),
            now: Time::ZERO,
            steps: 0,
            endpoints,
            network,
            trace: Trace::new(),
            capture: None,
            out: vec![0; PACKET_LEN_MAX],
        }
    }

    /// The command that replays this run, printed when it fails.
    pub fn replay_with(&mut self, command: String) {
        self.replay = command;
    }

    /// Prints all packets of a failure, not only the last.
    pub fn print_all(&mut self) {
        self.trace.print_all();
    }

    /// Keeps all packets from now on for [`Pair::captured`].
    pub fn start_capture(&mut self) {
        self.capture = Some(Capture::new());
    }

    /// A pcap file of the packets that were sent since [`Pair::start_capture`].
    pub fn captured(&self) -> &[u8] {
        self.capture.as_ref().map_or(&[], Capture::file)
    }

    /// Connects one queue pair of each endpoint and returns their index, the same on both sides.
    pub fn connect(&mut self, setup: &Setup) -> usize {
        self.connect_as([QpType::Rc; 2], setup)
    }

    /// Connects queue pairs of these types, A's and B's: unreliable connections, or the halves of
    /// an extended one.
    pub fn connect_as(&mut self, qp_types: [QpType; 2], setup: &Setup) -> usize {
        let qp = self.create_as(qp_types, setup.mtu);
        for side in Side::BOTH {
            self.advance(side, qp, setup, QpState::ReadyToSend);
        }
        qp
    }

    /// Creates one queue pair on each endpoint, in the reset state.
    pub fn create(&mut self, qp_type: QpType, port_mtu: PathMtu) -> usize {
        self.create_as([qp_type; 2], port_mtu)
    }

    fn create_as(&mut self, qp_types: [QpType; 2], port_mtu: PathMtu) -> usize {
        let [a, b] = &mut self.endpoints;
        let created = [
            a.create(qp_types[0], port_mtu),
            b.create(qp_types[1], port_mtu),
        ];
        assert_eq!(created[0], created[1], "queue pairs are created in pairs");
        created[0]
    }

    /// Moves the queue pair of one side through the states of a connection up to `state`.
    pub fn advance(&mut self, side: Side, qp: usize, setup: &Setup, state: QpState) {
        setup.apply(side, &mut self.endpoints, qp, state);
    }

    /// Starts one datagram queue pair on each endpoint and returns their index, the same on both.
    pub fn datagrams(&mut self, port_mtu: PathMtu, qkey: Qkey) -> usize {
        let qp = self.create(QpType::Ud, port_mtu);
        for endpoint in &mut self.endpoints {
            setup::start_datagrams(endpoint, qp, qkey, Psn::new(0));
        }
        qp
    }

    /// The address of queue pair `qp` of `side`, for datagrams to it.
    pub fn datagram_to(&self, side: Side, qp: usize, qkey: Qkey) -> Datagram {
        Datagram {
            path: setup::path_to(&self[side]),
            qpn: self[side].queue_pair(qp).qpn(),
            qkey,
        }
    }

    /// The present moment.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The link that carries what `side` sends.
    pub fn link(&mut self, side: Side) -> &mut Link {
        self.network.link_mut(node(side), node(side.other()))
    }

    /// Records of all packets.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Asserts that all activity has ended: no packet in flight, no timer, no send request open.
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.network.under_way(), 0, "packets are under way");
        for side in Side::BOTH {
            assert!(self[side].is_quiet(), "{side:?} is not quiet");
        }
    }

    /// Sends a packet that no queue pair made, with a right ICRC, past the link: it arrives at the
    /// next step.
    pub fn inject(&mut self, from: Side, headers: &Headers, payload: &[u8]) {
        self.inject_from(from, self[from].address(), headers, payload);
    }

    /// As [`inject`](Self::inject), from an address that is not `from`'s.
    pub fn inject_from(&mut self, from: Side, source: IpAddr, headers: &Headers, payload: &[u8]) {
        let mut transport = vec![0; headers.len()];
        headers.emit(&mut transport);
        transport.extend_from_slice(payload);
        transport.resize(transport.len().next_multiple_of(4), 0);
        let arrival = Arrival {
            source: source.into(),
            ..self.arrival_from(from)
        };
        let frame = Frame::seal(&arrival, &transport);
        let to = from.other();
        self.network
            .inject(self.now, from as usize, to as usize, &frame);
        self.take_trace();
    }

    fn arrival_from(&self, from: Side) -> Arrival {
        Arrival {
            source: self[from].address().into(),
            destination: self[from.other()].address().into(),
            tos: 0,
            ttl: 64,
            flow_label: 0,
        }
    }

    /// Advances to the next event; false if there is none.
    pub fn step(&mut self) -> bool {
        self.pump();
        let Some(at) = self.next_event() else {
            return false;
        };
        self.now = self.now.max(at);
        self.spend_step();
        self.deliver();
        for endpoint in &mut self.endpoints {
            endpoint.handle_timeout(self.now);
        }
        self.pump();
        true
    }

    /// Steps until no event is left.
    pub fn run_until_idle(&mut self) {
        while self.step() {}
    }

    /// Steps until `done`.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&Pair) -> bool) {
        while !done(self) {
            assert!(self.step(), "nothing happens any more, but not: {what}");
        }
    }

    /// Lets this much time pass.
    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.pump();
        while self.next_event().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    fn spend_step(&mut self) {
        self.steps += 1;
        assert!(self.steps <= STEPS_MAX, "no end after {STEPS_MAX} steps");
        assert!(
            self.now <= Time::ZERO + TIME_MAX,
            "no end after {TIME_MAX:?} of virtual time"
        );
    }

    fn next_event(&self) -> Option<Time> {
        let timers = self.endpoints.iter().filter_map(Endpoint::poll_timeout);
        let ports = Side::BOTH.iter().filter_map(|&side| {
            let ready_at = self.network.ready_at(side as usize);
            (ready_at > self.now && self[side].wants_transmit()).then_some(ready_at)
        });
        timers.chain(ports).chain(self.network.next_event()).min()
    }

    fn deliver(&mut self) {
        let mut arrived = Vec::new();
        self.network
            .deliver(self.now, &mut |delivery| arrived.push(delivery));
        self.take_trace();
        for Delivery {
            to, frame, harmed, ..
        } in arrived
        {
            let to = Side::BOTH[to];
            let now = self.now;
            let fate = self[to].receive(now, &frame);
            self.record(to.other(), fate, &frame.bytes, harmed);
            assert_eq!(
                harmed,
                fate == Fate::BadIcrc,
                "the ICRC finds all harm and nothing else"
            );
        }
    }

    /// Lets both endpoints send until they have no packets or their ports are full.
    fn pump(&mut self) {
        for side in Side::BOTH {
            while self.network.ready_at(side as usize) <= self.now {
                let endpoint = &mut self.endpoints[side as usize];
                let Some(transmit) = endpoint.poll_transmit(self.now, &mut self.out) else {
                    break;
                };
                self.spend_step();
                let peer = self[side.other()].address();
                assert_eq!(transmit.path.gid.to_ip(), peer, "sent to nobody");
                let arrival = Arrival {
                    tos: transmit.path.traffic_class,
                    ttl: transmit.path.hop_limit,
                    flow_label: transmit.path.flow_label,
                    ..self.arrival_from(side)
                };
                let frame = Frame::seal(&arrival, &self.out[..transmit.len]);
                self.launch(side, frame);
            }
        }
    }

    fn launch(&mut self, from: Side, frame: Frame) {
        let packet = frame::parse(&frame.bytes).expect("queue pairs send well-formed packets");
        assert!(packet.payload.len() <= PathMtu::M4096.bytes() as usize);
        if let Some(capture) = &mut self.capture {
            capture.add(self.now, &ip::packet(&frame, false));
        }
        self.network.send(self.now, from as usize, frame);
        self.take_trace();
    }

    /// Takes the network's records. The fate of a packet at its destination is recorded by the
    /// endpoint, unless the packet never got there.
    fn take_trace(&mut self) {
        let passages = self.network.trace_mut().map(Trace::take);
        for passage in passages.unwrap_or_default() {
            if passage.fate != Fate::Delivered {
                self.trace.add(Record {
                    at: self.now,
                    from: Side::BOTH[passage.from],
                    fate: passage.fate,
                    headers: passage.headers,
                    payload_len: passage.payload_len,
                });
            }
        }
    }

    fn record(&mut self, from: Side, fate: Fate, bytes: &[u8], damaged: bool) {
        let packet = frame::parse(bytes).ok().filter(|_| !damaged);
        self.trace.add(Record {
            at: self.now,
            from,
            fate,
            headers: packet.map(|packet| packet.headers),
            payload_len: packet.map_or(bytes.len(), |packet| packet.payload.len()),
        });
    }
}

fn node(side: Side) -> Node {
    Node::Host(side as usize)
}

impl Index<Side> for Pair {
    type Output = Endpoint;

    fn index(&self, side: Side) -> &Endpoint {
        &self.endpoints[side as usize]
    }
}

impl IndexMut<Side> for Pair {
    fn index_mut(&mut self, side: Side) -> &mut Endpoint {
        &mut self.endpoints[side as usize]
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} at {} ns", self.seed, self.now.as_nanos())?;
        writeln!(f, "{:?}", self.network)?;
        write!(f, "{}{}", self.network.table(), self.trace)
    }
}

/// A failing test prints what happened, and how to replay it.
impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{self:?}");
            if !self.replay.is_empty() {
                eprintln!("replay: {}", self.replay);
            }
        }
    }
}
