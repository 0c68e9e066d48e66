//! What a send request asks for, as a value, and as the numbers that lie in a ring.
//!
//! [`Operation`] is the one form of a request's operation: an application's work request becomes
//! one where it enters, and nothing but [`Operation::pack`] and [`Operation::unpack`] knows how it
//! lies in a ring. What the queues ask of an operation (how long its message is, which services
//! have it, what its completion says) is answered here. A new operation is added here, to the wire
//! format, to the requester and to the responder.

use airdma_wire::{Feth, IETH_LEN, IMMEDIATE_LEN, Lkey, Rkey};

use crate::attributes::{Access, QpType};
use crate::completion::CompletionOpcode;

/// What a send request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with immediate data, in network byte order.
    SendImm([u8; 4]),
    /// SEND that invalidates a key of the receiver.
    SendInvalidate(Rkey),
    /// RDMA WRITE to the peer's address.
    Write {
        /// Peer's virtual address.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
    },
    /// RDMA WRITE that also completes a receive of the peer.
    WriteImm {
        /// Peer's virtual address.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
        /// Immediate data in network byte order.
        imm: [u8; 4],
    },
    /// RDMA READ from the peer's address.
    Read {
        /// Peer's virtual address.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
    },
    /// 64-bit compare and swap.
    CompareSwap {
        /// Peer's virtual address, a multiple of 8.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
        /// Value to compare with.
        compare: u64,
        /// Value to store if equal.
        swap: u64,
    },
    /// 64-bit fetch and add.
    FetchAdd {
        /// Peer's virtual address, a multiple of 8.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
        /// Value to add, modulo 2^64.
        add: u64,
    },
    /// ATOMIC WRITE: the 8 bytes of the message replace 8 bytes of the peer at once (IBTA
    /// A19.4.3.1).
    AtomicWrite {
        /// Peer's virtual address, a multiple of 8.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
    },
    /// FLUSH: everything that was written before is placed as `what` says (IBTA A19.4.3).
    Flush {
        /// Peer's virtual address.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
        /// Bytes from `va`, unless the whole region is named.
        length: u32,
        /// Placement type and selectivity level.
        what: Feth,
    },
    /// Write-Record: datagrams write to the peer's address, and the peer logs what arrived.
    Record {
        /// Peer's virtual address.
        va: u64,
        /// Peer's key, for records.
        rkey: Rkey,
    },
    /// Write-Record with immediate data, in network byte order.
    RecordImm {
        /// Peer's virtual address.
        va: u64,
        /// Peer's key, for records.
        rkey: Rkey,
        /// Immediate data.
        imm: [u8; 4],
    },
    /// Binds a memory window; nothing goes on the wire.
    BindWindow(Bind),
    /// Invalidates a local key; nothing goes on the wire.
    LocalInvalidate(Rkey),
}

/// Binding of a memory window (IBTA 10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's old key.
    pub window: Rkey,
    /// The window's new key: the same except for the low 8 bits.
    pub new_key: Rkey,
    /// The region that it lies in.
    pub region: Lkey,
    /// First address.
    pub va: u64,
    /// Bytes; 0 opens nothing.
    pub length: u64,
    /// Rights of peers.
    pub access: Access,
}

/// An [`Operation`] as numbers. Fields that an operation does not use are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedOperation {
    /// Which operation: its number in `ibv_wr_opcode`.
    pub code: u8,
    /// Immediate data, as it goes on the wire.
    pub imm: [u8; 4],
    /// Remote key of READ, WRITE, atomics and FLUSH; the key to invalidate; the key of the window
    /// to bind.
    pub rkey: u32,
    /// Remote address of READ, WRITE, atomics and FLUSH; first address of the window to bind.
    pub va: u64,
    /// Compare and swap: the new value. Fetch and add: the addend. Bind: the access rights. FLUSH:
    /// the placement type, and the selectivity level in bits 4 and 5.
    pub swap_add: u64,
    /// Compare and swap: the value that must be there. Bind: the window's length. FLUSH: the number
    /// of bytes.
    pub compare: u64,
    /// Bind: key of the region that the window lies in.
    pub bind_lkey: u32,
    /// Bind: the window's key afterwards.
    pub bind_rkey: u32,
}

/// Where an operation is packed: the fields of a [`PackedOperation`], wherever they lie.
#[expect(missing_docs, reason = "they are those of `PackedOperation`")]
#[derive(Debug)]
pub struct OperationFields<'a> {
    pub code: &'a mut u8,
    pub imm: &'a mut [u8; 4],
    pub rkey: &'a mut u32,
    pub va: &'a mut u64,
    pub swap_add: &'a mut u64,
    pub compare: &'a mut u64,
    pub bind_lkey: &'a mut u32,
    pub bind_rkey: &'a mut u32,
}

