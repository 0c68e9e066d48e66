//! A bounded queue of fixed-size blocks in shared memory: many producers (threads of many processes), one consumer, and no
//! producer that can stop the others, wherever it dies.
//!
//! BURST calls it the shared doorbell queue (section 4.2 and appendix A.1). Where [`crate::doorbells`] says *that* a queue
//! pair has work, a block says *what*, in the order in which it was said.
//!
//! # The word of a block
//!
//! Positions count up through all of `u32`; position `p` lies in block `p & (capacity - 1)`. The first word of a block
//! says for which position it is next (or now) in use, in which state, and who holds it:
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
//! A producer that finds `Free(tail)` exchanges it for `Reserved(tail, itself)`: the reservation and its owner's name are one
//! step, so there is no moment at which a block is taken and nobody knows by whom. Only then is `tail` moved on, by the owner or
//! by whoever comes first and finds it behind. It writes, and exchanges `Reserved` for `Ready`. The consumer takes
//! `Ready(head)`, and makes it `Free(head + capacity)`.
//!
//! # Reclaiming
//!
//! The consumer that finds `Reserved(head)` asks after [`ASK_AFTER_NS`] whether its owner lives, and again ever more rarely.
//!
//! - *Its process is gone*, with all its threads: nobody will write to the block, and it is made `Free` again at once.
//! - *It lives, and [`RECLAIM_AFTER_NS`] have passed*: it is stopped, preempted for long, or the thread has died. The consumer makes
//!   the block `Skip(head + capacity)` and goes on. If the owner comes back, its exchange fails (the word holds another state
//!   and another position): its item was not taken, it hears so ([`Reclaimed`]) and posts again. It may have written to the
//!   block up to then, which is why nobody else has got it meanwhile: the block is passed over, lap after lap, until its owner
//!   lets go of it, which is the last thing the failed commit does, or until its process is gone.
//!
//! When the head has been held for [`ASK_AFTER_NS`], the consumer notes what is in use behind it, too: any number of producers that
//! die together cost the others one timeout, not one each, if it looks again when [`Take::Held`] says so. The clock and the
//! question who lives are the caller's.
//!
//! # Orderings
//!
//! *Items*: the holder writes the block, then exchanges with Release; the consumer loads the word with Acquire.
//! *Blocks that come back*: the consumer has read the block, then stores `Free` with Release; who reserves it does so with
//! Acquire. Who lets go of a reclaimed block does so with Release, which the consumer acquires before it frees it.
//! *`tail`* carries nothing, and is relaxed: a position is passed by one who has exchanged or seen its word as no longer `Free`, and no
//! two exchanges find the same word. So `Free(head)`, found by an exchange, with `tail` beyond `head` is no honest
//! producer's doing.
//!
//! # What is not trusted
//!
//! The consumer knows its head; a word that cannot be there, or a `tail` that cannot be, is put right and counted
//! ([`QueueConsumer::dropped`]). A producer masks what it reads, and tries a bounded number of times. So a hostile
//! process can fill the queue, drop or forge items, but make nobody read or write out of bounds, wait or panic. Those who do not
//! trust each other do not share a queue.
//!
//! A stopped thread that resumes after exactly a multiple of 2^32 positions may find its exchange succeed where it should
//! fail. It then reserves a block that is free (its item may overtake some), or moves `tail` past a free one (which the consumer puts
//! right). It never commits what is not its own: a block that was reclaimed from it is nobody else's until it lets go.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Words of an item: with the block's own word, one cache line. Loom has enough to do with two.
pub const PAYLOAD_WORDS: usize = if cfg!(loom) { 2 } else { 7 };

/// What a block carries.
pub type Payload = [u64; PAYLOAD_WORDS];

/// How long the consumer waits for a reservation before it asks whether its owner lives.
pub const ASK_AFTER_NS: u64 = 100_000;

/// How long a reservation may hold up those behind it while its owner lives. Whoever is preempted for longer posts again.
pub const RECLAIM_AFTER_NS: u64 = 5_000_000;

/// Most producers that one queue ever knows; their numbers are not used again.
pub const PRODUCERS_MAX: u32 = OWNER_MASK;

/// Who holds a block: a number from 1 to [`PRODUCERS_MAX`] that the consumer gave out. 0 is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProducerId(u32);

impl ProducerId {
    /// `None` when there is no such number.
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

/// There is no room (or so much going on that none was found).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the doorbell queue is full")]
pub struct Full;

/// The consumer took the block back before it was committed; the item was not queued, and is to be posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block was reclaimed before it was committed")]
pub struct Reclaimed;

/// An item, and who says that it is his.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Who committed it; `None` if a hostile process left a name that nobody has.
    pub producer: Option<ProducerId>,
    /// As it was written.
    pub payload: Payload,
}

