//! Memory that peers reach: a region of ours that is shared, and a region of theirs.

use crate::endpoint::{Endpoint, is_closed};
use crate::region::Region;
use crate::{Cell, failure};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A region that peers reach while you do something else. It is no buffer, since its bytes may change at any time: they are copied
/// out and in.
#[pyclass(frozen, module = "airdma")]
pub struct Shared {
    /// None once it is withdrawn.
    memory: Cell<Option<airdma::Shared>>,
}

/// A region of the peer: where it is, its key, and how long it is. `bytes(remote)` is what to send to the peer that is to use it,
/// `Remote(message)` what that peer makes of it.
#[pyclass(frozen, eq, module = "airdma")]
#[derive(PartialEq)]
pub struct Remote(pub airdma::Remote);

impl Shared {
    pub fn new(shared: airdma::Shared) -> Shared {
        Shared {
            memory: Cell::new(Some(shared)),
        }
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

/// Why there is no key for an endpoint.
enum Missing {
    Endpoint,
    Memory,
    Key(airdma::Error),
}

fn is_withdrawn(py: Python<'_>) -> PyErr {
    failure::usage(
        py,
        "the region is withdrawn: use the one that `withdraw` gave",
    )
}

#[pymethods]
impl Shared {
    /// What the peer of an endpoint must know of it: send it `bytes(remote)`. It opens the region to that peer on that connection:
    /// to others, that hear of it somehow, it opens nothing. It is the same each time.
    ///
    /// Raises UsageError for an endpoint of another device, or a closed one; HostError if there are no keys left.
    fn remote(&self, py: Python<'_>, to: &Endpoint) -> PyResult<Remote> {
        let made = py.detach(|| {
            let endpoint = to.lock();
            let endpoint = endpoint.as_ref().ok_or(Missing::Endpoint)?;
            let shared = self.memory.lock();
            let shared = shared.as_ref().ok_or(Missing::Memory)?;
            shared.remote(endpoint).map_err(Missing::Key)
        });
        made.map(Remote).map_err(|missing| match missing {
            Missing::Endpoint => is_closed(py),
            Missing::Memory => is_withdrawn(py),
            Missing::Key(error) => failure::from(py, &error),
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |shared| Ok(shared.len()))
    }

    /// A copy of what is there now. What a peer writes meanwhile is in it in part, or not.
    #[pyo3(signature = (offset=0, length=None))]
    fn copy_out<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let whole = self.with(py, |shared| Ok(shared.len()))?;
        let length = length.unwrap_or_else(|| whole.saturating_sub(offset));
        // Before a length is believed.
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

    /// Copies bytes to `offset`. A peer that reads meanwhile gets a part of them, or nothing.
    fn copy_in(&self, py: Python<'_>, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes_of(py, data)?;
        self.with(py, |shared| shared.copy_in(offset, &bytes))
    }

    /// The word at `offset`, a multiple of 8, all of it at once: what peers add to.
    fn word(&self, py: Python<'_>, offset: usize) -> PyResult<u64> {
        self.with(py, |shared| shared.word(offset))
    }

    /// Closes it to peers, and gives the region. When this returns, none of them touches it any more.
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
    /// How many bytes `bytes(remote)` is.
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

/// A copy of the bytes of anything that has the buffer protocol.
fn bytes_of(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let buffer = PyBuffer::<u8>::get(data).map_err(|_| {
        PyBufferError::new_err(
            "bytes are wanted: `bytes`, or `memoryview(...).cast('B')` of anything else",
        )
    })?;
    buffer.to_vec(py)
}
