//! Whose turn it is to transmit, and how much.

use super::{ROUND_BYTES, Tables};
use crate::air::Weight;
use crate::counter_names::EngineCounter;
use crate::index::{AirIndex, QpIndex};
use crate::limits::PACKET_LEN_MAX;
use crate::seal::datagrams::{Name, Readiness};
use crate::seal::{SEALED_LEN_MAX, Seal};
use crate::tables::destination::destination;
use crate::tables::qp_host::QpHost;
use crate::tables::qp_table::{Connection, QpSlot};
use crate::worker::gsi::Gsi;
use airdma_port::{Port, TransmitBatch};
use airdma_transport::{RunLimits, Time};
use airdma_wire::Bth;
use airdma_wire::sealed::SEALED_OVERHEAD;

/// Why a turn to transmit ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnEnd {
    /// All was sent that it may send.
    Used,
    /// There is nothing to send, or no room in the peer's window.
    NothingToSend,
    BatchFull,
    /// The rate to the peer does not allow it now.
    Paced,
}

impl Tables {
    /// Fills the batch with what the queue pairs have to send, fairly, up to [`ROUND_BYTES`] or until it is full.
    #[inline]
    pub(crate) fn fill(&mut self, now: Time, port: &mut dyn Port, batch: &mut TransmitBatch) {
        let mut budget = ROUND_BYTES;
        let is_due = self.air.is_due(now)
            || self.keying.next().is_some_and(|due| due <= now)
            || self.gsi.as_ref().is_some_and(Gsi::has_transmits);
        if is_due {
            match self.fill_management(now, port, batch) {
                Some(sent) => budget -= sent,
                None => return,
            }
        }
        while budget > 0 {
            let Some(index) = self.active.first() else {
                return;
            };
            let (sent, end) = self.take_turn(index, now, budget, batch);
            budget -= sent;
            if end == TurnEnd::BatchFull {
                return;
            }
        }
    }

    /// Adds the messages to peers in air mode, those that agree on keys, and those of queue pair 1, and returns their bytes; `None` when the batch is full.
    #[inline(never)] // most rounds have none
    fn fill_management(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        batch: &mut TransmitBatch,
    ) -> Option<i64> {
        let mut bytes = 0;
        while self.air.is_due(now) {
            let out = batch.reserve(PACKET_LEN_MAX)?;
            let Some((len, destination)) =
                self.with_air(|air, view| air.poll_transmit(view, now, port, out))
            else {
                break;
            };
            batch.commit(len, destination);
            bytes += len as i64;
        }
        while self.keying.next().is_some_and(|due| due <= now) {
            let out = batch.reserve(PACKET_LEN_MAX)?;
            let Some((len, destination)) = self.poll_keying(now, out) else {
                break;
            };
            let len = self.sign(out, len, &destination);
            batch.commit(len, destination);
            bytes += len as i64;
        }
        while let Some(gsi) = self.gsi.as_mut().filter(|gsi| gsi.has_transmits()) {
            let out = batch.reserve(PACKET_LEN_MAX)?;
            if let Some((len, destination)) = gsi.poll_transmit(now, &self.rows, out) {
                let len = self.sign(out, len, &destination);
                batch.commit(len, destination);
                bytes += len as i64;
            }
        }
        Some(bytes)
    }

