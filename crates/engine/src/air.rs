//! Air mode: extensions of RoCEv2 between two airdma processes, once both have agreed
//! (`docs/protocol.md`).
//!
//! | the peer is | what that means |
//! |---|---|
//! | plain | unknown, silent (as other implementations are) or without these features: RoCEv2 |
//! | agreed | reliable connections repeat selectively, and their packets may be long; reports acknowledge in place of ACK packets if one end is on the air, else ACK packets report what is missing |
//!
//! Every process sends Hello. A peer that never answers, nor asks, leaves no trace at its queue
//! pairs: they cost what they cost without Hello.
//!
//! Hello is sent to a peer when a queue pair is connected to it, again after each of
//! [`peer::HELLO_AGAIN`], and when the peer sends Hello or a report. An answer to a Hello causes
//! one in return, since an earlier one that came before the connection was ignored. Only an answer
//! that names our instance counts: no other host knows it. The agreement holds for the queue pairs
//! that were connected at that moment; the others wait for the next answer, since another process
//! may be at the other end by then.
//!
//! A peer is a process: an address, seen from one of ours, and the range of its queue pair numbers.
//! Each end switches once it was answered, and both accept either mode meanwhile: ACKs and NAKs are
//! always processed.
//!
//! A peer that also agreed on bundles is sent packets in them while few are lost ([`bundling`]).
//!
//! A report leaves four times in a round trip while packets come, and soon after packets were
//! missed. It covers as many queue pairs as it has room for. Pings measure the round trip while
//! packets are in flight.
//!
//! This module keeps the peers, their queue pairs, and the times of their calls. [`directory`]
//! finds them, [`exchange`] has the messages and their effects, [`peer`] their times, [`pace`] the
//! rate to a peer, [`bundling`] the use of bundles, [`congestion`] the congestion notifications,
//! [`application`] the programs' reports of their own buffers, [`datagrams`] datagrams, [`narrow`]
//! paths on which long packets vanish, and [`assembly`] packets that arrive in pieces.

mod application;
mod assembly;
mod bundling;
mod congestion;
mod datagrams;
mod directory;
mod exchange;
mod identity;
mod narrow;
mod pace;
mod peer;
mod peer_proof;
mod view;

pub(crate) use exchange::{NotAgreed, RANGES_MAX};
pub(crate) use pace::Weight;
pub(crate) use peer::Arrived;
pub(crate) use view::AirView;

use crate::QpType;
use crate::config::RateControl;
use crate::index::{AirIndex, QpIndex};
use crate::random::Random;
use crate::tables::qp_table::{Connection, QpTable};
use crate::tables::timers::Timers;
use airdma_port::{Destination, Port, QueueFill};
use airdma_transport::rate::{Occupancy, Rate};
use airdma_transport::{ReorderMemory, Time};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{Neighbour, Psn};
use directory::Directory;
use identity::Identity;
use narrow::NarrowPaths;
use pace::Pace;
use peer::{AirPeer, Asking, HELLO_AGAIN};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Bytes buffered for packets out of order, of all queue pairs together.
///
/// Half of it, which one peer may have, is what a fast link has in flight in a long round trip.
const REORDER_BYTES_MAX: usize = 32 << 20;

/// Rate of an interface that does not report its own.
const LINE_RATE_UNKNOWN: Rate = Rate::from_bits_per_s(10_000_000_000);

/// Time after which a host that does not keep up with arriving packets reports all the same.
const TAKING_IN_MAX: Duration = Duration::from_millis(1);

/// A process, as seen from one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) address: Neighbour,
    pub(super) local: Neighbour,
    pub(super) range: u8,
}

pub(crate) struct Air {
    peers: Vec<AirPeer>,
    directory: Directory,
    /// Times before which no peer needs a call.
    timers: Timers<AirIndex>,
    /// Peers that still need a call after the present round of them.
    postponed: Vec<AirIndex>,
    /// Peers that may be owed an acknowledgement.
    owing: BTreeSet<AirIndex>,
    /// Identity of this process, if it offers anything to peers.
    identity: Option<Identity>,
    /// Peers with users that are not proven to be there.
    unproven: u32,
    /// Offered features, without those of the rate control.
    offers: u64,
    memory: ReorderMemory,
    narrow: NarrowPaths,
    rate_control: RateControl,
    /// Rate of the interface.
    line_rate: Rate,
    pub(crate) interface_mtu: u32,
    /// Time since which received packets wait to be processed.
    more_waits: Option<Time>,
    /// Queue pairs whose peers must get a CNP.
    notifies: VecDeque<QpIndex>,
    /// Queue pairs of datagrams that waited for the pacer of a peer that is gone.
    released: Vec<QpIndex>,
    /// Whether a peer has ever had a rate, or got reports.
    counts_datagrams: bool,
    /// Number of the last report to any peer. A peer may know this process longer than it is
    /// remembered here, so its count must not restart.
    number: u32,
    next_psn: Psn,
}

