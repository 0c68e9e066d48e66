//! Acknowledged SENDs: messages that go to a posted receive, whole or not at all.

use airdma_wire::{GRH_LEN, RecordPacket};

use super::RecordHost;
use super::reply::Refused;
use super::target::RecordTarget;
use crate::completion::{Completion, CompletionOpcode, Status};
use crate::counter::Counter;
use crate::datagram::grh;
use crate::host::Receive;
use crate::queue_pair::Arrival;

impl RecordTarget {
    /// Takes a receive for a message, and writes the header of one of its packets to its start.
    pub(super) fn receive_for<H: RecordHost>(
        &mut self,
        row: u32,
        (arrival, packet): (&Arrival, &RecordPacket<'_>),
        host: &mut H,
    ) -> Result<Receive, Refused> {
        let receive = self.spares.pop_front().or_else(|| host.take_message());
        let receive = receive.ok_or(Refused::NoReceive)?;
        let length = u64::from(packet.headers.reth.length) + GRH_LEN as u64;
        if length > receive.length.into() {
            self.spares.push_front(receive);
            self.sources.note_too_long(row, packet.headers.rceth.id);
            return Err(Refused::TooLong);
        }
        let payload = packet.payload.len() + usize::from(packet.headers.bth.pad);
        let area = grh(arrival, packet.headers.len() + payload);
        // A fault shows when the payload is placed, at the latest.
        host.place_header(receive.slot, &area);
        Ok(receive)
    }

    /// All of a message arrived: its receive completes, and its entry is free.
    pub(super) fn deliver<H: RecordHost>(
        &mut self,
        index: u32,
        packet: &RecordPacket<'_>,
        host: &mut H,
    ) {
        host.count_record(Counter::MessagesReceived);
        self.complete(index, Status::Success, packet, host);
    }

    /// The memory of a receive is gone.
    pub(super) fn fail_send<H: RecordHost>(
        &mut self,
        index: u32,
        packet: &RecordPacket<'_>,
        host: &mut H,
    ) {
        self.complete(index, Status::LocalProtectionError, packet, host);
    }

    fn complete<H: RecordHost>(
        &mut self,
        index: u32,
        status: Status,
        packet: &RecordPacket<'_>,
        host: &mut H,
    ) {
        let entry = self.entry(index);
        if let Some(receive) = entry.receive {
            let completion = Completion {
                byte_len: entry.valid_bytes + GRH_LEN as u32,
                imm: entry.imm,
                solicited: entry.solicited,
                grh: entry.grh,
                src_qpn: entry.source.qpn,
                ..Completion::with_status(
                    receive.wr_id,
                    CompletionOpcode::Receive,
                    status,
                    packet.headers.bth.dest_qpn,
                )
            };
            host.complete_message(receive.slot, completion);
        }
        self.note_closed(index, status == Status::Success);
        self.release(index);
    }

    /// Flushes the receives that were taken: the queue pair is in the error state.
    pub fn flush_receives<H: RecordHost>(&mut self, host: &mut H) {
        self.close_sends(host);
        while let Some(receive) = self.spares.pop_front() {
            host.flush_message(receive);
        }
    }
}
