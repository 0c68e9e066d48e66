//! The state of a shared receive queue that the worker and the application share beside its ring.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// What the application's side and the worker's side share, beside the ring.
pub(crate) struct SrqShared {
    /// Unique in this process: whose events these are.
    pub(crate) id: u64,
    pub(crate) cookie: AtomicU64,
    pub(crate) limit: AtomicU32,
}
