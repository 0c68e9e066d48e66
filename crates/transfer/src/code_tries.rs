//! How often a code was shown to be known to a host that did not show it in turn.

use std::sync::atomic::{AtomicU32, Ordering};

/// As many guesses of a code as a receiver gives its senders.
pub const CODE_TRIES_MAX: u32 = airdma_files::session::WRONG_CODES_MAX as u32;

/// Handshakes by one code in which this end showed that it has the code, and the other end has not (yet). An impostor that answers under
/// the receiver's name can check one guess of its own in each. One object serves all calls with the same code.
#[derive(Debug, Default)]
pub struct CodeTries(AtomicU32);

impl CodeTries {
    /// Whether the code must not be shown again.
    pub(crate) fn are_spent(&self) -> bool {
        self.count() >= CODE_TRIES_MAX
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The other end has the code.
    pub(crate) fn succeed(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
