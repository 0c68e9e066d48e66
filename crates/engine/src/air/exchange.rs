//! Messages between two processes: Hello, its answer, and reports; which one is due, its content,
//! and its effects.
//!
//! | to change | look at |
//! |---|---|
//! | the format of a message | [`airdma_wire::air`], and `docs/protocol.md` |
//! | its content, and the effects of an answer or a report | here |
//! | its time | [`super::peer`] |
//! | the rate to a peer by its reports | [`super::pace`] |

use super::bundling::Bundling;
use super::identity::tags;
use super::pace::{Pace, Told};
use super::peer::Asked;
use super::{Air, AirIndex, AirView, Caller};
use crate::config::RateControl;
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use crate::seal;
use crate::sharing::steering::range_of;
use crate::tables::qp_table::QpTable;
use airdma_port::Port;
use airdma_transport::rate::{Feedback, Occupancy, Reading};
use airdma_transport::{Arrival, PsnRange, Time};
use airdma_wire::air::{self, Hello, Report, ReportWriter, feature};
use airdma_wire::mad::{GSI_QKEY, MAD_LEN};
use airdma_wire::piece::Piece;
use airdma_wire::sealed::SEALED_OVERHEAD;
use airdma_wire::{Bth, Deth, Headers, IMMEDIATE_LEN, Neighbour, Opcode, PathMtu, Psn, Qpn, Reth};
use std::time::Duration;

/// Without any of these features there is nothing to agree on.
const NEEDED: u64 = feature::SELECTIVE | feature::SACK;

/// Shortest interval after the first of the Hellos that a peer's new instance, or its new payload,
/// causes.
const ASK_BY_HELLO_EVERY: Duration = Duration::from_millis(100);

/// Ranges of one queue pair in one report; the others are reported when these are filled.
pub(crate) const RANGES_MAX: usize = 23;

impl Air {
    /// A piece of a packet for a queue pair came. Returns the packet that it completes.
    #[cold]
    pub(crate) fn take_piece(
        &mut self,
        qps: &mut QpTable,
        index: QpIndex,
        piece: &Piece<'_>,
    ) -> Result<Option<Vec<u8>>, NotAgreed> {
        let slot = qps.slot(index).ok_or(NotAgreed)?;
        let air = slot.connection.and_then(|connection| connection.air);
        let has_tag = piece.header().is_ok_and(|bth| slot.qp.takes(&bth));
        let peer = self.peer(air.ok_or(NotAgreed)?);
        if !has_tag || peer.known.is_none() {
            return Err(NotAgreed);
        }
        Ok(peer.assembly.add(piece))
    }

    pub(super) fn next_message(
        &mut self,
        view: &mut AirView<'_>,
        index: AirIndex,
        now: Time,
        port: &mut dyn Port,
    ) -> Option<[u8; MAD_LEN]> {
        let ours = self.instance(index)?;
        // A process with very many queue pairs has several ranges; the one of the queue pairs
        // concerned identifies it.
        let user = *self.peers[index.place()].users.first()?;
        let sender = id_of(range_of(view.qps.slot(user)?.qp.qpn()));
        let hello = Hello {
            asks: false,
            long_payload: self.offered_payload(index) as u16,
            features: self.features(),
            sender,
            instance: ours,
            number: self.number,
            ..Hello::default()
        };
        // An invalid name of ours was forged: a question in that name would not be answered.
        let called = self.peer(index).asked.front().map(|asked| asked.as_whom);
        let called = called.filter(|&name| self.is_own_name(view.qps, index, name));
        let peer = self.peer(index);
        let receiver = id_of(peer.range.unwrap_or_default());
        if let Some(asked) = peer.asked.pop_front() {
            let asks = peer.asks_with_answer(now);
            let answer = Hello {
                asks,
                sender: called.unwrap_or(sender),
                answers: Some(asked.instance),
                nonce: peer.asking.map_or(0, |asking| asking.nonce),
                echo: asked.nonce,
                ..hello
            };
            return Some(air::hello(&answer, receiver));
        }
        if peer.asking.is_some_and(|asking| asking.again_at <= now) {
            let is_repeated = peer.ask_again(now);
            if !is_repeated && !self.is_silent_to_all(view.qps, index) {
                let peer = self.peer(index);
                peer.asking = None;
                self.agree(view, index, None, now);
                if !self.ask_once_more(index, now) {
                    self.let_go(view, index);
                }
                return None;
            }
            let peer = self.peer(index);
            if !is_repeated {
                peer.ask_later(now);
            }
            let question = Hello {
                asks: true,
                nonce: peer.asking.map_or(0, |asking| asking.nonce),
                ..hello
            };
            return Some(air::hello(&question, receiver));
        }
        let instance = peer.agreed?;
        if !peer.is_report_due(now) || self.waits_for_more(now) {
            return None;
        }
        let report = Report {
            instance,
            from: ours,
            sender,
            ..Report::default()
        };
        Some(self.report(view, index, report, now, port))
    }