impl Air {
    /// Air mode without any offer.
    pub(crate) fn new() -> Self {
        Air {
            peers: Vec::new(),
            directory: Directory::default(),
            timers: Timers::default(),
            postponed: Vec::new(),
            owing: BTreeSet::new(),
            identity: None,
            unproven: 0,
            offers: 0,
            memory: ReorderMemory::new(REORDER_BYTES_MAX),
            narrow: NarrowPaths::default(),
            rate_control: RateControl::default(),
            line_rate: LINE_RATE_UNKNOWN,
            interface_mtu: 0,
            more_waits: None,
            notifies: VecDeque::new(),
            released: Vec::new(),
            counts_datagrams: false,
            number: 0,
            next_psn: Psn::default(),
        }
    }

    /// Time of the next call of [`Air::poll_transmit`]; [`Time::NEVER`] without a peer.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        if self.notifies.is_empty() && self.postponed.is_empty() {
            self.timers.next()
        } else {
            Time::ZERO
        }
    }

    /// Records whether this round left packets unprocessed (`at` its time), or processed all.
    pub(crate) fn note_waiting(&mut self, at: Option<Time>) {
        self.more_waits = at.and(self.more_waits.or(at));
    }

    /// Whether reports wait, because they would soon be outdated: unprocessed packets are not a
    /// backlog, and fill gaps or show more of them.
    fn waits_for_more(&self, now: Time) -> bool {
        let since = self.more_waits;
        since.is_some_and(|since| now.duration_since(since) < TAKING_IN_MAX)
    }

    fn call_at(&mut self, index: AirIndex, at: Time) {
        self.timers.set(index, Some(at));
    }

    fn peer(&mut self, index: AirIndex) -> &mut AirPeer {
        &mut self.peers[index.place()]
    }

    /// Number of peers.
    pub(crate) fn count(&self) -> usize {
        self.directory.count()
    }

    /// Number of queue pairs that wait for the rate to their peers.
    pub(crate) fn waiting(&self) -> usize {
        let used = self.peers.iter().filter(|peer| !peer.users.is_empty());
        let waiting = used.filter_map(|peer| peer.pace.as_ref().map(Pace::waiting));
        waiting.sum()
    }

    /// Records that packets are in flight to the peer, so the round trip must be measured.
    pub(crate) fn note_under_way(&mut self, index: AirIndex, now: Time) {
        if let Some(by) = self.peer(index).report_for_ping(now) {
            self.call_at(index, by);
        }
    }

    /// Bytes that a queue pair with a weight may send to the peer now; see [`Pace::admit`].
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
            self.call_at(index, due);
        }
        bytes
    }

    /// Whether the pacer of the peer decides on packets to it.
    #[inline]
    pub(crate) fn paces(&self, index: AirIndex) -> bool {
        let peer = &self.peers[index.place()];
        peer.pace.is_some() || peer.bundling.is_some()
    }

    /// Whether datagrams may have to ask a pacer, or count in a report.
    #[inline]
    pub(crate) fn counts_datagrams(&self) -> bool {
        self.counts_datagrams
    }

    /// The traffic class of a packet to the peer that would have `wanted`.
    pub(crate) fn traffic_class(&self, index: AirIndex, wanted: u8) -> u8 {
        let peer = &self.peers[index.place()];
        let pace = peer.pace.as_ref();
        pace.map_or(wanted, |pace| pace.traffic_class(wanted))
    }

    /// A queue pair sends without the pacer, whether it waited or had the turn. Returns the next in
    /// turn, if it had it.
    pub(crate) fn pass(
        &mut self,
        index: AirIndex,
        queue_pair: QpIndex,
        waited: bool,
    ) -> Option<QpIndex> {
        self.peer(index).pace.as_mut()?.pass(queue_pair, waited)
    }

    /// The queue pair that waits for the pacer, to be asked again.
    pub(crate) fn ask_again(&mut self, index: AirIndex) -> Option<QpIndex> {
        self.peer(index).pace.as_mut()?.ask_again()
    }

    /// The next queue pair that sends out of turn, if one just did; see [`Pace::next_beside`].
    pub(crate) fn next_beside(&mut self, index: AirIndex) -> Option<QpIndex> {
        self.peer(index).pace.as_mut()?.next_beside()
    }

    /// An admitted queue pair has sent a packet; see [`Pace::sent`]. Returns the next in turn, if
    /// its turn is over.
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
            self.call_at(index, due);
        }
        next
    }

    /// Adds a connected queue pair, which `offers` more than RoCEv2 if its service is reliable.
    fn join(
        &mut self,
        now: Time,
        queue_pair: QpIndex,
        connection: &Connection,
        offers: bool,
        is_there: bool,
    ) -> Option<AirIndex> {
        let speaks = self.identity.is_some() && offers;
        if !speaks {
            (self.directory).note_plain(connection.ends(), connection.range, queue_pair);
        }
        // A host that only has a rate does not speak.
        let range = speaks.then_some(connection.range);
        let controls = self.rate_control == RateControl::Dcqcn;
        let index = match self.directory.find(connection.ends(), range) {
            Some(index) => index,
            None if speaks || controls => self.add(connection, range, now),
            None => return None,
        };
        let line_rate = self.line_rate;
        let peer = self.peer(index);
        peer.users.insert(queue_pair);
        if is_there {
            self.prove(index, now);
        }
        let peer = self.peer(index);
        if controls && peer.pace.is_none() {
            peer.pace = Some(Pace::dcqcn(line_rate, now));
            self.counts_datagrams = true;
        }
        if speaks {
            self.ask_for_another(index, now);
        }
        Some(index)
    }

    /// Adds a peer without users.
    fn add(&mut self, connection: &Connection, range: Option<u8>, now: Time) -> AirIndex {
        let ends = connection.ends();
        // A host has one share, however many processes it claims to have.
        let memory = match self.directory.at_address(connection.remote) {
            Some(other) => self.peer(other).memory.clone(),
            None => self.memory.for_peer(),
        };
        let mut peer = AirPeer::new(ends, range, connection.source_index, memory);
        peer.narrow_until = self.narrow.until(ends, now).filter(|_| range.is_some());
        self.unproven += 1;
        let index = self.directory.add(ends, range, self.peers.len());
        match self.peers.get_mut(index.place()) {
            Some(place) => *place = peer,
            None => self.peers.push(peer),
        }
        index
    }

    /// Schedules Hello to the peer, once it is proven to be there.
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
        peer.asks_once_more = false;
        self.call_at(index, now);
    }

    /// Asks for one more queue pair, or about what changed. A question on its way is answered
    /// first: were it replaced, no answer would count while connections come faster than
    /// answers. Only the last repetition, which is hardly answered any more, is replaced.
    pub(super) fn ask_for_another(&mut self, index: AirIndex, now: Time) {
        let peer = self.peer(index);
        let waits = |asking: Asking| (1..HELLO_AGAIN.len()).contains(&asking.tries);
        if peer.asking.is_some_and(waits) {
            peer.asks_once_more = true;
        } else {
            self.ask(index, now);
        }
    }

    /// A question was answered, or given up. Returns whether another one follows.
    fn ask_once_more(&mut self, index: AirIndex, now: Time) -> bool {
        let asks = std::mem::take(&mut self.peer(index).asks_once_more);
        if asks {
            self.ask(index, now);
        }
        asks
    }

    /// The port is gone: no message is sent any more.
    pub(crate) fn stop(&mut self) {
        self.identity = None;
        self.timers = Timers::default();
        self.postponed.clear();
        self.notifies.clear();
    }

    /// Removes a queue pair. Returns the next in turn, if it had the turn.
    fn leave(
        &mut self,
        qps: &mut QpTable,
        index: AirIndex,
        queue_pair: QpIndex,
    ) -> Option<QpIndex> {
        let peer = &mut self.peers[index.place()];
        peer.users.remove(&queue_pair);
        if let Some(slot) = qps.slot(queue_pair)
            && std::mem::take(&mut slot.owes_report)
        {
            peer.owing.retain(|&other| other != queue_pair);
        }
        let next = peer.pace.as_mut().and_then(|pace| pace.leave(queue_pair));
        if peer.users.is_empty() {
            let waiting = peer.pace.take().into_iter().flat_map(Pace::disband);
            self.released.extend(waiting);
            self.unproven -= u32::from(!peer.is_proven);
            self.directory.remove(peer.ends(), peer.range, index);
            self.timers.remove(index);
            self.postponed.retain(|&other| other != index);
            self.owing.remove(&index);
        }
        next
    }
}

