//! The requester of an unreliable connection (IBTA 9.8.2).
//!
//! Packets leave in order, and a request is done when its last one has left. Nothing is in flight,
//! nothing is awaited, no timer runs.

use std::collections::VecDeque;

use airdma_wire::{Psn, Qpn, Transport};

use crate::attributes::{QpAttributes, QpType};
use crate::completion::{Completion, Status};
use crate::counter::Counter;
use crate::host::Host;
use crate::local;
use crate::request_packet::RequestPacket;
use crate::requester::{Entry, Turn};
use crate::work::SendRequest;

#[derive(Debug, Default)]
pub(crate) struct UnreliableRequester {
    /// Requests posted and not yet sent completely, oldest first.
    queue: VecDeque<Entry>,
    /// Packets of the first request that have left.
    sent: u32,
    next_psn: Psn,
}

impl UnreliableRequester {
    /// Starts at the send queue's PSN.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.next_psn = attributes.sq_psn;
    }

    pub(crate) fn post(&mut self, request: SendRequest, attributes: &QpAttributes) {
        self.queue
            .push_back(Entry::new(request, 0, attributes.path_mtu.bytes()));
    }

    pub(crate) fn wants_transmit(&self, draining: bool) -> bool {
        let begins_nothing = draining && self.is_drained();
        !begins_nothing && !self.queue.is_empty()
    }

    /// PSN of the next packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Requests that have not left completely.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether the requests in progress are done; others may wait.
    pub(crate) fn is_drained(&self) -> bool {
        self.sent == 0
    }

    /// Writes the next packet into `out` and returns its length without ICRC.
    ///
    /// Local requests before it are executed. An error is the status of the oldest request.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        turn: &Turn,
        attributes: &QpAttributes,
        host: &mut H,
        out: &mut [u8],
    ) -> Result<Option<usize>, Status> {
        if !self.wants_transmit(turn.draining) {
            return Ok(None);
        }
        while let Some(entry) = self.queue.front().copied() {
            if !entry.request.operation.is_local() {
                return self.send(&entry, turn, attributes, host, out).map(Some);
            }
            local::execute(&entry.request.operation, host)?;
            self.complete_front(turn, host);
        }
        Ok(None)
    }

    fn send<H: Host>(
        &mut self,
        entry: &Entry,
        turn: &Turn,
        attributes: &QpAttributes,
        host: &mut H,
        out: &mut [u8],
    ) -> Result<usize, Status> {
        if !entry.request.operation.is_of_service(QpType::Uc) {
            return Err(Status::LocalQpOperationError);
        }
        let packet = RequestPacket::new(entry, self.sent, 0);
        let mut headers = packet.headers;
        headers.bth.opcode = (headers.bth.opcode.on(Transport::Uc))
            .expect("SENDs and WRITEs are on every connected service");
        headers.bth.dest_qpn = attributes.dest_qpn;
        headers.bth.psn = self.next_psn;
        let start = headers.emit(out);
        let end = start + packet.payload_len as usize;
        if packet.payload_len > 0 {
            let target = &mut out[start..end];
            host.gather(entry.request.slot, packet.offset, target)
                .map_err(|_| Status::LocalProtectionError)?;
        }
        let len = end + usize::from(headers.bth.pad);
        out[end..len].fill(0);
        self.next_psn = self.next_psn.add(1);
        self.sent += 1;
        if packet.ends_message {
            host.count(Counter::MessagesSent);
            self.complete_front(turn, host);
        }
        Ok(len)
    }

    fn complete_front<H: Host>(&mut self, turn: &Turn, host: &mut H) {
        self.sent = 0;
        let Some(Entry { request, .. }) = self.queue.pop_front() else {
            return;
        };
        let completion = request.signalled.then(|| Completion {
            byte_len: request.length,
            ..Completion::with_status(
                request.wr_id,
                request.operation.completion_opcode(),
                Status::Success,
                turn.qpn,
            )
        });
        host.complete_send(request.slot, completion);
    }

    /// Completes the oldest request with `failed`, if it failed, and flushes the others.
    pub(crate) fn fail<H: Host>(&mut self, failed: Option<Status>, qpn: Qpn, host: &mut H) {
        self.sent = 0;
        let mut status = failed.unwrap_or(Status::WrFlushError);
        while let Some(Entry { request, .. }) = self.queue.pop_front() {
            let opcode = request.operation.completion_opcode();
            let completion = Completion::with_status(request.wr_id, opcode, status, qpn);
            host.complete_send(request.slot, Some(completion));
            status = Status::WrFlushError;
        }
    }
}