    /// Whether all connections that expect anything of a peer which has agreed wait in vain: it is
    /// stopped, starved or gone. That it answers no question then says nothing.
    fn is_silent_to_all(&mut self, qps: &mut QpTable, index: AirIndex) -> bool {
        let peer = &self.peers[index.place()];
        let mut in_vain = false;
        peer.agreed.is_some()
            && peer.users.iter().all(|&user| {
                let Some(slot) = qps.slot(user) else {
                    return true;
                };
                let is_silent = slot.qp.silent_timers() > 0;
                in_vain |= is_silent;
                is_silent || slot.qp.in_flight_bytes() == 0
            })
            && in_vain
    }

    /// Whether a peer may call us by this name: the range of a queue pair connected to it.
    fn is_own_name(&mut self, qps: &mut QpTable, index: AirIndex, name: u32) -> bool {
        let users = &self.peers[index.place()].users;
        users.iter().any(|&user| {
            let slot = qps.slot(user);
            slot.is_some_and(|slot| id_of(range_of(slot.qp.qpn())) == name)
        })
    }

    /// Applies the peer's answer, to all queue pairs connected to it now: it has agreed, or is
    /// plain.
    fn agree(
        &mut self,
        view: &mut AirView<'_>,
        index: AirIndex,
        answer: Option<&Hello>,
        now: Time,
    ) {
        let agreed = answer.map(|answer| answer.instance);
        let memory = agreed.map(|_| self.peer(index).memory.clone());
        let instances = self.instance(index).zip(agreed);
        let offers = [answer.map_or(0, |answer| answer.features), self.features()];
        let both = offers[0] & offers[1];
        let by_acks = agreed.is_some() && !are_reported(offers);
        let paces = agreed.is_some() && !by_acks && both & feature::BUFFERS != 0;
        let bundles = agreed.is_some() && both & feature::BUNDLES != 0;
        self.counts_datagrams |= agreed.is_some() && !by_acks;
        let rate_control = self.rate_control;
        let peer = self.peer(index);
        peer.long_payload = answer.map_or(0, |answer| answer.long_payload.into());
        peer.answers_long_reads = both & feature::LONG_READS != 0;
        peer.takes_equal_lengths = both & feature::EQUAL_LENGTHS != 0;
        // Without an answer it may still accept what it agreed to, and long packets of messages in
        // progress have no other way on a narrow path.
        if answer.is_some() {
            peer.takes_pieces = both & feature::PIECES != 0;
        }
        let payload = self.payload_to(view.qps, index);
        let peer = &mut self.peers[index.place()];
        let is_new = peer.agreed != agreed;
        for &owing in peer.owing.iter().filter(|_| is_new) {
            if let Some(slot) = view.qps.slot(owing) {
                slot.owes_report = false;
            }
        }
        peer.note_agreed(agreed);
        if let Some(answer) = answer {
            peer.note_number(answer.number, now);
        }
        peer.agree_on_bundles(is_new, bundles, !by_acks, || Bundling::new(payload, now));
        if is_new && agreed.is_some() {
            view.counters.count(EngineCounter::AirAgreed);
        }
        let users = std::mem::take(&mut peer.users);
        // A rate that follows CNPs stays if buffers are not reported.
        let goes_on = if paces {
            !is_new && peer.tells_buffers()
        } else {
            !peer.tells_buffers()
        };
        let before = if goes_on {
            None
        } else {
            let pace = paces.then(|| Pace::new(rate_control, payload, now));
            let pace = pace.flatten();
            std::mem::replace(&mut peer.pace, pace)
        };
        let paced = peer.tells_buffers();
        for waiting in before.into_iter().flat_map(Pace::disband) {
            view.give_turn(waiting);
        }
        for &user in &users {
            if let Some(slot) = view.qps.slot(user) {
                slot.qp.set_selective(memory.as_ref());
                slot.qp.tell_by_acks(by_acks);
                slot.delays_acks = agreed.is_some();
                if let Some((ours, theirs)) = instances {
                    let (own, other) = (slot.qp.qpn(), slot.qp.attributes().dest_qpn);
                    slot.qp.set_tags(tags([ours, theirs], own, other));
                }
            }
            self.choose_payloads(view.qps, index, user);
            view.change_window(user, paced.then_some(index));
        }
        let peer = self.peer(index);
        peer.users = users;
        peer.is_told_by_acks = by_acks;
        let window = peer.pace.as_ref().map(Pace::window);
        if agreed.is_some() && !by_acks {
            // Packets may be in flight already: then the round trip must be measured.
            let by = peer.report_now(now);
            self.call_at(index, by);
        }
        if let Some(window) = window {
            self.grant(view, index, window);
        }
    }

