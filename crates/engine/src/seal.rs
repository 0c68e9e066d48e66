//! Sealed connections: every packet of the connection is encrypted and authenticated (`docs/protocol.md`, "Sealed packets").
//!
//! A queue pair that seals exchanges public keys with its peer as soon as it is connected ([`KeyOffer`], to queue pair 1). It sends
//! nothing before it has the keys, and takes no packet that is not sealed, so there is no way back to RoCEv2: against a peer that does not
//! answer it fails as against a dead one.
//!
//! | to change | look at |
//! |---|---|
//! | what is done to a packet, and how keys are derived | [`session`] |
//! | when keys are exchanged, and with which peer | here |
//! | the same of a queue pair of datagrams, which has many | [`datagrams`] |
//! | how it looks | [`airdma_wire::sealed`], [`airdma_wire::air`] |

pub(crate) mod datagrams;
mod secret;
pub(crate) mod session;

pub use secret::Secret;
pub(crate) use secret::TAG_LEN;

use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use crate::random::Random;
use crate::tables::qp_table::{NO_PORT, QpSlot};
use crate::worker::tables::{PACKET_LEN_MAX, Tables, destination};
use airdma_port::{Destination, Received};
use airdma_transport::{Arrival, QpType, QueuePair, Time};
use airdma_wire::air::{self, KeyOffer};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::sealed::{SEALED_OVERHEAD, SEALED_TAG_LEN};
use airdma_wire::{Gid, Qpn, ack_timeout};
use datagrams::{Name, Unopened};
use session::{PrivateKey, PublicKey, Session};
use std::time::Duration;

/// Room for any packet while it is sealed.
pub(crate) const SEALED_LEN_MAX: usize = PACKET_LEN_MAX + SEALED_OVERHEAD;
/// Room to open one.
pub(crate) const OPENED_LEN_MAX: usize = SEALED_LEN_MAX + SEALED_TAG_LEN;

/// How long an offer waits for its answer, each time; the last is repeated. A peer that connects its queue pair later than we do
/// hears one of them, and asks itself.
const OFFER_AGAIN: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];
/// After this the peer is not asked any more. It may ask.
const KEYING_TIME_MAX: Duration = Duration::from_secs(10);

/// What is sent over an unreliable connection waits as long for the keys: nothing tells later that it was lost.
const UNRELIABLE_WAIT: Duration = Duration::from_millis(100);

/// What a queue pair that seals has of its keys.
pub(crate) struct Seal {
    public_key: PublicKey,
    /// Until the session is agreed.
    private: Option<PrivateKey>,
    session: Option<Box<Session>>,
    /// The peer's public key, which is to be answered.
    answer: Option<PublicKey>,
    offers: usize,
    again_at: Option<Time>,
    give_up_at: Time,
    /// Packets wait for the keys until then.
    hold_until: Option<Time>,
    /// A packet of the peer's has come.
    is_heard: bool,
}

impl Seal {
    fn new(now: Time, random: &mut Random) -> Self {
        let private = PrivateKey::draw(random);
        Seal {
            public_key: private.public(),
            private: Some(private),
            session: None,
            answer: None,
            offers: 0,
            again_at: Some(now),
            give_up_at: now + KEYING_TIME_MAX,
            hold_until: None,
            is_heard: false,
        }
    }

    /// One that answers, and asks nothing itself until it is to.
    fn passive(now: Time, random: &mut Random) -> Self {
        Seal {
            again_at: None,
            ..Seal::new(now, random)
        }
    }

    /// The peer is asked from now on, if it has not been.
    fn ask(&mut self, now: Time) {
        if self.session.is_none() && self.again_at.is_none() && self.offers == 0 {
            self.again_at = Some(now);
            self.give_up_at = now + KEYING_TIME_MAX;
        }
    }

    /// Whether the peer was asked in vain.
    fn has_given_up(&self, now: Time) -> bool {
        self.session.is_none() && self.offers > 0 && now >= self.give_up_at
    }

    fn into_session(self) -> Option<Box<Session>> {
        self.session
    }

