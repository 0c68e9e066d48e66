//! Errors of the engine, each with the `errno` that the verbs' man pages name for it.

use airdma_transport::InvalidAttribute;
use std::io;

/// What a call of the engine may fail with. [`Error::errno`] is what a C caller sees.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller passed something the call does not allow; the text says what and what would be
    /// allowed.
    #[error("{0}")]
    Invalid(&'static str),
    /// A transition, an attribute or a value that a queue pair does not take.
    #[error("{0}")]
    Attribute(#[from] InvalidAttribute),
    /// A queue is full, or one of our own limits is reached.
    #[error("{0}")]
    NoMemory(&'static str),
    /// The object still has users: destroy them first.
    #[error("{0} is still in use: destroy what was created from it first")]
    Busy(&'static str),
    /// The object was destroyed before.
    #[error("{0} was already destroyed")]
    Gone(&'static str),
    /// A feature that this version does not offer.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// The completion queue overflowed: completions were lost, and the queue stays unusable (IBTA
    /// 11.6.3.1).
    #[error(
        "the completion queue overflowed: create it with more entries than work requests can complete"
    )]
    CqOverrun,
    /// The process forked after the device was opened; a child must open the device again.
    #[error("this object belongs to the parent process: open the device again after fork")]
    Forked,
    /// The operating system refused; the text says what was tried and what to do.
    #[error("{message}")]
    System {
        /// What was tried, and what helps.
        message: String,
        /// The system's error number.
        errno: i32,
    },
}

impl Error {
    /// The error number a C caller gets.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Invalid(_) | Error::Attribute(_) | Error::Gone(_) => libc::EINVAL,
            Error::NoMemory(_) => libc::ENOMEM,
            Error::Busy(_) => libc::EBUSY,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::CqOverrun => libc::EOVERFLOW,
            Error::Forked => libc::ENODEV,
            Error::System { errno, .. } => *errno,
        }
    }

    /// A system error with the words of what was tried.
    pub(crate) fn system(what: &str, error: &io::Error) -> Error {
        Error::System {
            message: format!("{what}: {error}"),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::System { message, errno } => io::Error::new(
                io::Error::from_raw_os_error(errno).kind(),
                Error::System {
                    message: format!("{message} (errno {errno})"),
                    errno,
                },
            ),
            other @ (Error::Invalid(_)
            | Error::Attribute(_)
            | Error::NoMemory(_)
            | Error::Busy(_)
            | Error::Gone(_)
            | Error::Unsupported(_)
            | Error::CqOverrun
            | Error::Forked) => io::Error::from_raw_os_error(other.errno()),
        }
    }
}

/// The error number of an error of the system's, or of an [`Error`] that became an `io::Error`:
/// its kind alone does not tell.
pub fn errno_of(error: &io::Error) -> Option<i32> {
    let ours = || error.get_ref()?.downcast_ref::<Error>().map(Error::errno);
    error.raw_os_error().or_else(ours)
}
