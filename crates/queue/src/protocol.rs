//! Requests of programs and answers of the service: one JSON object in a line each.

use crate::job::{Job, Order};
use serde::{Deserialize, Serialize};

/// Most bytes of a request.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Queues a job.
    Add(Order),
    /// Asks for all known jobs.
    List {},
    /// Asks for one job.
    Status {
        /// Number of the job.
        id: u64,
    },
    /// Cancels a job.
    Cancel {
        /// Number of the job.
        id: u64,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The requested job in its present state.
    Job(Box<Job>),
    /// Jobs, by their numbers.
    Jobs(Vec<Job>),
    /// The request was refused.
    Error(Refusal),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Reason for programs.
    pub kind: RefusalKind,
    /// Reason for display, and what to do about it.
    pub message: String,
}

/// Reason of a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The line is not a request.
    Malformed,
    /// A path is not absolute, or does not exist.
    Path,
    /// Too many jobs are waiting.
    Full,
    /// No job has this number.
    NoJob,
    /// The job has ended already.
    Over,
    /// Too many programs are connected.
    Busy,
    /// The service has an error, for example a full disk.
    System,
}

impl Reply {
    pub(crate) fn error(kind: RefusalKind, message: impl Into<String>) -> Reply {
        let message = message.into();
        Reply::Error(Refusal { kind, message })
    }
}
