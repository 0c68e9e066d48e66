//! Control as data: what the objects of an application ask of the worker of their device
//! ([`Control`]), its answer ([`Reply`]), and what goes beside the request ([`Beside`]).
//!
//! [`Worker::handle`](crate::worker::Worker::handle) is the one function that handles a request. In
//! a process it is called under the worker lock ([`Core::ask`](crate::core::Core::ask)). The same
//! values can cross a socket or go to another worker: they hold numbers, attributes and addresses,
//! have an encoding ([`encoding`]), and name objects by handles that find no later object in the
//! same place.
//!
//! What is no value goes beside: halves of rings, which are blocks of shared memory; queues of
//! events, which have a descriptor; sockets. A process that is not the worker's would pass the
//! descriptors of those.
//!
//! The data path is no part of this: posting, polling and arming use rings and doorbells.

#[macro_use]
pub(crate) mod encoding;

use crate::index::{CqHandle, CqIndex, PdIndex, QpHandle, QpIndex, Serial, SrqHandle, SrqIndex};
use crate::queues::async_event::AsyncEvents;
use crate::queues::attached_counters::CountsCompletions;
use crate::queues::cm_channel::CmChannel;
use crate::queues::cq_shared::{ChannelEvents, CqShared};
use crate::queues::qp_shared::QpShared;
use crate::queues::srq_shared::SrqShared;
use crate::{
    Access, AttrMask, Bind, CountedOperations, CqOptions, Error, Gid, Lkey, Path, PathMtu, Qkey,
    QpAttributes, QpCaps, QpType, Qpn, RegionChange, Rkey,
};
use airdma_cm::{Accept, Connect, ConnectionId, ListenerId, Resolve, SidrAnswer, SidrId, Takes};
use airdma_port::RawSocket;
use airdma_shm::{RingConsumer, RingProducer};
use airdma_transport::{RecordConfig, ReliableConfig};
use airdma_wire::cm::{RejReason, ServiceId};
use std::sync::Arc;
use std::time::Duration;

values! {
    /// A request to the worker of a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Control<'a> {
        /// Nothing but a round: what was posted before the call is processed.
        0 Flush,
        /// About regions and windows.
        1 Memory { call: MemoryControl },
        /// About completion queues and shared receive queues.
        2 Queue { call: QueueControl },
        /// Creates a queue pair in RESET. Beside: [`Beside::QueuePair`]. Reply: its index and its
        /// number.
        3 CreateQueuePair { init: QueuePairInit },
        /// About one queue pair.
        4 QueuePair { qp: QpHandle, call: QueuePairControl },
        /// About connection management as a whole, and services.
        5 Cm { call: CmControl },
        /// About connections.
        6 Connection { call: ConnectionControl<'a> },
    }
}

