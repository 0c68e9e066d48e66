//! Whether the consumer of a ring sleeps, and must be woken by a system call.
//!
//! The consumer sets the flag, fences, looks at the ring, and sleeps if that is empty. The producer
//! publishes, fences, and reads the flag. The fences are sequentially consistent, so at least one
//! of the two sees what the other did (`tests/loom`): nothing is published to a consumer that
//! sleeps on, and a consumer that does not sleep costs the producer no call.

use crate::sync::{AtomicU32, Ordering, fence};

/// The flag, as it lies in shared memory. Any value but 0 means that the consumer sleeps.
#[repr(C)]
#[derive(Debug)]
pub struct SleepFlag(AtomicU32);

impl Default for SleepFlag {
    fn default() -> Self {
        SleepFlag(AtomicU32::new(0))
    }
}

impl SleepFlag {
    /// The consumer is about to sleep. It must look at the ring after this call.
    pub fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The consumer sleeps no more.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the consumer must be woken, for a producer that has published something.
    #[must_use]
    pub fn is_set(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}
