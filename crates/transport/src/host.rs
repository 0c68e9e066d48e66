//! What a queue pair may touch: the boundary between protocol and machine.

use airdma_wire::Rkey;

use crate::completion::Completion;
use crate::counter::Counter;
use crate::operation::Bind;

/// The host's name for a posted work request, normally its index in a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// A receive that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The host's name for it.
    pub slot: Slot,
    /// The caller's identifier.
    pub wr_id: u64,
    /// Bytes that its scatter list holds.
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

/// Kind of access a peer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Compare and swap, fetch and add.
    Atomic,
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
    /// The responder could not go on for a local reason (`IBV_EVENT_QP_FATAL`).
    Fatal,
    /// A peer's access was refused (`IBV_EVENT_QP_ACCESS_ERR`).
    AccessError,
    /// A peer's request was malformed (`IBV_EVENT_QP_REQ_ERR`).
    RequestError,
    /// The first packet came before the move to ready-to-send (`IBV_EVENT_COMM_EST`).
    CommunicationEstablished,
    /// Everything begun before the drain is done (`IBV_EVENT_SQ_DRAINED`).
    SendQueueDrained,
    /// In the error state, and the last receive it took from its shared queue is completed
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached,
}

/// Where the payloads of a run of packets stand in the buffer that it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Offset of the first.
    pub start: usize,
    /// Bytes of each.
    pub len: usize,
    /// From the start of one to the start of the next.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}

impl Spread {
    /// Bytes of all together.
    pub fn bytes(&self) -> usize {
        self.len * self.count
    }

    /// Each part of `out` in turn.
    fn parts<'a>(&self, out: &'a mut [u8]) -> impl Iterator<Item = &'a mut [u8]> + use<'a> {
        let Spread { len, count, .. } = *self;
        let rest = out[self.start..].chunks_mut(self.stride);
        rest.take(count).map(move |part| &mut part[..len])
    }

    /// Has `fill` fill each part of `out` in turn; it is told how many bytes the parts before have.
    pub fn fill<E>(
        &self,
        out: &mut [u8],
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut parts = self.parts(out).enumerate();
        parts.try_for_each(|(index, part)| fill(index * self.len, part))
    }
}

/// What one queue pair may touch during one call: its rings, the memory of its protection
/// domain, its completion queues. The engine and the simulator each build one per call.
///
/// Each memory access is checked anew by the host; nothing is trusted from an earlier check,
/// because regions may vanish while packets are in flight.
pub trait Host {
    /// Copies bytes `offset..offset + out.len()` of the message of send request `slot`.
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault>;

    /// As [`gather`](Self::gather), into each part of `spread` in turn. On a fault nothing is known of what was copied.
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

    /// Whether the scatter lists of two send requests name the same memory, as far as addresses in the program's address space tell: then what
    /// is placed last stays.
    fn share_memory(&mut self, one: Slot, other: Slot) -> bool;

    /// Takes the next posted receive, of the queue pair's own queue or of the shared one it was created with.
    fn take_receive(&mut self) -> Option<Receive>;

    /// Takes the next receive of the shared receive queue that a message of an extended connection names.
    ///
    /// # Errors
    /// There is no such queue in the connection's domain: the request is refused as invalid.
    fn take_shared_receive(&mut self, srqn: u32) -> Result<Option<Receive>, RemoteFault>;

    /// Places message data at `offset` of receive `slot`.
    fn scatter_receive(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault>;

    /// Whether the peer may access `length` bytes at `va`.
    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault>;

    /// Copies registered memory for an RDMA READ.
    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault>;

    /// As [`read_remote`](Self::read_remote), into each part of `spread` in turn. On a fault nothing is known of what was copied.
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

    /// Runs an atomic and returns the original value.
    fn atomic(
        &mut self,
        rkey: Rkey,
        va: u64,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault>;

    /// Stores eight bytes at once, given in the order of memory; the address is a multiple of 8.
    fn write_atomic(&mut self, rkey: Rkey, va: u64, data: [u8; 8]) -> Result<(), RemoteFault>;

    /// Invalidates a key because the peer's SEND asked for it.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteFault>;

    /// Invalidates a key because our own request asked for it.
    fn invalidate_local(&mut self, rkey: Rkey) -> Result<(), LocalFault>;

    /// Binds a memory window to this queue pair's domain and, for windows of type 2, to this queue pair.
    fn bind(&mut self, bind: &Bind) -> Result<(), LocalFault>;

    /// Send request `slot` is done and its slot free; `None` is an unsignalled success.
    fn complete_send(&mut self, slot: Slot, completion: Option<Completion>);

    /// Receive `slot` is done and its slot free.
    fn complete_receive(&mut self, slot: Slot, completion: Completion);

    /// An asynchronous event of this queue pair.
    fn event(&mut self, event: QpEvent);

    /// Counts `counter` once.
    fn count(&mut self, counter: Counter);
}
