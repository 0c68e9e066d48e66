//! The responder of an unreliable connection (IBTA 9.8.2.2): it places data, sends no replies, and
//! drops a message with a missing packet.
//!
//! ```text
//!   FIRST  MIDDLE  (lost)  LAST  |  FIRST  LAST
//!   |--- receive 1 is taken ---| |  |--- receive 1 again, and completed
//! ```
//!
//! Any error of a message drops that message only: a receive that is too short (class E of IBTA
//! 9.9.3.2: the receive stays, without a report), memory that is refused, a malformed packet. A
//! receive that was taken for it serves the next message, even one from a shared queue. The search
//! for the next message ends at any FIRST or ONLY packet, whatever its PSN, as in rxe: a packet
//! that the network duplicated is executed twice.

use airdma_wire::{Packet, Psn, Qpn};

use crate::attributes::{Access, QpAttributes};
use crate::completion::{Completion, CompletionOpcode, Status};
use crate::counter::Counter;
use crate::host::{Host, LocalFault, Receive, RemoteAccess};
use crate::responder::{Fault, Inbound, check_reth, end_of, ends, has_right_size, success};

#[derive(Debug, Default)]
pub(crate) struct UnreliableResponder {
    expected: Psn,
    /// The current message. `None` between messages, and after a loss until the next one begins.
    inbound: Option<Inbound>,
    /// A receive that was taken and not filled; the next message that needs one gets it.
    spare: Option<Receive>,
}

impl UnreliableResponder {
    /// Starts at the receive queue's PSN.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.expected = attributes.rq_psn;
    }

    /// PSN of the packet that comes next.
    pub(crate) fn expected(&self) -> Psn {
        self.expected
    }

    /// Handles one request packet.
    ///
    /// # Errors
    /// The memory of the receive is not accessible: the receive was completed with that status, and
    /// the queue pair must move to the error state.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        qpn: Qpn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), LocalFault> {
        let bth = &packet.headers.bth;
        let gap = bth.psn != self.expected;
        self.expected = bth.psn.add(1);
        if gap {
            host.count(Counter::OutOfOrder);
        }
        let begins = bth.opcode.is_first() || bth.opcode.is_only();
        if gap || begins {
            self.drop_message();
        }
        if !begins && self.inbound.is_none() {
            return Ok(()); // the rest of a message that was dropped
        }
        let outcome = if !has_right_size(packet, attributes.path_mtu.bytes()) {
            Err(Fault::Invalid)
        } else if bth.opcode.is_send() {
            self.take_send(qpn, packet, host)
        } else {
            self.take_write(attributes, qpn, packet, host)
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(Fault::Local) => {
                self.fail(Status::LocalProtectionError, qpn, host);
                Err(LocalFault)
            }
            Err(fault) => {
                self.drop_message();
                host.count(counter_of(fault));
                Ok(())
            }
        }
    }

    fn drop_message(&mut self) {
        if let Some(Inbound::Send { receive, .. }) = self.inbound.take() {
            self.spare = Some(receive);
        }
    }

    fn take_receive<H: Host>(&mut self, host: &mut H) -> Result<Receive, Fault> {
        let receive = self.spare.take().or_else(|| host.take_receive());
        receive.ok_or(Fault::NotReady)
    }

    fn take_send<H: Host>(
        &mut self,
        qpn: Qpn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fault> {
        let (receive, placed) = match self.inbound {
            Some(Inbound::Send { receive, placed }) => (receive, placed),
            Some(Inbound::Write { .. }) => return Err(Fault::Invalid),
            None => (self.take_receive(host)?, 0),
        };
        self.inbound = Some(Inbound::Send { receive, placed });
        let end = end_of(placed, packet.payload, receive.length).ok_or(Fault::TooLong)?;
        if !packet.payload.is_empty() {
            host.scatter_receive(receive.slot, placed, packet.payload)?;
        }
        let headers = &packet.headers;
        if !ends(headers.bth.opcode) {
            let placed = end;
            self.inbound = Some(Inbound::Send { receive, placed });
            return Ok(());
        }
        self.inbound = None;
        let completion = Completion {
            byte_len: end,
            imm: headers.imm,
            solicited: headers.bth.solicited,
            ..success(receive, CompletionOpcode::Receive, qpn)
        };
        host.complete_receive(receive.slot, completion);
        host.count(Counter::MessagesReceived);
        Ok(())
    }

    fn take_write<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        qpn: Qpn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fault> {
        let headers = &packet.headers;
        let (rkey, va, length, placed) = match self.inbound {
            Some(Inbound::Write {
                rkey,
                va,
                length,
                placed,
            }) => (rkey, va, length, placed),
            Some(Inbound::Send { .. }) => return Err(Fault::Invalid),
            None => {
                let reth = headers.reth.ok_or(Fault::Invalid)?;
                let (flag, access) = (Access::REMOTE_WRITE, RemoteAccess::Write);
                check_reth(attributes, &reth, flag, access, host)?;
                (reth.rkey, reth.va, reth.length, 0)
            }
        };
        let end = end_of(placed, packet.payload, length).ok_or(Fault::Invalid)?;
        let last = ends(headers.bth.opcode);
        if last != (end == length) {
            return Err(Fault::Invalid);
        }
        if headers.imm.is_some() {
            self.spare = Some(self.take_receive(host)?);
        }
        if !packet.payload.is_empty() {
            host.write_remote(rkey, va.wrapping_add(u64::from(placed)), packet.payload)?;
        }
        if !last {
            self.inbound = Some(Inbound::Write {
                rkey,
                va,
                length,
                placed: end,
            });
            return Ok(());
        }
        self.inbound = None;
        if let (Some(_), Some(receive)) = (headers.imm, self.spare) {
            self.spare = None;
            let completion = Completion {
                byte_len: length,
                imm: headers.imm,
                solicited: headers.bth.solicited,
                ..success(receive, CompletionOpcode::ReceiveWriteImm, qpn)
            };
            host.complete_receive(receive.slot, completion);
        }
        host.count(Counter::MessagesReceived);
        Ok(())
    }

    /// Completes the receive that is in use or kept with `status`.
    pub(crate) fn fail<H: Host>(&mut self, status: Status, qpn: Qpn, host: &mut H) {
        self.drop_message();
        if let Some(receive) = self.spare.take() {
            let opcode = CompletionOpcode::Receive;
            let completion = Completion::with_status(receive.wr_id, opcode, status, qpn);
            host.complete_receive(receive.slot, completion);
        }
    }
}

fn counter_of(fault: Fault) -> Counter {
    match fault {
        Fault::NotReady => Counter::DropNoReceive,
        Fault::Invalid | Fault::Local => Counter::DropMalformed,
        Fault::Access | Fault::NotGranted => Counter::RemoteAccessErrors,
        Fault::TooLong => Counter::DropTooLong,
    }
}
