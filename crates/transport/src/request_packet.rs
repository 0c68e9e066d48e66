//! One request packet of a reliable connection: its opcode, headers and payload.

use airdma_wire::padded::PADDING_MIN;
use airdma_wire::{AtomicEth, Bth, Feth, Headers, Opcode, Psn, Qpn, Reth, Rkey};

use crate::operation::{Extent, Operation, WORD_LEN};
use crate::requester::Entry;

/// Size of the pieces in which a long READ is requested, rounded up to whole packets.
///
/// So the requester, whose own receive buffer the responses fill, decides how much is in flight.
/// The pieces start at fixed offsets of the message: a request repeated after a loss never reaches
/// into the next piece.
const READ_PIECE_BYTES: u32 = 64 * 1024;

/// The default P_Key, the only one on RoCE.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// One request packet, complete except for what depends on the connection.
pub(crate) struct RequestPacket {
    pub(crate) headers: Headers,
    pub(crate) offset: u32,
    pub(crate) payload_len: u32,
    /// Bytes behind the payload of a [padded](airdma_wire::padded) packet, or 0.
    pub(crate) padding: u16,
    /// Bytes of the peer's response.
    pub(crate) answer_len: u32,
    /// Number of PSNs that the packet takes.
    pub(crate) packets: u32,
    pub(crate) ends_message: bool,
}

impl RequestPacket {
    /// `repeats` is the number of times that the peer gave no response to this very packet.
    #[inline]
    pub(crate) fn new(entry: &Entry, index: u32, repeats: u8) -> Self {
        let request = &entry.request;
        match request.operation {
            Operation::Read { va, rkey } if request.length == 0 => {
                Self::read(entry, index, va, key_of_nothing(rkey, repeats))
            }
            Operation::Read { va, rkey } => Self::read(entry, index, va, rkey),
            Operation::CompareSwap {
                va,
                rkey,
                compare,
                swap,
            } => Self::atomic(Opcode::RcCompareSwap, va, rkey, swap, compare),
            Operation::FetchAdd { va, rkey, add } => {
                Self::atomic(Opcode::RcFetchAdd, va, rkey, add, 0)
            }
            Operation::AtomicWrite { va, rkey } => Self::atomic_write(va, rkey),
            Operation::Flush {
                va,
                rkey,
                length,
                what,
            } => Self::flush(Reth { va, rkey, length }, what),
            Operation::Send
            | Operation::SendImm(_)
            | Operation::SendInvalidate(_)
            | Operation::Write { .. }
            | Operation::WriteImm { .. }
            // Not of this service: the host refuses it where it is posted.
            | Operation::Record { .. }
            | Operation::RecordImm { .. }
            | Operation::BindWindow(_)
            | Operation::LocalInvalidate(_) => Self::data(entry, index),
        }
    }

    #[inline]
    fn data(entry: &Entry, index: u32) -> Self {
        let request = &entry.request;
        let offset = entry.offset(index);
        let payload_len = request.length.min(entry.offset(index + 1)) - offset;
        let place = Place {
            first: index == 0,
            last: index + 1 == entry.packets,
        };
        let padding = if place.last && entry.is_equal {
            padding_of(payload_len, entry.payload - request.operation.trailer_len())
        } else {
            0
        };
        let headers = Headers::new(Bth {
            opcode: data_opcode(&request.operation, place),
            solicited: place.last && request.solicited,
            pad: if padding == 0 { pad_of(payload_len) } else { 0 },
            ..request_bth()
        });
        // Completed in place: it is long to copy.
        let mut packet = RequestPacket {
            headers,
            offset,
            payload_len,
            padding,
            answer_len: 0,
            packets: 1,
            ends_message: place.last,
        };
        let headers = &mut packet.headers;
        if place.first
            && let Operation::Write { va, rkey } | Operation::WriteImm { va, rkey, .. } =
                request.operation
        {
            headers.reth = Some(Reth {
                va,
                rkey,
                length: request.length,
            });
        }
        if place.last {
            if let Operation::SendImm(imm) | Operation::WriteImm { imm, .. } = request.operation {
                headers.imm = Some(imm);
            } else if let Operation::SendInvalidate(rkey) = request.operation {
                headers.ieth = Some(rkey);
            }
        }
        packet
    }

    fn read(entry: &Entry, index: u32, va: u64, rkey: Rkey) -> Self {
        let mtu = entry.payload;
        let piece = READ_PIECE_BYTES.div_ceil(mtu);
        let piece_end = (index / piece + 1).saturating_mul(piece).min(entry.packets);
        let offset = index * mtu;
        let end = (u64::from(piece_end) * u64::from(mtu)).min(u64::from(entry.request.length));
        let length = u32::try_from(end).expect("not longer than the message") - offset;
        let mut headers = Headers::new(Bth {
            opcode: Opcode::RcReadRequest,
            ..request_bth()
        });
        headers.reth = Some(Reth {
            va: va.wrapping_add(u64::from(offset)),
            rkey,
            length,
        });
        RequestPacket {
            headers,
            offset,
            payload_len: 0,
            padding: 0,
            answer_len: length.max(1),
            packets: piece_end - index,
            ends_message: piece_end == entry.packets,
        }
    }

