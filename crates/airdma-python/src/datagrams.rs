//! Endpoints without connections.

use crate::endpoint::{IN_FLIGHT, part};
use crate::operation::{Any, Operation};
use crate::region::Region;
use crate::shared::{Remote, bytes_of};
use crate::{Cell, failure};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};

/// An endpoint without a connection: it writes messages into regions of any number of targets, and
/// takes the records of messages that any number of sources write.
///
/// Nothing is repeated: what is lost is missing at the target, whose `Record` says what arrived.
/// Any thread may use it. `with endpoint:` closes it.
#[pyclass(frozen, module = "airdma")]
pub struct DatagramEndpoint {
    address: airdma::DatagramAddress,
    /// None once it is closed. Locked while an operation starts: never hold the interpreter then.
    endpoint: Cell<Option<airdma::DatagramEndpoint>>,
}

/// Address of a `DatagramEndpoint`. Send `bytes(address)` to a source, which decodes it with
/// `DatagramAddress(message)`.
#[pyclass(frozen, eq, module = "airdma")]
#[derive(PartialEq)]
pub struct DatagramAddress(airdma::DatagramAddress);

impl DatagramEndpoint {
    pub fn new(endpoint: airdma::DatagramEndpoint) -> DatagramEndpoint {
        DatagramEndpoint {
            address: endpoint.address(),
            endpoint: Cell::new(Some(endpoint)),
        }
    }
}

fn is_closed(py: Python<'_>) -> PyErr {
    failure::usage(py, "the endpoint is closed: open another")
}

#[pymethods]
impl DatagramEndpoint {
    /// Its address, for sources. With it alone a source can write nothing: it also needs
    /// `Shared.remote_for_records` of a region.
    #[getter]
    fn address(&self) -> DatagramAddress {
        DatagramAddress(self.address)
    }

    /// Writes `length` bytes of a region (all that follow, if None), from `offset` on, into the
    /// target's at offset `at`, as one message, and sends the number `immediate` (32 bits) along.
    /// Returns the region when the last packet has left: whether any arrives, the source does not
    /// learn. Write to the same place again only when the target has released the record of the
    /// message there.
    ///
    /// Raises BufferError while views of the region exist, UsageError while it is in flight. The
    /// operation raises UsageError beyond the end of either region, and for no bytes.
    #[pyo3(signature = (region, to, remote, at=0, length=None, *, offset=0, immediate=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn write_record(
        &self,
        region: Bound<'_, Region>,
        to: &DatagramAddress,
        remote: &Remote,
        at: u64,
        length: Option<usize>,
        offset: usize,
        immediate: Option<u32>,
    ) -> PyResult<Operation> {
        let py = region.py();
        let memory = region.get().take(py, IN_FLIGHT)?;
        let begun = py.detach(|| match &*self.endpoint.lock() {
            Some(endpoint) => {
                let range = part(&memory, offset, length);
                Ok(endpoint.write_record(&to.0, memory, range, &remote.0, at, immediate))
            }
            None => Err(memory),
        });
        match begun {
            Ok(begun) => Ok(Operation::new(Any::Region(begun), Some(region.unbind()))),
            Err(memory) => {
                region.get().put(memory);
                Err(is_closed(py))
            }
        }
    }

    /// The next record: of a message that is whole, or of which no more is awaited. A cancelled
    /// operation loses none.
    fn record(&self, py: Python<'_>) -> PyResult<Operation> {
        let begun = py.detach(|| {
            let endpoint = self.endpoint.lock();
            endpoint.as_ref().map(airdma::DatagramEndpoint::record)
        });
        let begun = begun.ok_or_else(|| is_closed(py))?;
        Ok(Operation::new(Any::Record(begun), None))
    }

    /// An iterator over the records from now on. It ends when none came for `timeout` seconds; with
    /// None it waits for as long as it takes.
    #[pyo3(signature = (timeout=None))]
    fn records(slf: Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Bound<'_, PyAny>> {
        static RECORDS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let records = RECORDS.import(slf.py(), "airdma._waiting", "records")?;
        records.call1((&slf, timeout))
    }

    /// Ends its operations. Records stay valid.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let endpoint = self.endpoint.lock().take();
            drop(endpoint);
        });
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let address = &self.address;
        format!(
            "<airdma.DatagramEndpoint {} at {}>",
            address.number(),
            address.ip()
        )
    }
}

#[pymethods]
impl DatagramAddress {
    /// Length of `bytes(address)`.
    #[classattr]
    const BYTES: usize = airdma::DatagramAddress::BYTES;

    #[new]
    fn new(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<DatagramAddress> {
        let bytes = bytes_of(py, data)?;
        let address = airdma::DatagramAddress::from_bytes(&bytes);
        address
            .map(DatagramAddress)
            .map_err(|error| failure::from(py, &error))
    }

    /// Address of its host.
    #[getter]
    fn host(&self) -> String {
        self.0.ip().to_string()
    }

    /// Its number, of the endpoints of its host.
    #[getter]
    fn number(&self) -> u32 {
        self.0.number()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    fn __repr__(&self) -> String {
        format!(
            "<airdma.DatagramAddress {} at {}>",
            self.number(),
            self.host()
        )
    }
}