    /// Whether packets that a queue pair wants to send wait for the keys. They wait as long as the first of them would for its acknowledgement,
    /// and then leave for nowhere: so a peer that is not there is found out as on RoCEv2.
    pub(crate) fn waits(&mut self, now: Time, qp: &QueuePair) -> bool {
        if self.session.is_some() {
            return false;
        }
        let hold = match qp.qp_type() {
            QpType::Uc | QpType::Ud => UNRELIABLE_WAIT,
            QpType::Rc | QpType::XrcSend | QpType::XrcReceive | QpType::RawPacket => {
                let timeout = ack_timeout(qp.attributes().timeout);
                timeout.map_or(KEYING_TIME_MAX, |timeout| timeout.min(KEYING_TIME_MAX))
            }
        };
        self.holds_for(now, hold)
    }

    /// Whether packets wait, from the first one on for so long.
    fn holds_for(&mut self, now: Time, hold: Duration) -> bool {
        now < *self.hold_until.get_or_insert(now + hold)
    }

    /// Whether packets wait for the keys.
    pub(crate) fn holds(&self) -> bool {
        self.session.is_none() && self.hold_until.is_some()
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.session.is_some()
    }

    pub(crate) fn session(&mut self) -> Option<&mut Session> {
        self.session.as_deref_mut()
    }

    pub(crate) fn binding(&self) -> Option<[u8; 32]> {
        self.session.as_ref().map(|session| session.binding())
    }

    /// When something is to be done.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let hold = self
            .hold_until
            .filter(|until| *until > now && self.session.is_none());
        let offer = self.answer.map(|_| now).or(self.again_at);
        offer.into_iter().chain(hold).min()
    }

    /// What is to be said to the peer now, if anything: whether it asks, and the key of the peer that it names. Answers do not ask: two ends
    /// would answer each other for ever.
    fn next_offer(&mut self, now: Time) -> Option<(bool, Option<PublicKey>)> {
        if let Some(peer) = self.answer.take() {
            return Some((false, Some(peer)));
        }
        self.again_at.filter(|at| *at <= now)?;
        if now >= self.give_up_at {
            self.again_at = None;
            return None;
        }
        let wait = OFFER_AGAIN[self.offers.min(OFFER_AGAIN.len() - 1)];
        self.offers += 1;
        self.again_at = Some(now + wait);
        let seen = self.session.as_ref().map(|session| *session.peer());
        Some((true, seen))
    }

    /// The same as an offer from one queue pair to another.
    fn next_key_offer(&mut self, now: Time, sender: Qpn, receiver: Qpn) -> Option<KeyOffer> {
        let (asks, seen) = self.next_offer(now)?;
        Some(KeyOffer {
            asks,
            has_keys: self.session.is_some(),
            sender,
            receiver,
            public_key: self.public_key,
            seen,
        })
    }

    /// Takes the peer's half. Returns whether the session is new; `None` if the offer is not one that counts.
    fn take(&mut self, offer: &KeyOffer, secret: &[u8]) -> Option<bool> {
        let session = self.session.as_ref();
        // A second key for the connection is another host's.
        if session.is_some_and(|session| *session.peer() != offer.public_key) {
            return None;
        }
        let names_us = offer.seen == Some(self.public_key);
        if offer.asks {
            self.answer = Some(offer.public_key);
        } else if !names_us {
            return None;
        }
        if !names_us {
            // Anyone can have sent it.
            return Some(false);
        }
        let is_new = self.session.is_none();
        if is_new {
            let private = self.private.take()?;
            let session = Session::agree(private, &self.public_key, &offer.public_key, secret);
            self.session = Some(Box::new(session?));
            // The peer has the keys when it hears that we have its public key.
            self.answer = Some(offer.public_key);
        }
        if offer.has_keys {
            self.again_at = None;
        }
        Some(is_new)
    }
}

