//! One bit per queue pair: "has new work". Many threads and processes ring, one worker drains.
//!
//! Words of 64 bits hold the doorbells; each bit of a *summary* word says that one of those words
//! may be non-zero. So 65,536 doorbells are found empty by looking at 16 words, and drained without
//! looking at the other 1,024.
//!
//! **No ring is ever lost.** A ringer sets the bit first, then the summary; the drain clears the
//! summary first, then takes the word. Release and Acquire, on the words alone, suffice. For any
//! ring and any drain that takes its word, the modification order of the word decides which of the
//! two comes first:
//!
//! - *Ring, then drain*: the drain returns the bit, and with it everything the ringer did before.
//!   The swap's Acquire reads the ringer's Release, directly or through other ringers, whose
//!   read-modify-writes continue its release sequence.
//! - *Drain, then ring*: the ringer's Acquire reads the drain's Release in the same way, so the
//!   drain's clearing of the summary happens before the ringer's look at it. The ringer sees the
//!   summary clear and sets it, or sees that another ringer set it after the clearing. Either way
//!   the summary is left set for the next drain, for which the same holds.
//!
//! The summary's own operations carry nothing between threads and are Relaxed: the word's Acquire
//! keeps the ringer's look behind its `fetch_or`, and the word's Release keeps the drain's clearing
//! before its swap.
//!
//! A bit that is already set still has its summary looked at: the ringer that set it may have been
//! stopped between its two steps. No step reserves anything, so a process that dies anywhere in
//! `ring` holds up no other.
//!
//! A worker that goes to sleep needs more than this, as with any flag: it announces that it sleeps,
//! *fences with SeqCst*, finds [`Doorbells::is_empty`], and sleeps; a ringer rings, *fences with
//! SeqCst*, and looks whether it sleeps.
//!
//! Most devices have few queue pairs, whose doorbells are the first ones. So [`Doorbells`] keeps
//! how many summary words were ever needed, its *reach*, and a drain looks at no others. The reach
//! never sinks, and a ringer raises it before anything else: a thread that must see a ring by the
//! above also sees the reach that the ring needs.
//!
//! Bits beyond the number of doorbells can still be set by a hostile process; the drain drops them.

use crate::sync::{AtomicU64, Ordering};

/// Most doorbells of one set.
pub const DOORBELLS_MAX: u32 = 65_536;

const BITS_PER_WORD: u32 = u64::BITS;

/// Words that `bits` doorbells take.
#[must_use]
pub const fn words_for(bits: u32) -> usize {
    bits.div_ceil(BITS_PER_WORD) as usize
}

/// Summary words that `bits` doorbells take.
#[must_use]
pub const fn summaries_for(bits: u32) -> usize {
    words_for(bits).div_ceil(BITS_PER_WORD as usize)
}

/// The protocol, apart from its storage.
#[derive(Clone, Copy, Debug)]
pub struct DoorbellWords<'a> {
    bits: u32,
    summaries: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

impl<'a> DoorbellWords<'a> {
    /// `bits` doorbells over zeroed words.
    ///
    /// # Panics
    ///
    /// When the slices are not [`summaries_for`] and [`words_for`] long.
    #[must_use]
    #[inline]
    pub fn new(bits: u32, summaries: &'a [AtomicU64], words: &'a [AtomicU64]) -> Self {
        assert!(words.len() == words_for(bits) && summaries.len() == summaries_for(bits));
        Self {
            bits,
            summaries,
            words,
        }
    }

    /// Sets a doorbell. Returns whether it was clear before. Wait-free.
    ///
    /// # Panics
    /// If `bit` is not below the number of doorbells.
    #[inline]
    pub fn ring(self, bit: u32) -> bool {
        assert!(bit < self.bits, "no such doorbell");
        let (word, mask) = locate(bit);
        let before = self.words[word].fetch_or(mask, Ordering::AcqRel);
        let (summary, summary_mask) = locate(word as u32);
        let summary = &self.summaries[summary];
        // All ringers share this line: write to it only if needed.
        if summary.load(Ordering::Relaxed) & summary_mask == 0 {
            summary.fetch_or(summary_mask, Ordering::Relaxed);
        }
        before & mask == 0
    }

    /// Takes all doorbells that were rung and calls `handle` for each. Rings that come in meanwhile
    /// are kept for this or the next drain. Work is bounded: each word is taken at most once.
    /// Doorbells taken are gone if `handle` panics.
    pub fn drain(self, mut handle: impl FnMut(u32)) {
        // Most rounds of a worker find nothing.
        if self.is_empty() {
            return;
        }
        for (group, summary) in self.summaries.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for word in bits_of(summary.swap(0, Ordering::Relaxed), group) {
                let Some(rung) = self.words.get(word as usize) else {
                    continue;
                };
                for bit in bits_of(rung.swap(0, Ordering::AcqRel), word as usize) {
                    if bit < self.bits {
                        handle(bit);
                    }
                }
            }
        }
    }

    /// Whether nothing was rung, as far as this thread can see. Looks at the summary only.
    #[must_use]
    #[inline]
    pub fn is_empty(self) -> bool {
        // Reads all words without stopping at the first set one: no branch for each.
        self.summaries
            .iter()
            .fold(0, |seen, summary| seen | summary.load(Ordering::Relaxed))
            == 0
    }
}

/// Word and mask of a bit.
fn locate(bit: u32) -> (usize, u64) {
    ((bit / BITS_PER_WORD) as usize, 1 << (bit % BITS_PER_WORD))
}

/// Numbers of the bits set in `word`, which is the `index`-th of its array.
fn bits_of(mut word: u64, index: usize) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        // Clears the lowest set bit; leaves 0 alone.
        word &= word.wrapping_sub(1);
        (bit < BITS_PER_WORD).then(|| index as u32 * BITS_PER_WORD + bit)
    })
}

