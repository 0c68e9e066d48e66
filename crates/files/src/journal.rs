//! The journal of a transfer: how much of it is durable. A file next to the unfinished ones.
//!
//! ```text
//! slot(40) slot(40)  "airdma-j" version(1) id(32)  names(4) { index(4) length(1) name } ...
//!                    ranges(4) { start(4) end(4) } ...  seal(32)
//! slot:  generation(8) settled(1 bit) chunks(63 bits) seal(24)
//! ```
//!
//! The header is written once, under another name, and renamed when complete. The slots are written
//! in turn; of those with a valid seal the later generation counts, so an interrupted write loses
//! only itself.
//!
//! Seals are keyed ([`JournalKey`](crate::JournalKey)) and cover everything: a slot's seal covers
//! the header's. A file that another user put there is not a journal, and a journal is believed
//! only if this receiver can have written it.
//!
//! A new journal is made durable by the first checkpoint, which syncs its directory and then
//! records: until then it vouches for nothing, and the remains of a crash are replaced.

use crate::journal_key::Seal;
use crate::manifest::{Kind, Manifest, ManifestId, NAME_BYTES_MAX};
use crate::owned::Owned;
use crate::plan::{Plan, Unwanted};
use crate::survey::is_numbered;
use crate::tree::Fitting;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

pub(crate) const NAME: &str = "journal";
pub(crate) const NEW: &str = "journal.new";
const MAGIC: &[u8; 9] = b"airdma-j\x02";
const SLOT_BYTES: usize = 40;
const SEAL_BYTES: usize = 32;
/// Bit that marks a transfer as settled.
const SETTLED: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    seal: Seal,
    /// Seal of the header.
    header: [u8; SEAL_BYTES],
    generation: u64,
}

/// Contents of a journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number of chunks, from the first on, that are durable.
    pub chunks: u64,
    /// Whether everything has its final name, so that this receiver may change nothing any more.
    pub is_settled: bool,
    pub fitting: Fitting,
}

impl Journal {
    /// Creates a journal without durable chunks, in an empty directory.
    pub fn create(
        staging: BorrowedFd<'_>,
        id: ManifestId,
        seal: Seal,
        fitting: &Fitting,
    ) -> io::Result<Self> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(
            staging,
            NEW,
            flags,
            Mode::from_raw_mode(0o600),
        )?);
        let mut body = body(id, fitting);
        let header = seal.of(&[&body]);
        body.extend_from_slice(&header);
        file.write_all_at(&body, 2 * SLOT_BYTES as u64)?;
        let mut journal = Self {
            file,
            seal,
            header,
            generation: 0,
        };
        journal.write(0)?;
        rustix::fs::renameat(staging, NEW, staging, NAME)?;
        Ok(journal)
    }

    /// Opens the journal, and returns its contents.
    ///
    /// `None` if there is no journal that is sealed for this offer and directory and has its owner,
    /// or if this receiver cannot have written it.
    pub fn open(
        staging: BorrowedFd<'_>,
        owned: Owned,
        id: ManifestId,
        seal: Seal,
        manifest: &Manifest,
    ) -> io::Result<Option<(Self, Record)>> {
        let Some(file) = open_own(staging, owned)? else {
            return Ok(None);
        };
        let bytes_max = bytes_max(manifest);
        let mut bytes = Vec::new();
        (&file).take(bytes_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Ok(None);
        }
        let Some((record, header, generation)) = read(&bytes, id, &seal) else {
            return Ok(None);
        };
        let journal = Self {
            file,
            seal,
            header,
            generation,
        };
        Ok(record.is_possible(manifest).then_some((journal, record)))
    }

    /// Records durably that the first `chunks` chunks are durable.
    pub fn record(&mut self, chunks: u64) -> io::Result<()> {
        self.write(chunks)?;
        self.file.sync_data()
    }

    /// Records that all `chunks` chunks, and everything else that was offered, have their final
    /// names.
    ///
    /// If the disk loses this record, the one before still holds.
    pub fn settle(&mut self, chunks: u64) -> io::Result<()> {
        self.write(chunks | SETTLED)
    }

    fn write(&mut self, chunks: u64) -> io::Result<()> {
        self.generation += 1;
        let offset = (self.generation % 2) * SLOT_BYTES as u64;
        let slot = slot(self.generation, chunks, &self.header, &self.seal);
        self.file.write_all_at(&slot, offset)
    }
}

impl Record {
    /// Whether a receiver of this offer can have written the contents.
    ///
    /// The key vouches for that already; should it become known, a forged journal can still name
    /// only what the offer can name.
    fn is_possible(&self, manifest: &Manifest) -> bool {
        let Fitting { renamed, unwanted } = &self.fitting;
        let entries = manifest.entries();
        let is_renamed = |index: u32, name: &[u8]| {
            let entry = entries.get(index as usize);
            entry.is_some_and(|entry| entry.depth == 0 && is_numbered(entry, name))
        };
        let is_kept = |index: u32| {
            let entry = entries.get(index as usize);
            entry.is_some_and(|entry| entry.kind != Kind::Directory)
        };
        let inside = |range: &std::ops::Range<u32>| range.end as usize <= entries.len();
        if !renamed.iter().all(|(&index, name)| is_renamed(index, name))
            || !unwanted.ranges().iter().all(inside)
            || !unwanted.ranges().iter().cloned().flatten().all(is_kept)
        {
            return false;
        }
        let chunks = Plan::new(manifest, unwanted).chunks();
        self.chunks <= chunks && (!self.is_settled || self.chunks == chunks)
    }
}

