//! Captures of packets, and the trace.

use crate::capture::Capture;
use crate::frame;
use crate::ip;
use crate::link::{Carried, Goal};
use crate::network::Network;
use crate::pcapng::{Direction, Pcapng};
use crate::topology::Node;
use crate::trace::{Fate, Passage, Trace};

/// Place of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tap {
    /// Packets that a host sends and receives.
    Host(usize),
    /// Packets that enter a wire.
    Wire(usize),
}

impl Network {
    /// Starts recording what happens to each frame.
    pub fn start_trace(&mut self) {
        self.trace.get_or_insert_with(Trace::new);
    }

    /// Records since [`Network::start_trace`].
    pub fn trace(&self) -> Option<&Trace<Passage>> {
        self.trace.as_ref()
    }

    pub(crate) fn trace_mut(&mut self) -> Option<&mut Trace<Passage>> {
        self.trace.as_mut()
    }

    /// Starts a capture of this line, for [`Network::captured`].
    pub fn capture_link(&mut self, from: Node, to: Node) {
        let tap = Tap::Wire(self.wire(from, to));
        self.captures.entry(tap).or_insert_with(Capture::new);
    }

    /// A pcap file of the packets that entered this line since [`Network::capture_link`], as
    /// marked, damaged or copied before.
    pub fn captured(&self, from: Node, to: Node) -> &[u8] {
        self.file(Tap::Wire(self.wire(from, to)))
    }

    /// Starts a capture of a host's packets, for [`Network::captured_at`].
    pub fn capture_at(&mut self, host: usize) {
        let tap = Tap::Host(host);
        self.captures.entry(tap).or_insert_with(Capture::new);
    }

    /// A pcap file of the packets that a host sent and received since [`Network::capture_at`].
    pub fn captured_at(&self, host: usize) -> &[u8] {
        self.file(Tap::Host(host))
    }

    fn file(&self, tap: Tap) -> &[u8] {
        self.captures.get(&tap).map_or(&[], Capture::file)
    }

    /// Starts a capture of all packets that hosts send and receive and that are dropped, for
    /// [`Network::captured_everywhere`].
    pub fn capture_everywhere(&mut self) {
        let mut file = Pcapng::new();
        for host in 0..self.hosts {
            file.interface(&format!("host {host} {}", self.addresses[host]));
        }
        for wire in &self.wires {
            file.interface(&format!("{:?} > {:?}", wire.from, wire.to));
        }
        self.everywhere = Some(file);
    }

    /// A pcapng file of all packets since [`Network::capture_everywhere`]. Each host is an
    /// interface with its packets, and each line one with the packets dropped there; a comment
    /// gives the reason, and the damage.
    pub fn captured_everywhere(&self) -> &[u8] {
        self.everywhere.as_ref().map_or(&[], Pcapng::file)
    }

    /// Captures a packet that a host sends, or receives with this fate.
    pub(super) fn listen_at_host(&mut self, host: usize, carried: &Carried, fate: Option<Fate>) {
        self.listen(Tap::Host(host), carried);
        let Some(file) = &mut self.everywhere else {
            return;
        };
        let direction = match fate {
            None => Direction::Out,
            Some(_) => Direction::In,
        };
        let damage = if carried.original.is_some() {
            "damaged "
        } else {
            ""
        };
        let fate = match fate {
            None | Some(Fate::Delivered) => String::new(),
            Some(fate) => format!("{fate:?}"),
        };
        let comment = format!("{damage}{fate}");
        file.add(carried.at, host, direction, &comment, &carried.packet);
    }

    pub(super) fn listen_to_drop(&mut self, wire: Option<usize>, fate: Fate, carried: &Carried) {
        let interface = match wire {
            Some(wire) => self.hosts + wire,
            None => carried.trip.from,
        };
        if let Some(file) = &mut self.everywhere {
            let comment = format!("{fate:?}");
            let direction = Direction::Out;
            file.add(self.now, interface, direction, &comment, &carried.packet);
        }
    }

    pub(super) fn listen(&mut self, tap: Tap, carried: &Carried) {
        if let Some(capture) = self.captures.get_mut(&tap) {
            capture.add(carried.at, &carried.packet);
        }
    }

    /// Records the fate of a packet, on a wire or at a host.
    pub(super) fn record(&mut self, wire: Option<usize>, fate: Fate, carried: &Carried) {
        if self.trace.is_some() {
            let passage = self.passage(wire, fate, carried);
            self.note(passage);
        }
    }

    pub(super) fn note(&mut self, passage: Passage) {
        if let Some(trace) = &mut self.trace {
            trace.add(passage);
        }
    }

    pub(super) fn passage(&self, wire: Option<usize>, fate: Fate, carried: &Carried) -> Passage {
        let bytes = ip::transport(&carried.packet);
        let parsed = frame::parse(bytes).ok();
        let parsed = parsed.filter(|_| carried.original.is_none());
        Passage {
            at: self.now,
            number: carried.trip.number,
            from: carried.trip.from,
            to: match carried.trip.goal {
                Goal::Host(to) => Some(to),
                Goal::Everyone => None,
            },
            line: wire.map(|index| (self.wires[index].from, self.wires[index].to)),
            fate,
            headers: parsed.map(|packet| packet.headers),
            payload_len: parsed.map_or(bytes.len(), |packet| packet.payload.len()),
        }
    }
}
