//! Turns of queue pairs to transmit, and their bytes.

use super::state::WorkerState;
use crate::air::Weight;
use crate::counter_names::EngineCounter;
use crate::index::{AirIndex, QpIndex};
use crate::limits::PACKET_LEN_MAX;
use crate::memory::RunSums;
use crate::random::Random;
use crate::seal::datagrams::{DatagramSeals, Name, Readiness};
use crate::seal::{SEALED_LEN_MAX, Seal};
use crate::tables::destination::destination;
use crate::tables::qp_host::QpHost;
use crate::tables::qp_table::{Connection, QpSlot};
use crate::worker::gsi::Gsi;
use airdma_port::{Destination, Port, TransmitBatch};
use airdma_transport::{QpType, QueuePair, Run, RunLimits, Time};
use airdma_wire::piece::{PIECE_HEADER_LEN, emit_piece};
use airdma_wire::sealed::SEALED_OVERHEAD;
use airdma_wire::{Bth, Neighbour, Opcode};

/// Why a turn to transmit ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// All was sent that it may send.
    Used,
    /// There is nothing to send, or no room in the peer's window.
    NothingToSend,
    BatchFull,
    /// The rate to the peer does not allow it now.
    Paced,
    /// The rate limit of the queue pair allows no more requests now.
    Limited,
}

/// What a queue pair may send in its turn.
#[derive(Clone, Copy)]
pub(super) struct Admitted {
    /// The peer, if its rate is controlled.
    air: Option<AirIndex>,
    /// Bytes; the last packet may go beyond.
    pub(super) allowance: i64,
    /// The packets leave in bundles.
    bundles: bool,
    /// Bytes of requests that the rate limit of the queue pair permits, if it has one; the first
    /// packet may have more.
    pub(super) limit: Option<u64>,
    /// Write-Records are among its requests, or its datagrams may have to ask a pacer.
    by_destination: bool,
}

/// What a queue pair sent in its turn.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub(super) bytes: i64,
    pub(super) packets: u64,
    /// Bytes of requests that count against a rate limit.
    pub(super) limited: u64,
    pub(super) end: TurnEnd,
}

impl Sent {
    pub(super) const NOTHING: Sent = Sent {
        bytes: 0,
        packets: 0,
        limited: 0,
        end: TurnEnd::NothingToSend,
    };
}

/// Bytes that one round transmits at most, so that packets to receive do not wait: nearly two
/// segmented sends, of 65,000 bytes at most each.
pub(super) const ROUND_BYTES: i64 = 120 * 1024;
/// Bytes beyond these that fill the last of those sends: the rest of it would cost the kernel as
/// much as a whole one.
pub(super) const ROUND_REST_BYTES_MAX: i64 = 16 * 1024;

impl WorkerState {
    /// Fills the batch with what the queue pairs have to send, fairly, up to [`ROUND_BYTES`] or
    /// until it is full.
    #[inline]
    pub(crate) fn fill(&mut self, now: Time, port: &mut dyn Port, batch: &mut TransmitBatch) {
        let mut budget = ROUND_BYTES;
        let is_due = self.air.is_due(now)
            || self.scheduler.keying.next() <= now
            || self.gsi.as_ref().is_some_and(Gsi::has_transmits)
            || !self.record_answers.is_empty();
        if is_due {
            match self.fill_management(now, port, batch) {
                Some(sent) => budget -= sent,
                None => return,
            }
        }
        if self.fill_turns(now, budget, batch) {
            self.fill_turns(now, rest_of_last_send(batch), batch);
        }
    }

    /// Lets queue pairs take turns for `budget` bytes; returns whether these are used, and the
    /// batch is not full.
    #[inline(always)]
    fn fill_turns(&mut self, now: Time, mut budget: i64, batch: &mut TransmitBatch) -> bool {
        while budget > 0 {
            let Some(index) = self.scheduler.line.first() else {
                return false;
            };
            let (sent, end) = self.take_turn(index, now, budget, batch);
            budget -= sent;
            if end == TurnEnd::BatchFull {
                return false;
            }
        }
        true
    }

