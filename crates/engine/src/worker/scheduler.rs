//! The order in which a worker's queue pairs send, and the times of their next calls.
//!
//! After any change to a queue pair its timer, its share of the peer's window and its place in the
//! line are brought up to date. [`WorkerState::change`] lends the queue pair for that: the update
//! happens when the guard goes out of scope.

use super::gsi::Gsi;
use super::rate_limit::is_sending_raw;
use super::state::{Unanswered, WorkerState};
use crate::config::Window;
use crate::counter_names::EngineCounter;
use crate::index::{PeerIndex, QpIndex};
use crate::tables::peers::Peers;
use crate::tables::qp_host::QpHost;
use crate::tables::qp_table::{Connection, QpTable};
use crate::tables::round_robin::RoundRobin;
use crate::tables::timers::Timers;
use airdma_transport::{ACK_DELAY_MAX, Loss, QpState, QpType, QueuePair, Time};
use airdma_wire::sealed::SEALED_OVERHEAD;

/// The line of queue pairs that send, their timers, and the windows to their peers.
pub(crate) struct Scheduler {
    pub(super) line: RoundRobin,
    timers: Timers,
    /// When a queue pair offers its public key, or its packets have waited long enough for keys.
    pub(super) keying: Timers,
    pub(crate) peers: Peers,
    /// The queue pair whose ACK waits for a reply, and until when: one at a time, since several
    /// have their packets in one batch anyway.
    delayed_ack: Option<(QpIndex, Time)>,
}

impl Scheduler {
    /// `window`: to each peer.
    pub(super) fn new(window: Window) -> Self {
        Scheduler {
            line: RoundRobin::default(),
            timers: Timers::default(),
            keying: Timers::default(),
            peers: Peers::new(window),
            delayed_ack: None,
        }
    }

    /// Whether the ACK of this queue pair waits.
    fn delays_ack(&mut self, index: QpIndex, now: Time) -> bool {
        let (delayed, _) = *self.delayed_ack.get_or_insert((index, now + ACK_DELAY_MAX));
        delayed == index
    }

    /// A queue pair sends, or is gone: no ACK of it waits.
    #[inline]
    pub(super) fn note_no_delayed_ack(&mut self, index: QpIndex) {
        if self
            .delayed_ack
            .is_some_and(|(delayed, _)| delayed == index)
        {
            self.delayed_ack = None;
        }
    }

    /// Puts a queue pair at the end of the line.
    pub(super) fn join(&mut self, qps: &mut QpTable, index: QpIndex) {
        if let Some(slot) = qps.slot(index) {
            self.line.join(index, &mut slot.turn);
        }
    }

    /// Puts a queue pair in line at `due`, if it has something to send then.
    pub(super) fn wake_at(&mut self, index: QpIndex, due: Time) {
        self.timers.set(index, Some(due));
    }

    /// Calls a queue pair at `due`.
    pub(super) fn set_due(&mut self, index: QpIndex, due: Option<Time>) {
        self.timers.set(index, due);
    }

    /// Puts a queue pair in line that the window of its peer holds back no longer.
    fn release(&mut self, qps: &mut QpTable, index: QpIndex) {
        if let Some(slot) = qps.slot(index) {
            slot.blocked = false;
        }
        self.join(qps, index);
    }

    /// Releases the next queue pair that the window of `peer` holds back, if there is room now.
    #[inline]
    pub(super) fn unblock(&mut self, qps: &mut QpTable, peer: PeerIndex) {
        while let Some(index) = self.peers.unblock(peer) {
            let needs_it = self.offer(qps, index, peer);
            self.release(qps, index);
            if needs_it {
                return;
            }
        }
    }

    /// Offers the room in the window of `peer` to a queue pair, and returns whether it may need it.
    /// Since it began to wait, one of datagrams may have sent all, or what is left to other hosts.
    fn offer(&mut self, qps: &mut QpTable, index: QpIndex, peer: PeerIndex) -> bool {
        let Some(slot) = qps.slot(index) else {
            return false;
        };
        if slot.qp.qp_type() != QpType::Ud {
            return true;
        }
        let needs_it = slot.qp.has_records() && slot.offered.is_none_or(|known| known == peer);
        if needs_it {
            slot.offered = Some(peer);
        }
        needs_it
    }

