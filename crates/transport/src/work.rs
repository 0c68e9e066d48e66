//! Work requests as the transport sees them: what to do, not where the bytes lie.

use airdma_wire::{Gid, Lkey, Qkey, Qpn, Rkey};

use crate::attributes::Access;
use crate::host::Slot;

/// Longest message: 2^31 - 1 bytes, the limit that `ibv_query_port` reports (IBTA 9.4.1 allows 2^31).
pub const MESSAGE_LEN_MAX: u32 = (1 << 31) - 1;

/// Where packets go and how they are marked: the part of an address vector that RoCEv2 uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Destination GID: an IPv6 address or an IPv4-mapped one.
    pub gid: Gid,
    /// Index of our own GID, the source address.
    pub sgid_index: u8,
    /// IP traffic class (IPv4 TOS).
    pub traffic_class: u8,
    /// IP hop limit (IPv4 TTL); 0 lets the port choose.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Destination of one unreliable datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Way to the destination host.
    pub path: Path,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// Q_Key to send; with its highest bit set the queue pair's own is sent (IBTA 10.2.5).
    pub qkey: Qkey,
}

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
    /// ATOMIC WRITE: the 8 bytes of the message replace 8 bytes of the peer at once (IBTA A19.4.3.1).
    AtomicWrite {
        /// Peer's virtual address, a multiple of 8.
        va: u64,
        /// Peer's key.
        rkey: Rkey,
    },
    /// Binds a memory window; nothing goes on the wire.
    BindWindow(Bind),
    /// Invalidates a key of our own; nothing goes on the wire.
    LocalInvalidate(Rkey),
}

/// A memory window, and what it is to open (IBTA 10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's key now.
    pub window: Rkey,
    /// Its key from now on: the same but for the low 8 bits.
    pub new_key: Rkey,
    /// The region it lies in.
    pub region: Lkey,
    /// First address.
    pub va: u64,
    /// Bytes; 0 opens nothing.
    pub length: u64,
    /// What peers may do.
    pub access: Access,
}

impl Operation {
    /// Whether the peer answers with data, or as if with data: READ and atomics, which are bounded by `max_rd_atomic`.
    pub const fn is_read_or_atomic(&self) -> bool {
        match self {
            Operation::Read { .. }
            | Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. }
            | Operation::AtomicWrite { .. } => true,
            Operation::Send
            | Operation::SendImm(_)
            | Operation::SendInvalidate(_)
            | Operation::Write { .. }
            | Operation::WriteImm { .. }
            | Operation::BindWindow(_)
            | Operation::LocalInvalidate(_) => false,
        }
    }

    /// Whether the answer goes to its scatter list.
    pub(crate) const fn lands(&self) -> bool {
        self.is_read_or_atomic() && !matches!(self, Operation::AtomicWrite { .. })
    }

    /// Whether an unreliable connection has it: what is not answered (IBTA table 38), and what is done here.
    pub const fn is_unreliable(&self) -> bool {
        match self {
            Operation::Send
            | Operation::SendImm(_)
            | Operation::Write { .. }
            | Operation::WriteImm { .. }
            | Operation::BindWindow(_)
            | Operation::LocalInvalidate(_) => true,
            Operation::SendInvalidate(_)
            | Operation::Read { .. }
            | Operation::CompareSwap { .. }
            | Operation::FetchAdd { .. }
            | Operation::AtomicWrite { .. } => false,
        }
    }

    /// Whether it is done here, without a packet.
    pub const fn is_local(&self) -> bool {
        matches!(
            self,
            Operation::BindWindow(_) | Operation::LocalInvalidate(_)
        )
    }
}

/// One posted send request. The bytes stay behind `slot`, with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The host's name for the request, by which it finds the gather list.
    pub slot: Slot,
    /// The caller's identifier, returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// Bytes of the whole message; 8 for atomics.
    pub length: u32,
    /// Whether success is reported. Failure always is.
    pub signalled: bool,
    /// Whether the peer's completion counts as solicited.
    pub solicited: bool,
    /// Whether to wait for all earlier READs and atomics.
    pub fence: bool,
    /// Destination, for datagram queue pairs only.
    pub datagram: Option<Datagram>,
    /// Number of the peer's shared receive queue, for extended connections only.
    pub srqn: u32,
}
