//! The atomics, locks and cells of the modules that loom checks: std's, or loom's under `--cfg
//! loom`.
//!
//! `tests/loom.rs` builds these modules as they stand; they use nothing else of the crate.

#[cfg(not(loom))]
pub use airdma_preload::PerProcess;

// `airdma_preload`'s own file, in the test.
#[cfg(loom)]
pub use crate::{per_process::PerProcess, process::Process};

#[cfg(loom)]
pub use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A cell whose uses loom can see.
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

/// A static, which is made afresh for each execution that loom explores.
macro_rules! shared {
    ($name:ident: $type:ty = $value:expr) => {
        #[cfg(not(loom))]
        static $name: $type = $value;
        #[cfg(loom)]
        loom::lazy_static! { static ref $name: $type = $value; }
    };
}
pub(crate) use shared;
