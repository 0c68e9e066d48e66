//! The keys that the two queue pairs of a connection share, and their use on packets.
//!
//! The parameters: X25519 (RFC 7748) for the shared secret; HKDF-SHA-256 (RFC 5869) with the
//! pre-shared secret, if there is one, as the salt; AES-256-GCM (NIST SP 800-38D) with one key for
//! each direction, whose nonces are the sender's counter. A counter is never used twice, nor for a
//! retransmitted packet, whose payload is read from memory again and may have changed. Received
//! counters pass a window (RFC 6479), so a replayed packet is dropped.

use crate::random::Random;
use airdma_transport::Run;
use airdma_wire::air::PUBLIC_KEY_LEN;
use airdma_wire::sealed::{
    SEALED_OVERHEAD, SEALED_TAG_LEN, Sealed, begin_seal, finish_open, sealed_associated_data,
    sealed_nonce, sealed_tag_range,
};
use airdma_wire::{Bth, sealed};
use curve25519_dalek::MontgomeryPoint;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

const INFO: &[u8] = b"airdma sealed connection 1";
const KEY_LEN: usize = 32;

pub(crate) type PublicKey = [u8; PUBLIC_KEY_LEN];

/// The private half of a key pair of X25519 (RFC 7748), good for one session.
pub(crate) struct PrivateKey([u8; KEY_LEN]);

impl PrivateKey {
    pub(crate) fn draw(random: &mut Random) -> Self {
        PrivateKey(random.secret())
    }

    pub(crate) fn public(&self) -> PublicKey {
        MontgomeryPoint::mul_base_clamped(self.0).to_bytes()
    }

    /// `None` for a key of the peer that leads to a public secret (RFC 7748 6.1).
    fn agree(self, peer: &PublicKey) -> Option<[u8; KEY_LEN]> {
        let shared = MontgomeryPoint(*peer).mul_clamped(self.0).to_bytes();
        (shared != [0; KEY_LEN]).then_some(shared)
    }
}

/// Length of what is derived: the key from the owner of the smaller public key to the other end,
/// the key of the opposite direction, and the binding.
struct Lengths;

impl KeyType for Lengths {
    fn len(&self) -> usize {
        3 * KEY_LEN
    }
}

/// A connection whose ends have agreed.
pub(crate) struct Session {
    sealing: LessSafeKey,
    opening: LessSafeKey,
    /// Counter of the next packet.
    counter: u64,
    window: Window,
    peer: PublicKey,
    binding: [u8; KEY_LEN],
}

impl Session {
    /// `None` if the peer's key is invalid, or is ours.
    pub(crate) fn agree(
        private: PrivateKey,
        ours: &PublicKey,
        peer: &PublicKey,
        secret: &[u8],
    ) -> Option<Self> {
        if ours == peer {
            return None;
        }
        let (first, second) = if ours < peer {
            (ours, peer)
        } else {
            (peer, ours)
        };
        let info = [INFO, first, second];
        let mut derived = [0; 3 * KEY_LEN];
        let shared = private.agree(peer)?;
        let keys = Salt::new(HKDF_SHA256, secret).extract(&shared);
        let expanded = keys.expand(&info, Lengths);
        expanded.and_then(|keys| keys.fill(&mut derived)).ok()?;
        let key = |bytes: &[u8]| UnboundKey::new(&AES_256_GCM, bytes).map(LessSafeKey::new);
        let forth = key(&derived[..KEY_LEN]).ok()?;
        let back = key(&derived[KEY_LEN..2 * KEY_LEN]).ok()?;
        let (sealing, opening) = if ours < peer {
            (forth, back)
        } else {
            (back, forth)
        };
        let mut binding = [0; KEY_LEN];
        binding.copy_from_slice(&derived[2 * KEY_LEN..]);
        Some(Session {
            sealing,
            opening,
            counter: 0,
            window: Window::default(),
            peer: *peer,
            binding,
        })
    }

    /// For a queue pair whose peer is itself: no other host has a part in its key.
    pub(crate) fn with_itself(random: &mut Random) -> Option<Self> {
        let secret = PrivateKey::draw(random).0;
        let key = || UnboundKey::new(&AES_256_GCM, &secret).map(LessSafeKey::new);
        Some(Session {
            sealing: key().ok()?,
            opening: key().ok()?,
            counter: 0,
            window: Window::default(),
            peer: [0; PUBLIC_KEY_LEN],
            binding: PrivateKey::draw(random).public(),
        })
    }