    /// Adds the answers to Write-Records, the messages to peers in air mode, those that agree on
    /// keys, and those of queue pair 1, and returns their bytes; `None` when the batch is full.
    #[inline(never)] // most rounds have none
    fn fill_management(
        &mut self,
        now: Time,
        port: &mut dyn Port,
        batch: &mut TransmitBatch,
    ) -> Option<i64> {
        let mut bytes = 0;
        while !self.record_answers.is_empty() {
            let out = batch.reserve(SEALED_LEN_MAX)?;
            if let Some((len, destination)) = self.poll_echo(port, now, out) {
                batch.commit(len, destination);
                bytes += len as i64;
            }
        }
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
        while self.scheduler.keying.next() <= now {
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
            if let Some((len, destination)) = gsi.poll_transmit(now, &self.device.rows, out) {
                let len = self.sign(out, len, &destination);
                batch.commit(len, destination);
                bytes += len as i64;
            }
        }
        Some(bytes)
    }

    /// Lets the first queue pair in line transmit `budget` bytes at most, and its last packet
    /// beyond; returns how many bytes it sent.
    #[inline(never)] // a round in which none is in line saves no registers for it
    fn take_turn(
        &mut self,
        index: QpIndex,
        now: Time,
        budget: i64,
        batch: &mut TransmitBatch,
    ) -> (i64, TurnEnd) {
        self.scheduler.note_no_delayed_ack(index);
        match self.admit(index, now, budget) {
            Ok(admitted) => {
                let (mut sent, air) = if admitted.by_destination {
                    match self.fill_by_destination(index, now, admitted, batch) {
                        Ok(sent) => sent,
                        Err(end) => return (0, end),
                    }
                } else {
                    (self.fill_turn(index, now, admitted, batch), admitted.air)
                };
                if let Some(limit) = admitted.limit {
                    sent.end = self.spend_limit(index, limit, sent);
                }
                self.conclude(index, now, air, sent);
                (sent.bytes, sent.end)
            }
            Err(end) => (0, end),
        }
    }

    /// Whether the queue pair whose turn it is may send, and how much: by its deficit, and by the
    /// pacer of its peer. If not, it leaves the line.
    #[inline(always)]
    fn admit(&mut self, index: QpIndex, now: Time, budget: i64) -> Result<Admitted, TurnEnd> {
        let air = self.paced_by(index);
        let Some(slot) = self.qps.slot(index) else {
            self.scheduler.line.leave(None);
            return Err(TurnEnd::NothingToSend);
        };
        if let Some(seal) = &mut slot.seal
            && seal.waits(now, &slot.qp)
        {
            let due = seal.due(now);
            self.scheduler.keying.set(index, due);
            self.scheduler.line.leave(Some(&mut slot.turn));
            self.note(index, now);
            return Err(TurnEnd::NothingToSend);
        }
        let limit = slot.limit.as_mut().map(|limit| limit.permit(now));
        let permit = air.map_or(Some(u64::MAX), |air| {
            // With much to send it waits for a whole burst, which leaves in one segmented send.
            let wanted = if slot.hungry {
                u64::MAX
            } else {
                PACKET_LEN_MAX as u64
            };
            let weight = Weight::of(slot.qp.attributes().path.traffic_class);
            let asks = (index, weight);
            self.air.admit(air, asks, wanted, &mut slot.waits, now)
        });
        let Some(permit) = permit else {
            self.scheduler.line.leave(Some(&mut slot.turn));
            return Err(TurnEnd::Paced);
        };
        let permit = i64::try_from(permit).unwrap_or(i64::MAX);
        Ok(Admitted {
            air,
            allowance: budget.min(slot.turn.deficit()).min(permit),
            bundles: air.is_some_and(|air| self.air.bundles(air)) && slot.qp.sends_new(),
            limit,
            by_destination: slot.qp.has_records()
                || air.is_none() && self.air.counts_datagrams() && slot.qp.qp_type() == QpType::Ud,
        })
    }

    /// Charges the rate limit of a queue pair with what it sent, and returns why its turn ends:
    /// since all is used that was permitted, if that is so.
    #[cold]
    #[inline(never)]
    fn spend_limit(&mut self, index: QpIndex, permitted: u64, sent: Sent) -> TurnEnd {
        if let Some(QpSlot { limit, qp, .. }) = self.qps.slot(index)
            && let Some(limit) = limit
        {
            limit.spend(sent.limited);
            let path_mtu = qp.attributes().path_mtu.bytes() as usize;
            let is_used = limited_credit(permitted, sent.limited, path_mtu) == 0;
            if is_used && sent.end == TurnEnd::NothingToSend && qp.wants_transmit() {
                return TurnEnd::Limited;
            }
        }
        sent.end
    }

