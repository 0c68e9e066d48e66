//! Air mode: what two airdma processes do beyond RoCEv2, once both have said that they can (`docs/protocol.md`).
//!
//! | the peer is | what that means |
//! |---|---|
//! | plain | it is not known, did not answer, as hosts of others do not, or can nothing of it: RoCEv2 |
//! | agreed | reliable connections repeat selectively, and reports acknowledge in place of ACK packets |
//!
//! Who begins to ask is one whose interface is wireless, or whose user says so; others answer, and then ask, too ([`AirMode`]).
//!
//! A peer is asked when a queue pair is connected to it, again after each of [`peer::HELLO_AGAIN`], and when it asks or reports itself; an answer to its own question
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
//!
//! Here is who is a peer, which queue pairs share it, and when it wants to be called. What is said to it and what follows from what it says
//! is in [`exchange`], when it is said in [`peer`], how fast it is sent to in [`pace`], whether in bundles in [`bundling`], congestion
//! notifications in [`congestion`], and what programs say of their own buffers in [`application`].

mod application;
mod bundling;
mod congestion;
mod exchange;
mod identity;
mod pace;
mod peer;
mod presence;
mod view;

pub(crate) use exchange::RANGES_MAX;
pub use pace::RateControl;
pub(crate) use pace::Weight;
pub(crate) use peer::Arrived;
pub(crate) use view::AirView;

use crate::QpType;
use crate::index::{AirIndex, QpIndex};
use crate::random::Random;
use crate::sharing::steering::range_of;
use crate::tables::qp_table::{Connection, QpTable};
use airdma_port::{Destination, Port, QueueFill};
use airdma_transport::rate::{Occupancy, Rate};
use airdma_transport::{ReorderMemory, Time};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{Neighbour, Psn, Qpn};
use identity::Identity;
use pace::Pace;
use peer::{AirPeer, Asking};
use std::collections::VecDeque;
use std::time::Duration;

/// For packets that came before their turn, of all queue pairs together: half of it, which one peer may have, is what a fast link has under way in a
/// long round trip.
const REORDER_BYTES_MAX: usize = 32 << 20;

/// Of an interface that does not say how fast it is.
const LINE_RATE_UNKNOWN: Rate = Rate::from_bits_per_s(10_000_000_000);

/// Who were heard of last, though no queue pair was connected to them.
const CALLERS_MAX: usize = 16;
/// A host that does not keep up with what comes says so after this time.
const TAKING_IN_MAX: Duration = Duration::from_millis(1);
/// Queue pairs are looked through for one no more often.
const SEEKING_INTERVAL: Duration = Duration::from_millis(1);

/// Who begins to speak of what goes beyond RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AirMode {
    /// Nobody: nothing is offered.
    Off,
    /// The peer.
    Answers,
    /// We do.
    Asks,
}

/// A process, as seen from one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) address: Neighbour,
    pub(super) local: Neighbour,
    pub(super) range: u8,
}

