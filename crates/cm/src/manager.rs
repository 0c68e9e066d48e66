//! The manager: dispatch of calls and messages, and the tables behind.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use airdma_transport::Time;
use airdma_wire::cm::{CmMad, CmMessage, RejReason, ServiceId};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::{Gid, PathMtu, Qpn, ROCE_PORT};

use crate::connection::{Connection, State};
use crate::event::Event;
use crate::half_open::{Evicted, Line};
use crate::ids::Ids;
use crate::listener::Listeners;
use crate::sidr::Exchange;
use crate::{CmError, Config, ConnectionId, Counter, ListenerId, Route, SidrId, Takes};

/// Origin of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) route: Route,
    pub(crate) transaction: u64,
    /// Whether its UDP source port is 4791.
    pub(crate) is_at_roce_port: bool,
}

/// A connection manager: one for all the queue pairs of a process.
///
/// Inputs are datagrams that arrive at queue pair 1 ([`handle_mad`](Self::handle_mad)), the calls
/// of the program, and the time once [`poll_timeout`](Self::poll_timeout) is reached
/// ([`handle_timeout`](Self::handle_timeout)). After each input, call
/// [`poll_transmit`](Self::poll_transmit) for datagrams to send and
/// [`poll_event`](Self::poll_event) for events, both until they are empty.
///
/// Each input does a bounded amount of work, except `handle_timeout`, which handles every timer
/// that is due. Input from the network never makes memory grow beyond the bounds of the [`Config`]
/// and the backlogs of the listeners; an outgoing datagram that a bound drops counts as lost, and
/// is repeated.
///
/// Once an event has ended an id, calls with it return [`CmError::Unknown`].
#[derive(Debug)]
pub struct Manager {
    pub(crate) config: Config,
    pub(crate) listeners: Listeners,
    pub(crate) connections: HashMap<u32, Connection>,
    pub(crate) exchanges: HashMap<u32, Exchange>,
    /// Passive connections, and active ones whose peer is known, by the peer's address and id.
    pub(crate) by_remote_id: HashMap<(Gid, u32), u32>,
    /// Connections that are not over, by the peer's address and queue pair.
    pub(crate) by_remote_qpn: HashMap<(Gid, Qpn), u32>,
    /// Accepted connections whose RTU has not arrived, by the local queue pair.
    pub(crate) awaited: HashMap<Qpn, u32>,
    /// Passive exchanges by the peer's address and request id.
    pub(crate) by_request_id: HashMap<(Gid, u32), u32>,
    pub(crate) timers: BTreeSet<(Time, u32)>,
    /// Connections and exchanges that have ended and are only kept for late messages, the oldest
    /// first.
    pub(crate) resting: BTreeMap<u64, u32>,
    pub(crate) rests: u64,
    pub(crate) half_open: usize,
    /// Half-open connections that may be evicted.
    pub(crate) half_open_line: Line,
    /// The request that was evicted last, until that is polled.
    pub(crate) evicted: Option<Evicted>,
    pub(crate) turns: u64,
    /// Number of connections that prove the peer at an address.
    pub(crate) proven: HashMap<Gid, usize>,
    pub(crate) transmits: VecDeque<(Route, Box<[u8; MAD_LEN]>)>,
    pub(crate) events: VecDeque<Event>,
    counters: [u64; Counter::ALL.len()],
    ids: Ids,
}

impl Manager {
    /// A manager without listeners and connections.
    pub fn new(config: Config) -> Self {
        let random = mix(config.seed);
        let ids = Ids::new([random, mix(!config.seed)], config.id_tag);
        Self {
            ids,
            config,
            listeners: Listeners::default(),
            connections: HashMap::new(),
            exchanges: HashMap::new(),
            by_remote_id: HashMap::new(),
            by_remote_qpn: HashMap::new(),
            awaited: HashMap::new(),
            by_request_id: HashMap::new(),
            timers: BTreeSet::new(),
            resting: BTreeMap::new(),
            rests: 0,
            half_open: 0,
            half_open_line: Line::default(),
            evicted: None,
            turns: 0,
            proven: HashMap::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: [0; Counter::ALL.len()],
        }
    }

    /// Accepts requests for a service at the address `local`, or at every address without a
    /// listener of its own.
    ///
    /// The unspecified address of a family (`::ffff:0.0.0.0` or `::`) stands for every address of
    /// that family. At most `backlog` requests (at least one) wait for the program: see
    /// [`taken`](Self::taken). One more evicts the oldest, as if its peer had given up; a source
    /// has a quarter of the backlog, or 64 places if that is more.
    ///
    /// # Errors
    /// [`CmError::ServiceInUse`] if the same service and address have a listener.
    pub fn listen(
        &mut self,
        service_id: ServiceId,
        takes: Takes,
        local: Option<Gid>,
        backlog: usize,
    ) -> Result<ListenerId, CmError> {
        self.listeners.add(service_id, takes, local, backlog)
    }