    /// Fills the batch with packets of a queue pair, until its allowance, the window of its peer or
    /// its rate limit is used.
    #[inline(always)]
    fn fill_turn(
        &mut self,
        index: QpIndex,
        now: Time,
        admitted: Admitted,
        batch: &mut TransmitBatch,
    ) -> Sent {
        let mut sent = Sent::NOTHING;
        let Some(slot) = self.qps.slot(index) else {
            return sent;
        };
        let QpSlot {
            qp,
            side,
            seal,
            datagrams,
            ..
        } = slot;
        let mut host = QpHost {
            side,
            device: &mut self.device,
            counters: &mut self.counters,
            sums: RunSums {
                by: self.copy_sum.filter(|_| seal.is_none()),
                are_done: false,
            },
        };
        let path_mtu = qp.attributes().path_mtu.bytes() as usize;
        let mut last_path = None;
        // The packets of a connection have one in all of its turn.
        let changes_path = qp.qp_type() == QpType::Ud;
        let cut_above = slot.cut_above;
        let takes_runs = batch.takes_runs() && cut_above == usize::MAX;
        let mut full = false;
        let seals = seal.is_some() || datagrams.is_some();
        let is_limited = admitted.limit.is_some();
        let permitted = admitted.limit.unwrap_or(u64::MAX);
        sent.end = loop {
            if sent.bytes >= admitted.allowance {
                break TurnEnd::Used;
            }
            let mut credit = slot.connection.map_or(u32::MAX, |connection| {
                let in_flight = (slot.in_flight, qp.in_flight_bytes());
                self.scheduler
                    .peers
                    .credit(connection.peer, in_flight, slot.blocked)
            });
            if is_limited {
                let left = limited_credit(permitted, sent.limited, path_mtu);
                // What is left are responses, which a service without acknowledgements has not.
                if left == 0 && (qp.qp_type() == QpType::Uc || qp.repairs()) {
                    break TurnEnd::NothingToSend;
                }
                credit = credit.min(left);
            }
            if full {
                let allowance = admitted.allowance - sent.bytes;
                let responds = is_limited && qp.owes_responses();
                if let Some(run) = fill_run(qp, &mut host, seal, batch, (now, credit, allowance)) {
                    sent.bytes += (run.packets * run.len) as i64;
                    sent.packets += run.packets as u64;
                    if is_limited && !responds {
                        sent.limited += (run.packets * run.len) as u64;
                    }
                    full = false;
                    continue;
                }
            }
            if cut_above != usize::MAX && !has_room_for_pieces(batch, cut_above) {
                break TurnEnd::BatchFull;
            }
            let Some(out) = batch.reserve(SEALED_LEN_MAX) else {
                break TurnEnd::BatchFull;
            };
            let mut peer = None;
            if seals && let Some(datagrams) = datagrams {
                let keys = next_keys(qp, datagrams, &host.device.rows, now, &mut self.random);
                if let Some((name, ready, due)) = keys {
                    self.scheduler.keying.set(index, due);
                    if ready == Readiness::Waits {
                        break TurnEnd::NothingToSend;
                    }
                    peer = Some(name);
                }
            }
            let room = &mut out[..PACKET_LEN_MAX];
            let Some(mut transmit) = qp.poll_transmit(now, credit, &mut host, room) else {
                break TurnEnd::NothingToSend;
            };
            // Only a packet of full length may be followed by a run of its message.
            full = transmit.len > path_mtu && takes_runs;
            if is_limited && is_request(room) {
                sent.limited += transmit.len as u64;
            }
            if seals {
                let len = seal_packet(seal, datagrams, peer, out, transmit.len);
                let Some(len) = len else {
                    // The peer did not agree on keys: it gets nothing.
                    host.counters.count(EngineCounter::DropUnkeyed);
                    full = false;
                    sent.bytes += transmit.len as i64;
                    continue;
                };
                transmit.len = len;
            }
            if transmit.len > cut_above {
                let whole = &mut self.opened[..transmit.len];
                whole.copy_from_slice(&out[..transmit.len]);
                let mut destination = destination(&transmit.path, &host.device.rows);
                if let Some(air) = admitted.air {
                    destination.tos = self.air.traffic_class(air, destination.tos);
                }
                let had_room = commit_pieces(batch, whole, cut_above, destination);
                debug_assert!(had_room);
                last_path = None;
            } else if let Some(last) = last_path
                && (!changes_path || last == transmit.path)
            {
                batch.commit_another(transmit.len);
            } else {
                let mut destination = destination(&transmit.path, &host.device.rows);
                if let Some(air) = admitted.air {
                    destination.tos = self.air.traffic_class(air, destination.tos);
                    destination.bundles = admitted.bundles;
                }
                batch.commit(transmit.len, destination);
                last_path = Some(transmit.path);
            }
            sent.bytes += transmit.len as i64;
            sent.packets += 1;
            // A turn that is used up is charged as such: its queue pair is not the first any more.
            if sent.bytes < admitted.allowance && qp.has_sent_all() {
                break TurnEnd::NothingToSend;
            }
        };
        sent
    }

