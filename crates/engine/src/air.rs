//! Air mode: what two airdma processes do beyond RoCEv2, once both have said that they can (`docs/protocol.md`).
//!
//! | the peer is | what that means |
//! |---|---|
//! | plain | it is not known, did not answer, as hosts of others do not, or can nothing of it: RoCEv2 |
//! | agreed | reliable connections repeat selectively, and reports acknowledge in place of ACK packets |
//!
//! It is asked when a queue pair is connected to it, again after each of [`peer::HELLO_AGAIN`], and when it asks or reports itself; an answer to its own question
//! asks again, since a question that came before it was connected was heard by nobody. Only
//! an answer that names our instance counts: nobody else can give it. What was agreed holds for the queue pairs that were connected when
//! it was said; the others wait for the next answer, since the process at the other end may be another one by then.
//!
//! A peer is a process: an address, seen from one of ours, and the range of its queue pairs' numbers. Each end goes over for itself
//! when it was answered, and both understand meanwhile what the other does: ACKs and NAKs are always taken.
//!
//! Who also agreed on bundles sends packets in them while few get lost ([`bundling`]).
//!
//! A report leaves four times in a round trip while packets come, and soon after packets were missed. One tells of as many
//! queue pairs as it has room for. The round trip is measured by pings, while something of ours is under way.

mod application;
mod bundling;
mod congestion;
mod pace;
mod peer;

pub use pace::RateControl;
pub(crate) use pace::Weight;
pub(crate) use peer::Arrived;

use crate::QpType;
use crate::counters::EngineCounter;
use crate::qp_table::Connection;
use crate::steering::range_of;
use crate::tables::Tables;
use airdma_port::{Destination, Port, QueueFill};
use airdma_transport::rate::{Feedback, Occupancy, Rate, Reading};
use airdma_transport::{Acknowledgement, Arrival, Owed, PsnRange, ReorderMemory, Time};
use airdma_wire::air::{self, Hello, Message, Record, Records, Report, ReportWriter, feature};
use airdma_wire::mad::{GSI_QKEY, MAD_LEN};
use airdma_wire::{Bth, Deth, Headers, Opcode, Packet, PathMtu, Psn, Qpn};
use bundling::Bundling;
use congestion::ANY_RANGE;
use pace::{Pace, Told};
use peer::{AirPeer, Asked, Asking};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// Without any of them there is nothing to agree on.
const NEEDED: u64 = feature::SELECTIVE | feature::SACK;

/// For packets that came before their turn, of all queue pairs together: what a fast link has under way in a long round trip.
const REORDER_BYTES: usize = 32 << 20;

/// Of an interface that does not say how fast it is.
const LINE_RATE_UNKNOWN: Rate = Rate::from_bits_per_s(10_000_000_000);

/// Ranges of one queue pair in one report; the rest is told when these are filled.
const RANGES_MAX: usize = 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AirIndex(u32);

pub(crate) struct Air {
    peers: Vec<AirPeer>,
    /// Of this process, if it offers anything to peers.
    instance: Option<u64>,
    /// What that is, but for what comes with the rate control.
    offers: u64,
    memory: ReorderMemory,
    rate_control: RateControl,
    /// Of the interface.
    line_rate: Rate,
    /// Queue pairs whose peers are to get a CNP.
    notifies: VecDeque<u32>,
    /// No peer wants to be called before.
    due: Option<Time>,
    /// Of the last report to anybody. A peer may know us longer than we remember: its count must not begin again.
    number: u32,
    next_psn: Psn,
}

impl Air {
    /// Nothing is offered.
    pub(crate) fn new() -> Self {
        Air {
            peers: Vec::new(),
            instance: None,
            offers: 0,
            memory: ReorderMemory::new(REORDER_BYTES),
            rate_control: RateControl::default(),
            line_rate: LINE_RATE_UNKNOWN,
            notifies: VecDeque::new(),
            due: None,
            number: 0,
            next_psn: Psn::default(),
        }
    }

