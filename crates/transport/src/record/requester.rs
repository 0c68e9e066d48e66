//! The requester: writes the packets of a Write-Record.

use airdma_wire::{
    Bth, Deth, Neighbour, Opcode, PathMtu, Psn, Qpn, Rceth, RecordHeaders, Reth, record_payload,
};

use super::unit_of;
use crate::attributes::QpAttributes;
use crate::completion::Status;
use crate::datagram::{SentDatagram, qkey_of};
use crate::host::Host;
use crate::queue_pair::Transmit;
use crate::request_packet::{pad_of, request_bth};
use crate::work::{Path, SendRequest};

/// Least payload of a packet of a Write-Record in a longer message: the smallest path MTU.
pub(crate) const RECORD_PAYLOAD_MIN: u32 = PathMtu::M256.bytes();

/// What packets of a Write-Record say of their sender.
#[derive(Debug, Default)]
pub(crate) struct RecordRequester {
    instance: Psn,
    interface_mtu: u32,
    /// Number of the next message.
    next_id: u32,
}

/// The packet of a message that leaves next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextPart {
    /// Number of the message.
    pub(crate) id: u32,
    /// Bytes of it that have left.
    pub(crate) offset: u32,
    pub(crate) form: RecordForm,
}

/// How a packet of a Write-Record leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordForm {
    /// It asks for an answer.
    pub asks: bool,
    /// The packet at the end of a message is as long as the others: the target takes such.
    pub pads: bool,
}

/// A packet of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPart {
    pub(crate) packet: SentDatagram,
    /// Bytes of the message that have left with it.
    pub(crate) end: u32,
}

impl RecordRequester {
    /// See [`QueuePair::set_record_requester`](crate::QueuePair::set_record_requester).
    pub(crate) fn new(instance: Psn, interface_mtu: u32) -> Self {
        RecordRequester {
            instance,
            interface_mtu,
            next_id: 0,
        }
    }

    pub(crate) fn instance(&self) -> Psn {
        self.instance
    }

    pub(crate) fn interface_mtu(&self) -> u32 {
        self.interface_mtu
    }

    /// The number of the next message.
    pub(crate) fn take_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// The most payload of a packet on this path.
    pub(crate) fn payload_max(&self, path: &Path) -> u32 {
        let to = Neighbour::from(path.gid.to_ip());
        record_payload(self.interface_mtu, to).max(RECORD_PAYLOAD_MIN)
    }

    /// Writes one packet of a message.
    pub(crate) fn send<H: Host>(
        &self,
        request: &SendRequest,
        next: NextPart,
        attributes: &QpAttributes,
        qpn: Qpn,
        host: &mut H,
        out: &mut [u8],
    ) -> Result<SentPart, Status> {
        let datagram = &request.datagram.ok_or(Status::LocalQpOperationError)?;
        let (va, rkey, imm) = match request.operation.record_target() {
            Some(target) if request.length > 0 => target,
            Some(_) => return Err(Status::LocalLengthError),
            None => return Err(Status::LocalQpOperationError),
        };
        let NextPart { id, offset, form } = next;
        let unit = unit_of(request.length, self.payload_max(&datagram.path));
        let payload_len = unit.min(request.length - offset);
        let padded_len = if form.pads { unit } else { payload_len };
        let headers = RecordHeaders {
            bth: Bth {
                solicited: request.solicited,
                ack_request: form.asks,
                pad: pad_of(padded_len),
                dest_qpn: datagram.qpn,
                psn: self.instance,
                opcode: Opcode::UdSendOnly,
                ..request_bth()
            },
            deth: Deth {
                qkey: qkey_of(datagram, attributes),
                src_qpn: qpn,
            },
            reth: Reth {
                va,
                rkey,
                length: request.length,
            },
            rceth: Rceth {
                id,
                offset,
                unit: unit as u16,
                round: 0,
            },
            is_send: false,
            token: None,
            read: None,
            imm,
        };
        let start = headers.emit(out);
        let end = start + payload_len as usize;
        host.gather(request.slot, offset, &mut out[start..end])
            .map_err(|_| Status::LocalProtectionError)?;
        let len = start + padded_len as usize + usize::from(headers.bth.pad);
        out[end..len].fill(0);
        Ok(SentPart {
            packet: SentDatagram {
                transmit: Transmit {
                    len,
                    path: datagram.path,
                },
                part: Some((id, offset)),
                instance: self.instance,
            },
            end: offset + payload_len,
        })
    }
}
