//! The atomics and locks of [`crate::PerProcess`]: std's, or loom's under `--cfg loom`.
//!
//! `tests/loom.rs` builds the modules that use these as they stand.

pub use crate::process::Process;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, Ordering};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicPtr, Ordering};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};