impl Tables {
    /// A queue pair was connected: if it seals, it exchanges keys for this connection.
    pub(crate) fn begin_keying(&mut self, index: QpIndex, now: Time) {
        let slot = self.qps.slot(index);
        if let Some(slot) = slot.filter(|slot| slot.seals && slot.connection.is_some()) {
            slot.seal = Some(Box::new(Seal::new(now, &mut self.random)));
            if let Some(connection) = &mut slot.connection {
                connection.source_port = NO_PORT;
            }
            self.keying.set(index, Some(now));
        }
    }

    /// Writes the next offer of a key into `out`.
    pub(crate) fn poll_keying(
        &mut self,
        now: Time,
        out: &mut [u8],
    ) -> Option<(usize, Destination)> {
        while let Some(index) = self.keying.pop_due(now) {
            let Some(slot) = self.qps.slot(index) else {
                continue;
            };
            let QpSlot {
                qp,
                seal,
                datagrams,
                ..
            } = slot;
            if let Some(datagrams) = datagrams.as_deref_mut() {
                let next = datagrams.next_offer(now).filter(|_| qp.state().receives());
                self.keying.set(index, datagrams.due(now));
                let Some((to, offer)) = next else {
                    // What waits for the keys may have waited long enough.
                    self.settle(index, now);
                    continue;
                };
                return Some((self.air.emit(&air::key(&offer), out), to));
            }
            let Some(seal) = seal else {
                continue;
            };
            if !qp.state().receives() {
                continue;
            }
            let next = seal.next_offer(now);
            self.keying.set(index, seal.due(now));
            let path = &qp.attributes().path;
            let is_there = self.gsi.as_ref().is_none_or(|gsi| {
                let asked_by =
                    gsi.manager
                        .has_answered(qp.qpn(), path.gid, qp.attributes().dest_qpn);
                asked_by != Some(false)
            });
            if !is_there && next.is_some_and(|(asks, _)| asks) {
                // The request may be forged. The peer offers its key itself, which is answered.
                continue;
            }
            let Some((asks, seen)) = next else {
                // What waits for the keys may have waited long enough.
                self.settle(index, now);
                continue;
            };
            let offer = KeyOffer {
                asks,
                has_keys: seal.session.is_some(),
                sender: qp.qpn(),
                receiver: qp.attributes().dest_qpn,
                public_key: seal.public_key,
                seen,
            };
            let destination = destination(&qp.attributes().path, &self.rows);
            return Some((self.air.emit(&air::key(&offer), out), destination));
        }
        None
    }

    /// Takes an offer of a key.
    pub(crate) fn take_key(&mut self, now: Time, arrival: &Arrival, offer: &KeyOffer) {
        let secret = self.secret.as_ref().map_or(&[][..], Secret::of_sessions);
        let mut rows = self.rows.iter();
        let row = rows.position(|row| *row == Some(arrival.destination));
        let taken = self.qps.find(offer.receiver).and_then(|index| {
            let slot = self.qps.slot(index)?;
            if let Some(datagrams) = slot.datagrams.as_deref_mut() {
                let name = Name {
                    local: arrival.destination,
                    remote: arrival.source,
                    number: offer.sender,
                };
                let from = (name, answer_to(arrival, row? as u8));
                let is_new = datagrams.take(from, offer, secret, now, &mut self.random)?;
                self.keying.set(index, datagrams.due(now));
                return Some((index, is_new));
            }
            let is_peer = slot.accepts(arrival.source, arrival.destination)
                && slot.qp.attributes().dest_qpn == offer.sender;
            let seal = slot.seal.as_deref_mut().filter(|_| is_peer)?;
            let is_new = seal.take(offer, secret)?;
            self.keying.set(index, seal.due(now));
            Some((index, is_new))
        });
        match taken {
            Some((index, true)) => {
                self.counters.count(EngineCounter::SealsAgreed);
                self.ask_sealed(index, now);
                self.settle(index, now);
            }
            Some((_, false)) => {}
            None => self.counters.count(EngineCounter::DropAir),
        }
    }