    /// When [`Tables::poll_air`] wants to be called next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    fn call_at(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn peer(&mut self, index: AirIndex) -> &mut AirPeer {
        &mut self.peers[index.0 as usize]
    }

    /// How many queue pairs wait until the rate to their peers lets them send.
    pub(crate) fn waiting(&self) -> usize {
        let used = self.peers.iter().filter(|peer| !peer.users.is_empty());
        let waiting = used.filter_map(|peer| peer.pace.as_ref().map(Pace::waiting));
        waiting.sum()
    }

    /// Something is on its way to the peer: the round trip is to be known.
    pub(crate) fn note_under_way(&mut self, index: AirIndex, now: Time) {
        if let Some(by) = self.peer(index).report_for_ping(now) {
            self.call_at(by);
        }
    }

    /// Whether a queue pair with a weight may send to the peer now, and how many bytes; see [`Pace::admit`].
    pub(crate) fn admit(
        &mut self,
        index: AirIndex,
        asks: (u32, Weight),
        wanted: u64,
        waits: &mut bool,
        now: Time,
    ) -> Option<u64> {
        let peer = &mut self.peers[index.0 as usize];
        let Some(pace) = &mut peer.pace else {
            return Some(u64::MAX);
        };
        let bytes = pace.admit(asks, wanted, waits, now);
        if bytes.is_none()
            && let Some(due) = pace.due()
        {
            self.call_at(due);
        }
        bytes
    }

    /// The traffic class of a packet to the peer that is to have this one.
    pub(crate) fn traffic_class(&self, index: AirIndex, wanted: u8) -> u8 {
        let peer = &self.peers[index.0 as usize];
        let pace = peer.pace.as_ref();
        pace.map_or(wanted, |pace| pace.traffic_class(wanted))
    }

    /// Whether packets to the peer leave in bundles now.
    pub(crate) fn bundles(&self, index: AirIndex) -> bool {
        self.peers[index.0 as usize].takes_bundles()
    }

    /// A queue pair sends without asking the pacer, whether it waited in line or had the turn. Whose turn it is now, if it had it.
    pub(crate) fn pass(&mut self, index: AirIndex, queue_pair: u32, waited: bool) -> Option<u32> {
        self.peer(index).pace.as_mut()?.pass(queue_pair, waited)
    }

    /// The one who waits for the pacer, to be asked again what it wants.
    pub(crate) fn ask_again(&mut self, index: AirIndex) -> Option<u32> {
        self.peer(index).pace.as_mut()?.ask_again()
    }

    /// The one whose turn it is has sent something, see [`Pace::sent`]. Who is called, if the turn is over.
    pub(crate) fn sent(
        &mut self,
        index: AirIndex,
        now: Time,
        sent: (u64, u64),
        has_more: bool,
    ) -> Option<u32> {
        let pace = self.peer(index).pace.as_mut()?;
        let next = pace.sent(now, sent, has_more);
        if let Some(due) = pace.due() {
            self.call_at(due);
        }
        next
    }

    fn find(&self, address: IpAddr, local: IpAddr, range: u8) -> Option<AirIndex> {
        let is_it = |peer: &AirPeer| {
            let ends = (peer.address, peer.local, peer.range);
            !peer.users.is_empty() && ends == (address, local, range)
        };
        let index = self.peers.iter().position(is_it)?;
        Some(AirIndex(index as u32))
    }

    /// A queue pair is connected to `number`.
    fn join(
        &mut self,
        now: Time,
        queue_pair: u32,
        connection: &Connection,
        number: Qpn,
    ) -> Option<AirIndex> {
        let range = self.instance.map_or(ANY_RANGE, |_| range_of(number));
        let known = self.find(connection.remote, connection.local, range);
        let controls = self.rate_control == RateControl::Dcqcn;
        if known.is_none() && self.instance.is_none() && !controls {
            return None;
        }
        let line_rate = self.line_rate;
        let index = known.unwrap_or_else(|| self.add(connection, range));
        let peer = self.peer(index);
        peer.users.push(queue_pair);
        if controls && peer.pace.is_none() {
            peer.pace = Some(Pace::dcqcn(line_rate, now));
        }
        if self.instance.is_some() {
            self.ask(index, now);
        }
        Some(index)
    }

    /// A new peer, which has no users yet.
    fn add(&mut self, connection: &Connection, range: u8) -> AirIndex {
        let ends = (connection.remote, connection.local);
        let peer = AirPeer::new(ends, range, connection.source_index);
        let free = self.peers.iter().position(|peer| peer.users.is_empty());
        let index = free.unwrap_or(self.peers.len());
        match self.peers.get_mut(index) {
            Some(place) => *place = peer,
            None => self.peers.push(peer),
        }
        AirIndex(index as u32)
    }

    /// The peer is to be asked what it can do.
    fn ask(&mut self, index: AirIndex, now: Time) {
        self.peer(index).asking = Some(Asking {
            tries: 0,
            again_at: now,
        });
        self.call_at(now);
    }

    /// The port is gone: nobody will be told anything.
    pub(crate) fn stop(&mut self) {
        self.instance = None;
        self.due = None;
    }

    /// Whose turn it is to send now, if it was the turn of the one that leaves.
    fn leave(&mut self, index: AirIndex, queue_pair: u32) -> Option<u32> {
        let peer = self.peer(index);
        peer.users.retain(|&other| other != queue_pair);
        peer.owing.retain(|&other| other != queue_pair);
        peer.pace.as_mut()?.leave(queue_pair)
    }
}

