//! What a worker works on: queue pairs, memory, completion queues, timers, peers, and whose turn it is.

use crate::air::{Air, AirMode, Arrived};
use crate::counter_names::EngineCounter;
use crate::index::{Doorbell, PeerIndex, QpIndex, SrqIndex};
use crate::inventory::Inventory;
use crate::memory::MemoryTable;
use crate::objects::send_wqe;
use crate::random::Random;
use crate::seal::{OPENED_LEN_MAX, Secret};
use crate::sharing::steering::Steering;
use crate::tables::counters::Counters;
use crate::tables::cq_table::{CqTable, Overrun};
use crate::tables::multicast::Multicast;
use crate::tables::peers::{Peers, Window};
use crate::tables::qp_host::QpHost;
use crate::tables::qp_table::{Connection, QpSlot, QpTable, Source};
use crate::tables::round_robin::Active;
use crate::tables::srq_table::SrqTable;
use crate::tables::timers::Timers;
use crate::worker::gsi::Gsi;
use crate::worker::source_port::Candidate;
use crate::{AttrMask, Error, QpAttributes, QpState, QpType};
use airdma_transport::{
    Completion, CompletionOpcode, Host, Loss, Path, QpEvent, QueuePair, Slot, Status, Time,
};
use airdma_wire::{Gid, Neighbour};
use std::sync::Arc;

mod receive;
mod turn;

/// Bytes that one round transmits at most, so that receiving is not kept waiting: two segmented sends.
pub(crate) const ROUND_BYTES: i64 = 128 * 1024;

pub(crate) struct Tables {
    pub(crate) qps: QpTable,
    pub(crate) memory: MemoryTable,
    pub(crate) srqs: SrqTable,
    pub(crate) cqs: CqTable,
    pub(crate) counters: Counters,
    pub(crate) multicast: Multicast,
    /// Where other processes have the same addresses.
    pub(crate) steering: Option<Arc<Steering>>,
    /// A packet came that is another process's, and something is to be done about it.
    pub(crate) misrouted: bool,
    /// Queue pair 1, if somebody uses it.
    pub(crate) gsi: Option<Gsi>,
    /// The addresses of the GID table, as the port has them.
    pub(crate) rows: Vec<Option<Neighbour>>,
    /// From where a packet comes that is being looked at, and may be the first good one from there.
    pub(crate) candidate: Option<Candidate>,
    /// The queue pair that took packets last, and has not been settled since.
    unsettled: Option<QpIndex>,
    /// What that took.
    arrived: Arrived,
    timers: Timers,
    /// All connections are sealed with this secret, and no others are made.
    pub(crate) secret: Option<Secret>,
    /// When which queue pair says its public key.
    pub(crate) keying: Timers,
    /// Room for a packet that was sealed.
    pub(crate) opened: Box<[u8]>,
    active: Active,
    pub(crate) peers: Peers,
    pub(crate) air: Air,
    /// Queue pairs that air mode has woken; empty but for the time of a call.
    pub(crate) wakes: Vec<QpIndex>,
    /// For what else is left to chance.
    pub(crate) random: Random,
}

impl Tables {
    /// `window`: the ceiling of the window to one peer in bytes, if one is asked for.
    pub(crate) fn new(mut random: Random, window: Window) -> Self {
        Tables {
            air: Air::new(),
            wakes: Vec::new(),
            qps: QpTable::new(random.fork()),
            memory: MemoryTable::new(random.fork()),
            srqs: SrqTable::default(),
            cqs: CqTable::default(),
            counters: Counters::new(),
            multicast: Multicast::default(),
            steering: None,
            misrouted: false,
            gsi: None,
            rows: Vec::new(),
            unsettled: None,
            candidate: None,
            arrived: Arrived::default(),
            timers: Timers::default(),
            secret: None,
            keying: Timers::default(),
            opened: vec![0; OPENED_LEN_MAX].into_boxed_slice(),
            active: Active::default(),
            peers: Peers::new(window),
            random,
        }
    }

    /// From now on peers are offered these features beyond RoCEv2.
    pub(crate) fn offer(&mut self, features: u64, mode: AirMode) {
        self.air.offer(features, mode, &mut self.random);
    }

    /// The MTU of the interface.
    pub(crate) fn note_interface_mtu(&mut self, mtu: u32, now: Time) {
        self.air.note_interface_mtu(&mut self.qps, mtu, now);
    }

