//! Memory for one-sided operations: local regions that are shared, and regions of a peer.

use crate::datagrams::DatagramAddress;
use crate::endpoint::{Endpoint, is_closed};
use crate::region::Region;
use crate::{Cell, failure};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::net::IpAddr;
use std::sync::MutexGuard;

/// A region that peers can access while the program does something else. It is not a buffer, since
/// its bytes may change at any time: they are copied out and in.
#[pyclass(frozen, module = "airdma")]
pub struct Shared {
    /// None once it is withdrawn.
    memory: Cell<Option<airdma::Shared>>,
}

/// A region of the peer: address, key and length. Send `bytes(remote)` to the peer, which decodes
/// it with `Remote(message)`.
#[pyclass(frozen, eq, module = "airdma")]
#[derive(PartialEq)]
pub struct Remote(pub airdma::Remote);

impl Shared {
    pub fn new(shared: airdma::Shared) -> Shared {
        Shared {
            memory: Cell::new(Some(shared)),
        }
    }

    /// Locks it: never while holding the interpreter.
    pub fn lock(&self) -> MutexGuard<'_, Option<airdma::Shared>> {
        self.memory.lock()
    }

    fn with<T>(
        &self,
        py: Python<'_>,
        what: impl FnOnce(&airdma::Shared) -> Result<T, airdma::Error>,
    ) -> PyResult<T> {
        match &*self.memory.lock() {
            Some(shared) => what(shared).map_err(|error| failure::from(py, &error)),
            None => Err(is_withdrawn(py)),
        }
    }
}

/// Why a call with an endpoint and a shared region has no result.
pub enum Missing {
    Endpoint,
    Memory,
    Result(airdma::Error),
}

pub fn is_withdrawn(py: Python<'_>) -> PyErr {
    failure::usage(
        py,
        "the region is withdrawn: use the one that `withdraw` gave",
    )
}

#[pymethods]
impl Shared {
    /// The key and address for the peer of an endpoint: send it `bytes(remote)`. It is valid for
    /// that peer on that connection only; other peers that learn it gain nothing. Each call returns
    /// the same.
    ///
    /// Raises UsageError for an endpoint of another device, or a closed one; HostError if there are
    /// no keys left.
    fn remote(&self, py: Python<'_>, to: &Endpoint) -> PyResult<Remote> {
        let made = py.detach(|| {
            let endpoint = to.lock();
            let endpoint = endpoint.as_ref().ok_or(Missing::Endpoint)?;
            let shared = self.memory.lock();
            let shared = shared.as_ref().ok_or(Missing::Memory)?;
            shared.remote(endpoint).map_err(Missing::Result)
        });
        made.map(Remote).map_err(|missing| match missing {
            Missing::Endpoint => is_closed(py),
            Missing::Memory => is_withdrawn(py),
            Missing::Result(error) => failure::from(py, &error),
        })
    }

    /// The key and address for sources of records (`DatagramEndpoint.write_record`): of all hosts,
    /// or of the one with the address `host`. Each call returns the same for the same hosts.
    ///
    /// Raises UsageError if the region is not shared with `Rights.RECORD`; HostError if there are
    /// no keys left.
    #[pyo3(signature = (host=None))]
    fn remote_for_records(&self, py: Python<'_>, host: Option<&str>) -> PyResult<Remote> {
        let host = host.map(|host| address_of(py, host)).transpose()?;
        self.with(py, |shared| shared.remote_for_records(host).map(Remote))
    }

    /// The key and address for reads by datagrams (`DatagramEndpoint.read_record`): of all hosts,
    /// or of the one with the address `host`. Each call returns the same for the same hosts.
    ///
    /// Raises UsageError if the region is not shared with `Rights.RECORD_READ`; HostError if there
    /// are no keys left.
    #[pyo3(signature = (host=None))]
    fn remote_for_reads(&self, py: Python<'_>, host: Option<&str>) -> PyResult<Remote> {
        let host = host.map(|host| address_of(py, host)).transpose()?;
        self.with(py, |shared| shared.remote_for_reads(host).map(Remote))
    }

