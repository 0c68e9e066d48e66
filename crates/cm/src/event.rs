//! Events that a manager reports to its caller.

use airdma_wire::cm::{IpAddressing, RejReason, ServiceId, SidrStatus, TransportService};
use airdma_wire::{PathMtu, Psn, Qkey, Qpn};

use crate::{ConnectionId, ListenerId, Route, SidrId};

/// An event. Private data always has the full length of its field, as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer requests a connection: accept, reject or destroy it.
    ConnectRequest(Box<ConnectRequest>),
    /// The peer accepts: call [`ready`](crate::Manager::ready), reject or destroy.
    ConnectResponse(Box<ConnectResponse>),
    /// The peer of an accepted connection is ready, or sends already (then without private data).
    Established {
        /// The connection.
        id: ConnectionId,
        /// 224 bytes or none.
        private_data: Vec<u8>,
    },
    /// The connection was refused. The id is no longer valid.
    Rejected {
        /// The connection.
        id: ConnectionId,
        /// Why it was refused.
        reason: RejReason,
        /// 148 bytes, or none if the manager refused.
        private_data: Vec<u8>,
    },
    /// No answer came, after all repetitions. The id is no longer valid.
    Unreachable {
        /// The connection.
        id: ConnectionId,
    },
    /// Either side has ended the connection; [`TimewaitExit`](Event::TimewaitExit) follows.
    Disconnected {
        /// The connection.
        id: ConnectionId,
        /// The peer's private data: 220 or 224 bytes, none if it did not answer.
        private_data: Vec<u8>,
    },
    /// The queue pair may be used again. The id is no longer valid.
    TimewaitExit {
        /// The connection.
        id: ConnectionId,
    },
    /// A peer asks for the queue pair of a datagram service: answer it.
    SidrRequest(Box<SidrRequest>),
    /// A request for a resolution, polled and not [taken](crate::Manager::taken_sidr), was evicted
    /// by a younger one.
    ///
    /// The id is no longer valid.
    SidrWithdrawn {
        /// The resolution.
        id: SidrId,
    },
    /// The answer to a resolution. The id is no longer valid.
    SidrResponse(Box<SidrResponse>),
    /// No answer to a resolution came. The id is no longer valid.
    SidrUnreachable {
        /// The resolution.
        id: SidrId,
    },
}

/// A peer's request for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The new connection.
    pub id: ConnectionId,
    /// The listener that took the request.
    pub listener: ListenerId,
    /// Addresses of both ends.
    pub route: Route,
    /// The requested service.
    pub service_id: ServiceId,
    /// Kind of the connection.
    pub transport: TransportService,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that this side must send.
    pub psn: Psn,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// READ and atomic requests that the peer handles at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that the peer has in flight at most.
    pub initiator_depth: u8,
    /// Number of times this side must repeat a packet that is not acknowledged.
    pub retry_count: u8,
    /// Number of times this side must repeat a packet after an RNR NAK.
    pub rnr_retry_count: u8,
    /// The peer's queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// Local ACK timeout, 4.096 us * 2^code.
    pub ack_timeout: u8,
    /// Flow label of the path.
    pub flow_label: u32,
    /// IP addresses and port of the request; always present for a port of RDMA CM.
    pub addressing: Option<IpAddressing>,
    /// The peer's private data: 56 bytes behind an addressing, else 92.
    pub private_data: Vec<u8>,
}

/// A peer's reply, which accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// The connection.
    pub id: ConnectionId,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that this side must send.
    pub psn: Psn,
    /// READ and atomic requests that the peer handles at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that the peer has in flight at most.
    pub initiator_depth: u8,
    /// Number of times this side must repeat a packet after an RNR NAK.
    pub rnr_retry_count: u8,
    /// The peer acknowledges within 4.096 us * 2^code.
    pub target_ack_delay: u8,
    /// The peer's queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// The peer's private data: 196 bytes.
    pub private_data: Vec<u8>,
}

/// A peer's request for the queue pair of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// The new resolution.
    pub id: SidrId,
    /// The listener that took the request.
    pub listener: ListenerId,
    /// Addresses of both ends.
    pub route: Route,
    /// The requested service.
    pub service_id: ServiceId,
    /// IP addresses and port of the request; always present for a port of RDMA CM.
    pub addressing: Option<IpAddressing>,
    /// The peer's private data: 180 bytes behind an addressing, else 216.
    pub private_data: Vec<u8>,
}

/// The answer to a resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrResponse {
    /// The resolution.
    pub id: SidrId,
    /// [`SidrStatus::VALID`], or why there is no queue pair.
    pub status: SidrStatus,
    /// Queue pair to send datagrams to.
    pub qpn: Qpn,
    /// Queue key that the datagrams must carry.
    pub qkey: Qkey,
    /// The peer's private data: 136 bytes.
    pub private_data: Vec<u8>,
}
