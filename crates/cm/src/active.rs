//! The active side of a connection: sends the REQ, receives the REP, sends the RTU (IBTA 12.9.7.1).

use airdma_transport::Time;
use airdma_wire::Bth;
use airdma_wire::cm::{
    About, CmMad, CmMessage, PathRecord, Rej, RejReason, Rep, Req, Rtu, TransportService,
};

use crate::calls::{self, CmError, Connect};
use crate::connection::{Connection, State};
use crate::event::{ConnectResponse, Event};
use crate::manager::From;
use crate::{ConnectionId, Counter, Manager};

impl Manager {
    /// Requests a connection.
    ///
    /// [`Event::ConnectResponse`], [`Event::Rejected`] or [`Event::Unreachable`] follows; the last
    /// after all repetitions (69 s by default).
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`] and [`CmError::TooManyConnections`].
    pub fn connect(&mut self, now: Time, wanted: &Connect<'_>) -> Result<ConnectionId, CmError> {
        let private_data = calls::private_data(wanted.addressing, wanted.private_data)?;
        if self.connections.len() >= self.config.connections_max {
            return Err(CmError::TooManyConnections);
        }
        let id = self.new_id();
        let transaction = self.new_transaction(id);
        let route = wanted.route;
        let primary = PathRecord {
            local_lid: LID_OF_ETHERNET,
            remote_lid: LID_OF_ETHERNET,
            local_gid: route.local,
            remote_gid: route.remote,
            flow_label: wanted.flow_label & 0x000f_ffff,
            traffic_class: route.traffic_class,
            hop_limit: 64,
            ack_timeout: wanted.ack_timeout & 0x1f,
            ..PathRecord::NONE
        };
        let req = Req {
            local_id: id,
            service_id: wanted.service_id,
            ca_guid: self.config.ca_guid,
            qkey: airdma_wire::Qkey(0),
            qpn: wanted.qpn,
            responder_resources: wanted.responder_resources,
            ee_context: 0,
            initiator_depth: wanted.initiator_depth,
            remote_ee_context: 0,
            remote_response_timeout: self.config.response_timeout,
            transport: wanted.transport,
            flow_control: false,
            psn: wanted.psn,
            local_response_timeout: self.config.response_timeout,
            retry_count: wanted.retry_count,
            pkey: Bth::PKEY_DEFAULT,
            path_mtu: wanted.path_mtu,
            rdc_exists: false,
            rnr_retry_count: wanted.rnr_retry_count,
            cm_retries_max: self.config.retries_max.min(15),
            srq: wanted.srq,
            extended_transport: match wanted.transport {
                TransportService::Extended => EXTENDED_RELIABLE,
                TransportService::Rc | TransportService::Uc | TransportService::Rd => 0,
            },
            primary,
            alternate: PathRecord::NONE,
            private_data,
        };
        let mut connection = Connection::new(
            State::ReqSent,
            route,
            transaction,
            &self.config,
            primary.ack_timeout,
        );
        connection.local_qpn = wanted.qpn;
        self.insert(id, connection);
        self.send_and_repeat(now, id, transaction, CmMessage::Req(req));
        Ok(ConnectionId(id))
    }

    /// Completes a connection after [`Event::ConnectResponse`]: it is established when this
    /// returns.
    ///
    /// At most 224 bytes of private data fit.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`], [`CmError::Unknown`] and [`CmError::InvalidState`].
    pub fn ready(&mut self, id: ConnectionId, private_data: &[u8]) -> Result<(), CmError> {
        let private_data = calls::private_data(None, private_data)?;
        let connection = self.in_state(id, &[State::RepReceived])?;
        let message = CmMessage::Rtu(Rtu {
            local_id: id.0,
            remote_id: connection.remote_id,
            private_data,
        });
        let (route, transaction) = (connection.route, connection.transaction);
        let mad = Box::new(
            CmMad {
                transaction,
                message,
            }
            .emit(),
        );
        connection.sent = Some(mad.clone());
        self.enter(id.0, State::Established);
        self.transmit_bytes(route, mad);
        Ok(())
    }

    pub(crate) fn handle_rep(&mut self, now: Time, from: From, rep: &Rep) {
        let (route, transaction) = (from.route, from.transaction);
        let id = rep.remote_id;
        let connection = self.connections.get(&id);
        let Some(connection) = connection.filter(|c| c.route.same_ends(&route)) else {
            return self.refuse_unknown_id(route, transaction, rep.local_id, id, About::Rep);
        };
        if connection.state == State::ReqSent {
            // Only the peer knows the transaction; an id alone has 24 bits, once the process is
            // known.
            if connection.transaction != transaction {
                return self.count(Counter::DropWrongId);
            }
            return self.take_rep(now, id, from.is_at_roce_port, rep);
        }
        if connection.remote_id != rep.local_id {
            return self.count(Counter::DropWrongId);
        }
        match connection.state {
            State::RepReceived => {
                self.count(Counter::Duplicates);
                self.ask_for_time(id, About::Rep);
            }
            State::Established | State::Refused => {
                self.count(Counter::Duplicates);
                self.send_again(id);
            }
            State::ReqSent | State::DreqSent | State::Timewait => self.count(Counter::Duplicates),
            State::ReqReceived | State::RepSent => self.count(Counter::DropUnexpected),
        }
    }

    fn take_rep(&mut self, now: Time, id: u32, is_at_roce_port: bool, rep: &Rep) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if rep.local_id == 0 {
            return self.count(Counter::DropMalformed);
        }
        let remote = connection.route.remote;
        let id_key = (remote, rep.local_id);
        let qpn_key = (remote, rep.qpn);
        connection.remote_id = rep.local_id;
        let by_id = self.by_remote_id.get(&id_key).copied();
        let by_qpn = self.by_remote_qpn.get(&qpn_key).copied();
        let holds = |other: Option<u32>| other.filter(|other| !self.is_half_open(*other));
        let (by_id, by_qpn) = (holds(by_id), holds(by_qpn));
        if by_id.or(by_qpn).is_some() {
            // IBTA 12.9.8.3.1: the peer offers a queue pair that is connected already. It knows our
            // id, so it is the peer itself, and has lost that connection.
            self.count(Counter::RejectedStale);
            self.refuse(
                now,
                id,
                RejReason::STALE_CONNECTION,
                [0; Rej::PRIVATE_DATA_LEN],
            );
            self.tell_rejected(id, RejReason::STALE_CONNECTION, Vec::new());
            if let Some(other) = by_qpn {
                self.end_stale(now, other);
            }
            return;
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.remote_qpn = rep.qpn;
            connection.is_at_roce_port = is_at_roce_port;
        }
        self.by_remote_id.insert(id_key, id);
        self.by_remote_qpn.insert(qpn_key, id);
        self.set_timer(id, None);
        self.enter(id, State::RepReceived);
        self.events
            .push_back(Event::ConnectResponse(Box::new(ConnectResponse {
                id: ConnectionId(id),
                qpn: rep.qpn,
                psn: rep.psn,
                responder_resources: rep.responder_resources,
                initiator_depth: rep.initiator_depth,
                rnr_retry_count: rep.rnr_retry_count,
                target_ack_delay: rep.target_ack_delay,
                srq: rep.srq,
                private_data: rep.private_data.to_vec(),
            })));
    }
}

/// Extended transport type 1: XRC (IBTA annex A14.5.1).
const EXTENDED_RELIABLE: u8 = 1;

/// The kernel's value on Ethernet, which has no LIDs.
const LID_OF_ETHERNET: u16 = 0xffff;
