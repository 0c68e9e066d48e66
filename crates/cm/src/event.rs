//! What a manager tells its caller.

use airdma_wire::cm::{IpAddressing, RejReason, ServiceId, SidrStatus, TransportService};
use airdma_wire::{PathMtu, Psn, Qkey, Qpn};

use crate::{ConnectionId, ListenerId, Route, SidrId};

/// Something that happened. Private data always has the full length of its field, as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer wants a connection: accept, reject or destroy it.
    ConnectRequest(Box<ConnectRequest>),
    /// The peer accepts: say [`ready`](crate::Manager::ready), reject or destroy.
    ConnectResponse(Box<ConnectResponse>),
    /// The peer of an accepted connection is ready, or sends already (then without private data).
    Established {
        /// Which connection.
        id: ConnectionId,
        /// 224 bytes or none.
        private_data: Vec<u8>,
    },
    /// There will be no connection. The id is gone.
    Rejected {
        /// Which connection.
        id: ConnectionId,
        /// Why.
        reason: RejReason,
        /// 148 bytes, or none if it is the manager who refuses.
        private_data: Vec<u8>,
    },
    /// No answer came, after all repetitions. The id is gone.
    Unreachable {
        /// Which connection.
        id: ConnectionId,
    },
    /// The connection has ended, by whomever; [`TimewaitExit`](Event::TimewaitExit) follows.
    Disconnected {
        /// Which connection.
        id: ConnectionId,
        /// What the peer said: 220 or 224 bytes, none if it did not answer.
        private_data: Vec<u8>,
    },
    /// The queue pair may be used again. The id is gone.
    TimewaitExit {
        /// Which connection.
        id: ConnectionId,
    },
    /// A peer looks for a queue pair of datagrams: answer it.
    SidrRequest(Box<SidrRequest>),
    /// A peer's question, polled and not [taken](crate::Manager::taken_sidr), gave way to a younger one. The id is gone.
    SidrWithdrawn {
        /// Which resolution.
        id: SidrId,
    },
    /// The answer to a resolution. The id is gone.
    SidrResponse(Box<SidrResponse>),
    /// No answer to a resolution came. The id is gone.
    SidrUnreachable {
        /// Which resolution.
        id: SidrId,
    },
}

/// A peer wants a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The new connection.
    pub id: ConnectionId,
    /// Who took the request.
    pub listener: ListenerId,
    /// Between which addresses.
    pub route: Route,
    /// Which service.
    pub service_id: ServiceId,
    /// Kind of the connection.
    pub transport: TransportService,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that we shall send.
    pub psn: Psn,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// READ and atomic requests that the peer answers at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that the peer has in flight at most.
    pub initiator_depth: u8,
    /// How often we shall repeat a packet that is not acknowledged.
    pub retry_count: u8,
    /// How often we shall repeat a packet after an RNR NAK.
    pub rnr_retry_count: u8,
    /// The peer's queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// Local ACK timeout, 4.096 us * 2^code.
    pub ack_timeout: u8,
    /// Flow label of the path.
    pub flow_label: u32,
    /// Who talks to whom in terms of IP; always there for a port of RDMA CM.
    pub addressing: Option<IpAddressing>,
    /// What the program added: 56 bytes behind an addressing, else 92.
    pub private_data: Vec<u8>,
}

/// The peer accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Which connection.
    pub id: ConnectionId,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that we shall send.
    pub psn: Psn,
    /// READ and atomic requests that the peer answers at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that the peer has in flight at most.
    pub initiator_depth: u8,
    /// How often we shall repeat a packet after an RNR NAK.
    pub rnr_retry_count: u8,
    /// The peer acknowledges within 4.096 us * 2^code.
    pub target_ack_delay: u8,
    /// The peer's queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// What the program added: 196 bytes.
    pub private_data: Vec<u8>,
}

/// A peer looks for a queue pair of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRequest {
    /// The new resolution.
    pub id: SidrId,
    /// Who took the request.
    pub listener: ListenerId,
    /// Between which addresses.
    pub route: Route,
    /// Which service.
    pub service_id: ServiceId,
    /// Who talks to whom in terms of IP; always there for a port of RDMA CM.
    pub addressing: Option<IpAddressing>,
    /// What the program added: 180 bytes behind an addressing, else 216.
    pub private_data: Vec<u8>,
}

/// The answer to a resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrResponse {
    /// Which resolution.
    pub id: SidrId,
    /// [`SidrStatus::VALID`], or why there is no queue pair.
    pub status: SidrStatus,
    /// Where to send datagrams.
    pub qpn: Qpn,
    /// What they must carry.
    pub qkey: Qkey,
    /// What the program added: 136 bytes.
    pub private_data: Vec<u8>,
}
