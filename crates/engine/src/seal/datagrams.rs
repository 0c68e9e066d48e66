//! Sealed datagrams: a datagram queue pair agrees on keys with each queue pair that it exchanges
//! datagrams with, as the two ends of a connection do.
//!
//! | | how |
//! |---|---|
//! | the peer of a sealed datagram | its counter has the number of the sender's queue pair in the upper 24 bits; with the source address that names the peer |
//! | the time of the key exchange | before the first datagram to a peer, which waits for it |
//! | a peer that was restarted under its old number | asks with another key, or is asked: again after a second without a packet of it |
//! | a queue pair that sends to itself | has a key that it does not exchange |
//! | replacing a peer | an offer that names a public key which was drawn for that: no earlier offer does |

use super::session::Session;
use super::{OFFER_AGAIN, Seal, UNRELIABLE_WAIT};
use crate::random::Random;
use airdma_port::{Destination, Received};
use airdma_transport::Time;
use airdma_wire::air::KeyOffer;
use airdma_wire::sealed::Sealed;
use airdma_wire::{Neighbour, Qpn};
use std::collections::BTreeMap;
use std::time::Duration;

/// Peers that one queue pair keeps keys for.
pub(crate) const DATAGRAM_PEERS_MAX: usize = 1024;

/// Bits of a counter below the number of the sender's queue pair.
const COUNTER_BITS: u32 = 40;
/// Datagrams after which other keys are agreed on, long before the counter reaches the number.
const RENEW_DATAGRAMS: u64 = 1 << (COUNTER_BITS - 1);
/// Time without a packet after which a peer that is sent to is asked for another key: it may have
/// been restarted.
const RENEW_AFTER: Duration = Duration::from_secs(1);

/// A peer: this host's address that it knows, its own, and its queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) local: Neighbour,
    pub(crate) remote: Neighbour,
    pub(crate) number: Qpn,
}

/// The keys of one datagram queue pair.
pub(crate) struct DatagramSeals {
    own: Qpn,
    peers: BTreeMap<Name, Peer>,
}

struct Peer {
    to: Destination,
    /// Keys of sent datagrams, or their exchange.
    seal: Seal,
    /// Exchange whose keys may replace it.
    next: Option<Box<Seal>>,
    /// Earlier keys: the peer's datagrams may be in flight.
    previous: Option<Box<Session>>,
    heard_at: Time,
    used_at: Time,
}

/// Whether a datagram may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Its peer has agreed on keys, or did not in time: then it is dropped.
    Leaves,
    /// The datagram waits for the keys.
    Waits,
}

impl DatagramSeals {
    pub(crate) fn new(own: Qpn) -> Self {
        DatagramSeals {
            own,
            peers: BTreeMap::new(),
        }
    }

    /// Prepares to send a datagram. Returns the time of the next action for it.
    pub(crate) fn prepare(
        &mut self,
        name: Name,
        to: Destination,
        now: Time,
        random: &mut Random,
    ) -> (Readiness, Option<Time>) {
        let is_itself = self.is_itself(name);
        let first = self.first_counter();
        let peer = self.peer(name, to, now, random);
        peer.to = to;
        peer.used_at = now;
        if peer.seal.has_keys() {
            if !is_itself {
                peer.renew(now, random);
            } else if peer.is_used_up() {
                let before = std::mem::replace(&mut peer.seal, of_itself(first, now, random));
                peer.previous = before.into_session();
            }
            let due = peer.next.as_ref().and_then(|next| next.due(now));
            return (Readiness::Leaves, due);
        }
        if peer.seal.has_given_up(now) {
            peer.seal = Seal::new(now, random);
        }
        peer.seal.ask(now);
        let readiness = if peer.seal.holds_for(now, UNRELIABLE_WAIT) {
            Readiness::Waits
        } else {
            Readiness::Leaves
        };
        (readiness, peer.seal.due(now))
    }

    fn peer(&mut self, name: Name, to: Destination, now: Time, random: &mut Random) -> &mut Peer {
        if self.peers.len() >= DATAGRAM_PEERS_MAX && !self.peers.contains_key(&name) {
            // A peer without keys, or else the one that was not used for longest.
            let all = self.peers.iter();
            let oldest = all.min_by_key(|(_, peer)| (peer.seal.has_keys(), peer.used_at));
            if let Some(oldest) = oldest.map(|(name, _)| *name) {
                self.peers.remove(&oldest);
            }
        }
        let (is_itself, first) = (self.is_itself(name), self.first_counter());
        self.peers.entry(name).or_insert_with(|| Peer {
            to,
            seal: if is_itself {
                of_itself(first, now, random)
            } else {
                Seal::passive(now, random)
            },
            next: None,
            previous: None,
            heard_at: now,
            used_at: now,
        })
    }

    /// Whether that is this queue pair.
    fn is_itself(&self, name: Name) -> bool {
        name.number == self.own && name.remote == name.local
    }

