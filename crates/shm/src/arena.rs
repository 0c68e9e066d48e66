//! Memory that can be shared with another process: blocks cut from memfds.
//!
//! A chunk is one sealed memfd, mapped once. Blocks are cut from chunks of 2 MiB at least; chunks
//! grow with the arena, up to 64 MiB, so that thousands of queues take few descriptors (pages that
//! were never touched cost nothing). A block of more than half a chunk gets a chunk of its own. A
//! dropped block is zeroed and its range used again; at 64 KiB and more its pages go back to the
//! system at once. A chunk without blocks is unmapped, except for one that is kept for the next
//! block.
//!
//! After fork() the child sees its parent's memory. It never gets new blocks from it, and dropping
//! a block there changes nothing for the parent.

mod extents;
mod mapping;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use extents::Extents;
use mapping::{Mapping, invalid, page_size};

/// Bytes of the smallest chunk.
pub const CHUNK_BYTES_MIN: usize = 2 << 20;
/// Bytes of the largest chunk that several blocks share.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;
/// Blocks start at multiples of this, and no two share a pair of cache lines.
pub const BLOCK_ALIGN_MIN: usize = 128;

/// An allocator of shared memory. Clones are handles of the same arena.
///
/// The memory lives as long as one of the handles or blocks.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    shared: Arc<Shared>,
}

impl Arena {
    /// An arena without any memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates a zeroed block of `bytes` bytes at a multiple of `align`.
    ///
    /// # Errors
    /// `InvalidInput` if `bytes` is 0 or exceeds the address space, or `align` is not a power of
    /// two up to the page size; the system's error if memory or descriptors run out.
    pub fn alloc(&self, bytes: usize, align: usize) -> io::Result<Block> {
        if bytes == 0
            || bytes > isize::MAX as usize / 2
            || !align.is_power_of_two()
            || align > page_size()
        {
            return Err(invalid("block of an impossible size or alignment"));
        }
        let reserved = bytes.next_multiple_of(BLOCK_ALIGN_MIN);
        let align = align.max(BLOCK_ALIGN_MIN);
        let mut chunks = self.shared.lock();
        // Blocks must not come from chunks that the parent process made.
        chunks.retain(|chunk| chunk.mapping.is_ours());
        let (mapping, offset) = match take_from(&mut chunks, reserved, align) {
            Some(found) => found,
            None => take_from_new(&mut chunks, reserved)?,
        };
        Ok(Block {
            mapping,
            offset,
            len: bytes,
            reserved,
            home: Some(Arc::clone(&self.shared)),
        })
    }

    /// Bytes of all chunks, used or not.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        total(&self.shared.lock())
    }

    /// Bytes of the blocks that are in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let chunks = self.shared.lock();
        let free: usize = chunks.iter().map(|chunk| chunk.extents.free_bytes()).sum();
        total(&chunks) - free
    }

    /// Calls `handle` with the descriptor and the size of each chunk, to pass them on to another
    /// process.
    pub fn for_each_chunk(&self, mut handle: impl FnMut(BorrowedFd<'_>, usize)) {
        for chunk in self.shared.lock().iter() {
            handle(chunk.mapping.fd(), chunk.mapping.len());
        }
    }
}

/// A piece of shared memory. Another process may write to it at any time: access it through atomics
/// and raw copies only.
#[derive(Debug)]
pub struct Block {
    mapping: Arc<Mapping>,
    /// Where it starts in the mapping.
    offset: usize,
    len: usize,
    /// Bytes that the block takes of its chunk: `len`, rounded up.
    reserved: usize,
    /// Arena that gets the range when the block is dropped; none for memory of another process.
    home: Option<Arc<Shared>>,
}

impl Block {
    /// Maps memory that another process made: `len` bytes from `offset` on, as [`Block::offset`]
    /// returned there.
    ///
    /// # Errors
    /// `InvalidInput` if the descriptor is not a memfd sealed against shrinking (its owner could
    /// cut the memory off), if the memfd is shorter, or if `offset` is not a multiple of
    /// [`BLOCK_ALIGN_MIN`]; the system's error if it cannot map the memory.
    pub fn map(fd: OwnedFd, offset: u64, len: usize) -> io::Result<Block> {
        let page = page_size() as u64;
        if len == 0 || !offset.is_multiple_of(BLOCK_ALIGN_MIN as u64) {
            return Err(invalid("block of an impossible size or alignment"));
        }
        let skip = (offset % page) as usize;
        let mapped = len
            .checked_add(skip)
            .ok_or_else(|| invalid("block beyond any memory"))?;
        let mapping = Mapping::open(fd, offset - offset % page, mapped)?;
        Ok(Block {
            mapping: Arc::new(mapping),
            offset: skip,
            len,
            reserved: len,
            home: None,
        })
    }

