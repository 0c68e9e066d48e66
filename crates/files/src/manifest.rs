//! The manifest of an offer: directories, files and symbolic links in the order of a walk.
//!
//! Depth first, and the children of a directory in ascending order of their names as bytes. So each
//! entry holds only its depth and its own name, a path cannot hold "..", no name can occur twice,
//! and the same tree gives the same manifest. Its BLAKE3 hash ([`ManifestId`]) identifies an
//! interrupted transfer.
//!
//! Every entry has passed [`Builder::push`], whether it was walked here or received from a peer.

mod decode;
mod encode;
mod names;
#[cfg(test)]
mod tests;

pub use decode::Decoder;
pub(crate) use names::{folded, is_reserved};

use std::fmt;

/// Limits of a manifest, so that a peer cannot make this side store more.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most entries.
    pub entries_max: u32,
    /// Most bytes of the encoded manifest.
    pub bytes_max: u64,
    /// Most directories above an entry.
    pub depth_max: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries_max: 1 << 20,
            bytes_max: 64 << 20,
            depth_max: 100,
        }
    }
}

/// Most bytes of a name: Linux's `NAME_MAX`.
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a symbolic link's target: Linux's `PATH_MAX` without its NUL.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Most runs of data in one sparse file; what lies behind them counts as data.
pub const EXTENTS_MAX: usize = 4096;
/// Prefix of the names of unfinished transfers.
///
/// No offered name may begin with it, nor with a name that some file system treats as the same.
pub const STAGING_PREFIX: &[u8] = b".airdma-";

/// BLAKE3 of the encoded manifest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManifestId(pub [u8; 32]);

impl fmt::Debug for ManifestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// The first 16 hexadecimal digits.
impl fmt::Display for ManifestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8]
            .iter()
            .try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// A valid list of entries: see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    entries: Vec<Entry>,
    content_bytes: u64,
}

/// One directory, file or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Index of the directory that it is in; `None` at the top.
    pub parent: Option<u32>,
    /// Number of directories above it.
    pub depth: u8,
    /// Its own name: no '/', no NUL, not "." or "..".
    pub name: Box<[u8]>,
    /// Permission bits (`0o7777` at most).
    pub mode: u16,
    /// When it was modified.
    pub modified: Modified,
    /// File, directory or link.
    pub kind: Kind,
}

/// Seconds since 1970, and nanoseconds (below 10^9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modified {
    /// May be negative.
    pub seconds: i64,
    /// Below 10^9.
    pub nanos: u32,
}

/// Kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File(Content),
    /// A symbolic link and its target, which may be anything without NUL.
    Symlink(Box<[u8]>),
}

/// Content of a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Bytes, holes included.
    pub size: u64,
    /// Value that changes when the file does, even if size and times do not (see
    /// [`crate::walk()`]). Opaque to the peer.
    pub stamp: u64,
    /// Runs of data, ascending and apart from each other; `None` if the file has no holes.
    pub extents: Option<Box<[Extent]>>,
}

/// A run of data in a sparse file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its offset in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes of data in front of it.
    pub before: u64,
}

impl Content {
    /// Bytes of data: the size without holes.
    pub fn data_bytes(&self) -> u64 {
        match &self.extents {
            None => self.size,
            Some(extents) => extents.last().map_or(0, |last| last.before + last.length),
        }
    }

    /// Where byte `at` of the data lies in the file, and how many bytes of data follow there; `at`
    /// is below [`Content::data_bytes`].
    pub fn locate(&self, at: u64) -> (u64, u64) {
        let Some(extents) = &self.extents else {
            return (at, self.size - at);
        };
        let extent = extents[extents.partition_point(|extent| extent.before <= at) - 1];
        let within = at - extent.before;
        (extent.offset + within, extent.length - within)
    }
}

impl Manifest {
    /// All entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Entry `index`, which must exist.
    pub fn entry(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    /// Indices and entries.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &Entry)> {
        self.entries
            .iter()
            .enumerate()
            .map(|(index, entry)| (index as u32, entry))
    }

    /// Bytes of data in all files.
    pub fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// The path of entry `index`: names from the top, joined by '/'.
    pub fn path(&self, index: u32) -> Vec<u8> {
        let mut names = vec![&*self.entry(index).name];
        names.extend(self.ancestors(index).map(|above| &*self.entry(above).name));
        names.reverse();
        names.join(&b'/')
    }

    /// The directories above entry `index`, the nearest first.
    pub fn ancestors(&self, index: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.entry(index).parent, |&above| self.entry(above).parent)
    }
}

