//! The passive side of a connection: receives the REQ, sends the REP, receives the RTU (IBTA
//! 12.9.7.2).

use airdma_transport::Time;
use airdma_wire::cm::{
    About, CmMessage, IpAddressing, RejReason, Rep, Req, Rtu, ServiceId, TransportService,
};
use airdma_wire::mad::MadError;
use airdma_wire::{Gid, Qkey, Qpn};

use crate::calls::{self, Accept, CmError};
use crate::config::{
    REP_INTERVAL, REP_REPEATS_MAX, SERVICE_TIMEOUT, TARGET_ACK_DELAY, duration_of,
};
use crate::connection::{Connection, State, memory_of};
use crate::event::{ConnectRequest, Event};
use crate::manager::From;
use crate::{ConnectionId, Counter, ListenerId, Manager, Route, Takes};

impl Manager {
    /// Notes that the program has fetched the request, as with `rdma_get_cm_event(3)`.
    ///
    /// It no longer counts against the backlog of its listener. Accepting, rejecting and destroying
    /// have the same effect.
    pub fn taken(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id.0);
        let stand = connection.and_then(|c| c.stand.take_if(|stand| stand.is_pending()));
        if let Some(stand) = stand {
            self.step_out(stand);
        }
    }

    /// Checks that a request waits for the program's answer.
    ///
    /// # Errors
    /// [`CmError::Unknown`] and [`CmError::InvalidState`].
    pub fn waits(&mut self, id: ConnectionId) -> Result<(), CmError> {
        self.in_state(id, &[State::ReqReceived]).map(|_| ())
    }

    /// Accepts a request. [`Event::Established`], [`Event::Rejected`] or [`Event::Unreachable`]
    /// follows.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`], [`CmError::Unknown`] and [`CmError::InvalidState`].
    pub fn accept(
        &mut self,
        now: Time,
        id: ConnectionId,
        with: &Accept<'_>,
    ) -> Result<(), CmError> {
        let private_data = calls::private_data(None, with.private_data)?;
        let ca_guid = self.config.ca_guid;
        let connection = self.in_state(id, &[State::ReqReceived])?;
        let rep = Rep {
            local_id: id.0,
            remote_id: connection.remote_id,
            qkey: Qkey(0),
            qpn: with.qpn,
            ee_context: 0,
            psn: with.psn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            target_ack_delay: TARGET_ACK_DELAY,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: with.rnr_retry_count,
            srq: with.srq,
            ca_guid,
            private_data,
        };
        connection.local_qpn = with.qpn;
        let (transaction, listener) = (connection.transaction, connection.listener);
        self.enter(id.0, State::RepSent);
        self.send_and_repeat(now, id.0, transaction, CmMessage::Rep(rep));
        if let Some(listener) = listener {
            self.keep_answered_within(listener);
        }
        Ok(())
    }

    /// Notes that data has arrived on the queue pair of an accepted connection.
    ///
    /// The peer is ready then, even if its RTU was lost: [`Event::Established`] follows unless it
    /// came already.
    pub fn data_arrived(&mut self, now: Time, id: ConnectionId) {
        if self.in_state(id, &[State::RepSent]).is_ok() {
            self.establish(now, id.0, Vec::new());
        }
    }

    /// As [`data_arrived`](Self::data_arrived), by the local queue pair.
    ///
    /// Does nothing to a connection that is established already.
    pub fn data_arrived_at(&mut self, now: Time, local_qpn: Qpn) {
        if let Some(&id) = self.awaited.get(&local_qpn) {
            self.data_arrived(now, ConnectionId(id));
        }
    }

    pub(crate) fn handle_req(&mut self, from: From, req: &Req) {
        let (route, transaction) = (from.route, from.transaction);
        if req.local_id == 0 || req.transport == TransportService::Rd {
            return self.count(Counter::DropMalformed);
        }
        if req.primary.local_gid != route.remote || req.primary.remote_gid != route.local {
            return self.count(Counter::DropWrongPeer);
        }
        if let Some(&known) = self.by_remote_id.get(&(route.remote, req.local_id)) {
            return self.repeated_req(known, route, transaction, req);
        }
        let Ok((addressing, private_data)) = addressing_of(req.service_id, &req.private_data)
        else {
            return self.count(Counter::DropMalformed);
        };
        if !is_between(addressing.as_ref(), route) {
            return self.count(Counter::DropWrongPeer);
        }
        let Some(listener) = self.listeners.find(req.service_id, route.local) else {
            self.count(Counter::RejectedInvalidService);
            let reason = RejReason::INVALID_SERVICE_ID;
            return self.refuse_stateless(route, transaction, 0, req.local_id, About::Req, reason);
        };
        if self.listeners.takes(listener) != Some(Takes::Connections(req.transport)) {
            self.count(Counter::RejectedInvalidService);
            let reason = RejReason::INVALID_TRANSPORT_SERVICE;
            return self.refuse_stateless(route, transaction, 0, req.local_id, About::Req, reason);
        }
        if req.path_mtu > self.config.path_mtu_max {
            self.count(Counter::RejectedPathMtu);
            let reason = RejReason::INVALID_PATH_MTU;
            return self.refuse_stateless(route, transaction, 0, req.local_id, About::Req, reason);
        }
        if let Err(full) = self.make_half_open_room(listener, route.remote) {
            return self.count(full);
        }
        let id = self.new_passive(from, req, listener);
        self.events
            .push_back(Event::ConnectRequest(Box::new(ConnectRequest {
                id: ConnectionId(id),
                listener,
                route,
                service_id: req.service_id,
                transport: req.transport,
                qpn: req.qpn,
                psn: req.psn,
                path_mtu: req.path_mtu,
                responder_resources: req.responder_resources,
                initiator_depth: req.initiator_depth,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                srq: req.srq,
                ack_timeout: req.primary.ack_timeout,
                flow_label: req.primary.flow_label,
                addressing,
                private_data: private_data.to_vec(),
            })));
    }

    fn new_passive(&mut self, from: From, req: &Req, listener: ListenerId) -> u32 {
        let (route, transaction) = (from.route, from.transaction);
        let id = self.new_id();
        let mut connection = Connection::new(
            State::ReqReceived,
            Route {
                traffic_class: req.primary.traffic_class,
                ..route
            },
            transaction,
            &self.config,
            req.primary.ack_timeout,
        );
        connection.is_at_roce_port = from.is_at_roce_port;
        connection.remote_id = req.local_id;
        connection.remote_qpn = req.qpn;
        // Until the peer is proven, the times are this side's own, whatever its request asks for.
        connection.proven = false;
        connection.retries_max = REP_REPEATS_MAX;
        connection.response_timeout = REP_INTERVAL;
        let repeats_after = duration_of(req.remote_response_timeout);
        connection.memory = memory_of(repeats_after, req.cm_retries_max);
        connection.memory_after_mra = connection.memory + duration_of(SERVICE_TIMEOUT);
        connection.listener = Some(listener);
        self.by_remote_id.insert((route.remote, req.local_id), id);
        // A connected queue pair keeps its connection until the peer has proven that it sent this
        // request.
        self.by_remote_qpn
            .entry((route.remote, req.qpn))
            .or_insert(id);
        self.insert(id, connection);
        let stand = self.stand(id, listener, route.remote, false);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.stand = Some(stand);
        }
        id
    }

    /// A request that is known: it is answered again, never executed again.
    fn repeated_req(&mut self, id: u32, route: Route, transaction: u64, req: &Req) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if !connection.route.same_ends(&route) {
            return self.count(Counter::DropWrongPeer);
        }
        match connection.state {
            State::ReqReceived => {
                self.count(Counter::Duplicates);
                self.ask_for_time(id, About::Req);
            }
            State::RepSent | State::Refused => {
                self.count(Counter::Duplicates);
                self.send_again(id);
            }
            // A peer that still asks never received the reply to a connection that is ending.
            State::DreqSent | State::Timewait => self.refuse_stale(route, transaction, req),
            State::ReqSent | State::RepReceived | State::Established => {
                self.count(Counter::Duplicates);
            }
        }
    }

    fn refuse_stale(&mut self, route: Route, transaction: u64, req: &Req) {
        self.count(Counter::RejectedStale);
        let reason = RejReason::STALE_CONNECTION;
        self.refuse_stateless(route, transaction, 0, req.local_id, About::Req, reason);
    }

    pub(crate) fn handle_rtu(&mut self, now: Time, route: Route, transaction: u64, rtu: &Rtu) {
        let id = rtu.remote_id;
        if !self.is_between(id, route) {
            return self.refuse_unknown_id(route, transaction, rtu.local_id, id, About::Other);
        }
        let Some(connection) = self.connection_of(route, id, rtu.local_id) else {
            return;
        };
        match connection.state {
            State::RepSent => self.establish(now, id, rtu.private_data.to_vec()),
            State::Established | State::DreqSent | State::Timewait => {
                self.count(Counter::Duplicates);
            }
            State::ReqSent | State::ReqReceived | State::RepReceived | State::Refused => {
                self.count(Counter::DropUnexpected);
            }
        }
    }

    /// Establishes a connection whose peer has proven itself.
    fn establish(&mut self, now: Time, id: u32, private_data: Vec<u8>) {
        self.set_timer(id, None);
        self.enter(id, State::Established);
        self.lift_retry_limits(id);
        if let Some(connection) = self.connections.get(&id) {
            let key = (connection.route.remote, connection.remote_qpn);
            let before = self.by_remote_qpn.insert(key, id);
            if let Some(other) = before.filter(|other| *other != id) {
                self.end_stale(now, other);
            }
        }
        let id = ConnectionId(id);
        self.events
            .push_back(Event::Established { id, private_data });
    }

    /// Repeats messages to a proven peer as often as to others from now on.
    pub(crate) fn lift_retry_limits(&mut self, id: u32) {
        self.prove(id);
        let retries_max = self.config.retries_max;
        let response_timeout = duration_of(self.config.response_timeout);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.retries_max = retries_max;
            connection.response_timeout = response_timeout;
        }
    }
}

/// Splits the private data of a request for a port into the addressing and the rest.
pub(crate) fn addressing_of(
    service_id: ServiceId,
    field: &[u8],
) -> Result<(Option<IpAddressing>, &[u8]), MadError> {
    match (service_id.port(), field.split_first_chunk()) {
        (Some(_), Some((header, rest))) => Ok((Some(IpAddressing::from_bytes(header)?), rest)),
        (None, _) | (_, None) => Ok((None, field)),
    }
}

/// Whether a request names the addresses that it travelled between.
///
/// An answer goes to the addresses in the request.
pub(crate) fn is_between(addressing: Option<&IpAddressing>, route: Route) -> bool {
    addressing.is_none_or(|addressing| {
        Gid::from(addressing.src()) == route.remote && Gid::from(addressing.dst()) == route.local
    })
}
