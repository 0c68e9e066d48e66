//! The Python API of airdma.
//!
//! `python/airdma/_airdma.pyi` is its reference; this crate maps each call to the crate `airdma`.
//!
//! Rust's ownership becomes a check at run time: a [`region::Region`] whose memory the device has
//! is empty until the operation returns it, and memory with views in Python is not given to the
//! device.

use pyo3::prelude::*;

mod bell;
mod datagrams;
mod device;
mod endpoint;
mod failure;
mod operation;
mod record;
mod region;
mod shared;
mod streams;
mod view;

#[pymodule]
mod _airdma {
    #[pymodule_export]
    use crate::bell::Bell;
    #[pymodule_export]
    use crate::datagrams::{DatagramAddress, DatagramEndpoint};
    #[pymodule_export]
    use crate::device::{Device, Listener};
    #[pymodule_export]
    use crate::endpoint::Endpoint;
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::record::Record;
    #[pymodule_export]
    use crate::region::{Message, Region};
    #[pymodule_export]
    use crate::shared::{Remote, Shared};
    #[pymodule_export]
    use crate::streams::{Frame, FrameBlock, FrameReceiver, FrameSender};

    #[pymodule_init]
    fn init(py: super::Python<'_>) -> super::PyResult<()> {
        crate::failure::load(py)
    }
}

/// A value behind a lock. Data is consistent even after a panic: nothing here changes in two steps.
struct Cell<T>(std::sync::Mutex<T>);

impl<T> Cell<T> {
    fn new(value: T) -> Cell<T> {
        Cell(std::sync::Mutex::new(value))
    }

    /// Held briefly, and never while Python code runs.
    fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
