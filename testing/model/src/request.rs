//! Requests and their results, in types of their own.

use crate::{Rights, Sge};
use core::time::Duration;

/// Service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// `ibv_wc_status`, as far as it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Status {
    Success,
    LocalLength,
    LocalQpOperation,
    LocalProtection,
    Flush,
    MwBind,
    BadResponse,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperation,
    RetryExceeded,
    RnrRetryExceeded,
}

impl Status {
    /// Statuses that can end the first failing request.
    pub(crate) const FAILURES: [Status; 10] = [
        Status::LocalLength,
        Status::LocalQpOperation,
        Status::LocalProtection,
        Status::MwBind,
        Status::BadResponse,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::RnrRetryExceeded,
    ];

    pub(crate) fn is_refusal(self) -> bool {
        matches!(
            self,
            Status::RemoteInvalidRequest | Status::RemoteAccess | Status::RemoteOperation
        )
    }
}

/// `ibv_wc_opcode`, as far as it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Opcode {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    Bind,
    Invalidate,
    Receive,
    ReceiveImmediate,
}

/// An atomic on eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Atomic {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

/// Arguments of a bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Key of the window before.
    pub window: u32,
    /// Key of the window afterwards.
    pub key: u32,
    /// The memory, by the key of its region.
    pub part: Sge,
    /// Rights of the peers.
    pub rights: Rights,
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Send {
        immediate: Option<u32>,
        invalidate: Option<u32>,
    },
    Write {
        key: u32,
        va: u64,
        immediate: Option<u32>,
    },
    AtomicWrite {
        key: u32,
        va: u64,
    },
    Read {
        key: u32,
        va: u64,
    },
    /// Its payload is as long as the flushed part.
    Flush {
        key: u32,
        va: u64,
    },
    Atomic {
        key: u32,
        va: u64,
        atomic: Atomic,
    },
    Bind(Bind),
    Invalidate {
        key: u32,
    },
}

impl Kind {
    pub(crate) fn opcode(&self) -> Opcode {
        match self {
            Kind::Send { .. } => Opcode::Send,
            Kind::Write { .. } => Opcode::Write,
            Kind::AtomicWrite { .. } => Opcode::AtomicWrite,
            Kind::Read { .. } => Opcode::Read,
            Kind::Flush { .. } => Opcode::Flush,
            Kind::Atomic {
                atomic: Atomic::Add(_),
                ..
            } => Opcode::FetchAdd,
            Kind::Atomic {
                atomic: Atomic::Swap { .. },
                ..
            } => Opcode::CompareSwap,
            Kind::Bind(_) => Opcode::Bind,
            Kind::Invalidate { .. } => Opcode::Invalidate,
        }
    }

    /// Whether it takes one of the peer's receives.
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(
            self,
            Kind::Send { .. }
                | Kind::Write {
                    immediate: Some(_),
                    ..
                }
        )
    }

    /// Access that the peer must grant: key, address, rights.
    pub(crate) fn access(&self) -> Option<(u32, u64, Rights)> {
        match *self {
            Kind::Write { key, va, .. } | Kind::AtomicWrite { key, va } => {
                Some((key, va, Rights::REMOTE_WRITE))
            }
            Kind::Read { key, va } => Some((key, va, Rights::REMOTE_READ)),
            Kind::Flush { key, va } => Some((key, va, Rights::FLUSH_GLOBAL)),
            Kind::Atomic { key, va, .. } => Some((key, va, Rights::REMOTE_ATOMIC)),
            Kind::Send { .. } | Kind::Bind(_) | Kind::Invalidate { .. } => None,
        }
    }

    pub(crate) fn is_answered(&self) -> bool {
        matches!(
            self,
            Kind::Read { .. } | Kind::Atomic { .. } | Kind::AtomicWrite { .. } | Kind::Flush { .. }
        )
    }

    /// Whether the answer carries data.
    pub(crate) fn lands(&self) -> bool {
        matches!(self, Kind::Read { .. } | Kind::Atomic { .. })
    }
}

/// A posted send request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its identifier, unique in the world.
    pub id: u64,
    /// Operation.
    pub kind: Kind,
    /// Its memory.
    pub sges: Vec<Sge>,
    /// Bytes of the message when it was posted; zeros for the result of a READ.
    pub payload: Vec<u8>,
    /// Whether the bytes were copied when it was posted, without a check of the key.
    pub inline: bool,
    /// Whether success is reported.
    pub signalled: bool,
    /// Whether the receiver's completion is solicited.
    pub solicited: bool,
    /// Destination of a datagram.
    pub to: Option<usize>,
    /// The READ whose result is the payload of this fenced write: before its end the bytes are
    /// unknown.
    pub after: Option<u64>,
}

/// A posted receive.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Its identifier, unique in the world.
    pub id: u64,
    /// Its memory.
    pub sges: Vec<Sge>,
}

impl Recv {
    pub(crate) fn length(&self) -> usize {
        self.sges.iter().map(|sge| sge.length as usize).sum()
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Done {
    pub id: u64,
    pub status: Status,
    pub opcode: Opcode,
    pub bytes: u32,
    pub immediate: Option<u32>,
    pub invalidated: Option<u32>,
    pub solicited: bool,
    /// Sender of a datagram.
    pub source: Option<usize>,
}

/// State of the network between a queue pair and its peer, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    /// Present time, since the world began.
    pub now: Duration,
    /// Packets that did not arrive whole.
    pub lost: u64,
    /// Packets that arrived twice, or that others overtook.
    pub astray: u64,
    /// Requests posted at this moment or before may have been answered after a timer expired.
    pub slow: Option<Duration>,
    /// Requests posted at this moment or before may have met packets of an earlier connection.
    pub haunted: Option<Duration>,
    /// Whether packets may arrive twice, or after later ones.
    pub disorderly: bool,
}