    /// Chooses the payload of a queue pair's packets to a peer, and of the peer's to it. More than
    /// the path MTU is used only on the own link: the MTU behind a router is unknown. A program
    /// that asked for less than the interface's MTU gets that.
    fn choose_payloads(&mut self, qps: &mut QpTable, index: AirIndex, user: QpIndex) {
        let peer = &self.peers[index.place()];
        let ours = self.long_payload(peer.address);
        // In whole words, so that consecutive packets have no padding.
        let plain = self.offered_payload(index).min(peer.long_payload) & !3;
        let cuts = peer.takes_pieces && plain < ours;
        let answers = peer.answers_long_reads;
        let equal = peer.takes_equal_lengths;
        let usual = PathMtu::for_interface_mtu(self.interface_mtu);
        if let Some(slot) = qps.slot(user) {
            let on_link = slot.connection.is_some_and(|connection| connection.on_link);
            let is_usual = Some(slot.qp.attributes().path_mtu) == usual;
            let path_mtu = slot.qp.attributes().path_mtu;
            let (both, cut_above) = lengths(plain, slot.seal.is_some(), cuts, path_mtu);
            let sent = if on_link && is_usual { both } else { 0 };
            slot.qp.set_equal_lengths(equal);
            slot.qp.set_long_payloads(ours, sent, answers);
            slot.cut_above = cut_above;
        }
    }

    /// Payload of full packets to a peer.
    fn payload_to(&mut self, qps: &mut QpTable, index: AirIndex) -> u32 {
        let user = self.peer(index).users.first().copied();
        if let Some(user) = user {
            self.choose_payloads(qps, index, user);
        }
        let slot = user.and_then(|user| qps.slot(user));
        slot.map_or(PathMtu::M1024.bytes(), |slot| slot.qp.payload_max())
    }

    /// Applies a new MTU of the interface. Peers are told with the next Hello, and packets carry
    /// the path MTU until that is answered; the earlier payload is still accepted.
    pub(crate) fn note_interface_mtu(&mut self, qps: &mut QpTable, mtu: u32, now: Time) {
        self.interface_mtu = mtu;
        for index in 0..self.peers.len() {
            let index = AirIndex::from_place(index);
            if self.peer(index).agreed.is_some() {
                self.ask_anew(qps, index, now);
            }
        }
    }

    /// Starts a new agreement on the payload.
    pub(super) fn ask_anew(&mut self, qps: &mut QpTable, index: AirIndex, now: Time) {
        // The peer may use our offer before its answer arrives here.
        let peer = &self.peers[index.place()];
        let ours = self.long_payload(peer.address);
        let both = self.offered_payload(index).min(peer.long_payload);
        let cuts = peer.takes_pieces && both < ours;
        for user in self.peer(index).users.clone() {
            if let Some(slot) = qps.slot(user) {
                slot.qp.set_long_payloads(ours, 0, false);
                if cuts {
                    slot.cut_above = cut_above(slot.qp.attributes().path_mtu, both);
                }
            }
        }
        self.ask_for_another(index, now);
    }

    /// A connection has its keys: earlier questions were lost.
    pub(crate) fn ask_sealed(&mut self, qps: &mut QpTable, index: QpIndex, now: Time) {
        let slot = qps.slot(index);
        let air = slot.and_then(|slot| slot.connection?.air);
        if let Some(air) = air
            && self.offers_more()
            && self.peer(air).agreed.is_none()
        {
            self.ask(air, now);
        }
    }

