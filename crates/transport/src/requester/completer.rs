//! The completer: responses retire requests, in order (IBTA 9.7.5 and 9.7.6).

use airdma_wire::{NakCode, Opcode, Packet, Psn, Qpn, Seth, Syndrome};

use super::{Entry, Local, Requester, status_of};
use crate::completion::{Completion, Status};
use crate::counter::Counter;
use crate::host::Host;
use crate::operation::{Extent, Operation};
use crate::queue_pair::View;
use crate::time::Time;

impl Requester {
    /// Handles one response packet. An error is the status of the oldest request.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        now: Time,
        view: View<'_>,
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
                self.handle_sack(now, view, psn.add(1), seth, host);
                return Ok(());
            }
            return self.handle_acknowledge(now, view, psn, aeth.syndrome, host);
        }
        self.handle_data(now, view, packet, host)
    }

    fn handle_acknowledge<H: Host>(
        &mut self,
        now: Time,
        view: View<'_>,
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
                if !self.retire_before(now, view, sequence + 1, host) {
                    host.count(Counter::ImpliedNaks);
                    return self.gap_seen();
                }
                Ok(())
            }
            Syndrome::RnrNak { timer } => {
                if self.retire_before(now, view, sequence, host) {
                    self.not_ready(now, timer)
                } else {
                    self.gap_seen()
                }
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.retire_before(now, view, sequence, host);
                self.gap_seen()
            }
            Syndrome::Nak(code) => {
                if !self.retire_before(now, view, sequence, host) {
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

    /// The sequence that a response refers to, unless it is stale or for a packet that was never
    /// sent.
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

    /// Retires everything before `to`.
    ///
    /// False if a READ or an atomic stands in between: only its own response retires it, so that
    /// response was lost.
    pub(super) fn retire_before<H: Host>(
        &mut self,
        now: Time,
        view: View<'_>,
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
                self.retire(&entry, view.qpn, host);
            }
        }
        if self.acked > before {
            if self.locals > 0 {
                self.retire_locals(view.qpn, host);
            }
            self.progressed(now, view.attributes);
        }
        self.acked >= to
    }

    /// Completes local requests that are done and have no request before them any more.
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

    /// Handles a READ response or an atomic acknowledgement.
    fn handle_data<H: Host>(
        &mut self,
        now: Time,
        view: View<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Status> {
        let Some(sequence) = self.response_sequence(packet.headers.bth.psn, host) else {
            return Ok(());
        };
        if !self.retire_before(now, view, sequence, host) {
            if self.repair.is_some() {
                self.handle_early_answer(now, view.attributes, sequence, packet, host);
                return Ok(());
            }
            host.count(Counter::ImpliedNaks);
            return self.gap_seen();
        }
        let Some(entry) = self.queue.front().copied() else {
            return Ok(());
        };
        place_answer(&entry, sequence, packet, host)?;
        self.answered(view.qpn, host);
        self.progressed(now, view.attributes);
        if let Some(repair) = &mut self.repair {
            repair.note_heard(sequence, now);
            return self.handle_answered(now, view, host);
        }
        Ok(())
    }

    /// Notes that the oldest packet has its response.
    pub(super) fn answered<H: Host>(&mut self, qpn: Qpn, host: &mut H) {
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
}

/// Places the data of a response where the request wants it.
pub(super) fn place_answer<H: Host>(
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
    if operation.ends_without_data() && is_read_response && packet.payload.is_empty() {
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

/// Every response except the last carries exactly one path MTU (IBTA 9.7.5.1.1), or what the
/// request asked for.
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
