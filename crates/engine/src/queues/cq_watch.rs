//! What a client of a daemon looks at to see that its completion queue got completions: the worker,
//! which would say so, is the daemon's.

use crate::queues::shared_page::SharedPage;
use airdma_shm::{Block, Corrupt, Cqe, RingWatch};
use std::sync::{Arc, Mutex, PoisonError};

/// The ring of a completion queue, and how far it was looked at.
pub(crate) struct CqWatch {
    ring: RingWatch,
    seen: Mutex<u32>,
    page: Arc<SharedPage>,
}

/// Completions that were added since the last look.
pub(crate) struct Added {
    /// Whether one of them is solicited or unsuccessful.
    pub(crate) solicited: bool,
}

impl CqWatch {
    /// Watches the ring in `block`.
    ///
    /// # Errors
    /// [`Corrupt`] if the block does not hold a ring.
    pub(crate) fn new(block: Arc<Block>, page: Arc<SharedPage>) -> Result<Self, Corrupt> {
        let ring = RingWatch::attach(block)?;
        let seen = Mutex::new(ring.published());
        Ok(CqWatch { ring, seen, page })
    }

    /// The memory the ring lies in.
    pub(crate) fn block(&self) -> &Arc<Block> {
        self.ring.block()
    }

    /// Whether completions were added that no thread has looked at.
    pub(crate) fn has_news(&self) -> bool {
        *self.seen() != self.ring.published()
    }

    /// What was added since the last look; `None` if nothing was.
    pub(crate) fn look(&self) -> Option<Added> {
        let mut seen = self.seen();
        let published = self.ring.published();
        let count = published.wrapping_sub(*seen).min(self.ring.capacity());
        if count == 0 {
            return None;
        }
        *seen = published;
        // A slot that is used again meanwhile was polled, or is looked at again.
        let solicited = (1..=count).any(|back| {
            let cqe: Cqe = self.ring.slot(published.wrapping_sub(back)).read_header();
            cqe.flags & Cqe::SOLICITED != 0 || cqe.status != 0
        });
        Some(Added { solicited })
    }

    /// The queue is armed, or still is: the daemon must wake this process for a completion.
    pub(crate) fn note_armed(&self) {
        self.page.note_armed();
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, u32> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
