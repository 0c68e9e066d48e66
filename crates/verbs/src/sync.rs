//! The atomics, locks and cells of what threads share and loom checks: std's, or loom's under `--cfg loom`.
//!
//! Modules that use these are built into `tests/loom.rs` as they stand, and know nothing else of the crate.

#[cfg(loom)]
pub use crate::process::Process;
#[cfg(not(loom))]
pub use airdma_engine::Process;

#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A cell whose uses can be seen by loom.
#[cfg(not(loom))]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Lends what is in it to be read and written.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A static, of which each execution that loom explores has a fresh one.
macro_rules! shared {
    ($name:ident: $type:ty = $value:expr) => {
        #[cfg(not(loom))]
        static $name: $type = $value;
        #[cfg(loom)]
        loom::lazy_static! { static ref $name: $type = $value; }
    };
}
pub(crate) use shared;
