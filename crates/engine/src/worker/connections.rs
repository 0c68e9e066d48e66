//! Queue pairs that change state: connected, in error, destroyed.

use super::state::WorkerState;
use crate::index::{QpIndex, SrqIndex};
use crate::sharing::steering::range_of;
use crate::tables::cq_table::Overrun;
use crate::tables::qp_table::{Connection, Source};
use crate::{AttrMask, Error, QpAttributes, QpState};
use airdma_transport::{Host, Path, QpEvent, QpType, Time};
use airdma_wire::Gid;

impl WorkerState {
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
        let mut change = self.change(index, now);
        let changed = change.call(|qp, host| qp.modify(attributes, mask, host));
        changed.ok_or(Error::Gone("the queue pair"))??;
        let state = change.state();
        if mask.contains(AttrMask::SQ_PSN) {
            state.begin_records(index);
        }
        state.follow_state(index, attributes, mask, source, now);
        if mask.contains(AttrMask::RATE_LIMIT) {
            state.follow_rate_limit(index, 0, now);
        }
        Ok(())
    }

    /// A queue pair has other attributes: it is connected, or disconnected.
    fn follow_state(
        &mut self,
        index: QpIndex,
        attributes: &QpAttributes,
        mask: AttrMask,
        source: Option<Source>,
        now: Time,
    ) {
        if let Some(slot) = self.qps.slot(index) {
            if slot.qp.state() == QpState::Reset {
                slot.side.send.discard();
                slot.side.recv.discard();
                slot.side.held.clear();
                if let Some(held) = &mut slot.side.held_sends {
                    held.clear();
                }
                slot.limit = None;
                self.forget_records(index);
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
                self.listen_for_peer(index);
            }
        }
    }

    /// The peer of a reliable connection can learn from the kernel that this process exists.
    fn listen_for_peer(&mut self, index: QpIndex) {
        let (Some(presence), Some(slot)) = (&mut self.presence, self.qps.slot(index)) else {
            return;
        };
        let local = slot.connection.and_then(|connection| connection.local.ip());
        if let Some(local) = local.filter(|_| slot.qp.qp_type() == QpType::Rc) {
            presence.listen(local, range_of(slot.qp.qpn()));
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
        let peer = self.scheduler.peers.join(remote, None);
        self.scheduler
            .peers
            .update(peer, 0, slot.in_flight, false, 0);
        slot.connection = Some(Connection {
            peer,
            remote,
            local,
            source_index: path.sgid_index,
            source_port: 0,
            on_link,
            range: range_of(slot.qp.attributes().dest_qpn),
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
            self.scheduler.keying.remove(index);
            self.scheduler
                .peers
                .leave(connection.peer, index, slot.in_flight);
            self.with_air(|air, view| air.leave_air(view, index, &connection));
            // The packets that it had in flight make room for those of the peer's other queue
            // pairs.
            self.scheduler.unblock(&mut self.qps, connection.peer);
        }
    }

    /// Which local address a connected queue pair uses.
    pub(crate) fn source_index(&mut self, index: QpIndex) -> Option<u8> {
        self.qps
            .slot(index)?
            .connection
            .map(|connection| connection.source_index)
    }

    /// The queue pair is about to go: its peer, which may wait for an answer that was lost, gets
    /// the last one again.
    pub(crate) fn repeat_last_ack(&mut self, index: QpIndex, now: Time) {
        self.change(index, now).call(|qp, _| qp.repeat_last_ack());
    }

    /// Takes a queue pair out.
    pub(crate) fn remove(&mut self, index: QpIndex, now: Time) {
        self.disconnect(index, now);
        self.scheduler.forget(index);
        self.record_peers.forget(index, &mut self.scheduler.peers);
        self.raw_frames.remove(&index);
        self.record_takers.retain(|&taker| taker != index);
        self.ask_pacer(index, None, 0, now);
        self.qps.release(index);
    }

    /// Removes a shared receive queue. The targets of extended connections that hold receives of it
    /// are not counted, so all queue pairs are searched.
    pub(crate) fn remove_srq(&mut self, number: SrqIndex) {
        let slot = self.device.srqs.slot(number);
        if let Some(id) = slot.and_then(|slot| slot.extended.map(|_| slot.shared.id)) {
            for index in self.qps.indices() {
                if let Some(slot) = self.qps.slot(index) {
                    slot.side.held.forget(id);
                }
            }
        }
        self.device.srqs.remove(number);
    }

    /// Completion queues overflowed: the queue pairs that use them end in ERROR, since what they
    /// did cannot be told, and each says so (`IBV_EVENT_QP_FATAL`). What they flush may make
    /// another queue overflow.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_overrun(&mut self, now: Time) {
        let error = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        while let Some(Overrun { cq, qpn }) = self.device.cqs.take_overrun() {
            for index in self.qps.indices() {
                let is_affected = self.qps.slot(index).is_some_and(|slot| {
                    let uses = slot.side.send_cq == cq || slot.side.recv_cq == cq;
                    let runs = !matches!(slot.qp.state(), QpState::Reset | QpState::Error);
                    runs && (uses || slot.qp.qpn() == qpn)
                });
                if is_affected {
                    self.take_posted(index, now);
                    self.with(index, |qp, host| {
                        qp.modify(&error, AttrMask::STATE, host).ok();
                    });
                    self.note(index, now);
                    // The state is published first: a program may look at it as soon as the event
                    // arrives.
                    self.with(index, |_, host| host.event(QpEvent::Fatal));
                }
            }
        }
    }

    /// The way to the network is gone for good: every queue pair that runs ends in ERROR, so that
    /// what was posted completes.
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
                self.change(index, now)
                    .call(|qp, host| qp.modify(&error, AttrMask::STATE, host).ok());
            }
        }
    }
}
