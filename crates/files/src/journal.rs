//! What of a transfer is on the disk for good, in a file beside the unfinished ones.
//!
//! ```text
//! slot(40) slot(40)  "airdma-j" version(1) id(32)  names(4) { index(4) length(1) name } ...
//!                    ranges(4) { start(4) end(4) } ...  checksum(32)
//! slot:  generation(8) settled(1 bit) chunks(63 bits) checksum(24)
//! ```
//!
//! The header is written once, under another name, and renamed when it is whole. The slots are written in turn; of those
//! whose checksum is right the later generation counts, so a write that was cut off loses itself and nothing else.
//!
//! A new journal is made durable by the first checkpoint, which syncs its directory and then records: before that there is nothing to vouch
//! for, and what a crash leaves of it is made anew.

use crate::manifest::ManifestId;
use crate::tree::Fitting;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

pub(crate) const NAME: &str = "journal";
const NEW: &str = "journal.new";
const MAGIC: &[u8; 9] = b"airdma-j\x01";
const SLOT_BYTES: usize = 40;
const CHECKSUM: &str = "airdma files journal 1";
/// The bit that says so.
const SETTLED: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    id: ManifestId,
    generation: u64,
}

/// What a journal says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Chunks from the first on that are durable.
    pub chunks: u64,
    /// Whether all was in its place, so that nothing is ours to change any more.
    pub is_settled: bool,
    pub fitting: Fitting,
}

impl Journal {
    /// A journal that says that nothing is durable yet.
    pub fn create(staging: BorrowedFd<'_>, id: ManifestId, fitting: &Fitting) -> io::Result<Self> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(
            staging,
            NEW,
            flags,
            Mode::from_raw_mode(0o600),
        )?);
        file.write_all_at(&header(id, fitting), 2 * SLOT_BYTES as u64)?;
        let mut journal = Self {
            file,
            id,
            generation: 0,
        };
        journal.write(0)?;
        rustix::fs::renameat(staging, NEW, staging, NAME)?;
        Ok(journal)
    }

    /// The journal that is there, and what it says; none if there is none that is sound and for this offer.
    pub fn open(staging: BorrowedFd<'_>, id: ManifestId) -> io::Result<Option<(Self, Record)>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = match rustix::fs::openat(staging, NAME, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let Some((slots, header)) = bytes.split_at_checked(2 * SLOT_BYTES) else {
            return Ok(None);
        };
        let latest = slots
            .chunks(SLOT_BYTES)
            .filter_map(|slot| read_slot(slot, id))
            .max();
        let found = latest.zip(read_header(header, id));
        Ok(found.map(|((generation, chunks), fitting)| {
            (
                Self {
                    file,
                    id,
                    generation,
                },
                Record {
                    chunks: chunks & !SETTLED,
                    is_settled: chunks & SETTLED != 0,
                    fitting,
                },
            )
        }))
    }

    /// Says durably that the first `chunks` chunks are durable.
    pub fn record(&mut self, chunks: u64) -> io::Result<()> {
        self.write(chunks)?;
        self.file.sync_data()
    }

    /// Says that all `chunks` chunks, and all else that was offered, are in their place. A disk that loses it has the record before.
    pub fn settle(&mut self, chunks: u64) -> io::Result<()> {
        self.write(chunks | SETTLED)
    }

    fn write(&mut self, chunks: u64) -> io::Result<()> {
        self.generation += 1;
        let offset = (self.generation % 2) * SLOT_BYTES as u64;
        self.file
            .write_all_at(&slot(self.generation, chunks, self.id), offset)
    }
}

#[cfg(test)]
impl Journal {
    /// From now on it cannot be written, as on a broken disk.
    pub fn refuse_writes(&mut self) {
        self.file = File::open("/dev/null").unwrap();
    }
}

fn slot(generation: u64, chunks: u64, id: ManifestId) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&generation.to_be_bytes());
    slot[8..16].copy_from_slice(&chunks.to_be_bytes());
    let sum = checksum(&[&slot[..16], &id.0]);
    slot[16..].copy_from_slice(&sum[..SLOT_BYTES - 16]);
    slot
}

/// Generation and chunks.
fn read_slot(bytes: &[u8], id: ManifestId) -> Option<(u64, u64)> {
    let mut fields = bytes
        .chunks_exact(8)
        .map_while(|field| field.try_into().ok())
        .map(u64::from_be_bytes);
    let (generation, chunks) = fields.next().zip(fields.next())?;
    (slot(generation, chunks, id) == bytes).then_some((generation, chunks))
}

fn header(id: ManifestId, fitting: &Fitting) -> Vec<u8> {
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
    let sum = checksum(&[&out]);
    out.extend_from_slice(&sum);
    out
}

fn read_header(bytes: &[u8], id: ManifestId) -> Option<Fitting> {
    let (body, sum) = bytes.split_last_chunk::<32>()?;
    let rest = body.strip_prefix(MAGIC)?.strip_prefix(&id.0)?;
    if *sum != checksum(&[body]) {
        return None;
    }
    let mut rest = rest;
    let mut fitting = Fitting::default();
    for _ in 0..u32::from_be_bytes(take(&mut rest)?) {
        let index = u32::from_be_bytes(take(&mut rest)?);
        let [length] = take(&mut rest)?;
        let (name, after) = rest.split_at_checked(usize::from(length))?;
        fitting.renamed.insert(index, name.into());
        rest = after;
    }
    for _ in 0..u32::from_be_bytes(take(&mut rest)?) {
        let start = u32::from_be_bytes(take(&mut rest)?);
        let end = u32::from_be_bytes(take(&mut rest)?);
        fitting.unwanted.push_range(start..end).then_some(())?;
    }
    rest.is_empty().then_some(fitting)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

fn checksum(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(CHECKSUM);
    parts.iter().for_each(|part| {
        hasher.update(part);
    });
    *hasher.finalize().as_bytes()
}
