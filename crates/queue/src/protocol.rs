//! What programs ask, and what the service answers: one JSON object in a line each.

use crate::job::{Job, Order};
use serde::{Deserialize, Serialize};

/// The longest line that is asked, in bytes.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Queues a job.
    Add(Order),
    /// All jobs that are known.
    List {},
    /// One.
    Status {
        /// Which.
        id: u64,
    },
    /// Gives one up.
    Cancel {
        /// Which.
        id: u64,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The job that was asked for, as it is now.
    Job(Box<Job>),
    /// Jobs, by their numbers.
    Jobs(Vec<Job>),
    /// It was not done.
    Error(Refusal),
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people: what happened, and what to do.
    pub message: String,
}

/// Why, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The line is no request.
    Malformed,
    /// A path that is not absolute, or not there.
    Path,
    /// So many jobs are waiting that no more are taken.
    Full,
    /// No job has this number.
    NoJob,
    /// The job is over already.
    Over,
    /// So many programs are connected that no more are.
    Busy,
    /// The service has a problem: its disk is full, say.
    System,
}

impl Reply {
    pub(crate) fn error(kind: RefusalKind, message: impl Into<String>) -> Reply {
        let message = message.into();
        Reply::Error(Refusal { kind, message })
    }
}
