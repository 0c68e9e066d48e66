//! Who carries the files of a job.

use crate::job::{Flaw, Order, Trouble};
use std::sync::{Arc, Mutex, PoisonError};

/// Carries files from here to a peer.
pub trait Carrier: Send + Sync {
    /// Carries the files of an order, and returns when that is over. `tell` wants to hear of progress now and then, and at once of the
    /// key that the code of the order brought.
    ///
    /// After an end in between, the same order goes on where it stopped.
    fn carry(&self, order: &Order, tell: &dyn Fn(News), stop: &Stop) -> Outcome;
}

/// What is told of an attempt before it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// How far it is.
    Progress(Progress),
    /// The code brought the two together: the receiver has this key, and the code is used up.
    Met(String),
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that the receiver has.
    pub bytes: u64,
    /// Bytes of all files.
    pub bytes_total: u64,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It arrived.
    Arrived(Arrived),
    /// It would be of no use to try again.
    Failed(Trouble),
    /// The peer is not there, or busy: another time may do.
    Later(Trouble),
    /// [`Stop`] was obeyed.
    Stopped,
}

/// What arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Files.
    pub files: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Files that did not arrive, while others did.
    pub flaws: Vec<Flaw>,
}

/// Ends an attempt from outside. Clones are the same.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<Stopping>>);

#[derive(Default)]
struct Stopping {
    is_stopped: bool,
    then: Option<Box<dyn FnOnce() + Send>>,
}

impl Stop {
    /// Ends it.
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

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_stopped
    }

    /// Calls `then` when it is to end; at once, if it is already.
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