/// The numbers of operations in a ring, which are those of `ibv_wr_opcode`.
mod code {
    pub const WRITE: u8 = 0;
    pub const WRITE_IMM: u8 = 1;
    pub const SEND: u8 = 2;
    pub const SEND_IMM: u8 = 3;
    pub const READ: u8 = 4;
    pub const COMPARE_SWAP: u8 = 5;
    pub const FETCH_ADD: u8 = 6;
    pub const LOCAL_INVALIDATE: u8 = 7;
    pub const BIND_WINDOW: u8 = 8;
    pub const SEND_INVALIDATE: u8 = 9;
    /// `IBV_WR_DRIVER1`.
    pub const RECORD: u8 = 11;
    /// No number of `ibv_wr_opcode`.
    pub const RECORD_IMM: u8 = 12;
    pub const FLUSH: u8 = 14;
    pub const ATOMIC_WRITE: u8 = 15;
}

/// How many bytes the message of an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The bytes of its list, in as many packets as they need.
    List,
    /// [`WORD_LEN`] bytes, in one packet.
    Word,
    /// None, in one packet.
    Empty,
    /// None: nothing goes on the wire.
    Local,
}

/// Bytes that an atomic operation exchanges (IBTA 9.4.5, A19.4.3).
pub const WORD_LEN: u32 = 8;

/// How a FLUSH is packed in `swap_add`.
const PLACEMENT_MASK: u8 = 0xf;
const SELECTIVITY_SHIFT: u8 = 4;
const SELECTIVITY_MASK: u8 = 0b11;

