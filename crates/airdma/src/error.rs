//! Errors, sorted by blame: the side that has to act.

use crate::Region;
use airdma_engine as engine;
use std::fmt;
use std::io;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The side to blame for an error, which has to act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The caller: an invalid argument, or a region that is too small.
    You,
    /// The peer: it refused, ended the connection, or died.
    Peer,
    /// The network: no answer arrives.
    Network,
    /// The operating system or this library: no memory or descriptors, a port in use.
    System,
}

/// An error: the side to blame, what happened, and what to do next.
///
/// A region that was given to the operation is in its error: [`Error::into_region`].
pub struct Error(Box<Inner>);

struct Inner {
    cause: Cause,
    region: Option<Region>,
}

/// An error without a region: a connection keeps it, and reports it to everything that still waits.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) blame: Blame,
    pub(crate) message: String,
    /// Whether the connection was closed in an orderly way.
    pub(crate) closed: bool,
}

impl Error {
    /// The side to blame.
    pub fn blame(&self) -> Blame {
        self.0.cause.blame
    }

    /// Whether the connection was simply closed, by either side: the equivalent of end of file.
    pub fn is_closed(&self) -> bool {
        self.0.cause.closed
    }

    /// The region that was given to the operation, if any.
    pub fn into_region(self) -> Option<Region> {
        self.0.region
    }

    pub(crate) fn you(message: impl Into<String>) -> Error {
        Cause::new(Blame::You, message).into()
    }

    pub(crate) fn system(what: &str, error: &io::Error) -> Error {
        Cause::new(Blame::System, format!("{what}: {error}")).into()
    }

    pub(crate) fn with(self, region: Region) -> Error {
        Error(Box::new(Inner {
            region: Some(region),
            ..*self.0
        }))
    }
}

impl Cause {
    pub(crate) fn new(blame: Blame, message: impl Into<String>) -> Cause {
        Cause {
            blame,
            message: message.into(),
            closed: false,
        }
    }

    pub(crate) fn closed(blame: Blame, message: &str) -> Cause {
        Cause {
            closed: true,
            ..Cause::new(blame, message)
        }
    }
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Error {
        Error(Box::new(Inner {
            cause,
            region: None,
        }))
    }
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Error {
        let blame = match error {
            engine::Error::Invalid(_)
            | engine::Error::Attribute(_)
            | engine::Error::Busy(_)
            | engine::Error::Gone(_)
            | engine::Error::Unsupported(_)
            | engine::Error::Forked => Blame::You,
            engine::Error::NoMemory(_)
            | engine::Error::CqOverrun
            | engine::Error::System { .. } => Blame::System,
        };
        Cause::new(blame, error.to_string()).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.cause.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("blame", &self.0.cause.blame)
            .field("message", &self.0.cause.message)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {}
