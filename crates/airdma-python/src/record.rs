//! What arrived of a message that was written by datagrams.

use crate::{Cell, failure};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};
use std::ffi::c_int;
use std::ops::Range;

/// One message of `DatagramEndpoint.write_record` at its target: its bytes, and which of them
/// arrived. `DatagramEndpoint.read_record` and `peek_record` give one, too: without bytes, which
/// are in the region.
///
/// `bytes(record)`, `memoryview(record)` and `numpy.frombuffer(record)` are a copy of the bytes,
/// with zeros where nothing arrived; `mask` says where that is. The place in the region that was
/// shared belongs to the record until it is released: `release()`, `with record:`, or the end of
/// the last reference. Release records soon: an endpoint has room for 192 of them, of one host for
/// half of that.
#[pyclass(frozen, module = "airdma")]
pub struct Record {
    told: Told,
    /// None once it is released, and if it holds no place.
    record: Cell<Option<airdma::Record>>,
    /// Why its bytes cannot be taken without a place.
    without: &'static str,
    /// The copy, from the first use on.
    data: PyOnceLock<Py<PyBytes>>,
}

/// What stays when it is released.
struct Told {
    source: String,
    source_number: u32,
    group: Option<String>,
    number: u32,
    immediate: Option<u32>,
    range: Range<usize>,
    unit: usize,
    ended: Option<u8>,
    valid_bytes: usize,
    valid: Vec<Range<usize>>,
    missing: Vec<Range<usize>>,
}

impl Told {
    fn of(seen: &airdma::Arrived) -> Told {
        Told {
            source: seen.source().to_string(),
            source_number: seen.source_number(),
            group: seen.group().map(|group| group.to_string()),
            number: seen.number(),
            immediate: seen.immediate(),
            range: seen.range(),
            unit: seen.unit(),
            ended: seen.end().map(|ended| ended as u8),
            valid_bytes: seen.valid_bytes(),
            valid: seen.valid().to_vec(),
            missing: seen.missing().collect(),
        }
    }
}

impl Record {
    pub fn new(record: airdma::Record) -> Record {
        Record {
            told: Told::of(&record),
            record: Cell::new(Some(record)),
            without: "the record is released: take its bytes before",
            data: PyOnceLock::new(),
        }
    }

    /// One that holds no place: of a read, or of a message that is arriving.
    pub fn without_place(seen: &airdma::Arrived) -> Record {
        Record {
            told: Told::of(seen),
            record: Cell::new(None),
            without: "the record holds no bytes: they are in the region, from `record.offset` on",
            data: PyOnceLock::new(),
        }
    }

    /// The copy of its bytes.
    fn data(&self, py: Python<'_>) -> PyResult<&Py<PyBytes>> {
        self.data.get_or_try_init(py, || {
            let copied = py.detach(|| {
                let record = self.record.lock();
                record.as_ref().map(airdma::Record::to_vec)
            });
            let copied = copied.ok_or_else(|| failure::usage(py, self.without))?;
            let bytes = copied.map_err(|error| failure::from(py, &error))?;
            Ok(PyBytes::new(py, &bytes).unbind())
        })
    }
}

fn pairs(ranges: &[Range<usize>]) -> Vec<(usize, usize)> {
    ranges
        .iter()
        .map(|range| (range.start, range.end))
        .collect()
}

#[pymethods]
impl Record {
    /// Address of the host that sent it. It can be forged, as that of any datagram.
    #[getter]
    fn source(&self) -> &str {
        &self.told.source
    }

    /// Number of the endpoint that sent it (`DatagramAddress.number`).
    #[getter]
    fn source_number(&self) -> u32 {
        self.told.source_number
    }

    /// The multicast group that it was sent to, or None.
    #[getter]
    fn group(&self) -> Option<&str> {
        self.told.group.as_deref()
    }

    /// Its number: the source counts its messages from 0, those to other targets too.
    #[getter]
    fn number(&self) -> u32 {
        self.told.number
    }

    /// The number that the source sent along, or None.
    #[getter]
    fn immediate(&self) -> Option<u32> {
        self.told.immediate
    }

    /// Its offset in the shared region, in bytes.
    #[getter]
    fn offset(&self) -> usize {
        self.told.range.start
    }

    /// Bytes that are lost or arrive together.
    #[getter]
    fn unit(&self) -> usize {
        self.told.unit
    }

    /// Why no more of it was awaited: an `airdma.Ended`, or None while it is arriving.
    #[getter]
    fn ended<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static ENDED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(ended) = self.told.ended else {
            return Ok(None);
        };
        let ended = ENDED.import(py, "airdma", "Ended")?.call1((ended,))?;
        Ok(Some(ended))
    }

    /// Whether all of it arrived.
    #[getter]
    fn is_whole(&self) -> bool {
        self.told.missing.is_empty()
    }

    /// Number of bytes that arrived.
    #[getter]
    fn valid_bytes(&self) -> usize {
        self.told.valid_bytes
    }

    /// The bytes that arrived: pairs of first byte and end, in order.
    #[getter]
    fn valid(&self) -> Vec<(usize, usize)> {
        pairs(&self.told.valid)
    }

    /// The bytes that are missing: pairs of first byte and end, in order.
    #[getter]
    fn missing(&self) -> Vec<(usize, usize)> {
        pairs(&self.told.missing)
    }

    /// A byte for each item of `itemsize` bytes, 1 if all of the item arrived and 0 if not:
    /// `numpy.frombuffer(record.mask(4), bool)` is the mask of
    /// `numpy.frombuffer(record, numpy.float32)`.
    ///
    /// Raises ValueError if the message does not consist of such items.
    #[pyo3(signature = (itemsize=1))]
    fn mask<'py>(&self, py: Python<'py>, itemsize: usize) -> PyResult<Bound<'py, PyBytes>> {
        let length = self.told.range.len();
        if itemsize == 0 || !length.is_multiple_of(itemsize) {
            return Err(PyValueError::new_err(format!(
                "{length} bytes are not items of {itemsize} bytes"
            )));
        }
        PyBytes::new_with(py, length / itemsize, |mask| {
            mask.fill(1);
            for missing in &self.told.missing {
                let end = missing.end.div_ceil(itemsize);
                mask[missing.start / itemsize..end].fill(0);
            }
            Ok(())
        })
    }

    /// Gives its place in the region back: other messages may change it. A copy of its bytes that
    /// was used before stays.
    fn release(&self, py: Python<'_>) {
        let record = self.record.lock().take();
        py.detach(|| drop(record));
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let py = slf.py();
        // SAFETY: null, or Python's view; a view that is refused has no owner (PEP 3118).
        if let Some(view) = unsafe { view.as_mut() } {
            view.obj = std::ptr::null_mut();
        }
        let data = slf.get().data(py)?;
        // SAFETY: Python's view, which `bytes` fills and owns.
        let failed = unsafe { ffi::PyObject_GetBuffer(data.as_ptr(), view, flags) };
        if failed == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(py))
        }
    }

    fn __len__(&self) -> usize {
        self.told.range.len()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.release(py);
    }

    fn __repr__(&self) -> String {
        let Told {
            valid_bytes,
            number,
            source,
            ..
        } = &self.told;
        let length = self.told.range.len();
        format!("<airdma.Record {number} from {source}, {valid_bytes} of {length} bytes>")
    }
}
