//! Operations of any kind behind one handle, and their results.

use crate::arrival::Arrival;
use crate::failure::Failure;
use airdma::{Endpoint, Error, Fetched, Message, Operation, Record, Region};
use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// `airdma_operation`.
pub struct UnderWay {
    what: Any,
    /// Set once a notification was requested.
    bell: Option<Arc<Bell>>,
}

/// The kinds of operations.
pub enum Any {
    Endpoint(Operation<Endpoint>),
    Region(Operation<Region>),
    Message(Operation<Message>),
    Word(Operation<u64>),
    Record(Operation<Record>),
    Fetched(Operation<Fetched>),
    Nothing(Operation<()>),
    /// It failed to start, or had ended when its notification was requested.
    Over(Given, Option<Failure>),
}

/// `airdma_result`.
#[repr(C)]
pub struct Outcome {
    pub endpoint: *mut Endpoint,
    pub region: *mut Region,
    pub offset: usize,
    pub length: usize,
    pub value: u64,
    pub arrival: *mut Arrival,
}

/// A result before C gets it: parts that are not taken are freed.
#[derive(Default)]
pub struct Given {
    endpoint: Option<Endpoint>,
    region: Option<Region>,
    offset: usize,
    length: usize,
    value: u64,
    arrival: Option<Box<Arrival>>,
}

/// How a wait ended.
pub enum Waited {
    NotYet,
    Over(Given, Option<Failure>),
}

impl Given {
    pub fn into_outcome(self) -> Outcome {
        Outcome {
            endpoint: boxed(self.endpoint),
            region: boxed(self.region),
            offset: self.offset,
            length: self.length,
            value: self.value,
            arrival: self.arrival.map_or(std::ptr::null_mut(), Box::into_raw),
        }
    }
}

fn boxed<T>(value: Option<T>) -> *mut T {
    value.map_or(std::ptr::null_mut(), |value| Box::into_raw(Box::new(value)))
}

/// Conversion to a result for C.
trait Give {
    fn give(self) -> Given;
}

impl Give for Endpoint {
    fn give(self) -> Given {
        Given {
            endpoint: Some(self),
            ..Given::default()
        }
    }
}

impl Give for Region {
    fn give(self) -> Given {
        Given {
            region: Some(self),
            ..Given::default()
        }
    }
}

impl Give for Message {
    fn give(self) -> Given {
        let range = self.range();
        Given {
            offset: range.start,
            length: range.len(),
            region: Some(self.into_region()),
            ..Given::default()
        }
    }
}

impl Give for u64 {
    fn give(self) -> Given {
        Given {
            value: self,
            ..Given::default()
        }
    }
}

impl Give for Record {
    fn give(self) -> Given {
        Given {
            arrival: Some(Box::new(Arrival::Record(self))),
            ..Given::default()
        }
    }
}

impl Give for Fetched {
    fn give(self) -> Given {
        let (region, arrived) = self.into_parts();
        let range = arrived.range();
        Given {
            region: Some(region),
            offset: range.start,
            length: range.len(),
            arrival: Some(Box::new(Arrival::Seen(arrived))),
            ..Given::default()
        }
    }
}

impl Give for () {
    fn give(self) -> Given {
        Given::default()
    }
}

impl Any {
    /// An operation that failed to start.
    pub fn failed(failure: Failure) -> Any {
        Any::Over(Given::default(), Some(failure))
    }

    /// Waits at most `timeout_ms`; without limit if that is negative.
    pub fn wait(&mut self, timeout_ms: c_int) -> Waited {
        match self {
            Any::Endpoint(operation) => waited(operation, timeout_ms),
            Any::Region(operation) => waited(operation, timeout_ms),
            Any::Message(operation) => waited(operation, timeout_ms),
            Any::Word(operation) => waited(operation, timeout_ms),
            Any::Record(operation) => waited(operation, timeout_ms),
            Any::Fetched(operation) => waited(operation, timeout_ms),
            Any::Nothing(operation) => waited(operation, timeout_ms),
            Any::Over(given, failure) => Waited::Over(std::mem::take(given), failure.take()),
        }
    }

    /// Polls for the end; if it has not come, the waker is woken when it may have.
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let mut context = Context::from_waker(waker);
        let polled = match self {
            Any::Endpoint(operation) => polled(operation, &mut context),
            Any::Region(operation) => polled(operation, &mut context),
            Any::Message(operation) => polled(operation, &mut context),
            Any::Word(operation) => polled(operation, &mut context),
            Any::Record(operation) => polled(operation, &mut context),
            Any::Fetched(operation) => polled(operation, &mut context),
            Any::Nothing(operation) => polled(operation, &mut context),
            Any::Over(..) => return Poll::Ready(()),
        };
        polled.map(|(given, failure)| *self = Any::Over(given, failure))
    }
}

impl UnderWay {
    /// Waits at most `timeout_ms`; without limit if that is negative.
    pub fn wait(&mut self, timeout_ms: c_int) -> Waited {
        let waited = self.what.wait(timeout_ms);
        if matches!(waited, Waited::NotYet)
            && let Some(bell) = self.bell.as_ref().filter(|bell| bell.is_armed())
        {
            // The wait has replaced the bell's waker.
            let waker = Waker::from(Arc::clone(bell));
            if self.what.poll(&waker).is_ready() {
                waker.wake();
            }
        }
        waited
    }

    /// Adds 1 to the eventfd once when the operation may be done; at once if it is.
    pub fn notify(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let file = File::from(eventfd.try_clone_to_owned()?);
        // One bell for each operation, since wakers are compared by it.
        let bell = self.bell.get_or_insert_default();
        bell.arm(Some(file));
        let waker = Waker::from(Arc::clone(bell));
        if self.what.poll(&waker).is_ready() {
            waker.wake();
        }
        Ok(())
    }
}

impl From<Any> for UnderWay {
    fn from(what: Any) -> UnderWay {
        UnderWay { what, bell: None }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(bell) = &self.bell {
            bell.arm(None);
        }
    }
}

/// An eventfd to signal, until it was.
#[derive(Default)]
pub struct Bell(Mutex<Option<File>>);

impl Bell {
    fn arm(&self, file: Option<File>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }

    fn is_armed(&self) -> bool {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.is_some()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut file) = file {
            // Fails only after 2^64 signals, which are enough.
            let _ = file.write_all(&1u64.to_ne_bytes());
        }
    }
}

/// Longest wait without a check.
const LONG: Duration = Duration::from_secs(3600);

fn waited<T: Give>(operation: &mut Operation<T>, timeout_ms: c_int) -> Waited {
    let result = match u64::try_from(timeout_ms) {
        Ok(limit) => operation.wait_timeout(Duration::from_millis(limit)),
        Err(_) => loop {
            let result = operation.wait_timeout(LONG);
            if result.is_some() {
                break result;
            }
        },
    };
    result.map_or(Waited::NotYet, |result| {
        let (given, failure) = ended(result);
        Waited::Over(given, failure)
    })
}

fn polled<T: Give>(
    operation: &mut Operation<T>,
    context: &mut Context<'_>,
) -> Poll<(Given, Option<Failure>)> {
    Pin::new(operation).poll(context).map(ended)
}

fn ended<T: Give>(result: Result<T, Error>) -> (Given, Option<Failure>) {
    match result {
        Ok(value) => (value.give(), None),
        Err(error) => {
            let failure = Failure::from(&error);
            let given = Given {
                region: error.into_region(),
                ..Given::default()
            };
            (given, Some(failure))
        }
    }
}