    /// Releases all queue pairs that the window of `peer` holds back; those without room there go
    /// back.
    pub(super) fn let_all_go(&mut self, qps: &mut QpTable, peer: PeerIndex) {
        while let Some(index) = self.peers.let_go(peer) {
            self.release(qps, index);
        }
    }

    /// Puts a queue pair in line whose turn it is at the pacer of its peer.
    pub(super) fn give_turn(&mut self, qps: &mut QpTable, index: QpIndex) {
        if let Some(slot) = qps.slot(index) {
            slot.waits = false;
        }
        self.join(qps, index);
    }

    /// Removes a queue pair that is destroyed.
    pub(super) fn forget(&mut self, index: QpIndex) {
        self.line.remove(index);
        self.timers.remove(index);
        self.keying.remove(index);
        self.note_no_delayed_ack(index);
    }

    /// How many timers are set.
    pub(super) fn timers(&self) -> usize {
        self.timers.count()
    }
}

/// A queue pair that is being changed. When the guard goes out of scope, the scheduler is brought
/// up to date.
pub(crate) struct Change<'a> {
    state: &'a mut WorkerState,
    index: QpIndex,
    now: Time,
}

impl Change<'_> {
    /// Calls the queue pair with what it may touch; `None` if it is gone.
    #[inline(always)]
    pub(crate) fn call<R>(
        &mut self,
        call: impl FnOnce(&mut QueuePair, &mut QpHost<'_>) -> R,
    ) -> Option<R> {
        self.state.with(self.index, call)
    }

    /// The state of the worker that the queue pair belongs to.
    pub(super) fn state(&mut self) -> &mut WorkerState {
        self.state
    }

    /// Settles the queue pair now, in place of at the end of the scope.
    pub(crate) fn settle(self) {}
}

impl Drop for Change<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.state.settle(self.index, self.now);
    }
}

