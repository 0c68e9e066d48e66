//! Requests that have no connection yet, and which of them is evicted when there are too many.
//!
//! A request costs its sender one datagram, and any host can write any address into it. So a full
//! table refuses no request: it evicts the oldest one, because an honest peer answers within a
//! round trip and a forged address never does. While both kinds compete, half of the places are for
//! peers that have a connection already, and half for strangers. Either kind can be forged: which
//! hosts have connections is no secret, and any host may open one.

use std::collections::BTreeSet;

use airdma_wire::Gid;

use crate::connection::State;
use crate::event::Event;
use crate::{ConnectionId, Counter, ListenerId, Manager, SidrId};
use airdma_wire::cm::RejReason;

/// A place in a [`Line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    age: u64,
    id: u32,
    proven: bool,
}

/// Requests in the order of eviction: the oldest of those that have more than their half of the
/// places.
#[derive(Debug, Default)]
pub(crate) struct Line {
    strangers: BTreeSet<Turn>,
    proven: BTreeSet<Turn>,
}

impl Line {
    pub(crate) fn len(&self) -> usize {
        self.strangers.len() + self.proven.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.strangers.is_empty() && self.proven.is_empty()
    }

    pub(crate) fn add(&mut self, turn: Turn) {
        self.of(turn).insert(turn);
    }

    pub(crate) fn remove(&mut self, turn: Turn) {
        self.of(turn).remove(&turn);
    }

    fn of(&mut self, turn: Turn) -> &mut BTreeSet<Turn> {
        if turn.proven {
            &mut self.proven
        } else {
            &mut self.strangers
        }
    }

    /// The next request to evict.
    fn first(&self) -> Option<Turn> {
        let more = if self.proven.len() > self.strangers.len() {
            &self.proven
        } else {
            &self.strangers
        };
        more.first().copied()
    }
}

/// Places of a request in the lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    pub(crate) turn: Turn,
    listener: ListenerId,
    source: Gid,
    /// Whether the reply was sent: the request no longer counts against the backlog.
    answered: bool,
}

impl Stand {
    /// Whether the request waits at that listener and the program has not taken it.
    pub(crate) fn is_pending_at(&self, listener: ListenerId) -> bool {
        self.listener == listener && !self.answered
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.answered
    }
}

/// A request that the caller [has polled](Manager::poll_event), and that gives way to a younger
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// A request for a connection.
    Connection(ConnectionId),
    /// A request for a resolution.
    Resolution(SidrId),
}

impl Manager {
    /// Makes room for one more request of `source` at a listener, evicting another if necessary.
    pub(crate) fn make_room(&mut self, listener: ListenerId, source: Gid) {
        let own = self.listeners.own_line(listener, source);
        if let Some(oldest) = own.and_then(|(line, max)| line.first().filter(|_| line.len() >= max))
        {
            self.evict(oldest.id);
        }
        let pending = self.listeners.pending_line(listener);
        if let Some(oldest) =
            pending.and_then(|(line, max)| line.first().filter(|_| line.len() >= max))
        {
            self.evict(oldest.id);
        }
    }

    /// Makes room for one more half-open connection.
    ///
    /// # Errors
    /// The program has taken as many requests as the limit allows.
    pub(crate) fn make_half_open_room(
        &mut self,
        listener: ListenerId,
        source: Gid,
    ) -> Result<(), Counter> {
        self.make_room(listener, source);
        while self.is_full() {
            let oldest = self.half_open_line.first();
            self.evict(oldest.ok_or(Counter::DropHalfOpenFull)?.id);
        }
        Ok(())
    }

    /// The request that is evicted just now does not count.
    fn is_full(&self) -> bool {
        let leaves = usize::from(matches!(self.evicted, Some(Evicted::Connection(_))));
        self.half_open >= self.config.half_open_max + leaves
            || self.connections.len() >= self.config.connections_max + leaves
    }

    /// Whether a connection proves that the peer at this address is reachable.
    pub(crate) fn is_proven(&self, source: Gid) -> bool {
        self.proven.contains_key(&source)
    }