impl Tables {
    /// Peers whose rate is controlled are sent to as fast as this says, by an interface of this rate if that is known.
    pub(crate) fn control_rate(&mut self, rate_control: RateControl, line_rate: Option<Rate>) {
        self.air.rate_control = rate_control;
        self.air.line_rate = line_rate.unwrap_or(LINE_RATE_UNKNOWN);
    }

    /// From now on peers are offered these features beyond RoCEv2.
    pub(crate) fn offer(&mut self, features: u64) {
        self.air.offers |= features;
        let mut draw = || u64::from(self.random.next_u32());
        // 0 is nobody's.
        let instance = (draw() << 32 | draw()).max(1);
        self.air.instance.get_or_insert(instance);
    }

    /// A queue pair was connected: it can do more when its peer says so.
    pub(crate) fn join_air(&mut self, index: u32, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let number = slot.qp.attributes().dest_qpn;
        slot.qp.set_selective(None);
        // What is offered is offered to reliable connections alone.
        let joins = slot.qp.qp_type() == QpType::Rc || self.air.instance.is_none();
        if joins && let Some(connection) = &mut slot.connection {
            connection.air = self.air.join(now, index, connection, number);
        }
    }

    pub(crate) fn leave_air(&mut self, index: u32, connection: &Connection) {
        self.air.notifies.retain(|&notifies| notifies != index);
        let Some(air) = connection.air else {
            return;
        };
        if let Some(next) = self.air.leave(air, index) {
            self.take_the_turn(next);
        }
    }

    /// It is this queue pair's turn to send to a peer whose rate is controlled.
    pub(crate) fn take_the_turn(&mut self, index: u32) {
        if let Some(slot) = self.qps.slot(index) {
            slot.waits = false;
        }
        self.join_line(index);
    }

    /// Packets that were taken for a queue pair.
    pub(crate) fn note_arrived(&mut self, index: u32, arrived: Arrived, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        if let Some(air) = slot.connection.and_then(|connection| connection.air) {
            let missed = slot.qp.take_missed();
            let arrivals = &mut self.air.peer(air).arrivals;
            arrivals.note(now, arrived);
            arrivals.missed_packets = arrivals.missed_packets.wrapping_add(missed);
        }
    }

    /// After anything that was done with a queue pair: what it owes its peer is told in time.
    pub(crate) fn note_owed(&mut self, index: u32, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let Some(air) = slot.connection.and_then(|connection| connection.air) else {
            return;
        };
        let Some(owed) = slot.qp.owes_acknowledgement() else {
            return;
        };
        let peer = self.air.peer(air);
        if !peer.owing.contains(&index) {
            peer.owing.push_back(index);
        }
        let by = match owed {
            Owed::Now => peer.report_gap(now),
            Owed::Asked => peer.report_asked(now),
            Owed::Soon => peer.report_soon(now),
        };
        self.air.call_at(by);
    }

    /// Whether a packet of a bundle is from somebody who was told that we take bundles. One for another process is that one's.
    #[cold]
    pub(crate) fn may_bundle(&mut self, packet: &[u8]) -> bool {
        let Some(&[a, b, c]) = packet.get(5..8) else {
            return true;
        };
        let Some(index) = self.qps.find(Qpn::new(u32::from_be_bytes([0, a, b, c]))) else {
            return true;
        };
        let connection = self.qps.slot(index).and_then(|slot| slot.connection);
        let air = connection.and_then(|connection| connection.air);
        air.is_some_and(|air| self.air.peer(air).may_bundle)
    }

