//! Air mode: what two airdma processes do beyond RoCEv2, once both have said that they can (`docs/protocol.md`).
//!
//! | the peer is | what that means |
//! |---|---|
//! | asked | it was told what we can do, and is told again every [`HELLO_INTERVAL`], [`HELLO_TRIES`] times in all |
//! | plain | it did not answer, as hosts of others do not, or can nothing of it: RoCEv2, until it says hello itself |
//! | agreed | reliable connections repeat selectively, and reports acknowledge in place of ACK packets |
//!
//! A peer is a process: an address, and the range of its queue pairs' numbers. Each end goes over to it for itself when it has
//! heard from the other, and both understand meanwhile what the other does: ACKs and NAKs are always taken.
//!
//! A report leaves four times in a round trip while packets come, and soon after packets were missed. One tells of as many
//! queue pairs as it has room for. The round trip is measured by pings, while something of ours is under way.

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
/// Longer round trips are those of a peer that was stopped, or lies.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Asked { tries: u32, again_at: Time },
    Plain,
    Agreed { instance: u64 },
}

struct AirPeer {
    address: IpAddr,
    /// The range of its queue pairs' numbers.
    range: u8,
    /// Which of our addresses it knows, as index in the GID table.
    source_index: u8,
    /// Queue pairs connected to it; none marks a free entry.
    users: Vec<u32>,
    standing: Standing,
    /// It asked what we can do, and called us so.
    hello_owed: Option<u32>,
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

    /// When [`Tables::expire_air`] wants to be called next.
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
        if peer.instance().is_some() && peer.report_at.is_none() {
            let ping_at = peer.ping.1 + peer.ping_interval();
            let by = peer.report_by(ping_at.max(now));
            self.call_at(by);
        }
    }

    fn find(&self, address: IpAddr, range: u8) -> Option<AirIndex> {
        let is_it = |peer: &AirPeer| {
            !peer.users.is_empty() && peer.address == address && peer.range == range
        };
        let index = self.peers.iter().position(is_it)?;
        Some(AirIndex(index as u32))
    }

    /// A queue pair connects to `number` at `address`.
    fn join(
        &mut self,
        now: Time,
        queue_pair: u32,
        address: IpAddr,
        number: Qpn,
        source_index: u8,
    ) -> Option<AirIndex> {
        self.instance?;
        let range = range_of(number);
        let index = self.find(address, range).unwrap_or_else(|| {
            let peer = AirPeer::new(now, address, range, source_index);
            let free = self.peers.iter().position(|peer| peer.users.is_empty());
            let index = free.unwrap_or(self.peers.len());
            match self.peers.get_mut(index) {
                Some(place) => *place = peer,
                None => self.peers.push(peer),
            }
            AirIndex(index as u32)
        });
        self.peer(index).users.push(queue_pair);
        self.call_at(now);
        Some(index)
    }

    fn leave(&mut self, index: AirIndex, queue_pair: u32) {
        let peer = self.peer(index);
        peer.users.retain(|&other| other != queue_pair);
        peer.owing.retain(|&other| other != queue_pair);
    }
}