pub(crate) struct Air {
    peers: Vec<AirPeer>,
    /// Of this process, if it offers anything to peers.
    identity: Option<Identity>,
    /// Peers with users that have not proven to be there.
    unproven: u32,
    mode: AirMode,
    /// What is offered, but for what comes with the rate control.
    offers: u64,
    /// Who asked last, while only answers are given.
    callers: VecDeque<Caller>,
    /// When queue pairs are looked through again for one.
    sought_again_at: Time,
    memory: ReorderMemory,
    rate_control: RateControl,
    /// Of the interface.
    line_rate: Rate,
    interface_mtu: u32,
    /// Since when packets that have come wait to be taken in.
    more_waits: Option<Time>,
    /// Queue pairs whose peers are to get a CNP.
    notifies: VecDeque<QpIndex>,
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
            identity: None,
            unproven: 0,
            mode: AirMode::Off,
            offers: 0,
            callers: VecDeque::new(),
            sought_again_at: Time::ZERO,
            memory: ReorderMemory::new(REORDER_BYTES_MAX),
            rate_control: RateControl::default(),
            line_rate: LINE_RATE_UNKNOWN,
            interface_mtu: 0,
            more_waits: None,
            notifies: VecDeque::new(),
            due: None,
            number: 0,
            next_psn: Psn::default(),
        }
    }

    /// When [`Air::poll_transmit`] wants to be called next.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// The round at this time took in as much as it may, and left something; or all that was there.
    pub(crate) fn note_waiting(&mut self, at: Option<Time>) {
        self.more_waits = at.and(self.more_waits.or(at));
    }

    /// Whether peers are told nothing yet, since that would soon be wrong: what has just come is no backlog, and fills gaps, or shows more of them.
    fn waits_for_more(&self, now: Time) -> bool {
        let since = self.more_waits;
        since.is_some_and(|since| now.duration_since(since) < TAKING_IN_MAX)
    }

    fn call_at(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn peer(&mut self, index: AirIndex) -> &mut AirPeer {
        &mut self.peers[index.place()]
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
        asks: (QpIndex, Weight),
        wanted: u64,
        waits: &mut bool,
        now: Time,
    ) -> Option<u64> {
        let peer = &mut self.peers[index.place()];
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
        let peer = &self.peers[index.place()];
        let pace = peer.pace.as_ref();
        pace.map_or(wanted, |pace| pace.traffic_class(wanted))
    }

    /// A queue pair sends without asking the pacer, whether it waited in line or had the turn. Whose turn it is now, if it had it.
    pub(crate) fn pass(
        &mut self,
        index: AirIndex,
        queue_pair: QpIndex,
        waited: bool,
    ) -> Option<QpIndex> {
        self.peer(index).pace.as_mut()?.pass(queue_pair, waited)
    }

    /// The one who waits for the pacer, to be asked again what it wants.
    pub(crate) fn ask_again(&mut self, index: AirIndex) -> Option<QpIndex> {
        self.peer(index).pace.as_mut()?.ask_again()
    }

    /// Who comes next of those who leave out of turn, if one just did, see [`Pace::next_beside`].
    pub(crate) fn next_beside(&mut self, index: AirIndex) -> Option<QpIndex> {
        self.peer(index).pace.as_mut()?.next_beside()
    }

    /// One that was admitted has sent something, see [`Pace::sent`]. Who is called, if its turn is over.
    pub(crate) fn sent(
        &mut self,
        index: AirIndex,
        queue_pair: QpIndex,
        now: Time,
        sent: (u64, u64),
        has_more: bool,
    ) -> Option<QpIndex> {
        let pace = self.peer(index).pace.as_mut()?;
        let next = pace.sent(queue_pair, now, sent, has_more);
        if let Some(due) = pace.due() {
            self.call_at(due);
        }
        next
    }

    fn find(&self, address: Neighbour, local: Neighbour, range: Option<u8>) -> Option<AirIndex> {
        let is_it = |peer: &AirPeer| {
            let ends = (peer.address, peer.local, peer.range);
            !peer.users.is_empty() && ends == (address, local, range)
        };
        let index = self.peers.iter().position(is_it)?;
        Some(AirIndex::from_place(index))
    }

    /// A queue pair is connected: to `number`, if it is of the service to which something is offered.
    fn join(
        &mut self,
        now: Time,
        queue_pair: QpIndex,
        connection: &Connection,
        number: Option<Qpn>,
        is_there: bool,
    ) -> Option<AirIndex> {
        let (address, local) = (connection.remote, connection.local);
        let offers = self.identity.is_some() && number.is_some();
        let range = number.filter(|_| offers).map(range_of);
        let caller = range.map(|range| Caller {
            address,
            local,
            range,
        });
        let own = self.find(address, local, range);
        let has_called = caller.is_some_and(|caller| self.callers.contains(&caller));
        let called = self.mode == AirMode::Asks || own.is_some() || has_called;
        let controls = self.rate_control == RateControl::Dcqcn;
        let speaks = offers && called;
        // A host of which nothing but the rate to it is minded does not speak.
        let rated = self.find(address, local, None).filter(|_| !speaks);
        let index = match own.or(rated) {
            Some(index) => index,
            None if speaks || controls => self.add(connection, range),
            None => return None,
        };
        let line_rate = self.line_rate;
        let peer = self.peer(index);
        peer.users.push(queue_pair);
        if is_there {
            self.prove(index, now);
        }
        let peer = self.peer(index);
        if controls && peer.pace.is_none() {
            peer.pace = Some(Pace::dcqcn(line_rate, now));
        }
        if speaks && peer.range == range {
            self.ask(index, now);
        }
        Some(index)
    }

    /// Who asks is asked when somebody is connected to it. The one that was heard of last is forgotten last.
    fn note_caller(&mut self, caller: Caller) {
        self.callers.retain(|other| *other != caller);
        self.callers.truncate(CALLERS_MAX - 1);
        self.callers.push_front(caller);
    }

    /// A new peer, which has no users yet.
    fn add(&mut self, connection: &Connection, range: Option<u8>) -> AirIndex {
        let ends = (connection.remote, connection.local);
        // A host has one share, whatever processes it says that it has.
        let mut used = self.peers.iter().filter(|peer| !peer.users.is_empty());
        let other = used.find(|peer| peer.address == connection.remote);
        let memory = other.map_or_else(|| self.memory.for_peer(), |peer| peer.memory.clone());
        let peer = AirPeer::new(ends, range, connection.source_index, memory);
        self.unproven += 1;
        let free = self.peers.iter().position(|peer| peer.users.is_empty());
        let index = free.unwrap_or(self.peers.len());
        match self.peers.get_mut(index) {
            Some(place) => *place = peer,
            None => self.peers.push(peer),
        }
        AirIndex::from_place(index)
    }

    /// The peer is to be asked what it can do, once it has proven to be there.
    fn ask(&mut self, index: AirIndex, now: Time) {
        let Some(nonce) = self.identity.as_mut().map(Identity::nonce) else {
            return;
        };
        let peer = self.peer(index);
        if !peer.is_proven {
            peer.wants_asking = true;
            return;
        }
        peer.asking = Some(Asking {
            tries: 0,
            again_at: now,
            nonce,
        });
        self.call_at(now);
    }

    /// The port is gone: nobody will be told anything.
    pub(crate) fn stop(&mut self) {
        self.identity = None;
        self.due = None;
    }

    /// Whose turn it is to send now, if it was the turn of the one that leaves.
    fn leave(&mut self, index: AirIndex, queue_pair: QpIndex) -> Option<QpIndex> {
        let peer = self.peer(index);
        peer.users.retain(|&other| other != queue_pair);
        peer.owing.retain(|&other| other != queue_pair);
        let is_over = peer.users.is_empty() && !peer.is_proven;
        self.unproven -= u32::from(is_over);
        let peer = self.peer(index);
        peer.pace.as_mut()?.leave(queue_pair)
    }
}

