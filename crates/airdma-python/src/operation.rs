//! Operations in progress, awaited by a thread or an event loop.

use crate::bell::{Bell, Pull};
use crate::endpoint::Endpoint;
use crate::record::Record;
use crate::region::{Message, Region};
use crate::{Cell, failure};
use airdma::Error;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// An operation of a device, already started: `wait()` for it, or `await` it.
///
/// It returns its result once, to one waiter: a concurrent second wait is a UsageError. The end of
/// its last reference cancels it, as does `cancel`, or the cancellation of a task that awaits it.
#[pyclass(frozen, module = "airdma")]
pub struct Operation {
    state: Cell<State>,
    /// The region that gets its memory back when the operation is done.
    region: Option<Py<Region>>,
}

enum State {
    UnderWay(Any),
    /// A task has claimed it, and no other may wait: the device keeps one waker for each operation.
    /// Holds the task's waker.
    Awaited(Any, Option<Waker>),
    /// A thread has taken it to wait for it, or to poll it for a task.
    WaitedFor,
    /// It cannot be awaited, for this reason.
    Over(&'static str),
}

enum Waiter {
    /// A thread, or a task that is about to claim it.
    Anyone,
    /// The task that has claimed it.
    Claimer,
}

/// The kinds of operations.
pub enum Any {
    Endpoint(airdma::Operation<airdma::Endpoint>),
    Region(airdma::Operation<airdma::Region>),
    Message(airdma::Operation<airdma::Message>),
    Word(airdma::Operation<u64>),
    Record(airdma::Operation<airdma::Record>),
    Fetched(airdma::Operation<airdma::Fetched>),
    Nothing(airdma::Operation<()>),
}

/// Their results.
enum Given {
    Endpoint(airdma::Endpoint),
    Region(airdma::Region),
    Message(airdma::Message),
    Word(u64),
    Record(airdma::Record),
    Fetched(airdma::Fetched),
    Nothing,
}

/// Interval at which a wait checks for signals: Python's Ctrl-C.
const BETWEEN_SIGNALS: Duration = Duration::from_millis(100);

const AWAITED: &str =
    "a task awaits the operation already: await that task, or begin another operation";
const WAITED_FOR: &str = "another thread waits for the operation";
const GAVE: &str = "the operation has given its result already";
const CANCELLED: &str = "the operation was cancelled";
const LOST: &str = "the operation that had the region was given up: allocate another";

macro_rules! each {
    ($any:expr, $operation:ident => $how:expr) => {
        match $any {
            Any::Endpoint($operation) => $how.map(|done| done.map(Given::Endpoint)),
            Any::Region($operation) => $how.map(|done| done.map(Given::Region)),
            Any::Message($operation) => $how.map(|done| done.map(Given::Message)),
            Any::Word($operation) => $how.map(|done| done.map(Given::Word)),
            Any::Record($operation) => $how.map(|done| done.map(Given::Record)),
            Any::Fetched($operation) => $how.map(|done| done.map(Given::Fetched)),
            Any::Nothing($operation) => $how.map(|done| done.map(|()| Given::Nothing)),
        }
    };
}

impl Any {
    fn wait(&mut self, limit: Duration) -> Option<Result<Given, Error>> {
        each!(self, operation => operation.wait_timeout(limit))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Given, Error>> {
        each!(self, operation => Pin::new(operation).poll(context))
    }
}

impl State {
    /// Why it cannot be awaited now.
    fn why_not(&self) -> &'static str {
        match self {
            State::Awaited(..) => AWAITED,
            State::UnderWay(_) | State::WaitedFor => WAITED_FOR,
            State::Over(why) => why,
        }
    }
}

impl Operation {
    pub fn new(any: Any, region: Option<Py<Region>>) -> Operation {
        Operation {
            state: Cell::new(State::UnderWay(any)),
            region,
        }
    }

    /// Takes it for a waiter.
    fn begin(&self, py: Python<'_>, waiter: Waiter) -> PyResult<Any> {
        let mut state = self.state.lock();
        match (std::mem::replace(&mut *state, State::WaitedFor), waiter) {
            (State::UnderWay(any), Waiter::Anyone) | (State::Awaited(any, _), Waiter::Claimer) => {
                Ok(any)
            }
            (other, _) => {
                let why = other.why_not();
                *state = other;
                Err(failure::usage(py, why))
            }
        }
    }

    /// Puts it back for another wait, unless it was cancelled meanwhile.
    fn pause(&self, py: Python<'_>, under_way: State) -> PyResult<()> {
        let mut state = self.state.lock();
        if let State::Over(why) = *state {
            drop(state);
            py.detach(|| drop(under_way));
            return Err(failure::usage(py, why));
        }
        *state = under_way;
        Ok(())
    }

