//! Operations of any kind behind one handle, and their results.

use crate::failure::Failure;
use airdma::{Endpoint, Error, Message, Operation, Region};
use std::ffi::c_int;
use std::time::Duration;

/// `airdma_operation`.
pub enum Any {
    Endpoint(Operation<Endpoint>),
    Region(Operation<Region>),
    Message(Operation<Message>),
    Word(Operation<u64>),
    Nothing(Operation<()>),
    /// It never began.
    Failed(Option<Failure>),
}

/// `airdma_result`.
#[repr(C)]
pub struct Outcome {
    pub endpoint: *mut Endpoint,
    pub region: *mut Region,
    pub offset: usize,
    pub length: usize,
    pub value: u64,
}

/// The same before C gets it: what nobody takes is freed.
#[derive(Default)]
pub struct Given {
    endpoint: Option<Endpoint>,
    region: Option<Region>,
    offset: usize,
    length: usize,
    value: u64,
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
        }
    }
}

fn boxed<T>(value: Option<T>) -> *mut T {
    value.map_or(std::ptr::null_mut(), |value| Box::into_raw(Box::new(value)))
}

impl Any {
    /// Waits for `timeout_ms`, or for as long as it takes if that is negative.
    pub fn wait(&mut self, timeout_ms: c_int) -> Waited {
        match self {
            Any::Endpoint(operation) => waited(operation, timeout_ms, |endpoint| Given {
                endpoint: Some(endpoint),
                ..Given::default()
            }),
            Any::Region(operation) => waited(operation, timeout_ms, |region| Given {
                region: Some(region),
                ..Given::default()
            }),
            Any::Message(operation) => waited(operation, timeout_ms, |message| {
                let range = message.range();
                Given {
                    offset: range.start,
                    length: range.len(),
                    region: Some(message.into_region()),
                    ..Given::default()
                }
            }),
            Any::Word(operation) => waited(operation, timeout_ms, |value| Given {
                value,
                ..Given::default()
            }),
            Any::Nothing(operation) => waited(operation, timeout_ms, |()| Given::default()),
            Any::Failed(failure) => Waited::Over(Given::default(), failure.take()),
        }
    }
}

/// Nobody waits for so long without asking again.
const LONG: Duration = Duration::from_secs(3600);

fn waited<T>(
    operation: &mut Operation<T>,
    timeout_ms: c_int,
    given: impl FnOnce(T) -> Given,
) -> Waited {
    let result = match u64::try_from(timeout_ms) {
        Ok(limit) => operation.wait_timeout(Duration::from_millis(limit)),
        Err(_) => loop {
            let result = operation.wait_timeout(LONG);
            if result.is_some() {
                break result;
            }
        },
    };
    match result {
        None => Waited::NotYet,
        Some(Ok(value)) => Waited::Over(given(value), None),
        Some(Err(error)) => failed(error),
    }
}

fn failed(error: Error) -> Waited {
    let failure = Failure::from(&error);
    let given = Given {
        region: error.into_region(),
        ..Given::default()
    };
    Waited::Over(given, Some(failure))
}
