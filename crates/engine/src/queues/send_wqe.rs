//! Send work requests on their way through the ring: written by the poster, read by the worker.

use crate::limits::LIMITS;
use crate::queues::sge_list::list_bytes;
use crate::queues::work_request::{Payload, SendFlags, SendWr};
use crate::{Datagram, Operation, Path};
use airdma_shm::{Corrupt, SendWqe, SlotRef};
use airdma_transport::{Extent, OperationFields, PackedOperation, SendRequest, Slot, WORD_LEN};
use airdma_wire::{Gid, Qkey, Qpn};

/// Writes the header of a work request, whose payload was checked, into `wqe`, which is all zeros.
/// Inline bytes or elements follow it in the slot.
#[inline(always)] // its fields go straight into the slot
pub(crate) fn encode(wr: &SendWr<'_>, payload: &Payload, wqe: &mut SendWqe) {
    wqe.wr_id = wr.wr_id;
    wqe.flags = encode_flags(wr.flags);
    wqe.sge_count = payload.elements as u16;
    if payload.inline {
        wqe.length = payload.bytes as u32;
    }
    wqe.srqn = wr.srqn;
    wr.operation.pack(OperationFields {
        code: &mut wqe.operation,
        imm: &mut wqe.imm,
        rkey: &mut wqe.rkey,
        va: &mut wqe.remote_va,
        swap_add: &mut wqe.swap_add,
        compare: &mut wqe.compare,
        bind_lkey: &mut wqe.bind_lkey,
        bind_rkey: &mut wqe.bind_rkey,
    });
    if let Some(Datagram { path, qpn, qkey }) = wr.datagram {
        wqe.dest_gid = path.gid.0;
        wqe.dest_qpn = qpn.get();
        wqe.dest_qkey = qkey.0;
        wqe.flow_label = path.flow_label;
        wqe.sgid_index = path.sgid_index;
        wqe.traffic_class = path.traffic_class;
        wqe.hop_limit = path.hop_limit;
    }
}

/// The work request in slot `number`. The poster has checked it, but the ring may be another
/// process's.
pub(crate) fn decode(
    slot: SlotRef<'_>,
    number: u32,
    is_datagram: bool,
    signal_all: bool,
) -> Result<SendRequest, Corrupt> {
    let wqe: SendWqe = slot.read_header();
    let operation = operation(&wqe).ok_or(Corrupt::SlotBounds)?;
    if operation.is_record() && !is_datagram {
        return Err(Corrupt::SlotBounds);
    }
    let length = match operation.extent() {
        Extent::List => message_length(slot, &wqe)?,
        Extent::Word => WORD_LEN,
        Extent::Empty | Extent::Local => 0,
    };
    Ok(SendRequest {
        slot: Slot(number),
        wr_id: wqe.wr_id,
        operation,
        length,
        signalled: signal_all || wqe.flags & SendWqe::SIGNALLED != 0,
        solicited: wqe.flags & SendWqe::SOLICITED != 0,
        fence: wqe.flags & SendWqe::FENCE != 0,
        datagram: is_datagram.then(|| datagram(&wqe)),
        reliable: is_datagram && wqe.flags & SendWqe::RELIABLE != 0,
        srqn: wqe.srqn,
    })
}

fn message_length(slot: SlotRef<'_>, wqe: &SendWqe) -> Result<u32, Corrupt> {
    if wqe.flags & SendWqe::INLINE != 0 {
        let fits = wqe.length <= slot.inline_max::<SendWqe>();
        return if fits {
            Ok(wqe.length)
        } else {
            Err(Corrupt::SlotBounds)
        };
    }
    let bytes = list_bytes::<SendWqe>(slot, u32::from(wqe.sge_count))?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes <= LIMITS.max_message => Ok(bytes),
        Ok(_) | Err(_) => Err(Corrupt::SlotBounds),
    }
}

/// The operation of a request; `None` if it has none.
fn operation(wqe: &SendWqe) -> Option<Operation> {
    Operation::unpack(&PackedOperation {
        code: wqe.operation,
        imm: wqe.imm,
        rkey: wqe.rkey,
        va: wqe.remote_va,
        swap_add: wqe.swap_add,
        compare: wqe.compare,
        bind_lkey: wqe.bind_lkey,
        bind_rkey: wqe.bind_rkey,
    })
}

fn datagram(wqe: &SendWqe) -> Datagram {
    Datagram {
        path: Path {
            gid: Gid(wqe.dest_gid),
            sgid_index: wqe.sgid_index,
            traffic_class: wqe.traffic_class,
            hop_limit: wqe.hop_limit,
            flow_label: wqe.flow_label,
        },
        qpn: Qpn::new(wqe.dest_qpn),
        qkey: Qkey(wqe.dest_qkey),
    }
}

