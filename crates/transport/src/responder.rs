//! The responder of a reliable connection (IBTA 9.7.4 and 9.9.3).
//!
//! It checks each request, places its data, and owes the reply to [`Replies`].

mod executed;
mod run;
mod selective;

use std::collections::VecDeque;

use airdma_wire::{Bth, NakCode, Opcode, Packet, Psn, Qpn, Reth, Rkey, Syndrome};

use self::executed::Executed;
use crate::attributes::{Access, QpAttributes};
use crate::completion::{Completion, CompletionOpcode, Status};
use crate::counter::Counter;
use crate::host::{Host, LocalFault, QpEvent, Receive, RemoteAccess, RemoteFault};
use crate::queue_pair::View;
use crate::replies::Replies;
use crate::selective::Reorder;
use crate::work::MESSAGE_LEN_MAX;

const MSN_MASK: u32 = 0x00ff_ffff;

/// The message whose packets are arriving.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inbound {
    Send {
        receive: Receive,
        placed: u32,
    },
    Write {
        rkey: Rkey,
        va: u64,
        length: u32,
        placed: u32,
    },
}

/// Why the responder stops serving its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) event: QpEvent,
}

/// Result of a packet's checks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// No receive is posted: the peer must retry.
    NotReady,
    /// The request is malformed or unsupported.
    Invalid,
    /// The queue pair does not grant the operation.
    NotGranted,
    /// The peer may not access this memory.
    Access,
    /// The receive is shorter than the message.
    TooLong,
    /// The receive's own memory is not accessible.
    Local,
}

impl From<RemoteFault> for Fault {
    fn from(fault: RemoteFault) -> Self {
        match fault {
            RemoteFault::Access => Fault::Access,
            RemoteFault::Misaligned => Fault::Invalid,
        }
    }
}

impl From<LocalFault> for Fault {
    fn from(LocalFault: LocalFault) -> Self {
        Fault::Local
    }
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected: Psn,
    /// Messages completed, modulo 2^24.
    msn: u32,
    inbound: Option<Inbound>,
    /// A receive taken for a WRITE with immediate data whose last packet is being executed.
    spare: Option<Receive>,
    /// Whether a NAK was sent for the present gap: no other follows until the expected packet
    /// arrives.
    gap_reported: bool,
    /// PSN of the latest packet of a SEND or WRITE that was executed.
    placed: Option<Psn>,
    executed: VecDeque<Executed>,
    replies: Replies,
    /// Packets out of order, if the peer supports selective repeat.
    ///
    /// In air mode such a peer gets reports ([`take_report`]) in place of ACKs; with SACK, ACKs
    /// that name what is missing.
    ///
    /// [`take_report`]: crate::QueuePair::take_report
    reorder: Option<Box<Reorder>>,
    /// Largest payload of a packet, if that is more than the path MTU.
    long_payload_max: u32,
    /// Payload of a full packet of this message, set by its first.
    full: u32,
}

