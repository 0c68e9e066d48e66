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
use airdma_transport::{ACK_DELAY_MAX, Loss, QpState, QpType, QueuePair, RETRY_FOR_EVER, Time};
use airdma_wire::sealed::SEALED_OVERHEAD;

/// The line of queue pairs that send, their timers, and the windows to their peers.
pub(crate) struct Scheduler {
    pub(super) line: RoundRobin,
    timers: Timers,
    /// When a queue pair offers its public key, or its packets have waited long enough for keys.
    pub(super) keying: Timers,
    pub(crate) peers: Peers,
    /// Until when an ACK waits for a reply, or [`Time::NEVER`]: one at a time, since several have
    /// their packets in one batch anyway.
    ack_due: Time,
    /// The queue pair of that ACK.
    delays_ack: QpIndex,
}

impl Scheduler {
    /// `window`: to each peer.
    pub(super) fn new(window: Window) -> Self {
        Scheduler {
            line: RoundRobin::default(),
            timers: Timers::default(),
            keying: Timers::default(),
            peers: Peers::new(window),
            ack_due: Time::NEVER,
            delays_ack: QpIndex::new(0),
        }
    }

    /// Whether the ACK of this queue pair waits.
    fn delays_ack(&mut self, index: QpIndex, now: Time) -> bool {
        if self.ack_due == Time::NEVER {
            self.ack_due = now + ACK_DELAY_MAX;
            self.delays_ack = index;
        }
        self.delays_ack == index
    }

    /// A queue pair sends, or is gone: no ACK of it waits.
    #[inline]
    pub(super) fn note_no_delayed_ack(&mut self, index: QpIndex) {
        if self.delays_ack == index {
            self.ack_due = Time::NEVER;
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
        if self.peers.holds_back(peer) {
            self.release_next(qps, peer);
        }
    }

    #[inline(never)] // a queue pair alone at its peer saves no registers for it
    fn release_next(&mut self, qps: &mut QpTable, peer: PeerIndex) {
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
        if self.record_peers.due() <= now {
            self.expire_record_peers(now);
        }
        while let Some(index) = self.scheduler.timers.pop_due(now) {
            self.take_timeout(index, now);
        }
        if self.scheduler.ack_due <= now {
            self.release_ack();
            if let Some(slot) = self.qps.slot(self.scheduler.delays_ack) {
                slot.qp.end_ack_delay();
            }
        }
    }

    /// Until when an ACK waits for a reply; [`Time::NEVER`] if none does.
    #[inline]
    pub(super) fn ack_due(&self) -> Time {
        self.scheduler.ack_due
    }

    /// Lets the ACK that waits for a reply leave with the next transmission.
    pub(super) fn release_ack(&mut self) {
        if std::mem::replace(&mut self.scheduler.ack_due, Time::NEVER) != Time::NEVER {
            let index = self.scheduler.delays_ack;
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
        if is_due && slot.qp.silent_timers() > 0 {
            self.excuse_silence(index, now);
        }
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

    /// A timer is due of a queue pair whose peer is silent: if the process there exists and does
    /// not run, that spends no retry. A peer that was never heard may have another secret, or no
    /// such queue pair.
    #[cold]
    fn excuse_silence(&mut self, index: QpIndex, now: Time) {
        let (Some(presence), Some(slot)) = (&mut self.presence, self.qps.slot(index)) else {
            return;
        };
        if slot.qp.has_heard_peer()
            && slot.qp.attributes().retry_count != RETRY_FOR_EVER
            && let Some(Connection {
                remote,
                local,
                range,
                ..
            }) = slot.connection
            && let (Some(remote), Some(local)) = (remote.ip(), local.ip())
            && presence.is_stopped(local, (remote, range), now)
        {
            slot.qp.excuse_silence();
        }
    }

    /// When [`WorkerState::expire`] wants to be called next, and [`WorkerState::fill`] if the port
    /// takes packets.
    #[inline]
    pub(crate) fn deadline(&self, can_send: bool) -> Time {
        let mut due = self.scheduler.timers.next().min(self.record_peers.due());
        if let Some(gsi) = &self.gsi {
            due = due.min(gsi.next());
        }
        if can_send {
            due = due.min(self.air.due()).min(self.scheduler.keying.next());
        }
        due
    }

    /// Whether a queue pair waits to send.
    pub(crate) fn has_active(&self) -> bool {
        !self.scheduler.line.is_empty() || self.gsi.as_ref().is_some_and(Gsi::has_transmits)
    }

    /// Brings the scheduler up to date after a change to a queue pair.
    pub(super) fn settle(&mut self, index: QpIndex, now: Time) {
        self.note(index, now);
        self.line_up(index, now);
    }

    /// Puts a queue pair in line that has something to send.
    #[inline]
    pub(super) fn line_up(&mut self, index: QpIndex, now: Time) {
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
        if (lost.is_some() || before != after)
            && let Some(Connection { peer, air, .. }) = slot.connection
        {
            if let Some(air) = air
                && before == 0
            {
                self.air.note_under_way(air, now);
            }
            let acknowledged = lost.is_none() && state.sends();
            let mtu = slot.qp.attributes().path_mtu.bytes();
            if let Some(loss) = lost {
                self.note_loss_of(index, loss, (before, mtu), now);
            }
            self.scheduler
                .peers
                .update(peer, before, after, acknowledged, mtu);
            if after < before {
                self.scheduler.unblock(&mut self.qps, peer);
            }
        }
        if entered && state == QpState::Error {
            self.flush_posted(index, now);
        }
        if entered && state == QpState::SendQueueError {
            self.flush_reads(index, now);
        }
    }

    /// A queue pair is in the error state. A receive whose poster did not see the state is seen
    /// here, and a send that a rate limit left in the ring.
    #[cold]
    #[inline(never)]
    fn flush_posted(&mut self, index: QpIndex, now: Time) {
        self.take_posted(index, now);
        self.flush_records(index, now);
    }

    /// A connection lost packets, with `in_flight` bytes in flight before, at a path MTU of `mtu`.
    #[cold]
    #[inline(never)]
    fn note_loss_of(
        &mut self,
        index: QpIndex,
        loss: Loss,
        (in_flight, mtu): (u32, u32),
        now: Time,
    ) {
        let connection = self.qps.slot(index).and_then(|slot| slot.connection);
        let Some(Connection { peer, air, .. }) = connection else {
            return;
        };
        if loss == Loss::Timeout && in_flight >= mtu && !self.scheduler.peers.is_silent(peer) {
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
