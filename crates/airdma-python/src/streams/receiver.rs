//! The receiving end.

use super::frame::Frame;
use super::{End, connection, has_ended};
use crate::bell::{Bell, Pull};
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::failure;
use airdma_stream::{Incoming, Pool, Receiver};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

/// Receives frames of one sender: `FrameReceiver(device, endpoint)`, with the endpoint of a
/// connection that the sender began, as `Listener.accept` gives it. The endpoint is the stream's
/// then.
///
/// `for frame in receiver:` and `async for frame in receiver:` are all frames until the sender has
/// gone. There are `blocks` blocks for frames of `frame_bytes` bytes (those of the sender's
/// longest, if None, but at most `memory` bytes in all); frames of one device that are kept have at
/// most `quota` of them, and with `checksums` the sender adds a CRC-32 to each.
///
/// Raises PeerError if the peer is no `FrameSender`; UsageError for numbers that are out of range;
/// HostError (memory).
#[pyclass(frozen, module = "airdma")]
pub struct FrameReceiver {
    end: End<Receiver>,
}

#[pymethods]
impl FrameReceiver {
    #[new]
    #[allow(clippy::too_many_arguments)] // all but two have names in Python
    #[pyo3(signature = (device, endpoint, *, blocks=8, frame_bytes=None, memory=1 << 30, quota=None, checksums=false))]
    fn new(
        py: Python<'_>,
        device: &Device,
        endpoint: &Endpoint,
        blocks: u32,
        frame_bytes: Option<usize>,
        memory: usize,
        quota: Option<u32>,
        checksums: bool,
    ) -> PyResult<FrameReceiver> {
        let endpoint = connection(py, endpoint)?;
        let device = &device.0;
        let opened = py.detach(|| {
            let incoming = Incoming::hear(device, endpoint)?;
            let frame_bytes = frame_bytes.unwrap_or(incoming.frame_bytes());
            if frame_bytes.saturating_mul(blocks as usize) > memory {
                return Err(airdma_stream::Error::Invalid(
                    "the sender's longest frame needs more `memory` in that many blocks",
                ));
            }
            let mut pool = Pool::new(device, blocks, frame_bytes)?;
            if let Some(quota) = quota {
                pool = pool.with_quota(quota)?;
            }
            if checksums {
                pool = pool.with_checksums()?;
            }
            Receiver::open(incoming, &pool)
        });
        let receiver = opened.map_err(|error| failure::of_stream(py, error))?;
        Ok(FrameReceiver {
            end: End::new(receiver),
        })
    }

    /// The next frame; waits for it for at most `timeout` seconds (None: without limit).
    ///
    /// Raises TimeoutError when the time is over; ClosedError once the sender has gone and all
    /// frames were returned.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Frame> {
        let frame = self.end.wait(py, timeout, Receiver::next)?;
        Ok(Frame::new(frame))
    }

    /// What arrived of each device, and what did not: a dictionary for each number.
    fn counts(&self, py: Python<'_>) -> PyResult<BTreeMap<u32, BTreeMap<&'static str, u64>>> {
        self.end.with(py, |receiver| {
            let each = receiver.sequences().iter().map(|(device, received)| {
                let counts = [
                    ("frames", received.frames),
                    ("bytes", received.bytes),
                    ("missing", received.missing),
                    ("repeated", received.repeated),
                    ("late", received.late),
                    ("over_quota", received.over_quota),
                    ("restarts", received.restarts),
                ];
                (device, counts.into_iter().collect())
            });
            Ok(each.collect())
        })
    }

    /// Ends the connection. Frames that are kept stay. A call of another thread that waits raises
    /// UsageError.
    fn close(&self, py: Python<'_>) {
        self.end.close(py);
    }

    /// Looks for the next frame: returns it, or None, and then `bell` rings with `number` when
    /// there may be one. Raises StopAsyncIteration once the sender has gone.
    #[pyo3(name = "_poll")]
    fn poll(&self, py: Python<'_>, bell: &Bell, number: u64) -> PyResult<Option<Frame>> {
        let rope = Arc::clone(&bell.rope);
        let waker = Waker::from(Arc::new(Pull { rope, number }));
        let polled = self.end.with(py, |receiver| match receiver.poll(&waker) {
            Err(error) if has_ended(&error) => Ok(None),
            polled => polled.map(Some),
        })?;
        match polled {
            Some(frame) => Ok(frame.map(Frame::new)),
            None => Err(pyo3::exceptions::PyStopAsyncIteration::new_err(())),
        }
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        let next = self
            .end
            .wait(py, None, |receiver, limit| match receiver.next(limit) {
                Err(error) if has_ended(&error) => Ok(Some(None)),
                next => Ok(next?.map(Some)),
            });
        Ok(next?.map(Frame::new))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        static FRAMES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let frames = FRAMES.import(slf.py(), "airdma._waiting", "frames")?;
        frames.call1((&slf,))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}
