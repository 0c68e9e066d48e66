//! A bounded queue of fixed-size blocks in shared memory, with many producers and one consumer.
//! Producers are threads of many processes; one that dies, at any instruction, does not stop the
//! others.
//!
//! The BURST paper calls it the shared doorbell queue (section 4.2 and appendix A.1). A bit of
//! [`crate::doorbells`] tells *that* a queue pair has work; a block tells *what* the work is, and
//! blocks keep their order.
//!
//! # The word of a block
//!
//! Positions count up through all of `u32`; position `p` lies in block `p & (capacity - 1)`. The
//! first word of a block holds the position that it is in use for (or next will be), its state, and
//! its owner:
//!
//! ```text
//!  63            32 31 30 29              0
//! | position       | state |  producer      |
//! ```
//!
//! | state | who makes it so | meaning |
//! |---|---|---|
//! | `Free` | consumer | may be reserved at that position |
//! | `Reserved` | producer | its holder writes to it |
//! | `Ready` | its holder | holds an item |
//! | `Skip` | consumer; its holder | that position is passed over, by producers and consumer |
//!
//! A producer that finds `Free(tail)` exchanges it for `Reserved(tail, itself)`: the reservation
//! and its owner's name are one step, so a reserved block always names its owner. Only then is
//! `tail` moved on, by the owner or by the first producer that finds it behind. The owner writes
//! the item and exchanges `Reserved` for `Ready`. The consumer takes `Ready(head)`, and makes it
//! `Free(head + capacity)`.
//!
//! # Reclaiming
//!
//! The consumer that finds `Reserved(head)` asks after [`ASK_AFTER_NS`] whether its owner lives,
//! and then at growing intervals.
//!
//! - *Its process is gone*, with all its threads: no write to the block can follow, and it is made
//!   `Free` at once.
//! - *It lives, and [`RECLAIM_AFTER_NS`] have passed*: it is stopped, preempted for long, or the
//!   thread has died. The consumer makes the block `Skip(head + capacity)` and goes on. If the
//!   owner comes back, its exchange fails (the word holds another state and another position): its
//!   item was not taken, [`Reclaimed`] reports so, and it posts again. It may have written to the
//!   block until then, so no other producer gets the block meanwhile: it is passed over, lap after
//!   lap, until its owner releases it (the last step of the failed commit) or its process is gone.
//!
//! When the head has been held for [`ASK_AFTER_NS`], the consumer notes what is in use behind it,
//! too: any number of producers that die together cost the others one timeout, not one each, if it
//! calls again at the time in [`Take::Held`]. The caller supplies the clock and answers which
//! producers live.
//!
//! # Orderings
//!
//! *Items*: the holder writes the block, then exchanges with Release; the consumer loads the word
//! with Acquire. *Blocks that come back*: the consumer has read the block, then stores `Free` with
//! Release; the producer that reserves it does so with Acquire. The producer that lets go of a
//! reclaimed block does so with Release, which the consumer acquires before it frees the block.
//! *`tail`* carries nothing, and is relaxed: a producer passes a position only after it has
//! exchanged its word or seen that it is not `Free`, and no two exchanges find the same word. So a
//! `Free(head)` that an exchange finds, with `tail` beyond `head`, is the work of a hostile
//! producer.
//!
//! # What is not trusted
//!
//! The consumer keeps its head to itself; an impossible word or `tail` is repaired and counted
//! ([`QueueConsumer::dropped`]). A producer masks what it reads, and tries a bounded number of
//! times. So a hostile process can fill the queue and drop or forge items, but cannot make another
//! process read or write out of bounds, wait or panic. Processes that do not trust each other do
//! not share a queue.
//!
//! A stopped thread that resumes after exactly a multiple of 2^32 positions may find its exchange
//! succeed where it should fail. It then reserves a block that is free (its item may overtake
//! some), or moves `tail` past a free one (which the consumer puts right). It never commits another
//! producer's item: a block that was reclaimed from it has no other owner until it lets go.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Words of an item; with the block's own word, one cache line. Two under loom, to keep its state
/// space small.
pub const PAYLOAD_WORDS: usize = if cfg!(loom) { 2 } else { 7 };

