//! Errors of streams.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed or ended.
    #[error(transparent)]
    Connection(#[from] airdma::Error),
    /// The peer sent something that this protocol does not allow.
    #[error("the peer breaks the protocol of streams: {0}")]
    Protocol(&'static str),
    /// The peer did not answer in time.
    #[error(
        "the peer is connected but does not speak the protocol of streams: is it `airdma stream`?"
    )]
    NoAnswer,
    /// A frame does not fit a block of the receiver.
    #[error(
        "a frame of {length} bytes, but the receiver's blocks hold {capacity}: give it larger blocks"
    )]
    TooLong {
        /// Bytes of the frame.
        length: usize,
        /// Bytes that fit.
        capacity: usize,
    },
    /// An argument is invalid.
    #[error("{0}")]
    Invalid(&'static str),
    /// The sender has no connection.
    #[error("no receiver is connected")]
    NotOpen,
}

impl Error {
    /// Whether the peer closed the connection, or its process ended.
    pub fn is_closed(&self) -> bool {
        matches!(self, Error::Connection(error) if error.is_closed())
    }

    /// Whether another connection may succeed.
    pub fn is_of_connection(&self) -> bool {
        match self {
            Error::Connection(error) => {
                matches!(error.blame(), airdma::Blame::Peer | airdma::Blame::Network)
            }
            Error::NoAnswer | Error::NotOpen => true,
            Error::Protocol(_) | Error::TooLong { .. } | Error::Invalid(_) => false,
        }
    }
}
