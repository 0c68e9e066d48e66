//! Why a transfer did not come to its end.

use airdma_files::protocol::{Failure, Malformed, Reason};
use airdma_files::session::{Forged, HandshakeError, PublicKey, RecordError};

/// Why there is no transfer, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection: there is none, or it was lost.
    #[error("{0}")]
    Rdma(airdma::Error),
    /// The two do not know each other.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer is connected, and says nothing.
    #[error("who answers says nothing: is it an airdma transfer? Try again")]
    NoAnswer,
    /// A frame that is none of the session's.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A message that is none.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A chunk that is not the sender's.
    #[error(transparent)]
    Forged(#[from] Forged),
    /// One of both ends ended it.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// Files here.
    #[error(transparent)]
    Files(#[from] airdma_files::Error),
    /// What was asked for cannot be done with this offer.
    #[error("{0}")]
    Unfit(&'static str),
    /// A code is needed, and there is no terminal to ask at.
    #[error(
        "this receiver is not known yet, and there is no terminal to ask for its code: give --code"
    )]
    NoCode,
    /// [`CODE_TRIES_MAX`](crate::CODE_TRIES_MAX) handshakes by a code ended before the other end had shown that it has the code.
    #[error(
        "the code was tried {0} times with a host that did not show that it has it: something may be taking the receiver's name. Let the receiver show a new code, and give its address"
    )]
    CodeTried(u32),
    /// No peer was met under a name, and what announces it has a key that was met under another one.
    #[error(
        "no receiver was ever met under this name: what announces {name} has the key of {met_as} ({key}). Give the code that it shows (--code), or send to {met_as} if that is meant"
    )]
    OtherName {
        /// The name that is announced, printable.
        name: String,
        /// The one that is known, printable.
        met_as: String,
        /// The key.
        key: PublicKey,
    },
    /// Who was asked said no.
    #[error("refused")]
    Refused,
    /// [`Cancel`](crate::Cancel).
    #[error("stopped: start again, which goes on where it stopped")]
    Cancelled,
    /// Something came over a connection that the peer did not send. It is given up as one that was lost: another may do better.
    #[error("{0}")]
    Meddled(Box<Error>),
    /// The connection was lost, and no other could be made in time.
    #[error("interrupted ({0}): start again, which goes on where it stopped")]
    Interrupted(Box<Error>),
    /// A thread or such.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// What kind of thing went wrong: what programs decide by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is nobody, or no way to get there.
    Unreachable,
    /// The connection was lost on the way. Starting again goes on where it stopped.
    Interrupted,
    /// Wrong code, or a key that is not known.
    Unknown,
    /// The receiver did not want it, did not answer, or is busy.
    Refused,
    /// A disk, a directory, a name.
    Files,
    /// The other end does not speak this protocol, or somebody interfered.
    Protocol,
    /// It was ended from outside.
    Cancelled,
    /// Memory, descriptors, a port that is taken, a wrong argument.
    System,
}

impl Error {
    /// What kind of thing went wrong.
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
            // Not by us.
            Self::Failure(Failure::Peer {
                reason: Reason::Cancelled,
                ..
            }) => Kind::Interrupted,
            Self::Failure(Failure::Peer { reason, .. } | Failure::Here { reason, .. }) => {
                kind_of_reason(*reason)
            }
            Self::Failure(Failure::Silent) | Self::Interrupted(_) | Self::Meddled(_) => {
                Kind::Interrupted
            }
            Self::Failure(Failure::NotAccepted) | Self::Refused => Kind::Refused,
            Self::Files(_) | Self::Unfit(_) => Kind::Files,
            Self::Cancelled => Kind::Cancelled,
            Self::System(_) => Kind::System,
        }
    }

    /// Whether the connection is to blame, so that another one may do better.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(
            self,
            Self::Rdma(_) | Self::NoAnswer | Self::Failure(Failure::Silent) | Self::Meddled(_)
        )
    }

    /// Whether it says that something came that the peer did not send: one forged packet is enough for that.
    pub(crate) fn is_forged(&self) -> bool {
        matches!(
            self,
            Self::Record(_) | Self::Forged(_) | Self::Handshake(HandshakeError::Malformed)
        )
    }
}

/// Connections of one transfer that ended with something forged, in a row and without progress, after which it is over.
const FORGED_MAX: u32 = 5;

/// How often one transfer was meddled with.
#[derive(Debug, Default)]
pub(crate) struct Meddling {
    in_a_row: u32,
    /// Chunks on the receiver's disk by then.
    durable: u64,
}

impl Meddling {
    /// What the end of a connection of a transfer that can go on is, with so many chunks on the receiver's disk: one that was lost, or for
    /// good.
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