values! {
    /// A request about regions and windows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    MemoryControl {
        /// Registers memory (`ibv_reg_mr(3)`). Reply: its key.
        0 Register {
            pd: PdIndex,
            address: u64,
            length: usize,
            /// The address by which requests name the first byte.
            iova: u64,
            access: Access,
            /// Whether the memory is a file's, which can be truncated.
            can_be_cut: bool,
        },
        /// Registers a null region (`ibv_alloc_null_mr(3)`). Reply: its key.
        1 RegisterNull { pd: PdIndex },
        /// Registers device memory of no bytes. Reply: its key.
        2 RegisterEmpty { pd: PdIndex },
        /// Changes a region (`ibv_rereg_mr(3)`).
        3 Reregister {
            key: u32,
            pd: PdIndex,
            change: RegionChange,
            /// As for [`MemoryControl::Register`], of the memory after the change.
            can_be_cut: bool,
        },
        /// Removes a region. `EBUSY` while windows are bound in it.
        4 Deregister { key: u32 },
        /// Finds a part of a region in the application's memory. Reply: its address, if there is
        /// such a part with these rights.
        5 Locate { pd: PdIndex, key: u32, va: u64, length: u32, right: Access },
        /// Allocates a memory window. Reply: its first key.
        6 AllocateWindow { pd: PdIndex, type_two: bool },
        /// Binds a window of type 2 for a queue pair of the domain, without a work request.
        7 OpenWindow { qp: QpHandle, pd: PdIndex, bind: Bind },
        /// Removes a window, by one of its keys.
        8 FreeWindow { key: u32 },
        /// Closes all windows that are bound in a region.
        9 CloseWindows { key: u32 },
        /// Registers memory for records, of one host or of all. Reply: its key.
        10 RegisterRecords {
            pd: PdIndex,
            address: u64,
            length: usize,
            source: Option<Gid>,
            /// Peers read it, and do not write it.
            is_read: bool,
            /// As for [`MemoryControl::Register`].
            can_be_cut: bool,
        },
        /// Registers memory for records to a multicast group, of one host or of all. `EEXIST` if
        /// the domain has such a key of the group. Reply: its key for the application's own
        /// requests.
        11 RegisterGroupRecords {
            pd: PdIndex,
            address: u64,
            length: usize,
            source: Option<Gid>,
            group: Gid,
            /// The key by which members name it; 0: the one in the reply.
            key: u32,
            /// As for [`MemoryControl::Register`].
            can_be_cut: bool,
        },
    }
}

values! {
    /// A request about completion queues and shared receive queues.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    QueueControl {
        /// Creates a completion queue. Beside: [`Beside::CompletionQueue`]. Reply: its index.
        0 CreateCompletions {
            serial: Serial,
            /// The number that its events carry at first.
            cookie: u64,
            options: CqOptions,
        },
        /// Gives a completion queue another ring. Beside: [`Beside::ResizedCompletions`].
        1 ResizeCompletions { cq: CqHandle },
        /// Removes the completions of one queue pair from a completion queue. Beside:
        /// [`Beside::Completions`].
        2 PurgeCompletions { cq: CqHandle, of: Qpn },
        /// Removes a completion queue.
        3 DestroyCompletions { cq: CqHandle },
        /// Creates a shared receive queue. Beside: [`Beside::SharedReceiveQueue`]. Reply: its
        /// number.
        4 CreateReceives {
            serial: Serial,
            pd: PdIndex,
            /// For extended connections: their domain, and the queue of completions.
            extended: Option<(Serial, CqHandle)>,
        },
        /// Sets the limit below which a shared receive queue raises its event.
        5 LimitReceives { srq: SrqHandle, limit: u32 },
        /// Gives a shared receive queue another ring. Beside: [`Beside::ResizedReceives`].
        6 ResizeReceives { srq: SrqHandle },
        /// Removes a shared receive queue.
        7 DestroyReceives { srq: SrqHandle },
    }
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePairInit {
    pub(crate) serial: Serial,
    pub(crate) qp_type: QpType,
    pub(crate) caps: QpCaps,
    /// Whether every send work request gets a completion.
    pub(crate) signal_all: bool,
    pub(crate) receives: ReceivesFrom,
    /// [`PdIndex::NONE`] for the target of extended connections.
    pub(crate) pd: PdIndex,
    pub(crate) send_cq: Option<CqHandle>,
    pub(crate) recv_cq: Option<CqHandle>,
    /// Path MTU of the port: the longest datagram.
    pub(crate) port_mtu: PathMtu,
}

values! {
    /// Where a queue pair takes its receives from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ReceivesFrom {
        /// Its own receive queue.
        0 Own,
        /// One shared receive queue.
        1 Shared { srq: SrqHandle },
        /// The shared receive queue that each message names, in a domain of extended connections.
        2 Domain { domain: Serial },
    }
}

