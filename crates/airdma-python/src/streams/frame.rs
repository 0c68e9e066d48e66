//! Frames and blocks as Python buffers.

use crate::view::{self, Bytes};
use crate::{Cell, failure};
use airdma_stream::{Block, Flags};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::c_int;
use std::sync::Arc;

/// Memory, and the views of it in Python.
struct Viewed<T> {
    /// None once it is given away.
    memory: Option<T>,
    views: usize,
}

impl<T> Viewed<T> {
    fn new(memory: T) -> Cell<Viewed<T>> {
        Cell::new(Viewed {
            memory: Some(memory),
            views: 0,
        })
    }

    /// One view more, of these bytes; an error says why there is no memory.
    fn view(&mut self, away: &'static str, bytes: impl FnOnce(&mut T) -> Bytes) -> PyResult<Bytes> {
        let memory = self.memory.as_mut();
        let bytes = bytes(memory.ok_or_else(|| PyBufferError::new_err(away))?);
        self.views += 1;
        Ok(bytes)
    }

    fn take(&mut self) -> PyResult<Option<T>> {
        if self.views > 0 {
            return Err(PyBufferError::new_err(format!(
                "views are alive (memoryviews, arrays), {} of them: `del` or release them before",
                self.views
            )));
        }
        Ok(self.memory.take())
    }
}

/// A frame as it lies in its block: `memoryview(frame)`, `numpy.frombuffer(frame, numpy.uint8)`
/// and `frame.array(shape)` are its bytes, without a copy, and cannot be written.
///
/// It has its block until it is released: `release()`, `with frame:`, or the end of the last
/// reference to it and to arrays of it. It may be kept as long as needed, and holds up no other,
/// but a receiver has few blocks.
#[pyclass(frozen, module = "airdma")]
pub struct Frame {
    frame: Cell<Viewed<airdma_stream::Frame>>,
    told: Told,
}

/// What stays when it is released.
struct Told {
    device: u32,
    sequence: u64,
    missing: u64,
    time_ns: u64,
    deadline_ns: u64,
    arrived_ns: u64,
    format: Option<String>,
    flags: Flags,
    length: usize,
}

impl Frame {
    pub fn new(frame: airdma_stream::Frame) -> Frame {
        let told = Told {
            device: frame.device(),
            sequence: frame.sequence(),
            missing: frame.missing(),
            time_ns: frame.time(),
            deadline_ns: frame.deadline(),
            arrived_ns: frame.arrived(),
            format: frame.format().map(|format| format.to_string()),
            flags: frame.flags(),
            length: frame.len(),
        };
        Frame {
            frame: Viewed::new(frame),
            told,
        }
    }
}

#[pymethods]
impl Frame {
    /// Number of its device. A sender may give any number: it authenticates nothing.
    #[getter]
    fn device(&self) -> u32 {
        self.told.device
    }

    /// Its number among the frames of the device.
    #[getter]
    fn sequence(&self) -> u64 {
        self.told.sequence
    }

    /// Frames of the device that did not arrive, or were dropped by its quota, between the one
    /// before and this one.
    #[getter]
    fn missing(&self) -> u64 {
        self.told.missing
    }

    /// When it was captured, in nanoseconds since 1970 by the sender's clock (`time.time_ns()`); 0
    /// if unknown.
    #[getter]
    fn time_ns(&self) -> u64 {
        self.told.time_ns
    }

    /// When it is worthless, likewise; 0 for never.
    #[getter]
    fn deadline_ns(&self) -> u64 {
        self.told.deadline_ns
    }

    /// When it was found here, by this host's clock.
    #[getter]
    fn arrived_ns(&self) -> u64 {
        self.told.arrived_ns
    }

    /// Description of its format, or None.
    #[getter]
    fn format(&self) -> Option<&str> {
        self.told.format.as_deref()
    }

    /// Whether it can be decoded without those before.
    #[getter]
    fn is_key(&self) -> bool {
        self.told.flags.contains(Flags::KEY)
    }

    /// Whether the device sends no more; then it has no bytes.
    #[getter]
    fn is_end(&self) -> bool {
        self.told.flags.contains(Flags::END)
    }