impl Air {
    /// Sets the rate control of peers, and the rate of the interface if it is known.
    pub(crate) fn control_rate(&mut self, rate_control: RateControl, line_rate: Option<Rate>) {
        self.rate_control = rate_control;
        self.line_rate = line_rate.unwrap_or(LINE_RATE_UNKNOWN);
    }

    /// Offers these features beyond RoCEv2 to peers from now on.
    pub(crate) fn offer(&mut self, features: u64, random: &mut Random) {
        self.offers |= features;
        (self.identity).get_or_insert_with(|| Identity::draw(random));
    }

    /// A queue pair was connected: it uses air mode once its peer agrees.
    pub(crate) fn join_air(&mut self, view: &mut AirView<'_>, index: QpIndex, now: Time) {
        let Some(slot) = view.qps.slot(index) else {
            return;
        };
        slot.qp.set_selective(None);
        slot.cut_above = usize::MAX;
        slot.delays_acks = false;
        // Features are offered to reliable connections only.
        let offers = slot.qp.qp_type() == QpType::Rc;
        let (connection, local) = (slot.connection, slot.qp.qpn());
        let number = slot.qp.attributes().dest_qpn;
        let is_there = connection
            .is_some_and(|connection| !offers || self.is_there(view, &connection, local, number));
        let Some(slot) = view.qps.slot(index) else {
            return;
        };
        if let Some(connection) = &mut slot.connection {
            connection.air = self.join(now, index, connection, offers, is_there);
            if let Some(air) = connection.air
                && slot.seal.is_some()
            {
                self.peer(air).is_sealed = true;
            }
            if offers && self.identity.is_some() {
                // The peer may switch before us, by an offer for another queue pair. Its answer has
                // the payload that it accepts.
                let taken = self.long_payload(connection.remote);
                slot.qp.set_long_payloads(taken, 0, false);
            }
        }
    }