/// What the consumer finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The oldest item, which is taken.
    Item(Item),
    /// Nothing was committed or reserved.
    Empty,
    /// The oldest block is reserved and not committed; items may wait behind it.
    Held {
        /// When it is worth while to look again, even if nobody says that there is something.
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
    /// The block of that index in a new queue whose first position is `start`.
    #[must_use]
    pub fn new(index: u32, start: u32, capacity: u32) -> QueueBlock {
        let block = QueueBlock {
            word: AtomicU64::new(0),
            payload: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        block.reset(index, start, capacity);
        block
    }

    /// Makes it the block of that index in a new queue that nobody uses yet.
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
    /// A queue over blocks as [`QueueBlock::new`] makes them, and `tail` at their start.
    ///
    /// # Panics
    ///
    /// When the number of blocks is no power of two.
    #[must_use]
    #[inline]
    pub fn new(tail: &'a AtomicU32, blocks: &'a [QueueBlock]) -> Self {
        assert!(blocks.len().is_power_of_two(), "a power of two of blocks");
        Self { tail, blocks }
    }

    /// Reserves the next block and returns its position. Lock-free: who is held up is so because another one got on.
    ///
    /// # Errors
    ///
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
                // Of the lap before, and still in use; or `tail` is old.
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
                // Reserved, to be skipped, or done with: whoever should have moved on has not got there yet, or never will.
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
    ///
    /// [`Reclaimed`]: the item was not queued. Either way the block is not the caller's any more.
    #[inline]
    pub fn commit(self, position: u32, owner: ProducerId) -> Result<(), Reclaimed> {
        let ready = Word::new(position, State::Ready, owner.0);
        self.settle(position, owner, ready)
    }

    /// Gives a block back that the caller has reserved, without an item.
    pub fn abandon(self, position: u32, owner: ProducerId) {
        // If it was reclaimed, it is let go of all the same.
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

    /// Moves `tail` past a position that was seen not to be free, unless somebody else does. Returns where it is then.
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

/// The consumer took the block, and keeps it from others because we might still write to it: now we do not.
#[cold]
fn let_go(word: &AtomicU64, owner: ProducerId, mut seen: u64) {
    for _ in 0..TRIES_MIN {
        let now = Word::unpack(seen);
        // Otherwise we were taken for dead, or somebody writes what he likes.
        if now.state != State::Skip || now.owner != owner.0 {
            return;
        }
        let free = Word::new(now.position, State::Skip, NOBODY).pack();
        match word.compare_exchange(seen, free, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            // The consumer came by, and says that it is to be skipped for another lap.
            Err(newer) => seen = newer,
        }
    }
}

/// The consumer's end of the protocol: what it knows and shares with nobody.
#[derive(Debug)]
pub struct QueueConsumer {
    head: u32,
    /// Positions before this one have a time in `since_ns`.
    watched: u32,
    /// For each block.
    watches: Box<[Watch]>,
    /// The block at the head was seen reserved there.
    held: Option<Held>,
    /// How often there was nothing.
    quiet: u32,
    reclaimed: u64,
    dropped: u64,
    quarantined: u32,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    position: u32,
    since_ns: u64,
    /// When to ask for its owner.
    ask_at_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    /// When it was first seen in use at its position; or, in quarantine, when its owner was last asked for.
    since_ns: u64,
    /// Reclaimed, and its owner may still write to it.
    quarantined: bool,
}

impl QueueConsumer {
    /// The consumer of a new queue of so many blocks.
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

    /// How many reservations were taken back.
    #[must_use]
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed
    }

    /// How often something was put right that no honest producer does.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How many blocks are out of use because a producer may come back that had reserved them.
    #[must_use]
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// Takes the oldest item. `now_ns` is any clock that does not go back; `lives` says whether any thread of a producer is left
    /// (if not, that must be for ever). Work is bounded by the number of blocks.
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

    /// The block at the head is free. Producers fight for the line of `tail`, so it is left alone most of the time.
    #[inline]
    fn find_nothing(&mut self, queue: QueueWords<'_>) -> Option<Take> {
        self.quiet = self.quiet.wrapping_add(1);
        if !self.quiet.is_multiple_of(QUIET_LOOKS) {
            return Some(Take::Empty);
        }
        self.look_at_tail(queue)
    }

    /// The block at the head is free: so nothing is there, unless `tail` is where it cannot be.
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
        // It may have been reserved since we looked; if not, somebody moved `tail` who must not.
        if self.replace(queue, free, self.next_lap(queue, State::Free, NOBODY)) {
            self.dropped += 1;
            self.head = self.head.wrapping_add(1);
        }
        None
    }

    /// The block at the head is reserved. `None` when that has changed.
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
            // Not before: most are committed at once, and a look at all blocks takes them from their producers' caches.
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

    /// Since when the block at the head has been held, as far as was seen.
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

    /// The position at the head is to be skipped, once producers have done so.
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
        // It fails when the owner lets go of it now.
        if self.replace(queue, word, next) {
            if was_quarantined && !stays {
                self.watch_of_head().quarantined = false;
                self.quarantined -= 1;
            }
            self.head = self.head.wrapping_add(1);
        }
        None
    }

    /// Notes for each block in use that was not seen before that it has been so since then.
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

    /// The word at the head cannot be there.
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
        // Whatever `take` acquired with the old word comes before what the next holder writes, whom Release lets in.
        word.compare_exchange(old.pack(), new.pack(), Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }
}

/// Whether the owner of a block lives; nobody does not.
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
