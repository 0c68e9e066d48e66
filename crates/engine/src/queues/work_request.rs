//! Work requests, as programs post them.

use airdma_shm::Sge;
use airdma_transport::{Datagram, Operation};
use airdma_wire::{Lkey, Rkey};
use bitflags::bitflags;
use std::time::Duration;

bitflags! {
    /// Flags of a send work request; the values of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Start only when earlier RDMA READs and atomics are done.
        const FENCE = 1;
        /// Write a completion for this request.
        const SIGNALLED = 2;
        /// Solicited event at the receiver.
        const SOLICITED = 4;
        /// Copy the data now: no key is checked, and the buffers are free when the call returns.
        const INLINE = 8;
        /// Repeat the datagram until its target has it ([`Qp::enable_reliable`](crate::Qp)).
        const RELIABLE = 1 << 16;
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// The data, or where READ and atomic results go.
    pub sges: &'a [Sge],
    /// Flags.
    pub flags: SendFlags,
    /// Where a datagram goes: `Some` on UD queue pairs only.
    pub datagram: Option<Datagram>,
    /// Number of the peer's shared receive queue; looked at on XRC queue pairs only.
    pub srqn: u32,
}

/// Memory of a peer to read by datagrams ([`Qp::read_record`](crate::Qp::read_record)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRead {
    /// The peer, and its queue key.
    pub datagram: Datagram,
    /// First address of its memory.
    pub va: u64,
    /// The key of that ([`Pd::reg_record_read_mr`](crate::Pd::reg_record_read_mr)).
    pub rkey: Rkey,
    /// How many bytes.
    pub length: u32,
    /// The key of the memory to write.
    pub lkey: Lkey,
    /// First address of it.
    pub to: u64,
    /// When the read ends at the latest.
    pub deadline: Duration,
    /// Requests without an answer, after which it ends.
    pub tries: u32,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the data goes. On UD queue pairs the first 40 bytes take the GRH area.
    pub sges: &'a [Sge],
}

/// The data of a send work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Payload {
    /// Elements of the list, also of one that was copied inline.
    pub(crate) elements: usize,
    pub(crate) bytes: u64,
    /// The bytes lie in the slot, instead of the list.
    pub(crate) inline: bool,
}

impl Payload {
    pub(crate) fn of(wr: &SendWr<'_>) -> Self {
        Payload {
            elements: wr.sges.len(),
            bytes: wr.sges.iter().map(|sge| u64::from(sge.length)).sum(),
            inline: wr.flags.contains(SendFlags::INLINE),
        }
    }
}