    /// Whether the device has nothing to show until the next frame; then it has no bytes.
    #[getter]
    fn is_gap(&self) -> bool {
        self.told.flags.contains(Flags::GAP)
    }

    /// Its bytes as a NumPy array of this shape, without a copy. The array keeps the block.
    ///
    /// Raises ValueError for a shape of another size, ImportError without NumPy, BufferError once
    /// it is released.
    #[pyo3(signature = (shape=None, dtype="uint8"))]
    fn array<'py>(
        slf: Bound<'py, Self>,
        shape: Option<Bound<'py, PyAny>>,
        dtype: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = slf.py().import("numpy")?;
        let array = numpy.call_method1("frombuffer", (&slf, dtype))?;
        match shape {
            Some(shape) => array.call_method1("reshape", (shape,)),
            None => Ok(array),
        }
    }

    /// Frees its block.
    ///
    /// Raises BufferError while views or arrays of it exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let frame = self.frame.lock().take()?;
        py.detach(|| drop(frame));
        Ok(())
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let frame = &slf.get().frame;
        let begin = || {
            let bytes = |frame: &mut airdma_stream::Frame| (frame.as_ptr().cast_mut(), frame.len());
            frame.lock().view("the frame is released", bytes)
        };
        let end = || frame.lock().views -= 1;
        // SAFETY: Python's view, which is read-only; a frame stays while views are counted.
        unsafe { view::give(slf.as_any(), (view, flags), false, begin, end) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.frame.lock().views -= 1;
    }

    fn __len__(&self) -> usize {
        self.told.length
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py)
    }

    fn __repr__(&self) -> String {
        let Told {
            device,
            sequence,
            length,
            ..
        } = &self.told;
        format!("<airdma.Frame {sequence} of device {device}, {length} bytes>")
    }
}

/// Memory of a sender for one frame: fill it (`memoryview(block)`, `numpy.frombuffer(block,
/// numpy.uint8)`), and give it to `FrameSender.send`.
///
/// A block that is not sent goes back to its sender with the end of its last reference.
#[pyclass(frozen, module = "airdma")]
pub struct FrameBlock {
    block: Cell<Viewed<Block>>,
    /// Where its sender finds it.
    returned: Returned,
}

/// Blocks that were not sent.
pub(super) type Returned = Arc<Cell<Vec<Block>>>;

impl FrameBlock {
    pub(super) fn new(block: Block, returned: &Returned) -> FrameBlock {
        FrameBlock {
            block: Viewed::new(block),
            returned: Arc::clone(returned),
        }
    }

    /// Its memory, for its sender: the one with these blocks.
    pub(super) fn take(&self, py: Python<'_>, returned: &Returned) -> PyResult<Block> {
        if !Arc::ptr_eq(&self.returned, returned) {
            return Err(failure::usage(py, "the block is of another sender"));
        }
        let block = self.block.lock().take()?;
        block.ok_or_else(|| failure::usage(py, "the block was sent: ask for another"))
    }

    /// What was taken, if it was not sent.
    pub(super) fn put_back(&self, block: Option<Block>) {
        if block.is_some() {
            self.block.lock().memory = block;
        }
    }
}

#[pymethods]
impl FrameBlock {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let block = &slf.get().block;
        let begin = || {
            let bytes = |block: &mut Block| (block.as_mut_ptr(), block.len());
            block
                .lock()
                .view("the block was sent: ask for another", bytes)
        };
        let end = || block.lock().views -= 1;
        // SAFETY: Python's view; a block stays while views are counted.
        unsafe { view::give(slf.as_any(), (view, flags), true, begin, end) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.block.lock().views -= 1;
    }

    fn __len__(&self) -> usize {
        self.block
            .lock()
            .memory
            .as_ref()
            .map_or(0, |block| block.len())
    }

    fn __repr__(&self) -> String {
        format!("<airdma.FrameBlock of {} bytes>", self.__len__())
    }
}

impl Drop for FrameBlock {
    fn drop(&mut self) {
        let block = self.block.lock().memory.take();
        self.returned.lock().extend(block);
    }
}