/// Opens a regular file of the directory's owner that has one name only, without blocking.
fn open_own(staging: BorrowedFd<'_>, owned: Owned) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(staging, NAME, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::ACCESS) => {
            return Ok(None);
        }
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    let is_own = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == owned.user()
        && stat.st_nlink <= 1;
    Ok(is_own.then(|| File::from(file)))
}

/// Length of the longest journal of this offer: each top-level entry renamed, and every second
/// entry unwanted.
fn bytes_max(manifest: &Manifest) -> u64 {
    let entries = manifest.entries();
    let tops = entries.iter().filter(|entry| entry.depth == 0).count();
    let names = tops * (4 + 1 + NAME_BYTES_MAX);
    let ranges = entries.len().div_ceil(2) * 8;
    let fixed = 2 * SLOT_BYTES + MAGIC.len() + 32 + 4 + 4 + SEAL_BYTES;
    (fixed + names + ranges) as u64
}

fn slot(generation: u64, chunks: u64, header: &[u8; SEAL_BYTES], seal: &Seal) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&generation.to_be_bytes());
    slot[8..16].copy_from_slice(&chunks.to_be_bytes());
    let sealed = seal.of(&[header, &slot[..16]]);
    slot[16..].copy_from_slice(&sealed[..SLOT_BYTES - 16]);
    slot
}

fn body(id: ManifestId, fitting: &Fitting) -> Vec<u8> {
    let mut out = [&MAGIC[..], &id.0].concat();
    out.extend_from_slice(&(fitting.renamed.len() as u32).to_be_bytes());
    for (index, name) in &fitting.renamed {
        out.extend_from_slice(&index.to_be_bytes());
        out.push(name.len() as u8);
        out.extend_from_slice(name);
    }
    out.extend_from_slice(&(fitting.unwanted.ranges().len() as u32).to_be_bytes());
    for range in fitting.unwanted.ranges() {
        out.extend_from_slice(&range.start.to_be_bytes());
        out.extend_from_slice(&range.end.to_be_bytes());
    }
    out
}

/// Contents of a journal, the seal of its header, and its generation.
fn read(bytes: &[u8], id: ManifestId, seal: &Seal) -> Option<(Record, [u8; SEAL_BYTES], u64)> {
    let (slots, rest) = bytes.split_at_checked(2 * SLOT_BYTES)?;
    let (body, header) = rest.split_last_chunk::<SEAL_BYTES>()?;
    if *header != seal.of(&[body]) {
        return None;
    }
    let slots = slots.chunks(SLOT_BYTES);
    let latest = slots.filter_map(|slot| read_slot(slot, header, seal));
    let (generation, chunks) = latest.max()?;
    let record = Record {
        chunks: chunks & !SETTLED,
        is_settled: chunks & SETTLED != 0,
        fitting: read_body(body, id)?,
    };
    // A journal at the last generation cannot be written any more.
    (generation < u64::MAX).then_some((record, *header, generation))
}

/// Generation and chunks of a slot.
fn read_slot(bytes: &[u8], header: &[u8; SEAL_BYTES], seal: &Seal) -> Option<(u64, u64)> {
    let mut fields = bytes
        .chunks_exact(8)
        .map_while(|field| field.try_into().ok())
        .map(u64::from_be_bytes);
    let (generation, chunks) = fields.next().zip(fields.next())?;
    (slot(generation, chunks, header, seal) == bytes).then_some((generation, chunks))
}

fn read_body(bytes: &[u8], id: ManifestId) -> Option<Fitting> {
    let mut rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&id.0)?;
    let mut fitting = Fitting::default();
    for _ in 0..u32::from_be_bytes(take(&mut rest)?) {
        let index = u32::from_be_bytes(take(&mut rest)?);
        let [length] = take(&mut rest)?;
        let (name, after) = rest.split_at_checked(usize::from(length))?;
        fitting.renamed.insert(index, name.into());
        rest = after;
    }
    let mut unwanted = Unwanted::default();
    for _ in 0..u32::from_be_bytes(take(&mut rest)?) {
        let start = u32::from_be_bytes(take(&mut rest)?);
        let end = u32::from_be_bytes(take(&mut rest)?);
        unwanted.push_range(start..end).then_some(())?;
    }
    fitting.unwanted = unwanted;
    rest.is_empty().then_some(fitting)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

/// A journal as bytes, sealed like this receiver's: for a fuzz target, whose bytes then pass the
/// seals.
#[doc(hidden)]
pub fn sealed(
    key: &crate::JournalKey,
    id: ManifestId,
    directory: &std::path::Path,
    fields: &[u8],
    slots: [(u64, u64); 2],
) -> (String, Vec<u8>) {
    let seal = key.seal(id, directory, Owned::own());
    let body = [&MAGIC[..], &id.0, fields].concat();
    let header = seal.of(&[&body]);
    let [first, second] =
        slots.map(|(generation, chunks)| slot(generation, chunks, &header, &seal));
    let bytes = [&first[..], &second, &body, &header].concat();
    (key.staging_name(id), bytes)
}

#[cfg(test)]
impl Journal {
    /// Makes writes fail from now on, as on a broken disk.
    pub fn refuse_writes(&mut self) {
        self.file = File::open("/dev/null").unwrap();
    }
}
