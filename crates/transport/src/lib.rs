//! The RDMA transport as pure state machines (IBTA volume 1, chapters 9 to 11): a queue pair turns
//! work requests and packets into packets, completions and events.
//!
//! Nothing here reads a clock, does I/O, takes a lock or spawns a thread: the caller passes the
//! time and a [`Host`], through which a queue pair reaches its rings, the memory of its protection
//! domain and its completion queues. See [`QueuePair`] for the order of calls.

#![forbid(unsafe_code)]

mod ack_delay;
mod attributes;
mod completion;
mod counter;
mod datagram;
mod host;
mod local;
mod operation;
mod queue_pair;
pub mod rate;
mod record;
mod reliable;
mod replies;
mod request_packet;
mod requester;
mod responder;
mod run;
mod selective;
mod tag;
mod time;
mod transition;
mod unreliable_requester;
mod unreliable_responder;
mod work;

pub use ack_delay::ACK_DELAY_MAX;
pub use attributes::{
    Access, AttrMask, InvalidAttribute, QpAttributes, QpState, QpType, RATE_LIMIT_KBPS_MAX,
    RETRY_FOR_EVER,
};
pub use completion::{Completion, CompletionOpcode, GrhHeader, Status};
pub use counter::Counter;
pub use datagram::{NextDatagram, SentDatagram};
pub use host::{
    AtomicOperation, Host, LocalFault, QpEvent, Receive, RemoteAccess, RemoteFault, Slot, Spread,
};
pub use operation::{Bind, Extent, Operation, OperationFields, PackedOperation, WORD_LEN};
pub use queue_pair::{
    Activity, Arrival, Progress, QpConfig, QueuePair, RecordAnswerOwed, Transmit,
};
pub use record::{
    CannotRead, Ended, InvalidRecordConfig, RECORD_CLOSED_MAX, RECORD_MAP_BYTES_MAX,
    RECORD_OPEN_MAX, RECORD_READS_MAX, RECORD_SOURCES_MAX, RECORD_UNITS_MAX, ReadAsked,
    ReadRequest, Reader, Record, RecordConfig, RecordForm, RecordHandle, RecordHost, RecordOrigin,
    RecordReply, RecordTarget,
};
pub use reliable::{
    InvalidReliableConfig, RELIABLE_DESTINATIONS_MAX, RELIABLE_MESSAGES_MAX, RELIABLE_SILENCE_MAX,
    ReliableConfig,
};
pub use requester::Loss;
pub use run::{Run, RunLimits};
pub use selective::{Acknowledgement, Owed, PsnRange, ReorderMemory};
pub use tag::{TAG_BITS, Tags};
pub use time::Time;
pub use work::{Datagram, MESSAGE_LEN_MAX, Path, SendRequest};
