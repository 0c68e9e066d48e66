//! Sender and receiver as state machines: messages and times come in, messages and actions go out.
//!
//! Nothing here does I/O or reads a clock. A caller passes each message of the peer to
//! `handle_message`, calls `handle_timeout` at the time of `poll_timeout`, and after each call
//! drains `poll_message` (messages to send) and `poll_event` (actions). If the connection is lost,
//! the caller drops the machine and makes a new one for the next connection, which resumes from
//! what is durable.
//!
//! [`Sender::next_chunk`] and [`Receiver::next_chunk`] are the interface to the code that moves
//! data. The sender writes sealed chunks into the receiver's staging memory, chunk `n` to slot `n %
//! slots`, and only granted ones. The receiver grants the slots that its disk has emptied: a slow
//! disk slows the sender, and nothing overflows.

mod liveness;
mod message;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use message::{Accept, MESSAGE_BYTES_MAX, Malformed, Message, Offer, STAGING_BYTES_MAX};
pub use receiver::{Receiver, ReceiverEvent, Terms};
pub use sender::{Sender, SenderEvent};

use crate::{Limits, Problem};
use std::time::Duration;

/// Time since a fixed moment in the past.
pub type Time = Duration;

/// Timeouts and limits.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Longest time between two messages of this end.
    pub alive_every: Duration,
    /// Silence after which a peer counts as lost.
    pub silence_max: Duration,
    /// Time in which a receiver must accept.
    pub accept_within: Duration,
    /// Limits of a manifest.
    pub limits: Limits,
    /// Most slots for chunks that a receiver may offer.
    pub slots_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            alive_every: Duration::from_secs(5),
            silence_max: Duration::from_secs(20),
            accept_within: Duration::from_secs(600),
            limits: Limits::default(),
            slots_max: 1 << 16,
        }
    }
}

/// Why one end ends a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The receiver refused.
    Refused,
    /// Names exist, or the receiver refuses a name or link.
    Clash,
    /// The receiver has no space left.
    NoSpace,
    /// The receiver may not write.
    NotAllowed,
    /// A file or disk failed.
    Files,
    /// The offer was not accepted in time.
    NotAccepted,
    /// The peer broke the protocol, or a third party interfered.
    Protocol,
    /// The same files are being received already.
    Busy,
    /// The user cancelled it.
    Cancelled,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::Refused,
        Self::Clash,
        Self::NoSpace,
        Self::NotAllowed,
        Self::Files,
        Self::NotAccepted,
        Self::Protocol,
        Self::Busy,
        Self::Cancelled,
    ];

    fn code(self) -> u8 {
        Self::ALL
            .iter()
            .zip(1..)
            .find(|(reason, _)| **reason == self)
            .map_or(0, |(_, code)| code)
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// The reason that a receiver sends when its files fail.
impl From<Problem> for Reason {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::NoSpace | Problem::Quota | Problem::TooLarge => Self::NoSpace,
            Problem::ReadOnly | Problem::Permission => Self::NotAllowed,
            Problem::Exists
            | Problem::AllThere
            | Problem::NoDirectory
            | Problem::Name
            | Problem::Link => Self::Clash,
            Problem::Busy => Self::Busy,
            Problem::Missing
            | Problem::Tampered
            | Problem::NoName
            | Problem::Special
            | Problem::Reserved
            | Problem::SameName
            | Problem::Manifest(_)
            | Problem::Other(_) => Self::Files,
        }
    }
}

/// Why a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer ended it.
    #[error("the other end stopped: {}", crate::printable(text.as_bytes()))]
    Peer {
        /// Reason for programs.
        reason: Reason,
        /// Reason for display.
        text: String,
    },
    /// This end ended it.
    #[error("stopped here: {text}")]
    Here {
        /// Reason for programs.
        reason: Reason,
        /// Reason for display.
        text: String,
    },
    /// The peer was silent for [`Config::silence_max`].
    #[error("the peer stopped responding; run the same command to resume")]
    Silent,
    /// A message of the peer violates the protocol.
    #[error("the peer violated the file protocol ({0}); use the same version at both ends")]
    Protocol(&'static str),
    /// The offer was not accepted within [`Config::accept_within`].
    #[error("the offer was not accepted in time; ask the receiver, and send again")]
    NotAccepted,
}

/// The message that tells the peer of a failure.
fn last_word(failure: &Failure) -> Option<Message> {
    let (reason, text) = match failure {
        Failure::Peer { .. } | Failure::Silent => return None,
        Failure::Here { reason, text } => (*reason, text.clone()),
        Failure::Protocol(_) => (Reason::Protocol, failure.to_string()),
        Failure::NotAccepted => (Reason::NotAccepted, failure.to_string()),
    };
    Some(Message::Abort { reason, text })
}
