//! A manifest as bytes, in network byte order.
//!
//! ```text
//! "airdma-m" version(1)   entry ...   0 entries(4)
//!
//! entry:  tag(1) depth(1) name_bytes(1) name  mode(2) seconds(8) nanos(4)  and by tag:
//!           1 directory
//!           2 file          size(8) stamp(8)
//!           3 sparse file   size(8) stamp(8) extents(4) { offset(8) length(8) } ...
//!           4 symbolic link target_bytes(2) target
//! ```

use super::{Content, Entry, Kind, Manifest, ManifestId};

pub(super) const MAGIC: &[u8; 8] = b"airdma-m";
pub(super) const VERSION: u8 = 1;

pub(super) const TAG_END: u8 = 0;
pub(super) const TAG_DIRECTORY: u8 = 1;
pub(super) const TAG_FILE: u8 = 2;
pub(super) const TAG_SPARSE: u8 = 3;
pub(super) const TAG_SYMLINK: u8 = 4;

/// Tag, depth, length of the name, mode and time.
const ENTRY_BYTES: u64 = 1 + 1 + 1 + 2 + 8 + 4;

impl Manifest {
    /// The manifest as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.entries.len() * 64);
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        self.entries.iter().for_each(|entry| entry.encode(&mut out));
        out.push(TAG_END);
        // A manifest has at most `u32::MAX` entries: `Builder::push`.
        out.extend_from_slice(&(self.entries.len() as u32).to_be_bytes());
        out
    }

    /// The hash of the encoded manifest.
    pub fn id(&self) -> ManifestId {
        ManifestId::of(&self.encode())
    }
}

impl ManifestId {
    /// The hash of an encoded manifest.
    pub(crate) fn of(encoded: &[u8]) -> Self {
        Self(*blake3::hash(encoded).as_bytes())
    }
}

impl Entry {
    /// Lengths fit: `Entry::check` has checked names, targets and extents.
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.tag(), self.depth, self.name.len() as u8]);
        out.extend_from_slice(&self.name);
        out.extend_from_slice(&self.mode.to_be_bytes());
        out.extend_from_slice(&self.modified.seconds.to_be_bytes());
        out.extend_from_slice(&self.modified.nanos.to_be_bytes());
        match &self.kind {
            Kind::Directory => {}
            Kind::File(content) => content.encode(out),
            Kind::Symlink(target) => {
                out.extend_from_slice(&(target.len() as u16).to_be_bytes());
                out.extend_from_slice(target);
            }
        }
    }

    fn tag(&self) -> u8 {
        match &self.kind {
            Kind::Directory => TAG_DIRECTORY,
            Kind::File(Content { extents: None, .. }) => TAG_FILE,
            Kind::File(Content {
                extents: Some(_), ..
            }) => TAG_SPARSE,
            Kind::Symlink(_) => TAG_SYMLINK,
        }
    }

    /// Bytes that `encode` writes.
    pub(super) fn encoded_bytes(&self) -> u64 {
        let rest = match &self.kind {
            Kind::Directory => 0,
            Kind::File(Content { extents: None, .. }) => 16,
            Kind::File(Content {
                extents: Some(extents),
                ..
            }) => 20 + 16 * extents.len() as u64,
            Kind::Symlink(target) => 2 + target.len() as u64,
        };
        ENTRY_BYTES + self.name.len() as u64 + rest
    }
}

impl Content {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.size.to_be_bytes());
        out.extend_from_slice(&self.stamp.to_be_bytes());
        if let Some(extents) = &self.extents {
            out.extend_from_slice(&(extents.len() as u32).to_be_bytes());
            for extent in extents {
                out.extend_from_slice(&extent.offset.to_be_bytes());
                out.extend_from_slice(&extent.length.to_be_bytes());
            }
        }
    }
}