    /// Puts a request in line: it waits for the program (`answered` is false) or for the peer.
    pub(crate) fn stand(
        &mut self,
        id: u32,
        listener: ListenerId,
        source: Gid,
        answered: bool,
    ) -> Stand {
        self.turns += 1;
        let turn = Turn {
            proven: self.is_proven(source),
            age: self.turns,
            id,
        };
        let stand = Stand {
            turn,
            listener,
            source,
            answered,
        };
        self.line_up(stand);
        stand
    }

    fn line_up(&mut self, stand: Stand) {
        let Stand {
            turn,
            listener,
            source,
            answered,
        } = stand;
        self.listeners.line_up(listener, source, turn, answered);
        if self.connections.contains_key(&turn.id) {
            self.half_open_line.add(turn);
        }
    }

    /// Takes a request out of its lines.
    pub(crate) fn step_out(&mut self, stand: Stand) {
        let Stand {
            turn,
            listener,
            source,
            answered,
        } = stand;
        self.listeners.step_out(listener, source, turn, answered);
        self.half_open_line.remove(turn);
    }

    /// Notes that the peer of a half-open connection has proven its address.
    pub(crate) fn prove(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.proven = true;
        if let Some(stand) = connection.stand {
            self.step_out(stand);
            let turn = Turn {
                proven: true,
                ..stand.turn
            };
            let stand = Stand { turn, ..stand };
            self.line_up(stand);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.stand = Some(stand);
            }
        }
    }

    /// Evicts the oldest answered request of a listener that has too many.
    pub(crate) fn keep_answered_within(&mut self, listener: ListenerId) {
        if let Some((line, max)) = self.listeners.answered_line(listener)
            && line.len() > max
            && let Some(oldest) = line.first()
        {
            self.evict(oldest.id);
        }
    }

    /// Evicts a half-open connection, or a resolution that the program has not taken.
    ///
    /// The peer is not notified, as it may not exist; an honest one repeats its request, or is
    /// refused at its next message.
    pub(crate) fn evict(&mut self, id: u32) {
        self.count(Counter::HalfOpenEvicted);
        let Some(connection) = self.connections.get(&id) else {
            if self.retract_events(id) || self.taken_sidr(SidrId(id)).is_err() {
                self.remove_exchange(id);
            } else {
                self.let_choose(Evicted::Resolution(SidrId(id)));
            }
            return;
        };
        let (state, known) = (connection.state, connection.known);
        let id = ConnectionId(id);
        if state == State::ReqReceived && known && !self.retract_events(id.0) {
            self.taken(id);
            return self.let_choose(Evicted::Connection(id));
        }
        self.remove(id.0);
        if state == State::RepSent && known {
            self.events.push_back(Event::Unreachable { id });
        }
    }

    /// Whether the program has fetched a request that was polled is known to the caller alone.
    fn let_choose(&mut self, evicted: Evicted) {
        if let Some(last) = self.evicted.replace(evicted) {
            self.withdraw(last);
        }
    }

    /// The request that the last message has evicted, if it was polled before.
    ///
    /// It counts as [taken](Self::taken), and can be answered. If the program has not fetched it,
    /// [withdraw](Self::withdraw) it. Call this after each message: without that the next eviction
    /// withdraws it.
    pub fn poll_evicted(&mut self) -> Option<Evicted> {
        self.evicted.take()
    }

    /// Forgets a request that was evicted. [`Event::Rejected`] or [`Event::SidrWithdrawn`] follows,
    /// unless the program has answered or destroyed it.
    pub fn withdraw(&mut self, evicted: Evicted) {
        match evicted {
            Evicted::Connection(id) => {
                if self.in_state(id, &[State::ReqReceived]).is_ok() {
                    self.remove(id.0);
                    self.tell_rejected(id.0, RejReason::TIMEOUT, Vec::new());
                }
            }
            Evicted::Resolution(id) => {
                if self.taken_sidr(id).is_ok() {
                    self.remove_exchange(id.0);
                    self.events.push_back(Event::SidrWithdrawn { id });
                }
            }
        }
    }
}
