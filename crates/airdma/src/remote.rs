//! Regions of a peer.

use crate::{Error, Result};
use airdma_engine::Rkey;

/// A region of the peer: address, key and length, as received from the peer, usually in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    address: u64,
    key: Rkey,
    length: u64,
}

/// First bytes of the encoding, which tell it from other messages: name and version.
const MAGIC: [u8; 4] = *b"aiR1";

impl Remote {
    /// Length of [`Remote::to_bytes`].
    pub const BYTES: usize = 24;

    pub(crate) fn new(address: u64, key: Rkey, length: usize) -> Remote {
        Remote {
            address,
            key,
            length: length as u64,
        }
    }

    /// The bytes to send to the peer.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.key.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_be_bytes());
        bytes[16..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Decodes the peer's bytes.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): they are anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Remote> {
        let wrong = || {
            Error::you(format!(
                "{} bytes that are not a `Remote`: the peer must send the result of `Remote::to_bytes`, {} bytes",
                bytes.len(),
                Self::BYTES
            ))
        };
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (key, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (address, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
        if *magic != MAGIC || !rest.is_empty() {
            return Err(wrong());
        }
        Ok(Remote {
            address: u64::from_be_bytes(*address),
            key: Rkey(u32::from_be_bytes(*key)),
            length: u64::from_be_bytes(*length),
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn key(&self) -> Rkey {
        self.key
    }

    /// Address and key of `length` bytes at `offset`.
    pub(crate) fn at(&self, offset: u64, length: usize) -> Result<(u64, Rkey)> {
        let end = offset.checked_add(length as u64);
        let va = self.address.checked_add(offset);
        match (end, va) {
            (Some(end), Some(va)) if end <= self.length => Ok((va, self.key)),
            _ => Err(Error::you(format!(
                "{length} bytes at offset {offset} of a peer's region of {} bytes: stay within it",
                self.length
            ))),
        }
    }

    /// Address and key of the word at `offset`.
    pub(crate) fn word_at(&self, offset: u64) -> Result<(u64, Rkey)> {
        let (va, key) = self.at(offset, 8)?;
        if !va.is_multiple_of(8) {
            return Err(Error::you(format!(
                "a word at offset {offset} of a peer's region: words are at multiples of 8"
            )));
        }
        Ok((va, key))
    }
}
