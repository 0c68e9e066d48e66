//! One connection: its ids, its state and its timer.

use std::time::Duration;

use airdma_transport::Time;
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{Gid, Qpn};

use crate::config::{Config, SERVICE_TIMEOUT, duration_of};
use crate::half_open::Stand;
use crate::listener::ListenerId;

/// Names a connection: its local communication id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// Names a service id resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidrId(pub u32);

/// Between which addresses datagrams go, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Our address.
    pub local: Gid,
    /// The peer's.
    pub remote: Gid,
    /// Traffic class, the TOS byte of IP.
    pub traffic_class: u8,
}

impl Route {
    /// Whether both are between the same addresses.
    pub(crate) fn same_ends(&self, other: &Route) -> bool {
        self.local == other.local && self.remote == other.remote
    }
}

/// Where a connection is in its life (IBTA 12.9.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Active: the REQ is repeated until an answer comes.
    ReqSent,
    /// Passive: the program has not answered yet.
    ReqReceived,
    /// Passive: the REP is repeated until the RTU comes.
    RepSent,
    /// Active: the program has not said that it is ready.
    RepReceived,
    /// Data may flow.
    Established,
    /// The DREQ is repeated until an answer comes.
    DreqSent,
    /// Over; late messages are recognised.
    Timewait,
    /// The program said no; the REJ is repeated when it was not heard.
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

    /// The peer has answered what was sent to its address.
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

    /// Over, and only remembered.
    pub(crate) fn is_resting(self) -> bool {
        matches!(self, State::Timewait | State::Refused)
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    pub(crate) route: Route,
    /// 0 until the peer has told it.
    pub(crate) remote_id: u32,
    /// Transaction of the REQ: everything until the RTU repeats it.
    pub(crate) transaction: u64,
    pub(crate) local_qpn: Qpn,
    pub(crate) remote_qpn: Qpn,
    /// The last message of ours, for repetition.
    pub(crate) sent: Option<Box<[u8; MAD_LEN]>>,
    pub(crate) retries_left: u8,
    pub(crate) retries_max: u8,
    /// The peer has asked for time to answer that message.
    pub(crate) waits: bool,
    pub(crate) response_timeout: Duration,
    /// How long the peer may repeat what we have answered.
    pub(crate) memory: Duration,
    /// The same once the peer was asked to wait.
    pub(crate) memory_after_mra: Duration,
    pub(crate) timewait: Duration,
    pub(crate) timer: Option<Time>,
    /// The listener that took the request.
    pub(crate) listener: Option<ListenerId>,
    /// Where it waits, and may have to give way.
    pub(crate) stand: Option<Stand>,
    /// The peer is at its address: it has answered what was sent there. Until then hardly anything is.
    pub(crate) proven: bool,
    /// The peer speaks from UDP port 4791, and from no other.
    pub(crate) is_at_roce_port: bool,
    /// The program knows the connection, and hears of it.
    pub(crate) known: bool,
    /// Its place among the resting ones.
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

/// The time in which a message may be repeated: all its repetitions, and the wait for the last.
pub(crate) fn memory_of(response_timeout: Duration, retries_max: u8) -> Duration {
    let repetitions = u32::from(retries_max.min(15)) + 1;
    (response_timeout * repetitions).min(crate::config::MEMORY_MAX)
}
