//! Connections.

use crate::operation::{Any, Operation};
use crate::region::Region;
use crate::shared::Remote;
use crate::{Cell, failure};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::ops::Range;

/// One end of a connection: messages in both directions, each whole and in order, and the peer's
/// regions.
///
/// Any thread may use it, and any number of operations may be in flight. `with endpoint:` and
/// `async with endpoint:` close it in an orderly way at their end, and at once after an error; the
/// end of the last reference closes it at once.
#[pyclass(frozen, module = "airdma")]
pub struct Endpoint {
    peer: String,
    /// None once it is closed. Locked while an operation starts, which may take long: never hold
    /// the interpreter then.
    endpoint: Cell<Option<airdma::Endpoint>>,
}

impl Endpoint {
    pub fn new(endpoint: airdma::Endpoint) -> Endpoint {
        Endpoint {
            peer: endpoint.peer().to_string(),
            endpoint: Cell::new(Some(endpoint)),
        }
    }

    /// Locks the endpoint: see [`Endpoint::endpoint`].
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Option<airdma::Endpoint>> {
        self.endpoint.lock()
    }

    /// Starts an operation without a region. Other threads run meanwhile: this returns once a long
    /// message is posted.
    fn ask(
        &self,
        py: Python<'_>,
        begin: impl FnOnce(&airdma::Endpoint) -> Any + Send,
    ) -> PyResult<Operation> {
        let begun = py.detach(|| self.endpoint.lock().as_ref().map(begin));
        let begun = begun.ok_or_else(|| is_closed(py))?;
        Ok(Operation::new(begun, None))
    }

    /// Starts an operation with a region.
    fn transfer(
        &self,
        region: Bound<'_, Region>,
        begin: impl FnOnce(&airdma::Endpoint, airdma::Region) -> Any + Send,
    ) -> PyResult<Operation> {
        let py = region.py();
        let memory = region.get().take(py, IN_FLIGHT)?;
        let begun = py.detach(|| match &*self.endpoint.lock() {
            Some(endpoint) => Ok(begin(endpoint, memory)),
            None => Err(memory),
        });
        match begun {
            Ok(begun) => Ok(Operation::new(begun, Some(region.unbind()))),
            Err(memory) => {
                region.get().put(memory);
                Err(is_closed(py))
            }
        }
    }
}

pub const IN_FLIGHT: &str = "the region is in flight: wait for the operation that has it";

pub fn is_closed(py: Python<'_>) -> PyErr {
    failure::usage(py, "the endpoint is closed: connect anew")
}

/// The range of a region that the caller names. It is checked later, with the region's length.
pub fn part(region: &airdma::Region, offset: usize, length: Option<usize>) -> Range<usize> {
    match length {
        Some(length) => offset..offset.saturating_add(length),
        None => offset..region.len().max(offset),
    }
}

#[pymethods]
impl Endpoint {
    /// The address at the other end.
    #[getter]
    fn peer(&self) -> &str {
        &self.peer
    }

    /// Sends `length` bytes of a region (all that follow, if None), from `offset` on, as one
    /// message. Returns the region when the peer has received it, which needs its `recv`: a sender
    /// waits for a slow receiver.
    ///
    /// Raises BufferError while views of the region exist, UsageError while it is in flight. The
    /// operation raises UsageError for bytes beyond its end; PeerError if the peer closed, died, or
    /// its region is too small; NetworkError if it does not answer.
    #[pyo3(signature = (region, length=None, *, offset=0))]
    fn send(
        &self,
        region: Bound<'_, Region>,
        length: Option<usize>,
        offset: usize,
    ) -> PyResult<Operation> {
        self.transfer(region, |endpoint, memory| {
            let range = part(&memory, offset, length);
            Any::Region(endpoint.send(memory, range))
        })
    }

    /// Receives one message into `length` bytes of a region (all that follow, if None), from
    /// `offset` on. They must hold the whole message, or the connection ends. Returns a `Message`.
    /// Messages go to receivers in the order of their calls.
    ///
    /// A cancelled receive loses nothing: the next receiver gets the message.
    ///
    /// Raises as `send` does. After the last message of a peer that closed, the operation raises
    /// ClosedError.
    #[pyo3(signature = (region, length=None, *, offset=0))]
    fn recv(
        &self,
        region: Bound<'_, Region>,
        length: Option<usize>,
        offset: usize,
    ) -> PyResult<Operation> {
        self.transfer(region, |endpoint, memory| {
            let range = part(&memory, offset, length);
            Any::Message(endpoint.recv(memory, range))
        })
    }

