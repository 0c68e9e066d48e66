//! The sending side: which packets have a ring, and how a ring is asked for.
//!
//! A route is a local address, the peer's address and the range of queue pair numbers by which one
//! process at that address is selected. It begins with a look at the names of the host's processes
//! ([`super::meeting`]). If one has the address, it is asked over its socket, and a probe goes over
//! the network with the first packets. What answers with the nonce of the probe is where packets of
//! this route arrive, since nothing else got it.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use airdma_shm::{Block, PACKET_RING_BYTES, PacketProducer, PacketTag};
use airdma_wire::local_probe::LocalProbe;
use airdma_wire::{Gid, Neighbour, Qpn};

use super::bell::{is_bell, ring_eventfd};
use super::meeting::Meeting;
use super::messages::{Grant, ROOM, Request, Secret};
use super::source::Source;
use super::unix::{self, Message};
use crate::Destination;

/// Routes that are known at once. Beyond it those without a ring are forgotten.
const ROUTES_MAX: usize = 4096;
/// Rings that this process may write to at once.
const OUTLETS_MAX: usize = 128;
/// Connections to processes that were asked and have not answered.
const ASKED_MAX: usize = 128;
/// Time for the answer to a request.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);
/// Shortest time between two searches for answers.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);
/// A route without a ring is tried again after this time, then twice as long each time.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Time between two checks whether the consumer of a ring is gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// What packets of one route have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    source_index: u8,
    address: Neighbour,
    range: u8,
}

enum State {
    /// Packets use the network, until it is tried again.
    Network { retry_at: Duration },
    /// A process was asked, and packets use the network meanwhile.
    Asked(Asked),
    /// Packets go into the ring.
    Open(Outlet),
}

struct Asked {
    at: Duration,
    nonce: Secret,
    /// Source and destination that the answer must name.
    ends: (Gid, Gid),
    connections: Vec<OwnedFd>,
}

struct Outlet {
    producer: PacketProducer,
    bell: OwnedFd,
    /// Closed when the consumer gives the ring up, or ends.
    connection: OwnedFd,
    checked: Duration,
    staged: bool,
}

struct Route {
    key: Key,
    state: State,
    /// Time until the next try, should this one fail.
    patience: Duration,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It leaves by the network.
    Network,
    /// It is in a ring.
    Taken,
    /// The ring is full.
    Lost,
}

/// A probe that must leave by the network.
pub(super) struct ProbeToSend {
    pub(super) probe: LocalProbe,
    pub(super) to: Destination,
}

/// The routes of a port.
pub(super) struct Outlets {
    routes: Vec<Route>,
    by_key: HashMap<Key, usize>,
    /// Routes that wait for an answer.
    asked: usize,
    open: usize,
    looked: Duration,
    pub(super) probes: Vec<ProbeToSend>,
    /// Source of tokens and nonces.
    source: Source,
}

impl Outlets {
    pub(super) fn new(source: Source) -> Self {
        Outlets {
            routes: Vec::new(),
            by_key: HashMap::new(),
            asked: 0,
            open: 0,
            looked: Duration::ZERO,
            probes: Vec::new(),
            source,
        }
    }

    /// The route of packets to a destination and a range of queue pair numbers; tries to open it if
    /// it is new. `local` is the address that they leave from.
    pub(super) fn route(
        &mut self,
        to: &Destination,
        (range, number): (u8, Qpn),
        local: Neighbour,
        meeting: &Meeting,
        now: Duration,
    ) -> Option<usize> {
        let key = Key {
            source_index: to.source_index,
            address: to.address,
            range,
        };
        let index = match self.by_key.get(&key) {
            Some(&index) => index,
            None => self.add(key, now)?,
        };
        self.refresh(index, now);
        let route = &self.routes[index];
        match route.state {
            State::Network { retry_at } if now >= retry_at => {
                self.ask(index, *to, number, local, meeting, now);
            }
            State::Network { .. } | State::Asked(_) | State::Open(_) => {}
        }
        Some(index)
    }

