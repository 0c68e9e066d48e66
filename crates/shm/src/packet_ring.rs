//! Rings of packets of any length for one producer and one consumer, in memory that two processes
//! share.
//!
//! ```text
//! Block:  0           128         256         384       448
//!         | sleep flag | published | released  | unit 0  | unit 1 | ... | unit capacity-1 |
//! ```
//!
//! A packet takes as many units of 64 bytes as it needs, the last one's successor being the first:
//! its length, its [`PacketTag`], its bytes. The units are the slots of [`crate::indices`], whose
//! protocol and orderings hold.
//!
//! The consumer copies each packet out before it looks at it. A length that is impossible, or
//! reaches beyond what is published, is [`Corrupt`], and the ring looks empty from then on.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::indices::{ConsumerIndex, Indices, ProducerIndex};
use crate::slot::Words;
use crate::{Arena, Block, Corrupt, SleepFlag};

/// Bytes of a ring's block.
pub const PACKET_RING_BYTES: usize = UNITS_OFFSET + CAPACITY as usize * UNIT;

/// Units of a ring: half a mebibyte.
const CAPACITY: u32 = 8192;
const UNIT: usize = 64;
const FLAG_OFFSET: usize = 0;
const INDICES_OFFSET: usize = 128;
const UNITS_OFFSET: usize = INDICES_OFFSET + size_of::<Indices>();
/// Length and tag in front of a packet's bytes.
const HEAD: usize = 8;
/// Units that a consumer keeps before it gives them back.
const KEPT_MAX: u32 = CAPACITY / 8;

/// What the producer says of a packet beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketTag(pub [u8; 4]);

/// Makes an empty ring, in memory of its own. The second value is the memory, to pass on to the
/// producer.
///
/// # Errors
/// The system's if memory or descriptors run out.
pub fn packet_ring() -> io::Result<(PacketConsumer, Arc<Block>)> {
    // Not from an arena with other blocks: the producer maps the memfd.
    let block = Arc::new(Arena::new().alloc(PACKET_RING_BYTES, align_of::<Indices>())?);
    let consumer = PacketConsumer::attach(Arc::clone(&block))
        .map_err(|_| io::Error::other("fresh memory did not hold an empty ring"))?;
    Ok((consumer, block))
}

/// The end that writes packets.
#[derive(Debug)]
pub struct PacketProducer {
    index: ProducerIndex,
    memory: Memory,
    /// Units written and not yet published.
    staged: u32,
}

impl PacketProducer {
    /// Attaches the producer's end. The caller ensures that there is only one.
    ///
    /// # Errors
    /// [`Corrupt`] if the block does not hold a ring.
    pub fn attach(block: Arc<Block>) -> Result<Self, Corrupt> {
        let memory = Memory::new(block)?;
        let index = ProducerIndex::attach(memory.indices(), CAPACITY)?;
        Ok(Self {
            index,
            memory,
            staged: 0,
        })
    }

    /// Writes a packet, to be published later. False, and nothing done, if there is no room.
    #[inline]
    pub fn push(&mut self, tag: PacketTag, packet: &[u8]) -> bool {
        let Some(units) = units_of(packet.len()) else {
            return false;
        };
        let wanted = self.staged + units;
        if wanted > CAPACITY || !self.index.has_free(self.memory.indices(), wanted) {
            return false;
        }
        let number = self.index.number(self.staged);
        self.memory.write(number, tag, packet);
        self.staged = wanted;
        true
    }

    /// Hands what was written to the consumer. Returns whether it sleeps, and must be woken.
    pub fn publish(&mut self) -> bool {
        let staged = std::mem::take(&mut self.staged);
        if staged == 0 {
            return false;
        }
        self.index.publish(self.memory.indices(), staged);
        self.memory.flag().is_set()
    }

    /// Claims to have published more units than the ring has, and `by` beyond those, as no producer
    /// does. For tests.
    #[doc(hidden)]
    pub fn damage(&mut self, by: u32) {
        let beyond = CAPACITY.saturating_add(by).saturating_add(1);
        let claim = self.index.number(0).wrapping_add(beyond);
        self.memory.indices().overwrite_published(claim);
    }

    /// Whether the consumer has kept to the protocol so far.
    ///
    /// # Errors
    /// [`Corrupt::Index`] once it has not; the ring looks full from then on.
    pub fn check(&self) -> Result<(), Corrupt> {
        self.index.check()
    }
}

/// The end that takes packets.
#[derive(Debug)]
pub struct PacketConsumer {
    index: ConsumerIndex,
    memory: Memory,
    corrupt: bool,
}

impl PacketConsumer {
    /// Attaches the consumer's end. The caller ensures that there is only one.
    ///
    /// # Errors
    /// [`Corrupt`] if the block does not hold a ring.
    pub fn attach(block: Arc<Block>) -> Result<Self, Corrupt> {
        let memory = Memory::new(block)?;
        let index = ConsumerIndex::attach(memory.indices(), CAPACITY)?;
        Ok(Self {
            index,
            memory,
            corrupt: false,
        })
    }

