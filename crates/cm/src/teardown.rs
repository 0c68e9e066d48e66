//! The end of connections: reject, disconnect, timeout, timewait; and the repetition of messages
//! (IBTA 12.9.7 and 12.9.8).

use airdma_transport::Time;
use airdma_wire::Qpn;
use airdma_wire::cm::{About, CmMad, CmMessage, Drep, Dreq, Mra, Rej, RejReason, Rep, Req};

use crate::calls::{self, CmError};
use crate::config::{SERVICE_TIMEOUT, duration_of};
use crate::connection::{Connection, State};
use crate::event::Event;
use crate::{ConnectionId, Counter, Manager, Route};

/// Notice that ends a connection whose process has exited, sent by another process at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanNotice {
    /// Addresses of both ends.
    pub route: Route,
    /// The local communication id.
    pub local_id: u32,
    /// The peer's communication id.
    pub remote_id: u32,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// Whether the peer has proven its address. If not, the notice is sent at most twice.
    pub is_proven: bool,
}

/// Repetitions of such a notice, 1.1 s apart. The answer may go to another process.
const NOTICE_REPEATS: u8 = 2;
/// Repetitions to a peer that has not proven its address.
///
/// One datagram is not enough: where sockets share a port, it can get lost with the exiting
/// process, and a client that was just accepted has no other notice of the exit.
const NOTICE_REPEATS_UNPROVEN: u8 = 1;
const NOTICE_TIMEOUT: u8 = 18;

impl Manager {
    /// The local queue pair of a connection.
    pub fn local_qpn(&self, id: ConnectionId) -> Option<Qpn> {
        let connection = self.connections.get(&id.0)?;
        Some(connection.local_qpn)
    }

    /// The notice that would end a connection, if the peer may take it for established.
    pub fn orphan_notice(&self, id: ConnectionId) -> Option<OrphanNotice> {
        let connection = self.connections.get(&id.0)?;
        match connection.state {
            State::RepSent | State::Established | State::DreqSent => Some(OrphanNotice {
                route: connection.route,
                local_id: id.0,
                remote_id: connection.remote_id,
                remote_qpn: connection.remote_qpn,
                is_proven: connection.proven,
            }),
            State::ReqSent
            | State::ReqReceived
            | State::RepReceived
            | State::Timewait
            | State::Refused => None,
        }
    }

    /// Sends the notice for another process's connection, and repeats it if no answer comes.
    pub fn send_orphan_notice(&mut self, now: Time, notice: &OrphanNotice) {
        let id = notice.local_id;
        let is_full = self.connections.len() >= self.config.connections_max;
        if is_full || self.connections.contains_key(&id) || self.exchanges.contains_key(&id) {
            return;
        }
        let transaction = self.new_transaction(id);
        let mut connection =
            Connection::new(State::DreqSent, notice.route, transaction, &self.config, 0);
        connection.remote_id = notice.remote_id;
        connection.remote_qpn = notice.remote_qpn;
        connection.known = false;
        connection.retries_max = if notice.is_proven {
            NOTICE_REPEATS
        } else {
            NOTICE_REPEATS_UNPROVEN
        };
        connection.response_timeout = duration_of(NOTICE_TIMEOUT);
        self.insert(id, connection);
        self.begin_disconnect(now, id, [0; Dreq::PRIVATE_DATA_LEN]);
    }

    /// Refuses a [request](Event::ConnectRequest) or a [response](Event::ConnectResponse).
    ///
    /// The usual reason is [`RejReason::CONSUMER`]. At most 148 bytes of private data fit. The id
    /// is no longer valid when this returns.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`], [`CmError::Unknown`] and [`CmError::InvalidState`].
    pub fn reject(
        &mut self,
        now: Time,
        id: ConnectionId,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = calls::private_data(None, private_data)?;
        self.in_state(id, &[State::ReqReceived, State::RepReceived])?;
        self.retract_events(id.0);
        self.refuse(now, id.0, reason, private_data);
        Ok(())
    }

    /// Ends a connection.
    ///
    /// [`Event::Disconnected`] follows when the peer has answered or all repetitions were sent,
    /// then [`Event::TimewaitExit`]. At most 220 bytes of private data fit. Does nothing if the
    /// connection is ending already.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`], [`CmError::Unknown`] and, before the connection was
    /// accepted or completed here, [`CmError::InvalidState`].
    pub fn disconnect(
        &mut self,
        now: Time,
        id: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = calls::private_data(None, private_data)?;
        let ending = [State::DreqSent, State::Timewait];
        let open = [State::Established, State::RepSent];
        if self.in_state(id, &ending).is_ok() {
            return Ok(());
        }
        self.in_state(id, &open)?;
        self.begin_disconnect(now, id.0, private_data);
        Ok(())
    }