    /// Counter of the next packet.
    pub(crate) fn counter(&self) -> u64 {
        self.counter
    }

    /// Sets the counter of the first packet.
    pub(crate) fn count_from(&mut self, first: u64) {
        self.counter = first;
    }

    /// The peer's public key.
    pub(crate) fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// A value that is the same at both ends, and at no others.
    pub(crate) fn binding(&self) -> [u8; KEY_LEN] {
        self.binding
    }

    /// Seals the packet (BTH to pad) in the first `len` bytes. Returns its sealed length; `None` if
    /// there is no room.
    #[inline]
    pub(crate) fn seal(&mut self, packet: &mut [u8], len: usize) -> Option<usize> {
        let counter = self.counter;
        let end = begin_seal(packet, len, counter)?;
        self.counter += 1;
        let (bth, rest) = packet.split_first_chunk_mut::<{ Bth::LEN }>()?;
        let data = Aad::from(sealed_associated_data(bth));
        let nonce = Nonce::assume_unique_for_key(sealed_nonce(counter));
        let body = &mut rest[..end - Bth::LEN];
        let tag = self.sealing.seal_in_place_separate_tag(nonce, data, body);
        let range = sealed_tag_range(end);
        packet[range.clone()].copy_from_slice(tag.ok()?.as_ref());
        Some(range.end)
    }

    /// Seals the packets of a run, which has room behind each.
    pub(crate) fn seal_run(&mut self, out: &mut [u8], run: &Run) {
        for packet in out.chunks_mut(run.stride()).take(run.packets) {
            let sealed = self.seal(packet, run.len);
            debug_assert_eq!(sealed, Some(run.len + SEALED_OVERHEAD));
        }
    }

    /// Opens a sealed packet into `out`. Returns the length of the packet (BTH to pad) there;
    /// `None` if it is not the peer's, was seen before, is older than the window, or does not fit.
    #[inline]
    pub(crate) fn open(&mut self, packet: &[u8], out: &mut [u8]) -> Option<usize> {
        let sealed = Sealed::parse(packet)?;
        if !self.window.is_fresh(sealed.counter) {
            return None;
        }
        let end = Bth::LEN + sealed.body.len();
        let out = out.get_mut(..end + SEALED_TAG_LEN)?;
        out[..Bth::LEN].copy_from_slice(sealed.bth);
        out[Bth::LEN..end].copy_from_slice(sealed.body);
        out[end..].copy_from_slice(sealed.tag);
        let data = Aad::from(sealed_associated_data(sealed.bth));
        let nonce = Nonce::assume_unique_for_key(sealed_nonce(sealed.counter));
        self.opening
            .open_in_place(nonce, data, &mut out[Bth::LEN..])
            .ok()?;
        self.window.note(sealed.counter);
        finish_open(&mut out[..end])
    }
}

const WORDS: usize = 128;
const WORD_BITS: u64 = u64::BITS as u64;
/// Most packets that a packet may arrive behind the highest counter: as many as a fast link holds
/// while it reorders.
const WINDOW_PACKETS: u64 = (WORDS as u64 - 1) * WORD_BITS;

/// Counters seen within the window (RFC 6479).
struct Window {
    seen: Box<[u64; WORDS]>,
    /// The highest counter plus one; 0 if there was none.
    end: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window {
            seen: Box::new([0; WORDS]),
            end: 0,
        }
    }
}

impl Window {
    #[inline]
    fn is_fresh(&self, counter: u64) -> bool {
        if counter >= self.end {
            return counter != u64::MAX;
        }
        let (word, bit) = place(counter);
        self.end - counter <= WINDOW_PACKETS && self.seen[word] & bit == 0
    }

    /// Only authentic packets move the window.
    #[inline]
    fn note(&mut self, counter: u64) {
        if counter >= self.end {
            let first = self.end.div_ceil(WORD_BITS);
            let new = (first..=counter / WORD_BITS).take(WORDS);
            for word in new {
                self.seen[word as usize % WORDS] = 0;
            }
            self.end = counter + 1;
        }
        let (word, bit) = place(counter);
        self.seen[word] |= bit;
    }
}

fn place(counter: u64) -> (usize, u64) {
    let word = (counter / WORD_BITS) as usize % WORDS;
    (word, 1 << (counter % WORD_BITS))
}

const _: () = assert!(sealed::SEALED_TAG_LEN == 16, "that of AES-GCM");

#[cfg(test)]
mod tests;
