//! Reliable datagrams: messages of a datagram queue pair that are repeated until their target has
//! them (`docs/design/030-write-record.md`).
//!
//! [`ReliableRequester`] is the machine of the sender; the target's is
//! [`RecordTarget`](crate::RecordTarget). A message completes when the target has all of it, alone:
//! messages arrive and complete in any order, and each arrives once. A destination that does not
//! answer fails its own messages.
//!
//! | parameter | value | why |
//! |---|---|---|
//! | window of a destination | 16 packets at first, 128 at most | slow start and additive increase (RFC 5681); halved where packets are missing, 2 after a timeout |
//! | retransmission timer | the mean and four deviations of the round trip, 10 ms to 500 ms, doubled each time | RFC 6298 |
//! | a packet is missing | as soon as the answer to a later round lacks it | paths of one flow do not reorder; a needless repetition is dropped |
//! | messages of a destination in flight | 16, whose numbers lie within 32 | the target remembers the outcome of 32 |

mod destination;
mod message;
mod requester;

use core::time::Duration;

pub(crate) use requester::{ReliableRequester, Repeat};

/// Most reliable messages that a queue pair may have posted and not completed.
pub const RELIABLE_MESSAGES_MAX: u32 = 1 << 16;
/// Most destinations that a queue pair may have messages for at once.
pub const RELIABLE_DESTINATIONS_MAX: u32 = 1 << 14;
/// Longest time without an answer that names more after which a destination is given up: a target
/// remembers the numbers of its messages for longer.
pub const RELIABLE_SILENCE_MAX: Duration = Duration::from_secs(4);
/// How long a target waits for more of a reliable message: longer than its sender waits for an
/// answer.
pub(crate) const RELIABLE_IDLE: Duration = Duration::from_secs(5);
/// How long a target remembers the outcome of a source's messages at least, so that no late packet
/// of them begins a message again.
pub(crate) const RELIABLE_MEMORY: Duration = Duration::from_secs(10);

/// Most messages of a destination in flight at once.
pub(crate) const ACTIVE_MAX: usize = 16;
/// How far apart the numbers of messages in flight to a destination may be: the target remembers
/// the outcome of as many.
pub(crate) const SPAN_MAX: u32 = 32;

/// The memory of a sender of reliable datagrams, and when it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReliableConfig {
    /// Messages that are posted and not completed, at most [`RELIABLE_MESSAGES_MAX`]. Others wait
    /// in the send queue.
    pub messages_max: u32,
    /// Those of them to one destination. Beyond, all that were posted later wait.
    pub share_max: u32,
    /// Destinations with such messages, at most [`RELIABLE_DESTINATIONS_MAX`].
    pub destinations_max: u32,
    /// Time after which a destination is given up of which nothing more arrives, at most
    /// [`RELIABLE_SILENCE_MAX`].
    pub silence: Duration,
    /// How long a message is repeated that the target has no room, or no receive, for.
    pub not_ready: Duration,
}

impl Default for ReliableConfig {
    fn default() -> Self {
        ReliableConfig {
            messages_max: 1024,
            share_max: 128,
            destinations_max: 256,
            silence: Duration::from_secs(1),
            not_ready: Duration::from_secs(1),
        }
    }
}

/// A value of a [`ReliableConfig`] is zero, too large, or does not fit another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {0} of a queue pair's reliable datagrams")]
pub struct InvalidReliableConfig(pub &'static str);

impl ReliableConfig {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn check(&self) -> Result<(), InvalidReliableConfig> {
        let is_within = |value, max| (1..=max).contains(&value);
        let rules = [
            (
                is_within(self.messages_max, RELIABLE_MESSAGES_MAX),
                "messages_max",
            ),
            (is_within(self.share_max, self.messages_max), "share_max"),
            (
                is_within(self.destinations_max, RELIABLE_DESTINATIONS_MAX),
                "destinations_max",
            ),
            (
                !self.silence.is_zero() && self.silence <= RELIABLE_SILENCE_MAX,
                "silence",
            ),
            (!self.not_ready.is_zero(), "not_ready"),
        ];
        let broken = rules.into_iter().find(|(holds, _)| !holds);
        broken.map_or(Ok(()), |(_, name)| Err(InvalidReliableConfig(name)))
    }
}
