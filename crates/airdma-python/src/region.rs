//! Memory that a device sends from and receives into, as a Python buffer.

use crate::shared::Shared;
use crate::{Cell, failure, view};
use airdma::Rights;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use std::ffi::c_int;
use std::ops::Range;

/// Registered memory. `memoryview(region)` and `numpy.frombuffer(region)` are its bytes, without a
/// copy; `region[2:5]` is a view of some, and can be assigned to.
///
/// While an operation has it, it has no bytes to view (BufferError); while a view of it exists, no
/// operation takes it (BufferError again): `del` views and arrays, or `release()` them, before.
#[pyclass(frozen, module = "airdma")]
pub struct Region {
    place: Cell<Place>,
}

struct Place {
    /// None while an operation, or a shared region, has it.
    memory: Option<airdma::Region>,
    /// Why there is none.
    away: &'static str,
    /// Address of the memory for views, which do not access the region itself.
    bytes: Bytes,
    /// Number of views that exist.
    views: usize,
    /// Number of times that it was given away, by which a message notices that its bytes are gone.
    times_given: u64,
}

#[derive(Clone, Copy)]
struct Bytes {
    start: *mut u8,
    length: usize,
}

// SAFETY: only an address here. Its users are views, each of which is counted and keeps the region,
// and with it the memory.
unsafe impl Send for Bytes {}

/// A received message: its bytes, in the region that was given to receive it.
///
/// `bytes(message)` copies them, `memoryview(message)` and `numpy.frombuffer(message)` do not. They
/// are valid until the region is used again.
#[pyclass(frozen, module = "airdma")]
pub struct Message {
    region: Py<Region>,
    range: Range<usize>,
    times_given: u64,
}

impl Bytes {
    fn of(memory: &mut airdma::Region) -> Bytes {
        Bytes {
            start: memory.as_mut_ptr(),
            length: memory.len(),
        }
    }
}

impl Region {
    pub fn new(mut memory: airdma::Region) -> Region {
        let bytes = Bytes::of(&mut memory);
        let place = Place {
            memory: Some(memory),
            away: "",
            bytes,
            views: 0,
            times_given: 0,
        };
        Region {
            place: Cell::new(place),
        }
    }

    /// Takes the memory out, for `whom`.
    pub fn take(&self, py: Python<'_>, whom: &'static str) -> PyResult<airdma::Region> {
        let mut place = self.place.lock();
        if place.views > 0 {
            return Err(PyBufferError::new_err(format!(
                "views of the region are alive (memoryviews, arrays), {} of them: `del` or release them, and the device takes it",
                place.views
            )));
        }
        let Some(memory) = place.memory.take() else {
            return Err(failure::usage(py, place.away));
        };
        place.away = whom;
        place.times_given += 1;
        Ok(memory)
    }

    /// Puts memory back.
    pub fn put(&self, mut memory: airdma::Region) {
        let mut place = self.place.lock();
        place.bytes = Bytes::of(&mut memory);
        place.memory = Some(memory);
    }

    /// Marks the memory as lost.
    pub fn lose(&self, why: &'static str) {
        self.place.lock().away = why;
    }

    pub fn times_given(&self) -> u64 {
        self.place.lock().times_given
    }

    /// The memory for one more view, which is counted.
    fn view(&self, part: Option<(&Range<usize>, u64)>) -> PyResult<view::Bytes> {
        let mut place = self.place.lock();
        if let Some((_, times_given)) = part
            && times_given != place.times_given
        {
            return Err(PyBufferError::new_err(
                "the region of this message has been used again: take what you need of it before",
            ));
        }
        if place.memory.is_none() {
            return Err(PyBufferError::new_err(place.away));
        }
        place.views += 1;
        let Bytes { start, length } = place.bytes;
        Ok(part.map_or((start, length), |(range, _)| {
            // SAFETY: a message lies within its region, which has not been given away since.
            (unsafe { start.add(range.start) }, range.len())
        }))
    }

    fn end_view(&self) {
        self.place.lock().views -= 1;
    }
}

