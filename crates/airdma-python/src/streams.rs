//! Frames of many devices over one connection: the crate `airdma-stream`.

use crate::failure;
use airdma_stream::Error;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

mod frame;
mod receiver;
mod sender;

pub use frame::{Frame, FrameBlock};
pub use receiver::FrameReceiver;
pub use sender::FrameSender;

/// Interval at which a wait checks for signals: Python's Ctrl-C.
const BETWEEN_SIGNALS: Duration = Duration::from_millis(100);

/// An end of a stream, which one thread uses at a time.
struct End<T> {
    /// None once it is closed.
    end: Mutex<Option<T>>,
}

impl<T: Send> End<T> {
    fn new(end: T) -> End<T> {
        End {
            end: Mutex::new(Some(end)),
        }
    }

    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<T>>> {
        match self.end.try_lock() {
            Ok(end) => Ok(end),
            Err(TryLockError::Poisoned(left)) => Ok(left.into_inner()),
            Err(TryLockError::WouldBlock) => Err(failure::usage(
                py,
                "another thread uses this end of the stream: give each thread its own",
            )),
        }
    }

    /// Calls a function that does not wait.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> airdma_stream::Result<R> + Send,
    ) -> PyResult<R> {
        let mut end = self.lock(py)?;
        let end = end.as_mut().ok_or_else(|| is_closed(py))?;
        let called = py.detach(|| call(end));
        called.map_err(|error| failure::of_stream(py, error))
    }

    /// Calls a function that waits, until it has a result or the time is over. Other threads run
    /// meanwhile, and Ctrl-C interrupts it.
    fn wait<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut look: impl FnMut(&mut T, Duration) -> airdma_stream::Result<Option<R>> + Send,
    ) -> PyResult<R> {
        let deadline = deadline(timeout)?;
        let mut end = self.lock(py)?;
        let end = end.as_mut().ok_or_else(|| is_closed(py))?;
        loop {
            let limit = deadline.map_or(BETWEEN_SIGNALS, |at| {
                at.saturating_duration_since(Instant::now())
                    .min(BETWEEN_SIGNALS)
            });
            let looked = py.detach(|| look(end, limit));
            match looked.map_err(|error| failure::of_stream(py, error))? {
                Some(found) => return Ok(found),
                None => py.check_signals()?,
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                return Err(PyTimeoutError::new_err("the time is over: try again"));
            }
        }
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let end = self.lock(py)?.take();
        py.detach(|| drop(end));
        Ok(())
    }
}

fn is_closed(py: Python<'_>) -> PyErr {
    failure::usage(py, "this end of the stream is closed")
}

fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout.filter(|&seconds| seconds != f64::INFINITY) else {
        return Ok(None);
    };
    let limit = Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("a timeout of {seconds} s")))?;
    Ok(Instant::now().checked_add(limit))
}

/// The connection of an endpoint, which the stream has from now on.
fn connection(py: Python<'_>, endpoint: &crate::endpoint::Endpoint) -> PyResult<airdma::Endpoint> {
    let taken = py.detach(|| endpoint.lock().take());
    taken.ok_or_else(|| failure::usage(py, "the endpoint is closed, or a stream has it"))
}

/// The end of a connection, as Python's iteration knows it.
fn has_ended(error: &Error) -> bool {
    error.is_closed()
}