    /// A part of memory that another process made: `len` bytes from `offset` on of this block,
    /// which stays mapped as long as one of its parts lives.
    ///
    /// # Errors
    /// `InvalidInput` if that is no part of this block, if `offset` is not a multiple of
    /// [`BLOCK_ALIGN_MIN`], or if the block is this process's own.
    pub fn part(&self, offset: u64, len: usize) -> io::Result<Block> {
        let start = usize::try_from(offset).ok();
        let start = start.filter(|start| start.is_multiple_of(BLOCK_ALIGN_MIN));
        let end = start.and_then(|start| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if len > 0 && end <= self.len && self.home.is_none() => {
                Ok(Block {
                    mapping: Arc::clone(&self.mapping),
                    offset: self.offset + start,
                    len,
                    reserved: len,
                    home: None,
                })
            }
            _ => Err(invalid("shared memory that is no part of what was passed")),
        }
    }

    /// Where the block starts in this process; aligned to [`BLOCK_ALIGN_MIN`] at least.
    #[must_use]
    #[inline]
    pub fn ptr(&self) -> NonNull<u8> {
        // SAFETY: the offset lies within the mapping.
        unsafe { self.mapping.base().add(self.offset) }
    }

    /// Bytes of the block.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty)] // A block is never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memfd it lies in.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }

    /// Whether other blocks lie in the same mapping.
    #[must_use]
    pub fn has_other_parts(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }

    /// Where it starts in the memfd. Meaningless for a block that [`Block::map`] made.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(home) = &self.home else {
            return;
        };
        if !self.mapping.is_ours() {
            return;
        }
        // SAFETY: the range belongs to this block alone, and a block that is dropped is not
        // borrowed.
        unsafe { self.mapping.zero(self.offset, self.reserved) };
        give_back(&mut home.lock(), self);
    }
}

#[derive(Debug, Default)]
struct Shared {
    chunks: Mutex<Vec<Chunk>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Chunk>> {
        // The chunks are consistent even if the lock is poisoned: no change to them can panic
        // halfway.
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mapping, all of whose free ranges are zero.
#[derive(Debug)]
struct Chunk {
    mapping: Arc<Mapping>,
    extents: Extents,
}

fn take_from(chunks: &mut [Chunk], bytes: usize, align: usize) -> Option<(Arc<Mapping>, usize)> {
    chunks.iter_mut().find_map(|chunk| {
        let offset = chunk.extents.take(bytes, align)?;
        Some((Arc::clone(&chunk.mapping), offset))
    })
}

/// Adds a chunk and takes its start, which suits every alignment.
fn take_from_new(chunks: &mut Vec<Chunk>, bytes: usize) -> io::Result<(Arc<Mapping>, usize)> {
    let shared = total(chunks)
        .next_power_of_two()
        .clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
    let len = if bytes > shared / 2 {
        bytes.next_multiple_of(page_size())
    } else {
        shared
    };
    let mapping = Arc::new(Mapping::create(len)?);
    let mut extents = Extents::all_free(len);
    let offset = extents
        .take(bytes, BLOCK_ALIGN_MIN)
        .expect("a new chunk holds its first block");
    chunks.push(Chunk {
        mapping: Arc::clone(&mapping),
        extents,
    });
    Ok((mapping, offset))
}

fn give_back(chunks: &mut Vec<Chunk>, block: &Block) {
    let Some(index) = chunks
        .iter()
        .position(|chunk| Arc::ptr_eq(&chunk.mapping, &block.mapping))
    else {
        return;
    };
    chunks[index].extents.give(block.offset, block.reserved);
    if !chunks[index].extents.is_all_free() {
        return;
    }
    let spare =
        |chunk: &Chunk| chunk.extents.is_all_free() && chunk.mapping.len() <= CHUNK_BYTES_MAX;
    let others = chunks
        .iter()
        .enumerate()
        .filter(|&(other, chunk)| other != index && spare(chunk))
        .count();
    if others > 0 || !spare(&chunks[index]) {
        chunks.swap_remove(index);
    }
}

fn total(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.mapping.len()).sum()
}

#[cfg(test)]
mod tests;
