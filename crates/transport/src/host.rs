//! The host of a queue pair: the boundary between protocol and machine.

use airdma_wire::{Neighbour, Rkey};

use crate::attributes::Access;
use crate::completion::Completion;
use crate::counter::Counter;
use crate::operation::Bind;

/// The host's handle of a posted work request, normally its index in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// A posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The host's handle of it.
    pub slot: Slot,
    /// The caller's identifier.
    pub wr_id: u64,
    /// Capacity of its scatter list in bytes.
    pub length: u32,
}

/// A local key, range or access flag does not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("local memory access refused")]
pub struct LocalFault;

/// Why a peer's access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteFault {
    /// Unknown key, other protection domain, out of bounds, or access not granted.
    #[error("remote memory access refused")]
    Access,
    /// An atomic on an address that is not a multiple of 8.
    #[error("atomic operand is not aligned to 8 bytes")]
    Misaligned,
}

/// Kind of a peer's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Compare and swap, fetch and add.
    Atomic,
    /// FLUSH: what the peer wrote there before is placed when the check returns.
    Flush {
        /// Rights that it needs: those to flush, by placement type.
        needs: Access,
        /// Whether it names the whole region, whatever the address and the length.
        whole: bool,
    },
}

/// A 64-bit atomic, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Store `swap` if the value equals `compare`.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Add modulo 2^64.
    FetchAdd {
        /// Value to add.
        add: u64,
    },
}

/// Affiliated asynchronous events of a queue pair (IBTA 11.6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// The responder failed for a local reason (`IBV_EVENT_QP_FATAL`).
    Fatal,
    /// A peer's access was refused (`IBV_EVENT_QP_ACCESS_ERR`).
    AccessError,
    /// A peer's request was malformed (`IBV_EVENT_QP_REQ_ERR`).
    RequestError,
    /// The first packet arrived before the transition to ready-to-send (`IBV_EVENT_COMM_EST`).
    CommunicationEstablished,
    /// All requests from before the drain are done (`IBV_EVENT_SQ_DRAINED`).
    SendQueueDrained,
    /// In the error state, the last receive from its shared queue is completed.
    ///
    /// This is `IBV_EVENT_QP_LAST_WQE_REACHED`.
    LastWqeReached,
}

/// Layout of the payloads of a run of packets in the buffer that it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Offset of the first payload.
    pub start: usize,
    /// Bytes of each payload.
    pub len: usize,
    /// Distance between the starts of two payloads.
    pub stride: usize,
    /// Number of payloads.
    pub count: usize,
}

impl Spread {
    /// Bytes of all payloads.
    pub fn bytes(&self) -> usize {
        self.len * self.count
    }

    /// Each payload's part of `out` in turn, from the end of the part before to `behind` bytes
    /// behind it.
    pub fn packets<'a>(
        &self,
        out: &'a mut [u8],
        behind: usize,
    ) -> impl Iterator<Item = &'a mut [u8]> + use<'a> {
        let end = self.start + self.len + behind;
        let packets = out.chunks_mut(self.stride).take(self.count);
        packets.map(move |packet| &mut packet[..end])
    }

    /// Each payload's part of `out` in turn.
    fn parts<'a>(&self, out: &'a mut [u8]) -> impl Iterator<Item = &'a mut [u8]> + use<'a> {
        let Spread { len, count, .. } = *self;
        let rest = out[self.start..].chunks_mut(self.stride);
        rest.take(count).map(move |part| &mut part[..len])
    }

    /// Calls `fill` for each part of `out` in turn, with the number of bytes in the parts before.
    pub fn fill<E>(
        &self,
        out: &mut [u8],
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = self.parts(out).enumerate();
        parts.try_for_each(|(index, part)| fill(index * self.len, part))
    }
}

/// The environment of one queue pair during one call: its rings, the memory of its protection
/// domain, its completion queues.
///
/// The engine and the simulator each make one for each call. Every memory access is checked anew by
/// the host; no earlier check is trusted, because regions may vanish while packets are in flight.
pub trait Host {
    /// Copies bytes `offset..offset + out.len()` of the message of send request `slot`.
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault>;

    /// As [`gather`](Self::gather), into each part of `spread` in turn. After a fault, part of it
    /// may have been copied.
    ///
    /// The headers before each part are there; the 4 bytes behind each are the host's.
    fn gather_run(
        &mut self,
        slot: Slot,
        offset: u32,
        out: &mut [u8],
        spread: Spread,
    ) -> Result<(), LocalFault> {
        spread.fill(out, |before, part| {
            self.gather(slot, offset + before as u32, part)
        })
    }