    /// A doorbell rang: takes what was posted to the queue pairs that share it.
    pub(crate) fn answer(&mut self, doorbell: Doorbell, now: Time) {
        for index in doorbell.sharers(self.qps.end()) {
            self.take_work(index, now);
        }
    }

    /// Takes what was posted to a queue pair.
    pub(crate) fn take_work(&mut self, index: QpIndex, now: Time) {
        self.take_posted(index);
        self.settle(index, now);
    }

    fn take_posted(&mut self, index: QpIndex) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        match slot.qp.state() {
            QpState::Reset | QpState::Init | QpState::ReadyToReceive => {
                // Posted while another thread took the queue pair back: forgotten, as by the change itself.
                slot.side.send.discard();
            }
            QpState::ReadyToSend
            | QpState::SendQueueDrain
            | QpState::SendQueueError
            | QpState::Error => {
                while self.take_request(index) {}
                self.with(index, |qp, host| qp.flush_receives(host));
            }
        }
    }

    /// Takes one posted request; false when there is none.
    fn take_request(&mut self, index: QpIndex) -> bool {
        let Some(slot) = self.qps.slot(index) else {
            return false;
        };
        let Some(number) = slot.side.send.take() else {
            return false;
        };
        let is_datagram = slot.qp.qp_type() == QpType::Ud;
        let request = send_wqe::decode(
            slot.side.send.slot(number),
            number,
            is_datagram,
            slot.side.shared.signal_all,
        );
        let mut raw = (slot.qp.state() == QpState::ReadyToSend)
            .then(|| slot.raw.take())
            .flatten();
        self.with(index, |qp, host| match (request, &mut raw) {
            (Ok(request), None) => qp.post_send(request, host),
            (Ok(request), Some(raw)) => raw.send(&request, qp, host),
            (Err(_), _) => refuse_request(qp, number, host),
        });
        if let (Some(raw), Some(slot)) = (raw, self.qps.slot(index)) {
            slot.raw = Some(raw);
        }
        true
    }

    /// Calls the queue pairs whose time has come.
    #[inline]
    pub(crate) fn expire(&mut self, now: Time) {
        if let Some(gsi) = &mut self.gsi {
            gsi.expire(now);
        }
        while let Some(index) = self.timers.pop_due(now) {
            let Some(slot) = self.qps.slot(index) else {
                continue;
            };
            if slot.qp.poll_timeout().is_some_and(|due| due <= now) {
                self.with(index, |qp, host| qp.handle_timeout(now, host));
            }
            self.settle(index, now);
        }
    }

    /// Tells of connections what has happened to them.
    #[inline]
    pub(crate) fn tell_all(&mut self, now: Time) {
        if let Some(gsi) = &mut self.gsi {
            gsi.tell_all(now, &mut self.qps, &mut self.cqs);
        }
    }

    /// When [`Tables::expire`] wants to be called next, and [`Tables::fill`] if the port takes packets.
    #[inline]
    pub(crate) fn deadline(&self, can_send: bool) -> Option<Time> {
        let management = self.gsi.as_ref().and_then(Gsi::next);
        let air = self.air.due().filter(|_| can_send);
        let keying = self.keying.next().filter(|_| can_send);
        let all = [self.timers.next(), management, air, keying];
        all.into_iter().flatten().min()
    }

    /// Whether something is to be sent.
    pub(crate) fn has_active(&self) -> bool {
        !self.active.is_empty() || self.gsi.as_ref().is_some_and(Gsi::has_transmits)
    }

    /// Draws the consequences of anything that was done with a queue pair.
    pub(crate) fn settle(&mut self, index: QpIndex, now: Time) {
        self.note(index, now);
        if let Some(slot) = self.qps.slot(index)
            && slot.qp.wants_transmit()
        {
            self.active.join(index, &mut slot.turn);
        }
    }

    /// Completion queues overflowed: the queue pairs that use them end in ERROR, since what they did cannot be told, and each says
    /// so (`IBV_EVENT_QP_FATAL`). What they flush may make another queue overflow.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_overrun(&mut self, now: Time) {
        let error = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        while let Some(Overrun { cq, qpn }) = self.cqs.take_overrun() {
            for index in self.qps.indices() {
                let is_affected = self.qps.slot(index).is_some_and(|slot| {
                    let uses = slot.side.send_cq == cq || slot.side.recv_cq == cq;
                    let runs = !matches!(slot.qp.state(), QpState::Reset | QpState::Error);
                    runs && (uses || slot.qp.qpn() == qpn)
                });
                if is_affected {
                    self.take_posted(index);
                    self.with(index, |qp, host| {
                        qp.modify(&error, AttrMask::STATE, host).ok();
                    });
                    self.note(index, now);
                    // The state is published first: a program may look at it as soon as the event arrives.
                    self.with(index, |_, host| host.event(QpEvent::Fatal));
                }
            }
        }
    }

    /// As `settle`, without a place in the line.
    fn note(&mut self, index: QpIndex, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        self.timers.set(index, slot.qp.poll_timeout());
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
                self.note_loss(peer, loss, now);
                if loss == Loss::Timeout
                    && let Some(next) = air.and_then(|air| self.air.ask_again(air))
                {
                    // The peer is silent: the line is let go, one by one.
                    self.join_line(next);
                }
            }
            self.peers.update(peer, before, after, acknowledged, mtu);
            if after < before {
                self.unblock(peer);
            }
        }
        if entered && state == QpState::Error {
            // A receive whose poster did not see the state is seen here.
            self.with(index, |qp, host| qp.flush_receives(host));
        }
    }

    fn note_loss(&mut self, peer: PeerIndex, loss: Loss, now: Time) {
        if self.peers.lost(peer, now) {
            self.counters.count(EngineCounter::WindowDecreases);
        }
        match loss {
            Loss::Gap => self.peers.answered(peer),
            Loss::Timeout => {
                for _ in 0..self.peers.fell_silent(peer) {
                    if let Some(index) = self.peers.let_go(peer) {
                        self.go_on(index);
                    }
                }
            }
        }
    }

    /// Lets the next one go on whom the window held back, if it has room now.
    #[inline]
    pub(crate) fn unblock(&mut self, peer: PeerIndex) {
        if let Some(index) = self.peers.unblock(peer) {
            self.go_on(index);
        }
    }

    fn go_on(&mut self, index: QpIndex) {
        if let Some(slot) = self.qps.slot(index) {
            slot.blocked = false;
        }
        self.join_line(index);
    }

    /// Puts a queue pair at the end of the line of those that send.
    pub(crate) fn join_line(&mut self, index: QpIndex) {
        if let Some(slot) = self.qps.slot(index) {
            self.active.join(index, &mut slot.turn);
        }
    }

    /// It is the queue pair's turn to send to a peer whose rate is controlled.
    fn give_turn(&mut self, index: QpIndex) {
        if let Some(slot) = self.qps.slot(index) {
            slot.waits = false;
        }
        self.join_line(index);
    }

    /// Changes attributes and state. `source` is what the source GID index stands for.
    pub(crate) fn modify(
        &mut self,
        index: QpIndex,
        attributes: &QpAttributes,
        mask: AttrMask,
        source: Option<Source>,
        now: Time,
    ) -> Result<(), Error> {
        // What was posted before is sent, or flushed, before.
        self.take_work(index, now);
        let changed = self.with(index, |qp, host| qp.modify(attributes, mask, host));
        changed.ok_or(Error::Gone("the queue pair"))??;
        if let Some(slot) = self.qps.slot(index) {
            if slot.qp.state() == QpState::Reset {
                slot.side.send.discard();
                slot.side.recv.discard();
                slot.side.held.clear();
                self.disconnect(index, now);
            } else if slot.qp.qp_type().is_connected() && mask.contains(AttrMask::AV) {
                let before = slot.connection.map(|connection| connection.remote);
                if before.is_some_and(|before| Gid::from(before) != attributes.path.gid) {
                    slot.qp.forget_peer_tag();
                }
                self.disconnect(index, now);
                self.connect(index, &attributes.path, source);
                self.begin_keying(index, now);
                self.with_air(|air, view| air.join_air(view, index, now));
            }
        }
        self.settle(index, now);
        Ok(())
    }

    /// The way to the network is gone for good: every queue pair that runs ends in ERROR, so that what was posted
    /// completes.
    pub(crate) fn fail_all(&mut self, now: Time) {
        self.air.stop();
        let error = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        for index in self.qps.indices() {
            let runs = self
                .qps
                .slot(index)
                .is_some_and(|slot| slot.qp.state().receives());
            if runs {
                self.take_work(index, now);
                self.with(index, |qp, host| {
                    qp.modify(&error, AttrMask::STATE, host).ok()
                });
                self.settle(index, now);
            }
        }
    }

    fn connect(&mut self, index: QpIndex, path: &Path, source: Option<Source>) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let Some(Source { local, on_link }) = source else {
            return;
        };
        let remote = local.peer(path.gid);
        slot.silence = None;
        let peer = self.peers.join(remote, None);
        self.peers.update(peer, 0, slot.in_flight, false, 0);
        slot.connection = Some(Connection {
            peer,
            remote,
            local,
            source_index: path.sgid_index,
            source_port: 0,
            on_link,
            air: None,
        });
    }

    fn disconnect(&mut self, index: QpIndex, now: Time) {
        self.note(index, now);
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        if let Some(connection) = slot.connection.take() {
            slot.blocked = false;
            slot.waits = false;
            slot.hungry = false;
            slot.seal = None;
            self.keying.remove(index);
            self.peers.leave(connection.peer, index, slot.in_flight);
            self.with_air(|air, view| air.leave_air(view, index, &connection));
            // What it had under way is room for the others.
            self.unblock(connection.peer);
        }
    }

    /// Which local address a connected queue pair uses.
    pub(crate) fn source_index(&mut self, index: QpIndex) -> Option<u8> {
        self.qps
            .slot(index)?
            .connection
            .map(|connection| connection.source_index)
    }

    /// The queue pair is about to go: its peer, which may wait for an answer that was lost, gets the last one again.
    pub(crate) fn farewell(&mut self, index: QpIndex, now: Time) {
        if let Some(slot) = self.qps.slot(index) {
            slot.qp.farewell();
        }
        self.settle(index, now);
    }

    /// Takes a shared receive queue out. Nobody counts the targets of extended connections that may hold receives of it: so
    /// they are looked for.
    pub(crate) fn remove_srq(&mut self, number: SrqIndex) {
        let slot = self.srqs.slot(number);
        if let Some(id) = slot.and_then(|slot| slot.extended.map(|_| slot.shared.id)) {
            for index in self.qps.indices() {
                if let Some(slot) = self.qps.slot(index) {
                    slot.side.held.forget(id);
                }
            }
        }
        self.srqs.remove(number);
    }

    /// What is held on to, but for memory of rings.
    pub(crate) fn inventory(&self) -> Inventory {
        Inventory {
            queue_pairs: self.qps.count(),
            regions: self.memory.count(),
            completion_queues: self.cqs.count(),
            shared_queues: self.srqs.count(),
            timers: self.timers.count(),
            waiting: self.active.count() + self.air.waiting() + self.qps.wait_for_keys(),
            peers: self.peers.count(),
            ring_bytes: 0,
        }
    }

    /// Takes a queue pair out.
    pub(crate) fn remove(&mut self, index: QpIndex, now: Time) {
        self.disconnect(index, now);
        self.active.remove(index);
        self.timers.remove(index);
        self.keying.remove(index);
        self.qps.release(index);
    }

    /// Calls a queue pair with what it may touch.
    pub(crate) fn with<R>(
        &mut self,
        index: QpIndex,
        call: impl FnOnce(&mut QueuePair, &mut QpHost<'_>) -> R,
    ) -> Option<R> {
        let QpSlot { qp, side, .. } = self.qps.slot(index)?;
        let mut host = QpHost {
            side,
            memory: &mut self.memory,
            srqs: &mut self.srqs,
            cqs: &mut self.cqs,
            counters: &mut self.counters,
        };
        Some(call(qp, &mut host))
    }
}

/// A request that no poster of ours writes: the queue pair is done for.
fn refuse_request(qp: &mut QueuePair, number: u32, host: &mut QpHost<'_>) {
    let error = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    qp.modify(&error, AttrMask::STATE, host).ok();
    let status = Status::LocalQpOperationError;
    let completion = Completion::with_status(0, CompletionOpcode::Send, status, qp.qpn());
    host.complete_send(Slot(number), Some(completion));
    host.event(QpEvent::Fatal);
}