    /// Something is about to be said to peers after which they wait for nothing more: what came from them is acknowledged first.
    pub(crate) fn report_first(&mut self, now: Time) {
        let peers = self.air.peers.iter_mut();
        if let Some(by) = peers.filter_map(|peer| peer.report_first(now)).min() {
            self.air.call_at(by);
        }
    }

    /// Whether a message to a peer is due.
    pub(crate) fn has_air_due(&self, now: Time) -> bool {
        self.air.due.is_some_and(|due| due <= now)
    }

    /// Writes the next message to a peer into `out`, and lets those send whose time has come.
    pub(crate) fn poll_air(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        out: &mut [u8],
    ) -> Option<(usize, Destination)> {
        if let Some(notification) = self.poll_cnp(out) {
            return Some(notification);
        }
        for index in 0..self.air.peers.len() {
            let peer = &self.air.peers[index];
            if peer.due().is_none_or(|due| due > now) {
                continue;
            }
            let index = AirIndex(index as u32);
            self.keep_pace(index, now, port);
            if let Some(mad) = self.next_message(index, now, port) {
                let peer = self.air.peer(index);
                let destination = Destination {
                    address: peer.address,
                    source_index: peer.source_index,
                    tos: 0,
                    hop_limit: 0,
                    flow_label: 0,
                    bundles: false,
                };
                let len = self.air.emit(&mad, out);
                return Some((len, destination));
            }
        }
        self.air.due = self.air.peers.iter().filter_map(AirPeer::due).min();
        None
    }

    fn keep_pace(&mut self, index: AirIndex, now: Time, port: &mut dyn Port) {
        let Some(pace) = &mut self.air.peer(index).pace else {
            return;
        };
        if let Some(next) = pace.released(now) {
            self.join_line(next);
        }
        self.with_pace(index, |pace| {
            if pace.is_tick_due(now) {
                pace.tick(now, port.send_queue().map(occupancy));
            }
        });
    }

    /// Tells the rate controller of a peer something, and draws the consequences.
    fn with_pace(&mut self, index: AirIndex, call: impl FnOnce(&mut Pace)) {
        let peer = self.air.peer(index);
        let Some(pace) = &mut peer.pace else {
            return;
        };
        call(pace);
        let window = pace.window();
        let next = pace.ask_again();
        if let Some(due) = pace.due() {
            self.air.call_at(due);
        }
        if let Some(next) = next {
            self.join_line(next);
        }
        self.grant(index, window);
    }

    /// The window to a peer is this, and no other.
    fn grant(&mut self, index: AirIndex, window: u64) {
        let user = self.air.peer(index).users.first().copied();
        let slot = user.and_then(|user| self.qps.slot(user));
        if let Some(host) = slot.and_then(|slot| slot.connection).map(|way| way.peer) {
            self.peers.grant(host, window, index.0);
            self.unblock(host);
        }
    }

    fn next_message(
        &mut self,
        index: AirIndex,
        now: Time,
        port: &mut dyn Port,
    ) -> Option<[u8; MAD_LEN]> {
        let ours = self.air.instance?;
        // A process with very many queue pairs has several ranges: it is known by those of the queue pairs in question.
        let user = *self.air.peer(index).users.first()?;
        let sender = id_of(range_of(self.qps.slot(user)?.qp.qpn()));
        let hello = Hello {
            asks: false,
            features: self.air.features(),
            sender,
            instance: ours,
            answers: None,
        };
        let peer = self.air.peer(index);
        let receiver = id_of(peer.range);
        if let Some(Asked { as_whom, instance }) = peer.asked.take() {
            let answer = Hello {
                asks: peer.ask_again(now),
                sender: as_whom,
                answers: Some(instance),
                ..hello
            };
            return Some(air::hello(&answer, receiver));
        }
        if peer.asking.is_some_and(|asking| asking.again_at <= now) {
            if !peer.ask_again(now) {
                peer.asking = None;
                self.agree(index, None, 0, now);
                return None;
            }
            let question = Hello {
                asks: true,
                ..hello
            };
            return Some(air::hello(&question, receiver));
        }
        let instance = peer.agreed?;
        if !peer.is_report_due(now) {
            return None;
        }
        let report = Report {
            instance,
            sender,
            ..Report::default()
        };
        Some(self.report(index, report, now, port))
    }

