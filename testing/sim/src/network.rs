//! Hosts, switches and links in virtual time: each sent frame arrives or not, with a known reason.

use core::fmt;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;

use airdma_transport::Time;

use crate::capture::Capture;
use crate::frame::Frame;
use crate::ip::{self, IpDrop};
use crate::link::{Carried, Exit, Goal, Trip};
use crate::medium::Medium;
use crate::pcapng::Pcapng;
use crate::random::Random;
use crate::topology::{Node, Way};
use crate::trace::{Fate, Passage, Trace};

mod build;
mod control;
mod event;
mod stats;
mod tap;
mod travel;

pub use stats::PathCounters;

use event::{Event, Place};
use tap::Tap;

/// A frame that arrived at a host and passed its IP layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Arrival time.
    pub at: Time,
    /// Receiving host.
    pub to: usize,
    /// Sending host.
    pub from: usize,
    /// Time of sending.
    pub sent: Time,
    /// The frame as the host's IP layer passes it on. The ICRC is not checked.
    pub frame: Frame,
    /// Bits were flipped on the way, or the end was cut off.
    pub damaged: bool,
    /// Whether damage changed a part that the ICRC covers, which the receiver must detect. It
    /// covers neither TOS and TTL (IPv6: traffic class, flow label, hop limit) nor byte 4 of the
    /// BTH. It covers the IPv4 identification, which no host sees.
    pub harmed: bool,
}

/// A network of hosts. See [`Topology`](crate::Topology) for what can be built.
///
/// The caller moves time: it calls [`Network::deliver`] at [`Network::next_event`] or earlier, then
/// sends what it wants to send at that moment, if [`Network::ready_at`] has come. The same seed and
/// the same calls give the same deliveries.
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
    /// Source text at the time of building.
    sentence: String,
    hosts: usize,
    switches: usize,
    addresses: Vec<IpAddr>,
    by_address: BTreeMap<IpAddr, usize>,
    udp_checksums: bool,
    wires: Vec<Wire>,
    /// The wires that leave each node.
    leaving: Vec<Vec<usize>>,
    /// For each destination and node, the wire that leads there.
    routes: Vec<Vec<Option<usize>>>,
    /// For each source of frames to groups, the wires that each node copies them to.
    floods: BTreeMap<usize, Vec<Vec<usize>>>,
    media: Vec<Box<dyn Medium>>,
    /// Packets on media, by token, with the wire that they pass.
    on_media: BTreeMap<u64, (usize, Carried)>,
    /// Host pairs without a path, at `from * hosts + to`.
    severed: Vec<bool>,
    paths: Vec<PathCounters>,
    refused: BTreeMap<(usize, IpDrop), u64>,
    unroutable: u64,
    events: BinaryHeap<Event>,
    now: Time,
    /// Number of frames sent.
    frames: u64,
    /// Number of events made.
    order: u64,
    trace: Option<Trace<Passage>>,
    captures: BTreeMap<Tap, Capture>,
    everywhere: Option<Pcapng>,
    /// Buffer for reuse.
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

impl Network {
    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Address of a host; 10.5.0.1 for the first by default.
    pub fn address(&self, host: usize) -> IpAddr {
        self.addresses[host]
    }

    /// The host with this address.
    pub fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.by_address.get(&address.to_canonical()).copied()
    }

    /// Time at which the host's port takes the next frame; with several links, the last of them. A
    /// frame sent earlier only waits longer.
    pub fn ready_at(&self, host: usize) -> Time {
        let own = self.leaving[host].iter();
        let ready = own.map(|&wire| match &self.wires[wire].way {
            Way::Link(link) => link.ready_at(),
            Way::Shared { medium, from, .. } => self.media[*medium].ready_at(*from),
        });
        ready.max().unwrap_or(Time::ZERO)
    }

    /// Sends a frame from a host's IP layer at the present moment: everything due before must have
    /// been delivered.
    ///
    /// A frame to the host itself arrives at once; one to an address without a host is dropped; one
    /// to a multicast address reaches every other host.
    pub fn send(&mut self, now: Time, host: usize, frame: Frame) {
        let due = self.next_event();
        assert!(due.is_none_or(|at| at >= now), "something was due before");
        self.now = self.now.max(now);
        let goal = if frame.destination.is_multicast() {
            Some(Goal::Everyone)
        } else {
            self.host_at(frame.destination).map(Goal::Host)
        };
        let carried = self.carried(host, goal.unwrap_or(Goal::Host(host)), &frame);
        self.listen_at_host(host, &carried, None);
        self.record(None, Fate::Sent, &carried);
        match goal {
            None => {
                self.unroutable += 1;
                self.record(None, Fate::NoRoute, &carried);
                return;
            }
            Some(Goal::Host(to)) if to == host => {
                self.path_mut(host, to).sent += 1;
                self.push(Place::Host(to), carried);
                return;
            }
            Some(Goal::Host(_) | Goal::Everyone) => {}
        }
        self.each_path(&carried.trip, |path| path.sent += 1);
        match goal {
            Some(Goal::Host(to)) if self.severed[host * self.hosts + to] => {
                self.drop(None, Fate::Cut, &carried);
            }
            _ => self.forward(host, carried),
        }
    }

    /// Delivers a frame of `from` to the IP layer of `to` at `at`, past all links.
    pub fn inject(&mut self, at: Time, from: usize, to: usize, frame: &Frame) {
        let mut carried = self.carried(from, Goal::Host(to), frame);
        carried.at = at.max(self.now);
        self.record(None, Fate::Injected, &carried);
        self.push(Place::Host(to), carried);
    }

    fn carried(&mut self, from: usize, goal: Goal, frame: &Frame) -> Carried {
        self.frames += 1;
        Carried {
            at: self.now,
            packet: ip::packet(frame, self.udp_checksums),
            original: None,
            number_here: 0,
            late: false,
            trip: Trip {
                number: self.frames - 1,
                from,
                goal,
                sent: self.now,
                v6: ip::is_v6(frame),
            },
        }
    }

    /// Time of the next event, at which [`Network::deliver`] must be called.
    pub fn next_event(&self) -> Option<Time> {
        let media = self.media.iter().filter_map(|medium| medium.poll_at());
        let event = self.events.peek().map(|event| event.at);
        media.chain(event).min()
    }

    /// Processes all events due up to `now`, and passes on what arrives: in order of time, and
    /// among equals in the order in which it entered the last link.
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
}

/// The topology as built, and the latest records of the trace.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.sentence)?;
        let now = self.now.as_nanos();
        write!(f, "    .network({}) at {now} ns", self.seed)?;
        match &self.trace {
            Some(trace) => write!(f, "\n{trace}"),
            None => Ok(()),
        }
    }
}
