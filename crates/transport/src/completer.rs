//! The completer: responses retire requests, in order (IBTA 9.7.5 and 9.7.6). Where packets are repeated selectively, answers that come
//! before their turn are placed, and retire their requests in it.

use airdma_wire::{NakCode, Opcode, Packet, Psn, Qpn, Seth, Syndrome};

use crate::attributes::QpAttributes;
use crate::completion::{Completion, Status};
use crate::counter::Counter;
use crate::host::Host;
use crate::operation::{Extent, Operation};
use crate::queue_pair::Acknowledgement;
use crate::reorder::AHEAD_MAX;
use crate::requester::{Entry, Local, Requester, entry_at, status_of};
use crate::time::Time;

impl Requester {
    /// Takes one response packet. An error is the status of the request at the front.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Status> {
        let opcode = packet.headers.bth.opcode;
        let psn = packet.headers.bth.psn;
        if opcode == Opcode::RcAcknowledge {
            let Some(aeth) = packet.headers.aeth else {
                host.count(Counter::DropMalformed);
                return Ok(());
            };
            if self.repair.is_some()
                && matches!(aeth.syndrome, Syndrome::Ack { .. })
                && let Ok(seth) = Seth::parse(packet.payload)
            {
                host.count(Counter::AcksReceived);
                self.handle_sack(now, attributes, qpn, psn.add(1), seth, host);
                return Ok(());
            }
            return self.handle_acknowledge(now, attributes, qpn, psn, aeth.syndrome, host);
        }
        self.handle_data(now, attributes, qpn, packet, host)
    }

    fn handle_acknowledge<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        psn: Psn,
        syndrome: Syndrome,
        host: &mut H,
    ) -> Result<(), Status> {
        match syndrome {
            Syndrome::Ack { .. } => host.count(Counter::AcksReceived),
            Syndrome::RnrNak { .. } => host.count(Counter::RnrNaksReceived),
            Syndrome::Nak(_) => host.count(Counter::NaksReceived),
            Syndrome::Reserved(_) => {
                host.count(Counter::DropMalformed);
                return Ok(());
            }
        }
        let Some(sequence) = self.response_sequence(psn, host) else {
            return Ok(());
        };
        match syndrome {
            Syndrome::Ack { .. } => {
                if !self.acknowledge(now, attributes, qpn, sequence + 1, host) {
                    host.count(Counter::ImpliedNaks);
                    return self.gap_seen();
                }
                Ok(())
            }
            Syndrome::RnrNak { timer } => {
                if self.acknowledge(now, attributes, qpn, sequence, host) {
                    self.not_ready(now, timer)
                } else {
                    self.gap_seen()
                }
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.acknowledge(now, attributes, qpn, sequence, host);
                self.gap_seen()
            }
            Syndrome::Nak(code) => {
                if !self.acknowledge(now, attributes, qpn, sequence, host) {
                    return self.gap_seen();
                }
                match status_of(code) {
                    Some(status) => Err(status),
                    None => {
                        host.count(Counter::DropMalformed);
                        Ok(())
                    }
                }
            }
            Syndrome::Reserved(_) => Ok(()),
        }
    }

    /// Takes what the peer says of how far it is: `expected` and `missing`, with the round trip to it.
    pub(crate) fn handle_acknowledgement<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        told: &Acknowledgement<'_>,
        host: &mut H,
    ) {
        let Some(expected) = self.sequence_of(told.expected) else {
            return host.count(Counter::Duplicates);
        };
        if expected > self.sent_max {
            return host.count(Counter::DropGhost);
        }
        // A READ or an atomic is retired by its own answer, which may still be on its way.
        self.acknowledge(now, attributes, qpn, expected, host);
        let acked = self.acked;
        let psn = self.psn_of(acked);
        let Some(repair) = &mut self.repair else {
            return;
        };
        repair.note_told(expected);
        repair.set_rtt(told.rtt, told.told_within);
        let end = self.next.min(acked + u64::from(AHEAD_MAX));
        // Ranges come in order: each packet is looked at twice at most, whatever a hostile peer says.
        let ranges = || {
            told.missing.iter().scan(expected, |from, range| {
                let first = i64::from(range.first.distance_from(psn));
                let end = end.max(*from);
                let first = acked.saturating_add_signed(first).clamp(*from, end);
                *from = first.saturating_add(range.packets.into()).min(end);
                Some(first..*from)
            })
        };
        // What follows the last range is not known.
        let mut seen = expected;
        for missing in ranges() {
            repair.note_arrived(seen..missing.start, now);
            seen = missing.end;
        }
        let mut is_new = false;
        for sequence in ranges().flatten() {
            is_new |= repair.note_missing(sequence, acked, now);
        }
        if acked < self.next {
            repair.put_off_probe(now, self.next == self.posted, acked);
        }
        if is_new {
            self.note_loss();
        }
    }

    /// Whether `expected` may be how far the peer is: neither behind what it has acknowledged, nor ahead of what was sent.
    pub(crate) fn has_sent_before(&self, expected: Psn) -> bool {
        let sequence = self.sequence_of(expected);
        sequence.is_some_and(|sequence| sequence <= self.sent_max)
    }

    /// The sequence a response speaks of, unless it is stale or answers what was never sent.
    fn response_sequence<H: Host>(&self, psn: Psn, host: &mut H) -> Option<u64> {
        match self.sequence_of(psn) {
            None => {
                host.count(Counter::Duplicates);
                None
            }
            Some(sequence) if sequence >= self.sent_max => {
                host.count(Counter::DropGhost);
                None
            }
            Some(sequence) => Some(sequence),
        }
    }

    /// Retires everything before `to`. False if a READ or an atomic stands in between: only its
    /// own response retires it, so that response was lost.
    fn acknowledge<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        to: u64,
        host: &mut H,
    ) -> bool {
        let before = self.acked;
        while self.acked < to {
            let Some(entry) = self.queue.front().copied() else {
                break;
            };
            if entry.request.operation.is_read_or_atomic() {
                break;
            }
            self.acked = entry.end().min(to);
            if self.acked == entry.end() {
                self.retire(&entry, qpn, host);
            }
        }
        if self.acked > before {
            if self.locals > 0 {
                self.retire_locals(qpn, host);
            }
            self.progressed(now, attributes);
        }
        self.acked >= to
    }

    /// Completes the local requests that are done and have nothing before them any more.
    #[cold]
    pub(crate) fn retire_locals<H: Host>(&mut self, qpn: Qpn, host: &mut H) {
        while let Some(entry) = self.queue.front().copied()
            && entry.local == Local::Done
        {
            self.retire(&entry, qpn, host);
        }
    }

    fn retire<H: Host>(&mut self, entry: &Entry, qpn: Qpn, host: &mut H) {
        self.queue.pop_front();
        self.cursor = self.cursor.saturating_sub(1);
        if entry.packets > 0 {
            host.count(Counter::MessagesSent);
        } else {
            self.locals -= 1;
        }
        let request = &entry.request;
        let completion = request.signalled.then(|| Completion {
            byte_len: request.length,
            ..Completion::with_status(
                request.wr_id,
                request.operation.completion_opcode(),
                Status::Success,
                qpn,
            )
        });
        host.complete_send(request.slot, completion);
    }

    /// A READ response or an atomic acknowledgement.
    fn handle_data<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Status> {
        let Some(sequence) = self.response_sequence(packet.headers.bth.psn, host) else {
            return Ok(());
        };
        if !self.acknowledge(now, attributes, qpn, sequence, host) {
            if self.repair.is_some() {
                self.handle_early_answer(now, sequence, packet, host);
                return Ok(());
            }
            host.count(Counter::ImpliedNaks);
            return self.gap_seen();
        }
        let Some(entry) = self.queue.front().copied() else {
            return Ok(());
        };
        place_answer(&entry, sequence, packet, host)?;
        self.answered(qpn, host);
        self.progressed(now, attributes);
        if let Some(repair) = &mut self.repair {
            repair.note_heard(sequence, now);
            return self.handle_answered(now, attributes, qpn, host);
        }
        Ok(())
    }

    /// The packet at the front has its answer.
    fn answered<H: Host>(&mut self, qpn: Qpn, host: &mut H) {
        self.acked += 1;
        if let Some(entry) = self.queue.front().copied()
            && self.acked == entry.end()
        {
            self.retire(&entry, qpn, host);
            if self.locals > 0 {
                self.retire_locals(qpn, host);
            }
        }
    }

    /// An answer came although an earlier one did not. It goes where it belongs, unless an earlier request wants the same memory, which has to
    /// hold what the last one brings: then it waits. What is missing before it is asked for again. What is wrong with an answer shows in its
    /// turn.
    #[cold]
    fn handle_early_answer<H: Host>(
        &mut self,
        now: Time,
        sequence: u64,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let (queue, acked) = (&self.queue, self.acked);
        let Some(repair) = &mut self.repair else {
            return;
        };
        let Some(entry) = entry_at(queue, sequence) else {
            return;
        };
        if sequence - acked >= u64::from(AHEAD_MAX) {
            return host.count(Counter::DropEarly);
        }
        if repair.is_answered(sequence) {
            return host.count(Counter::Duplicates);
        }
        let find_in_the_way = || {
            let earlier = queue.partition_point(|other| other.first < entry.first);
            let mut earlier = queue.range(..earlier).rev();
            let last = earlier.find(|other| {
                other.request.operation.lands()
                    && host.share_memory(other.request.slot, entry.request.slot)
            });
            last.map(Entry::end)
        };
        let has_to_wait = entry.request.operation.lands()
            && repair.has_to_wait(entry.first, acked, find_in_the_way);
        let (is_here, why_not) = if has_to_wait {
            (repair.keep(sequence, packet), Counter::DropEarly)
        } else {
            let placed = place_answer(&entry, sequence, packet, host);
            (placed.is_ok(), Counter::DropMalformed)
        };
        let look_from = if is_here {
            repair.note_answered(sequence, acked, now)
        } else {
            host.count(why_not);
            repair.note_dropped(sequence, acked, now)
        };
        // It executes in order.
        repair.note_told(sequence);
        let awaits = |sequence| {
            entry_at(queue, sequence)
                .is_some_and(|entry| entry.request.operation.is_read_or_atomic())
        };
        let mut is_new = false;
        for earlier in look_from..sequence {
            if !repair.is_answered(earlier) && awaits(earlier) {
                is_new |= repair.note_missing_answer(earlier, acked, now);
            }
        }
        if is_new {
            host.count(Counter::ImpliedNaks);
            self.note_loss();
        }
    }

    /// The oldest answer came: so it is the turn of those that came before theirs, and of what was said to be executed before it came. An error
    /// is the status of the request at the front.
    fn handle_answered<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        host: &mut H,
    ) -> Result<(), Status> {
        loop {
            let told = self.repair.as_ref().map_or(0, |repair| repair.told());
            if told > self.acked {
                self.acknowledge(now, attributes, qpn, told, host);
            }
            let acked = self.acked;
            let Some(repair) = &mut self.repair else {
                return Ok(());
            };
            if !repair.take_answered(acked) {
                if repair.answers_wait() {
                    repair.note_missing_answer(acked, acked, now);
                }
                return Ok(());
            }
            if let Some(kept) = repair.take_kept(acked)
                && let Some(entry) = self.queue.front()
            {
                place_answer(entry, acked, &kept.packet(), host)?;
            }
            self.answered(qpn, host);
            self.progressed(now, attributes);
        }
    }
}