impl Operation {
    /// Writes the operation as numbers into `fields`, which are zero: those that it does not use
    /// stay so.
    #[inline]
    pub fn pack(&self, fields: OperationFields<'_>) {
        match *self {
            Operation::Send => *fields.code = code::SEND,
            Operation::SendImm(imm) => (*fields.code, *fields.imm) = (code::SEND_IMM, imm),
            Operation::SendInvalidate(rkey) => {
                (*fields.code, *fields.rkey) = (code::SEND_INVALIDATE, rkey.0);
            }
            Operation::Write { va, rkey } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::WRITE, va, rkey.0);
            }
            Operation::WriteImm { va, rkey, imm } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::WRITE_IMM, va, rkey.0);
                *fields.imm = imm;
            }
            Operation::Read { va, rkey } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::READ, va, rkey.0);
            }
            Operation::CompareSwap {
                va,
                rkey,
                compare,
                swap,
            } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::COMPARE_SWAP, va, rkey.0);
                (*fields.compare, *fields.swap_add) = (compare, swap);
            }
            Operation::FetchAdd { va, rkey, add } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::FETCH_ADD, va, rkey.0);
                *fields.swap_add = add;
            }
            Operation::AtomicWrite { va, rkey } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::ATOMIC_WRITE, va, rkey.0);
            }
            Operation::Flush {
                va,
                rkey,
                length,
                what,
            } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::FLUSH, va, rkey.0);
                *fields.compare = length.into();
                *fields.swap_add = (what.selectivity << SELECTIVITY_SHIFT | what.placement).into();
            }
            Operation::Record { va, rkey } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::RECORD, va, rkey.0);
            }
            Operation::RecordImm { va, rkey, imm } => {
                (*fields.code, *fields.va, *fields.rkey) = (code::RECORD_IMM, va, rkey.0);
                *fields.imm = imm;
            }
            Operation::LocalInvalidate(rkey) => {
                (*fields.code, *fields.rkey) = (code::LOCAL_INVALIDATE, rkey.0);
            }
            Operation::BindWindow(bind) => {
                (*fields.code, *fields.va, *fields.rkey) =
                    (code::BIND_WINDOW, bind.va, bind.window.0);
                (*fields.bind_lkey, *fields.bind_rkey) = (bind.region.0, bind.new_key.0);
                *fields.compare = bind.length;
                *fields.swap_add = bind.access.bits().into();
            }
        }
    }

    /// The operation that these numbers stand for; `None` if its code is no operation's.
    #[inline]
    pub fn unpack(packed: &PackedOperation) -> Option<Operation> {
        let (va, rkey, imm) = (packed.va, Rkey(packed.rkey), packed.imm);
        Some(match packed.code {
            code::SEND => Operation::Send,
            code::SEND_IMM => Operation::SendImm(imm),
            code::SEND_INVALIDATE => Operation::SendInvalidate(rkey),
            code::WRITE => Operation::Write { va, rkey },
            code::WRITE_IMM => Operation::WriteImm { va, rkey, imm },
            code::READ => Operation::Read { va, rkey },
            code::COMPARE_SWAP => Operation::CompareSwap {
                va,
                rkey,
                compare: packed.compare,
                swap: packed.swap_add,
            },
            code::FETCH_ADD => Operation::FetchAdd {
                va,
                rkey,
                add: packed.swap_add,
            },
            code::ATOMIC_WRITE => Operation::AtomicWrite { va, rkey },
            code::FLUSH => Operation::Flush {
                va,
                rkey,
                length: packed.compare as u32,
                what: Feth {
                    placement: packed.swap_add as u8 & PLACEMENT_MASK,
                    selectivity: packed.swap_add as u8 >> SELECTIVITY_SHIFT & SELECTIVITY_MASK,
                },
            },
            code::RECORD => Operation::Record { va, rkey },
            code::RECORD_IMM => Operation::RecordImm { va, rkey, imm },
            code::LOCAL_INVALIDATE => Operation::LocalInvalidate(rkey),
            code::BIND_WINDOW => Operation::BindWindow(Bind {
                window: rkey,
                new_key: Rkey(packed.bind_rkey),
                region: Lkey(packed.bind_lkey),
                va,
                length: packed.compare,
                access: Access::from_bits_truncate(packed.swap_add as u32),
            }),
            _ => return None,
        })
    }

    /// How many bytes its message has.
    #[inline]
    pub const fn extent(&self) -> Extent {
        match self {
            Operation::Send
            | Operation::SendImm(_)
            | Operation::SendInvalidate(_)
            | Operation::Write { .. }
            | Operation::WriteImm { .. }
            | Operation::Record { .. }
            | Operation::RecordImm { .. }
            | Operation::Read { .. } => Extent::List,
            Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. }
            | Operation::AtomicWrite { .. } => Extent::Word,
            Operation::Flush { .. } => Extent::Empty,
            Operation::BindWindow(_) | Operation::LocalInvalidate(_) => Extent::Local,
        }
    }

    /// Bytes of the header that the last packet of its message has more than the others: immediate
    /// data, or the key to invalidate.
    pub(crate) fn trailer_len(&self) -> u32 {
        match self {
            Operation::SendImm(_) | Operation::WriteImm { .. } => IMMEDIATE_LEN as u32,
            Operation::SendInvalidate(_) => IETH_LEN as u32,
            Operation::Send
            | Operation::Write { .. }
            | Operation::Read { .. }
            | Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. }
            | Operation::AtomicWrite { .. }
            | Operation::Flush { .. }
            | Operation::Record { .. }
            | Operation::RecordImm { .. }
            | Operation::BindWindow(_)
            | Operation::LocalInvalidate(_) => 0,
        }
    }

    /// Whether it is done without a packet.
    #[inline]
    pub const fn is_local(&self) -> bool {
        matches!(self.extent(), Extent::Local)
    }

    /// Whether the peer answers with a response: READ, atomics and FLUSH, which `max_rd_atomic`
    /// bounds.
    #[inline]
    pub const fn is_read_or_atomic(&self) -> bool {
        matches!(self.extent(), Extent::Word | Extent::Empty)
            || matches!(self, Operation::Read { .. })
    }

    /// Whether the response carries data for the scatter list.
    #[inline]
    pub const fn lands(&self) -> bool {
        self.is_read_or_atomic() && !self.ends_without_data()
    }

    /// Whether a READ response without data answers it: ATOMIC WRITE and FLUSH (IBTA A19.4.3).
    #[inline]
    pub const fn ends_without_data(&self) -> bool {
        matches!(
            self,
            Operation::AtomicWrite { .. } | Operation::Flush { .. }
        )
    }

    /// Whether its first packet has a RETH and data.
    #[inline]
    pub(crate) const fn is_write(&self) -> bool {
        matches!(self, Operation::Write { .. } | Operation::WriteImm { .. })
    }

    /// Whether it is a Write-Record, which datagram queue pairs alone have.
    #[inline]
    pub const fn is_record(&self) -> bool {
        matches!(self, Operation::Record { .. } | Operation::RecordImm { .. })
    }

    /// Address, key and immediate data of a Write-Record.
    pub(crate) const fn record_target(&self) -> Option<(u64, Rkey, Option<[u8; 4]>)> {
        if let Operation::RecordImm { va, rkey, imm } = *self {
            Some((va, rkey, Some(imm)))
        } else if let Operation::Record { va, rkey } = *self {
            Some((va, rkey, None))
        } else {
            None
        }
    }

    /// Immediate data.
    pub(crate) const fn immediate(&self) -> Option<[u8; 4]> {
        if let Operation::SendImm(imm)
        | Operation::WriteImm { imm, .. }
        | Operation::RecordImm { imm, .. } = *self
        {
            Some(imm)
        } else {
            None
        }
    }

    /// Whether a service has it (IBTA table 38, A14.3.2).
    #[inline]
    pub const fn is_of_service(&self, qp_type: QpType) -> bool {
        match qp_type {
            QpType::Rc | QpType::XrcSend => !self.is_record(),
            QpType::Uc => {
                // What is not answered. SEND with invalidate is of reliable services alone.
                !self.is_read_or_atomic()
                    && !matches!(self, Operation::SendInvalidate(_))
                    && !self.is_record()
            }
            QpType::Ud => {
                matches!(self, Operation::Send | Operation::SendImm(_)) || self.is_record()
            }
            QpType::RawPacket => matches!(self, Operation::Send),
            QpType::XrcReceive => false,
        }
    }

    /// The kind of work that its completion reports.
    pub const fn completion_opcode(&self) -> CompletionOpcode {
        match self {
            Operation::Send | Operation::SendImm(_) | Operation::SendInvalidate(_) => {
                CompletionOpcode::Send
            }
            Operation::Write { .. } | Operation::WriteImm { .. } => CompletionOpcode::Write,
            Operation::Read { .. } => CompletionOpcode::Read,
            Operation::CompareSwap { .. } => CompletionOpcode::CompareSwap,
            Operation::FetchAdd { .. } => CompletionOpcode::FetchAdd,
            Operation::AtomicWrite { .. } => CompletionOpcode::AtomicWrite,
            Operation::Flush { .. } => CompletionOpcode::Flush,
            Operation::Record { .. } | Operation::RecordImm { .. } => CompletionOpcode::Record,
            Operation::BindWindow(_) => CompletionOpcode::BindWindow,
            Operation::LocalInvalidate(_) => CompletionOpcode::LocalInvalidate,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Each field has a value of its own, so that one that is lost or swapped shows.
    const FULL: PackedOperation = PackedOperation {
        code: 0,
        imm: [1, 2, 3, 4],
        rkey: 0x0506_0708,
        va: 0x1112_1314_1516_1718,
        swap_add: 0x1f,
        compare: 0x3132_3334_3536_3738,
        bind_lkey: 0x4142_4344,
        bind_rkey: 0x5152_5354,
    };

    fn packed(operation: &Operation) -> PackedOperation {
        let mut packed = PackedOperation::default();
        operation.pack(OperationFields {
            code: &mut packed.code,
            imm: &mut packed.imm,
            rkey: &mut packed.rkey,
            va: &mut packed.va,
            swap_add: &mut packed.swap_add,
            compare: &mut packed.compare,
            bind_lkey: &mut packed.bind_lkey,
            bind_rkey: &mut packed.bind_rkey,
        });
        packed
    }

    fn all() -> impl Iterator<Item = Operation> {
        (0..=u8::MAX).filter_map(|code| Operation::unpack(&PackedOperation { code, ..FULL }))
    }

    #[test]
    fn an_operation_is_unpacked_as_it_was_packed() {
        for operation in all() {
            let packed = packed(&operation);
            assert_eq!(Operation::unpack(&packed), Some(operation), "{packed:?}");
        }
    }

    #[test]
    fn operations_keep_their_numbers() {
        let numbers: Vec<_> = all().map(|operation| packed(&operation).code).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15]);
        let [write, .., atomic_write] = numbers[..] else {
            panic!("{numbers:?}");
        };
        let of = |code| Operation::unpack(&PackedOperation { code, ..FULL }).unwrap();
        let (va, rkey) = (FULL.va, Rkey(FULL.rkey));
        assert_eq!(of(write), Operation::Write { va, rkey });
        assert_eq!(of(atomic_write), Operation::AtomicWrite { va, rkey });
        let what = Feth {
            placement: 0xf,
            selectivity: Feth::REGION,
        };
        let length = FULL.compare as u32;
        assert_eq!(
            of(14),
            Operation::Flush {
                va,
                rkey,
                length,
                what
            }
        );
        assert_eq!(of(2), Operation::Send);
        assert_eq!(of(9), Operation::SendInvalidate(rkey));
    }

    #[test]
    fn fields_that_an_operation_does_not_use_are_zero() {
        assert_eq!(
            packed(&Operation::Send),
            PackedOperation {
                code: 2,
                ..PackedOperation::default()
            }
        );
        let bind = Operation::unpack(&PackedOperation { code: 8, ..FULL }).unwrap();
        let imm = [0; 4];
        assert_eq!(
            packed(&bind),
            PackedOperation {
                code: 8,
                imm,
                ..FULL
            }
        );
    }

    #[test]
    fn services_have_the_operations_of_table_38() {
        let count = |qp_type| all().filter(|it| it.is_of_service(qp_type)).count();
        assert_eq!([QpType::Rc, QpType::XrcSend].map(count), [12, 12]);
        assert_eq!(
            [QpType::Uc, QpType::Ud, QpType::RawPacket].map(count),
            [6, 4, 1]
        );
        assert_eq!(count(QpType::XrcReceive), 0);
        let has = |it: Operation| it.is_local() || it.is_record() || it.is_of_service(QpType::Rc);
        assert!(all().all(has));
    }
}
