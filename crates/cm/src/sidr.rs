//! Resolution of service ids to queue pairs of datagrams (IBTA 12.11).

use airdma_transport::Time;
use airdma_wire::cm::{CmMad, CmMessage, ServiceId, SidrRep, SidrReq, SidrStatus};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{Bth, Qkey, Qpn};

use crate::calls::{self, CmError, Resolve, SidrAnswer};
use crate::config::duration_of;
use crate::connection::memory_of;
use crate::event::{Event, SidrRequest, SidrResponse};
use crate::half_open::Stand;
use crate::manager::forget;
use crate::passive::{addressing_of, is_between};
use crate::{Counter, Manager, Route, SidrId, Takes};

/// One resolution.
#[derive(Debug)]
pub(crate) struct Exchange {
    side: Side,
    route: Route,
    request_id: u32,
    service_id: ServiceId,
    transaction: u64,
    sent: Option<Box<[u8; MAD_LEN]>>,
    retries_left: u8,
    pub(crate) timer: Option<Time>,
    pub(crate) stand: Option<Stand>,
    rest: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Active: waits for the peer's answer.
    Asking,
    /// Passive: the program has not answered yet.
    Asked,
    /// Passive: the answer is kept for repetitions of the request.
    Answered,
}

impl Manager {
    /// Requests the queue pair of a service. [`Event::SidrResponse`] or [`Event::SidrUnreachable`]
    /// follows.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`] and [`CmError::TooManyConnections`].
    pub fn resolve(&mut self, now: Time, wanted: &Resolve<'_>) -> Result<SidrId, CmError> {
        let private_data = calls::private_data(wanted.addressing, wanted.private_data)?;
        if self.exchanges.len() >= self.config.connections_max {
            return Err(CmError::TooManyConnections);
        }
        let id = self.new_id();
        let transaction = self.new_transaction(id);
        let request = SidrReq {
            request_id: id,
            pkey: Bth::PKEY_DEFAULT,
            service_id: wanted.service_id,
            private_data,
        };
        let mad = CmMad {
            transaction,
            message: CmMessage::SidrReq(request),
        };
        let mad = Box::new(mad.emit());
        let exchange = Exchange {
            side: Side::Asking,
            route: wanted.route,
            request_id: id,
            service_id: wanted.service_id,
            transaction,
            sent: Some(mad.clone()),
            retries_left: self.config.retries_max,
            timer: None,
            stand: None,
            rest: None,
        };
        self.exchanges.insert(id, exchange);
        self.set_timer(id, Some(now + duration_of(self.config.response_timeout)));
        self.transmit_bytes(wanted.route, mad);
        Ok(SidrId(id))
    }