fn encode_flags(flags: SendFlags) -> u8 {
    let pairs = [
        (SendFlags::SIGNALLED, SendWqe::SIGNALLED),
        (SendFlags::SOLICITED, SendWqe::SOLICITED),
        (SendFlags::FENCE, SendWqe::FENCE),
        (SendFlags::INLINE, SendWqe::INLINE),
        (SendFlags::RELIABLE, SendWqe::RELIABLE),
    ];
    pairs
        .into_iter()
        .filter(|&(flag, _)| flags.contains(flag))
        .fold(0, |bits, (_, bit)| bits | bit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Rkey, Sge};
    use airdma_shm::{Arena, RingConsumer, RingProducer, ring};

    fn rings() -> (RingProducer, RingConsumer) {
        ring(&Arena::new(), 4, SendWqe::stride(2, 64)).unwrap()
    }

    fn through(wqe: &SendWqe, sges: &[Sge]) -> Result<SendRequest, Corrupt> {
        let (mut producer, mut consumer) = rings();
        let mut slot = producer.slot(0).unwrap();
        slot.write_header(wqe);
        for (index, sge) in sges.iter().enumerate() {
            slot.write_sge::<SendWqe>(index as u32, sge);
        }
        producer.publish(1);
        let number = consumer.take().unwrap();
        decode(consumer.slot(number), number, true, false)
    }

    #[test]
    fn every_operation_comes_out_as_it_went_in() {
        let (va, rkey, imm) = (0x1122_3344_5566_7788, Rkey(0x99aa_bbcc), [1, 2, 3, 4]);
        let datagram = Datagram {
            path: Path {
                gid: Gid([7; 16]),
                sgid_index: 3,
                traffic_class: 4,
                hop_limit: 5,
                flow_label: 0xf_1234,
            },
            qpn: Qpn::new(0x12_3456),
            qkey: Qkey(0x8000_1111),
        };
        let sges = [
            Sge {
                addr: 1,
                length: 30,
                lkey: 2,
            },
            Sge {
                addr: 3,
                length: 12,
                lkey: 4,
            },
        ];
        for operation in [
            Operation::Send,
            Operation::SendImm(imm),
            Operation::SendInvalidate(rkey),
            Operation::Write { va, rkey },
            Operation::WriteImm { va, rkey, imm },
            Operation::Read { va, rkey },
            Operation::CompareSwap {
                va,
                rkey,
                compare: 8,
                swap: 9,
            },
            Operation::FetchAdd {
                va,
                rkey,
                add: u64::MAX,
            },
        ] {
            let flags = SendFlags::SIGNALLED | SendFlags::FENCE;
            let payload = Payload {
                elements: sges.len(),
                bytes: 42,
                inline: false,
            };
            let wr = SendWr {
                wr_id: 77,
                operation,
                sges: &sges,
                flags,
                datagram: Some(datagram),
                srqn: 0,
            };
            let mut header = SendWqe::default();
            encode(&wr, &payload, &mut header);
            let request = through(&header, &sges).unwrap();
            let atomic = matches!(
                operation,
                Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
            );
            assert_eq!(request.operation, operation);
            assert_eq!(request.datagram, Some(datagram));
            assert_eq!(
                (request.wr_id, request.length),
                (77, if atomic { 8 } else { 42 })
            );
            assert_eq!(
                (request.signalled, request.solicited, request.fence),
                (true, false, true)
            );
        }
    }

    #[test]
    fn a_hostile_poster_is_found_out() {
        let sge = Sge {
            addr: 0,
            length: 1 << 30,
            lkey: 0,
        };
        let good = SendWqe {
            operation: 2,
            sge_count: 1,
            ..SendWqe::default()
        };
        assert_eq!(through(&good, &[sge]).unwrap().length, 1 << 30);
        for bad in [
            SendWqe {
                operation: 200,
                ..good
            },
            SendWqe {
                sge_count: 5,
                ..good
            },
            SendWqe {
                sge_count: u16::MAX,
                ..good
            },
            SendWqe {
                sge_count: 2,
                ..good
            },
            SendWqe {
                flags: SendWqe::INLINE,
                length: 65,
                ..good
            },
            SendWqe {
                flags: SendWqe::INLINE,
                length: u32::MAX,
                ..good
            },
        ] {
            assert_eq!(
                through(&bad, &[sge, sge]),
                Err(Corrupt::SlotBounds),
                "{bad:?}"
            );
        }
    }
}
