//! The queue in shared memory: its number of blocks, `tail`, and the blocks, each on cache lines of
//! its own.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{
    AtomicU32, AtomicU64, Full, Ordering, Payload, ProducerId, QueueBlock, QueueConsumer,
    QueueWords, Reclaimed, Take,
};
use crate::{Arena, Block, Corrupt};

/// Most blocks of one queue: 4 MiB.
pub const BLOCKS_MAX: u32 = 65_536;

const BLOCKS_MIN: u32 = 2;
const TAIL_OFFSET: usize = 128;
const BLOCKS_OFFSET: usize = 256;
/// Times that one post may be reclaimed before it is refused: its producer hardly gets to run.
const POSTS_MAX: u32 = 16;

/// The consumer's end. The process that makes the queue is its consumer; the queue ends with it.
#[derive(Debug)]
pub struct DoorbellQueue {
    consumer: QueueConsumer,
    memory: QueueMemory,
}

impl DoorbellQueue {
    /// Makes an empty queue of at least `blocks` blocks (rounded up to a power of two).
    ///
    /// # Errors
    ///
    /// `InvalidInput` when `blocks` is not in 2..=[`BLOCKS_MAX`]; what the system says when memory
    /// runs out.
    pub fn new(arena: &Arena, blocks: u32) -> io::Result<Self> {
        if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&blocks) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "doorbell queue of an impossible size",
            ));
        }
        let capacity = blocks.next_power_of_two();
        let block = Arc::new(arena.alloc(bytes_for(capacity), BLOCKS_OFFSET)?);
        // SAFETY: the block is longer than its first word and aligned beyond it; only atomics touch
        // it.
        let geometry = unsafe { AtomicU64::from_ptr(block.ptr().as_ptr().cast()) };
        geometry.store(u64::from(capacity), Ordering::Relaxed);
        let memory = QueueMemory::new(block)
            .map_err(|_| io::Error::other("fresh memory did not hold an empty queue"))?;
        for (index, block) in (0..).zip(memory.blocks()) {
            block.reset(index, 0, capacity);
        }
        Ok(Self {
            consumer: QueueConsumer::new(capacity, 0),
            memory,
        })
    }

    /// A producer's end in this process.
    #[must_use]
    pub fn producer(&self, id: ProducerId) -> DoorbellProducer {
        DoorbellProducer {
            id,
            memory: self.memory.clone(),
        }
    }

    /// Takes the oldest item.
    ///
    /// `now_ns` is any clock that does not go back; `lives` tells whether any thread of a producer
    /// is left ([`crate::Producers::lives`]; once false, false for ever). The work is bounded by
    /// the number of blocks.
    #[inline]
    pub fn take(&mut self, now_ns: u64, lives: impl FnMut(ProducerId) -> bool) -> Take {
        self.consumer.take(self.memory.words(), now_ns, lives)
    }

    /// Whether there is nothing to take or to wait for, as far as this thread can see.
    ///
    /// A consumer that goes to sleep announces it first, and fences with SeqCst before this call; a
    /// producer fences after it posts, and then checks for sleepers.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty(self.memory.words())
    }

    /// Number of blocks.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.capacity
    }

    /// The consumer's counters: reservations taken back, repairs, blocks out of use.
    #[must_use]
    pub fn consumer(&self) -> &QueueConsumer {
        &self.consumer
    }

    /// The memory the queue lies in, to pass on to producers in other processes.
    #[must_use]
    pub fn block(&self) -> &Arc<Block> {
        &self.memory.block
    }
}

/// A producer's end, for all threads of one process.
///
/// The child of a fork needs an end and a number of its own: its parent's number would be taken for
/// dead when the parent ends.
#[derive(Clone, Debug)]
pub struct DoorbellProducer {
    id: ProducerId,
    memory: QueueMemory,
}

impl DoorbellProducer {
    /// Attaches to the queue in `block` as producer `id`, which the consumer has given out.
    ///
    /// # Errors
    /// [`Corrupt::Geometry`] if the block does not hold a queue.
    pub fn attach(block: Arc<Block>, id: ProducerId) -> Result<Self, Corrupt> {
        let memory = QueueMemory::new(block)?;
        Ok(Self { id, memory })
    }

