//! Runs of middle packets ([`Run`]): of requests, and of READ responses.

use airdma_wire::Bth;

use super::{Requester, Turn};
use crate::attributes::QpAttributes;
use crate::host::Host;
use crate::operation::Operation;
use crate::request_packet::middle_opcode;
use crate::run::{Run, RunHeaders, RunLimits};
use crate::time::Time;

impl Requester {
    /// Writes what [`poll_transmit`](Self::poll_transmit) would write next, as far as it is new
    /// middle packets of one SEND or WRITE.
    pub(crate) fn poll_run<H: Host>(
        &mut self,
        turn: &Turn,
        attributes: &QpAttributes,
        limits: RunLimits,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Run> {
        // With nothing in flight the window allows one packet whatever its size, no timer runs, and
        // retransmissions are counted.
        if self.next != self.sent_max
            || self.next == self.acked
            || self.locals > 0
            || self.wants_repair()
        {
            return None;
        }
        let entry = self.sendable(attributes, turn.draining)?;
        let opcode = middle_opcode(&entry.request.operation)?;
        let index = self.next - entry.first;
        if index == 0 {
            return None;
        }
        let payload = entry.payload;
        let middle = u64::from(entry.packets - 1) - index;
        let packets = (middle.min(self.packets_in_flight_left()) as usize)
            .min(turn.credit.div_ceil(payload) as usize);
        let run = Run::new(packets, payload, limits, out)?;
        let (slot, offset) = (entry.request.slot, entry.offset(index as u32));
        let before = (self.next, self.sent_max, self.bytes_since_ack_request);
        let headers = RunHeaders {
            opcode,
            dest_qpn: attributes.dest_qpn,
            first: self.psn_of(self.next),
            tag: turn.tag,
        };
        let mut asked = false;
        headers.emit(&run, out, |index| {
            asked = self.sent_middle(turn.credit - index * payload, payload);
            asked
        });
        if host.gather_run(slot, offset, out, run.payloads()).is_err() {
            (self.next, self.sent_max, self.bytes_since_ack_request) = before;
            return None;
        }
        if asked && let Some(repair) = &mut self.repair {
            repair.put_off_probe(turn.now, true, self.acked);
        }
        Some(run)
    }

    /// Handles a middle packet of the current READ response, if it is the expected one.
    ///
    /// If false, nothing was done, and the caller must call
    /// [`handle_response`](Self::handle_response).
    #[inline(always)] // as in the queue pair
    pub(crate) fn take_middle<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        bth: &Bth,
        payload: &[u8],
        host: &mut H,
    ) -> bool {
        if self.acked >= self.sent_max || bth.psn != self.psn_of(self.acked) {
            return false;
        }
        if let Some(repair) = &self.repair
            && repair.answers_wait()
        {
            return false;
        }
        let Some(entry) = self.queue.front() else {
            return false;
        };
        let is_read = matches!(entry.request.operation, Operation::Read { .. });
        if !is_read || entry.end() - self.acked < 2 || payload.len() != entry.payload as usize {
            return false;
        }
        let offset = (self.acked - entry.first) as u32 * entry.payload;
        let slot = entry.request.slot;
        if host.scatter(slot, offset, payload).is_err() {
            return false;
        }
        if let Some(repair) = &mut self.repair {
            repair.note_heard(self.acked, now);
        }
        self.acked += 1;
        self.progressed(now, attributes);
        true
    }
}