    fn atomic(opcode: Opcode, va: u64, rkey: Rkey, swap_add: u64, compare: u64) -> Self {
        let mut headers = Headers::new(Bth {
            opcode,
            ..request_bth()
        });
        headers.atomic_eth = Some(AtomicEth {
            va,
            rkey,
            swap_add,
            compare,
        });
        RequestPacket {
            headers,
            offset: 0,
            payload_len: 0,
            padding: 0,
            answer_len: WORD_LEN,
            packets: 1,
            ends_message: true,
        }
    }

    /// A READ response without payload answers it.
    fn flush(reth: Reth, what: Feth) -> Self {
        let mut headers = Headers::new(Bth {
            opcode: Opcode::RcFlush,
            ..request_bth()
        });
        headers.feth = Some(what);
        headers.reth = Some(reth);
        RequestPacket {
            headers,
            offset: 0,
            payload_len: 0,
            padding: 0,
            answer_len: 1,
            packets: 1,
            ends_message: true,
        }
    }

    /// A READ response without payload answers it.
    fn atomic_write(va: u64, rkey: Rkey) -> Self {
        let mut headers = Headers::new(Bth {
            opcode: Opcode::RcAtomicWrite,
            ..request_bth()
        });
        headers.reth = Some(Reth {
            va,
            rkey,
            length: WORD_LEN,
        });
        RequestPacket {
            headers,
            offset: 0,
            payload_len: WORD_LEN,
            padding: 0,
            answer_len: 1,
            packets: 1,
            ends_message: true,
        }
    }
}

/// Position of a packet in its message.
#[derive(Clone, Copy)]
struct Place {
    first: bool,
    last: bool,
}

fn data_opcode(operation: &Operation, place: Place) -> Opcode {
    match (operation, place.first, place.last) {
        (Operation::Write { .. } | Operation::WriteImm { .. }, true, false) => Opcode::RcWriteFirst,
        (Operation::Write { .. } | Operation::WriteImm { .. }, false, false) => {
            Opcode::RcWriteMiddle
        }
        (Operation::Write { .. }, false, true) => Opcode::RcWriteLast,
        (Operation::Write { .. }, true, true) => Opcode::RcWriteOnly,
        (Operation::WriteImm { .. }, false, true) => Opcode::RcWriteLastImm,
        (Operation::WriteImm { .. }, true, true) => Opcode::RcWriteOnlyImm,
        (Operation::SendImm(_), false, true) => Opcode::RcSendLastImm,
        (Operation::SendImm(_), true, true) => Opcode::RcSendOnlyImm,
        (Operation::SendInvalidate(_), false, true) => Opcode::RcSendLastInvalidate,
        (Operation::SendInvalidate(_), true, true) => Opcode::RcSendOnlyInvalidate,
        (_, true, false) => Opcode::RcSendFirst,
        (_, false, false) => Opcode::RcSendMiddle,
        (_, false, true) => Opcode::RcSendLast,
        (_, true, true) => Opcode::RcSendOnly,
    }
}

/// Opcode of a packet in the middle of its message; `None` if the operation has no such packets
/// with payload.
pub(crate) fn middle_opcode(operation: &Operation) -> Option<Opcode> {
    let has_middle = operation.extent() == Extent::List && !operation.is_read_or_atomic();
    let middle = Place {
        first: false,
        last: false,
    };
    has_middle.then(|| data_opcode(operation, middle))
}

/// The fields of a BTH that all request packets share. `migreq` is 1 as hardware sends it: the path
/// is in the migrated state.
pub(crate) fn request_bth() -> Bth {
    Bth {
        opcode: Opcode::RcSendOnly,
        solicited: false,
        migreq: true,
        pad: 0,
        pkey: DEFAULT_PKEY,
        fecn: false,
        becn: false,
        dest_qpn: Qpn::default(),
        ack_request: false,
        psn: Psn::default(),
        tag: 0,
    }
}

/// Packets that a message takes; an empty one takes one (IBTA 9.4.1).
pub(crate) fn packets_of(length: u32, mtu: u32) -> u32 {
    length.div_ceil(mtu).max(1)
}

/// Padding to a multiple of four bytes.
pub(crate) fn pad_of(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}

/// Bytes that make a payload `full`, whole words long, if the pad of a BTH cannot state that many.
pub(crate) fn padding_of(length: u32, full: u32) -> u16 {
    let missing = full.saturating_sub(length) as u16;
    if usize::from(missing) < PADDING_MIN {
        return 0;
    }
    missing
}

/// The key of a READ of no bytes.
///
/// It is not checked (IBTA C9-88), but for a repeated request, rxe of Linux 6.1 requires the key of
/// the first one, and a valid one, and rxe of Linux 6.12 requires 0 in any case. Both drop all
/// others. So the two keys alternate if the peer does not answer the program's key.
fn key_of_nothing(rkey: Rkey, repeats: u8) -> Rkey {
    if repeats > 0 && repeats.is_multiple_of(2) {
        Rkey(0)
    } else {
        rkey
    }
}