    /// Writes `length` bytes of a region (all that follow, if None), from `offset` on, into the
    /// peer's at offset `at`. Returns the region when they are there. The peer is not involved, and
    /// not notified.
    ///
    /// Raises as `send` does. The operation raises UsageError beyond the end of either region;
    /// PeerError if the peer's is not shared for writing.
    #[pyo3(signature = (region, to, at=0, length=None, *, offset=0))]
    fn write(
        &self,
        region: Bound<'_, Region>,
        to: &Remote,
        at: u64,
        length: Option<usize>,
        offset: usize,
    ) -> PyResult<Operation> {
        self.transfer(region, |endpoint, memory| {
            let range = part(&memory, offset, length);
            Any::Region(endpoint.write(memory, range, &to.0, at))
        })
    }

    /// Reads what is in the peer's region at offset `at` into `length` bytes of a region (all that
    /// follow, if None), from `offset` on. Returns the region. Raises as `write` does.
    #[pyo3(signature = (region, source, at=0, length=None, *, offset=0))]
    fn read(
        &self,
        region: Bound<'_, Region>,
        source: &Remote,
        at: u64,
        length: Option<usize>,
        offset: usize,
    ) -> PyResult<Operation> {
        self.transfer(region, |endpoint, memory| {
            let range = part(&memory, offset, length);
            Any::Region(endpoint.read(memory, range, &source.0, at))
        })
    }

    /// Adds atomically to the 64-bit word at offset `at` of the peer's region, a multiple of 8;
    /// returns the old value. Sums wrap at 2**64. The operation raises as that of `write` does.
    fn fetch_add(&self, py: Python<'_>, on: &Remote, at: u64, add: u64) -> PyResult<Operation> {
        self.ask(py, |endpoint| Any::Word(endpoint.fetch_add(&on.0, at, add)))
    }

    /// Replaces the 64-bit word at offset `at` of the peer's region by `swap`, atomically, if it
    /// equals `compare`; returns the old value. The operation raises as that of `write` does.
    fn compare_swap(
        &self,
        py: Python<'_>,
        on: &Remote,
        at: u64,
        compare: u64,
        swap: u64,
    ) -> PyResult<Operation> {
        self.ask(py, |endpoint| {
            Any::Word(endpoint.compare_swap(&on.0, at, compare, swap))
        })
    }

    /// Reports how many bytes wait in a buffer that the peer fills (for a disk, for example), and
    /// how many fit; 0 of 0 ends the reports. The buffer should hold many times what is taken out
    /// at once. The call is cheap: make it at each change.
    ///
    /// In air mode (automatic on Wi-Fi, else `AIRDMA_AIR=1`) the peer sends no faster than the
    /// buffer empties. This is advisory: the program must still keep the buffer from overflowing.
    /// Raises UsageError if the endpoint is closed.
    fn tell_buffer(&self, py: Python<'_>, bytes: u64, capacity: u64) -> PyResult<()> {
        let told = py.detach(|| {
            let endpoint = self.endpoint.lock();
            endpoint
                .as_ref()
                .map(|endpoint| endpoint.tell_buffer(bytes, capacity))
        });
        told.ok_or_else(|| is_closed(py))
    }

    /// Closes the connection after the operations before; returns None. The peer receives what was
    /// sent before, and then that it is closed. The operation raises an error that happened before.
    fn close(&self, py: Python<'_>) -> PyResult<Operation> {
        let endpoint = py.detach(|| self.endpoint.lock().take());
        let endpoint = endpoint.ok_or_else(|| is_closed(py))?;
        Ok(Operation::new(Any::Nothing(endpoint.close()), None))
    }

    /// Ends the connection at once.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| {
            let endpoint = self.endpoint.lock().take();
            drop(endpoint);
        });
    }

    /// Whether it was closed on this side.
    #[getter]
    fn is_closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.endpoint.lock().is_none())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes it in an orderly way, and at once after an error.
    #[pyo3(signature = (kind=None, *_error))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _error: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.abort(py);
        }
        if self.is_closed(py) {
            return Ok(());
        }
        let closing = Bound::new(py, self.close(py)?)?;
        closing.call_method0("wait").map(drop)
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        static ENTERED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let entered = ENTERED.import(slf.py(), "airdma._waiting", "entered")?;
        entered.call1((&slf,))
    }

    #[pyo3(signature = (kind=None, *_error))]
    fn __aexit__<'py>(
        slf: Bound<'py, Self>,
        kind: Option<Bound<'py, PyAny>>,
        _error: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static LEFT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let left = LEFT.import(slf.py(), "airdma._waiting", "left")?;
        left.call1((&slf, kind))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.is_closed(py) { ", closed" } else { "" };
        format!("<airdma.Endpoint to {}{state}>", self.peer)
    }
}
