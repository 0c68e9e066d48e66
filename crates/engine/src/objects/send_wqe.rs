//! Send work requests on their way through the ring: written by the poster, read by the worker.

use crate::objects::post::Payload;
use crate::queues::sge_list::list_bytes;
use crate::{Access, Datagram, LIMITS, Operation, Path, SendFlags, SendWr};
use airdma_shm::{Corrupt, SendWqe, SlotRef, WorkOperation};
use airdma_transport::Bind;
use airdma_transport::{SendRequest, Slot};
use airdma_wire::{Gid, Lkey, Qkey, Qpn, Rkey};

/// The header of a work request, whose payload was checked. Inline bytes or elements follow it in the slot.
pub(crate) fn encode(wr: &SendWr<'_>, payload: &Payload) -> SendWqe {
    let mut wqe = SendWqe {
        wr_id: wr.wr_id,
        operation: work_operation(&wr.operation) as u8,
        flags: encode_flags(wr.flags),
        sge_count: payload.elements as u16,
        length: if payload.inline {
            payload.bytes as u32
        } else {
            0
        },
        srqn: wr.srqn,
        ..SendWqe::default()
    };
    match wr.operation {
        Operation::Send => {}
        Operation::SendImm(imm) => wqe.imm = imm,
        Operation::SendInvalidate(rkey) | Operation::LocalInvalidate(rkey) => wqe.rkey = rkey.0,
        Operation::BindWindow(bind) => {
            (wqe.rkey, wqe.bind_rkey, wqe.bind_lkey) =
                (bind.window.0, bind.new_key.0, bind.region.0);
            (wqe.remote_va, wqe.compare) = (bind.va, bind.length);
            wqe.swap_add = bind.access.bits().into();
        }
        Operation::Write { va, rkey }
        | Operation::Read { va, rkey }
        | Operation::AtomicWrite { va, rkey } => {
            (wqe.remote_va, wqe.rkey) = (va, rkey.0);
        }
        Operation::WriteImm { va, rkey, imm } => {
            (wqe.remote_va, wqe.rkey, wqe.imm) = (va, rkey.0, imm);
        }
        Operation::CompareSwap {
            va,
            rkey,
            compare,
            swap,
        } => {
            (wqe.remote_va, wqe.rkey, wqe.compare, wqe.swap_add) = (va, rkey.0, compare, swap);
        }
        Operation::FetchAdd { va, rkey, add } => {
            (wqe.remote_va, wqe.rkey, wqe.swap_add) = (va, rkey.0, add);
        }
    }
    if let Some(Datagram { path, qpn, qkey }) = wr.datagram {
        wqe.dest_gid = path.gid.0;
        wqe.dest_qpn = qpn.get();
        wqe.dest_qkey = qkey.0;
        wqe.flow_label = path.flow_label;
        wqe.sgid_index = path.sgid_index;
        wqe.traffic_class = path.traffic_class;
        wqe.hop_limit = path.hop_limit;
    }
    wqe
}

/// The work request in slot `number`. The poster has checked it, but the ring may be another process's.
pub(crate) fn decode(
    slot: SlotRef<'_>,
    number: u32,
    is_datagram: bool,
    signal_all: bool,
) -> Result<SendRequest, Corrupt> {
    let wqe: SendWqe = slot.read_header();
    let work = WorkOperation::try_from(wqe.operation).map_err(|_| Corrupt::SlotBounds)?;
    let operation = operation(work, &wqe);
    let length = match work {
        WorkOperation::CompareSwap | WorkOperation::FetchAdd | WorkOperation::AtomicWrite => 8,
        WorkOperation::LocalInvalidate | WorkOperation::BindWindow => 0,
        WorkOperation::Write
        | WorkOperation::WriteImm
        | WorkOperation::Send
        | WorkOperation::SendImm
        | WorkOperation::Read
        | WorkOperation::SendInvalidate => message_length(slot, &wqe)?,
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

fn operation(work: WorkOperation, wqe: &SendWqe) -> Operation {
    let (va, rkey) = (wqe.remote_va, Rkey(wqe.rkey));
    match work {
        WorkOperation::Write => Operation::Write { va, rkey },
        WorkOperation::WriteImm => Operation::WriteImm {
            va,
            rkey,
            imm: wqe.imm,
        },
        WorkOperation::Send => Operation::Send,
        WorkOperation::SendImm => Operation::SendImm(wqe.imm),
        WorkOperation::Read => Operation::Read { va, rkey },
        WorkOperation::CompareSwap => Operation::CompareSwap {
            va,
            rkey,
            compare: wqe.compare,
            swap: wqe.swap_add,
        },
        WorkOperation::FetchAdd => Operation::FetchAdd {
            va,
            rkey,
            add: wqe.swap_add,
        },
        WorkOperation::SendInvalidate => Operation::SendInvalidate(rkey),
        WorkOperation::LocalInvalidate => Operation::LocalInvalidate(rkey),
        WorkOperation::AtomicWrite => Operation::AtomicWrite { va, rkey },
        WorkOperation::BindWindow => Operation::BindWindow(Bind {
            window: rkey,
            new_key: Rkey(wqe.bind_rkey),
            region: Lkey(wqe.bind_lkey),
            va,
            length: wqe.compare,
            access: Access::from_bits_truncate(wqe.swap_add as u32),
        }),
    }
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

fn work_operation(operation: &Operation) -> WorkOperation {
    match operation {
        Operation::Send => WorkOperation::Send,
        Operation::SendImm(_) => WorkOperation::SendImm,
        Operation::SendInvalidate(_) => WorkOperation::SendInvalidate,
        Operation::Write { .. } => WorkOperation::Write,
        Operation::WriteImm { .. } => WorkOperation::WriteImm,
        Operation::Read { .. } => WorkOperation::Read,
        Operation::CompareSwap { .. } => WorkOperation::CompareSwap,
        Operation::FetchAdd { .. } => WorkOperation::FetchAdd,
        Operation::LocalInvalidate(_) => WorkOperation::LocalInvalidate,
        Operation::BindWindow(_) => WorkOperation::BindWindow,
        Operation::AtomicWrite { .. } => WorkOperation::AtomicWrite,
    }
}

fn encode_flags(flags: SendFlags) -> u8 {
    let pairs = [
        (SendFlags::SIGNALLED, SendWqe::SIGNALLED),
        (SendFlags::SOLICITED, SendWqe::SOLICITED),
        (SendFlags::FENCE, SendWqe::FENCE),
        (SendFlags::INLINE, SendWqe::INLINE),
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
    use crate::Sge;
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
            let request = through(&encode(&wr, &payload), &sges).unwrap();
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