/// The item that a block carries.
pub type Payload = [u64; PAYLOAD_WORDS];

/// How long the consumer waits for a reservation before it asks whether its owner lives.
pub const ASK_AFTER_NS: u64 = 100_000;

/// How long a reservation whose owner lives may hold up those behind it.
///
/// A producer that is preempted for longer posts again.
pub const RECLAIM_AFTER_NS: u64 = 5_000_000;

/// Most producers that one queue ever admits; their numbers are not reused.
pub const PRODUCERS_MAX: u32 = OWNER_MASK;

/// Owner of a block: a number from 1 to [`PRODUCERS_MAX`] that the consumer gave out.
///
/// 0 means no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProducerId(u32);

impl ProducerId {
    /// Makes an id of `number`; `None` if it is out of range.
    #[must_use]
    pub const fn new(number: u32) -> Option<ProducerId> {
        if number == 0 || number > PRODUCERS_MAX {
            None
        } else {
            Some(ProducerId(number))
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The queue is full, or too contended to find a free block in a bounded number of tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the doorbell queue is full")]
pub struct Full;

/// The consumer took the block back before the commit; the item was not queued and must be posted
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block was reclaimed before it was committed")]
pub struct Reclaimed;

/// An item and its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The producer that committed it; `None` if a hostile process wrote an id that was never given
    /// out.
    pub producer: Option<ProducerId>,
    /// The item's words, as the producer wrote them.
    pub payload: Payload,
}

/// Outcome of [`QueueConsumer::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The oldest item, which is taken.
    Item(Item),
    /// Nothing was committed or reserved.
    Empty,
    /// The oldest block is reserved and not committed; items may wait behind it.
    Held {
        /// When to call again, even if no doorbell rings.
        until_ns: u64,
    },
}

/// One block, as it lies in memory.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct QueueBlock {
    word: AtomicU64,
    payload: [AtomicU64; PAYLOAD_WORDS],
}

impl QueueBlock {
    /// Makes block `index` of a new queue whose first position is `start`.
    #[must_use]
    pub fn new(index: u32, start: u32, capacity: u32) -> QueueBlock {
        let block = QueueBlock {
            word: AtomicU64::new(0),
            payload: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        block.reset(index, start, capacity);
        block
    }

    /// Makes it block `index` of a new queue that is not yet in use.
    pub(crate) fn reset(&self, index: u32, start: u32, capacity: u32) {
        let offset = index.wrapping_sub(start) & (capacity - 1);
        let word = Word::free(start.wrapping_add(offset));
        self.word.store(word.pack(), Ordering::Relaxed);
    }

    fn read(&self) -> Payload {
        std::array::from_fn(|index| self.payload[index].load(Ordering::Relaxed))
    }
}

/// The protocol, apart from its storage.
#[derive(Clone, Copy, Debug)]
pub struct QueueWords<'a> {
    tail: &'a AtomicU32,
    blocks: &'a [QueueBlock],
}

impl<'a> QueueWords<'a> {
    /// A queue over blocks that [`QueueBlock::new`] made, with `tail` at their start.
    ///
    /// # Panics
    /// If the number of blocks is not a power of two.
    #[must_use]
    #[inline]
    pub fn new(tail: &'a AtomicU32, blocks: &'a [QueueBlock]) -> Self {
        assert!(blocks.len().is_power_of_two(), "a power of two of blocks");
        Self { tail, blocks }
    }