values! {
    /// A request about one queue pair.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    QueuePairControl {
        /// Reply: its attributes.
        0 Query,
        /// Changes attributes and state (`ibv_modify_qp(3)`).
        1 Modify {
            attributes: QpAttributes,
            mask: AttrMask,
            /// The address of the source GID index, and whether the peer is on the same link.
            source: Option<(Gid, bool)>,
        },
        /// Seals its connections from now on.
        2 Seal,
        /// Reply: the value that both ends of a sealed connection have in common.
        3 QueryBinding,
        /// Reports to the peer what the program has written as the fill of its buffer.
        4 NoteApplicationBuffer,
        /// Attaches a completion counter. Beside: [`Beside::Counter`].
        5 AttachCounter { operations: CountedOperations },
        /// Reply: whether the peer has answered all that was posted, or never will.
        6 IsFinished,
        /// Attaches it to a multicast group.
        7 Attach { group: Gid },
        /// Detaches it from a multicast group.
        8 Detach { group: Gid },
        /// Reply: whether it is attached to a multicast group.
        9 IsAttached,
        /// Detaches it from all multicast groups.
        10 DetachAll,
        /// Begins its destruction; `EBUSY` while a multicast group has it. Reply: whether this
        /// request was the first.
        11 Retire,
        /// Repeats its last acknowledgement, before it is destroyed.
        12 RepeatLastAnswer,
        /// Ends its destruction.
        13 Destroy,
        /// Limits the rate of its requests (`ibv_modify_qp_rate_limit(3)`): kilobits per second (0
        /// is no limit), and the most bytes at once (0 leaves them to the rate).
        14 LimitRate { kbps: u32, burst_max: u32 },
        /// Lets a datagram queue pair take records from now on.
        15 EnableRecords { config: RecordConfig },
        /// Closes the open record that writes the byte at `va`. Reply: whether there is one.
        16 CloseRecord { rkey: Rkey, va: u64 },
        /// Lets a datagram queue pair repeat what it sends from now on, where a request asks for
        /// it.
        17 EnableReliable { config: ReliableConfig },
        /// Reads memory of a peer by datagrams. Reply: the handle of the record.
        18 ReadRecord {
            path: Path,
            qpn: Qpn,
            qkey: Qkey,
            /// The memory to read.
            va: u64,
            rkey: Rkey,
            length: u32,
            /// That to write.
            lkey: Lkey,
            to: u64,
            deadline: Duration,
            tries: u32,
        },
    }
}

values! {
    /// A request to connection management as a whole, or about a service.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CmControl {
        /// Opens queue pair 1, if it is not open.
        0 Open { guid: u64, path_mtu: PathMtu, interface_index: u32 },
        /// Listens for requests for a service. Beside: [`Beside::Channel`]. Reply: the listener.
        1 Listen {
            service: ServiceId,
            takes: Takes,
            /// One address, or all.
            local: Option<Gid>,
            backlog: usize,
            /// The number that events carry.
            cookie: u64,
        },
        /// Ends a listener.
        2 Close { listener: ListenerId },
        /// Sends the acknowledgements that air mode still owes: the end of a connection follows.
        3 ReportFirst,
        /// Closes all listeners and removes all connections: the process ends.
        4 Exit,
        /// Reply: whether some peers may not know that their connections are over. With `again`
        /// the connection manager repeats what it told them.
        5 IsEnding { again: bool },
    }
}