/// Puts what a packet answers where the request wants it.
fn place_answer<H: Host>(
    entry: &Entry,
    sequence: u64,
    packet: &Packet<'_>,
    host: &mut H,
) -> Result<(), Status> {
    let is_read_response = packet.headers.bth.opcode.is_read_response();
    let operation = &entry.request.operation;
    if matches!(operation, Operation::Read { .. }) && is_read_response {
        return place_read(entry, sequence, packet.payload, host);
    }
    if matches!(operation, Operation::AtomicWrite { .. })
        && is_read_response
        && packet.payload.is_empty()
    {
        return Ok(());
    }
    if operation.lands() && operation.extent() == Extent::Word {
        let original = packet.headers.atomic_ack.ok_or(Status::BadResponse)?;
        return host
            .scatter(entry.request.slot, 0, &original.to_ne_bytes())
            .map_err(|_| Status::LocalProtectionError);
    }
    Err(Status::BadResponse)
}

/// Every response but the last carries exactly one path MTU (IBTA 9.7.5.1.1), or what the request asked for.
fn place_read<H: Host>(
    entry: &Entry,
    sequence: u64,
    payload: &[u8],
    host: &mut H,
) -> Result<(), Status> {
    let index = u32::try_from(sequence - entry.first).expect("an entry has < 2^32 packets");
    let offset = index * entry.payload;
    let expected = (entry.request.length - offset).min(entry.payload);
    if payload.len() != expected as usize {
        return Err(Status::BadResponse);
    }
    host.scatter(entry.request.slot, offset, payload)
        .map_err(|_| Status::LocalProtectionError)
}