    /// A process that is no peer sent a message: the queue pairs connected to it join it.
    fn join_caller(&mut self, view: &mut AirView<'_>, caller: Caller, now: Time) {
        for index in self.directory.plain_of(caller) {
            let Some(slot) = view.qps.slot(index) else {
                continue;
            };
            let is_reliable = slot.qp.qp_type() == QpType::Rc;
            let Some(connection) = slot.connection.filter(|_| is_reliable) else {
                continue;
            };
            // It may have a rate, as a host that sent CNPs.
            self.leave_air(view, index, &connection);
            self.join_air(view, index, now);
            view.give_turn(index);
        }
    }

    /// A peer did not answer: it is no airdma process, so it costs its queue pairs nothing more. A
    /// rate by its CNPs stays, for its host as a whole. A message of it makes them join again.
    fn let_go(&mut self, view: &mut AirView<'_>, index: AirIndex) {
        let peer = &self.peers[index.place()];
        if peer.has_spoken || peer.known.is_some() || peer.is_sealed {
            return;
        }
        let (ends, range) = (peer.ends(), peer.range);
        let host = self.directory.find(ends, None);
        let peer = &mut self.peers[index.place()];
        let users = peer.users.clone();
        if let Some(range) = range {
            for &user in &users {
                self.directory.note_plain(ends, range, user);
            }
        }
        if host.is_none() && peer.pace.is_some() {
            peer.range = None;
            self.directory.turn_into_host(ends, range);
            return;
        }
        for user in users {
            let next = self.leave(view.qps, index, user);
            if let Some(host) = host {
                self.peer(host).users.insert(user);
            }
            let slot = view.qps.slot(user);
            if let Some(connection) = slot.and_then(|slot| slot.connection.as_mut()) {
                connection.air = host;
            }
            for next in next.into_iter().chain([user]) {
                view.give_turn(next);
            }
        }
        self.let_released_go(view);
    }

