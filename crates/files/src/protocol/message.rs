//! Messages between sender and receiver, in network byte order. Each is one record of the session,
//! which holds its length, and has at most [`MESSAGE_BYTES_MAX`] bytes.
//!
//! ```text
//! 1 Offer     entries(4) content_bytes(8) manifest_bytes(8) manifest_id(32) key(32) fast_aes(1)
//! 2 Manifest  bytes ...
//! 3 Unwanted  { start(4) end(4) } ...
//! 4 Accept    first_chunk(8) cipher(1) slots(4) staging ...
//! 5 Grant     until(8) durable(8)
//! 6 Arrived   until(8)
//! 7 Flawed    { entry(4) flaw(1) } ...
//! 8 Finished  files(8) flaws(4)
//! 9 Bye
//! 10 Alive
//! 11 Abort    reason(1) text ...
//! ```

use super::Reason;
use crate::manifest::ManifestId;
use crate::session::{Cipher, DataKey};
use crate::trailer::Flaw;
use std::ops::Range;

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// Most bytes of a manifest in one message.
pub(super) const PIECE_BYTES_MAX: usize = 16 << 10;
/// Most ranges in one message.
pub(super) const RANGES_MAX: usize = 2048;
/// Most flaws in one message.
pub(super) const FLAWS_MAX: usize = 2048;
/// Most bytes that describe the staging memory to the code that moves data.
pub const STAGING_BYTES_MAX: usize = 256;
/// Most bytes of the text of an abort.
pub(super) const TEXT_BYTES_MAX: usize = 512;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the sender: an offer.
    Offer(Offer),
    /// From the sender: the next bytes of the manifest.
    Manifest(Vec<u8>),
    /// From the receiver, before it accepts: entries that need not be sent.
    Unwanted(Vec<Range<u32>>),
    /// From the receiver: the offer is accepted.
    Accept(Accept),
    /// From the receiver: chunks below `until` may be written; those below `durable` are on the
    /// disk.
    Grant {
        /// First chunk that may not be written. A chunk goes to slot `chunk % slots`.
        until: u64,
        /// Chunks that are durable, for display.
        durable: u64,
    },
    /// From the sender: chunks below `until` were written.
    ///
    /// Sent only if the receiver cannot see that from the writes.
    Arrived {
        /// First chunk that was not written.
        until: u64,
    },
    /// From the receiver: files that did not arrive.
    Flawed(Vec<(u32, Flaw)>),
    /// From the receiver: all other files have their names, and are durable.
    Finished {
        /// Files that arrived.
        files: u64,
        /// Files that did not arrive, all reported before.
        flaws: u32,
    },
    /// From the sender: received; the session may end.
    Bye,
    /// Keeps the session alive.
    Alive,
    /// Ends the transfer.
    Abort {
        /// Reason for programs.
        reason: Reason,
        /// Reason for display.
        text: String,
    },
}

/// An offer, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Number of files, directories and links.
    pub entries: u32,
    /// Bytes of data in all files.
    pub content_bytes: u64,
    /// Bytes of the manifest, which follows.
    pub manifest_bytes: u64,
    /// Hash of the manifest.
    pub manifest_id: ManifestId,
    /// Key of the chunks, for this session only.
    pub key: DataKey,
    /// Whether the sender's CPU has AES instructions.
    pub fast_aes: bool,
}

/// Which chunks the receiver wants, and where they must be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// First wanted chunk; the receiver has those before it.
    pub first_chunk: u64,
    /// Cipher of the chunks.
    pub cipher: Cipher,
    /// Number of slots in the staging memory.
    pub slots: u32,
    /// Description of the staging memory for the code that moves data.
    pub staging: Vec<u8>,
}

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the other end says what this version does not understand: use the same version at both ends"
)]
pub struct Malformed;