    /// The peer has agreed, as this instance, or it is plain: so are all queue pairs that are connected to it now.
    fn agree(&mut self, index: AirIndex, agreed: Option<u64>, features: u64, now: Time) {
        let memory = agreed.map(|_| self.air.memory.clone());
        let both = features & self.air.features();
        let by_acks = agreed.is_some() && both & feature::SELECTIVE == 0;
        let paces = agreed.is_some() && both & feature::BUFFERS != 0;
        let bundles = agreed.is_some() && both & feature::BUNDLES != 0;
        let rate_control = self.air.rate_control;
        let user = self.air.peer(index).users.first().copied();
        let slot = user.and_then(|user| self.qps.slot(user));
        let mtu = slot.map_or(PathMtu::M1024, |slot| slot.qp.attributes().path_mtu);
        let peer = self.air.peer(index);
        let is_new = peer.agreed != agreed;
        peer.note_agreed(agreed);
        if is_new {
            peer.bundling = None;
            peer.may_bundle = false;
        }
        peer.may_bundle |= bundles;
        if !bundles || by_acks {
            peer.bundling = None;
        } else if peer.bundling.is_none() {
            peer.bundling = Some(Bundling::new(mtu, now));
        }
        if is_new && agreed.is_some() {
            self.counters.count(EngineCounter::AirAgreed);
        }
        let users = std::mem::take(&mut peer.users);
        // A rate that follows CNPs goes on where buffers are not told of.
        let goes_on = if paces {
            !is_new && peer.tells_buffers()
        } else {
            !peer.tells_buffers()
        };
        let before = if goes_on {
            None
        } else {
            let pace = paces.then(|| Pace::new(rate_control, mtu, now)).flatten();
            std::mem::replace(&mut peer.pace, pace)
        };
        let paced = peer.tells_buffers();
        for waiting in before.into_iter().flat_map(Pace::disband) {
            self.take_the_turn(waiting);
        }
        for &user in &users {
            if let Some(slot) = self.qps.slot(user) {
                slot.qp.set_selective(memory.as_ref());
                slot.qp.tell_by_acks(by_acks);
            }
            self.change_window(user, paced.then_some(index.0));
        }
        let peer = self.air.peer(index);
        peer.users = users;
        peer.is_told_by_acks = by_acks;
        let window = peer.pace.as_ref().map(Pace::window);
        if agreed.is_some() && !by_acks {
            // Something may be under way already: then the round trip is to be known.
            let by = peer.report_now(now);
            self.air.call_at(by);
        }
        if let Some(window) = window {
            self.grant(index, window);
        }
    }

    fn report(
        &mut self,
        index: AirIndex,
        report: Report,
        now: Time,
        port: &mut dyn Port,
    ) -> [u8; MAD_LEN] {
        let under_way = self.is_under_way(index);
        let application = self.application_buffers(index);
        self.counters.count(EngineCounter::AirReportsSent);
        self.air.number = self.air.number.wrapping_add(1).max(1);
        let number = self.air.number;
        let peer = &mut self.air.peers[index.0 as usize];
        // Who only receives has to know how often to tell.
        let active = under_way || !peer.owing.is_empty();
        let wants_ping = active && peer.wants_ping(now);
        if wants_ping {
            peer.note_ping(number, now);
        }
        let (pong, since) = peer.pong.take().unwrap_or((0, now));
        let held = now.duration_since(since).as_micros();
        let socket = port.receive_queue(peer.source_index).unwrap_or_default();
        let capacity = socket.capacity.unwrap_or(0);
        let mut writer = ReportWriter::new(&Report {
            number,
            ping: if wants_ping { number } else { 0 },
            pong,
            pong_held_us: u32::try_from(held).unwrap_or(u32::MAX),
            received_bytes: peer.arrivals.bytes,
            missed_packets: peer.arrivals.missed_packets,
            marked_bytes: peer.arrivals.marked_bytes,
            at_us: peer.arrivals.at_us(now),
            socket_bytes: u32::try_from(socket.bytes).unwrap_or(u32::MAX),
            socket_bytes_max: u32::try_from(capacity).unwrap_or(u32::MAX),
            application_bytes: application.bytes,
            application_bytes_max: application.capacity,
            ..report
        });
        let mut missing = [PsnRange {
            first: Psn::default(),
            packets: 0,
        }; RANGES_MAX];
        while let Some(room) = writer.room()
            && let Some(owing) = peer.owing.pop_front()
        {
            let Some(slot) = self.qps.slot(owing) else {
                continue;
            };
            let ranges = &mut missing[..room.min(RANGES_MAX)];
            let number = slot.qp.attributes().dest_qpn;
            if let Some((expected, count)) = slot.qp.acknowledge(ranges) {
                let ranges = ranges[..count].iter();
                let ranges = ranges.map(|range| (range.first, range.packets));
                writer.add(number, expected, ranges);
            }
        }
        peer.reported(now, under_way);
        writer.finish(id_of(peer.range))
    }

