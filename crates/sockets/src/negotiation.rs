//! From an RDMA connection to a lane: proof, and the bytes from which on it carries the stream.
//!
//! | end that accepted | | end that connected |
//! |---|---|---|
//! | `Hello`: element | -> | |
//! | | <- | `Hello`: element and confirmation |
//! | `Confirm`: confirmation | -> | |
//! | | <- | `Ready`: byte from which on it writes to the lane; its writes wait |
//! | `Ready`: its byte; its writes go to the lane | -> | |
//! | | <- | `Go`, then what waited |
//! | `Drained`, once its program has read what the kernel had | <-> | the same |
//! | the token, through the kernel, behind the other's `Drained` | <-> | the same |
//!
//! An end confirms, or sends `Ready`, once no call of its program is in the kernel any more, and a
//! connection that cannot switch is refused before that. The end that connected sends nothing by
//! the lane before it has the peer's `Ready`: until then the connection can stay with the kernel.
//! Neither end puts a token into the kernel's stream before the other's program has read all of
//! that: a token has no byte of the program before it.

use std::net::SocketAddr;
use std::time::Duration;

use airdma::{Device, Endpoint};

use crate::agent::Agent;
use crate::counters::{self, Counter};
use crate::lane::Lane;
use crate::message::Kind;
use crate::proof::{CONFIRMATION_BYTES, ELEMENT_BYTES, Secret, confirms};
use crate::socket::{Socket, Stage};
use crate::{hand_back, liveness, tcp};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long calls in the kernel may take to end, and how often they are looked at.
const QUIET_TRIES: u32 = 2000;
const QUIET_PAUSE: Duration = Duration::from_millis(1);

/// A connection that may get a lane.
pub struct Connection {
    pub agent: &'static Agent,
    pub socket: &'static Socket,
    pub generation: u64,
    pub own: SocketAddr,
    pub peer: SocketAddr,
    pub is_active: bool,
}

/// What became of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lane is open.
    Lane,
    /// The connection stays with the kernel.
    Refused,
    /// So it does for now: a call of one of the programs does not end.
    Busy,
    /// The peer does not hold the connection.
    Forged,
}

impl Connection {
    /// Negotiates a lane.
    pub async fn negotiate(&self, device: &Device, endpoint: Endpoint) -> Outcome {
        let socket = self.socket;
        let Ok(mut lane) = Lane::new(device, endpoint, socket.waker()) else {
            return Outcome::Refused;
        };
        let proof = self.agent.within(ANSWER, self.prove(&mut lane)).await;
        let outcome = match proof {
            Some(Ok(())) => self.switch(lane).await,
            Some(Err(outcome)) => outcome,
            None => Outcome::Refused,
        };
        if outcome == Outcome::Forged {
            counters::add(device, Counter::Forged, 1);
        }
        if outcome == Outcome::Lane {
            counters::add(device, Counter::Lanes, 1);
            liveness::watch();
        } else if socket.generation() == self.generation {
            let next = if outcome == Outcome::Busy {
                Stage::Candidate
            } else {
                Stage::Kernel
            };
            socket.step(Stage::Negotiating, next);
        }
        outcome
    }

    /// Proves that both ends hold the connection.
    async fn prove(&self, lane: &mut Lane) -> Result<(), Outcome> {
        let sequence = if self.is_active {
            self.socket.sequence()
        } else {
            self.peer_sequence()
        };
        let sequence = sequence.ok_or(Outcome::Refused)?;
        let (active, passive) = if self.is_active {
            (self.own, self.peer)
        } else {
            (self.peer, self.own)
        };
        let secret = Secret {
            active,
            passive,
            sequence,
        };
        let (exchange, element) = secret.begin(self.is_active);
        if !self.is_active {
            lane.tell(Kind::Hello, 0, &element);
        }
        let hello = answer(lane, Kind::Hello).await?;
        let theirs = hello.get(..ELEMENT_BYTES).ok_or(Outcome::Refused)?;
        let confirmations = exchange.finish(theirs).ok_or(Outcome::Refused)?;
        if self.is_active {
            let both = [&element[..], &confirmations.active].concat();
            lane.tell(Kind::Hello, 0, &both);
            let confirmation = answer(lane, Kind::Confirm).await?;
            check(&confirmations.passive, &confirmation)
        } else {
            let confirmation = &hello[ELEMENT_BYTES..];
            check(&confirmations.active, confirmation)?;
            self.hold_calls().await?;
            lane.tell(Kind::Confirm, 0, &confirmations.passive);
            Ok(())
        }
    }

    /// The peer's sequence number, which the kernel hands out once.
    fn peer_sequence(&self) -> Option<u32> {
        if let Some(known) = self.socket.sequence() {
            return Some(known);
        }
        let inner = self.socket.lock();
        if self.socket.generation() != self.generation {
            return None;
        }
        let sequence = tcp::peer_initial_sequence(inner.fd)?;
        self.socket.learn_sequence(sequence);
        Some(sequence)
    }

