//! The index protocol of a ring with one producer and one consumer, apart from the storage of its
//! slots.
//!
//! Two indices are shared, each written by one side only, each on its own pair of cache lines: the
//! number of slots ever *published* and the number ever *released*. They run freely through all of
//! `u32`; a ring of `capacity` slots (a power of two) keeps number `n` in slot `n & (capacity -
//! 1)`. A third index, the number of slots *taken*, is private to the consumer:
//!
//! ```text
//!     released          taken           published        released + capacity
//! --------|---------------|-----------------|-------------------|-----------
//!   free  |  in use by    |  waiting for    |  free: written    |  free
//!         |  the consumer |  the consumer   |  by the producer  |
//! ```
//!
//! Orderings. The producer fills slots, then stores `published` with Release; the consumer loads it
//! with Acquire, so it reads the slots as they were filled. The consumer is done with its slots,
//! then stores `released` with Release; the producer loads it with Acquire, so what it writes into
//! those slots comes after the consumer's last read. Each side knows its own index without loading
//! it, and keeps the last value it saw of the other's: as long as that says "not empty" or "not
//! full", the other side's cache line is left alone. A stale value errs towards "empty" or "full";
//! the index is then loaded again.
//!
//! The other side's index is checked where it is loaded: it may only move forwards, and never past
//! what the ring's length allows. Anything else is [`Corrupt`]; from then on the ring looks empty
//! to a consumer and full to a producer, and the bad value is not used.

use crate::Corrupt;
use crate::sync::{AtomicU32, Ordering};

/// The two shared indices, as they lie in the ring's header. 128 bytes apart: processors fetch
/// cache lines in pairs.
#[repr(C)]
#[derive(Debug)]
pub struct Indices {
    published: Apart,
    released: Apart,
}

#[repr(C, align(128))]
#[derive(Debug)]
struct Apart(AtomicU32);

impl Indices {
    /// The indices of an empty ring, both at `start`.
    #[must_use]
    pub fn new(start: u32) -> Indices {
        Indices {
            published: Apart(AtomicU32::new(start)),
            released: Apart(AtomicU32::new(start)),
        }
    }
}

impl Indices {
    /// Stores any value as the producer's index. For tests.
    #[doc(hidden)]
    pub fn overwrite_published(&self, value: u32) {
        self.published.0.store(value, Ordering::Release);
    }

    /// The number of slots ever published, for a thread that has neither end.
    #[must_use]
    pub fn published(&self) -> u32 {
        self.published.0.load(Ordering::Acquire)
    }

    /// Whether slots are published and not yet released, for a thread that has neither end.
    #[must_use]
    pub fn has_unreleased(&self) -> bool {
        // Ordered by the fence of whoever asks: see `SleepFlag`.
        self.published.0.load(Ordering::Acquire) != self.released.0.load(Ordering::Acquire)
    }
}

/// The producer's end of the protocol.
#[derive(Debug)]
pub struct ProducerIndex {
    capacity: u32,
    published: u32,
    /// The last value seen of the consumer's index.
    released_seen: u32,
    corrupt: bool,
}

impl ProducerIndex {
    /// Attaches the producer's end at the current values of the shared indices.
    ///
    /// # Errors
    /// [`Corrupt::Geometry`] if `capacity` is not a power of two, [`Corrupt::Index`] if the indices
    /// are further apart than it.
    pub fn attach(shared: &Indices, capacity: u32) -> Result<ProducerIndex, Corrupt> {
        let (published, released) = load_both(shared, capacity)?;
        Ok(ProducerIndex {
            capacity,
            published,
            released_seen: released,
            corrupt: false,
        })
    }

    /// Whether at least `count` slots are free.
    ///
    /// Loads the consumer's index only if the last value seen does not suffice.
    pub fn has_free(&mut self, shared: &Indices, count: u32) -> bool {
        self.free_seen() >= count || self.free(shared) >= count
    }

    /// Number of slots free now; loads the consumer's index. 0 once that index was corrupt.
    pub fn free(&mut self, shared: &Indices) -> u32 {
        let released = shared.released.0.load(Ordering::Acquire);
        // An honest consumer only reduces the number of slots in use. More: the index moved
        // backwards, or past what was published.
        if self.published.wrapping_sub(released) > self.used_seen() {
            self.corrupt = true;
        } else {
            self.released_seen = released;
        }
        self.free_seen()
    }

    /// Number of the slot that is `ahead` slots behind the last published one.
    #[must_use]
    pub fn number(&self, ahead: u32) -> u32 {
        self.published.wrapping_add(ahead)
    }

    /// Hands the next `count` slots to the consumer.
    ///
    /// # Panics
    ///
    /// When fewer were known to be free: the caller would overwrite slots in use.
    pub fn publish(&mut self, shared: &Indices, count: u32) {
        // Not `free_seen`: the consumer may have become corrupt since, which must not panic the
        // producer.
        assert!(
            count <= self.capacity - self.used_seen(),
            "published slots that were not free"
        );
        self.published = self.published.wrapping_add(count);
        shared.published.0.store(self.published, Ordering::Release);
    }