    fn is_under_way(&mut self, index: AirIndex) -> bool {
        let users = &self.air.peers[index.0 as usize].users;
        users.iter().any(|&user| {
            let slot = self.qps.slot(user);
            slot.is_some_and(|slot| slot.qp.in_flight_bytes() > 0)
        })
    }

    /// Takes a datagram to queue pair 1 if it is one of ours; what is wrong with it is counted.
    pub(crate) fn receive_air(
        &mut self,
        now: Time,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) -> bool {
        if self.air.instance.is_none() || packet.payload.get(1) != Some(&air::AIR_CLASS) {
            return false;
        }
        let secret = packet
            .headers
            .deth
            .is_some_and(|deth| deth.qkey == GSI_QKEY);
        let is_datagram = packet.headers.bth.opcode == Opcode::UdSendOnly && secret;
        match air::parse(packet.payload) {
            Ok(message) if is_datagram => match message {
                Message::Hello(hello, receiver) => self.take_hello(now, arrival, &hello, receiver),
                Message::Report(report, records) => {
                    self.take_report(now, arrival, &report, records);
                }
            },
            Ok(_) | Err(_) => self.counters.count(EngineCounter::DropAir),
        }
        true
    }

    fn take_hello(&mut self, now: Time, arrival: &Arrival, hello: &Hello, receiver: u32) {
        let range = (hello.sender >> 24) as u8;
        let known = self.air.find(arrival.source, arrival.destination, range);
        let Some(index) = known else {
            // Nobody here is connected to it: it asks again when somebody is.
            return self.counters.count(EngineCounter::DropAir);
        };
        let bundles = hello.features & self.air.features() & feature::BUNDLES != 0;
        let is_answer = hello.answers.is_some() && hello.answers == self.air.instance;
        if is_answer && self.air.peer(index).asking.is_some() {
            let can = hello.features & self.air.features() & NEEDED != 0;
            self.air.peer(index).asking = None;
            self.agree(index, can.then_some(hello.instance), hello.features, now);
        }
        if !hello.asks {
            // Who asked twice is answered twice.
            if !is_answer {
                self.counters.count(EngineCounter::DropAir);
            }
            return;
        }
        let peer = self.air.peer(index);
        peer.asked = Some(Asked {
            as_whom: receiver,
            instance: hello.instance,
        });
        // A stranger who makes it up lets the peer do what it does not do.
        peer.may_bundle |= bundles;
        self.air.call_at(now);
        if self.air.peer(index).agreed != Some(hello.instance) {
            self.ask_unless_asked(index, now);
        }
    }

    fn ask_unless_asked(&mut self, index: AirIndex, now: Time) {
        if self.air.peer(index).asking.is_none() {
            self.air.ask(index, now);
        }
    }

