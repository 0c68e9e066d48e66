//! One connection: its ids, its state and its timer.

use std::time::Duration;

use airdma_transport::Time;
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{Gid, Qpn};

use crate::config::{Config, SERVICE_TIMEOUT, duration_of};
use crate::half_open::Stand;
use crate::listener::ListenerId;

/// Id of a connection: its local communication id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// Id of a service id resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidrId(pub u32);

/// Addresses of both ends of a datagram, seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Address of this side.
    pub local: Gid,
    /// Address of the peer.
    pub remote: Gid,
    /// Traffic class: the TOS byte of IPv4.
    pub traffic_class: u8,
}

impl Route {
    /// Whether both routes have the same addresses.
    pub(crate) fn same_ends(&self, other: &Route) -> bool {
        self.local == other.local && self.remote == other.remote
    }
}

/// State of a connection (IBTA 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Active: the REQ is repeated until an answer comes.
    ReqSent,
    /// Passive: the program has not answered yet.
    ReqReceived,
    /// Passive: the REP is repeated until the RTU comes.
    RepSent,
    /// Active: the program has not called [`ready`](crate::Manager::ready) yet.
    RepReceived,
    /// Data may flow.
    Established,
    /// The DREQ is repeated until an answer comes.
    DreqSent,
    /// Ended; late messages are recognised.
    Timewait,
    /// The program refused; the REJ is repeated when the peer repeats its request.
    Refused,
}

impl State {
    pub(crate) fn is_half_open(self) -> bool {
        match self {
            State::ReqReceived | State::RepSent => true,
            State::ReqSent
            | State::RepReceived
            | State::Established
            | State::DreqSent
            | State::Timewait
            | State::Refused => false,
        }
    }

    /// Whether the peer has answered what was sent to its address.
    pub(crate) fn is_open(self) -> bool {
        match self {
            State::RepReceived | State::Established => true,
            State::ReqSent
            | State::ReqReceived
            | State::RepSent
            | State::DreqSent
            | State::Timewait
            | State::Refused => false,
        }
    }

    /// Whether the connection has ended and is only kept to recognise late messages.
    pub(crate) fn is_resting(self) -> bool {
        matches!(self, State::Timewait | State::Refused)
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    pub(crate) route: Route,
    /// The peer's communication id; 0 until known.
    pub(crate) remote_id: u32,
    /// Transaction of the REQ, which every message up to the RTU repeats.
    pub(crate) transaction: u64,
    pub(crate) local_qpn: Qpn,
    pub(crate) remote_qpn: Qpn,
    /// The last message sent, for repetition.
    pub(crate) sent: Option<Box<[u8; MAD_LEN]>>,
    pub(crate) retries_left: u8,
    pub(crate) retries_max: u8,
    /// Whether the peer has asked for time to answer that message.
    pub(crate) waits: bool,
    pub(crate) response_timeout: Duration,
    /// How long the peer may repeat a message that was answered.
    pub(crate) memory: Duration,
    /// [`memory`](Self::memory) once the peer was asked to wait.
    pub(crate) memory_after_mra: Duration,
    pub(crate) timewait: Duration,
    pub(crate) timer: Option<Time>,
    /// The listener that took the request.
    pub(crate) listener: Option<ListenerId>,
    /// Place in the lines of half-open requests, from which it may be evicted.
    pub(crate) stand: Option<Stand>,
    /// Whether the peer has answered a message sent to its address.
    ///
    /// Until then this side sends it next to nothing.
    pub(crate) proven: bool,
    /// Whether the peer sends from UDP port 4791, and from no other.
    pub(crate) is_at_roce_port: bool,
    /// Whether the program knows the connection and gets its events.
    pub(crate) known: bool,
    /// Place among the resting connections.
    pub(crate) rest: Option<u64>,
}

impl Connection {
    pub(crate) fn new(
        state: State,
        route: Route,
        transaction: u64,
        config: &Config,
        ack_timeout: u8,
    ) -> Self {
        let response_timeout = duration_of(config.response_timeout);
        let memory = memory_of(response_timeout, config.retries_max);
        let timewait = duration_of(ack_timeout.min(crate::config::TIMEWAIT_CODE_MAX));
        Self {
            state,
            route,
            remote_id: 0,
            transaction,
            local_qpn: Qpn::new(0),
            remote_qpn: Qpn::new(0),
            sent: None,
            retries_left: config.retries_max,
            retries_max: config.retries_max,
            waits: false,
            response_timeout,
            memory,
            memory_after_mra: memory + duration_of(SERVICE_TIMEOUT),
            timewait,
            timer: None,
            listener: None,
            stand: None,
            proven: true,
            is_at_roce_port: false,
            known: true,
            rest: None,
        }
    }
}

/// The time in which a message may be repeated: all its repetitions, and the wait after the last.
pub(crate) fn memory_of(response_timeout: Duration, retries_max: u8) -> Duration {
    let repetitions = u32::from(retries_max.min(15)) + 1;
    (response_timeout * repetitions).min(crate::config::MEMORY_MAX)
}
