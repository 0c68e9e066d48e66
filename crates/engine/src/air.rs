//! Air mode: what two airdma processes do beyond RoCEv2, once both have said that they can (`docs/protocol.md`).
//!
//! | the peer is | what that means |
//! |---|---|
//! | plain | it is not known, did not answer, as hosts of others do not, or can nothing of it: RoCEv2 |
//! | agreed | reliable connections repeat selectively, and reports acknowledge in place of ACK packets |
//!
//! It is asked when a queue pair is connected to it, every [`HELLO_INTERVAL`], [`HELLO_TRIES`] times in all, and when it asks or reports itself. Only
//! an answer that names our instance counts: nobody else can give it. What was agreed holds for the queue pairs that were connected when
//! it was said; the others wait for the next answer, since the process at the other end may be another one by then.
//!
//! A peer is a process: an address, seen from one of ours, and the range of its queue pairs' numbers. Each end goes over for itself
//! when it was answered, and both understand meanwhile what the other does: ACKs and NAKs are always taken.
//!
//! A report leaves four times in a round trip while packets come, and soon after packets were missed. One tells of as many
//! queue pairs as it has room for. The round trip is measured by pings, while something of ours is under way.

use crate::QpType;
use crate::counters::EngineCounter;
use crate::qp_table::Connection;
use crate::steering::range_of;
use crate::tables::Tables;
use airdma_port::Destination;
use airdma_transport::{Acknowledgement, Arrival, Owed, PsnRange, ReorderMemory, Time};
use airdma_wire::air::{self, Hello, Message, Record, Records, Report, ReportWriter, feature};
use airdma_wire::mad::{GSI_QKEY, MAD_LEN};
use airdma_wire::{Bth, Deth, Headers, Opcode, Packet, Psn, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

const FEATURES: u64 = feature::SELECTIVE;
const HELLO_INTERVAL: Duration = Duration::from_millis(200);
const HELLO_TRIES: u32 = 3;

/// For packets that came before their turn, of all queue pairs together: what a fast link has under way in a long round trip.
const REORDER_BYTES: usize = 32 << 20;

/// Before the first is measured.
const RTT_START: Duration = Duration::from_millis(2);
/// Reports of a peer are no closer together, whatever the round trip: each costs a system call at both ends.
const REPORT_INTERVAL_MIN: Duration = Duration::from_micros(100);
const REPORT_INTERVAL_MAX: Duration = Duration::from_millis(10);
const PING_INTERVAL_MIN: Duration = Duration::from_millis(5);
/// A ping that was not answered for so long is lost.
const PING_LOST: Duration = Duration::from_secs(1);
/// Nobody knows a round trip better than to this, and a peer that lies about how long it held a ping gains nothing.
const RTT_MIN: Duration = Duration::from_micros(200);
/// Longer ones are those of a peer that was stopped, or lies.
const RTT_MAX: Duration = Duration::from_secs(2);
/// Ranges of one queue pair in one report; the rest is told when these are filled.
const RANGES_MAX: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AirIndex(u32);

pub(crate) struct Air {
    peers: Vec<AirPeer>,
    /// Of this process, if it offers anything to peers.
    instance: Option<u64>,
    memory: ReorderMemory,
    /// No peer wants to be called before.
    due: Option<Time>,
    /// Of the last report to anybody. A peer may know us longer than we remember: its count must not begin again.
    number: u32,
    next_psn: Psn,
}

/// A question that was not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asking {
    tries: u32,
    again_at: Time,
}

/// A question of the peer's: what it called us, and its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    as_whom: u32,
    instance: u64,
}

struct AirPeer {
    address: IpAddr,
    /// Which of our addresses it knows.
    local: IpAddr,
    /// The range of its queue pairs' numbers.
    range: u8,
    /// Of `local` in the GID table.
    source_index: u8,
    /// Queue pairs connected to it; none marks a free entry.
    users: Vec<u32>,
    /// Its instance, if it has agreed.
    agreed: Option<u64>,
    asking: Option<Asking>,
    asked: Option<Asked>,
    /// Queue pairs that owe it an acknowledgement, each once.
    owing: VecDeque<u32>,
    report_at: Option<Time>,
    reported_at: Time,
    /// Of the last report that was taken.
    number_taken: Option<u32>,
    rtt: Option<Duration>,
    /// The last ping, which is the number of its report, and when it left.
    ping: (u32, Time),
    ping_answered: bool,
    /// Its last ping, and when it came, until it is answered.
    pong: Option<(u32, Time)>,
}

