//! The interface between the queue and the code that transfers a job's files.

use crate::job::{Flaw, Order, Trouble};
use std::sync::{Arc, Mutex, PoisonError};

/// Transfers files from this host to a peer.
pub trait Carrier: Send + Sync {
    /// Transfers the files of an order, and returns when that has ended.
    ///
    /// `tell` must be called from time to time with the progress, and at once with the key that the
    /// code of the order yielded. After an interrupted attempt, the same order resumes where it
    /// stopped.
    fn carry(&self, order: &Order, tell: &dyn Fn(News), stop: &Stop) -> Outcome;
}

/// Reports of an attempt that is still running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Progress so far.
    Progress(Progress),
    /// The code has been used: from now on the order is bound to the receiver with this key.
    Met(String),
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that the receiver has.
    pub bytes: u64,
    /// Bytes of all files.
    pub bytes_total: u64,
}

/// Outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The files arrived.
    Arrived(Arrived),
    /// It failed, and a retry would fail as well.
    Failed(Trouble),
    /// The peer is absent or busy: a later retry may succeed.
    Later(Trouble),
    /// [`Stop`] ended it.
    Stopped,
}

/// What arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Number of files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files that did not arrive although others did.
    pub flaws: Vec<Flaw>,
}

/// Stops an attempt from outside. Clones share the same state.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<Stopping>>);

#[derive(Default)]
struct Stopping {
    is_stopped: bool,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl Stop {
    /// Stops the attempt.
    pub fn stop(&self) {
        let then = {
            let mut stopping = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            stopping.is_stopped = true;
            stopping.then.take()
        };
        if let Some(then) = then {
            then();
        }
    }

    /// Whether the attempt must stop.
    pub fn is_stopped(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_stopped
    }

    /// Calls `then` when the attempt must stop; at once if it already must.
    pub fn then(&self, then: impl FnOnce() + Send + 'static) {
        {
            let mut stopping = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !stopping.is_stopped {
                stopping.then = Some(Box::new(then));
                return;
            }
        }
        then();
    }
}
