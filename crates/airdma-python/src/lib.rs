//! The north API for Python. `python/airdma/_airdma.pyi` is its reference; here each call is mapped to the crate `airdma`.
//!
//! What Rust's ownership says, these objects say at run time: a [`region::Region`] whose memory the device has is empty until
//! the operation gives it back, and memory that Python can reach through a view is not given to the device.

use pyo3::prelude::*;

mod bell;
mod device;
mod endpoint;
mod failure;
mod operation;
mod region;
mod shared;

#[pymodule]
mod _airdma {
    #[pymodule_export]
    use crate::bell::Bell;
    #[pymodule_export]
    use crate::device::{Device, Listener};
    #[pymodule_export]
    use crate::endpoint::Endpoint;
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::region::{Message, Region};
    #[pymodule_export]
    use crate::shared::{Remote, Shared};

    #[pymodule_init]
    fn init(py: super::Python<'_>) -> super::PyResult<()> {
        crate::failure::load(py)
    }
}

/// A value behind a lock. What a thread that panicked left behind is whole: nothing here is changed in two steps.
struct Cell<T>(std::sync::Mutex<T>);

impl<T> Cell<T> {
    fn new(value: T) -> Cell<T> {
        Cell(std::sync::Mutex::new(value))
    }

    /// Held for moments, and never while Python runs.
    fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