    /// Charges the line, the window and the pacer with what a queue pair sent in its turn.
    #[inline(always)]
    fn conclude(&mut self, index: QpIndex, now: Time, air: Option<AirIndex>, sent: Sent) {
        let Sent {
            bytes,
            packets,
            end,
            limited: _,
        } = sent;
        if let Some(slot) = self.qps.slot(index) {
            slot.hungry = end == TurnEnd::Used && air.is_some() && slot.qp.wants_transmit();
            self.scheduler.line.charge(&mut slot.turn, bytes);
        }
        match end {
            TurnEnd::NothingToSend => self.end_turn(index, now),
            TurnEnd::Limited => self.hold_back(index, now),
            TurnEnd::Used | TurnEnd::BatchFull | TurnEnd::Paced => self.note(index, now),
        }
        if let Some(air) = air {
            let has_more = !matches!(end, TurnEnd::NothingToSend | TurnEnd::Limited);
            let sent = (bytes as u64, packets);
            if let Some(next) = self.air.sent(air, index, now, sent, has_more) {
                self.scheduler.give_turn(&mut self.qps, next);
            }
            if let Some(next) = self.air.next_beside(air) {
                self.scheduler.join(&mut self.qps, next);
            }
        }
    }

    /// The peer whose pacer the queue pair has to ask. `None` for a silent peer: each queue pair
    /// sends one packet and learns by its own timer whether the peer is there.
    fn paced_by(&mut self, index: QpIndex) -> Option<AirIndex> {
        let slot = self.qps.slot(index)?;
        let Connection { peer, air, .. } = slot.connection?;
        let air = air.filter(|&air| self.air.paces(air))?;
        if !self.scheduler.peers.is_silent(peer) {
            return Some(air);
        }
        let waited = std::mem::take(&mut slot.waits);
        if let Some(next) = self.air.pass(air, index, waited) {
            self.scheduler.give_turn(&mut self.qps, next);
        }
        None
    }

    /// The first in line has nothing to send now, or no room in its peer's window.
    fn end_turn(&mut self, index: QpIndex, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return self.scheduler.line.leave(None);
        };
        self.scheduler.line.leave(Some(&mut slot.turn));
        if let Some(Connection { peer, .. }) = slot.connection {
            if !slot.qp.wants_transmit() {
                self.scheduler.unblock(&mut self.qps, peer);
            } else if !std::mem::replace(&mut slot.blocked, true) {
                self.scheduler.peers.block(peer, index);
            }
        }
        self.note(index, now);
    }
}

/// The payload that a rate limit still permits, of `permitted` bytes and after `sent` bytes of
/// requests: whole packets, and one in any case if it permits anything.
fn limited_credit(permitted: u64, sent: u64, path_mtu: usize) -> u32 {
    let packets = permitted.saturating_sub(sent) / (Bth::LEN + path_mtu) as u64;
    let packets = packets.max(u64::from(sent == 0 && permitted > 0));
    u32::try_from(packets.saturating_mul(path_mtu as u64)).unwrap_or(u32::MAX)
}

/// Whether a packet in the clear is a request.
fn is_request(packet: &[u8]) -> bool {
    let opcode = packet.first().map(|&first| Opcode::try_from(first));
    opcode.is_some_and(|opcode| opcode.is_ok_and(Opcode::is_request))
}

/// Bytes that fill the last segmented send of a batch, but for the last byte of its last packet; 0
/// if it is full or lacks too much.
#[inline(never)] // rounds of much data have one call
fn rest_of_last_send(batch: &TransmitBatch) -> i64 {
    let rest = batch.room_of_last_send().filter(|_| batch.takes_runs());
    let bytes = rest.map_or(0, |(packets, len)| (packets * len) as i64);
    if bytes > ROUND_REST_BYTES_MAX {
        return 0;
    }
    (bytes - 1).max(0)
}

/// The peer of the next sealed datagram, whether it has keys, and when to come again for them.
fn next_keys(
    qp: &mut QueuePair,
    datagrams: &mut DatagramSeals,
    rows: &[Option<Neighbour>],
    now: Time,
    random: &mut Random,
) -> Option<(Name, Readiness, Option<Time>)> {
    let (path, number) = qp.next_datagram(now)?;
    let to = destination(&path, rows);
    let local = rows.get(usize::from(to.source_index)).copied().flatten()?;
    let name = Name {
        local,
        remote: to.address,
        number,
    };
    let (ready, due) = datagrams.prepare(name, to, now, random);
    Some((name, ready, due))
}

