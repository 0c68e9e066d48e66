//! Endpoints without connections.

use crate::endpoint::{IN_FLIGHT, part};
use crate::operation::{Any, Operation};
use crate::record::Record;
use crate::region::Region;
use crate::shared::{Missing, Remote, Shared, address_of, bytes_of, is_withdrawn};
use crate::{Cell, failure};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};
use std::time::Duration;

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
pub struct DatagramAddress(pub airdma::DatagramAddress);

impl DatagramEndpoint {
    pub fn new(endpoint: airdma::DatagramEndpoint) -> DatagramEndpoint {
        DatagramEndpoint {
            address: endpoint.address(),
            endpoint: Cell::new(Some(endpoint)),
        }
    }

    /// Calls the endpoint with a shared region, without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        shared: &Shared,
        what: impl FnOnce(&airdma::DatagramEndpoint, &airdma::Shared) -> airdma::Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            let endpoint = self.endpoint.lock();
            let endpoint = endpoint.as_ref().ok_or(Missing::Endpoint)?;
            let shared = shared.lock();
            let shared = shared.as_ref().ok_or(Missing::Memory)?;
            what(endpoint, shared).map_err(Missing::Result)
        });
        done.map_err(|missing| match missing {
            Missing::Endpoint => is_closed(py),
            Missing::Memory => is_withdrawn(py),
            Missing::Result(error) => failure::from(py, &error),
        })
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

    /// Reads `length` bytes at offset `at` of a peer's region (as many as follow in the region, if
    /// None) into a region, from `offset` on, by datagrams. `address` is of an endpoint of the
    /// peer's device, `remote` from `Shared.remote_for_reads`. What is lost is asked for again for
    /// `deadline` seconds. Returns a `Record` that says which bytes arrived; they are in the
    /// region.
    ///
    /// Raises BufferError while views of the region exist, UsageError while it is in flight. The
    /// operation raises UsageError beyond the end of either region, PeerError if the peer does not
    /// allow it, and NetworkError if nothing arrived.
    #[pyo3(signature = (region, address, remote, at=0, length=None, *, offset=0, deadline=1.0))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn read_record(
        &self,
        region: Bound<'_, Region>,
        address: &DatagramAddress,
        remote: &Remote,
        at: u64,
        length: Option<usize>,
        offset: usize,
        deadline: f64,
    ) -> PyResult<Operation> {
        let py = region.py();
        let deadline = Duration::try_from_secs_f64(deadline).map_err(|_| {
            failure::usage(
                py,
                format!("a deadline of {deadline} seconds: give one above 0"),
            )
        })?;
        let memory = region.get().take(py, IN_FLIGHT)?;
        let begun = py.detach(|| match &*self.endpoint.lock() {
            Some(endpoint) => {
                let range = part(&memory, offset, length);
                Ok(endpoint.read_record(&address.0, memory, range, &remote.0, at, deadline))
            }
            None => Err(memory),
        });
        match begun {
            Ok(begun) => Ok(Operation::new(Any::Fetched(begun), Some(region.unbind()))),
            Err(memory) => {
                region.get().put(memory);
                Err(is_closed(py))
            }
        }
    }

    /// What has arrived so far of the message that writes the byte at `offset` of a shared region,
    /// while it arrives: a `Record` whose bytes are in the shared region (`Shared.copy_out`), or
    /// None if there is none.
    #[pyo3(signature = (shared, offset=0))]
    fn peek_record(
        &self,
        py: Python<'_>,
        shared: &Shared,
        offset: usize,
    ) -> PyResult<Option<Record>> {
        let seen = self.with(py, shared, |endpoint, shared| {
            Ok(endpoint.peek_record(shared, offset))
        });
        Ok(seen?.as_ref().map(Record::without_place))
    }

    /// Ends the message that `peek_record` shows: its record comes at once, with what has arrived
    /// (`Ended.ASKED`). False if there is none.
    ///
    /// Raises UsageError if the region is not shared with `Rights.RECORD`.
    #[pyo3(signature = (shared, offset=0))]
    fn close_record(&self, py: Python<'_>, shared: &Shared, offset: usize) -> PyResult<bool> {
        self.with(py, shared, |endpoint, shared| {
            endpoint.close_record(shared, offset)
        })
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

    /// A new address of a multicast group ("239.1.2.3"): send its bytes to the members
    /// (`Device.group_endpoint`) and to the sources. It holds a random number, without which no
    /// message reaches a member.
    ///
    /// Raises UsageError if the address is not of a group.
    #[staticmethod]
    fn of_group(py: Python<'_>, group: &str) -> PyResult<DatagramAddress> {
        let address = airdma::DatagramAddress::of_group(address_of(py, group)?);
        address
            .map(DatagramAddress)
            .map_err(|error| failure::from(py, &error))
    }

    /// Address of its host, or of the group.
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
