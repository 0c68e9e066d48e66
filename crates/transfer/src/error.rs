//! Errors of transfers.

use airdma_files::protocol::{Failure, Malformed, Reason};
use airdma_files::session::{Forged, HandshakeError, PublicKey, RecordError};

/// Why a transfer failed, or part of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed, or was lost.
    #[error("{0}")]
    Rdma(airdma::Error),
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer is connected, but sends nothing.
    #[error(
        "the peer is connected but sends nothing; check that `airdma recv` runs there, and try again"
    )]
    NoAnswer,
    /// A frame does not belong to the session.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The bytes are not a message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The sender did not send this chunk.
    #[error(transparent)]
    Forged(#[from] Forged),
    /// One end ended the transfer.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// Local files.
    #[error(transparent)]
    Files(#[from] airdma_files::Error),
    /// The request does not fit this offer.
    #[error("{0}")]
    Unfit(&'static str),
    /// A code is needed, and there is no terminal to ask for it.
    #[error(
        "this receiver is not known yet, and there is no terminal to ask for its code: give --code"
    )]
    NoCode,
    /// [`CODE_TRIES_MAX`](crate::CODE_TRIES_MAX) handshakes with a code ended before the other end
    /// had proven it.
    #[error(
        "{0} handshakes with this code failed because the other end did not prove that it has the code; an impostor may use the receiver's name. Start the receiver again for a new code, and give its address"
    )]
    CodeTried(u32),
    /// The name is unknown, and the receiver announced under it has a key that is known under
    /// another name.
    #[error(
        "no receiver is known as {name}; the one that announces this name has the key of {met_as} ({key}). Give the code that it shows (--code), or send to {met_as} if that is meant"
    )]
    OtherName {
        /// The announced name, printable.
        name: String,
        /// The known name, printable.
        met_as: String,
        /// The key of that receiver.
        key: PublicKey,
    },
    /// The user refused.
    #[error("refused")]
    Refused,
    /// [`Cancel`](crate::Cancel) was used.
    #[error("stopped; run the same command to resume")]
    Cancelled,
    /// Data came over a connection that the peer did not send. The connection counts as lost;
    /// another one may succeed.
    #[error("{0}")]
    Meddled(Box<Error>),
    /// The connection was lost, and could not be replaced in time.
    #[error("interrupted ({0}); run the same command to resume")]
    Interrupted(Box<Error>),
    /// As [`Error::Interrupted`], though several connections were made: no data arrived by any.
    #[error(
        "interrupted ({0}): connections are made, but no data arrives. A path that is narrower than the interface, and does not report it, loses long packets: set AIRDMA_MTU=1024, 512 or 256, and run the same command to resume"
    )]
    Fruitless(Box<Error>),
    /// A system resource, for example a thread.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Kind of an error, for decisions of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No receiver answers, or there is no route.
    Unreachable,
    /// The connection was lost. Starting again resumes the transfer.
    Interrupted,
    /// A wrong code, or an unknown key.
    Unknown,
    /// The receiver refused, did not answer, or is busy.
    Refused,
    /// A problem with a disk, a directory or a name.
    Files,
    /// The peer does not speak this protocol, or a third party interfered.
    Protocol,
    /// The transfer was cancelled.
    Cancelled,
    /// A lack of memory or descriptors, a port in use, a wrong argument.
    System,
}

impl Error {
    /// Kind of the error.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Rdma(error) => match error.blame() {
                airdma::Blame::You | airdma::Blame::System => Kind::System,
                airdma::Blame::Peer | airdma::Blame::Network => Kind::Unreachable,
            },
            Self::NoAnswer => Kind::Unreachable,
            Self::Handshake(HandshakeError::Version | HandshakeError::Malformed)
            | Self::Record(_)
            | Self::Malformed(_)
            | Self::Forged(_)
            | Self::Failure(Failure::Protocol(_)) => Kind::Protocol,
            Self::Handshake(
                HandshakeError::WrongCode
                | HandshakeError::NoMoreTries
                | HandshakeError::NotKnown(_)
                | HandshakeError::NotKnownThere
                | HandshakeError::NoCode,
            )
            | Self::NoCode
            | Self::CodeTried(_)
            | Self::OtherName { .. } => Kind::Unknown,
            // Not cancelled by this end.
            Self::Failure(Failure::Peer {
                reason: Reason::Cancelled,
                ..
            }) => Kind::Interrupted,
            Self::Failure(Failure::Peer { reason, .. } | Failure::Here { reason, .. }) => {
                kind_of_reason(*reason)
            }
            Self::Failure(Failure::Silent)
            | Self::Interrupted(_)
            | Self::Fruitless(_)
            | Self::Meddled(_) => Kind::Interrupted,
            Self::Failure(Failure::NotAccepted) | Self::Refused => Kind::Refused,
            Self::Files(_) | Self::Unfit(_) => Kind::Files,
            Self::Cancelled => Kind::Cancelled,
            Self::System(_) => Kind::System,
        }
    }

    /// Whether the connection is the cause, so that another one may succeed.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(
            self,
            Self::Rdma(_) | Self::NoAnswer | Self::Failure(Failure::Silent) | Self::Meddled(_)
        )
    }

    /// Whether it reports data that the peer did not send; a single forged packet causes that.
    pub(crate) fn is_forged(&self) -> bool {
        matches!(
            self,
            Self::Record(_) | Self::Forged(_) | Self::Handshake(HandshakeError::Malformed)
        )
    }
}

/// Most connections in a row, without progress, that a forgery may end before the transfer fails.
const FORGED_MAX: u32 = 5;

/// Counts forgeries in one transfer.
#[derive(Debug, Default)]
pub(crate) struct Meddling {
    in_a_row: u32,
    /// Durable chunks at the last one.
    durable: u64,
}

impl Meddling {
    /// Judges the end of a connection with `durable` chunks on the receiver's disk.
    ///
    /// Returns the error of a lost connection, if the transfer can go on, or the final one.
    pub fn judge(&mut self, error: Error, durable: u64) -> Error {
        if durable > self.durable {
            (self.in_a_row, self.durable) = (0, durable);
        }
        if !error.is_forged() {
            return error;
        }
        self.in_a_row += 1;
        match self.in_a_row < FORGED_MAX {
            true => Error::Meddled(Box::new(error)),
            false => error,
        }
    }
}

impl From<airdma::Error> for Error {
    fn from(error: airdma::Error) -> Self {
        Self::Rdma(error)
    }
}

fn kind_of_reason(reason: Reason) -> Kind {
    match reason {
        Reason::Refused | Reason::NotAccepted | Reason::Busy => Kind::Refused,
        Reason::Clash | Reason::NoSpace | Reason::NotAllowed | Reason::Files => Kind::Files,
        Reason::Protocol => Kind::Protocol,
        Reason::Cancelled => Kind::Cancelled,
    }
}