    /// Converts the result for Python, and returns the region's memory.
    fn conclude(&self, py: Python<'_>, done: Result<Given, Error>) -> PyResult<Py<PyAny>> {
        *self.state.lock() = State::Over(GAVE);
        let given = match done {
            Ok(given) => given,
            Err(error) => {
                let failed = failure::from(py, &error);
                match (&self.region, error.into_region()) {
                    (Some(region), Some(memory)) => region.get().put(memory),
                    (Some(region), None) => region.get().lose(LOST),
                    (None, _) => {}
                }
                return Err(failed);
            }
        };
        match (given, &self.region) {
            (Given::Endpoint(endpoint), _) => Ok(Py::new(py, Endpoint::new(endpoint))?.into_any()),
            (Given::Region(memory), Some(region)) => {
                region.get().put(memory);
                Ok(region.clone_ref(py).into_any())
            }
            (Given::Message(message), Some(region)) => {
                let range = message.range();
                region.get().put(message.into_region());
                let message = Message::new(region.clone_ref(py), range);
                Ok(Py::new(py, message)?.into_any())
            }
            (Given::Word(word), _) => Ok(word.into_pyobject(py)?.into_any().unbind()),
            (Given::Record(record), _) => Ok(Py::new(py, Record::new(record))?.into_any()),
            (Given::Fetched(fetched), region) => {
                let (memory, arrived) = fetched.into_parts();
                if let Some(region) = region {
                    region.get().put(memory);
                }
                Ok(Py::new(py, Record::without_place(&arrived))?.into_any())
            }
            (Given::Region(_) | Given::Message(_), None) | (Given::Nothing, _) => Ok(py.None()),
        }
    }
}

#[pymethods]
impl Operation {
    /// Blocks until it is done, or at most `timeout` seconds (None: without limit), and returns the
    /// result. Other threads run meanwhile, and Ctrl-C interrupts it.
    ///
    /// Raises TimeoutError when the time is over: the operation continues, wait again or cancel it.
    /// Raises errors by blame: UsageError, PeerError (ClosedError), NetworkError, HostError; its
    /// region has its memory again.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline = deadline(timeout)?;
        let mut any = self.begin(py, Waiter::Anyone)?;
        loop {
            let limit = deadline.map_or(BETWEEN_SIGNALS, |at| {
                at.saturating_duration_since(Instant::now())
                    .min(BETWEEN_SIGNALS)
            });
            if let Some(done) = py.detach(|| any.wait(limit)) {
                return self.conclude(py, done);
            }
            let is_late = deadline.is_some_and(|at| at <= Instant::now());
            let signal = py.check_signals();
            // An exception of the signal handler comes first, even if the handler cancelled the
            // operation.
            let paused = self.pause(py, State::UnderWay(any));
            signal?;
            paused?;
            if is_late {
                return Err(PyTimeoutError::new_err(
                    "the time is over, and the operation goes on: wait again, or cancel it",
                ));
            }
            any = self.begin(py, Waiter::Anyone)?;
        }
    }

    /// Cancels it. Data in flight still arrives, and no message or connection is lost; its region
    /// does not come back.
    fn cancel(&self, py: Python<'_>) {
        let mut before = {
            let mut state = self.state.lock();
            match *state {
                State::Over(_) => return,
                State::UnderWay(_) | State::Awaited(..) | State::WaitedFor => {
                    std::mem::replace(&mut *state, State::Over(CANCELLED))
                }
            }
        };
        if let Some(region) = &self.region {
            region.get().lose(LOST);
        }
        let waker = match &mut before {
            State::Awaited(_, waker) => waker.take(),
            State::UnderWay(_) | State::WaitedFor | State::Over(_) => None,
        };
        py.detach(|| {
            drop(before);
            // Tells the task that awaits it.
            if let Some(waker) = waker {
                waker.wake();
            }
        });
    }

    /// Claims it for a task, exclusively until `_release`.
    #[pyo3(name = "_claim")]
    fn claim(&self, py: Python<'_>) -> PyResult<()> {
        let any = self.begin(py, Waiter::Anyone)?;
        self.pause(py, State::Awaited(any, None))
    }

    /// Ends the task's claim.
    #[pyo3(name = "_release")]
    fn release(&self) {
        let mut state = self.state.lock();
        *state = match std::mem::replace(&mut *state, State::WaitedFor) {
            State::Awaited(any, _) => State::UnderWay(any),
            other @ (State::UnderWay(_) | State::WaitedFor | State::Over(_)) => other,
        };
    }

    /// Polls for the task that has claimed it: returns `(result,)`, or None, and then `bell` rings
    /// with `number` when it may be done.
    #[pyo3(name = "_poll")]
    fn poll(&self, py: Python<'_>, bell: &Bell, number: u64) -> PyResult<Option<(Py<PyAny>,)>> {
        let mut any = self.begin(py, Waiter::Claimer)?;
        let rope = Arc::clone(&bell.rope);
        let waker = Waker::from(Arc::new(Pull { rope, number }));
        match py.detach(|| any.poll(&mut Context::from_waker(&waker))) {
            Poll::Ready(done) => self.conclude(py, done).map(|result| Some((result,))),
            Poll::Pending => self
                .pause(py, State::Awaited(any, Some(waker)))
                .map(|()| None),
        }
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        static AWAITED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let awaited = AWAITED.import(py, "airdma._waiting", "awaited")?;
        awaited.call1((&slf,))?.call_method0("__await__")
    }

    /// `Operation[Region]` in annotations.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        of: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let alias = class.py().import("types")?.getattr("GenericAlias")?;
        alias.call1((class, of))
    }

    fn __repr__(&self) -> String {
        let state = match &*self.state.lock() {
            State::UnderWay(_) | State::Awaited(..) | State::WaitedFor => "under way",
            State::Over(_) => "over",
        };
        format!("<airdma.Operation, {state}>")
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let (State::UnderWay(_) | State::Awaited(..), Some(region)) =
            (&*self.state.lock(), &self.region)
        {
            region.get().lose(LOST);
        }
    }
}

fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout.filter(|&seconds| seconds != f64::INFINITY) else {
        return Ok(None);
    };
    let limit = Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!(
            "a timeout of {seconds} s: give seconds from 0 on, or None to wait for as long as it takes"
        ))
    })?;
    Ok(Instant::now().checked_add(limit))
}