    /// Limits the accepted connections of a listener that wait for the last message of their peers.
    ///
    /// At most `max` (at least one) wait; one more makes the oldest
    /// [`Unreachable`](Event::Unreachable).
    pub fn limit_answered(&mut self, listener: ListenerId, max: usize) {
        self.listeners.limit_answered(listener, max);
    }

    /// Sets the largest path MTU that requests may ask for, after a change of the port's.
    pub fn set_path_mtu_max(&mut self, path_mtu_max: PathMtu) {
        self.config.path_mtu_max = path_mtu_max;
    }

    /// Ends a listener; returns the connections and resolutions that end with it.
    ///
    /// Requests that the program has not [taken](Self::taken) are refused; those that it has taken
    /// go on.
    #[allow(clippy::disallowed_methods, reason = "what is found is sorted")]
    pub fn close(&mut self, now: Time, listener: ListenerId) -> (Vec<ConnectionId>, Vec<SidrId>) {
        let connections = self.connections.iter();
        let mut refused: Vec<_> = connections
            .filter(|(_, c)| c.stand.is_some_and(|stand| stand.is_pending_at(listener)))
            .map(|(&id, _)| ConnectionId(id))
            .collect();
        let exchanges = self.exchanges.iter();
        let mut unanswered: Vec<_> = exchanges
            .filter(|(_, e)| e.stand.is_some_and(|stand| stand.is_pending_at(listener)))
            .map(|(&id, _)| SidrId(id))
            .collect();
        refused.sort_unstable();
        unanswered.sort_unstable();
        for &id in &refused {
            self.destroy(now, id);
        }
        for &id in &unanswered {
            self.destroy_sidr(now, id);
        }
        self.listeners.remove(listener);
        (refused, unanswered)
    }

    /// Handles a datagram that arrived at queue pair 1.
    ///
    /// `route` has its source (`remote`) and destination (`local`), `source_port` its UDP source
    /// port. A peer that once sent from port 4791, as airdma does, is accepted from no other;
    /// kernels and NICs spread their datagrams over other ports (RFC 7605: 49,152 and above), and
    /// may use any.
    pub fn handle_mad(&mut self, now: Time, route: Route, source_port: u16, mad: &[u8]) {
        let Ok(CmMad {
            transaction,
            message,
        }) = CmMad::parse(mad)
        else {
            return self.count(Counter::DropMalformed);
        };
        let known = self.receiver_of(route, &message);
        let connection = known.and_then(|id| self.connections.get(&id));
        let connection = connection.filter(|c| c.route.same_ends(&route));
        if connection.is_some_and(|c| c.is_at_roce_port && source_port != ROCE_PORT) {
            return self.count(Counter::DropWrongPeer);
        }
        let from = From {
            route,
            transaction,
            is_at_roce_port: source_port == ROCE_PORT,
        };
        self.handle_message(now, from, message);
    }

    /// The connection that a message refers to.
    fn receiver_of(&self, route: Route, message: &CmMessage) -> Option<u32> {
        let asked = |id: u32| self.by_remote_id.get(&(route.remote, id)).copied();
        match message {
            CmMessage::Req(req) => asked(req.local_id),
            CmMessage::Rej(rej) if rej.remote_id == 0 => asked(rej.local_id),
            CmMessage::Rej(rej) => Some(rej.remote_id),
            CmMessage::Mra(mra) => Some(mra.remote_id),
            CmMessage::Rep(rep) => Some(rep.remote_id),
            CmMessage::Rtu(rtu) => Some(rtu.remote_id),
            CmMessage::Dreq(dreq) => Some(dreq.remote_id),
            CmMessage::Drep(drep) => Some(drep.remote_id),
            CmMessage::SidrReq(_) | CmMessage::SidrRep(_) => None,
        }
    }

    fn handle_message(&mut self, now: Time, from: From, message: CmMessage) {
        let (route, transaction) = (from.route, from.transaction);
        match message {
            CmMessage::Req(req) => self.handle_req(from, &req),
            CmMessage::Mra(mra) => self.handle_mra(now, route, transaction, &mra),
            CmMessage::Rej(rej) => self.handle_rej(now, route, transaction, &rej),
            CmMessage::Rep(rep) => self.handle_rep(now, from, &rep),
            CmMessage::Rtu(rtu) => self.handle_rtu(now, route, transaction, &rtu),
            CmMessage::Dreq(dreq) => self.handle_dreq(now, route, transaction, &dreq),
            CmMessage::Drep(drep) => self.handle_drep(now, route, &drep),
            CmMessage::SidrReq(request) => {
                self.handle_sidr_req(now, route, transaction, &request);
            }
            CmMessage::SidrRep(response) => self.handle_sidr_rep(route, transaction, &response),
        }
    }