    /// Drops a connection in any state: the peer is notified, and no event about it follows.
    ///
    /// Does nothing if the id is not valid.
    pub fn destroy(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id.0) else {
            return;
        };
        if !connection.known {
            return;
        }
        let state = connection.state;
        connection.known = false;
        self.retract_events(id.0);
        match state {
            State::ReqSent => {
                self.reject_as_late(id.0);
                self.remove(id.0);
            }
            State::ReqReceived | State::RepReceived | State::RepSent => {
                self.refuse(now, id.0, RejReason::CONSUMER, [0; Rej::PRIVATE_DATA_LEN]);
            }
            State::Established => self.begin_disconnect(now, id.0, [0; Dreq::PRIVATE_DATA_LEN]),
            State::DreqSent | State::Timewait | State::Refused => {}
        }
    }

    pub(crate) fn handle_rej(&mut self, now: Time, route: Route, transaction: u64, rej: &Rej) {
        let id = match rej.remote_id {
            // Only a peer that has received no reply has no id of this side.
            0 => self
                .by_remote_id
                .get(&(route.remote, rej.local_id))
                .copied()
                .filter(|id| self.is_half_open(*id)),
            id => Some(id),
        };
        let Some((id, connection)) = id.and_then(|id| Some((id, self.connections.get(&id)?)))
        else {
            return self.count(Counter::DropUnknownId);
        };
        if !connection.route.same_ends(&route) {
            return self.count(Counter::DropWrongPeer);
        }
        let state = connection.state;
        let is_peers = match state {
            State::ReqSent => transaction == connection.transaction,
            // The REQ or REP is refused, which has the same transaction.
            State::ReqReceived | State::RepSent | State::RepReceived => {
                transaction == connection.transaction && rej.local_id == connection.remote_id
            }
            State::Established | State::DreqSent | State::Timewait | State::Refused => {
                rej.local_id == connection.remote_id
            }
        };
        if !is_peers {
            return self.count(Counter::DropWrongId);
        }
        match state {
            State::ReqSent => {
                self.remove(id);
                self.tell_rejected(id, rej.reason, rej.private_data.to_vec());
            }
            State::ReqReceived | State::RepSent | State::RepReceived => {
                self.rejected(now, id, rej.reason, rej.private_data.to_vec());
            }
            State::Established | State::DreqSent => self.disconnected(now, id, Vec::new()),
            State::Timewait | State::Refused => self.count(Counter::Duplicates),
        }
    }

    pub(crate) fn handle_mra(&mut self, now: Time, route: Route, transaction: u64, mra: &Mra) {
        let id = mra.remote_id;
        let Some(connection) = self.connections.get_mut(&id) else {
            return self.count(Counter::DropUnknownId);
        };
        if !connection.route.same_ends(&route) {
            return self.count(Counter::DropWrongPeer);
        }
        let expected = match (connection.state, mra.about) {
            (State::ReqSent, About::Req) if transaction == connection.transaction => true,
            (State::ReqSent, About::Req) => return self.count(Counter::DropWrongId),
            (State::RepSent, About::Rep) if mra.local_id == connection.remote_id => true,
            (State::RepSent, About::Rep) => return self.count(Counter::DropWrongId),
            _ => false,
        };
        if !expected {
            return self.count(Counter::DropUnexpected);
        }
        if connection.waits {
            // Once for each message, as in the kernel; otherwise a peer could delay this side for
            // ever.
            return self.count(Counter::Duplicates);
        }
        connection.waits = true;
        let is_new = !connection.proven;
        if is_new {
            // This side's id was sent to the peer's address only: the peer is proven, and its
            // program is slow.
            self.lift_retry_limits(id);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if is_new {
            connection.retries_left = connection.retries_max;
        }
        let wait = duration_of(mra.service_timeout) + connection.response_timeout;
        self.set_timer(id, Some(now + wait));
    }

    pub(crate) fn handle_dreq(&mut self, now: Time, route: Route, transaction: u64, dreq: &Dreq) {
        let id = dreq.remote_id;
        let drep = CmMessage::Drep(Drep {
            local_id: id,
            remote_id: dreq.local_id,
            private_data: [0; Drep::PRIVATE_DATA_LEN],
        });
        if !self.is_between(id, route) {
            // A peer that still has the connection need not repeat its message.
            self.count(Counter::DropUnknownId);
            return self.transmit(route, transaction, drep);
        }
        let Some(connection) = self.connection_of(route, id, dreq.local_id) else {
            return;
        };
        match connection.state {
            State::RepSent | State::RepReceived | State::Established | State::DreqSent => {
                if dreq.remote_qpn != connection.local_qpn {
                    return self.count(Counter::DropWrongId);
                }
                self.transmit(route, transaction, drep);
                self.disconnected(now, id, dreq.private_data.to_vec());
            }
            State::Timewait | State::Refused => {
                self.count(Counter::Duplicates);
                self.transmit(route, transaction, drep);
            }
            State::ReqSent | State::ReqReceived => self.count(Counter::DropUnexpected),
        }
    }

    pub(crate) fn handle_drep(&mut self, now: Time, route: Route, drep: &Drep) {
        let id = drep.remote_id;
        let Some(connection) = self.connection_of(route, id, drep.local_id) else {
            return;
        };
        match connection.state {
            State::DreqSent => self.disconnected(now, id, drep.private_data.to_vec()),
            State::Timewait => self.count(Counter::Duplicates),
            State::ReqSent
            | State::ReqReceived
            | State::RepSent
            | State::RepReceived
            | State::Established
            | State::Refused => self.count(Counter::DropUnexpected),
        }
    }

    pub(crate) fn connection_timeout(&mut self, now: Time, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.state {
            State::ReqSent | State::RepSent | State::DreqSent => {
                let Some(left) = connection.retries_left.checked_sub(1) else {
                    return self.give_up(now, id);
                };
                connection.retries_left = left;
                let due = now + connection.response_timeout;
                self.set_timer(id, Some(due));
                self.count(Counter::Retransmits);
                self.send_again(id);
            }
            State::Timewait | State::Refused => self.rest_ends(id),
            State::ReqReceived | State::RepReceived | State::Established => {}
        }
    }

    /// Whether a DREQ was sent and is not answered yet.
    pub fn is_ending(&self) -> bool {
        !self.ending().is_empty()
    }

    /// Repeats all such DREQs now: a process that exits cannot wait for their timers.
    pub fn end_again(&mut self) {
        for id in self.ending() {
            self.count(Counter::Retransmits);
            self.send_again(id);
        }
    }

    #[allow(clippy::disallowed_methods, reason = "what is found is sorted")]
    fn ending(&self) -> Vec<u32> {
        let connections = self.connections.iter();
        let mut ending: Vec<_> = connections
            .filter(|(_, connection)| connection.state == State::DreqSent)
            .map(|(&id, _)| id)
            .collect();
        ending.sort_unstable();
        ending
    }

    /// Handles a message that cannot be sent because its source address is gone.
    ///
    /// A program that waits for an answer is told at once that none will come, as by the kernel.
    pub fn unsendable(&mut self, now: Time, mad: &[u8]) {
        let Ok(CmMad { message, .. }) = CmMad::parse(mad) else {
            return;
        };
        match message {
            CmMessage::Req(Req { local_id, .. })
            | CmMessage::Rep(Rep { local_id, .. })
            | CmMessage::Dreq(Dreq { local_id, .. }) => {
                let waits = self.connections.get(&local_id).is_some_and(|connection| {
                    let state = connection.state;
                    matches!(state, State::ReqSent | State::RepSent | State::DreqSent)
                });
                if waits {
                    self.set_timer(local_id, None);
                    self.give_up(now, local_id);
                }
            }
            CmMessage::SidrReq(request) => self.give_up_exchange(request.request_id),
            CmMessage::Mra(_)
            | CmMessage::Rej(_)
            | CmMessage::Rtu(_)
            | CmMessage::Drep(_)
            | CmMessage::SidrRep(_) => {}
        }
    }

    fn give_up(&mut self, now: Time, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let known = connection.known;
        match connection.state {
            State::ReqSent => {
                self.reject_as_late(id);
                self.remove(id);
            }
            // Nothing was ever received from there: if the peer asks again, the exchange starts
            // over.
            State::RepSent if !connection.proven => {
                self.remove(id);
            }
            State::RepSent => {
                self.reject_as_late(id);
                self.enter_timewait(now, id);
                self.forget_id(id);
            }
            State::DreqSent => {
                self.count(Counter::GaveUp);
                return self.disconnected(now, id, Vec::new());
            }
            State::ReqReceived
            | State::RepReceived
            | State::Established
            | State::Timewait
            | State::Refused => return,
        }
        self.count(Counter::GaveUp);
        if known {
            let id = ConnectionId(id);
            self.events.push_back(Event::Unreachable { id });
        }
    }

    /// Ends a connection whose peer has lost it (IBTA 12.9.8.3.1).
    ///
    /// Called when the same queue pair completes another connection, not at its request, which may
    /// be forged.
    pub(crate) fn end_stale(&mut self, now: Time, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let reason = RejReason::STALE_CONNECTION;
        match connection.state {
            State::Established => self.begin_disconnect(now, id, [0; Dreq::PRIVATE_DATA_LEN]),
            State::ReqReceived | State::RepReceived => self.rejected(now, id, reason, Vec::new()),
            State::RepSent => return self.evict(id),
            State::ReqSent | State::DreqSent | State::Timewait | State::Refused => return,
        }
        self.count(Counter::StaleEnded);
    }

    fn begin_disconnect(&mut self, now: Time, id: u32, private_data: [u8; Dreq::PRIVATE_DATA_LEN]) {
        let transaction = self.new_transaction(id);
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let dreq = Dreq {
            local_id: id,
            remote_id: connection.remote_id,
            remote_qpn: connection.remote_qpn,
            private_data,
        };
        let Some(left) = self.words_left(id) else {
            return self.disconnected(now, id, Vec::new());
        };
        self.enter(id, State::DreqSent);
        self.send_and_repeat(now, id, transaction, CmMessage::Dreq(dreq));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.retries_left = left;
        }
    }

    /// Number of times that a message which ends a connection may be repeated.
    ///
    /// `None` if it may not be sent at all: the peer is unproven, and the reply was repeated as
    /// often as allowed.
    fn words_left(&self, id: u32) -> Option<u8> {
        let connection = self.connections.get(&id)?;
        let waits_unproven = connection.state == State::RepSent && !connection.proven;
        if waits_unproven {
            connection.retries_left.checked_sub(1)
        } else {
            Some(connection.retries_max)
        }
    }

    /// Ends a connection that was open.
    fn disconnected(&mut self, now: Time, id: u32, private_data: Vec<u8>) {
        let known = self.connections.get(&id).is_some_and(|c| c.known);
        if known {
            let id = ConnectionId(id);
            self.events
                .push_back(Event::Disconnected { id, private_data });
        }
        self.enter_timewait(now, id);
    }

    /// Ends a connection that the peer refuses.
    fn rejected(&mut self, now: Time, id: u32, reason: RejReason, private_data: Vec<u8>) {
        self.tell_rejected(id, reason, private_data);
        self.enter_timewait(now, id);
        self.forget_id(id);
    }

    /// Refuses a connection. The REJ is repeated when the peer repeats its message.
    pub(crate) fn refuse(
        &mut self,
        now: Time,
        id: u32,
        reason: RejReason,
        private_data: [u8; Rej::PRIVATE_DATA_LEN],
    ) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let message = CmMessage::Rej(Rej {
            local_id: id,
            remote_id: connection.remote_id,
            about: match connection.state {
                State::ReqReceived => About::Req,
                State::ReqSent | State::RepReceived => About::Rep,
                State::RepSent
                | State::Established
                | State::DreqSent
                | State::Timewait
                | State::Refused => About::Other,
            },
            reason,
            info_len: 0,
            info: [0; Rej::INFO_LEN],
            private_data,
        });
        let (route, transaction) = (connection.route, connection.transaction);
        let mad = CmMad {
            transaction,
            message,
        };
        let mad = Box::new(mad.emit());
        connection.sent = Some(mad.clone());
        connection.known = false;
        let due = now + connection.memory;
        if self.words_left(id).is_some() {
            self.transmit_bytes(route, mad);
        }
        self.enter(id, State::Refused);
        self.begin_rest(id, due);
    }

    fn enter_timewait(&mut self, now: Time, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.sent = None;
        let due = now + connection.timewait;
        self.enter(id, State::Timewait);
        self.begin_rest(id, due);
    }

    fn begin_rest(&mut self, id: u32, until: Time) {
        self.set_timer(id, Some(until));
        let rest = self.rest(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.rest = Some(rest);
        }
    }

    /// Ends the program's use of an id: no more events, and calls with it fail.
    fn forget_id(&mut self, id: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.known = false;
        }
    }

    /// Sends REJ (timeout): the answer of the peer is no longer needed.
    fn reject_as_late(&mut self, id: u32) {
        let guid = self.config.ca_guid.to_be_bytes();
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let mut info = [0; Rej::INFO_LEN];
        info[..guid.len()].copy_from_slice(&guid);
        let rej = Rej {
            local_id: id,
            remote_id: connection.remote_id,
            about: About::Other,
            reason: RejReason::TIMEOUT,
            info_len: guid.len() as u8,
            info,
            private_data: [0; Rej::PRIVATE_DATA_LEN],
        };
        let (route, transaction) = (connection.route, connection.transaction);
        self.transmit(route, transaction, CmMessage::Rej(rej));
    }

    /// Whether a connection has that id and these addresses.
    ///
    /// A message between other addresses gets the answer for an unknown id: silence would reveal
    /// which of the 2^24 ids are in use.
    pub(crate) fn is_between(&self, id: u32, route: Route) -> bool {
        let connection = self.connections.get(&id);
        connection.is_some_and(|connection| connection.route.same_ends(&route))
    }

    /// Answers a message for an unknown id.
    pub(crate) fn refuse_unknown_id(
        &mut self,
        route: Route,
        transaction: u64,
        peer: u32,
        ours: u32,
        about: About,
    ) {
        self.count(Counter::RejectedInvalidId);
        let reason = RejReason::INVALID_COMMUNICATION_ID;
        self.refuse_stateless(route, transaction, ours, peer, about, reason);
    }

    pub(crate) fn refuse_stateless(
        &mut self,
        route: Route,
        transaction: u64,
        local_id: u32,
        remote_id: u32,
        about: About,
        reason: RejReason,
    ) {
        let rej = Rej {
            local_id,
            remote_id,
            about,
            reason,
            info_len: 0,
            info: [0; Rej::INFO_LEN],
            private_data: [0; Rej::PRIVATE_DATA_LEN],
        };
        self.transmit(route, transaction, CmMessage::Rej(rej));
    }

    /// Asks a peer that repeats its message to wait: the program is slow.
    pub(crate) fn ask_for_time(&mut self, id: u32, about: About) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        // The peer may repeat its message for that much longer.
        connection.memory = connection.memory_after_mra;
        let mra = Mra {
            local_id: id,
            remote_id: connection.remote_id,
            about,
            service_timeout: SERVICE_TIMEOUT,
            private_data: [0; Mra::PRIVATE_DATA_LEN],
        };
        let (route, transaction) = (connection.route, connection.transaction);
        self.count(Counter::MrasSent);
        self.transmit(route, transaction, CmMessage::Mra(mra));
    }

    pub(crate) fn send_and_repeat(
        &mut self,
        now: Time,
        id: u32,
        transaction: u64,
        message: CmMessage,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let mad = CmMad {
            transaction,
            message,
        };
        connection.sent = Some(Box::new(mad.emit()));
        connection.retries_left = connection.retries_max;
        connection.waits = false;
        let due = now + connection.response_timeout;
        self.set_timer(id, Some(due));
        self.send_again(id);
    }

    pub(crate) fn send_again(&mut self, id: u32) {
        if let Some(connection) = self.connections.get(&id)
            && let Some(mad) = connection.sent.clone()
        {
            let route = connection.route;
            self.transmit_bytes(route, mad);
        }
    }

    /// The connection of an id, if the id is valid and the connection is in one of these states.
    pub(crate) fn in_state(
        &mut self,
        id: ConnectionId,
        states: &[State],
    ) -> Result<&mut Connection, CmError> {
        match self.connections.get_mut(&id.0) {
            Some(connection) if connection.known => {
                if states.contains(&connection.state) {
                    Ok(connection)
                } else {
                    Err(CmError::InvalidState)
                }
            }
            Some(_) | None => Err(CmError::Unknown),
        }
    }

    /// The connection that a datagram belongs to, if its peer sent it; otherwise counts why it is
    /// dropped.
    pub(crate) fn connection_of(
        &mut self,
        route: Route,
        id: u32,
        remote_id: u32,
    ) -> Option<&Connection> {
        let reason = match self.connections.get(&id) {
            None => Counter::DropUnknownId,
            Some(connection) if !connection.route.same_ends(&route) => Counter::DropWrongPeer,
            Some(connection) if connection.remote_id != remote_id => Counter::DropWrongId,
            Some(_) => return self.connections.get(&id),
        };
        self.count(reason);
        None
    }
}