#[cfg(not(loom))]
pub use shared::Doorbells;

#[cfg(not(loom))]
mod shared {
    use std::io;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use super::{
        AtomicU64, BITS_PER_WORD, DOORBELLS_MAX, DoorbellWords, Ordering, summaries_for, words_for,
    };
    use crate::{Arena, Block, Corrupt};

    /// Keeps the words on other cache lines, so that a worker polling the summary does not slow
    /// down ringers.
    const WORDS_ALIGN: usize = 128;

    /// Doorbells in shared memory: the reach, the summary words, then (at the next multiple of 128
    /// bytes) the words.
    ///
    /// Any number of threads may ring. Draining from two threads at once is safe: each ring goes to
    /// one of them.
    #[derive(Debug)]
    pub struct Doorbells {
        bits: u32,
        reach: NonNull<AtomicU64>,
        summaries: NonNull<[AtomicU64]>,
        words: NonNull<[AtomicU64]>,
        block: Arc<Block>,
    }

    // SAFETY: the pointers lead to atomics in `block`, which is Send and Sync and kept alive here.
    unsafe impl Send for Doorbells {}
    // SAFETY: as above; every access is atomic.
    unsafe impl Sync for Doorbells {}

    impl Doorbells {
        /// Makes `bits` doorbells, none rung.
        ///
        /// # Errors
        ///
        /// `InvalidInput` when `bits` is not in 1..=[`DOORBELLS_MAX`]; what the system says when
        /// memory runs out.
        pub fn new(arena: &Arena, bits: u32) -> io::Result<Self> {
            let invalid = || {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "impossible number of doorbells",
                )
            };
            if !(1..=DOORBELLS_MAX).contains(&bits) {
                return Err(invalid());
            }
            let block = Arc::new(arena.alloc(bytes_for(bits), WORDS_ALIGN)?);
            Self::attach(block, bits).map_err(|_| invalid())
        }

        /// Attaches to the doorbells in `block`; both sides must agree on `bits`.
        ///
        /// # Errors
        /// [`Corrupt::Geometry`] if the block cannot hold them.
        pub fn attach(block: Arc<Block>, bits: u32) -> Result<Self, Corrupt> {
            let fits = (1..=DOORBELLS_MAX).contains(&bits)
                && block.len() >= bytes_for(bits)
                && block
                    .ptr()
                    .addr()
                    .get()
                    .is_multiple_of(align_of::<AtomicU64>());
            if !fits {
                return Err(Corrupt::Geometry);
            }
            let reach = block.ptr().cast::<AtomicU64>();
            // SAFETY: both offsets lie within the block, which is at least `bytes_for` long.
            let (summaries, words) = unsafe { (reach.add(1), block.ptr().add(words_offset(bits))) };
            Ok(Self {
                bits,
                reach,
                summaries: NonNull::slice_from_raw_parts(summaries, summaries_for(bits)),
                words: NonNull::slice_from_raw_parts(words.cast(), words_for(bits)),
                block,
            })
        }

        /// Number of doorbells.
        #[must_use]
        pub fn bits(&self) -> u32 {
            self.bits
        }

        /// Sets a doorbell. Returns whether it was clear before. Wait-free.
        ///
        /// # Panics
        /// If `bit` is not below [`Doorbells::bits`].
        #[inline]
        pub fn ring(&self, bit: u32) -> bool {
            let needed = u64::from(bit / (BITS_PER_WORD * BITS_PER_WORD)) + 1;
            if self.reach().load(Ordering::Relaxed) < needed {
                self.reach().fetch_max(needed, Ordering::Relaxed);
            }
            self.protocol().ring(bit)
        }

        /// Takes all doorbells that were rung and calls `handle` for each. Rings that come in
        /// meanwhile are kept for this or the next drain. Doorbells taken are gone if `handle`
        /// panics.
        pub fn drain(&self, handle: impl FnMut(u32)) {
            self.in_reach().drain(handle);
        }

        /// Whether nothing was rung, as far as this thread can see. Cheap: two cache lines at most.
        #[must_use]
        #[inline]
        pub fn is_empty(&self) -> bool {
            self.in_reach().is_empty()
        }

        /// The memory the doorbells lie in, to pass on to another process.
        #[must_use]
        pub fn block(&self) -> &Arc<Block> {
            &self.block
        }

        #[inline]
        fn protocol(&self) -> DoorbellWords<'_> {
            // SAFETY: `attach` checked that this many atomics lie within the block, aligned; they
            // stay mapped while `self` holds the block, and atomics are valid for any bytes and may
            // change under a reference.
            let (summaries, words) = unsafe { (self.summaries.as_ref(), self.words.as_ref()) };
            DoorbellWords {
                bits: self.bits,
                summaries,
                words,
            }
        }

        /// As [`protocol`](Self::protocol), without the summary words that no ringer has needed.
        #[inline]
        fn in_reach(&self) -> DoorbellWords<'_> {
            let all = self.protocol();
            let reach = self.reach().load(Ordering::Relaxed) as usize;
            DoorbellWords {
                // Another process may have written anything there.
                summaries: &all.summaries[..reach.min(all.summaries.len())],
                ..all
            }
        }

        #[inline]
        fn reach(&self) -> &AtomicU64 {
            // SAFETY: as in `protocol`.
            unsafe { self.reach.as_ref() }
        }
    }

    fn words_offset(bits: u32) -> usize {
        ((1 + summaries_for(bits)) * size_of::<AtomicU64>()).next_multiple_of(WORDS_ALIGN)
    }

    fn bytes_for(bits: u32) -> usize {
        words_offset(bits) + words_for(bits) * size_of::<AtomicU64>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