    /// Counter of the first datagram under new keys.
    fn first_counter(&self) -> u64 {
        u64::from(self.own.get()) << COUNTER_BITS
    }

    /// The session that seals datagrams to this peer.
    pub(crate) fn session(&mut self, name: Name) -> Option<&mut Session> {
        self.peers.get_mut(&name)?.seal.session()
    }

    /// Opens a sealed datagram. Returns its length in `out` and the queue pair that sealed it; an
    /// error tells whether there are no keys for it.
    pub(crate) fn open(
        &mut self,
        received: &Received<'_>,
        out: &mut [u8],
        now: Time,
    ) -> Result<(usize, Qpn), Unopened> {
        let packet = received.bytes;
        let sealed = Sealed::parse(packet).ok_or(Unopened::Forged)?;
        let number = Qpn::new((sealed.counter >> COUNTER_BITS) as u32);
        let peer = self.peers.get_mut(&Name {
            local: received.destination,
            remote: received.source,
            number,
        });
        let peer = peer.ok_or(Unopened::NoKeys)?;
        let session = peer.seal.session().ok_or(Unopened::NoKeys)?;
        if let Some(len) = session.open(packet, out) {
            (peer.heard_at, peer.used_at) = (now, now);
            return Ok((len, number));
        }
        let previous = peer.previous.as_mut();
        match previous.and_then(|session| session.open(packet, out)) {
            Some(len) => Ok((len, number)),
            // The peer may have keys that it has not confirmed yet.
            None if peer.next.is_some() => Err(Unopened::NoKeys),
            None => Err(Unopened::Forged),
        }
    }

    /// Takes an offer of a host that knows the secret. Returns whether there are new keys for
    /// sending; `None` if it does not count.
    pub(crate) fn take(
        &mut self,
        (name, to): (Name, Destination),
        offer: &KeyOffer,
        secret: &[u8],
        now: Time,
        random: &mut Random,
    ) -> Option<bool> {
        if self.is_itself(name) || !offer.asks && !self.peers.contains_key(&name) {
            return None;
        }
        let first = self.first_counter();
        self.peer(name, to, now, random)
            .take(offer, secret, first, now, random)
    }

    /// The next offer that must be sent now, and its destination.
    pub(crate) fn next_offer(&mut self, now: Time) -> Option<(Destination, KeyOffer)> {
        let own = self.own;
        self.peers.iter_mut().find_map(|(name, peer)| {
            let next = peer.next.as_deref_mut().into_iter();
            let mut seals = next.chain([&mut peer.seal]);
            let offer = seals.find_map(|seal| seal.next_key_offer(now, own, name.number))?;
            Some((peer.to, offer))
        })
    }

    /// Time of the next action.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let peers = self.peers.values();
        let all = peers.flat_map(|peer| peer.next.as_deref().into_iter().chain([&peer.seal]));
        all.filter_map(|seal| seal.due(now)).min()
    }
}

/// Reason why a sealed datagram was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// There are no keys for its sender.
    NoKeys,
    /// The datagram was not sealed by its sender, or is a replay.
    Forged,
}

impl Peer {
    fn renew(&mut self, now: Time, random: &mut Random) {
        if self
            .next
            .as_ref()
            .is_some_and(|next| !next.has_given_up(now))
        {
            return;
        }
        let is_silent = now >= self.heard_at + RENEW_AFTER;
        self.next = (is_silent || self.is_used_up()).then(|| Box::new(Seal::new(now, random)));
    }

    fn is_used_up(&mut self) -> bool {
        let counter = self.seal.session().map_or(0, |session| session.counter());
        counter & ((1 << COUNTER_BITS) - 1) >= RENEW_DATAGRAMS
    }

    fn take(
        &mut self,
        offer: &KeyOffer,
        secret: &[u8],
        first: u64,
        now: Time,
        random: &mut Random,
    ) -> Option<bool> {
        let session = self.seal.session();
        let is_known = session.is_none_or(|session| *session.peer() == offer.public_key);
        let seal = if is_known {
            &mut self.seal
        } else if offer.asks {
            let candidate = || Box::new(Seal::passive(now, random));
            self.next.get_or_insert_with(candidate)
        } else {
            self.next.as_deref_mut()?
        };
        let is_new = seal.take(offer, secret)?;
        if is_new {
            if let Some(session) = seal.session() {
                session.count_from(first);
            }
            self.heard_at = now;
            if !is_known && let Some(next) = self.next.take() {
                let before = std::mem::replace(&mut self.seal, *next);
                self.previous = before.into_session();
            }
        }
        Some(is_new)
    }
}

fn of_itself(first: u64, now: Time, random: &mut Random) -> Seal {
    let mut seal = Seal::with_itself(now, random);
    if let Some(session) = seal.session() {
        session.count_from(first);
    }
    seal
}

const _: () = assert!(OFFER_AGAIN.len() > 1, "a lost offer is repeated");

#[cfg(test)]
mod tests;