impl Air {
    /// Peers whose rate is controlled are sent to as fast as this says, by an interface of this rate if that is known.
    pub(crate) fn control_rate(&mut self, rate_control: RateControl, line_rate: Option<Rate>) {
        self.rate_control = rate_control;
        self.line_rate = line_rate.unwrap_or(LINE_RATE_UNKNOWN);
    }

    /// From now on peers are offered these features beyond RoCEv2.
    pub(crate) fn offer(&mut self, features: u64, mode: AirMode, random: &mut Random) {
        self.mode = self.mode.max(mode);
        self.offers |= features;
        (self.identity).get_or_insert_with(|| Identity::draw(random));
    }

    /// A queue pair was connected: it can do more when its peer says so.
    pub(crate) fn join_air(&mut self, view: &mut AirView<'_>, index: QpIndex, now: Time) {
        let Some(slot) = view.qps.slot(index) else {
            return;
        };
        let number = slot.qp.attributes().dest_qpn;
        slot.qp.set_selective(None);
        // What is offered is offered to reliable connections alone.
        let number = (slot.qp.qp_type() == QpType::Rc).then_some(number);
        let joins = number.is_some() || self.mode != AirMode::Asks;
        let (connection, local) = (slot.connection, slot.qp.qpn());
        let is_there = connection.is_some_and(|connection| {
            number.is_none_or(|number| self.is_there(view, &connection, local, number))
        });
        let Some(slot) = view.qps.slot(index) else {
            return;
        };
        if joins && let Some(connection) = &mut slot.connection {
            connection.air = self.join(now, index, connection, number, is_there);
            if let Some(air) = connection.air
                && slot.seal.is_some()
            {
                self.peer(air).is_sealed = true;
            }
            if number.is_some() && self.identity.is_some() {
                // The peer may go over before us, by what we said for another queue pair. What it takes it says with its answer.
                let taken = self.long_payload(connection.remote);
                slot.qp.set_long_payloads(taken, 0, false);
            }
        }
    }

