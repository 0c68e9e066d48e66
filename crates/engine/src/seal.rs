//! Sealed connections: every packet is encrypted and authenticated (`docs/protocol.md`).
//!
//! A queue pair that seals exchanges public keys with its peer as soon as it is connected
//! ([`KeyOffer`], to queue pair 1). Before that it sends no data and accepts no unsealed packet, so
//! there is no fallback to RoCEv2: against a peer that does not answer it fails as against a dead
//! one.
//!
//! | to change | look at |
//! |---|---|
//! | operations on packets, and the derivation of keys | [`session`] |
//! | times and peers of the key exchange | here |
//! | the same for a datagram queue pair, which has many peers | [`datagrams`] |
//! | the format | [`airdma_wire::sealed`], [`airdma_wire::air`] |

pub(crate) mod datagrams;
mod secret;
pub(crate) mod session;

pub use secret::Secret;
pub(crate) use secret::TAG_LEN;

use crate::limits::PACKET_LEN_MAX;
use crate::random::Random;
use airdma_transport::{QpType, QueuePair, Time};
use airdma_wire::air::KeyOffer;
use airdma_wire::sealed::{SEALED_OPCODE_LEN, SEALED_OVERHEAD, SEALED_TAG_LEN};
use airdma_wire::{Qpn, ack_timeout};
use session::{PrivateKey, PublicKey, Session};
use std::time::Duration;

/// Most bytes of a packet while it is sealed.
pub(crate) const SEALED_LEN_MAX: usize = PACKET_LEN_MAX + SEALED_OVERHEAD;
/// Buffer size for opening one.
pub(crate) const OPENED_LEN_MAX: usize = SEALED_LEN_MAX + SEALED_TAG_LEN;

/// Waits for the answer to each repetition of an offer; the last is repeated. A peer that connects
/// its queue pair later gets one of them, and sends its own.
const OFFER_AGAIN: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
];
/// Time after which the peer is no longer asked. It may still ask.
const KEYING_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest wait for keys on an unreliable connection, which has no later sign of a loss.
const UNRELIABLE_WAIT: Duration = Duration::from_millis(100);

/// State of a queue pair's key exchange.
pub(crate) struct Seal {
    public_key: PublicKey,
    /// Present until the session is agreed.
    private: Option<PrivateKey>,
    session: Option<Box<Session>>,
    /// The peer's public key, which must be answered.
    answer: Option<PublicKey>,
    offers: usize,
    again_at: Option<Time>,
    give_up_at: Time,
    /// Time until which packets wait for the keys.
    hold_until: Option<Time>,
    /// Whether a packet of the peer has come.
    is_heard: bool,
}

impl Seal {
    pub(crate) fn new(now: Time, random: &mut Random) -> Self {
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

    /// A state that answers, and asks nothing before [`Seal::ask`].
    fn passive(now: Time, random: &mut Random) -> Self {
        Seal {
            again_at: None,
            ..Seal::new(now, random)
        }
    }

    /// The seal of a queue pair whose peer is itself. Nothing is exchanged: its own offers would
    /// count as those of a host that sends them back.
    pub(crate) fn with_itself(now: Time, random: &mut Random) -> Self {
        Seal {
            private: None,
            session: Session::with_itself(random).map(Box::new),
            ..Seal::passive(now, random)
        }
    }

    /// Starts to ask the peer, unless it was asked.
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

    /// Whether packets of a queue pair wait for the keys.
    ///
    /// They wait as long as the first of them would for its acknowledgement, and are then dropped:
    /// so an absent peer is detected as on RoCEv2.
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

    /// Whether packets wait, for `hold` from the first one on.
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

    /// Records an opened packet of the peer. True for the first one.
    pub(crate) fn note_heard(&mut self) -> bool {
        !std::mem::replace(&mut self.is_heard, true)
    }

    /// Time of the next action.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let hold = self
            .hold_until
            .filter(|until| *until > now && self.session.is_none());
        let offer = self.answer.map(|_| now).or(self.again_at);
        offer.into_iter().chain(hold).min()
    }

    /// The offer that is due now, if any: whether it asks, and the peer's key that it names.
    /// Answers do not ask: two ends would answer each other for ever.
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

    /// The offer that is due now, from one queue pair to another.
    pub(crate) fn next_key_offer(
        &mut self,
        now: Time,
        sender: Qpn,
        receiver: Qpn,
    ) -> Option<KeyOffer> {
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

    /// Takes the peer's half. Returns whether the session is new; `None` if the offer does not
    /// count.
    pub(crate) fn take(&mut self, offer: &KeyOffer, secret: &[u8]) -> Option<bool> {
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
            // Any host can have sent it.
            return Some(false);
        }
        let is_new = self.session.is_none();
        if is_new {
            let private = self.private.take()?;
            let session = Session::agree(private, &self.public_key, &offer.public_key, secret);
            self.session = Some(Box::new(session?));
            // The peer has the keys once it learns that its public key has arrived.
            self.answer = Some(offer.public_key);
        }
        if offer.has_keys {
            self.again_at = None;
        }
        Some(is_new)
    }
}

/// The largest payload of sealed packets where plain ones have `plain`. What is encrypted, the
/// payload and the word with the opcode, is whole blocks of AES: a part of one costs more than the
/// bytes that are left unused.
pub(crate) fn long_payload(plain: u32) -> u32 {
    const BLOCK: u32 = 16;
    let body = plain.saturating_sub((SEALED_OVERHEAD - SEALED_OPCODE_LEN) as u32);
    (body / BLOCK * BLOCK).saturating_sub(SEALED_OPCODE_LEN as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sealed_payloads_fill_the_room_of_plain_ones_in_blocks() {
        for plain in (1028..=4096).step_by(4) {
            let sealed = long_payload(plain);
            assert!((sealed + 4).is_multiple_of(16));
            let unused = plain - sealed - SEALED_OVERHEAD as u32;
            assert!(unused < 16, "{unused} of {plain}");
        }
        assert_eq!(long_payload(1452), 1420);
        assert_eq!(long_payload(0), 0);
    }
}