    fn add(&mut self, key: Key, now: Duration) -> Option<usize> {
        if self.routes.len() >= ROUTES_MAX {
            return None;
        }
        self.routes.push(Route {
            key,
            state: State::Network { retry_at: now },
            patience: RETRY_MIN,
        });
        let index = self.routes.len() - 1;
        self.by_key.insert(key, index);
        Some(index)
    }

    /// Routes that are remembered.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.routes.len()
    }

    /// Keeps the routes for which `keep` returns true.
    fn forget(&mut self, keep: impl Fn(&Route) -> bool) {
        self.routes.retain(keep);
        let keys = self.routes.iter().map(|route| route.key);
        self.by_key = keys.zip(0..).collect();
        let count = |is: fn(&State) -> bool| {
            let states = self.routes.iter().map(|route| &route.state);
            states.filter(|state| is(state)).count()
        };
        self.asked = count(|state| matches!(state, State::Asked(_)));
        self.open = count(|state| matches!(state, State::Open(_)));
    }

    /// Forgets the routes from a local address.
    pub(super) fn forget_from(&mut self, source_index: u8) {
        self.forget(|route| route.key.source_index != source_index);
    }

    /// Looks whether the consumer of an open route is gone.
    #[inline]
    fn refresh(&mut self, index: usize, now: Duration) {
        if let State::Open(outlet) = &mut self.routes[index].state
            && now.saturating_sub(outlet.checked) >= CHECK_INTERVAL
        {
            outlet.checked = now;
            if unix::is_closed(&outlet.connection) || outlet.producer.check().is_err() {
                self.close(index, now);
            }
        }
    }

    /// Packets of the route use the network from now on.
    fn close(&mut self, index: usize, now: Duration) {
        let route = &mut self.routes[index];
        match route.state {
            State::Network { .. } => {}
            State::Asked(_) => self.asked -= 1,
            State::Open(_) => {
                self.open -= 1;
                route.patience = RETRY_MIN;
            }
        }
        let retry_at = now + route.patience;
        route.patience = (route.patience * 2).min(RETRY_MAX);
        route.state = State::Network { retry_at };
    }

    fn ask(
        &mut self,
        index: usize,
        to: Destination,
        number: Qpn,
        local: Neighbour,
        meeting: &Meeting,
        now: Duration,
    ) {
        let connections = if self.open + self.asked < OUTLETS_MAX {
            meeting.candidates(to.address, ASKED_MAX.saturating_sub(self.waiting()))
        } else {
            Vec::new()
        };
        let (Ok(token), Ok(nonce)) = (self.source.secret(), self.source.secret()) else {
            return self.close(index, now);
        };
        let request = Request { token }.to_bytes();
        let asks = |connection: &OwnedFd| unix::send(connection, &request, &[]).is_ok();
        let connections: Vec<_> = connections.into_iter().filter(asks).collect();
        if connections.is_empty() {
            return self.close(index, now);
        }
        self.asked += 1;
        self.routes[index].state = State::Asked(Asked {
            at: now,
            nonce,
            ends: (local.into(), to.address.into()),
            connections,
        });
        let probe = LocalProbe {
            to: number,
            token,
            nonce,
        };
        self.probes.push(ProbeToSend { probe, to });
    }

    /// Connections to processes that have not answered yet.
    fn waiting(&self) -> usize {
        let connections = |route: &Route| match &route.state {
            State::Asked(asked) => asked.connections.len(),
            State::Network { .. } | State::Open(_) => 0,
        };
        match self.asked {
            0 => 0,
            _ => self.routes.iter().map(connections).sum(),
        }
    }

    /// Prepares for the packets of a batch: takes the answers that have come, and makes room.
    #[inline]
    pub(super) fn prepare(&mut self, now: Duration) {
        if self.routes.len() >= ROUTES_MAX {
            self.forget(|route| !matches!(route.state, State::Network { .. }));
        }
        if self.asked > 0 && now.saturating_sub(self.looked) >= LOOK_INTERVAL {
            self.looked = now;
            for index in 0..self.routes.len() {
                self.take_answer(index, now);
            }
        }
    }

    fn take_answer(&mut self, index: usize, now: Duration) {
        let route = &mut self.routes[index];
        let State::Asked(asked) = &mut route.state else {
            return;
        };
        let mut answer = None;
        asked.connections.retain(|connection| {
            let mut bytes = [0; ROOM];
            match unix::receive(connection, &mut bytes) {
                Message::None => true,
                Message::Closed => false,
                Message::Whole(len, descriptors) => {
                    let grant = Grant::parse(&bytes[..len]);
                    let proven = |grant: &Grant| {
                        grant.nonce == asked.nonce
                            && (grant.source, grant.destination) == asked.ends
                    };
                    if let Some(grant) = grant.filter(proven) {
                        answer = Some((grant, descriptors, connection.as_raw_fd()));
                    }
                    answer.is_some()
                }
            }
        });
        let is_late = now.saturating_sub(asked.at) >= ANSWER_TIME_MAX;
        let Some((grant, descriptors, fd)) = answer else {
            if is_late || asked.connections.is_empty() {
                self.close(index, now);
            }
            return;
        };
        let mut connections = std::mem::take(&mut asked.connections).into_iter();
        let connection = connections.find(|connection| connection.as_raw_fd() == fd);
        let outlet = connection.and_then(|it| Outlet::attach(&grant, descriptors, it, now));
        match outlet {
            None => self.close(index, now),
            Some(outlet) => {
                route.state = State::Open(outlet);
                self.asked -= 1;
                self.open += 1;
            }
        }
    }

    /// Whether the route has a ring.
    pub(super) fn is_open(&self, index: usize) -> bool {
        matches!(self.routes[index].state, State::Open(_))
    }

    /// Puts a packet into the ring of a route, if there is one.
    #[inline]
    pub(super) fn push(&mut self, index: usize, tag: PacketTag, packet: &[u8]) -> Fate {
        let State::Open(outlet) = &mut self.routes[index].state else {
            return Fate::Network;
        };
        outlet.staged = true;
        if outlet.producer.push(tag, packet) {
            Fate::Taken
        } else {
            Fate::Lost
        }
    }

    /// Hands what was pushed to the consumers of these routes.
    pub(super) fn publish(&mut self, routes: &[usize]) {
        for &index in routes {
            if let State::Open(outlet) = &mut self.routes[index].state
                && std::mem::take(&mut outlet.staged)
                && outlet.producer.publish()
            {
                ring_eventfd(outlet.bell.as_fd());
            }
        }
    }

    /// See [`super::LocalPort::damage_rings`].
    pub(super) fn damage_rings(&mut self, by: u32) {
        for route in &mut self.routes {
            if let State::Open(outlet) = &mut route.state {
                outlet.producer.damage(by);
            }
        }
    }

    /// Descriptors by which consumers know that this process lives.
    pub(super) fn lifelines(&self, out: &mut Vec<RawFd>) {
        for route in &self.routes {
            match &route.state {
                State::Network { .. } => {}
                State::Asked(asked) => out.extend(asked.connections.iter().map(AsRawFd::as_raw_fd)),
                State::Open(outlet) => out.push(outlet.connection.as_raw_fd()),
            }
        }
    }
}

impl Outlet {
    fn attach(
        grant: &Grant,
        descriptors: Vec<OwnedFd>,
        connection: OwnedFd,
        now: Duration,
    ) -> Option<Self> {
        let [memory, bell] = <[OwnedFd; 2]>::try_from(descriptors).ok()?;
        if !is_bell(bell.as_fd()) {
            return None;
        }
        let block = Block::map(memory, grant.offset, PACKET_RING_BYTES).ok()?;
        Some(Outlet {
            producer: PacketProducer::attach(Arc::new(block)).ok()?,
            bell,
            connection,
            checked: now,
            staged: false,
        })
    }
}
