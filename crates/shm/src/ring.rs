//! Rings of fixed-stride slots for one producer and one consumer, in memory that two processes
//! share.
//!
//! ```text
//! Block:  0         128         256         384          384 + stride
//!         | geometry | published | released  | slot 0     | slot 1 | ... | slot capacity-1 |
//! ```
//!
//! The index protocol and its orderings are in [`crate::indices`]. The way of a slot:
//!
//! 1. the producer fills [`RingProducer::slot`] `0, 1, ..`, and hands them over with one
//!    [`RingProducer::publish`];
//! 2. the consumer [`RingConsumer::take`]s a slot and may read it, as often and as late as it
//!    likes, through its number;
//! 3. [`RingConsumer::release`] gives the oldest taken slots back.
//!
//! So a send queue keeps a request's gather list in its slot until the request is complete. A
//! completion queue's producer finds `slot(0)` to be `None` when the ring is full (overrun), and
//! nothing was overwritten.
//!
//! The geometry is read once, when an end is attached, and checked against the size of the block.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::indices::{ConsumerIndex, Indices, ProducerIndex};
use crate::slot::{SlotMut, SlotRef};
use crate::{Arena, Block, Corrupt};

/// Most slots of one ring.
pub const RING_SLOTS_MAX: u32 = 1 << 24;
/// Most bytes of one slot.
pub const RING_STRIDE_MAX: u32 = 1 << 20;

const GEOMETRY_OFFSET: usize = 0;
const INDICES_OFFSET: usize = 128;
const SLOTS_OFFSET: usize = INDICES_OFFSET + size_of::<Indices>();
const RING_ALIGN: usize = align_of::<Indices>();

/// Makes an empty ring of at least `slots` slots (rounded up to a power of two) of `stride` bytes
/// each.
///
/// # Errors
/// `InvalidInput` if `slots` is not in 1..=[`RING_SLOTS_MAX`], or `stride` is not a multiple of 8
/// in 8..=[`RING_STRIDE_MAX`]; the system's error if memory runs out.
pub fn ring(arena: &Arena, slots: u32, stride: u32) -> io::Result<(RingProducer, RingConsumer)> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "ring of an impossible size");
    if !(1..=RING_SLOTS_MAX).contains(&slots) {
        return Err(invalid());
    }
    let geometry = Geometry {
        capacity: slots.next_power_of_two(),
        stride,
    };
    let bytes = geometry.bytes().ok_or_else(invalid)?;
    let block = Arc::new(arena.alloc(bytes, RING_ALIGN)?);
    geometry.store(&block);
    // Fresh memory is zero, as are the indices of an empty ring.
    let end = || io::Error::other("fresh memory did not hold an empty ring");
    Ok((
        RingProducer::attach(Arc::clone(&block)).map_err(|_| end())?,
        RingConsumer::attach(block).map_err(|_| end())?,
    ))
}

/// The end that fills slots. May move between threads, but not be used by two at once.
#[derive(Debug)]
pub struct RingProducer {
    index: ProducerIndex,
    memory: RingMemory,
}

impl RingProducer {
    /// Attaches the producer's end of the ring in `block`. The caller ensures that there is only
    /// one.
    ///
    /// # Errors
    /// [`Corrupt`] if the block does not hold a ring.
    pub fn attach(block: Arc<Block>) -> Result<Self, Corrupt> {
        let memory = RingMemory::new(block)?;
        let index = ProducerIndex::attach(memory.indices(), memory.mask + 1)?;
        Ok(Self { index, memory })
    }

    /// Slots of the ring.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.mask + 1
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.memory.stride
    }

    /// Slots free now. Loads the consumer's index; [`RingProducer::slot`] does so only if it must.
    #[inline]
    pub fn free(&mut self) -> u32 {
        self.index.free(self.memory.indices())
    }

    /// Number of the next slot to publish: counted up since the start, wrapping around.
    #[must_use]
    pub fn published(&self) -> u32 {
        self.index.number(0)
    }

    /// Slots that the consumer has not released. Loads the consumer's index.
    pub fn used(&mut self) -> u32 {
        self.capacity() - self.free()
    }

    /// The `n`-th free slot ahead, counted from 0. `None` when fewer are free, or the consumer's
    /// index is corrupt.
    #[inline]
    pub fn slot(&mut self, n: u32) -> Option<SlotMut<'_>> {
        let count = n.checked_add(1)?;
        if !self.index.has_free(self.memory.indices(), count) {
            return None;
        }
        let base = self.memory.slot(self.index.number(n));
        // SAFETY: `RingMemory::slot` gives a whole slot within the block, which `self` keeps mapped
        // while it is borrowed.
        Some(unsafe { SlotMut::new(base, self.memory.stride) })
    }

    /// Hands the next `count` slots to the consumer.
    ///
    /// # Panics
    ///
    /// When `count` is more than [`RingProducer::slot`] or [`RingProducer::free`] have shown to be
    /// free.
    #[inline]
    pub fn publish(&mut self, count: u32) {
        self.index.publish(self.memory.indices(), count);
    }

    /// Whether the consumer has kept to the protocol so far.
    ///
    /// # Errors
    /// [`Corrupt::Index`] once it has not; the ring looks full from then on.
    pub fn check(&self) -> Result<(), Corrupt> {
        self.index.check()
    }

    /// The memory the ring lies in, to pass on to another process.
    #[must_use]
    pub fn block(&self) -> &Arc<Block> {
        &self.memory.block
    }
}