    /// Reserves the next block and returns its position. Lock-free: a producer is held up only by
    /// another's progress.
    ///
    /// # Errors
    /// [`Full`].
    #[inline]
    pub fn reserve(self, owner: ProducerId) -> Result<u32, Full> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        for _ in 0..self.tries_max() {
            let block = self.block(tail);
            let seen = block.word.load(Ordering::Relaxed);
            let word = Word::unpack(seen);
            let ahead = signed(word.position, tail);
            if ahead < 0 {
                // In use since the lap before, or `tail` is stale.
                let now = self.tail.load(Ordering::Relaxed);
                if now == tail {
                    return Err(Full);
                }
                tail = now;
            } else if ahead == 0 && word.state == State::Free {
                let mine = Word::new(tail, State::Reserved, owner.0).pack();
                let reserved =
                    block
                        .word
                        .compare_exchange(seen, mine, Ordering::Acquire, Ordering::Relaxed);
                if reserved.is_ok() {
                    self.pass(tail);
                    return Ok(tail);
                }
                tail = self.tail.load(Ordering::Relaxed);
            } else {
                // Reserved, skipped or done: the producer that should have moved `tail` has not
                // done so yet, or died.
                tail = self.pass(tail);
            }
        }
        Err(Full)
    }

    /// Writes to a block that the caller has reserved.
    #[inline]
    pub fn write(self, position: u32, payload: &Payload) {
        let block = self.block(position);
        for (word, value) in block.payload.iter().zip(payload) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    /// Hands a block that the caller has reserved to the consumer.
    ///
    /// # Errors
    /// [`Reclaimed`]: the item was not queued. Either way the caller no longer owns the block.
    #[inline]
    pub fn commit(self, position: u32, owner: ProducerId) -> Result<(), Reclaimed> {
        let ready = Word::new(position, State::Ready, owner.0);
        self.settle(position, owner, ready)
    }

    /// Gives a block back that the caller has reserved, without an item.
    pub fn abandon(self, position: u32, owner: ProducerId) {
        // A block that was reclaimed is let go of as well.
        let _ = self.settle(position, owner, Word::new(position, State::Skip, NOBODY));
    }

    #[inline]
    fn settle(self, position: u32, owner: ProducerId, outcome: Word) -> Result<(), Reclaimed> {
        let word = &self.block(position).word;
        let mine = Word::new(position, State::Reserved, owner.0).pack();
        word.compare_exchange(mine, outcome.pack(), Ordering::Release, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|seen| {
                let_go(word, owner, seen);
                Reclaimed
            })
    }

    /// Moves `tail` past a position that is not free, unless another producer does. Returns the new
    /// tail.
    #[inline]
    fn pass(self, position: u32) -> u32 {
        let next = position.wrapping_add(1);
        match self
            .tail
            .compare_exchange(position, next, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => next,
            Err(now) => now,
        }
    }

    #[inline]
    fn block(self, position: u32) -> &'a QueueBlock {
        &self.blocks[position as usize & (self.blocks.len() - 1)]
    }

    fn capacity(self) -> u32 {
        self.blocks.len() as u32
    }

    fn tries_max(self) -> u32 {
        self.capacity().saturating_mul(2).saturating_add(TRIES_MIN)
    }
}

/// Lets go of a reclaimed block: the consumer kept it from others because this producer might still
/// write to it.
#[cold]
fn let_go(word: &AtomicU64, owner: ProducerId, mut seen: u64) {
    for _ in 0..TRIES_MIN {
        let now = Word::unpack(seen);
        // Otherwise the consumer took this process for dead, or a hostile process wrote the word.
        if now.state != State::Skip || now.owner != owner.0 {
            return;
        }
        let free = Word::new(now.position, State::Skip, NOBODY).pack();
        match word.compare_exchange(seen, free, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            // The consumer passed by and marked the block as skipped for another lap.
            Err(newer) => seen = newer,
        }
    }
}