    /// Whether every value seen of the consumer's index was sound.
    ///
    /// # Errors
    /// [`Corrupt::Index`] from the first unsound value on.
    pub fn check(&self) -> Result<(), Corrupt> {
        check(self.corrupt)
    }

    fn free_seen(&self) -> u32 {
        if self.corrupt {
            return 0;
        }
        self.capacity - self.used_seen()
    }

    /// Published and not yet released, as last seen: at most the capacity.
    fn used_seen(&self) -> u32 {
        self.published.wrapping_sub(self.released_seen)
    }
}

/// The consumer's end of the protocol.
#[derive(Debug)]
pub struct ConsumerIndex {
    capacity: u32,
    released: u32,
    taken: u32,
    /// The last value seen of the producer's index.
    published_seen: u32,
    corrupt: bool,
}

impl ConsumerIndex {
    /// Attaches the consumer's end at the current values of the shared indices; nothing is taken
    /// yet.
    ///
    /// # Errors
    /// [`Corrupt::Geometry`] if `capacity` is not a power of two, [`Corrupt::Index`] if the indices
    /// are further apart than it.
    pub fn attach(shared: &Indices, capacity: u32) -> Result<ConsumerIndex, Corrupt> {
        let (published, released) = load_both(shared, capacity)?;
        Ok(ConsumerIndex {
            capacity,
            released,
            taken: released,
            published_seen: published,
            corrupt: false,
        })
    }

    /// Number of slots published and not yet taken; loads the producer's index. 0 once that was
    /// corrupt.
    pub fn available(&mut self, shared: &Indices) -> u32 {
        let published = shared.published.0.load(Ordering::Acquire);
        let used_seen = self.published_seen.wrapping_sub(self.released);
        let used = published.wrapping_sub(self.released);
        // Less than seen before: it moved backwards. More than the capacity: it ran over slots not
        // yet released.
        if used < used_seen || used > self.capacity {
            self.corrupt = true;
        } else {
            self.published_seen = published;
        }
        self.available_seen()
    }

    /// Takes the next published slot and returns its number.
    ///
    /// Loads the producer's index only if the last value seen shows no slot.
    pub fn take(&mut self, shared: &Indices) -> Option<u32> {
        if self.available_seen() == 0 && self.available(shared) == 0 {
            return None;
        }
        let number = self.taken;
        self.taken = self.taken.wrapping_add(1);
        Some(number)
    }

    /// Takes the next `count` published slots, or none if fewer are published.
    ///
    /// Loads the producer's index only if the last value seen shows fewer.
    pub fn take_many(&mut self, shared: &Indices, count: u32) -> bool {
        if self.available_seen() < count && self.available(shared) < count {
            return false;
        }
        self.taken = self.taken.wrapping_add(count);
        true
    }

    /// The number of the `n`-th slot not yet taken, counted from 0.
    #[must_use]
    pub fn number(&self, n: u32) -> u32 {
        self.taken.wrapping_add(n)
    }

    /// Number of slots taken and not yet released.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.taken.wrapping_sub(self.released)
    }

    /// Whether slot `number` is taken and not yet released.
    #[must_use]
    pub fn holds(&self, number: u32) -> bool {
        number.wrapping_sub(self.released) < self.taken()
    }

    /// Gives the oldest `count` taken slots back to the producer.
    ///
    /// # Panics
    ///
    /// When fewer are taken: the producer would overwrite slots that the caller has not seen.
    pub fn release(&mut self, shared: &Indices, count: u32) {
        assert!(count <= self.taken(), "released slots that were not taken");
        self.released = self.released.wrapping_add(count);
        shared.released.0.store(self.released, Ordering::Release);
    }

    /// Whether every value seen of the producer's index was sound.
    ///
    /// # Errors
    /// [`Corrupt::Index`] from the first unsound value on.
    pub fn check(&self) -> Result<(), Corrupt> {
        check(self.corrupt)
    }

    fn available_seen(&self) -> u32 {
        if self.corrupt {
            return 0;
        }
        self.published_seen.wrapping_sub(self.taken)
    }
}

/// Loads `published` and `released` of a ring at rest.
fn load_both(shared: &Indices, capacity: u32) -> Result<(u32, u32), Corrupt> {
    if !capacity.is_power_of_two() {
        return Err(Corrupt::Geometry);
    }
    // Released first: it only ever follows `published`, so a producer at work cannot make the pair
    // look inverted.
    let released = shared.released.0.load(Ordering::Acquire);
    let published = shared.published.0.load(Ordering::Acquire);
    if published.wrapping_sub(released) > capacity {
        return Err(Corrupt::Index);
    }
    Ok((published, released))
}

fn check(corrupt: bool) -> Result<(), Corrupt> {
    if corrupt { Err(Corrupt::Index) } else { Ok(()) }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Indices>() == 256 && align_of::<Indices>() == 128);

#[cfg(all(test, not(loom)))]
mod tests;
