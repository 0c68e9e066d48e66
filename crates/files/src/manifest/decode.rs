//! Decodes a manifest that arrives in pieces, from a peer that may be hostile.

use super::encode::{MAGIC, TAG_DIRECTORY, TAG_END, TAG_FILE, TAG_SPARSE, TAG_SYMLINK, VERSION};
use super::{
    Builder, Content, EXTENTS_MAX, Entry, Extent, Kind, Limits, Manifest, ManifestError,
    ManifestId, Modified,
};

/// Decodes a manifest piece by piece.
///
/// It never holds more than [`Limits`] allow and the beginning of one entry (at most 66 KiB); after
/// an error it accepts nothing more.
#[derive(Debug)]
pub struct Decoder {
    builder: Builder,
    hasher: blake3::Hasher,
    /// Bytes of an incomplete item.
    rest: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Entries,
    Ended,
    Refused(ManifestError),
}

/// An item of the encoding.
enum Item {
    Entry(Entry),
    End { entries: u32 },
}

impl Decoder {
    /// A decoder without input.
    pub fn new(limits: Limits) -> Self {
        Self {
            builder: Builder::new(limits),
            hasher: blake3::Hasher::new(),
            rest: Vec::new(),
            state: State::Header,
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ManifestError> {
        self.hasher.update(bytes);
        // In small pieces: an error early in a large one leaves little unread.
        for piece in bytes.chunks(1 << 16) {
            self.rest.extend_from_slice(piece);
            let mut taken = 0;
            let result = self.take_items(&mut taken);
            self.rest.drain(..taken);
            if let Err(error) = result {
                self.rest = Vec::new();
                self.state = State::Refused(error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether the end was decoded.
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// The manifest and its hash, once the end was decoded.
    pub fn finish(self) -> Result<(Manifest, ManifestId), ManifestError> {
        match self.state {
            State::Ended => Ok((
                self.builder.finish(),
                ManifestId(*self.hasher.finalize().as_bytes()),
            )),
            State::Refused(error) => Err(error),
            State::Header | State::Entries => Err(ManifestError::End),
        }
    }

    fn take_items(&mut self, taken: &mut usize) -> Result<(), ManifestError> {
        loop {
            let mut fields = Fields {
                bytes: &self.rest[*taken..],
            };
            match self.state {
                State::Header => {
                    let Some(header) = fields.take(MAGIC.len() + 1) else {
                        return Ok(());
                    };
                    if header[..MAGIC.len()] != *MAGIC || header[MAGIC.len()] != VERSION {
                        return Err(ManifestError::Format);
                    }
                    self.state = State::Entries;
                }
                State::Entries => match item(&mut fields)? {
                    None => return Ok(()),
                    Some(Item::Entry(entry)) => {
                        self.builder.push(entry)?;
                    }
                    Some(Item::End { entries }) if entries as usize == self.builder.len() => {
                        self.state = State::Ended
                    }
                    Some(Item::End { .. }) => return Err(ManifestError::End),
                },
                State::Ended if fields.bytes.is_empty() => return Ok(()),
                State::Ended => return Err(ManifestError::End),
                State::Refused(error) => return Err(error),
            }
            *taken = self.rest.len() - fields.bytes.len();
        }
    }
}

/// The next item; `None` if it is incomplete.
fn item(fields: &mut Fields<'_>) -> Result<Option<Item>, ManifestError> {
    let Some(tag) = fields.u8() else {
        return Ok(None);
    };
    match tag {
        TAG_END => Ok(fields.u32().map(|entries| Item::End { entries })),
        TAG_DIRECTORY | TAG_FILE | TAG_SPARSE | TAG_SYMLINK => {
            let Some(mut entry) = head(fields) else {
                return Ok(None);
            };
            let Some(kind) = kind(tag, fields)? else {
                return Ok(None);
            };
            entry.kind = kind;
            Ok(Some(Item::Entry(entry)))
        }
        _ => Err(ManifestError::Kind),
    }
}

/// Decodes what all kinds begin with.
fn head(fields: &mut Fields<'_>) -> Option<Entry> {
    let depth = fields.u8()?;
    let name_bytes = fields.u8()?;
    let name = fields.take(usize::from(name_bytes))?.into();
    let mode = fields.u16()?;
    let modified = Modified {
        seconds: fields.u64()?.cast_signed(),
        nanos: fields.u32()?,
    };
    Some(Entry {
        parent: None,
        depth,
        name,
        mode,
        modified,
        kind: Kind::Directory,
    })
}

fn kind(tag: u8, fields: &mut Fields<'_>) -> Result<Option<Kind>, ManifestError> {
    Ok(match tag {
        TAG_FILE => fields.u64().zip(fields.u64()).map(|(size, stamp)| {
            Kind::File(Content {
                size,
                stamp,
                extents: None,
            })
        }),
        TAG_SPARSE => {
            let Some((size, stamp)) = fields.u64().zip(fields.u64()) else {
                return Ok(None);
            };
            extents(fields)?.map(|extents| {
                Kind::File(Content {
                    size,
                    stamp,
                    extents: Some(extents),
                })
            })
        }
        TAG_SYMLINK => {
            let target_bytes = fields.u16().map(usize::from);
            target_bytes
                .and_then(|bytes| fields.take(bytes))
                .map(|target| Kind::Symlink(target.into()))
        }
        _ => Some(Kind::Directory),
    })
}

fn extents(fields: &mut Fields<'_>) -> Result<Option<Box<[Extent]>>, ManifestError> {
    let Some(count) = fields.u32() else {
        return Ok(None);
    };
    if count as usize > EXTENTS_MAX {
        return Err(ManifestError::Extents);
    }
    let Some(bytes) = fields.take(count as usize * 16) else {
        return Ok(None);
    };
    let mut fields = Fields { bytes };
    let mut extents = Vec::with_capacity(count as usize);
    let mut before = 0_u64;
    while let Some((offset, length)) = fields.u64().zip(fields.u64()) {
        extents.push(Extent {
            offset,
            length,
            before,
        });
        before = before.checked_add(length).ok_or(ManifestError::Extents)?;
    }
    Ok(Some(extents.into()))
}

/// Fields from the front of bytes; `None` once they run out.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}