/// The end that takes slots. May move between threads, but not be used by two at once:
///
/// ```compile_fail,E0277
/// fn is_sync<T: Sync>() {}
/// is_sync::<airdma_shm::RingConsumer>();
/// ```
#[derive(Debug)]
pub struct RingConsumer {
    index: ConsumerIndex,
    memory: RingMemory,
}

impl RingConsumer {
    /// Attaches the consumer's end of the ring in `block`. The caller ensures that there is only
    /// one.
    ///
    /// # Errors
    /// [`Corrupt`] if the block does not hold a ring.
    pub fn attach(block: Arc<Block>) -> Result<Self, Corrupt> {
        let memory = RingMemory::new(block)?;
        let index = ConsumerIndex::attach(memory.indices(), memory.mask + 1)?;
        Ok(Self { index, memory })
    }

    /// Slots of the ring.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.mask + 1
    }

    /// Slots published and not yet taken, at most the capacity.
    ///
    /// Loads the producer's index; [`RingConsumer::take`] does so only if it must.
    #[inline]
    pub fn available(&mut self) -> u32 {
        self.index.available(self.memory.indices())
    }

    /// Takes the next published slot and returns its number, a free-running index.
    ///
    /// `None` if there is none, or if the producer's index is corrupt.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.index.take(self.memory.indices())
    }

    /// The slot `number`, which [`RingConsumer::take`] returned and which is not yet released.
    ///
    /// Any other number gives a slot of this ring whose contents are meaningless.
    #[must_use]
    #[inline]
    pub fn slot(&self, number: u32) -> SlotRef<'_> {
        debug_assert!(self.index.holds(number), "slot {number} is not taken");
        // SAFETY: `RingMemory::slot` gives a whole slot within the block, which `self` keeps mapped
        // while it is borrowed.
        unsafe { SlotRef::new(self.memory.slot(number), self.memory.stride) }
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.memory.stride
    }

    /// The `n`-th published slot ahead, counted from 0, without taking it. `None` when fewer are
    /// published.
    #[must_use]
    pub fn ahead(&mut self, n: u32) -> Option<SlotRef<'_>> {
        if n >= self.available() {
            return None;
        }
        let base = self.memory.slot(self.index.number(n));
        // SAFETY: `RingMemory::slot` gives a whole slot within the block, which `self` keeps mapped
        // while it is borrowed.
        Some(unsafe { SlotRef::new(base, self.memory.stride) })
    }

    /// Slots taken and not yet released.
    #[must_use]
    #[inline]
    pub fn taken(&self) -> u32 {
        self.index.taken()
    }

    /// Gives the oldest `count` taken slots back to the producer, which may then overwrite them.
    ///
    /// # Panics
    ///
    /// When fewer are taken.
    #[inline]
    pub fn release(&mut self, count: u32) {
        self.index.release(self.memory.indices(), count);
    }

    /// Takes and releases every slot published or taken so far, unread. Returns the number of slots
    /// freed.
    pub fn discard(&mut self) -> u32 {
        for _ in 0..self.available() {
            self.take();
        }
        let count = self.taken();
        self.release(count);
        count
    }

    /// Whether the producer has kept to the protocol so far.
    ///
    /// # Errors
    /// [`Corrupt::Index`] once it has not; the ring looks empty from then on, and taken slots stay
    /// readable.
    pub fn check(&self) -> Result<(), Corrupt> {
        self.index.check()
    }

    /// The memory the ring lies in, to pass on to another process.
    #[must_use]
    pub fn block(&self) -> &Arc<Block> {
        &self.memory.block
    }
}

/// Looks at a ring of which others have both ends: to learn that something was published, and what.
#[derive(Debug)]
pub struct RingWatch {
    memory: RingMemory,
}

// SAFETY: any number of threads may look: the indices and the slots are read through atomics, and
// the geometry never changes.
unsafe impl Sync for RingWatch {}

impl RingWatch {
    /// Attaches to the ring in `block`.
    ///
    /// # Errors
    /// [`Corrupt`] if the block does not hold a ring.
    pub fn attach(block: Arc<Block>) -> Result<Self, Corrupt> {
        let memory = RingMemory::new(block)?;
        Ok(Self { memory })
    }