    /// Queues an item. Lock-free.
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was queued.
    #[inline]
    pub fn push(&self, payload: &Payload) -> Result<(), Full> {
        for _ in 0..POSTS_MAX {
            let position = self.memory.words().reserve(self.id)?;
            self.memory.words().write(position, payload);
            if self.memory.words().commit(position, self.id).is_ok() {
                return Ok(());
            }
        }
        Err(Full)
    }

    /// Reserves a block. The caller must do nothing slow until its [`Reservation::commit`].
    ///
    /// # Errors
    /// [`Full`].
    pub fn reserve(&self) -> Result<Reservation<'_>, Full> {
        let position = self.memory.words().reserve(self.id)?;
        Ok(Reservation {
            producer: self,
            position,
            is_open: true,
        })
    }
}

/// A reserved block. Dropped, it is given back without an item.
#[derive(Debug)]
pub struct Reservation<'a> {
    producer: &'a DoorbellProducer,
    position: u32,
    is_open: bool,
}

impl Reservation<'_> {
    /// Writes the item.
    pub fn write(&mut self, payload: &Payload) {
        self.producer.memory.words().write(self.position, payload);
    }

    /// Hands it to the consumer.
    ///
    /// # Errors
    ///
    /// [`Reclaimed`]: it took too long, and the item was not queued.
    pub fn commit(mut self) -> Result<(), Reclaimed> {
        self.is_open = false;
        let producer = self.producer;
        producer.memory.words().commit(self.position, producer.id)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let producer = self.producer;
            producer.memory.words().abandon(self.position, producer.id);
        }
    }
}

/// Where a queue lies in this process, and its size as it was checked.
#[derive(Clone, Debug)]
struct QueueMemory {
    tail: NonNull<AtomicU32>,
    blocks: NonNull<QueueBlock>,
    capacity: u32,
    block: Arc<Block>,
}

// SAFETY: the pointers lead to atomics in `block`, which is Send and Sync and kept alive here.
unsafe impl Send for QueueMemory {}
// SAFETY: as above; every access is atomic.
unsafe impl Sync for QueueMemory {}

impl QueueMemory {
    /// Reads the number of blocks once, and checks that such a queue fits.
    fn new(block: Arc<Block>) -> Result<Self, Corrupt> {
        let base = block.ptr();
        if block.len() < BLOCKS_OFFSET || !base.addr().get().is_multiple_of(TAIL_OFFSET) {
            return Err(Corrupt::Geometry);
        }
        // SAFETY: within the block by the check above, which also aligns it; only ever touched as
        // an atomic.
        let geometry = unsafe { AtomicU64::from_ptr(base.as_ptr().cast()) };
        let capacity = u32::try_from(geometry.load(Ordering::Relaxed))
            .ok()
            .filter(|capacity| {
                capacity.is_power_of_two()
                    && (BLOCKS_MIN..=BLOCKS_MAX).contains(capacity)
                    && bytes_for(*capacity) <= block.len()
            })
            .ok_or(Corrupt::Geometry)?;
        // SAFETY: both offsets lie within the block, which holds the header and that many blocks.
        let (tail, blocks) = unsafe { (base.add(TAIL_OFFSET), base.add(BLOCKS_OFFSET)) };
        Ok(Self {
            tail: tail.cast(),
            blocks: blocks.cast(),
            capacity,
            block,
        })
    }

    #[inline]
    fn blocks(&self) -> &[QueueBlock] {
        // SAFETY: `new` checked that this many blocks lie within the block, aligned to a cache
        // line; they stay mapped while `self` holds the block, and atomics are valid for any bytes
        // and may change under a reference.
        unsafe { NonNull::slice_from_raw_parts(self.blocks, self.capacity as usize).as_ref() }
    }

    #[inline]
    fn words(&self) -> QueueWords<'_> {
        // SAFETY: as above: within the block, aligned, mapped, an atomic.
        QueueWords::new(unsafe { self.tail.as_ref() }, self.blocks())
    }
}

fn bytes_for(capacity: u32) -> usize {
    BLOCKS_OFFSET + capacity as usize * size_of::<QueueBlock>()
}