impl AirPeer {
    fn new(now: Time, address: IpAddr, range: u8, source_index: u8) -> Self {
        AirPeer {
            address,
            range,
            source_index,
            users: Vec::new(),
            standing: Standing::Asked {
                tries: 0,
                again_at: now,
            },
            hello_owed: None,
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

    fn instance(&self) -> Option<u64> {
        match self.standing {
            Standing::Agreed { instance } => Some(instance),
            Standing::Asked { .. } | Standing::Plain => None,
        }
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
        if self.hello_owed.is_some() {
            return Some(Time::ZERO);
        }
        match self.standing {
            Standing::Asked { again_at, .. } => Some(again_at),
            Standing::Plain => None,
            Standing::Agreed { .. } => self.report_at,
        }
    }

    fn ping_interval(&self) -> Duration {
        self.rtt().clamp(PING_INTERVAL_MIN, RTT_MAX)
    }

    fn take_rtt(&mut self, sample: Duration) {
        if sample > RTT_MAX {
            return;
        }
        // As TCP smooths it (RFC 6298 2.3).
        self.rtt = Some(self.rtt.map_or(sample, |rtt| rtt * 7 / 8 + sample / 8));
    }
}

impl Tables {
    /// From now on peers are offered what goes beyond RoCEv2.
    pub(crate) fn offer_air(&mut self) {
        let instance = u64::from(self.random.next_u32()) << 32 | u64::from(self.random.next_u32());
        self.air.instance = Some(instance);
    }

    /// A queue pair was connected, and can do more if its peer can.
    pub(crate) fn join_air(&mut self, index: u32, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let number = slot.qp.attributes().dest_qpn;
        if let Some(connection) = &mut slot.connection {
            connection.air = self.air.join(
                now,
                index,
                connection.remote,
                number,
                connection.source_index,
            );
            if let Some(air) = connection.air
                && self.air.peer(air).instance().is_some()
            {
                slot.qp.set_selective(Some(&self.air.memory));
            }
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
        };
        let peer = self.air.peer(index);
        let receiver = id_of(peer.range);
        if let Some(sender) = peer.hello_owed.take() {
            return Some(air::hello(&Hello { sender, ..hello }, receiver));
        }
        if let Standing::Asked { tries, again_at } = peer.standing
            && again_at <= now
        {
            if tries == HELLO_TRIES {
                peer.standing = Standing::Plain;
                return None;
            }
            peer.standing = Standing::Asked {
                tries: tries + 1,
                again_at: now + HELLO_INTERVAL,
            };
            return Some(air::hello(
                &Hello {
                    asks: true,
                    ..hello
                },
                receiver,
            ));
        }
        let instance = peer.instance()?;
        if peer.report_at.is_none_or(|at| at > now) {
            return None;
        }
        Some(self.report(index, instance, sender, now))
    }

    fn report(&mut self, index: AirIndex, instance: u64, sender: u32, now: Time) -> [u8; MAD_LEN] {
        let under_way = self.is_under_way(index);
        self.air.number = self.air.number.wrapping_add(1).max(1);
        let number = self.air.number;
        let peer = &mut self.air.peers[index.0 as usize];
        let wants_ping = under_way && now.duration_since(peer.ping.1) >= peer.ping_interval();
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
            Some(now)
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
        if packet.payload.get(1) != Some(&air::AIR_CLASS) {
            return false;
        }
        let secret = packet
            .headers
            .deth
            .is_some_and(|deth| deth.qkey == GSI_QKEY);
        let is_datagram = packet.headers.bth.opcode == Opcode::UdSendOnly && secret;
        match air::parse(packet.payload) {
            Ok(message) if is_datagram && self.air.instance.is_some() => match message {
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
        let Some(index) = self.air.find(arrival.source, range) else {
            // Nobody here is connected to it: it asks again when somebody is.
            return self.counters.count(EngineCounter::DropAir);
        };
        let peer = self.air.peer(index);
        if hello.asks {
            peer.hello_owed = Some(receiver);
        }
        let selective = hello.features & FEATURES == FEATURES;
        let before = peer.standing;
        peer.standing = if selective {
            Standing::Agreed {
                instance: hello.instance,
            }
        } else {
            Standing::Plain
        };
        if peer.standing != before {
            peer.number_taken = None;
            peer.report_at = None;
            peer.owing.clear();
            let users = std::mem::take(&mut peer.users);
            let memory = selective.then(|| self.air.memory.clone());
            for &user in &users {
                if let Some(slot) = self.qps.slot(user) {
                    slot.qp.set_selective(memory.as_ref());
                }
            }
            self.air.peer(index).users = users;
        }
        self.air.call_at(now);
    }

    fn take_report(&mut self, now: Time, arrival: &Arrival, report: &Report, records: Records<'_>) {
        let known = self.air.find(arrival.source, (report.sender >> 24) as u8);
        let Some(index) = known.filter(|_| Some(report.instance) == self.air.instance) else {
            return self.counters.count(EngineCounter::DropAir);
        };
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