impl Responder {
    /// Starts at the receive queue's PSN.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        *self = Responder {
            expected: attributes.rq_psn,
            full: attributes.path_mtu.bytes(),
            ..Responder::default()
        };
    }

    /// Takes packets of up to `bytes` of payload from now on, or of as much as it took before.
    pub(crate) fn take_long_payloads(&mut self, bytes: u32) {
        self.long_payload_max = self.long_payload_max.max(bytes);
    }

    /// PSN of the packet that comes next.
    pub(crate) fn expected(&self) -> Psn {
        self.expected
    }

    /// Messages completed, modulo 2^24.
    pub(crate) fn messages(&self) -> u32 {
        self.msn
    }

    /// What the peer is owed.
    #[inline]
    pub(crate) fn replies(&mut self) -> &mut Replies {
        &mut self.replies
    }

    /// Whether the peer is owed nothing.
    #[inline]
    pub(crate) fn owes_nothing(&self) -> bool {
        self.replies.is_empty()
    }

    /// Whether all that the peer is owed is the ACK of complete messages.
    pub(crate) fn owes_only_acknowledgement(&self) -> bool {
        let has_gap = self.reorder.as_deref().is_some_and(Reorder::waits);
        self.inbound.is_none() && !has_gap && self.replies.is_acknowledgement()
    }

    /// Handles one request packet. After a refusal the queue pair must move to the error state; the
    /// NAK is queued already.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        view: View<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let psn = packet.headers.bth.psn;
        match psn.distance_from(self.expected) {
            0 => {}
            ahead @ 1.. => {
                host.count(Counter::OutOfOrder);
                self.handle_early(view.attributes, packet, ahead.unsigned_abs(), host);
                return Ok(());
            }
            _ => {
                host.count(Counter::Duplicates);
                self.handle_duplicate(view.attributes, packet, host);
                return Ok(());
            }
        }
        let psns = self.handle_expected(view, packet, host)?;
        if self.reorder.is_some() {
            self.handle_held(view, psns, host)?;
        }
        Ok(())
    }

    /// Executes the expected packet; returns the PSNs that it took, 0 if the peer must retry.
    #[inline(always)] // into the way of a packet that is not early; the other way is rare
    fn handle_expected<H: Host>(
        &mut self,
        view: View<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<u32, Refusal> {
        let psn = packet.headers.bth.psn;
        match self.execute(view, packet, host) {
            Ok(packets) => {
                let bth = &packet.headers.bth;
                if bth.opcode.is_send() || bth.opcode.is_write() {
                    self.executed_data(bth);
                } else {
                    // It has queued its own reply.
                    self.gap_reported = false;
                    self.expected = self.expected.add(packets);
                }
                Ok(packets)
            }
            Err(Fault::NotReady) => {
                self.gap_reported = true;
                let timer = view.attributes.min_rnr_timer;
                self.replies
                    .refuse(psn, self.msn, Syndrome::RnrNak { timer });
                Ok(0)
            }
            Err(fault) => Err(self.refuse(view.qpn, psn, fault, host)),
        }
    }

    fn report_gap(&mut self) {
        if !self.gap_reported {
            self.gap_reported = true;
            let nak = Syndrome::Nak(NakCode::PsnSequenceError);
            self.replies.refuse(self.expected, self.msn, nak);
        }
    }

    /// Notes that the expected packet of a SEND or WRITE was executed.
    #[inline]
    pub(crate) fn executed_data(&mut self, bth: &Bth) {
        self.gap_reported = false;
        self.expected = self.expected.add(1);
        self.placed = Some(bth.psn);
        if let Some(reorder) = &mut self.reorder {
            reorder.owe(bth.ack_request);
            if bth.ack_request && reorder.tells_by_acks() {
                self.replies.owe_ack(bth.psn, self.msn);
            }
        } else if bth.ack_request {
            self.replies.owe_ack(bth.psn, self.msn);
        }
    }

    /// Executes one request packet; returns the PSNs it takes.
    fn execute<H: Host>(
        &mut self,
        view: View<'_>,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<u32, Fault> {
        let opcode = packet.headers.bth.opcode;
        let begins = opcode.is_first() || opcode.is_only();
        let data = opcode.is_send() || opcode.is_write();
        let in_sequence = match self.inbound {
            None => begins || !data,
            Some(Inbound::Send { .. }) => opcode.is_send() && !begins,
            Some(Inbound::Write { .. }) => opcode.is_write() && !begins,
        };
        let full = if begins {
            let (first, full) = self.sizes_of(view.attributes, packet);
            self.full = full;
            first
        } else {
            self.full
        };
        if !in_sequence || !has_right_size(packet, full) {
            return Err(Fault::Invalid);
        }
        if opcode.is_send() {
            self.execute_send(view.qpn, packet, host)?;
        } else if opcode.is_write() {
            self.execute_write(view, packet, host)?;
        } else if opcode == Opcode::RcReadRequest {
            return self.execute_read(view.attributes, packet, host);
        } else if opcode == Opcode::RcAtomicWrite {
            self.execute_atomic_write(view.attributes, packet, host)?;
        } else if opcode == Opcode::RcFlush {
            self.execute_flush(view.attributes, packet, host)?;
        } else {
            self.execute_atomic(view.attributes, packet, host)?;
        }
        Ok(1)
    }

    /// Payload of this packet, the first of a message, and of the others of the message.
    ///
    /// The peer chooses it, within the allowed size. Packets of a message have one length if they
    /// are not of the path MTU, so the others have as much more data as the first one's RETH is
    /// long.
    fn sizes_of(&self, attributes: &QpAttributes, packet: &Packet<'_>) -> (u32, u32) {
        let path_mtu = attributes.path_mtu.bytes();
        let most = path_mtu.max(self.long_payload_max);
        let length = packet.payload.len() as u32;
        if !packet.headers.bth.opcode.is_first() {
            (most, most)
        } else if length == path_mtu || most == path_mtu {
            (path_mtu, path_mtu)
        } else {
            let reth = packet.headers.reth.map_or(0, |_| Reth::LEN as u32);
            let full = (length + reth).clamp(equal_min(path_mtu) + 4, most);
            (full - reth, full)
        }
    }

    /// Whether the peer may send [padded](airdma_wire::padded) packets: those that may be long.
    pub(crate) fn takes_padded(&self) -> bool {
        self.long_payload_max > 0
    }

    fn execute_send<H: Host>(
        &mut self,
        qpn: Qpn,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fault> {
        let (receive, placed) = match self.inbound {
            Some(Inbound::Send { receive, placed }) => (receive, placed),
            Some(Inbound::Write { .. }) => return Err(Fault::Invalid),
            None => (take_receive(packet, host)?, 0),
        };
        self.inbound = Some(Inbound::Send { receive, placed });
        let end = end_of(placed, packet.payload, receive.length).ok_or(Fault::TooLong)?;
        if !packet.payload.is_empty() {
            host.scatter_receive(receive.slot, placed, packet.payload)?;
        }
        self.inbound = Some(Inbound::Send {
            receive,
            placed: end,
        });
        let headers = &packet.headers;
        if !ends(headers.bth.opcode) {
            return Ok(());
        }
        if let Some(rkey) = headers.ieth {
            host.invalidate(rkey)?;
        }
        self.inbound = None;
        let completion = Completion {
            byte_len: end,
            imm: headers.imm,
            invalidated: headers.ieth,
            solicited: headers.bth.solicited,
            ..success(receive, CompletionOpcode::Receive, qpn)
        };
        host.complete_receive(receive.slot, completion);
        self.message_done(host);
        Ok(())
    }

    fn execute_write<H: Host>(
        &mut self,
        view: View<'_>,
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
                check_reth(
                    view.attributes,
                    &reth,
                    Access::REMOTE_WRITE,
                    RemoteAccess::Write,
                    host,
                )?;
                (reth.rkey, reth.va, reth.length, 0)
            }
        };
        let end = end_of(placed, packet.payload, length).ok_or(Fault::Invalid)?;
        let last = ends(headers.bth.opcode);
        if last != (end == length) {
            return Err(Fault::Invalid);
        }
        let receive = match headers.imm {
            Some(_) => Some(take_receive(packet, host)?),
            None => None,
        };
        self.spare = receive;
        if !packet.payload.is_empty() {
            let va = va.wrapping_add(u64::from(placed));
            match last {
                true => host.write_remote_last(rkey, va, packet.payload)?,
                false => host.write_remote(rkey, va, packet.payload)?,
            }
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
        self.spare = None;
        host.wrote();
        if let Some(receive) = receive {
            let completion = Completion {
                byte_len: length,
                imm: headers.imm,
                solicited: headers.bth.solicited,
                ..success(receive, CompletionOpcode::ReceiveWriteImm, view.qpn)
            };
            host.complete_receive(receive.slot, completion);
        }
        self.message_done(host);
        Ok(())
    }

    /// Owes an ACK for the SENDs and WRITEs that were executed so far.
    ///
    /// It does not name a later READ or atomic: those have responses of their own, and if a network
    /// reorders them so that the ACK comes first, rxe completes the atomic without its result.
    fn acknowledge_again(&mut self) {
        if let Some(placed) = self.placed {
            self.replies.owe_ack(placed, self.msn);
        }
    }

    /// Owes the latest ACK again if any message was completed.
    pub(crate) fn repeat_last_ack(&mut self) {
        if self.msn > 0 {
            self.acknowledge_again();
        }
    }

    /// Refuses the request that is expected next. What came before was executed.
    pub(crate) fn refuse_for_ever(&mut self) {
        let code = NakCode::RemoteOperationalError;
        (self.replies).refuse(self.expected, self.msn, Syndrome::Nak(code));
    }

    fn refuse<H: Host>(&mut self, qpn: Qpn, psn: Psn, fault: Fault, host: &mut H) -> Refusal {
        let (code, status, event) = match fault {
            Fault::Invalid | Fault::NotGranted | Fault::NotReady => (
                NakCode::InvalidRequest,
                Status::WrFlushError,
                QpEvent::RequestError,
            ),
            Fault::TooLong => (
                NakCode::InvalidRequest,
                Status::LocalLengthError,
                QpEvent::RequestError,
            ),
            Fault::Access => (
                NakCode::RemoteAccessError,
                Status::WrFlushError,
                QpEvent::AccessError,
            ),
            Fault::Local => (
                NakCode::RemoteOperationalError,
                Status::LocalProtectionError,
                QpEvent::Fatal,
            ),
        };
        host.count(match fault {
            Fault::Access | Fault::NotGranted => Counter::RemoteAccessErrors,
            Fault::Invalid | Fault::NotReady | Fault::TooLong | Fault::Local => {
                Counter::InvalidRequests
            }
        });
        self.fail(status, qpn, host);
        self.replies.refuse(psn, self.msn, Syndrome::Nak(code));
        Refusal { event }
    }

    /// Completes the receives that are in use with `status`.
    pub(crate) fn fail<H: Host>(&mut self, status: Status, qpn: Qpn, host: &mut H) {
        let held = match self.inbound.take() {
            Some(Inbound::Send { receive, .. }) => Some(receive),
            Some(Inbound::Write { .. }) | None => None,
        };
        for receive in held.into_iter().chain(self.spare.take()) {
            let completion =
                Completion::with_status(receive.wr_id, CompletionOpcode::Receive, status, qpn);
            host.complete_receive(receive.slot, completion);
        }
        if let Some(reorder) = &mut self.reorder {
            reorder.clear();
        }
    }

    fn message_done<H: Host>(&mut self, host: &mut H) {
        self.msn = (self.msn + 1) & MSN_MASK;
        host.count(Counter::MessagesReceived);
    }
}