    /// Whether peers are asked for reports, and for a rate by them.
    pub(crate) fn asks_for_air(&self) -> bool {
        self.offers & feature::REPORTS != 0
    }

    /// Whether peers are offered more than RoCEv2.
    pub(crate) fn offers_more(&self) -> bool {
        self.identity.is_some()
    }

    fn report(
        &mut self,
        view: &mut AirView<'_>,
        index: AirIndex,
        report: Report,
        now: Time,
        port: &mut dyn Port,
    ) -> [u8; MAD_LEN] {
        let under_way = self.is_under_way(view.qps, index);
        let application = self.application_buffers(view.qps, index);
        view.counters.count(EngineCounter::AirReportsSent);
        self.number = self.number.wrapping_add(1).max(1);
        let number = self.number;
        let peer = &mut self.peers[index.place()];
        // A receiver without requests needs to know how often to report, too.
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
            let Some(slot) = view.qps.slot(owing) else {
                continue;
            };
            slot.owes_report = false;
            let ranges = &mut missing[..room.min(RANGES_MAX)];
            let number = slot.qp.attributes().dest_qpn;
            if let Some((expected, count)) = slot.qp.take_report(ranges) {
                let ranges = ranges[..count].iter();
                let ranges = ranges.map(|range| (range.first, range.packets));
                writer.add(number, expected, ranges);
            }
        }
        peer.reported(now, under_way);
        writer.finish(id_of(peer.range.unwrap_or_default()))
    }

    fn is_under_way(&mut self, qps: &mut QpTable, index: AirIndex) -> bool {
        let users = &self.peers[index.place()].users;
        users.iter().any(|&user| {
            let slot = qps.slot(user);
            slot.is_some_and(|slot| slot.qp.in_flight_bytes() > 0)
        })
    }

    /// Whether a message came in the peer's way: sealed by a connection to it, if there is one.
    fn comes_as_agreed(
        &mut self,
        qps: &mut QpTable,
        index: AirIndex,
        carrier: Option<QpIndex>,
    ) -> bool {
        match carrier {
            None => !self.peer(index).is_sealed,
            Some(carrier) => {
                let slot = qps.slot(carrier);
                let connection = slot.and_then(|slot| slot.connection);
                connection.is_some_and(|connection| connection.air == Some(index))
            }
        }
    }

    pub(crate) fn take_hello(
        &mut self,
        view: &mut AirView<'_>,
        now: Time,
        arrival: &Arrival,
        hello: &Hello,
        receiver: u32,
        carrier: Option<QpIndex>,
    ) {
        let range = (hello.sender >> 24) as u8;
        let caller = Caller {
            address: arrival.source,
            local: arrival.destination,
            range,
        };
        let found = self.find_caller(view, caller, hello.asks, now);
        let Some(index) = found.filter(|&index| self.comes_as_agreed(view.qps, index, carrier))
        else {
            // Without a connected queue pair here: it asks again, or is asked, once there is one.
            return view.counters.count(EngineCounter::DropAir);
        };
        let bundles = hello.features & self.features() & feature::BUNDLES != 0;
        // No other host knows either.
        let is_ours = hello.answers.is_some() && hello.answers == self.instance(index);
        let peer = self.peer(index);
        peer.has_spoken |= is_ours;
        let asking = peer.asking;
        let is_answer = is_ours && asking.is_some_and(|asking| asking.nonce == hello.echo);
        if is_answer {
            let can = hello.features & self.features() & NEEDED != 0;
            let answer = Some(hello).filter(|_| can);
            let peer = self.peer(index);
            peer.asking = None;
            peer.incompatible = (!can).then_some(hello.instance);
            self.agree(view, index, answer, now);
            self.ask_once_more(index, now);
        }
        if !hello.asks {
            // Each repetition of a question is answered.
            if !is_ours {
                view.counters.count(EngineCounter::DropAir);
            }
            return;
        }
        let peer = self.peer(index);
        let is_noted = peer.note_question(Asked {
            as_whom: receiver,
            instance: hello.instance,
            nonce: hello.nonce,
        });
        if !is_noted {
            view.counters.count(EngineCounter::DropAir);
        }
        let peer = self.peer(index);
        // A forger only makes the peer's bundles acceptable.
        peer.may_bundle |= bundles;
        self.call_at(index, now);
        let peer = self.peer(index);
        let takes_another = peer.long_payload != u32::from(hello.long_payload);
        // To ask it again would make it ask again.
        if ![peer.agreed, peer.incompatible].contains(&Some(hello.instance)) {
            self.ask_by_hello(index, now);
        } else if peer.agreed.is_some() && takes_another && self.ask_by_hello(index, now) {
            self.peer(index).long_payload = hello.long_payload.into();
            self.ask_anew(view.qps, index, now);
        }
    }

    /// The peer that sent a message; one that no queue pair has joined, too, if they are to `join`
    /// it.
    fn find_caller(
        &mut self,
        view: &mut AirView<'_>,
        caller: Caller,
        joins: bool,
        now: Time,
    ) -> Option<AirIndex> {
        let ends = (caller.address, caller.local);
        let find = |air: &Air| air.directory.find(ends, Some(caller.range));
        if joins && find(self).is_none() {
            self.join_caller(view, caller, now);
        }
        find(self)
    }

    fn ask_unless_asked(&mut self, index: AirIndex, now: Time) {
        if self.peer(index).asking.is_none() {
            self.ask(index, now);
        }
    }

    /// Whether the question that a Hello causes is due now. Any host can have sent the Hello: the
    /// first question is due at once, further ones not more often than [`ASK_BY_HELLO_EVERY`].
    fn ask_by_hello(&mut self, index: AirIndex, now: Time) -> bool {
        let peer = self.peer(index);
        if peer.asking.is_some() {
            return false;
        }
        let last = peer.asked_by_hello;
        let due = last.map_or(now, |last| now.max(last + ASK_BY_HELLO_EVERY));
        peer.asked_by_hello = Some(due);
        self.ask(index, now);
        if let Some(asking) = &mut self.peer(index).asking {
            asking.again_at = due;
        }
        self.call_at(index, due);
        due == now
    }

    /// Takes a report; `None` if it is ignored. Its records come next, then [`Air::take_feedback`].
    pub(crate) fn take_report(
        &mut self,
        view: &mut AirView<'_>,
        now: Time,
        arrival: &Arrival,
        report: &Report,
        carrier: Option<QpIndex>,
    ) -> Option<TakenReport> {
        let range = (report.sender >> 24) as u8;
        let caller = Caller {
            address: arrival.source,
            local: arrival.destination,
            range,
        };
        let ours = self.instance_for(caller.address, caller.local);
        let knows_us = Some(report.instance) == ours;
        let known = self.find_caller(view, caller, knows_us, now);
        let known =
            known.filter(|&index| knows_us && self.comes_as_agreed(view.qps, index, carrier));
        let Some(index) = known else {
            view.counters.count(EngineCounter::DropAir);
            return None;
        };
        self.prove(index, now);
        let peer = self.peer(index);
        // Until the peer has answered once, our answer alone may be its agreement: then that is
        // enough.
        let is_known = peer.known.is_none_or(|known| known == report.from);
        let is_taken = is_known && peer.take_number(report.number, now);
        // It has agreed and we have not; or none of its reports arrives in order.
        if peer.agreed != Some(report.from) || peer.is_silent(now) {
            self.ask_unless_asked(index, now);
        }
        if !is_taken {
            view.counters.count(EngineCounter::DropAir);
            return None;
        }
        let peer = self.peer(index);
        view.counters.count(EngineCounter::AirReportsReceived);
        if report.pong != 0 {
            let held = Duration::from_micros(report.pong_held_us.into());
            peer.take_pong(now, report.pong, held);
        }
        let mut due = None;
        if report.ping != 0 {
            peer.pong = Some((report.ping, now));
            // The answer has its delay.
            due = Some(peer.report_soon(now));
        }
        let (rtt, told_within) = (peer.rtt(), peer.told_within());
        let told = Told {
            at_us: report.at_us,
            received_bytes: report.received_bytes,
            marked_bytes: report.marked_bytes,
            missed_packets: report.missed_packets,
        };
        let bundling = peer.bundling.as_mut();
        if bundling.is_some_and(|bundling| bundling.take_report(now, told)) {
            view.counters.count(EngineCounter::AirBundlesStopped);
        }
        if let Some(due) = due {
            self.call_at(index, due);
        }
        Some(TakenReport {
            peer: index,
            told,
            rtt,
            told_within,
        })
    }

    /// Adapts the rate to the peer, after the records of its report.
    pub(crate) fn take_feedback(
        &mut self,
        view: &mut AirView<'_>,
        taken: &TakenReport,
        report: &Report,
        now: Time,
    ) {
        self.with_pace(view, taken.peer, |pace| {
            pace.take_feedback(now, taken.told, feedback(report));
        });
    }
}