    /// Places response data at `offset` of the scatter list of send request `slot`.
    fn scatter(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault>;

    /// Whether the scatter lists of two send requests overlap, by addresses in the program's
    /// address space.
    ///
    /// If they do, the data that is placed last stays.
    fn share_memory(&mut self, one: Slot, other: Slot) -> bool;

    /// Takes the next posted receive, from the queue pair's own queue or its shared one.
    fn take_receive(&mut self) -> Option<Receive>;

    /// Takes the next receive of the shared receive queue that a message of an extended connection
    /// names.
    ///
    /// # Errors
    /// The connection's domain has no such queue: the request is refused as invalid.
    fn take_shared_receive(&mut self, srqn: u32) -> Result<Option<Receive>, RemoteFault>;

    /// Places message data at `offset` of receive `slot`.
    fn scatter_receive(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault>;

    /// Whether the peer may access `length` bytes at `va`. Only a FLUSH of no bytes needs a key.
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault>;

    /// Copies registered memory for an RDMA READ.
    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault>;

    /// Whether `source` may read `length` bytes at `va` by datagrams.
    fn check_read(
        &mut self,
        _source: Neighbour,
        _rkey: Rkey,
        _va: u64,
        _length: u32,
    ) -> Result<(), RemoteFault> {
        Err(RemoteFault::Access)
    }

    /// Copies registered memory for a packet of a record that `source` has asked for.
    fn read_for(
        &mut self,
        _source: Neighbour,
        _rkey: Rkey,
        _va: u64,
        _out: &mut [u8],
    ) -> Result<(), RemoteFault> {
        Err(RemoteFault::Access)
    }

    /// As [`read_remote`](Self::read_remote), into each part of `spread` in turn. After a fault,
    /// part of it may have been copied. What is around the parts: see
    /// [`gather_run`](Self::gather_run).
    fn read_remote_run(
        &mut self,
        rkey: Rkey,
        va: u64,
        out: &mut [u8],
        spread: Spread,
    ) -> Result<(), RemoteFault> {
        spread.fill(out, |before, part| {
            self.read_remote(rkey, va.wrapping_add(before as u64), part)
        })
    }

    /// Places data of an RDMA WRITE.
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault>;

    /// Places the last data of an RDMA WRITE. A thread of the program that reads its last eight
    /// bytes atomically, if their address is a multiple of 8, then sees all of the message.
    fn write_remote_last(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        self.write_remote(rkey, va, data)
    }

    /// An RDMA WRITE is placed whole.
    fn wrote(&mut self) {}

    /// Executes an atomic and returns the original value.
    fn atomic(
        &mut self,
        rkey: Rkey,
        va: u64,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault>;

    /// Stores eight bytes atomically, given in memory order; the address is a multiple of 8.
    fn write_atomic(&mut self, rkey: Rkey, va: u64, data: [u8; 8]) -> Result<(), RemoteFault>;

    /// Invalidates a key at the request of a peer's SEND.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteFault>;

    /// Invalidates a key at the request of a local request.
    fn invalidate_local(&mut self, rkey: Rkey) -> Result<(), LocalFault>;

    /// Binds a memory window to this queue pair's domain and, for windows of type 2, to this queue
    /// pair.
    fn bind(&mut self, bind: &Bind) -> Result<(), LocalFault>;

    /// Frees the slot of a send request that is done; `None` is an unsignalled success.
    fn complete_send(&mut self, slot: Slot, completion: Option<Completion>);

    /// Takes a send request out of the queue, so that those behind it can complete before it.
    /// Returns its new handle, for [`gather_held`](Self::gather_held) and
    /// [`complete_held_send`](Self::complete_held_send); `None`, and nothing done, if there is no
    /// room for it. All requests before it are complete or held.
    fn hold_send(&mut self, slot: Slot) -> Option<Slot> {
        Some(slot)
    }

    /// As [`gather`](Self::gather), of a held request.
    fn gather_held(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        self.gather(slot, offset, out)
    }

    /// As [`complete_send`](Self::complete_send), of a held request.
    fn complete_held_send(&mut self, slot: Slot, completion: Option<Completion>) {
        self.complete_send(slot, completion);
    }

    /// Frees the slot of a receive that is done.
    fn complete_receive(&mut self, slot: Slot, completion: Completion);

    /// Reports an asynchronous event of this queue pair.
    fn event(&mut self, event: QpEvent);

    /// Counts `counter` once.
    fn count(&mut self, counter: Counter);
}