    /// A process speaks to us that is nobody's peer: the queue pairs that are connected to it join it. Not for each of very many that
    /// make themselves up.
    fn join_caller(&mut self, view: &mut AirView<'_>, caller: Caller, now: Time) {
        if self.mode != AirMode::Answers || self.sought_again_at > now {
            return;
        }
        self.sought_again_at = now + SEEKING_INTERVAL;
        for index in view.qps.indices() {
            let Some(slot) = view.qps.slot(index) else {
                continue;
            };
            let number = slot.qp.attributes().dest_qpn;
            let is_reliable = slot.qp.qp_type() == QpType::Rc;
            let Some(connection) = slot.connection.filter(|_| is_reliable) else {
                continue;
            };
            let ends = (connection.remote, connection.local, range_of(number));
            let speaks = |air: AirIndex| self.peers[air.place()].range.is_some();
            if ends != (caller.address, caller.local, caller.range)
                || connection.air.is_some_and(speaks)
            {
                continue;
            }
            // A congestion notification may have come before, since when there is a rate to the host, and nothing else.
            self.leave_air(view, index, &connection);
            self.join_air(view, index, now);
            view.give_turn(index);
        }
    }

    pub(crate) fn leave_air(
        &mut self,
        view: &mut AirView<'_>,
        index: QpIndex,
        connection: &Connection,
    ) {
        self.notifies.retain(|&notifies| notifies != index);
        let Some(air) = connection.air else {
            return;
        };
        if let Some(next) = self.leave(air, index) {
            view.give_turn(next);
        }
    }

    /// Packets that were taken for a queue pair.
    pub(crate) fn note_arrived(
        &mut self,
        qps: &mut QpTable,
        index: QpIndex,
        arrived: Arrived,
        now: Time,
    ) {
        let Some(slot) = qps.slot(index) else {
            return;
        };
        if let Some(air) = slot.connection.and_then(|connection| connection.air) {
            let missed = slot.qp.take_missed();
            let peer = self.peer(air);
            peer.arrivals.note(now, arrived, missed);
            if !peer.is_proven {
                self.note_unproven(qps, index, air, now);
            }
        }
    }

    /// After anything that was done with a queue pair: what it owes its peer is told in time.
    pub(crate) fn note_owed(&mut self, qps: &mut QpTable, index: QpIndex, now: Time) {
        let Some(slot) = qps.slot(index) else {
            return;
        };
        let Some(air) = slot.connection.and_then(|connection| connection.air) else {
            return;
        };
        let Some(owed) = slot.qp.owes_acknowledgement() else {
            return;
        };
        let peer = self.peer(air);
        if !peer.owing.contains(&index) {
            peer.owing.push_back(index);
        }
        let by = peer.report_owed(owed, now);
        self.call_at(by);
    }

    /// Something is about to be said to peers after which they wait for nothing more: what came from them is acknowledged first.
    pub(crate) fn report_first(&mut self, now: Time) {
        let peers = self.peers.iter_mut();
        if let Some(by) = peers.filter_map(|peer| peer.report_first(now)).min() {
            // It is sent by the round that follows, which takes in nothing more.
            self.note_waiting(None);
            self.call_at(by);
        }
    }