    /// The key for records to a multicast group, for an endpoint that is a member
    /// (`Device.group_endpoint`). The first member draws it, and sends it to the source and to the
    /// other members, which give it as `agreed`. Offsets are those of each member's own region. A
    /// member knows the key that writes to all the others: name the source by `host`, or trust the
    /// hosts of the network.
    ///
    /// Raises UsageError if the region is not shared with `Rights.RECORD`; HostError if there are
    /// no keys left, or another region of the device has the key.
    #[pyo3(signature = (group, agreed=None, host=None))]
    fn remote_for_group(
        &self,
        py: Python<'_>,
        group: &DatagramAddress,
        agreed: Option<&Remote>,
        host: Option<&str>,
    ) -> PyResult<Remote> {
        let host = host.map(|host| address_of(py, host)).transpose()?;
        let agreed = agreed.map(|remote| &remote.0);
        self.with(py, |shared| {
            shared.remote_for_group(&group.0, agreed, host).map(Remote)
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |shared| Ok(shared.len()))
    }

    /// A copy of what is there now. A concurrent write of a peer may be in it in part.
    #[pyo3(signature = (offset=0, length=None))]
    fn copy_out<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let whole = self.with(py, |shared| Ok(shared.len()))?;
        let length = length.unwrap_or_else(|| whole.saturating_sub(offset));
        // Checked before memory is allocated for it.
        if offset.checked_add(length).is_none_or(|end| end > whole) {
            return Err(failure::usage(
                py,
                format!(
                    "{length} bytes at offset {offset} of a region of {whole} bytes: stay within it"
                ),
            ));
        }
        PyBytes::new_with(py, length, |bytes| {
            self.with(py, |shared| shared.copy_out(offset, bytes))
        })
    }

    /// Copies bytes to `offset`. A concurrent read of a peer may get them in part.
    fn copy_in(&self, py: Python<'_>, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes_of(py, data)?;
        self.with(py, |shared| shared.copy_in(offset, &bytes))
    }

    /// Reads the word at `offset`, a multiple of 8, atomically: for words that peers add to.
    fn word(&self, py: Python<'_>, offset: usize) -> PyResult<u64> {
        self.with(py, |shared| shared.word(offset))
    }

    /// Ends the sharing, and returns the region. When this returns, no peer accesses it any more.
    fn withdraw(&self, py: Python<'_>) -> PyResult<Region> {
        let shared = self.memory.lock().take();
        let shared = shared.ok_or_else(|| is_withdrawn(py))?;
        Ok(Region::new(py.detach(|| shared.withdraw())))
    }

    fn __repr__(&self) -> String {
        match &*self.memory.lock() {
            Some(shared) => format!("<airdma.Shared of {} bytes>", shared.len()),
            None => "<airdma.Shared, withdrawn>".into(),
        }
    }
}

#[pymethods]
impl Remote {
    /// Length of `bytes(remote)`.
    #[classattr]
    const BYTES: usize = airdma::Remote::BYTES;

    #[new]
    fn new(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Remote> {
        let bytes = bytes_of(py, data)?;
        let remote = airdma::Remote::from_bytes(&bytes);
        remote
            .map(Remote)
            .map_err(|error| failure::from(py, &error))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    fn __repr__(&self) -> String {
        format!("<airdma.Remote of {} bytes>", self.0.len())
    }
}

/// A copy of the bytes of any object with the buffer protocol.
pub fn bytes_of(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer = PyBuffer::<u8>::get(data).map_err(|_| {
        PyBufferError::new_err(
            "bytes are wanted: `bytes`, or `memoryview(...).cast('B')` of anything else",
        )
    })?;
    buffer.to_vec(py)
}

/// The address that a caller gives as text.
pub fn address_of(py: Python<'_>, text: &str) -> PyResult<IpAddr> {
    text.parse()
        .map_err(|_| failure::usage(py, format!("{text:?} is no address: give one as 192.0.2.2")))
}