values! {
    /// A request about connections, and about datagram services, of an open queue pair 1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ConnectionControl<'a> {
        /// Requests a connection. Beside: [`Beside::Channel`]. Reply: the connection.
        0 Connect { wanted: Connect<'a>, cookie: u64 },
        /// `EINVAL` unless a peer waits for the answer to its request.
        1 Waits { id: ConnectionId },
        /// Lets the events of a connection come through another channel, with another cookie.
        /// Beside: [`Beside::Channel`].
        2 HandOver { id: ConnectionId, cookie: u64 },
        /// Accepts a request.
        3 Accept { id: ConnectionId, with: Accept<'a> },
        /// Completes a connection that the peer accepted.
        4 Ready { id: ConnectionId, private_data: &'a [u8] },
        /// Refuses a request, or an accepted connection.
        5 Reject { id: ConnectionId, reason: RejReason, private_data: &'a [u8] },
        /// Ends a connection.
        6 Disconnect { id: ConnectionId, private_data: &'a [u8] },
        /// Removes a connection.
        7 Destroy { id: ConnectionId },
        /// Data arrived before the last message of connection establishment.
        8 DataArrived { id: ConnectionId },
        /// Requests the queue pair of a datagram service. Beside: [`Beside::Channel`]. Reply: the
        /// resolution.
        9 Resolve { wanted: Resolve<'a>, cookie: u64 },
        /// Lets the event of a resolution come through another channel. Beside:
        /// [`Beside::Channel`].
        10 MoveResolution { id: SidrId },
        /// The request for a datagram service was fetched.
        11 Fetched { id: SidrId },
        /// Removes a resolution.
        12 Forget { id: SidrId },
        /// Answers a request for a datagram service.
        13 Answer { id: SidrId, with: SidrAnswer<'a> },
        /// Lets the events of a listener come through another channel. Beside:
        /// [`Beside::Channel`].
        14 MoveListener { listener: ListenerId },
        /// Limits the accepted connections of a listener that wait for their peers.
        15 LimitAnswered { listener: ListenerId, max: usize },
    }
}

values! {
    /// The answer to a request.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Reply {
        /// It was done, and there is nothing to say.
        0 Done,
        /// It failed. In a process the [`Error`] itself is returned instead.
        1 Failed { errno: i32, message: String },
        /// Yes or no.
        2 Answer { yes: bool },
        /// The key of a region or window.
        3 Key { key: u32 },
        /// An address in the application's memory.
        4 Address { address: Option<u64> },
        /// A new completion queue.
        5 CompletionQueue { index: CqIndex },
        /// A new shared receive queue.
        6 SharedReceiveQueue { number: SrqIndex },
        /// A new queue pair.
        7 QueuePair { index: QpIndex, number: Qpn },
        /// The attributes of a queue pair.
        8 Attributes { attributes: QpAttributes },
        /// The value that both ends of a sealed connection have in common.
        9 Binding { binding: Option<[u8; 32]> },
        /// A new listener.
        10 Listener { id: ListenerId },
        /// A new connection.
        11 Connection { id: ConnectionId },
        /// A new resolution.
        12 Resolution { id: SidrId },
        /// The handle of a record.
        13 Record { handle: u64 },
    }
}

/// What goes beside a request, because it is no value.
///
/// | what | for another process |
/// |---|---|
/// | a half of a ring | the memfd of its arena, offset and length of its block |
/// | [`AsyncEvents`], [`ChannelEvents`], [`CmChannel`] | a queue in shared memory, and its eventfd |
/// | [`QpShared`], [`CqShared`], [`SrqShared`] | their atomics in a block of shared memory |
/// | a completion counter | its two numbers in a block of shared memory |
/// | [`RawSocket`] | the packet socket |
pub(crate) enum Beside<'a> {
    /// Nothing.
    Nothing,
    /// A new completion queue.
    CompletionQueue(NewCompletionQueue<'a>),
    /// The side of a completion queue that polls, locked by the caller.
    Completions(&'a mut RingConsumer),
    /// The same, and the ring that takes the place of the queue's.
    ResizedCompletions(&'a mut RingConsumer, RingProducer),
    /// A new shared receive queue.
    SharedReceiveQueue(NewSharedReceiveQueue<'a>),
    /// Both halves of the ring that takes the place of a shared receive queue's; the poster's side
    /// is locked by the caller.
    ResizedReceives(&'a mut RingProducer, RingConsumer),
    /// A new queue pair.
    QueuePair(NewQueuePair<'a>),
    /// A completion counter.
    Counter(Arc<dyn CountsCompletions>),
    /// The channel of connection events.
    Channel(&'a Arc<CmChannel>),
}

/// What a completion queue is made of, beside the values of [`QueueControl::CreateCompletions`].
pub(crate) struct NewCompletionQueue<'a> {
    pub(crate) ring: RingProducer,
    pub(crate) channel: Option<Arc<ChannelEvents>>,
    pub(crate) events: Arc<AsyncEvents>,
    /// What the application's side shares with the worker's, once the queue exists.
    pub(crate) made: &'a mut Option<Arc<CqShared>>,
}

/// What a shared receive queue is made of, beside the values of
/// [`QueueControl::CreateReceives`].
pub(crate) struct NewSharedReceiveQueue<'a> {
    pub(crate) ring: RingConsumer,
    pub(crate) events: Arc<AsyncEvents>,
    /// What the application's side shares with the worker's, once the queue exists.
    pub(crate) made: &'a mut Option<Arc<SrqShared>>,
}

/// What a queue pair is made of, beside the values of [`Control::CreateQueuePair`].
pub(crate) struct NewQueuePair<'a> {
    pub(crate) send: (RingProducer, RingConsumer),
    pub(crate) recv: (RingProducer, RingConsumer),
    pub(crate) events: Arc<AsyncEvents>,
    /// The socket of a queue pair for raw packets.
    pub(crate) raw: Option<RawSocket>,
    /// What the application's side shares with the worker's, once the queue pair exists.
    pub(crate) made: &'a mut Option<Arc<QpShared>>,
}

impl Control<'_> {
    /// Whether the request opens or closes sockets: no thread may sleep on them meanwhile.
    pub(crate) fn moves_sockets(&self) -> bool {
        let Control::QueuePair { call, .. } = self else {
            return false;
        };
        matches!(
            call,
            QueuePairControl::Attach { .. }
                | QueuePairControl::Detach { .. }
                | QueuePairControl::DetachAll
        )
    }
}

/// A reply of another kind than the request has.
pub(crate) const WRONG_REPLY: Error = Error::Invalid("the worker's reply is to another request");

/// What must go beside the request is missing, or something else.
pub(crate) const WRONG_BESIDE: Error = Error::Invalid("the request lacks what belongs beside it");

impl From<Error> for Reply {
    fn from(error: Error) -> Self {
        Reply::Failed {
            errno: error.errno(),
            message: error.to_string(),
        }
    }
}

impl From<Reply> for Result<Reply, Error> {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Failed { errno, message } => Err(Error::System { message, errno }),
            done @ (Reply::Done
            | Reply::Answer { .. }
            | Reply::Key { .. }
            | Reply::Address { .. }
            | Reply::CompletionQueue { .. }
            | Reply::SharedReceiveQueue { .. }
            | Reply::QueuePair { .. }
            | Reply::Attributes { .. }
            | Reply::Binding { .. }
            | Reply::Listener { .. }
            | Reply::Connection { .. }
            | Reply::Resolution { .. }
            | Reply::Record { .. }) => Ok(done),
        }
    }
}

/// Decodes bytes as the message of a request and of a reply, and what begins at each of them as a
/// request and as a reply. What decodes must encode to the same bytes: the body of the fuzz target
/// `control`.
///
/// # Panics
/// If it does not.
#[doc(hidden)]
pub fn check_control_bytes(bytes: &[u8]) {
    if let Ok(control) = encoding::decode::<Control<'_>>(bytes) {
        assert_eq!(encoding::encode(&control), bytes, "{control:?}");
    }
    if let Ok(reply) = encoding::decode::<Reply>(bytes) {
        assert_eq!(encoding::encode(&reply), bytes, "{reply:?}");
        let has_failed = matches!(reply, Reply::Failed { .. });
        let result: Result<Reply, Error> = reply.into();
        assert_eq!(result.is_err(), has_failed);
    }
    for start in 0..bytes.len() {
        encoding::check_front::<Control<'_>>(&bytes[start..]);
        encoding::check_front::<Reply>(&bytes[start..]);
    }
}

#[cfg(test)]
mod tests;