/// Why entries are not a valid manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Another protocol, or another version of it.
    #[error(
        "the list of files is in a format that this version does not know: use the same version at both ends"
    )]
    Format,
    /// An entry of a kind that does not exist.
    #[error("the list of files holds an entry of an unknown kind")]
    Kind,
    /// A name that is no name of a file.
    #[error("the list of files holds a name that is not allowed")]
    Name,
    /// A name that the receiver reserves for unfinished transfers.
    #[error(
        "the list of files holds a name that is kept for unfinished transfers (.airdma-...): leave it out"
    )]
    Reserved,
    /// Names that are not in ascending order, or occur twice.
    #[error("the list of files is out of order, or has a name twice")]
    Order,
    /// An entry whose parent is not a directory.
    #[error("the list of files puts an entry into something that is not a directory")]
    Parent,
    /// Too many nested directories.
    #[error(
        "it lies below more than 100 directories, the most for one transfer: send inner directories by themselves, or all as one file: `tar c DIR | airdma send -`"
    )]
    Depth,
    /// Invalid permission bits or nanoseconds.
    #[error("the list of files holds permissions or a time that do not exist")]
    Attributes,
    /// A size above 2^63 - 1, of a file or in total.
    #[error("the list of files holds a size that no file can have")]
    Size,
    /// Runs of data that are out of order or outside of the file, or too many.
    #[error("the list of files holds a map of holes that makes no sense")]
    Extents,
    /// A missing or overlong target, or one with a NUL.
    #[error("the list of files holds a symbolic link without a proper target")]
    Target,
    /// More than [`Limits`] allow.
    #[error(
        "there are more than 1048576 files, directories and links, or more than 64 MiB of names, the most for one transfer: send its directories one by one, or all as one file: `tar c DIR | airdma send -`"
    )]
    TooMany,
    /// Bytes behind the end, or an invalid end.
    #[error("the list of files does not end where it says")]
    End,
}

/// Makes a manifest, entry by entry.
#[derive(Debug)]
pub struct Builder {
    limits: Limits,
    entries: Vec<Entry>,
    /// Directories that the next entry may be in, from the top.
    open: Vec<u32>,
    /// The last entry at each depth, in the directory that is open there.
    last: Vec<u32>,
    bytes: u64,
    content_bytes: u64,
}

impl Builder {
    /// A manifest without entries.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: Vec::new(),
            open: Vec::new(),
            last: Vec::new(),
            bytes: 0,
            content_bytes: 0,
        }
    }

    /// Adds the next entry of a walk. [`Entry::parent`] is set from its depth.
    pub fn push(&mut self, mut entry: Entry) -> Result<u32, ManifestError> {
        entry.check()?;
        let depth = usize::from(entry.depth);
        if entry.depth > self.limits.depth_max {
            return Err(ManifestError::Depth);
        }
        if depth > self.open.len() {
            return Err(ManifestError::Parent);
        }
        if let Some(&before) = self.last.get(depth)
            && self.entries[before as usize].name >= entry.name
        {
            return Err(ManifestError::Order);
        }
        let bytes = self.bytes + entry.encoded_bytes();
        if self.entries.len() >= self.limits.entries_max as usize || bytes > self.limits.bytes_max {
            return Err(ManifestError::TooMany);
        }
        if let Kind::File(content) = &entry.kind {
            self.content_bytes = sum(self.content_bytes, content.data_bytes())?;
        }
        self.bytes = bytes;
        self.open.truncate(depth);
        self.last.truncate(depth);
        entry.parent = self.open.last().copied();
        let index = u32::try_from(self.entries.len()).map_err(|_| ManifestError::TooMany)?;
        self.last.push(index);
        if entry.kind == Kind::Directory {
            self.open.push(index);
        }
        self.entries.push(entry);
        Ok(index)
    }

    /// The manifest of the added entries.
    pub fn finish(self) -> Manifest {
        Manifest {
            entries: self.entries,
            content_bytes: self.content_bytes,
        }
    }

    /// Number of entries so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Entry {
    /// Checks an entry by itself.
    fn check(&self) -> Result<(), ManifestError> {
        check_name(&self.name)?;
        if self.mode > 0o7777 || self.modified.nanos >= 1_000_000_000 {
            return Err(ManifestError::Attributes);
        }
        match &self.kind {
            Kind::Directory => Ok(()),
            Kind::File(content) => content.check(),
            Kind::Symlink(target) => check_target(target),
        }
    }
}

impl Content {
    fn check(&self) -> Result<(), ManifestError> {
        if self.size > i64::MAX as u64 {
            return Err(ManifestError::Size);
        }
        let Some(extents) = &self.extents else {
            return Ok(());
        };
        if extents.len() > EXTENTS_MAX {
            return Err(ManifestError::Extents);
        }
        let mut before = 0;
        let mut free_from = 0;
        for extent in extents {
            let end = extent
                .offset
                .checked_add(extent.length)
                .ok_or(ManifestError::Extents)?;
            // Adjacent runs must be one: each layout of holes has a single encoding.
            let apart = extent.offset >= free_from;
            if extent.length == 0 || !apart || end > self.size || extent.before != before {
                return Err(ManifestError::Extents);
            }
            before += extent.length;
            free_from = end + 1;
        }
        Ok(())
    }
}

fn check_name(name: &[u8]) -> Result<(), ManifestError> {
    if !names::is_name(name) {
        Err(ManifestError::Name)
    } else if is_reserved(name) {
        Err(ManifestError::Reserved)
    } else {
        Ok(())
    }
}

fn check_target(target: &[u8]) -> Result<(), ManifestError> {
    let forbidden = target.is_empty() || target.len() > TARGET_BYTES_MAX || target.contains(&0);
    if forbidden {
        Err(ManifestError::Target)
    } else {
        Ok(())
    }
}

/// Sum of sizes. More than 2^63 - 1 bytes, trailers and padding of the stream included, cannot be
/// transferred.
fn sum(one: u64, other: u64) -> Result<u64, ManifestError> {
    const SUM_MAX: u64 = i64::MAX as u64 - (1 << 40);
    one.checked_add(other)
        .filter(|&sum| sum <= SUM_MAX)
        .ok_or(ManifestError::Size)
}
