//! Sender and receiver as state machines: messages and times come in, messages and what is to be done go out.
//!
//! Nothing here does I/O or reads a clock. A caller, for each message of the peer, calls `handle_message`; when
//! `poll_timeout` says so, `handle_timeout`; and after each call, until they say none, `poll_message` (what to send) and
//! `poll_event` (what to do). A lost connection is the caller's to notice: it drops the machine, and makes a new one for the
//! next connection, which goes on from what is durable.
//!
//! [`Sender::next_chunk`] and [`Receiver::next_chunk`] are the seam to whoever moves data. The sender writes sealed chunks into
//! the receiver's staging memory, chunk `n` to slot `n % slots`, and none that was not granted. The receiver's grants are the
//! slots that its disk has emptied: a slow disk slows the sender, and nothing overflows.

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

/// Time since any moment in the past, the same for all calls.
pub type Time = Duration;

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Something is said at least so often.
    pub alive_every: Duration,
    /// A peer that says nothing for so long is gone.
    pub silence_max: Duration,
    /// A receiver accepts within so long, or never.
    pub accept_within: Duration,
    /// What a manifest may hold.
    pub limits: Limits,
    /// Places for chunks that a receiver may offer.
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

/// Why one end ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The receiver does not want it.
    Refused,
    /// Names exist, or a name or link is refused.
    Clash,
    /// No room.
    NoSpace,
    /// The receiver may not write.
    NotAllowed,
    /// A file or disk failed.
    Files,
    /// Nobody accepted.
    NotAccepted,
    /// The other end broke the protocol, or somebody interfered.
    Protocol,
    /// The same files are being received already.
    Busy,
    /// Somebody ended it.
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

/// What a receiver says when its files fail.
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

/// Why a transfer did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer says so.
    #[error("the other end stopped: {}", crate::printable(text.as_bytes()))]
    Peer {
        /// For programs.
        reason: Reason,
        /// For people.
        text: String,
    },
    /// This end ended it.
    #[error("stopped here: {text}")]
    Here {
        /// For programs.
        reason: Reason,
        /// For people.
        text: String,
    },
    /// Nothing was heard for [`Config::silence_max`].
    #[error("the other end is not heard any more: start again, which goes on where it stopped")]
    Silent,
    /// What the peer says is against the protocol.
    #[error("the other end broke the protocol ({0}): use the same version at both ends")]
    Protocol(&'static str),
    /// Nobody accepted within [`Config::accept_within`].
    #[error("nobody accepted: ask the receiver, and offer again")]
    NotAccepted,
}

/// What is said to a peer when a transfer fails.
fn last_word(failure: &Failure) -> Option<Message> {
    let (reason, text) = match failure {
        Failure::Peer { .. } | Failure::Silent => return None,
        Failure::Here { reason, text } => (*reason, text.clone()),
        Failure::Protocol(_) => (Reason::Protocol, failure.to_string()),
        Failure::NotAccepted => (Reason::NotAccepted, failure.to_string()),
    };
    Some(Message::Abort { reason, text })
}