    /// Whether a message to a peer is due.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Writes the next message to a peer into `out`, and lets those send whose time has come.
    pub(crate) fn poll_transmit(
        &mut self,
        view: &mut AirView<'_>,
        now: Time,
        port: &mut dyn Port,
        out: &mut [u8],
    ) -> Option<(usize, Destination)> {
        if let Some(notification) = self.poll_cnp(view, out) {
            return Some(notification);
        }
        for index in 0..self.peers.len() {
            let peer = &self.peers[index];
            if peer.due().is_none_or(|due| due > now) {
                continue;
            }
            let index = AirIndex::from_place(index);
            self.keep_pace(view, index, now, port);
            if let Some(mad) = self.next_message(view, index, now, port) {
                let peer = self.peer(index);
                let destination = Destination {
                    address: peer.address,
                    source_index: peer.source_index,
                    tos: 0,
                    hop_limit: 0,
                    flow_label: 0,
                    bundles: false,
                };
                if let Some(len) = self.emit_to(view.qps, index, &mad, out) {
                    return Some((len, destination));
                }
            }
        }
        self.due = self.peers.iter().filter_map(AirPeer::due).min();
        None
    }

    /// Writes a message to a peer: to queue pair 1, or as a packet of a sealed connection to it. `None` while that has no keys: the message is
    /// lost.
    fn emit_to(
        &mut self,
        qps: &mut QpTable,
        index: AirIndex,
        mad: &[u8; MAD_LEN],
        out: &mut [u8],
    ) -> Option<usize> {
        if !self.peer(index).is_sealed {
            return Some(self.emit(mad, out));
        }
        let users = &self.peers[index.place()].users;
        let mut carriers = users.iter();
        let carrier = carriers.find(|&&user| {
            let seal = qps.slot(user).and_then(|slot| slot.seal.as_ref());
            seal.is_some_and(|seal| seal.has_keys())
        });
        let slot = qps.slot(*carrier?)?;
        let len = exchange::emit_message(slot.qp.attributes().dest_qpn, Psn::default(), mad, out);
        slot.seal.as_deref_mut()?.session()?.seal(out, len)
    }

    fn keep_pace(
        &mut self,
        view: &mut AirView<'_>,
        index: AirIndex,
        now: Time,
        port: &mut dyn Port,
    ) {
        let Some(pace) = &mut self.peer(index).pace else {
            return;
        };
        if let Some(next) = pace.released(now) {
            view.wake(next);
        }
        self.with_pace(view, index, |pace| {
            if pace.is_tick_due(now) {
                pace.tick(now, port.send_queue());
            }
        });
    }

    /// Tells the rate controller of a peer something, and draws the consequences.
    fn with_pace(&mut self, view: &mut AirView<'_>, index: AirIndex, call: impl FnOnce(&mut Pace)) {
        let peer = self.peer(index);
        let Some(pace) = &mut peer.pace else {
            return;
        };
        call(pace);
        let window = pace.window();
        let all = [pace.ask_again(), pace.ask_beside()];
        if let Some(due) = pace.due() {
            self.call_at(due);
        }
        for next in all.into_iter().flatten() {
            view.wake(next);
        }
        self.grant(view, index, window);
    }

    /// The window to a peer is this, and no other.
    fn grant(&mut self, view: &mut AirView<'_>, index: AirIndex, window: u64) {
        let user = self.peer(index).users.first().copied();
        let slot = user.and_then(|user| view.qps.slot(user));
        if let Some(host) = slot.and_then(|slot| slot.connection).map(|way| way.peer) {
            view.peers.grant(host, window, index);
            view.unblock(host);
        }
    }
}

fn occupancy(fill: QueueFill) -> Occupancy {
    Occupancy {
        bytes: fill.bytes,
        capacity: fill.capacity,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_that_ask_the_last_ones_are_known() {
        let mut air = Air::new();
        let caller = |range: u32| Caller {
            address: Neighbour::from(range.to_be_bytes()),
            local: Neighbour::from([192, 0, 2, 1]),
            range: range as u8,
        };
        for range in 0..10_000 {
            air.note_caller(caller(range));
        }
        assert_eq!(air.callers.len(), CALLERS_MAX);
        assert!(air.callers.contains(&caller(9_999)));
    }
}