    /// Slots of the ring.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.mask + 1
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.memory.stride
    }

    /// Number of slots ever published, as the ring says: any number if its memory is another
    /// process's.
    #[must_use]
    pub fn published(&self) -> u32 {
        self.memory.indices().published()
    }

    /// Whether slots are published and not yet released.
    #[must_use]
    pub fn has_unreleased(&self) -> bool {
        self.memory.indices().has_unreleased()
    }

    /// The slot that `number` leads to. Its contents mean something only if that slot is published
    /// and not used again meanwhile.
    #[must_use]
    pub fn slot(&self, number: u32) -> SlotRef<'_> {
        // SAFETY: `RingMemory::slot` gives a whole slot within the block, which `self` keeps mapped
        // while it is borrowed.
        unsafe { SlotRef::new(self.memory.slot(number), self.memory.stride) }
    }

    /// The memory the ring lies in.
    #[must_use]
    pub fn block(&self) -> &Arc<Block> {
        &self.memory.block
    }
}

/// Number and length of a ring's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    capacity: u32,
    stride: u32,
}

impl Geometry {
    /// Bytes of the ring, header included; `None` if such a ring is not allowed.
    fn bytes(self) -> Option<usize> {
        let sound = self.capacity.is_power_of_two()
            && self.capacity <= RING_SLOTS_MAX
            && (8..=RING_STRIDE_MAX).contains(&self.stride)
            && self.stride.is_multiple_of(8);
        if !sound {
            return None;
        }
        (self.capacity as usize)
            .checked_mul(self.stride as usize)?
            .checked_add(SLOTS_OFFSET)
    }

    fn store(self, block: &Block) {
        let word = u64::from(self.capacity) << 32 | u64::from(self.stride);
        geometry_word(block).store(word, Ordering::Release);
    }

    /// Reads the geometry once, in one word, and checks that such a ring fits.
    fn load(block: &Block) -> Result<Self, Corrupt> {
        if block.len() < SLOTS_OFFSET || !block.ptr().addr().get().is_multiple_of(RING_ALIGN) {
            return Err(Corrupt::Geometry);
        }
        let word = geometry_word(block).load(Ordering::Acquire);
        let geometry = Self {
            capacity: (word >> 32) as u32,
            stride: (word & u64::from(u32::MAX)) as u32,
        };
        match geometry.bytes() {
            Some(bytes) if bytes <= block.len() => Ok(geometry),
            Some(_) | None => Err(Corrupt::Geometry),
        }
    }
}

fn geometry_word(block: &Block) -> &AtomicU64 {
    assert!(
        block.len() >= SLOTS_OFFSET,
        "a ring's block holds its header"
    );
    // SAFETY: within the block by the assertion, aligned because blocks are aligned to at least 8,
    // mapped as long as the block is borrowed, and only ever touched as an atomic.
    unsafe { AtomicU64::from_ptr(block.ptr().as_ptr().add(GEOMETRY_OFFSET).cast()) }
}

/// Where a ring lies in this process, with its checked geometry.
#[derive(Debug)]
struct RingMemory {
    indices: NonNull<Indices>,
    slots: NonNull<u8>,
    mask: u32,
    stride: u32,
    block: Arc<Block>,
    /// An end belongs to one thread at a time.
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: the pointers lead into `block`, which is Send and Sync and kept alive here; what lies
// there is only touched through atomics.
unsafe impl Send for RingMemory {}

impl RingMemory {
    fn new(block: Arc<Block>) -> Result<Self, Corrupt> {
        let geometry = Geometry::load(&block)?;
        // SAFETY: `load` checked that the header and all slots lie within the block, so both
        // offsets do.
        let (indices, slots) = unsafe {
            (
                block.ptr().add(INDICES_OFFSET),
                block.ptr().add(SLOTS_OFFSET),
            )
        };
        Ok(Self {
            indices: indices.cast(),
            slots,
            mask: geometry.capacity - 1,
            stride: geometry.stride,
            block,
            not_sync: PhantomData,
        })
    }

    #[inline]
    fn indices(&self) -> &Indices {
        // SAFETY: within the block and aligned to 128 (checked by `Geometry::load`), mapped while
        // `self` holds the block; atomics are valid for any bytes, and may change under the
        // reference.
        unsafe { self.indices.as_ref() }
    }

    /// Start of slot `number`; the mask keeps it within the ring.
    #[inline]
    fn slot(&self, number: u32) -> NonNull<u64> {
        let offset = (number & self.mask) as usize * self.stride as usize;
        // SAFETY: the masked number is below the capacity, and all `capacity * stride` bytes lie
        // within the block. The result is aligned to 8, as `slots` and the stride are.
        unsafe { self.slots.add(offset) }.cast()
    }
}

#[cfg(test)]
mod tests;
