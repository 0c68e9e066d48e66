//! Frames of many devices over one connection: the crate `airdma-stream`.

use crate::failure;
use airdma_stream::Error;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
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
    state: Mutex<State<T>>,
    /// Says that a call has ended.
    freed: Condvar,
}

enum State<T> {
    Free(T),
    /// A call of this thread has it. If it `closes`, it ends with the call.
    Used {
        by: ThreadId,
        closes: bool,
    },
    Closed,
}

/// An end while a call has it.
struct Used<'a, T> {
    of: &'a End<T>,
    /// None once it is given back.
    end: Option<T>,
}

impl<T> End<T> {
    fn new(end: T) -> End<T> {
        End {
            state: Mutex::new(State::Free(end)),
            freed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closes(&self) -> bool {
        matches!(*self.state(), State::Used { closes: true, .. })
    }

    fn take(&self, py: Python<'_>) -> PyResult<Used<'_, T>> {
        let mut state = self.state();
        let used = State::Used {
            by: thread::current().id(),
            closes: false,
        };
        match std::mem::replace(&mut *state, used) {
            State::Free(end) => Ok(Used {
                of: self,
                end: Some(end),
            }),
            State::Closed => {
                *state = State::Closed;
                Err(is_closed(py))
            }
            used @ State::Used { .. } => {
                *state = used;
                Err(failure::usage(
                    py,
                    "another thread uses this end of the stream: give each thread its own",
                ))
            }
        }
    }
}

impl<T: Send> End<T> {
    /// Calls a function that does not wait.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> airdma_stream::Result<R> + Send,
    ) -> PyResult<R> {
        let mut used = self.take(py)?;
        let called = used.call(py, call);
        used.give_back(py);
        called
    }

    /// Calls a function that waits, until it has a result, the time is over, or `close` is called.
    /// Other threads run meanwhile, and Ctrl-C interrupts it.
    fn wait<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut look: impl FnMut(&mut T, Duration) -> airdma_stream::Result<Option<R>> + Send,
    ) -> PyResult<R> {
        let deadline = deadline(timeout)?;
        let mut used = self.take(py)?;
        let found = loop {
            let limit = deadline.map_or(BETWEEN_SIGNALS, |at| {
                at.saturating_duration_since(Instant::now())
                    .min(BETWEEN_SIGNALS)
            });
            match used.call(py, |end| look(end, limit)) {
                Ok(Some(found)) => break Ok(found),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = py.check_signals() {
                break Err(error);
            }
            if self.closes() {
                break Err(is_closed(py));
            }
            if deadline.is_some_and(|at| at <= Instant::now()) {
                break Err(PyTimeoutError::new_err("the time is over: try again"));
            }
        };
        used.give_back(py);
        found
    }

    /// Ends it, and a call of another thread that waits. That of this thread, in whose signal
    /// handler this is called, ends it later.
    fn close(&self, py: Python<'_>) {
        let me = thread::current().id();
        py.detach(|| {
            let mut state = self.state();
            while let State::Used { by, closes } = &mut *state {
                *closes = true;
                if *by == me {
                    return;
                }
                state = self
                    .freed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let closed = std::mem::replace(&mut *state, State::Closed);
            drop(state);
            drop(closed);
        });
    }
}

impl<T: Send> Used<'_, T> {
    fn call<R: Send>(
        &mut self,
        py: Python<'_>,
        call: impl FnOnce(&mut T) -> airdma_stream::Result<R> + Send,
    ) -> PyResult<R> {
        let end = self.end.as_mut().ok_or_else(|| is_closed(py))?;
        py.detach(|| call(end))
            .map_err(|error| failure::of_stream(py, error))
    }

    fn give_back(self, py: Python<'_>) {
        // Its end takes time.
        if self.of.closes() {
            py.detach(|| drop(self));
        }
    }
}

/// Also after a panic.
impl<T> Drop for Used<'_, T> {
    fn drop(&mut self) {
        let Some(end) = self.end.take() else { return };
        if self.of.closes() {
            drop(end);
            *self.of.state() = State::Closed;
        } else {
            *self.of.state() = State::Free(end);
        }
        self.of.freed.notify_all();
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