/// Adds further full packets of the message of the last one to the batch: up to `allowance` bytes,
/// and the last packet beyond.
#[inline(always)]
fn fill_run(
    qp: &mut QueuePair,
    host: &mut QpHost<'_>,
    seal: &mut Option<Box<Seal>>,
    batch: &mut TransmitBatch,
    (now, credit, allowance): (Time, u32, i64),
) -> Option<Run> {
    let spare = seal.as_ref().map_or(0, |_| SEALED_OVERHEAD);
    let len = Bth::LEN + qp.payload_max() as usize;
    let limits = RunLimits {
        packets: (allowance as usize).div_ceil(len),
        spare,
    };
    let out = batch.reserve_run(len + spare, limits.packets);
    host.sums.are_done = false;
    let run = qp.poll_run(now, credit, limits, host, out)?;
    if let Some(session) = seal.as_deref_mut().and_then(Seal::session) {
        session.seal_run(out, &run);
    }
    if host.sums.are_done {
        batch.commit_summed_run(run.len, run.packets);
    } else {
        batch.commit_run(run.len + spare, run.packets);
    }
    Some(run)
}

/// Number of pieces, none longer than `len_max`, for the content of a packet behind its BTH.
fn pieces(body: usize, len_max: usize) -> usize {
    body.div_ceil(len_max - PIECE_HEADER_LEN)
}

/// Whether the batch has room for any packet in pieces. A packet without room for the last of them
/// would be lost.
#[cold]
fn has_room_for_pieces(batch: &mut TransmitBatch, len_max: usize) -> bool {
    batch.has_room(pieces(SEALED_LEN_MAX - Bth::LEN, len_max), len_max + 3)
}

/// Adds a packet to the batch in pieces of equal length, each no longer than `len_max`. Returns
/// whether all of it had room, as [`has_room_for_pieces`] tells.
#[cold]
fn commit_pieces(
    batch: &mut TransmitBatch,
    packet: &[u8],
    len_max: usize,
    destination: Destination,
) -> bool {
    let body = packet.len() - Bth::LEN;
    let count = pieces(body, len_max);
    let bytes = body.div_ceil(count).next_multiple_of(4);
    let mut next = Some(0);
    while let Some(offset) = next {
        let out = batch.reserve(PIECE_HEADER_LEN + bytes);
        let Some((len, more)) = out.and_then(|out| emit_piece(packet, offset, bytes, out)) else {
            return false;
        };
        batch.commit(len, destination);
        next = more;
    }
    true
}

/// Seals a packet of `len` bytes with the keys of the connection, or of the `peer` of a datagram.
/// `None`: there are no keys.
#[inline(always)]
pub(super) fn seal_packet(
    seal: &mut Option<Box<Seal>>,
    datagrams: &mut Option<Box<DatagramSeals>>,
    peer: Option<Name>,
    out: &mut [u8],
    len: usize,
) -> Option<usize> {
    let session = match (seal.as_deref_mut(), datagrams.as_deref_mut()) {
        (Some(seal), _) => seal.session(),
        (None, Some(datagrams)) => peer.and_then(|peer| datagrams.session(peer)),
        (None, None) => None,
    };
    session?.seal(out, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_in_pieces_has_room_or_waits() {
        let destination = Destination {
            address: Neighbour::from([192, 0, 2, 2]),
            source_index: 0,
            tos: 0,
            hop_limit: 64,
            flow_label: 0,
            bundles: false,
        };
        let packet = [7; SEALED_LEN_MAX / 4 * 4];
        let (mut whole, mut held) = (0, 0);
        for (bytes, packets_max) in [(16 * 1024, 8), (16 * 1024, 64)] {
            for len_max in [316, 700, 1_100] {
                for waiting in 0..64 {
                    let mut batch = TransmitBatch::with_capacity(bytes, packets_max);
                    for _ in 0..waiting {
                        if batch.reserve(256).is_some() {
                            batch.commit(256, destination);
                        }
                    }
                    if has_room_for_pieces(&mut batch, len_max) {
                        assert!(commit_pieces(&mut batch, &packet, len_max, destination));
                        whole += 1;
                    } else if batch.reserve(SEALED_LEN_MAX).is_some() {
                        held += 1;
                    }
                }
            }
        }
        assert!(whole > 0 && held > 0, "{whole}, {held}");
    }
}