    /// Copies the next packet to the start of `out`; `None` if there is none, or the producer broke
    /// the protocol. The packet's room is free again after [`PacketConsumer::release`].
    #[inline]
    pub fn pop<'a>(&mut self, out: &'a mut [u8]) -> Option<(PacketTag, &'a [u8])> {
        if self.corrupt {
            return None;
        }
        if self.index.taken() >= KEPT_MAX {
            self.release();
        }
        let indices = self.memory.indices();
        let number = self.index.take(indices)?;
        let (len, tag) = self.memory.read_head(number);
        let units = units_of(len).filter(|_| len <= out.len());
        let is_whole = |units: u32| self.index.take_many(indices, units - 1);
        if !units.is_some_and(is_whole) {
            self.corrupt = true;
            return None;
        }
        let packet = &mut out[..len];
        self.memory.read(number, packet);
        Some((tag, packet))
    }

    /// Whether there are packets, by what this end has taken: the producer can write over what it
    /// has given back, which a [`PacketWatch`] goes by.
    pub fn has_packets(&mut self) -> bool {
        !self.corrupt && self.index.available(self.memory.indices()) > 0
    }

    /// Gives the room of all packets that were taken back to the producer.
    pub fn release(&mut self) {
        let taken = self.index.taken();
        if taken > 0 {
            self.index.release(self.memory.indices(), taken);
        }
    }

    /// Whether the producer has kept to the protocol so far.
    ///
    /// # Errors
    /// [`Corrupt`] once it has not; the ring looks empty from then on.
    pub fn check(&self) -> Result<(), Corrupt> {
        if self.corrupt {
            return Err(Corrupt::SlotBounds);
        }
        self.index.check()
    }

    /// A view of the ring for threads that sleep until something is in it.
    #[must_use]
    pub fn watch(&self) -> PacketWatch {
        PacketWatch(self.memory.clone())
    }
}

/// A view of a ring for the consumer's threads that sleep until something is in it.
#[derive(Debug)]
pub struct PacketWatch(Memory);

impl PacketWatch {
    /// Says whether a thread sleeps, and must be woken. After `true`,
    /// [`has_packets`](Self::has_packets) must be asked.
    pub fn set_asleep(&self, asleep: bool) {
        if asleep {
            self.0.flag().set();
        } else {
            self.0.flag().clear();
        }
    }

    /// Whether the ring is not empty.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.0.indices().has_unreleased()
    }
}

/// Units of a packet of `len` bytes; `None` for one that no ring holds.
#[inline]
fn units_of(len: usize) -> Option<u32> {
    let units = len.checked_add(HEAD)?.div_ceil(UNIT);
    u32::try_from(units).ok().filter(|&units| units <= CAPACITY)
}

/// Where a ring lies in this process.
#[derive(Clone, Debug)]
struct Memory {
    block: Arc<Block>,
    /// An end belongs to one thread at a time.
    not_sync: PhantomData<Cell<()>>,
}

impl Memory {
    fn new(block: Arc<Block>) -> Result<Self, Corrupt> {
        let aligned = block
            .ptr()
            .addr()
            .get()
            .is_multiple_of(align_of::<Indices>());
        if block.len() != PACKET_RING_BYTES || !aligned {
            return Err(Corrupt::Geometry);
        }
        Ok(Memory {
            block,
            not_sync: PhantomData,
        })
    }

    /// The address `offset` bytes into the block.
    #[inline]
    fn at<T>(&self, offset: usize) -> NonNull<T> {
        debug_assert!(offset < PACKET_RING_BYTES, "beyond the ring");
        // SAFETY: `new` checked the length of the block, and callers keep below it.
        unsafe { self.block.ptr().add(offset) }.cast()
    }

    #[inline]
    fn indices(&self) -> &Indices {
        // SAFETY: within the block and aligned to 128 (`new`), mapped while `self` holds the block;
        // atomics are valid for any bytes, and may change under the reference.
        unsafe { self.at::<Indices>(INDICES_OFFSET).as_ref() }
    }

    #[inline]
    fn flag(&self) -> &SleepFlag {
        // SAFETY: as above.
        unsafe { self.at::<SleepFlag>(FLAG_OFFSET).as_ref() }
    }

    #[inline]
    fn units(&self) -> Words {
        // SAFETY: all units lie within the block, aligned to 64, and are touched through `Words`
        // only.
        unsafe { Words::new(self.at(UNITS_OFFSET), CAPACITY * UNIT as u32) }
    }

    /// Where the unit with this number starts, the mask keeping it within the ring.
    #[inline]
    fn start(number: u32) -> usize {
        (number & (CAPACITY - 1)) as usize * UNIT
    }

    #[inline]
    fn write(&self, number: u32, tag: PacketTag, packet: &[u8]) {
        let (units, start) = (self.units(), Self::start(number));
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(packet.len() as u32).to_ne_bytes());
        head[4..].copy_from_slice(&tag.0);
        let (first, rest) = packet.split_at(packet.len().min(to_end(start)));
        let fits =
            units.copy_in(start, &head) && units.store(start + HEAD, first) && units.store(0, rest);
        debug_assert!(fits, "`push` found room");
    }

    #[inline]
    fn read_head(&self, number: u32) -> (usize, PacketTag) {
        let mut head = [0; HEAD];
        self.units().copy_out(Self::start(number), &mut head);
        let [a, b, c, d, tag @ ..] = head;
        (u32::from_ne_bytes([a, b, c, d]) as usize, PacketTag(tag))
    }

    #[inline]
    fn read(&self, number: u32, packet: &mut [u8]) {
        let (units, start) = (self.units(), Self::start(number));
        let (first, rest) = packet.split_at_mut(packet.len().min(to_end(start)));
        let fits = units.load(start + HEAD, first) && units.load(0, rest);
        debug_assert!(fits, "`pop` checked the length");
    }
}

/// Bytes of a packet that fit between its head, at `start`, and the end of the ring.
#[inline]
fn to_end(start: usize) -> usize {
    CAPACITY as usize * UNIT - start - HEAD
}

#[cfg(test)]
mod tests;