/// Packets of one length, but the last of a message, carry more than this: a message that does not
/// fit one packet is divided into no more packets than it takes.
fn equal_min(path_mtu: u32) -> u32 {
    path_mtu / 2
}

/// Takes the next receive: of the shared queue that a message of an extended connection names, else
/// of the own queue.
///
/// A queue that does not exist makes the request invalid.
fn take_receive<H: Host>(packet: &Packet<'_>, host: &mut H) -> Result<Receive, Fault> {
    let receive = match packet.headers.xrceth {
        None => host.take_receive(),
        Some(eth) => (host.take_shared_receive(eth.srqn)).map_err(|_| Fault::Invalid)?,
    };
    receive.ok_or(Fault::NotReady)
}

pub(crate) fn ends(opcode: Opcode) -> bool {
    opcode.is_last() || opcode.is_only()
}

/// Whether the packet's size fits its opcode (IBTA 9.7.4.1.6): all except the last are full, one
/// path MTU in plain RoCEv2.
pub(crate) fn has_right_size(packet: &Packet<'_>, full: u32) -> bool {
    let opcode = packet.headers.bth.opcode;
    let length = packet.payload.len();
    let full = full as usize;
    if !(opcode.is_send() || opcode.is_write()) {
        // An atomic write checks its eight bytes itself, and a READ its LRETH.
        return length == 0 || matches!(opcode, Opcode::RcAtomicWrite | Opcode::RcReadRequest);
    }
    if opcode.is_only() {
        length <= full
    } else if opcode.is_last() {
        (1..=full).contains(&length)
    } else {
        length == full
    }
}