#[pymethods]
impl Region {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let region = slf.get();
        let (begin, end) = (|| region.view(None), || region.end_view());
        // SAFETY: Python's view; the region keeps its memory while views are counted.
        unsafe { view::give(slf.as_any(), (view, flags), true, begin, end) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_view();
    }

    fn __len__(&self) -> usize {
        self.place.lock().bytes.length
    }

    fn __getitem__<'py>(
        slf: Bound<'py, Self>,
        at: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        PyMemoryView::from(slf.as_any())?.get_item(at)
    }

    fn __setitem__(
        slf: Bound<'_, Self>,
        at: Bound<'_, PyAny>,
        value: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        PyMemoryView::from(slf.as_any())?.set_item(at, value)
    }

    /// Whether an operation, or a shared region, has the memory.
    #[getter]
    fn in_flight(&self) -> bool {
        self.place.lock().memory.is_none()
    }

    /// Splits it at byte `at`. This object has no memory any more.
    ///
    /// Raises UsageError if `at` exceeds its length.
    fn split_at(&self, py: Python<'_>, at: usize) -> PyResult<(Region, Region)> {
        let memory = self.take(py, "the region was cut in two: use its parts")?;
        match memory.split_at(at) {
            Ok((first, rest)) => Ok((Region::new(first), Region::new(rest))),
            Err(error) => Err(self.returned(py, error)),
        }
    }

    /// Shares it with peers, each of which needs its own key (`Shared.remote`), with these `rights`
    /// (`Rights.READ | Rights.WRITE | Rights.ATOMIC`, or `Rights.RECORD`). This object has no
    /// memory any more:
    /// `Shared.withdraw` returns it in another.
    ///
    /// Raises UsageError for unknown rights, and for atomics in a region that is not at a multiple
    /// of 8.
    fn share(&self, py: Python<'_>, rights: u8) -> PyResult<Shared> {
        let known = Rights::from_bits(rights).ok_or_else(|| {
            failure::usage(
                py,
                "rights that do not exist: join Rights.READ, Rights.WRITE, Rights.ATOMIC, Rights.RECORD and Rights.RECORD_READ by |",
            )
        })?;
        let memory = self.take(
            py,
            "the region is shared with peers: `withdraw` it to have it alone",
        )?;
        match memory.share(known) {
            Ok(shared) => Ok(Shared::new(shared)),
            Err(error) => Err(self.returned(py, error)),
        }
    }

    fn __repr__(&self) -> String {
        let place = self.place.lock();
        let state = if place.memory.is_none() { ", away" } else { "" };
        format!("<airdma.Region of {} bytes{state}>", place.bytes.length)
    }
}

impl Region {
    /// Puts the memory back, and converts the error.
    fn returned(&self, py: Python<'_>, error: airdma::Error) -> PyErr {
        let failed = failure::from(py, &error);
        if let Some(memory) = error.into_region() {
            self.put(memory);
        }
        failed
    }
}

impl Message {
    /// The message in a region that has its memory again.
    pub fn new(region: Py<Region>, range: Range<usize>) -> Message {
        let times_given = region.get().times_given();
        Message {
            region,
            range,
            times_given,
        }
    }
}

#[pymethods]
impl Message {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let message = slf.get();
        let region = message.region.get();
        let begin = || region.view(Some((&message.range, message.times_given)));
        let end = || region.end_view();
        // SAFETY: Python's view; the message keeps its region, and that its memory while views are
        // counted.
        unsafe { view::give(slf.as_any(), (view, flags), true, begin, end) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.region.get().end_view();
    }

    fn __len__(&self) -> usize {
        self.range.len()
    }

    /// The region, for reuse.
    #[getter]
    fn region(&self, py: Python<'_>) -> Py<Region> {
        self.region.clone_ref(py)
    }

    /// Its offset in the region, in bytes.
    #[getter]
    fn offset(&self) -> usize {
        self.range.start
    }

    fn __repr__(&self) -> String {
        format!("<airdma.Message of {} bytes>", self.range.len())
    }
}