    /// Handles every timer that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(due, id)) = self.timers.first() {
            if due > now {
                break;
            }
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.timer = None;
                self.connection_timeout(now, id);
            } else if let Some(exchange) = self.exchanges.get_mut(&id) {
                exchange.timer = None;
                self.exchange_timeout(now, id);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None` while no timer runs.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|&(due, _)| due)
    }

    /// The next datagram to send, to queue pair 1 at the other end of the route.
    pub fn poll_transmit(&mut self) -> Option<(Route, [u8; MAD_LEN])> {
        let (route, mad) = self.transmits.pop_front()?;
        Some((route, *mad))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Value of a counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Connections in any state, ended ones that are still kept included.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Resolutions in any state, ended ones that are still kept included.
    pub fn resolutions(&self) -> usize {
        self.exchanges.len()
    }

    /// Whether only listeners are left: no connection, no timer, nothing to poll.
    pub fn is_idle(&self) -> bool {
        self.half_open_line.is_empty()
            && self.proven.is_empty()
            && self.awaited.is_empty()
            && self.connections.is_empty()
            && self.exchanges.is_empty()
            && self.by_remote_id.is_empty()
            && self.by_remote_qpn.is_empty()
            && self.by_request_id.is_empty()
            && self.timers.is_empty()
            && self.resting.is_empty()
            && self.half_open == 0
            && self.transmits.is_empty()
            && self.events.is_empty()
    }
}

/// Helpers that the files of the message types share.
impl Manager {
    pub(crate) fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    pub(crate) fn transmit(&mut self, route: Route, transaction: u64, message: CmMessage) {
        let mad = CmMad {
            transaction,
            message,
        };
        self.transmit_bytes(route, Box::new(mad.emit()));
    }

    pub(crate) fn transmit_bytes(&mut self, route: Route, mad: Box<[u8; MAD_LEN]>) {
        if self.transmits.len() < self.config.transmits_max {
            self.transmits.push_back((route, mad));
        } else {
            self.count(Counter::DropTransmitFull);
        }
    }

    /// A communication id that is not in use. Ids repeat after 2^32, or 2^24 with a tag.
    pub(crate) fn new_id(&mut self) -> u32 {
        loop {
            let id = self.ids.take();
            let taken = self.connections.contains_key(&id) || self.exchanges.contains_key(&id);
            if id != 0 && !taken {
                return id;
            }
        }
    }

    pub(crate) fn new_transaction(&self, id: u32) -> u64 {
        self.ids.transaction(id)
    }

    /// Whether a connection is passive and not established: its request may be forged.
    pub(crate) fn is_half_open(&self, id: u32) -> bool {
        let connection = self.connections.get(&id);
        connection.is_some_and(|connection| connection.state.is_half_open())
    }

    pub(crate) fn insert(&mut self, id: u32, connection: Connection) {
        self.half_open += usize::from(connection.state.is_half_open());
        self.connections.insert(id, connection);
    }

    /// Moves a connection to a state, and releases what its old state held.
    pub(crate) fn enter(&mut self, id: u32, state: State) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut connection.state, state);
        let (remote, remote_qpn) = (connection.route.remote, connection.remote_qpn);
        let local_qpn = connection.local_qpn;
        let (stand, listener) = (connection.stand.take(), connection.listener);
        if let Some(stand) = stand {
            self.step_out(stand);
        }
        self.half_open -= usize::from(before.is_half_open());
        self.half_open += usize::from(state.is_half_open());
        self.note_open(remote, before.is_open(), state.is_open());
        forget(&mut self.awaited, local_qpn, id);
        if state == State::RepSent {
            self.awaited.insert(local_qpn, id);
        }
        if state.is_resting() {
            forget(&mut self.by_remote_qpn, (remote, remote_qpn), id);
        }
        if let (State::RepSent, Some(listener)) = (state, listener) {
            let stand = self.stand(id, listener, remote, true);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.stand = Some(stand);
            }
        }
    }

    /// Updates the number of connections that prove a peer's address.
    fn note_open(&mut self, remote: Gid, before: bool, now: bool) {
        if now && !before {
            *self.proven.entry(remote).or_default() += 1;
        }
        if before
            && !now
            && let Some(count) = self.proven.get_mut(&remote)
        {
            *count -= 1;
            if *count == 0 {
                self.proven.remove(&remote);
            }
        }
    }

    /// Removes every trace of a connection, except events that the program has not polled.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Connection> {
        self.set_timer(id, None);
        let connection = self.connections.remove(&id)?;
        self.half_open -= usize::from(connection.state.is_half_open());
        let remote = connection.route.remote;
        self.note_open(remote, connection.state.is_open(), false);
        forget(&mut self.awaited, connection.local_qpn, id);
        if let Some(stand) = connection.stand {
            self.step_out(stand);
        }
        forget(&mut self.by_remote_id, (remote, connection.remote_id), id);
        forget(&mut self.by_remote_qpn, (remote, connection.remote_qpn), id);
        if let Some(rest) = connection.rest {
            self.resting.remove(&rest);
        }
        Some(connection)
    }

    pub(crate) fn set_timer(&mut self, id: u32, due: Option<Time>) {
        let timer = match (self.connections.get_mut(&id), self.exchanges.get_mut(&id)) {
            (Some(connection), _) => &mut connection.timer,
            (None, Some(exchange)) => &mut exchange.timer,
            (None, None) => return,
        };
        if let Some(old) = timer.take() {
            self.timers.remove(&(old, id));
        }
        *timer = due;
        if let Some(due) = due {
            self.timers.insert((due, id));
        }
    }

    /// Keeps one more ended connection or exchange, evicting the oldest if there are too many.
    pub(crate) fn rest(&mut self, id: u32) -> u64 {
        self.rests += 1;
        self.resting.insert(self.rests, id);
        if self.resting.len() > self.config.resting_max.max(1)
            && let Some((_, oldest)) = self.resting.pop_first()
        {
            self.count(Counter::RestingEvicted);
            self.rest_ends(oldest);
        }
        self.rests
    }

    /// Removes an ended connection or exchange whose time is over.
    pub(crate) fn rest_ends(&mut self, id: u32) {
        if let Some(connection) = self.remove(id) {
            if connection.known && connection.state == State::Timewait {
                let id = ConnectionId(id);
                self.events.push_back(Event::TimewaitExit { id });
            }
        } else {
            self.remove_exchange(id);
        }
    }

    /// Drops the events of a connection that the program has not polled; true if its request was
    /// among them.
    pub(crate) fn retract_events(&mut self, id: u32) -> bool {
        let mut unseen = false;
        self.events.retain(|event| {
            let about = match event {
                Event::ConnectRequest(request) => {
                    unseen |= request.id.0 == id;
                    request.id.0
                }
                Event::SidrRequest(request) => {
                    unseen |= request.id.0 == id;
                    request.id.0
                }
                Event::ConnectResponse(response) => response.id.0,
                Event::Established { id, .. }
                | Event::Rejected { id, .. }
                | Event::Unreachable { id }
                | Event::Disconnected { id, .. }
                | Event::TimewaitExit { id } => id.0,
                Event::SidrResponse(response) => response.id.0,
                Event::SidrUnreachable { id } | Event::SidrWithdrawn { id } => id.0,
            };
            about != id
        });
        unseen
    }

    /// Reports that a connection was refused; withdraws a request that the program has not seen.
    pub(crate) fn tell_rejected(&mut self, id: u32, reason: RejReason, private_data: Vec<u8>) {
        if self.retract_events(id) {
            return;
        }
        let id = ConnectionId(id);
        self.events.push_back(Event::Rejected {
            id,
            reason,
            private_data,
        });
    }
}

pub(crate) fn forget<K: Eq + std::hash::Hash>(map: &mut HashMap<K, u32>, key: K, id: u32) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inverse of [`mix`].
    fn unmix(mut z: u64) -> u64 {
        let unshift = |z: u64, by: u32| (1..=63 / by).fold(z, |all, n| all ^ z >> (n * by));
        z = unshift(z, 31).wrapping_mul(0x3196_42b2_d24d_8ec3);
        z = unshift(z, 27).wrapping_mul(0x96de_1b17_3f11_9089);
        unshift(z, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
    }

    /// A peer that has seen one transaction and one id tries all 2^32 keys; the test tries the last
    /// 2^16.
    #[test]
    fn a_transaction_does_not_tell_the_key_of_the_ids() {
        let seed = 0x0123_4567_89ab_cdef;
        assert_eq!(unmix(mix(seed)), seed);
        let mut manager = Manager::new(Config::new(seed, 1));
        let (high, id) = (manager.new_transaction(0), manager.new_id());
        let told = mix(mix(seed)) & 0xffff_0000;
        let found = (0..1 << 16).find(|last| {
            let random = unmix(high | told | last);
            let key = [random, mix(!unmix(random))];
            Ids::new(key, None).take() == id
        });
        assert_eq!(found, None);
    }
}
