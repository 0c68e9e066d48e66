//! Cancels a transfer from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels what it was given to, within a fraction of a second.
///
/// Data that is durable by then need not be sent again. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    cancelled: Arc<AtomicBool>,
}

impl Cancel {
    /// Cancels it.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether `other` is a clone.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cancelled, &other.cancelled)
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