impl Air {
    /// Nothing is offered.
    pub(crate) fn new() -> Self {
        Air {
            peers: Vec::new(),
            instance: None,
            memory: ReorderMemory::new(REORDER_BYTES),
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

    /// Something is on its way to the peer: the round trip is to be known.
    pub(crate) fn note_under_way(&mut self, index: AirIndex, now: Time) {
        let peer = self.peer(index);
        if peer.agreed.is_some() && peer.report_at.is_none() {
            let ping_at = peer.ping.1 + peer.ping_interval();
            let by = peer.report_by(ping_at.max(now));
            self.call_at(by);
        }
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
        self.instance?;
        let (address, local) = (connection.remote, connection.local);
        let range = range_of(number);
        let index = self.find(address, local, range).unwrap_or_else(|| {
            let peer = AirPeer::new(address, local, range, connection.source_index);
            let free = self.peers.iter().position(|peer| peer.users.is_empty());
            let index = free.unwrap_or(self.peers.len());
            match self.peers.get_mut(index) {
                Some(place) => *place = peer,
                None => self.peers.push(peer),
            }
            AirIndex(index as u32)
        });
        self.peer(index).users.push(queue_pair);
        self.ask(index, now);
        Some(index)
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

    fn leave(&mut self, index: AirIndex, queue_pair: u32) {
        let peer = self.peer(index);
        peer.users.retain(|&other| other != queue_pair);
        peer.owing.retain(|&other| other != queue_pair);
    }
}

impl AirPeer {
    fn new(address: IpAddr, local: IpAddr, range: u8, source_index: u8) -> Self {
        AirPeer {
            address,
            local,
            range,
            source_index,
            users: Vec::new(),
            agreed: None,
            asking: None,
            asked: None,
            owing: VecDeque::new(),
            report_at: None,
            reported_at: Time::ZERO,
            number_taken: None,
            rtt: None,
            ping: (0, Time::ZERO),
            ping_answered: true,
            pong: None,
        }
    }

    fn rtt(&self) -> Duration {
        self.rtt.unwrap_or(RTT_START)
    }

    /// A report is to leave at this time, or sooner if one is due already; not too close to the last.
    fn report_by(&mut self, at: Time) -> Time {
        let at = at.max(self.reported_at + REPORT_INTERVAL_MIN);
        let by = self.report_at.map_or(at, |before| before.min(at));
        self.report_at = Some(by);
        by
    }

    /// When it wants to be called.
    fn due(&self) -> Option<Time> {
        if self.users.is_empty() {
            return None;
        }
        if self.asked.is_some() {
            return Some(Time::ZERO);
        }
        let again_at = self.asking.map(|asking| asking.again_at);
        let report_at = self.report_at.filter(|_| self.agreed.is_some());
        again_at.into_iter().chain(report_at).min()
    }

    fn ping_interval(&self) -> Duration {
        self.rtt().clamp(PING_INTERVAL_MIN, RTT_MAX)
    }

    fn take_rtt(&mut self, sample: Duration) {
        let sample = sample.clamp(RTT_MIN, RTT_MAX);
        // As TCP smooths it (RFC 6298 2.3).
        self.rtt = Some(self.rtt.map_or(sample, |rtt| rtt * 7 / 8 + sample / 8));
    }
}

impl Tables {
    /// From now on peers are offered what goes beyond RoCEv2.
    pub(crate) fn offer_air(&mut self) {
        let instance = u64::from(self.random.next_u32()) << 32 | u64::from(self.random.next_u32());
        // 0 is nobody's.
        self.air.instance = Some(instance.max(1));
    }

    /// A queue pair was connected: it can do more when its peer says so.
    pub(crate) fn join_air(&mut self, index: u32, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let number = slot.qp.attributes().dest_qpn;
        slot.qp.set_selective(None);
        if slot.qp.qp_type() == QpType::Rc
            && let Some(connection) = &mut slot.connection
        {
            connection.air = self.air.join(now, index, connection, number);
        }
    }

    pub(crate) fn leave_air(&mut self, index: u32, connection: &Connection) {
        if let Some(air) = connection.air {
            self.air.leave(air, index);
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
        let quarter = (peer.rtt() / 4).min(REPORT_INTERVAL_MAX);
        let at = match owed {
            Owed::Now => now,
            Owed::Soon => peer.reported_at.max(now) + quarter,
        };
        let by = peer.report_by(at);
        self.air.call_at(by);
    }

    /// Whether a message to a peer is due.
    pub(crate) fn has_air_due(&self, now: Time) -> bool {
        self.air.due.is_some_and(|due| due <= now)
    }

    /// Writes the next message to a peer into `out`.
    pub(crate) fn poll_air(&mut self, now: Time, out: &mut [u8]) -> Option<(usize, Destination)> {
        for index in 0..self.air.peers.len() {
            let peer = &self.air.peers[index];
            if peer.due().is_none_or(|due| due > now) {
                continue;
            }
            let index = AirIndex(index as u32);
            if let Some(mad) = self.next_message(index, now) {
                let peer = self.air.peer(index);
                let destination = Destination {
                    address: peer.address,
                    source_index: peer.source_index,
                    tos: 0,
                    hop_limit: 0,
                    flow_label: 0,
                };
                let len = self.air.emit(&mad, out);
                return Some((len, destination));
            }
        }
        self.air.due = self.air.peers.iter().filter_map(AirPeer::due).min();
        None
    }

    fn next_message(&mut self, index: AirIndex, now: Time) -> Option<[u8; MAD_LEN]> {
        let ours = self.air.instance?;
        // A process with very many queue pairs has several ranges: it is known by those of the queue pairs in question.
        let user = *self.air.peer(index).users.first()?;
        let sender = id_of(range_of(self.qps.slot(user)?.qp.qpn()));
        let hello = Hello {
            asks: false,
            features: FEATURES,
            sender,
            instance: ours,
            answers: None,
        };
        let peer = self.air.peer(index);
        let receiver = id_of(peer.range);
        if let Some(Asked { as_whom, instance }) = peer.asked.take() {
            let answer = Hello {
                sender: as_whom,
                answers: Some(instance),
                ..hello
            };
            return Some(air::hello(&answer, receiver));
        }
        if let Some(Asking { tries, again_at }) = peer.asking
            && again_at <= now
        {
            if tries == HELLO_TRIES {
                peer.asking = None;
                self.agree(index, None, now);
                return None;
            }
            peer.asking = Some(Asking {
                tries: tries + 1,
                again_at: now + HELLO_INTERVAL,
            });
            let question = Hello {
                asks: true,
                ..hello
            };
            return Some(air::hello(&question, receiver));
        }
        let instance = peer.agreed?;
        if peer.report_at.is_none_or(|at| at > now) {
            return None;
        }
        Some(self.report(index, instance, sender, now))
    }

    /// The peer has agreed, as this instance, or it is plain: so are all queue pairs that are connected to it now.
    fn agree(&mut self, index: AirIndex, agreed: Option<u64>, now: Time) {
        let memory = agreed.map(|_| self.air.memory.clone());
        let peer = self.air.peer(index);
        if peer.agreed != agreed {
            peer.number_taken = None;
            peer.report_at = None;
            peer.owing.clear();
        }
        peer.agreed = agreed;
        let users = std::mem::take(&mut peer.users);
        for &user in &users {
            if let Some(slot) = self.qps.slot(user) {
                slot.qp.set_selective(memory.as_ref());
            }
        }
        let peer = self.air.peer(index);
        peer.users = users;
        if agreed.is_some() {
            // Something may be under way already: then the round trip is to be known.
            let by = peer.report_by(now);
            self.air.call_at(by);
        }
    }

    fn report(&mut self, index: AirIndex, instance: u64, sender: u32, now: Time) -> [u8; MAD_LEN] {
        let under_way = self.is_under_way(index);
        self.air.number = self.air.number.wrapping_add(1).max(1);
        let number = self.air.number;
        let peer = &mut self.air.peers[index.0 as usize];
        // Who only receives has to know how often to tell.
        let active = under_way || !peer.owing.is_empty();
        // A second one would make the answer to the first worthless, where the round trip is longer than was thought.
        let patience = if peer.ping_answered {
            peer.ping_interval()
        } else {
            PING_LOST
        };
        let wants_ping = active && now.duration_since(peer.ping.1) >= patience;
        if wants_ping {
            peer.ping = (number, now);
            peer.ping_answered = false;
        }
        let (pong, since) = peer.pong.take().unwrap_or((0, now));
        let held = now.duration_since(since).as_micros();
        let mut writer = ReportWriter::new(&Report {
            instance,
            sender,
            number,
            ping: if wants_ping { peer.ping.0 } else { 0 },
            pong,
            pong_held_us: u32::try_from(held).unwrap_or(u32::MAX),
            ..Report::default()
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
        peer.reported_at = now;
        // While something is under way the round trip is to be known.
        peer.report_at = if !peer.owing.is_empty() {
            Some(now + REPORT_INTERVAL_MIN)
        } else if under_way {
            Some(now + peer.ping_interval())
        } else {
            None
        };
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
        let awaited = self.air.peer(index).asking.is_some();
        if awaited && hello.answers.is_some() && hello.answers == self.air.instance {
            let can = hello.features & FEATURES == FEATURES;
            self.air.peer(index).asking = None;
            return self.agree(index, can.then_some(hello.instance), now);
        }
        if !hello.asks {
            return self.counters.count(EngineCounter::DropAir);
        }
        let peer = self.air.peer(index);
        peer.asked = Some(Asked {
            as_whom: receiver,
            instance: hello.instance,
        });
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
        if report.pong != 0 && report.pong == peer.ping.0 && !peer.ping_answered {
            peer.ping_answered = true;
            let held = Duration::from_micros(report.pong_held_us.into());
            let sample = now.duration_since(peer.ping.1).saturating_sub(held);
            peer.take_rtt(sample);
        }
        let mut due = None;
        if report.ping != 0 {
            peer.pong = Some((report.ping, now));
            due = Some(peer.report_by(now));
        }
        let rtt = peer.rtt();
        if let Some(due) = due {
            self.air.call_at(due);
        }
        for record in records {
            self.take_record(now, arrival, &record, rtt);
        }
    }

    fn take_record(&mut self, now: Time, arrival: &Arrival, record: &Record<'_>, rtt: Duration) {
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

/// What a process is called whose queue pairs' numbers are in this range.
fn id_of(range: u8) -> u32 {
    u32::from(range) << 24
}

impl Air {
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