impl Message {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.tag()];
        match self {
            Self::Offer(offer) => {
                out.extend_from_slice(&offer.entries.to_be_bytes());
                out.extend_from_slice(&offer.content_bytes.to_be_bytes());
                out.extend_from_slice(&offer.manifest_bytes.to_be_bytes());
                out.extend_from_slice(&offer.manifest_id.0);
                out.extend_from_slice(offer.key.bytes());
                out.push(offer.fast_aes.into());
            }
            Self::Manifest(bytes) => out.extend_from_slice(bytes),
            Self::Unwanted(ranges) => ranges.iter().for_each(|range| {
                out.extend_from_slice(&range.start.to_be_bytes());
                out.extend_from_slice(&range.end.to_be_bytes());
            }),
            Self::Accept(accept) => {
                out.extend_from_slice(&accept.first_chunk.to_be_bytes());
                out.push(accept.cipher.code());
                out.extend_from_slice(&accept.slots.to_be_bytes());
                out.extend_from_slice(&accept.staging);
            }
            Self::Grant { until, durable } => {
                out.extend_from_slice(&until.to_be_bytes());
                out.extend_from_slice(&durable.to_be_bytes());
            }
            Self::Arrived { until } => out.extend_from_slice(&until.to_be_bytes()),
            Self::Flawed(flaws) => flaws.iter().for_each(|(entry, flaw)| {
                out.extend_from_slice(&entry.to_be_bytes());
                out.push(flaw.code());
            }),
            Self::Finished { files, flaws } => {
                out.extend_from_slice(&files.to_be_bytes());
                out.extend_from_slice(&flaws.to_be_bytes());
            }
            Self::Bye | Self::Alive => {}
            Self::Abort { reason, text } => {
                out.push(reason.code());
                out.extend_from_slice(shortened(text).as_bytes());
            }
        }
        out
    }

    /// Decodes a message of a peer.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Malformed);
        }
        let (&tag, rest) = bytes.split_first().ok_or(Malformed)?;
        let mut fields = Fields(rest);
        let message = match tag {
            1 => Self::Offer(fields.offer()?),
            2 => Self::Manifest(fields.rest(1..=PIECE_BYTES_MAX)?),
            3 => {
                Self::Unwanted(fields.list(RANGES_MAX, |fields| Ok(fields.u32()?..fields.u32()?))?)
            }
            4 => Self::Accept(fields.accept()?),
            5 => Self::Grant {
                until: fields.u64()?,
                durable: fields.u64()?,
            },
            6 => Self::Arrived {
                until: fields.u64()?,
            },
            7 => Self::Flawed(fields.list(FLAWS_MAX, |fields| {
                Ok((
                    fields.u32()?,
                    Flaw::from_code(fields.u8()?).ok_or(Malformed)?,
                ))
            })?),
            8 => Self::Finished {
                files: fields.u64()?,
                flaws: fields.u32()?,
            },
            9 => Self::Bye,
            10 => Self::Alive,
            11 => fields.abort()?,
            _ => return Err(Malformed),
        };
        if fields.0.is_empty() {
            Ok(message)
        } else {
            Err(Malformed)
        }
    }

    fn tag(&self) -> u8 {
        match self {
            Self::Offer(_) => 1,
            Self::Manifest(_) => 2,
            Self::Unwanted(_) => 3,
            Self::Accept(_) => 4,
            Self::Grant { .. } => 5,
            Self::Arrived { .. } => 6,
            Self::Flawed(_) => 7,
            Self::Finished { .. } => 8,
            Self::Bye => 9,
            Self::Alive => 10,
            Self::Abort { .. } => 11,
        }
    }
}

/// The longest prefix of whole characters that fits.
fn shortened(text: &str) -> &str {
    let fits = text
        .char_indices()
        .map(|(at, character)| at + character.len_utf8());
    &text[..fits
        .take_while(|&end| end <= TEXT_BYTES_MAX)
        .last()
        .unwrap_or(0)]
}

/// Fields from the front of bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn rest(&mut self, lengths: std::ops::RangeInclusive<usize>) -> Result<Vec<u8>, Malformed> {
        let rest = std::mem::take(&mut self.0);
        if lengths.contains(&rest.len()) {
            Ok(rest.to_vec())
        } else {
            Err(Malformed)
        }
    }

    /// A list of at least one and at most `max` elements.
    fn list<T>(
        &mut self,
        max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let mut items = vec![item(self)?];
        while !self.0.is_empty() && items.len() < max {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn offer(&mut self) -> Result<Offer, Malformed> {
        Ok(Offer {
            entries: self.u32()?,
            content_bytes: self.u64()?,
            manifest_bytes: self.u64()?,
            manifest_id: ManifestId(self.array()?),
            key: DataKey::new(self.array()?),
            fast_aes: self.bool()?,
        })
    }

    fn accept(&mut self) -> Result<Accept, Malformed> {
        let first_chunk = self.u64()?;
        let cipher = Cipher::from_code(self.u8()?).ok_or(Malformed)?;
        let slots = self.u32()?;
        let staging = self.rest(0..=STAGING_BYTES_MAX)?;
        if slots == 0 {
            Err(Malformed)
        } else {
            Ok(Accept {
                first_chunk,
                cipher,
                slots,
                staging,
            })
        }
    }

    fn abort(&mut self) -> Result<Message, Malformed> {
        let reason = Reason::from_code(self.u8()?).ok_or(Malformed)?;
        let text = String::from_utf8(self.rest(0..=TEXT_BYTES_MAX)?).map_err(|_| Malformed)?;
        Ok(Message::Abort { reason, text })
    }
}