    fn let_released_go(&mut self, view: &mut AirView<'_>) {
        for waiting in self.released.drain(..) {
            view.give_turn(waiting);
        }
    }

    pub(crate) fn leave_air(
        &mut self,
        view: &mut AirView<'_>,
        index: QpIndex,
        connection: &Connection,
    ) {
        self.notifies.retain(|&notifies| notifies != index);
        (self.directory).forget_plain(connection.ends(), connection.range, index);
        let Some(air) = connection.air else {
            return;
        };
        if let Some(next) = self.leave(view.qps, air, index) {
            view.give_turn(next);
        }
        self.let_released_go(view);
    }

    /// Counts packets accepted for a queue pair.
    #[inline(always)] // after packets of each round
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
            let peer = &mut self.peers[air.place()];
            if peer.gets_reports() {
                peer.arrivals.note(now, arrived, slot.qp.take_missed());
            }
            if !peer.is_proven {
                self.note_unproven(qps, index, air, now);
            }
        }
    }

    /// Schedules the reports that a queue pair owes its peer; called after every change of it.
    #[inline(always)] // after packets of each round
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
        let peer = &mut self.peers[air.place()];
        if !std::mem::replace(&mut slot.owes_report, true) {
            if peer.owing.is_empty() {
                self.owing.insert(air);
            }
            peer.owing.push_back(index);
        }
        let by = peer.report_owed(owed, now);
        self.call_at(air, by);
    }

    /// Reports at once, before a message after which the peers no longer wait.
    pub(crate) fn report_first(&mut self, now: Time) {
        for index in std::mem::take(&mut self.owing) {
            let peer = self.peer(index);
            if peer.owing.is_empty() {
                continue;
            }
            let by = peer.report_first(now);
            self.owing.insert(index);
            if let Some(by) = by {
                // The next round sends it and processes nothing more.
                self.note_waiting(None);
                self.call_at(index, by);
            }
        }
    }

    /// Whether a message to a peer is due.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due() <= now
    }

    /// Writes the next message to a peer into `out`, and wakes queue pairs whose time has come.
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
        while let Some(index) = self.timers.pop_due(now) {
            if !self.peer(index).is_due(now) {
                self.call_again(index, now);
                continue;
            }
            self.keep_pace(view, index, now, port);
            self.try_again(view, index, now);
            let mad = self.next_message(view, index, now, port);
            let peer = self.peer(index);
            let destination = Destination {
                address: peer.address,
                source_index: peer.source_index,
                tos: 0,
                hop_limit: 0,
                flow_label: 0,
                bundles: false,
            };
            let len = mad.and_then(|mad| self.emit_to(view.qps, index, &mad, out));
            if let Some(len) = len {
                let due = self.peer(index).due();
                self.timers.set(index, due);
                return Some((len, destination));
            }
            self.call_again(index, now);
        }
        for index in std::mem::take(&mut self.postponed) {
            let due = self.peer(index).due();
            self.timers.set(index, due);
        }
        None
    }

    /// A peer had a call, and nothing to send: it needs the next one in its time, but none in this
    /// round.
    fn call_again(&mut self, index: AirIndex, now: Time) {
        let due = self.peer(index).due();
        if due.is_some_and(|due| due <= now) {
            self.timers.remove(index);
            self.postponed.push(index);
        } else {
            self.timers.set(index, due);
        }
    }

    /// Writes a message to a peer: to queue pair 1, or as a packet of a sealed connection to it.
    /// `None` without keys: the message is lost.
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
        let mut carriers = self.peers[index.place()].users.iter();
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

    /// Calls a peer's rate controller, and applies its changes.
    fn with_pace(&mut self, view: &mut AirView<'_>, index: AirIndex, call: impl FnOnce(&mut Pace)) {
        let peer = self.peer(index);
        let Some(pace) = &mut peer.pace else {
            return;
        };
        call(pace);
        let window = pace.window();
        let all = [pace.ask_again(), pace.ask_beside()];
        if let Some(due) = pace.due() {
            self.call_at(index, due);
        }
        for next in all.into_iter().flatten() {
            view.wake(next);
        }
        self.grant(view, index, window);
    }

    /// Sets the window to a peer.
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
