//! Ending a transfer from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends what it was given to, within a fraction of a second; what is durable by then need not be sent again. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    cancelled: Arc<AtomicBool>,
}

impl Cancel {
    /// Ends it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether `other` is a clone.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cancelled, &other.cancelled)
    }

    /// Whether it is to end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