/// A packet is of a form that was not agreed on with its sender.
pub(crate) struct NotAgreed;

/// A report that counts.
pub(crate) struct TakenReport {
    peer: AirIndex,
    told: Told,
    /// Round trip to the peer.
    pub(crate) rtt: Duration,
    /// Longest delay of the peer's reports.
    pub(crate) told_within: Duration,
}

/// Feedback on the receiver's buffers, from a report.
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

/// Length (BTH to pad) of the longest packet that goes whole on a path with this MTU, to a peer
/// that accepts this payload.
fn cut_above(path_mtu: PathMtu, payload: u32) -> usize {
    let usual = Reth::LEN as u32 + path_mtu.bytes();
    Bth::LEN + IMMEDIATE_LEN + SEALED_OVERHEAD + usual.max(payload) as usize
}

/// The payload of long packets to a peer that accepts `plain` in the clear, and the length above
/// which packets leave in pieces if the path `cuts` them.
fn lengths(plain: u32, seals: bool, cuts: bool, path_mtu: PathMtu) -> (u32, usize) {
    let payload = if seals {
        seal::long_payload(plain)
    } else {
        plain
    };
    let cut_above = cuts.then(|| cut_above(path_mtu, payload));
    (payload, cut_above.unwrap_or(usize::MAX))
}

