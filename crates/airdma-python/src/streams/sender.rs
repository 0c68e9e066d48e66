//! The sending end.

use super::frame::{FrameBlock, Returned};
use super::{End, connection};
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::{Cell, failure};
use airdma_stream::{Description, Flags, Policy, Sender, SenderConfig, Source, now_ns};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sends frames of many devices (cameras, mostly) over one connection, which a `FrameReceiver`
/// takes.
///
/// `FrameSender(device)` has `blocks` blocks for frames of up to `frame_bytes` bytes. `open` it
/// with an endpoint, `add` devices, fill what `block` gives, and `send` that.
///
/// Raises UsageError for numbers that are out of range; HostError (memory).
#[pyclass(frozen, module = "airdma")]
pub struct FrameSender {
    end: End<Sender>,
    returned: Returned,
}

#[pymethods]
impl FrameSender {
    #[new]
    #[pyo3(signature = (device, *, blocks=8, frame_bytes=1 << 20))]
    fn new(
        py: Python<'_>,
        device: &Device,
        blocks: u32,
        frame_bytes: usize,
    ) -> PyResult<FrameSender> {
        let config = SenderConfig {
            blocks,
            frame_bytes,
            ..SenderConfig::default()
        };
        let device = &device.0;
        let made = py.detach(|| Sender::new(device, config));
        let sender = made.map_err(|error| failure::of_stream(py, error))?;
        Ok(FrameSender {
            end: End::new(sender),
            returned: Arc::new(Cell::new(Vec::new())),
        })
    }

    /// Begins to send over a connection to a receiver, or goes on after one was lost. The endpoint
    /// is the stream's then.
    ///
    /// Raises PeerError if the peer is no receiver; NetworkError.
    fn open(&self, py: Python<'_>, endpoint: &Endpoint) -> PyResult<()> {
        let endpoint = connection(py, endpoint)?;
        self.end.with(py, |sender| sender.open(endpoint))
    }

    /// Adds a device, which uses at most `quota` blocks at a time. Devices with a higher `priority`
    /// go first; of a device that wants the `newest` frame only that one waits for the receiver.
    ///
    /// Raises UsageError if it was added before, or there are 1,024.
    #[pyo3(signature = (device, *, quota=3, priority=0, newest=false))]
    fn add(
        &self,
        py: Python<'_>,
        device: u32,
        quota: usize,
        priority: u8,
        newest: bool,
    ) -> PyResult<()> {
        let policy = if newest { Policy::Newest } else { Policy::All };
        let source = Source {
            quota,
            priority,
            policy,
            ..Source::default()
        };
        self.end.with(py, |sender| sender.add(device, source))
    }

    /// Describes the format of the frames of a device from now on: `Frame.format`.
    ///
    /// Raises UsageError for a device that was not added, or more than 1,024 bytes.
    fn set_format(&self, py: Python<'_>, device: u32, text: &str) -> PyResult<()> {
        self.end.with(py, |sender| sender.set_format(device, text))
    }

    /// Memory for a frame of `length` bytes of a device; waits for it for at most `timeout` seconds
    /// (None: without limit) while the device uses its quota.
    ///
    /// Raises TimeoutError when the time is over; UsageError for a device that was not added, or a
    /// length beyond the blocks; ClosedError, PeerError or NetworkError if the connection is lost.
    #[pyo3(signature = (device, length, timeout=None))]
    fn block(
        &self,
        py: Python<'_>,
        device: u32,
        length: usize,
        timeout: Option<f64>,
    ) -> PyResult<FrameBlock> {
        let block = self.end.wait(py, timeout, |sender, limit| {
            for unsent in self.returned.lock().drain(..) {
                sender.discard(unsent);
            }
            let block = sender.block(device, length)?;
            if block.is_none() {
                sender.wait(limit)?;
            }
            Ok(block)
        })?;
        Ok(FrameBlock::new(block, &self.returned))
    }

    /// Sends a block as a frame, or lets it wait for a block of the receiver. `time_ns` is when it
    /// was captured, now if None (`time.time_ns()`); after `deadline_ns` it is dropped, unless it
    /// is on its way; a `key` frame can be decoded without those before.
    ///
    /// Raises BufferError while views or arrays of the block exist; UsageError for a block that was
    /// sent, or is of another sender. A block that is refused can be sent later.
    #[pyo3(signature = (block, *, time_ns=None, deadline_ns=0, key=false))]
    fn send(
        &self,
        py: Python<'_>,
        block: &FrameBlock,
        time_ns: Option<u64>,
        deadline_ns: u64,
        key: bool,
    ) -> PyResult<()> {
        let description = Description {
            time: time_ns.unwrap_or_else(now_ns),
            deadline: deadline_ns,
            flags: if key { Flags::KEY } else { Flags::default() },
        };
        self.send_block(py, block, description)
    }

    /// Says that a device sends no more.
    ///
    /// Raises as `block`.
    #[pyo3(signature = (device, timeout=None))]
    fn end(&self, py: Python<'_>, device: u32, timeout: Option<f64>) -> PyResult<()> {
        let block = self.block(py, device, 0, timeout)?;
        let description = Description {
            time: now_ns(),
            flags: Flags::END,
            ..Description::default()
        };
        self.send_block(py, &block, description)
    }

    /// Waits until all frames are in the receiver's memory or were dropped, for at most `timeout`
    /// seconds.
    ///
    /// Raises TimeoutError when the time is over; ClosedError, PeerError or NetworkError if the
    /// connection is lost.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.end.wait(py, timeout, |sender, limit| {
            Ok(sender.flush(limit)?.then_some(()))
        })
    }

    /// What became of the frames of each device: a dictionary for each number.
    fn counts(&self, py: Python<'_>) -> PyResult<BTreeMap<u32, BTreeMap<&'static str, u64>>> {
        self.end.with(py, |sender| {
            let each = sender.counts().map(|(device, counts)| {
                let counts = [
                    ("offered", counts.offered),
                    ("sent", counts.sent),
                    ("bytes", counts.bytes),
                    ("late", counts.late),
                    ("replaced", counts.replaced),
                    ("too_long", counts.too_long),
                ];
                (device, counts.into_iter().collect())
            });
            Ok(each.collect())
        })
    }

    /// Ends the connection. The receiver has all frames that have arrived. A call of another thread
    /// that waits raises UsageError.
    fn close(&self, py: Python<'_>) {
        self.end.close(py);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

impl FrameSender {
    /// The block stays in Python's object if another thread uses the sender.
    fn send_block(
        &self,
        py: Python<'_>,
        block: &FrameBlock,
        description: Description,
    ) -> PyResult<()> {
        let mut taken = Some(block.take(py, &self.returned)?);
        let sent = self.end.with(py, |sender| {
            if let Some(block) = taken.take() {
                sender.send(block, description);
            }
            Ok(())
        });
        block.put_back(taken);
        sent
    }
}