impl WorkerState {
    /// Lends a queue pair for a change.
    #[inline(always)]
    pub(crate) fn change(&mut self, index: QpIndex, now: Time) -> Change<'_> {
        Change {
            state: self,
            index,
            now,
        }
    }

    /// Calls the queue pairs whose time has come.
    #[inline]
    pub(crate) fn expire(&mut self, now: Time) {
        if let Some(gsi) = &mut self.gsi {
            gsi.expire(now);
        }
        if self.record_peers.due().is_some_and(|due| due <= now) {
            self.expire_record_peers(now);
        }
        while let Some(index) = self.scheduler.timers.pop_due(now) {
            self.take_timeout(index, now);
        }
        if let Some((index, until)) = self.scheduler.delayed_ack
            && until <= now
        {
            self.release_ack();
            if let Some(slot) = self.qps.slot(index) {
                slot.qp.end_ack_delay();
            }
        }
    }

    /// Until when an ACK waits for a reply.
    #[inline]
    pub(super) fn ack_due(&self) -> Option<Time> {
        self.scheduler.delayed_ack.map(|(_, until)| until)
    }

    /// Lets the ACK that waits for a reply leave with the next transmission.
    pub(super) fn release_ack(&mut self) {
        if let Some((index, _)) = self.scheduler.delayed_ack.take() {
            self.scheduler.join(&mut self.qps, index);
        }
    }

    /// Calls a queue pair whose entry came up: its deadline may have moved since.
    #[inline(never)] // a round in which no timer is due saves no registers for it
    fn take_timeout(&mut self, index: QpIndex, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        if slot.records.is_some() {
            self.expire_records(index, now);
        }
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let is_due = slot.qp.poll_timeout().is_some_and(|due| due <= now);
        let is_raw = is_sending_raw(&slot.qp);
        let mut change = self.change(index, now);
        if is_raw {
            // Its rate limit was the reason to wait.
            change.state().take_posted(index, now);
        }
        if is_due {
            change.call(|qp, host| qp.handle_timeout(now, host));
            drop(change);
            self.with_air(|air, view| air.note_stuck(view, index, now));
        }
    }

    /// When [`WorkerState::expire`] wants to be called next, and [`WorkerState::fill`] if the port
    /// takes packets.
    #[inline]
    pub(crate) fn deadline(&self, can_send: bool) -> Option<Time> {
        let management = self.gsi.as_ref().and_then(Gsi::next);
        let air = self.air.due().filter(|_| can_send);
        let keying = self.scheduler.keying.next().filter(|_| can_send);
        let records = self.record_peers.due();
        let all = [
            self.scheduler.timers.next(),
            management,
            air,
            keying,
            records,
        ];
        all.into_iter().flatten().min()
    }

    /// Whether a queue pair waits to send.
    pub(crate) fn has_active(&self) -> bool {
        !self.scheduler.line.is_empty() || self.gsi.as_ref().is_some_and(Gsi::has_transmits)
    }

    /// Brings the scheduler up to date after a change to a queue pair.
    fn settle(&mut self, index: QpIndex, now: Time) {
        self.note(index, now);
        if let Some(slot) = self.qps.slot(index)
            && slot.qp.wants_transmit()
            && !(slot.qp.may_delay_ack()
                && slot.delays_acks
                && self.scheduler.delays_ack(index, now))
        {
            self.scheduler.line.join(index, &mut slot.turn);
        }
    }

    /// The peer of a queue pair, which stopped answering packets with `payload` bytes; none without
    /// IP addresses.
    #[cold]
    fn unanswered_by_peer_of(&mut self, index: QpIndex, payload: u32) -> Option<Unanswered> {
        let slot = self.qps.slot(index)?;
        let connection = slot.connection?;
        let (local, remote) = (connection.local.ip()?, connection.remote.ip()?);
        let seal = slot.seal.as_ref().map_or(0, |_| SEALED_OVERHEAD as u32);
        // Headers of IP, UDP and InfiniBand, and the ICRC.
        let others = if remote.is_ipv4() { 20 } else { 40 } + 8 + 12 + 4 + seal;
        Some(Unanswered {
            local,
            remote,
            packet_bytes: payload + others,
        })
    }

    /// As `settle`, without a place in the line.
    pub(super) fn note(&mut self, index: QpIndex, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        match slot.due() {
            // A rate limit sets the timer of its queue pair too.
            None if slot.limit.is_none() => self.scheduler.timers.end(index),
            due => self.scheduler.timers.set(index, due),
        }
        let (before, after) = (slot.in_flight, slot.qp.in_flight_bytes());
        let lost = slot.qp.take_loss();
        slot.in_flight = after;
        slot.side.shared.urgency.set_busy(after > 0);
        let state = slot.qp.state();
        let entered = slot.side.shared.state.set(state);
        if let Some(Connection { peer, air, .. }) = slot.connection
            && (lost.is_some() || before != after)
        {
            if let Some(air) = air
                && before == 0
            {
                self.air.note_under_way(air, now);
            }
            let acknowledged = lost.is_none() && state.sends();
            let mtu = slot.qp.attributes().path_mtu.bytes();
            if let Some(loss) = lost {
                if loss == Loss::Timeout && before >= mtu && !self.scheduler.peers.is_silent(peer) {
                    self.unanswered = self.unanswered_by_peer_of(index, mtu);
                }
                if air.is_some() {
                    self.with_air(|air, view| air.note_stuck(view, index, now));
                }
                self.note_loss(peer, loss, now);
                if loss == Loss::Timeout
                    && let Some(next) = air.and_then(|air| self.air.ask_again(air))
                {
                    // The peer is silent: the line is let go, one by one.
                    self.scheduler.join(&mut self.qps, next);
                }
            }
            self.scheduler
                .peers
                .update(peer, before, after, acknowledged, mtu);
            if after < before {
                self.scheduler.unblock(&mut self.qps, peer);
            }
        }
        if entered && state == QpState::Error {
            // A receive whose poster did not see the state is seen here, and a send that a rate
            // limit left in the ring.
            self.take_posted(index, now);
            self.flush_records(index, now);
        }
        if entered && state == QpState::SendQueueError {
            self.flush_reads(index, now);
        }
    }

    fn note_loss(&mut self, peer: PeerIndex, loss: Loss, now: Time) {
        if self.scheduler.peers.lost(peer, now) {
            self.counters.count(EngineCounter::WindowDecreases);
        }
        match loss {
            Loss::Gap => self.scheduler.peers.answered(peer),
            Loss::Timeout => {
                for _ in 0..self.scheduler.peers.fell_silent(peer) {
                    if let Some(index) = self.scheduler.peers.let_go(peer) {
                        self.scheduler.release(&mut self.qps, index);
                    }
                }
            }
        }
    }
}
