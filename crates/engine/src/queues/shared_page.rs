//! Words that a daemon and one of its clients share: whether each of them sleeps, and why to wake.
//!
//! | word | written by | read by |
//! |---|---|---|
//! | the daemon sleeps | daemon; the client that wakes it clears it | client |
//! | threads of the client that sleep | client | daemon |
//! | a completion queue is armed | client | daemon |
//! | the client was signalled | daemon; the client clears it | both |
//! | events were sent | daemon; the client clears it | client |
//! | the client's memory is the daemon's to use | client | daemon, before each access to it |
//!
//! The page lies in the client's memory. What the client writes there decides whether the client is
//! woken, whether the daemon makes a system call for it, and whether its memory is still accessed,
//! and nothing else.
//!
//! A side that sleeps sets its word, fences, and looks for work; the other one publishes work,
//! fences, and reads the word (as [`airdma_shm::SleepFlag`]).

use airdma_shm::{Arena, Block, Corrupt};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Bytes of the page: a pair of cache lines for each word.
const BYTES: usize = 6 * APART;
const APART: usize = 128;

#[derive(Clone, Copy)]
enum Word {
    DaemonSleeps,
    ClientSleeps,
    Armed,
    Signalled,
    HasEvents,
    LendsMemory,
}

/// The page, as one side has it.
#[derive(Clone, Debug)]
pub(crate) struct SharedPage(Arc<Block>);

impl SharedPage {
    /// A page in the client's arena.
    pub(crate) fn new(arena: &Arena) -> io::Result<Self> {
        let page = SharedPage(Arc::new(arena.alloc(BYTES, APART)?));
        page.word(Word::LendsMemory).store(1, Ordering::Relaxed);
        Ok(page)
    }

    /// The page in a block that the client passed.
    ///
    /// # Errors
    /// [`Corrupt::Geometry`] if the block is too short.
    pub(crate) fn attach(block: Block) -> Result<Self, Corrupt> {
        let is_aligned = block.ptr().addr().get().is_multiple_of(APART);
        if block.len() < BYTES || !is_aligned {
            return Err(Corrupt::Geometry);
        }
        Ok(SharedPage(Arc::new(block)))
    }

    /// The memory it lies in.
    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.0
    }

    /// The daemon is about to sleep: it fences for all clients together, and looks for work.
    pub(crate) fn note_daemon_sleeps(&self, sleeps: bool) {
        self.word(Word::DaemonSleeps)
            .store(u32::from(sleeps), Ordering::Relaxed);
    }

    /// The client has rung a doorbell: whether it has to wake the daemon. One thread does.
    pub(crate) fn must_wake_daemon(&self) -> bool {
        fence(Ordering::SeqCst);
        let word = self.word(Word::DaemonSleeps);
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
    }

    /// A thread of the client is about to sleep: it must look for completions after this call.
    pub(crate) fn will_sleep(&self) {
        self.word(Word::ClientSleeps)
            .fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub(crate) fn woke(&self) {
        self.word(Word::ClientSleeps)
            .fetch_sub(1, Ordering::Relaxed);
    }

    /// A completion queue was armed.
    pub(crate) fn note_armed(&self) {
        self.word(Word::Armed).store(1, Ordering::SeqCst);
    }

    /// Whether one may be, which is then to be noted again.
    pub(crate) fn take_armed(&self) -> bool {
        let word = self.word(Word::Armed);
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether the client sleeps and has a queue that is armed. The daemon has fenced.
    pub(crate) fn awaits_completions(&self) -> bool {
        self.word(Word::ClientSleeps).load(Ordering::Relaxed) != 0
            && self.word(Word::Armed).load(Ordering::Relaxed) != 0
    }

    /// The daemon has something for the client: whether it has to make its descriptor readable.
    pub(crate) fn must_signal(&self) -> bool {
        self.word(Word::Signalled).swap(1, Ordering::SeqCst) == 0
    }

    /// Whether the client's descriptor was made readable.
    pub(crate) fn is_signalled(&self) -> bool {
        self.word(Word::Signalled).load(Ordering::Relaxed) != 0
    }

    /// It is readable no more: the client looks for work after this call.
    pub(crate) fn take_signal(&self) {
        self.word(Word::Signalled).swap(0, Ordering::SeqCst);
    }

    /// The daemon has sent events.
    pub(crate) fn note_events(&self) {
        self.word(Word::HasEvents).store(1, Ordering::SeqCst);
    }

    /// Whether it has since the last call.
    pub(crate) fn take_events(&self) -> bool {
        let word = self.word(Word::HasEvents);
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::SeqCst) != 0
    }

    /// The client's memory is its own from now on, as it is once the page is freed: free memory of
    /// an arena is zero. A daemon that was stopped, and runs again, sees this before it sees that
    /// the client has closed its sockets.
    pub(crate) fn take_memory_back(&self) {
        self.word(Word::LendsMemory).store(0, Ordering::SeqCst);
    }

    /// Whether the client's memory is the daemon's to access.
    pub(crate) fn lends_memory(&self) -> bool {
        self.word(Word::LendsMemory).load(Ordering::Relaxed) != 0
    }

    fn word(&self, word: Word) -> &AtomicU32 {
        // SAFETY: the block has `BYTES` bytes (`new` and `attach`), of which this is a part. It is
        // aligned, and mapped while `self` is borrowed; atomics may change under a reference.
        unsafe { AtomicU32::from_ptr(self.0.ptr().as_ptr().add(word as usize * APART).cast()) }
    }
}