    /// Lets the first in line transmit `allowance` bytes at most, and its last packet beyond; returns how many it did.
    /// What follows from it is drawn once, at the end.
    #[inline(never)] // a round in which none is in line saves no registers for it
    fn take_turn(
        &mut self,
        index: QpIndex,
        now: Time,
        allowance: i64,
        batch: &mut TransmitBatch,
    ) -> (i64, TurnEnd) {
        let air = self.paced_by(index);
        let Some(slot) = self.qps.slot(index) else {
            self.active.leave(None);
            return (0, TurnEnd::NothingToSend);
        };
        if let Some(seal) = &mut slot.seal
            && seal.waits(now, &slot.qp)
        {
            let due = seal.due(now);
            self.keying.set(index, due);
            self.active.leave(Some(&mut slot.turn));
            self.note(index, now);
            return (0, TurnEnd::NothingToSend);
        }
        let QpSlot {
            qp,
            side,
            seal,
            datagrams,
            ..
        } = slot;
        let mut host = QpHost {
            side,
            memory: &mut self.memory,
            srqs: &mut self.srqs,
            cqs: &mut self.cqs,
            counters: &mut self.counters,
        };
        let permit = air.map_or(Some(u64::MAX), |air| {
            // Who has much waits for a whole burst, so that it leaves in one segmented send.
            let wanted = if slot.hungry {
                u64::MAX
            } else {
                PACKET_LEN_MAX as u64
            };
            let weight = Weight::of(qp.attributes().path.traffic_class);
            let asks = (index, weight);
            self.air.admit(air, asks, wanted, &mut slot.waits, now)
        });
        let Some(permit) = permit else {
            self.active.leave(Some(&mut slot.turn));
            return (0, TurnEnd::Paced);
        };
        let permit = i64::try_from(permit).unwrap_or(i64::MAX);
        let allowance = allowance.min(slot.turn.deficit()).min(permit);
        let bundles = air.is_some_and(|air| self.air.bundles(air)) && qp.sends_new();
        let path_mtu = qp.attributes().path_mtu.bytes() as usize;
        let (mut sent, mut count) = (0, 0);
        let mut last_path = None;
        let takes_runs = batch.takes_runs();
        let mut full = false;
        let seals = seal.is_some() || datagrams.is_some();
        let spare = seal.as_ref().map_or(0, |_| SEALED_OVERHEAD);
        let end = loop {
            if sent >= allowance {
                break TurnEnd::Used;
            }
            let credit = slot.connection.map_or(u32::MAX, |connection| {
                let in_flight = (slot.in_flight, qp.in_flight_bytes());
                self.peers.credit(connection.peer, in_flight, slot.blocked)
            });
            if full {
                let len = Bth::LEN + qp.payload_max() as usize;
                let limits = RunLimits {
                    packets: ((allowance - sent) as usize).div_ceil(len),
                    spare,
                };
                let out = batch.reserve_run(len + spare, limits.packets);
                if let Some(run) = qp.poll_run(now, credit, limits, &mut host, out) {
                    if let Some(session) = seal.as_deref_mut().and_then(Seal::session) {
                        session.seal_run(out, &run);
                    }
                    batch.commit_run(run.len + spare, run.packets);
                    sent += (run.packets * run.len) as i64;
                    count += run.packets as u64;
                    full = false;
                    continue;
                }
            }
            let Some(out) = batch.reserve(SEALED_LEN_MAX) else {
                break TurnEnd::BatchFull;
            };
            let mut peer = None;
            if seals
                && let Some(datagrams) = datagrams
                && let Some((path, number)) = qp.next_datagram()
            {
                let to = destination(&path, &self.rows);
                let local = self.rows.get(usize::from(to.source_index)).copied();
                peer = local.flatten().map(|local| Name {
                    local,
                    remote: to.address,
                    number,
                });
                if let Some(peer) = peer {
                    let (ready, due) = datagrams.prepare(peer, to, now, &mut self.random);
                    self.keying.set(index, due);
                    if ready == Readiness::Waits {
                        break TurnEnd::NothingToSend;
                    }
                }
            }
            let room = &mut out[..PACKET_LEN_MAX];
            let Some(mut transmit) = qp.poll_transmit(now, credit, &mut host, room) else {
                break TurnEnd::NothingToSend;
            };
            // Only behind such a packet its message may go on.
            full = transmit.len > path_mtu && takes_runs;
            if seals {
                let session = match (seal.as_deref_mut(), datagrams.as_deref_mut()) {
                    (Some(seal), _) => seal.session(),
                    (None, Some(datagrams)) => peer.and_then(|peer| datagrams.session(peer)),
                    (None, None) => None,
                };
                let len = session.and_then(|session| session.seal(out, transmit.len));
                let Some(len) = len else {
                    // The peer did not agree on keys: it gets nothing.
                    host.counters.count(EngineCounter::DropUnkeyed);
                    full = false;
                    sent += transmit.len as i64;
                    continue;
                };
                transmit.len = len;
            }
            if last_path == Some(transmit.path) {
                batch.commit_another(transmit.len);
            } else {
                let mut destination = destination(&transmit.path, &self.rows);
                if let Some(air) = air {
                    destination.tos = self.air.traffic_class(air, destination.tos);
                    destination.bundles = bundles;
                }
                batch.commit(transmit.len, destination);
                last_path = Some(transmit.path);
            }
            sent += transmit.len as i64;
            count += 1;
        };
        slot.hungry = end == TurnEnd::Used && air.is_some() && qp.wants_transmit();
        self.active.charge(&mut slot.turn, sent);
        match end {
            TurnEnd::NothingToSend => self.end_turn(index, now),
            TurnEnd::Used | TurnEnd::BatchFull | TurnEnd::Paced => self.note(index, now),
        }
        if let Some(air) = air {
            let has_more = end != TurnEnd::NothingToSend;
            let next = (self.air).sent(air, index, now, (sent as u64, count), has_more);
            if let Some(next) = next {
                self.give_turn(next);
            }
            if let Some(next) = self.air.next_beside(air) {
                self.join_line(next);
            }
        }
        (sent, end)
    }

    /// The peer whose pacer the queue pair has to ask. None to one that is silent: each finds out by its own timer if nobody is there,
    /// and one packet of each is no burden.
    fn paced_by(&mut self, index: QpIndex) -> Option<AirIndex> {
        let slot = self.qps.slot(index)?;
        let Connection { peer, air, .. } = slot.connection?;
        let air = air?;
        if !self.peers.is_silent(peer) {
            return Some(air);
        }
        let waited = std::mem::take(&mut slot.waits);
        if let Some(next) = self.air.pass(air, index, waited) {
            self.give_turn(next);
        }
        None
    }

    /// The first in line has nothing to send now, or no room in its peer's window.
    fn end_turn(&mut self, index: QpIndex, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return self.active.leave(None);
        };
        self.active.leave(Some(&mut slot.turn));
        if let Some(Connection { peer, .. }) = slot.connection {
            if !slot.qp.wants_transmit() {
                self.unblock(peer);
            } else if !std::mem::replace(&mut slot.blocked, true) {
                self.peers.block(peer, index);
            }
        }
        self.note(index, now);
    }
}
