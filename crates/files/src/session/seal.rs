//! Sealed chunks: encrypted and authenticated, each with its number.
//!
//! The sender draws a key for each session and sends it in its offer, inside the session's own
//! encryption. The nonce is the number of the chunk, which only grows, so no nonce repeats under a
//! key; a chunk that is forged, truncated, repeated or moved does not open.

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;

/// Bytes that encryption adds to a chunk.
pub const TAG_BYTES: usize = 16;

/// Cipher of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// For hosts with AES instructions.
    Aes256Gcm,
    /// For all others.
    ChaCha20Poly1305,
}

/// Key of one session's chunks.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey([u8; 32]);

/// The chunk is not what was sent, or not the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a chunk arrived that the sender did not send; check the network and the hosts' memory")]
pub struct Forged;

/// Encrypts chunks.
#[derive(Debug)]
pub struct Sealer {
    key: LessSafeKey,
    next: u64,
}

/// Decrypts chunks.
#[derive(Debug)]
pub struct Opener {
    key: LessSafeKey,
    next: u64,
}

impl Cipher {
    /// The faster cipher for two ends, given whether each has AES instructions.
    pub fn choose(sender_fast_aes: bool, receiver_fast_aes: bool) -> Self {
        if sender_fast_aes && receiver_fast_aes {
            Self::Aes256Gcm
        } else {
            Self::ChaCha20Poly1305
        }
    }

    /// Code of the cipher on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }

    /// The cipher of a code.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Aes256Gcm, Self::ChaCha20Poly1305]
            .into_iter()
            .find(|cipher| cipher.code() == code)
    }

    fn key(self, key: &DataKey) -> LessSafeKey {
        let algorithm = match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, &key.0).expect("both ciphers take 32 bytes"))
    }
}

/// Whether this CPU has instructions for AES and for the multiplication of GCM.
pub fn has_fast_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

impl DataKey {
    /// The key with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A new key, for one session.
    pub fn draw() -> Self {
        let mut bytes = [0; 32];
        SystemRandom::new()
            .fill(&mut bytes)
            .expect("the kernel has random bytes");
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Does not print the key.
impl fmt::Debug for DataKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("DataKey")
    }
}

impl Sealer {
    /// A sealer for chunks from `first` on.
    pub fn new(cipher: Cipher, key: &DataKey, first: u64) -> Self {
        Self {
            key: cipher.key(key),
            next: first,
        }
    }

    /// Encrypts the next chunk in place.
    ///
    /// It is the first `length` bytes of `buffer`, which needs [`TAG_BYTES`] more behind them.
    pub fn seal(&mut self, buffer: &mut [u8], length: usize) {
        let (bytes, rest) = buffer.split_at_mut(length);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce(self.next), Aad::empty(), bytes);
        let tag = sealed.expect("a chunk is far shorter than what a cipher can take");
        rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
        self.next += 1;
    }
}

impl Opener {
    /// An opener for chunks from `first` on.
    pub fn new(cipher: Cipher, key: &DataKey, first: u64) -> Self {
        Self {
            key: cipher.key(key),
            next: first,
        }
    }

    /// Decrypts the next chunk in place, with its tag behind it.
    ///
    /// After an error the content of `sealed` is undefined.
    pub fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<&'a mut [u8], Forged> {
        let opened = self
            .key
            .open_in_place(nonce(self.next), Aad::empty(), sealed)
            .map_err(|_| Forged)?;
        self.next += 1;
        Ok(opened)
    }
}

fn nonce(chunk: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&chunk.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CIPHERS: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    fn sealed(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let mut buffer = [text, &[0; TAG_BYTES]].concat();
        sealer.seal(&mut buffer, text.len());
        buffer
    }

    #[test]
    fn chunks_open_in_the_order_in_which_they_were_sealed() {
        for cipher in CIPHERS {
            let key = DataKey::draw();
            let (mut sealer, mut opener) =
                (Sealer::new(cipher, &key, 5), Opener::new(cipher, &key, 5));
            for text in [&b"one"[..], b"", b"three"] {
                assert_eq!(
                    opener.open(&mut sealed(&mut sealer, text)),
                    Ok(&mut text.to_vec()[..])
                );
            }
        }
    }

    #[test]
    fn repeated_swapped_cut_or_changed_chunks_do_not_open() {
        for cipher in CIPHERS {
            let key = DataKey::draw();
            let (mut sealer, mut opener) =
                (Sealer::new(cipher, &key, 0), Opener::new(cipher, &key, 0));
            let (one, two) = (sealed(&mut sealer, b"one"), sealed(&mut sealer, b"two"));
            assert_eq!(opener.open(&mut two.clone()), Err(Forged));
            assert_eq!(opener.open(&mut one[..one.len() - 1].to_vec()), Err(Forged));
            assert_eq!(opener.open(&mut []), Err(Forged));
            for at in 0..one.len() {
                let mut changed = one.clone();
                changed[at] ^= 1;
                assert_eq!(opener.open(&mut changed), Err(Forged));
            }
            assert!(opener.open(&mut one.clone()).is_ok());
            assert_eq!(opener.open(&mut one.clone()), Err(Forged));
            let mut other = Opener::new(cipher, &DataKey::draw(), 1);
            assert_eq!(other.open(&mut two.clone()), Err(Forged));
            assert!(opener.open(&mut two.clone()).is_ok());
        }
    }

    #[test]
    fn no_two_chunks_have_a_nonce() {
        let nonces =
            [0, 1, 2, 255, 256, 1 << 32, 1 << 63, u64::MAX].map(|chunk| *nonce(chunk).as_ref());
        let distinct: std::collections::BTreeSet<[u8; NONCE_LEN]> = nonces.into();
        assert_eq!(distinct.len(), nonces.len());
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", DataKey::new([7; 32])), "DataKey");
    }
}