/// Whether two ends with these features report, or else acknowledge by ACK packets with what is
/// missing.
fn are_reported([one, other]: [u64; 2]) -> bool {
    let both = one & other;
    let prefer = (one | other) & feature::REPORTS != 0 || both & feature::SACK == 0;
    both & feature::SELECTIVE != 0 && prefer
}

/// Process id of a range of queue pair numbers.
fn id_of(range: u8) -> u32 {
    u32::from(range) << 24
}

impl Air {
    /// The largest payload to us, and from us to this address.
    pub(super) fn long_payload(&self, address: Neighbour) -> u32 {
        airdma_wire::long_payload(self.interface_mtu, address)
    }

    /// The largest payload to us that the peer is told.
    fn offered_payload(&self, index: AirIndex) -> u32 {
        let peer = &self.peers[index.place()];
        match peer.narrow_until {
            Some(_) => 0,
            None => self.long_payload(peer.address),
        }
    }

    fn features(&self) -> u64 {
        if self.offers & NEEDED == 0 {
            return self.offers;
        }
        let reports = self.offers & feature::SELECTIVE != 0;
        let buffers = match self.rate_control {
            RateControl::Buffers | RateControl::Latency | RateControl::Dctcp if reports => {
                feature::BUFFERS
            }
            RateControl::Buffers | RateControl::Latency | RateControl::Dctcp => 0,
            RateControl::Dcqcn | RateControl::Window => 0,
        };
        let always = feature::LONG_READS | feature::EQUAL_LENGTHS | feature::PIECES;
        self.offers | always | buffers
    }

    pub(crate) fn emit(&mut self, mad: &[u8; MAD_LEN], out: &mut [u8]) -> usize {
        let psn = self.next_psn;
        self.next_psn = psn.add(1);
        emit_message(Qpn::GSI, psn, mad, out)
    }
}

/// Writes a management datagram to a queue pair.
pub(super) fn emit_message(to: Qpn, psn: Psn, mad: &[u8; MAD_LEN], out: &mut [u8]) -> usize {
    let mut headers = Headers::new(Bth::new(Opcode::UdSendOnly, to, psn));
    headers.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qpn: Qpn::GSI,
    });
    let start = headers.emit(out);
    out[start..start + MAD_LEN].copy_from_slice(mad);
    start + MAD_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that may have to be cut do not leave in runs.
    #[test]
    fn sealed_packets_are_cut_on_a_narrow_path_only() {
        let of = |plain, seals, cuts| lengths(plain, seals, cuts, PathMtu::M1024);
        assert_eq!(of(1452, false, false), (1452, usize::MAX));
        assert_eq!(of(1452, true, false), (1420, usize::MAX));
        let (payload, cut_above) = of(1200, true, true);
        assert_eq!(
            cut_above,
            Bth::LEN + IMMEDIATE_LEN + SEALED_OVERHEAD + payload as usize
        );
    }
}
