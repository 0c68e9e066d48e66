//! Listeners, and requests to them.

use crate::connection::{Connection, Manner};
use crate::hub::{Hub, Member, lock, watch};
use crate::operation::Pending;
use crate::{Blame, Endpoint, Operation, Result};
use airdma_engine::Gid;
use airdma_engine::cm_protocol::{
    ConnectRequest, ConnectionId, ListenerId, PortSpace, RejReason, ServiceId, Takes,
};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

/// Most requests that wait for an accept, a quarter of them from one address; one more evicts the
/// oldest.
const REQUESTS_MAX: usize = 512;
/// Most connections whose RTU has not come, which takes a round trip.
///
/// One more evicts the oldest; each is evicted after two seconds.
const ANSWERED_MAX: usize = 64;

/// A port where peers can connect. Dropping it stops listening; accepted connections stay.
pub struct Listener {
    listening: Arc<Listening>,
}

pub(crate) struct Listening {
    number: u64,
    hub: Arc<Hub>,
    port: u16,
    manner: Manner,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listener: Option<ListenerId>,
    requests: VecDeque<Box<ConnectRequest>>,
    /// Accepted connections, the oldest first: open, or about to be.
    made: VecDeque<Arc<Connection>>,
    waiters: Vec<Waker>,
}

impl Listener {
    pub(crate) fn new(
        hub: &Arc<Hub>,
        port: u16,
        address: Option<IpAddr>,
        manner: Manner,
    ) -> Result<Listener> {
        let listening = Arc::new(Listening {
            number: hub.number(),
            hub: Arc::clone(hub),
            port,
            manner,
            state: Mutex::default(),
        });
        let member = Member::Listening(Arc::downgrade(&listening));
        hub.enter(listening.number, member);
        let listener = hub.engine.cm_listen(
            ServiceId::of_port(PortSpace::TCP, port),
            Takes::RC,
            address.map(Gid::from),
            REQUESTS_MAX,
            &hub.events,
            listening.number,
        )?;
        lock(&listening.state).listener = Some(listener);
        hub.engine.cm_limit_answered(listener, ANSWERED_MAX)?;
        Ok(Listener { listening })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.listening.port
    }

    /// Accepts the next connection. A cancelled accept loses none: the next accept gets it.
    ///
    /// # Errors
    /// [`Blame::System`]: the interface is gone, or there is no room for
    /// another connection, whose peer was refused. A peer cannot cause an error, whether it
    /// disconnects early or requests the impossible.
    pub fn accept(&self) -> Operation<Endpoint> {
        let accepting = Accepting(Arc::clone(&self.listening));
        Operation::new(&self.listening.hub, accepting)
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener(port {})", self.port())
    }
}

impl Listening {
    /// Handles a peer's request.
    pub(crate) fn requested(&self, request: Box<ConnectRequest>) {
        let waiters = {
            let mut state = lock(&self.state);
            state.requests.push_back(request);
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Wakes pending accepts.
    pub(crate) fn wake(&self) {
        let waiters = std::mem::take(&mut lock(&self.state).waiters);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Handles a request that ended before it was answered.
    pub(crate) fn withdrawn(&self, id: ConnectionId) {
        let mut state = lock(&self.state);
        state.requests.retain(|request| request.id != id);
    }

    /// Answers the waiting requests.
    ///
    /// # Errors
    /// [`Blame::System`]. A request that cannot be accepted, or has ended, is
    /// not an error.
    fn answer_all(&self) -> Result<()> {
        loop {
            let Some(request) = lock(&self.state).requests.pop_front() else {
                return Ok(());
            };
            match Connection::answer(&self.hub, &request, self.manner) {
                Ok(connection) => lock(&self.state).made.push_back(connection),
                Err(error) => {
                    let reason = RejReason::NO_RESOURCES;
                    // A peer that misses this gives up on its own.
                    drop(self.hub.engine.cm_reject(request.id, reason, &[]));
                    if error.blame() == Blame::System {
                        return Err(error);
                    }
                }
            }
            // Another request may have been evicted.
            self.hub.take_events();
        }
    }

    /// The next open connection; if there is none, keeps `waker` and returns `None`.
    fn next(&self, waker: Option<&Waker>) -> Option<Result<Endpoint>> {
        if let Err(error) = self.answer_all() {
            return Some(Err(error));
        }
        let mut state = lock(&self.state);
        let mut at = 0;
        while let Some(connection) = state.made.get(at) {
            match connection.opened(waker) {
                Some(Ok(())) => return state.made.remove(at).map(|made| Ok(Endpoint::new(made))),
                // The peer has gone.
                Some(Err(_)) => drop(state.made.remove(at)),
                None => at += 1,
            }
        }
        watch(&mut state.waiters, waker);
        drop(state);
        // After the waker is kept, since the end of the interface wakes it.
        self.hub.loss().map(|loss| Err(loss.into()))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.hub.leave(self.number);
        if let Some(listener) = lock(&self.state).listener {
            self.hub.engine.cm_close(listener);
        }
    }
}

struct Accepting(Arc<Listening>);

impl Pending<Endpoint> for Accepting {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Endpoint>> {
        self.0.hub.take_events();
        let next = self.0.next(waker);
        next.map_or(Poll::Pending, Poll::Ready)
    }
}