    fn take_report(&mut self, now: Time, arrival: &Arrival, report: &Report, records: Records<'_>) {
        let range = (report.sender >> 24) as u8;
        let known = (self.air).find(arrival.source, arrival.destination, range);
        let Some(index) = known.filter(|_| Some(report.instance) == self.air.instance) else {
            return self.counters.count(EngineCounter::DropAir);
        };
        if self.air.peer(index).agreed.is_none() {
            // It has heard of us, and we not of it.
            self.ask_unless_asked(index, now);
        }
        let peer = self.air.peer(index);
        let late = peer
            .number_taken
            .is_some_and(|taken| report.number.wrapping_sub(taken).cast_signed() <= 0);
        if late {
            return self.counters.count(EngineCounter::DropAir);
        }
        peer.number_taken = Some(report.number);
        self.counters.count(EngineCounter::AirReportsReceived);
        if report.pong != 0 {
            let held = Duration::from_micros(report.pong_held_us.into());
            peer.take_pong(now, report.pong, held);
        }
        let mut due = None;
        if report.ping != 0 {
            peer.pong = Some((report.ping, now));
            // How long it waits is said in the answer.
            due = Some(peer.report_soon(now));
        }
        let habits = (peer.rtt(), peer.told_within());
        let told = Told {
            at_us: report.at_us,
            received_bytes: report.received_bytes,
            marked_bytes: report.marked_bytes,
            missed_packets: report.missed_packets,
        };
        let bundling = peer.bundling.as_mut();
        if bundling.is_some_and(|bundling| bundling.take_report(now, told)) {
            self.counters.count(EngineCounter::AirBundlesStopped);
        }
        if let Some(due) = due {
            self.air.call_at(due);
        }
        for record in records {
            self.take_record(now, arrival, &record, habits);
        }
        self.with_pace(index, |pace| {
            pace.take_feedback(now, told, feedback(report));
        });
    }

    fn take_record(
        &mut self,
        now: Time,
        arrival: &Arrival,
        record: &Record<'_>,
        (rtt, told_within): (Duration, Duration),
    ) {
        let mut missing = [PsnRange {
            first: Psn::default(),
            packets: 0,
        }; RANGES_MAX];
        let mut count = 0;
        for ((first, packets), place) in record.missing().zip(&mut missing) {
            *place = PsnRange { first, packets };
            count += 1;
        }
        let told = Acknowledgement {
            expected: record.expected,
            missing: &missing[..count],
            rtt,
            told_within,
        };
        let Some(index) = self.qps.find(record.qpn) else {
            return self.counters.count(EngineCounter::DropAir);
        };
        let slot = self.qps.slot(index);
        if !slot.is_some_and(|slot| slot.accepts(arrival.source, arrival.destination)) {
            return self.counters.count(EngineCounter::DropAir);
        }
        self.with(index, |qp, host| {
            qp.handle_acknowledgement(now, &told, host)
        });
        self.settle(index, now);
    }
}

/// What a report says of the receiver's buffers.
fn feedback(report: &Report) -> Feedback {
    let reading = |bytes: u32, most: u32| Reading {
        occupancy: Occupancy {
            bytes: bytes.into(),
            capacity: Some(most.into()).filter(|&most: &u64| most > 0),
        },
        drained_bytes: report.received_bytes,
    };
    let application = reading(report.application_bytes, report.application_bytes_max);
    Feedback {
        at: Time::ZERO,
        socket: reading(report.socket_bytes, report.socket_bytes_max),
        application: (report.application_bytes_max > 0).then_some(application),
    }
}

fn occupancy(fill: QueueFill) -> Occupancy {
    Occupancy {
        bytes: fill.bytes,
        capacity: fill.capacity,
    }
}

/// What a process is called whose queue pairs' numbers are in this range.
fn id_of(range: u8) -> u32 {
    u32::from(range) << 24
}

impl Air {
    fn features(&self) -> u64 {
        let reports = self.offers & feature::SELECTIVE != 0;
        match self.rate_control {
            RateControl::Buffers | RateControl::Latency | RateControl::Dctcp if reports => {
                self.offers | feature::BUFFERS
            }
            RateControl::Buffers
            | RateControl::Latency
            | RateControl::Dctcp
            | RateControl::Dcqcn
            | RateControl::Window => self.offers,
        }
    }

    fn emit(&mut self, mad: &[u8; MAD_LEN], out: &mut [u8]) -> usize {
        let mut headers = Headers::new(Bth::new(Opcode::UdSendOnly, Qpn::GSI, self.next_psn));
        self.next_psn = self.next_psn.add(1);
        headers.deth = Some(Deth {
            qkey: GSI_QKEY,
            src_qpn: Qpn::GSI,
        });
        let start = headers.emit(out);
        out[start..start + MAD_LEN].copy_from_slice(mad);
        start + MAD_LEN
    }
}