    /// Notes that the program has fetched the request.
    ///
    /// It no longer counts against the backlog of the listener, nor ends with it.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn taken_sidr(&mut self, id: SidrId) -> Result<(), CmError> {
        let exchange = match self.exchanges.get_mut(&id.0) {
            Some(exchange) if exchange.side == Side::Asked => exchange,
            Some(_) | None => return Err(CmError::Unknown),
        };
        if let Some(stand) = exchange.stand.take() {
            self.step_out(stand);
        }
        Ok(())
    }

    /// Answers a resolution. The id is no longer valid when this returns.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`] and [`CmError::Unknown`].
    pub fn answer(&mut self, now: Time, id: SidrId, with: &SidrAnswer<'_>) -> Result<(), CmError> {
        let private_data = calls::private_data(None, with.private_data)?;
        let exchange = match self.exchanges.get_mut(&id.0) {
            Some(exchange) if exchange.side == Side::Asked => exchange,
            Some(_) | None => return Err(CmError::Unknown),
        };
        let response = SidrRep {
            request_id: exchange.request_id,
            status: with.status,
            info_len: 0,
            qpn: with.qpn,
            service_id: exchange.service_id,
            qkey: with.qkey,
            info: [0; SidrRep::INFO_LEN],
            private_data,
        };
        let mad = CmMad {
            transaction: exchange.transaction,
            message: CmMessage::SidrRep(response),
        };
        let mad = Box::new(mad.emit());
        exchange.side = Side::Answered;
        exchange.sent = Some(mad.clone());
        let route = exchange.route;
        if let Some(stand) = exchange.stand.take() {
            self.step_out(stand);
        }
        // A request does not carry its number of repetitions: assume this side's own.
        let repeats_after = duration_of(self.config.response_timeout);
        let until = now + memory_of(repeats_after, self.config.retries_max);
        self.set_timer(id.0, Some(until));
        let rest = self.rest(id.0);
        if let Some(exchange) = self.exchanges.get_mut(&id.0) {
            exchange.rest = Some(rest);
        }
        self.transmit_bytes(route, mad);
        Ok(())
    }

    /// Drops a resolution: no event about it follows.
    ///
    /// If it was not answered, it is refused. Does nothing if the id is not valid.
    pub fn destroy_sidr(&mut self, now: Time, id: SidrId) {
        let Some(exchange) = self.exchanges.get(&id.0) else {
            return;
        };
        match exchange.side {
            Side::Asking => self.remove_exchange(id.0),
            Side::Asked => {
                let refusal = SidrAnswer {
                    status: SidrStatus::REJECTED,
                    qpn: Qpn::new(0),
                    qkey: Qkey(0),
                    private_data: &[],
                };
                let answered = self.answer(now, id, &refusal);
                debug_assert_eq!(answered, Ok(()));
            }
            Side::Answered => return,
        }
        self.retract_events(id.0);
    }

    pub(crate) fn handle_sidr_req(
        &mut self,
        _now: Time,
        route: Route,
        transaction: u64,
        request: &SidrReq,
    ) {
        let key = (route.remote, request.request_id);
        if let Some(&known) = self.by_request_id.get(&key) {
            return self.repeated_sidr_req(known, route);
        }
        let Ok((addressing, private_data)) =
            addressing_of(request.service_id, &request.private_data)
        else {
            return self.count(Counter::DropMalformed);
        };
        if !is_between(addressing.as_ref(), route) {
            return self.count(Counter::DropWrongPeer);
        }
        let Some(listener) = self.listeners.find(request.service_id, route.local) else {
            self.count(Counter::RejectedInvalidService);
            return self.refuse_sidr(route, transaction, request);
        };
        if self.listeners.takes(listener) != Some(Takes::Datagrams) {
            self.count(Counter::RejectedInvalidService);
            return self.refuse_sidr(route, transaction, request);
        }
        self.make_room(listener, route.remote);
        if self.exchanges.len() >= self.config.connections_max {
            return self.count(Counter::DropHalfOpenFull);
        }
        let id = self.new_id();
        let exchange = Exchange {
            side: Side::Asked,
            route,
            request_id: request.request_id,
            service_id: request.service_id,
            transaction,
            sent: None,
            retries_left: 0,
            timer: None,
            stand: None,
            rest: None,
        };
        self.exchanges.insert(id, exchange);
        self.by_request_id.insert(key, id);
        let stand = self.stand(id, listener, route.remote, false);
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.stand = Some(stand);
        }
        self.events
            .push_back(Event::SidrRequest(Box::new(SidrRequest {
                id: SidrId(id),
                listener,
                route,
                service_id: request.service_id,
                addressing,
                private_data: private_data.to_vec(),
            })));
    }

    fn repeated_sidr_req(&mut self, id: u32, route: Route) {
        let Some(exchange) = self.exchanges.get(&id) else {
            return;
        };
        if !exchange.route.same_ends(&route) {
            return self.count(Counter::DropWrongPeer);
        }
        let answer = exchange.sent.clone();
        self.count(Counter::Duplicates);
        if let Some(mad) = answer {
            self.transmit_bytes(route, mad);
        }
    }

    fn refuse_sidr(&mut self, route: Route, transaction: u64, request: &SidrReq) {
        let response = SidrRep {
            request_id: request.request_id,
            status: SidrStatus::UNSUPPORTED_SERVICE,
            info_len: 0,
            qpn: Qpn::new(0),
            service_id: request.service_id,
            qkey: Qkey(0),
            info: [0; SidrRep::INFO_LEN],
            private_data: [0; SidrRep::PRIVATE_DATA_LEN],
        };
        self.transmit(route, transaction, CmMessage::SidrRep(response));
    }

    pub(crate) fn handle_sidr_rep(&mut self, route: Route, transaction: u64, response: &SidrRep) {
        let id = response.request_id;
        let reason = match self.exchanges.get(&id) {
            Some(exchange) if !exchange.route.same_ends(&route) => Counter::DropWrongPeer,
            Some(exchange) if exchange.side != Side::Asking => Counter::DropUnexpected,
            Some(exchange)
                if exchange.service_id != response.service_id
                    || exchange.transaction != transaction =>
            {
                Counter::DropWrongId
            }
            Some(_) => {
                self.remove_exchange(id);
                self.events
                    .push_back(Event::SidrResponse(Box::new(SidrResponse {
                        id: SidrId(id),
                        status: response.status,
                        qpn: response.qpn,
                        qkey: response.qkey,
                        private_data: response.private_data.to_vec(),
                    })));
                return;
            }
            None => Counter::DropUnknownId,
        };
        self.count(reason);
    }

    pub(crate) fn exchange_timeout(&mut self, now: Time, id: u32) {
        let due = now + duration_of(self.config.response_timeout);
        let Some(exchange) = self.exchanges.get_mut(&id) else {
            return;
        };
        match (exchange.side, exchange.retries_left.checked_sub(1)) {
            (Side::Asking, Some(left)) => {
                exchange.retries_left = left;
                let (route, mad) = (exchange.route, exchange.sent.clone());
                self.set_timer(id, Some(due));
                self.count(Counter::Retransmits);
                if let Some(mad) = mad {
                    self.transmit_bytes(route, mad);
                }
            }
            (Side::Asking, None) => self.give_up_exchange(id),
            (Side::Answered, _) => self.rest_ends(id),
            (Side::Asked, _) => {}
        }
    }

    /// Ends an exchange whose answer will not come.
    pub(crate) fn give_up_exchange(&mut self, id: u32) {
        let exchange = self.exchanges.get(&id);
        if exchange.is_none_or(|exchange| exchange.side != Side::Asking) {
            return;
        }
        self.count(Counter::GaveUp);
        self.remove_exchange(id);
        let id = SidrId(id);
        self.events.push_back(Event::SidrUnreachable { id });
    }

    pub(crate) fn remove_exchange(&mut self, id: u32) {
        self.set_timer(id, None);
        let Some(exchange) = self.exchanges.remove(&id) else {
            return;
        };
        if let Some(stand) = exchange.stand {
            self.step_out(stand);
        }
        let key = (exchange.route.remote, exchange.request_id);
        forget(&mut self.by_request_id, key, id);
        if let Some(rest) = exchange.rest {
            self.resting.remove(&rest);
        }
    }
}
