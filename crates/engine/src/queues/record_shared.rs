//! The records of a queue pair, which the worker writes and the application reads and frees.

use airdma_transport::RecordTarget;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The target of a queue pair's records. The worker holds the lock for the packets of one received
/// buffer, an application for one call; neither takes another lock meanwhile.
pub(crate) struct RecordShared {
    target: Mutex<RecordTarget>,
}

impl RecordShared {
    pub(crate) fn new(target: RecordTarget) -> Self {
        RecordShared {
            target: Mutex::new(target),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RecordTarget> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