    /// Appends to a datagram for queue pair 1 (BTH to payload) what shows that it comes from a host that knows the secret, if there is
    /// one. Returns its length then.
    pub(crate) fn sign(&self, packet: &mut [u8], len: usize, to: &Destination) -> usize {
        let row = self.rows.get(usize::from(to.source_index)).copied();
        let (Some(secret), Some(from)) = (&self.secret, row.flatten()) else {
            return len;
        };
        let mad = &packet[len - MAD_LEN..len];
        let tag = secret.tag(Gid::from(from), Gid::from(to.address), mad);
        packet[len..len + TAG_LEN].copy_from_slice(&tag);
        len + TAG_LEN
    }

    /// The datagram in the payload of a packet to queue pair 1; `None` if it is not of a host that knows the secret.
    pub(crate) fn check_signed<'a>(
        &self,
        arrival: &Arrival,
        payload: &'a [u8],
    ) -> Option<&'a [u8]> {
        let Some(secret) = &self.secret else {
            return Some(payload);
        };
        let (from, to) = (arrival.source, arrival.destination);
        secret.check(Gid::from(from), Gid::from(to), payload)
    }

    /// The peer has sealed a packet: it is there, as its last word of connection management would say (IBTA 12.9.7.2). From which port it
    /// comes decides nothing here.
    #[inline]
    fn note_authentic(&mut self, index: QpIndex, now: Time) {
        let slot = self.qps.slot(index);
        if let Some(QpSlot { qp, seal, .. }) = slot
            && let Some(seal) = seal
            && !std::mem::replace(&mut seal.is_heard, true)
            && let Some(gsi) = &mut self.gsi
        {
            gsi.data_arrived(now, qp.qpn());
        }
    }

    /// Takes a sealed packet.
    #[inline(never)] // packets in the clear do not pay for it
    pub(crate) fn receive_sealed(&mut self, now: Time, received: &Received<'_>) {
        let Some(number) = sealed_number(received.bytes) else {
            return self.counters.count(EngineCounter::DropTruncated);
        };
        let Some(index) = self.qps.find(number) else {
            return self.receive_unknown(now, received, number);
        };
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        if slot.datagrams.is_some() {
            return self.receive_sealed_datagram(index, now, received);
        }
        if !slot.accepts(received.source, received.destination) {
            return self.counters.count(EngineCounter::DropBadSource);
        }
        let Some(seal) = slot.seal.as_deref_mut() else {
            return self.counters.count(EngineCounter::DropUnsealed);
        };
        let Some(session) = seal.session() else {
            return self.counters.count(EngineCounter::DropUnkeyed);
        };
        let mut opened = std::mem::take(&mut self.opened);
        let len = session.open(received.bytes, &mut opened);
        match len {
            Some(len) => {
                self.note_authentic(index, now);
                let bytes = &opened[..len];
                self.receive_for(index, now, &Received { bytes, ..*received });
            }
            None => self.counters.count(EngineCounter::DropUnsealed),
        }
        self.opened = opened;
    }

    /// Takes a sealed packet for a queue pair of datagrams.
    fn receive_sealed_datagram(&mut self, index: QpIndex, now: Time, received: &Received<'_>) {
        let slot = self.qps.slot(index);
        let Some(datagrams) = slot.and_then(|slot| slot.datagrams.as_deref_mut()) else {
            return;
        };
        let mut opened = std::mem::take(&mut self.opened);
        match datagrams.open(received, &mut opened, now) {
            Ok((len, number)) => {
                let bytes = &opened[..len];
                let received = Received { bytes, ..*received };
                self.receive_datagram_of(index, now, &received, number);
            }
            Err(Unopened::NoKeys) => self.counters.count(EngineCounter::DropUnkeyed),
            Err(Unopened::Forged) => self.counters.count(EngineCounter::DropUnsealed),
        }
        self.opened = opened;
    }
}

/// Where an offer goes that answers one.
fn answer_to(arrival: &Arrival, source_index: u8) -> Destination {
    Destination {
        address: arrival.source,
        source_index,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    }
}

/// The queue pair that a sealed packet is for.
fn sealed_number(packet: &[u8]) -> Option<Qpn> {
    let &[a, b, c] = packet.get(5..8)?.first_chunk::<3>()?;
    Some(Qpn::new(u32::from_be_bytes([0, a, b, c])))
}
