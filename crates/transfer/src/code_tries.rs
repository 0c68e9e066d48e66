//! Counts proofs of a code to peers that did not prove it in turn.

use std::sync::atomic::{AtomicU32, Ordering};

/// Most such proofs: as many guesses as a receiver allows its senders.
pub const CODE_TRIES_MAX: u32 = airdma_files::session::WRONG_CODES_MAX as u32;

/// Handshakes by one code in which this end has proven the code and the other end has not (yet).
///
/// In each of them, an impostor that answers under the receiver's name can check one guess. One
/// object serves all calls with the same code.
#[derive(Debug, Default)]
pub struct CodeTries(AtomicU32);

impl CodeTries {
    /// Whether the code must not be used again.
    pub(crate) fn are_spent(&self) -> bool {
        self.count() >= CODE_TRIES_MAX
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the other end has proven the code.
    pub(crate) fn succeed(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