/// Position in the message after `payload`, if that is within `length`.
pub(crate) fn end_of(placed: u32, payload: &[u8], length: u32) -> Option<u32> {
    let payload = u32::try_from(payload.len()).ok()?;
    placed.checked_add(payload).filter(|end| *end <= length)
}

/// Checks that the queue pair grants an operation.
///
/// Without the grant the request is invalid (IBTA 11.6.2, and as in Linux); memory without the
/// right is an access error.
fn check_granted(attributes: &QpAttributes, flag: Access) -> Result<(), Fault> {
    if attributes.access.contains(flag) {
        Ok(())
    } else {
        Err(Fault::NotGranted)
    }
}

/// Checks a RETH. A zero-length access touches nothing and needs no key (IBTA 9.7.4.1.5).
pub(crate) fn check_reth<H: Host>(
    attributes: &QpAttributes,
    reth: &Reth,
    flag: Access,
    access: RemoteAccess,
    host: &mut H,
) -> Result<(), Fault> {
    check_granted(attributes, flag)?;
    if reth.length > MESSAGE_LEN_MAX {
        return Err(Fault::Invalid);
    }
    if reth.length > 0 {
        host.check_remote(reth.rkey, reth.va, reth.length, access)?;
    }
    Ok(())
}

pub(crate) fn success(receive: Receive, opcode: CompletionOpcode, qpn: Qpn) -> Completion {
    Completion::with_status(receive.wr_id, opcode, Status::Success, qpn)
}