    /// Waits until no call of the program is in the kernel: from then on they hold the lock, and do
    /// not block. The connection can switch then.
    async fn hold_calls(&self) -> Result<(), Outcome> {
        let socket = self.socket;
        if !socket.step(Stage::Candidate, Stage::Negotiating) {
            return Err(Outcome::Refused);
        }
        let mut tries = 0;
        while !socket.is_quiet() {
            tries += 1;
            if tries == QUIET_TRIES {
                return Err(Outcome::Busy);
            }
            if socket.generation() != self.generation {
                return Err(Outcome::Refused);
            }
            self.agent.sleep(QUIET_PAUSE).await;
        }
        let inner = socket.lock();
        let is_it = socket.generation() == self.generation;
        if is_it && tcp::positions(inner.fd, self.is_active).is_some() {
            Ok(())
        } else {
            Err(Outcome::Refused)
        }
    }

    /// Installs the lane, and agrees on the bytes from which on it carries the stream.
    async fn switch(&self, mut lane: Lane) -> Outcome {
        let socket = self.socket;
        let mut peers_from = None;
        if self.is_active {
            if let Err(outcome) = self.hold_calls().await {
                return outcome;
            }
        } else {
            match self.agent.within(ANSWER, lane.negotiated()).await {
                Some(Some((header, _))) if header.kind == Kind::Ready => {
                    peers_from = Some(header.value);
                }
                Some(None) => return Outcome::Busy,
                Some(Some(_)) | None => return Outcome::Refused,
            }
        }
        if !self.install(lane, peers_from) {
            return Outcome::Refused;
        }
        let switched = self.agent.within(ANSWER, self.switched()).await;
        if socket.generation() != self.generation {
            return Outcome::Lane;
        }
        let mut inner = socket.lock();
        let fd = inner.fd;
        let has_heard = |lane: &mut Box<Lane>| lane.heard.ready.is_some();
        if self.is_active && !inner.lane.as_mut().is_some_and(has_heard) {
            // Nothing of either stream has left by the lane.
            let lane = inner.lane.take();
            let unopened = lane.as_ref().map_or(&[][..], |lane| lane.unopened());
            if tcp::send_some(fd, unopened) < unopened.len() {
                // An error, where bytes would be missing.
                tcp::abort(fd);
            }
            // Writes of the program waited.
            tcp::open_write_gate(fd);
            socket.settle(Stage::Kernel);
            drop(inner);
            drop(lane);
            return Outcome::Refused;
        }
        if let Some(lane) = &mut inner.lane
            && (switched.is_none() || lane.failed)
        {
            // Writes of the program wait in a lane that the peer does not read.
            lane.failed = true;
            lane.switched();
            lane.progress(fd);
        }
        Outcome::Lane
    }

    fn install(&self, mut lane: Lane, peers_from: Option<u64>) -> bool {
        let socket = self.socket;
        let mut inner = socket.lock();
        let fd = inner.fd;
        let may_switch = socket.stage() == Stage::Negotiating && !hand_back::is_forking();
        if socket.generation() != self.generation || !may_switch {
            return false;
        }
        let Some(positions) = tcp::positions(fd, self.is_active) else {
            return false;
        };
        if let Some(from) = peers_from {
            let Some(left) = from.checked_sub(positions.read) else {
                return false;
            };
            lane.peer_switches(left);
        }
        lane.tell(Kind::Ready, positions.written, &[]);
        if peers_from.is_some() {
            lane.open();
        }
        lane.progress(fd);
        lane.settle_read_gate(fd);
        inner.lane = Some(Box::new(lane));
        socket.settle(Stage::Lane);
        true
    }

    /// Waits until the peer has switched, or knows that this end has.
    async fn switched(&self) {
        std::future::poll_fn(|context| {
            let socket = self.socket;
            let mut inner = socket.lock();
            if socket.generation() != self.generation {
                return std::task::Poll::Ready(());
            }
            inner.negotiation = Some(context.waker().clone());
            let fd = inner.fd;
            let Some(lane) = &mut inner.lane else {
                return std::task::Poll::Ready(());
            };
            let heard = lane.heard;
            let is_done = if self.is_active {
                heard.ready.is_some_and(|from| {
                    // The peer may have ended its direction since.
                    let read = tcp::read_position(fd);
                    match read.and_then(|read| from.checked_sub(read)) {
                        Some(left) => {
                            lane.peer_switches(left);
                            lane.tell(Kind::Go, 0, &[]);
                            lane.open();
                        }
                        None => lane.failed = true,
                    }
                    true
                })
            } else {
                heard.go
            };
            if !is_done && !lane.failed {
                drop(inner);
                // An event that found the lock held.
                socket.catch_up();
                return std::task::Poll::Pending;
            }
            if !lane.failed {
                lane.switched();
            }
            lane.progress(fd);
            lane.settle_read_gate(fd);
            inner.negotiation = None;
            std::task::Poll::Ready(())
        })
        .await;
        self.socket.catch_up();
    }
}

/// What the peer says next. One that ends the lane instead is busy, or wants none and asks for no
/// other.
async fn answer(lane: &mut Lane, kind: Kind) -> Result<Vec<u8>, Outcome> {
    let (header, payload) = lane.negotiated().await.ok_or(Outcome::Busy)?;
    (header.kind == kind)
        .then_some(payload)
        .ok_or(Outcome::Refused)
}

/// Checks the peer's confirmation.
fn check(wanted: &[u8; CONFIRMATION_BYTES], theirs: &[u8]) -> Result<(), Outcome> {
    let is_confirmed = theirs
        .get(..CONFIRMATION_BYTES)
        .is_some_and(|theirs| confirms(wanted, theirs));
    is_confirmed.then_some(()).ok_or(Outcome::Forged)
}