/// The consumer's private state.
#[derive(Debug)]
pub struct QueueConsumer {
    head: u32,
    /// First position that has no time in `since_ns` yet.
    watched: u32,
    /// One for each block.
    watches: Box<[Watch]>,
    /// Since when the block at the head has been reserved.
    held: Option<Held>,
    /// Calls in a row that found nothing.
    quiet: u32,
    reclaimed: u64,
    dropped: u64,
    quarantined: u32,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    position: u32,
    since_ns: u64,
    /// When to ask next whether the owner lives.
    ask_at_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// When it was first seen in use at its position.
    ///
    /// In quarantine: when the consumer last asked whether its owner lives.
    since_ns: u64,
    /// Whether it was reclaimed and its owner may still write to it.
    quarantined: bool,
}

impl QueueConsumer {
    /// The consumer of a new queue of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: u32, start: u32) -> QueueConsumer {
        QueueConsumer {
            head: start,
            watched: start,
            watches: vec![Watch::default(); capacity as usize].into_boxed_slice(),
            held: None,
            quiet: 0,
            reclaimed: 0,
            dropped: 0,
            quarantined: 0,
        }
    }

    /// Number of reservations that were taken back.
    #[must_use]
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed
    }

    /// Number of repairs of words that only a hostile producer writes.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Number of blocks out of use because the producer that reserved them may come back.
    #[must_use]
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// Takes the oldest item.
    ///
    /// `now_ns` is any clock that does not go back; `lives` tells whether any thread of a producer
    /// is left (once false, false for ever). The work is bounded by the number of blocks.
    #[inline]
    pub fn take(
        &mut self,
        queue: QueueWords<'_>,
        now_ns: u64,
        mut lives: impl FnMut(ProducerId) -> bool,
    ) -> Take {
        for _ in 0..queue.capacity() {
            let block = queue.block(self.head);
            let word = Word::unpack(block.word.load(Ordering::Acquire));
            if word.position != self.head {
                self.put_right(queue);
                continue;
            }
            let answer = match word.state {
                State::Ready => return Take::Item(self.consume(queue, block, word)),
                State::Free => self.find_nothing(queue),
                State::Reserved => self.wait_for(queue, word, now_ns, &mut lives),
                State::Skip => self.skip(queue, word, now_ns, &mut lives),
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
        Take::Held { until_ns: now_ns }
    }

    /// Whether there is nothing to take or to wait for, as far as this thread can see.
    #[must_use]
    pub fn is_empty(&self, queue: QueueWords<'_>) -> bool {
        let word = Word::unpack(queue.block(self.head).word.load(Ordering::Relaxed));
        word.position == self.head
            && match word.state {
                State::Free => true,
                State::Skip => queue.tail.load(Ordering::Relaxed) == self.head,
                State::Reserved | State::Ready => false,
            }
    }

    #[inline]
    fn consume(&mut self, queue: QueueWords<'_>, block: &QueueBlock, word: Word) -> Item {
        let payload = block.read();
        let free = Word::free(self.head.wrapping_add(queue.capacity()));
        block.word.store(free.pack(), Ordering::Release);
        self.head = self.head.wrapping_add(1);
        Item {
            producer: ProducerId::new(word.owner),
            payload,
        }
    }

    /// Handles a free block at the head.
    ///
    /// Producers contend for the cache line of `tail`, so most calls do not read it.
    #[inline]
    fn find_nothing(&mut self, queue: QueueWords<'_>) -> Option<Take> {
        self.quiet = self.quiet.wrapping_add(1);
        if !self.quiet.is_multiple_of(QUIET_LOOKS) {
            return Some(Take::Empty);
        }
        self.look_at_tail(queue)
    }

    /// Reads `tail` while the block at the head is free: nothing is there, unless `tail` is
    /// impossible.
    fn look_at_tail(&mut self, queue: QueueWords<'_>) -> Option<Take> {
        let tail = queue.tail.load(Ordering::Relaxed);
        let ahead = signed(tail, self.head);
        let capacity = queue.capacity() as i32;
        if !(-capacity..=capacity).contains(&ahead) {
            let found =
                queue
                    .tail
                    .compare_exchange(tail, self.head, Ordering::Relaxed, Ordering::Relaxed);
            self.dropped += u64::from(found.is_ok());
            return Some(Take::Empty);
        }
        if ahead <= 0 {
            return Some(Take::Empty);
        }
        let free = Word::free(self.head);
        // The block may have been reserved since; if not, `tail` was moved by a hostile process.
        if self.replace(queue, free, self.next_lap(queue, State::Free, NOBODY)) {
            self.dropped += 1;
            self.head = self.head.wrapping_add(1);
        }
        None
    }

    /// Handles a reserved block at the head; `None` if the block has changed meanwhile.
    #[cold]
    fn wait_for(
        &mut self,
        queue: QueueWords<'_>,
        word: Word,
        now_ns: u64,
        lives: &mut impl FnMut(ProducerId) -> bool,
    ) -> Option<Take> {
        let mut held = self.held_at_head(now_ns);
        let held_ns = now_ns.saturating_sub(held.since_ns);
        if held_ns >= ASK_AFTER_NS {
            // Not earlier: most reservations commit at once, and reading all blocks takes their
            // lines from the producers' caches.
            self.watch(queue, now_ns - ASK_AFTER_NS);
        }
        let asks = now_ns >= held.ask_at_ns;
        let next = if asks && !is_there(word, lives) {
            self.next_lap(queue, State::Free, NOBODY)
        } else if held_ns >= RECLAIM_AFTER_NS {
            self.next_lap(queue, State::Skip, word.owner)
        } else {
            if asks {
                held.ask_at_ns = now_ns.saturating_add(held_ns);
            }
            self.held = Some(held);
            let reclaim_at_ns = held.since_ns.saturating_add(RECLAIM_AFTER_NS);
            let until_ns = held.ask_at_ns.min(reclaim_at_ns);
            return Some(Take::Held { until_ns });
        };
        if self.replace(queue, word, next) {
            self.reclaimed += 1;
            if next.state == State::Skip {
                self.quarantined += 1;
                *self.watch_of_head() = Watch {
                    since_ns: now_ns,
                    quarantined: true,
                };
            }
            self.head = self.head.wrapping_add(1);
        }
        None
    }

    /// Since when the block at the head has been held, as far as this consumer saw.
    fn held_at_head(&mut self, now_ns: u64) -> Held {
        if let Some(held) = self.held
            && held.position == self.head
        {
            return held;
        }
        let was_seen = signed(self.watched, self.head) > 0;
        let since_ns = if was_seen {
            self.watch_of_head().since_ns
        } else {
            now_ns
        };
        Held {
            position: self.head,
            since_ns,
            ask_at_ns: since_ns.saturating_add(ASK_AFTER_NS),
        }
    }

    /// Skips the position at the head, once producers have passed it.
    #[cold]
    fn skip(
        &mut self,
        queue: QueueWords<'_>,
        word: Word,
        now_ns: u64,
        lives: &mut impl FnMut(ProducerId) -> bool,
    ) -> Option<Take> {
        let ahead = signed(queue.tail.load(Ordering::Relaxed), self.head);
        if ahead <= 0 || ahead > queue.capacity() as i32 {
            return self.look_at_tail(queue);
        }
        let watch = self.watch_of_head();
        let asks = now_ns.saturating_sub(watch.since_ns) >= RECLAIM_AFTER_NS;
        if asks {
            watch.since_ns = now_ns;
        }
        let was_quarantined = watch.quarantined;
        if word.owner != NOBODY && !was_quarantined {
            self.put_right(queue);
            return None;
        }
        let stays = word.owner != NOBODY && (!asks || is_there(word, lives));
        let next = if stays {
            self.next_lap(queue, State::Skip, word.owner)
        } else {
            self.next_lap(queue, State::Free, NOBODY)
        };
        // Fails if the owner lets go of it now.
        if self.replace(queue, word, next) {
            if was_quarantined && !stays {
                self.watch_of_head().quarantined = false;
                self.quarantined -= 1;
            }
            self.head = self.head.wrapping_add(1);
        }
        None
    }

    /// Notes `since_ns` for each block in use that has no time yet.
    fn watch(&mut self, queue: QueueWords<'_>, since_ns: u64) {
        if signed(self.watched, self.head) < 0 {
            self.watched = self.head;
        }
        while self.watched.wrapping_sub(self.head) < queue.capacity() {
            let seen = queue.block(self.watched).word.load(Ordering::Relaxed);
            let word = Word::unpack(seen);
            if word.position == self.watched && word.state == State::Free {
                return;
            }
            let index = self.watched as usize & (self.watches.len() - 1);
            let watch = &mut self.watches[index];
            if !watch.quarantined {
                watch.since_ns = since_ns;
            }
            self.watched = self.watched.wrapping_add(1);
        }
    }

    /// Repairs an impossible word at the head.
    #[cold]
    fn put_right(&mut self, queue: QueueWords<'_>) {
        let free = self.next_lap(queue, State::Free, NOBODY);
        let word = &queue.block(self.head).word;
        word.store(free.pack(), Ordering::Release);
        let watch = self.watch_of_head();
        self.quarantined -= u32::from(std::mem::take(&mut watch.quarantined));
        self.dropped += 1;
        self.head = self.head.wrapping_add(1);
    }

    fn next_lap(&self, queue: QueueWords<'_>, state: State, owner: u32) -> Word {
        Word::new(self.head.wrapping_add(queue.capacity()), state, owner)
    }

    fn watch_of_head(&mut self) -> &mut Watch {
        &mut self.watches[self.head as usize & (self.watches.len() - 1)]
    }

    fn replace(&mut self, queue: QueueWords<'_>, old: Word, new: Word) -> bool {
        let word = &queue.block(self.head).word;
        // What `take` acquired with the old word happens before the next holder's writes, by this
        // Release.
        word.compare_exchange(old.pack(), new.pack(), Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

/// Whether the owner of a block lives; false if it has none.
fn is_there(word: Word, lives: &mut impl FnMut(ProducerId) -> bool) -> bool {
    ProducerId::new(word.owner).is_some_and(lives)
}

/// How far `a` is ahead of `b`.
#[inline]
fn signed(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Reserved,
    Ready,
    Skip,
}

/// The first word of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    position: u32,
    state: State,
    owner: u32,
}

impl Word {
    #[inline]
    fn new(position: u32, state: State, owner: u32) -> Word {
        Word {
            position,
            state,
            owner,
        }
    }

    fn free(position: u32) -> Word {
        Word::new(position, State::Free, NOBODY)
    }

    #[inline]
    fn pack(self) -> u64 {
        let state = self.state as u64;
        u64::from(self.position) << 32 | state << OWNER_BITS | u64::from(self.owner)
    }

    #[inline]
    fn unpack(word: u64) -> Word {
        let state = match (word as u32) >> OWNER_BITS {
            0 => State::Free,
            1 => State::Reserved,
            2 => State::Ready,
            _ => State::Skip,
        };
        Word::new((word >> 32) as u32, state, word as u32 & OWNER_MASK)
    }
}

const NOBODY: u32 = 0;
const OWNER_BITS: u32 = 30;
const OWNER_MASK: u32 = (1 << OWNER_BITS) - 1;
const TRIES_MIN: u32 = 1024;
const QUIET_LOOKS: u32 = if cfg!(loom) { 1 } else { 16 };

#[cfg(not(loom))]
const _: () = assert!(size_of::<QueueBlock>() == 64 && align_of::<QueueBlock>() == 64);

#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
pub use shared::{BLOCKS_MAX, DoorbellProducer, DoorbellQueue, Reservation};

#[cfg(all(test, not(loom)))]
mod tests;
