//! Whether an ACK may wait for the program's reply.
//!
//! In a ping-pong a message of ours follows each message of the peer. An ACK that waits for it
//! leaves in the same system call, behind it, and arrives with it. The requester sees no difference
//! but the time, which its timer (IBTA 9.7.6.1.3) exceeds by far.
//!
//! An ACK waits only after [`REPLIES_MIN`] such exchanges in a row, so a peer that waits for the
//! ACK of each message, and gets no other answer, has each at once.

use std::time::Duration;

use crate::time::Time;

/// The longest that an ACK waits: about as long as the system calls for it take.
pub const ACK_DELAY_MAX: Duration = Duration::from_micros(25);

/// Exchanges in a row after which a reply is expected.
const REPLIES_MIN: u8 = 4;

#[derive(Debug, Default)]
pub(crate) struct AckDelay {
    /// When the last message arrived that asked for an ACK, unless a message of ours followed it.
    arrived: Option<Time>,
    /// Exchanges in a row, at most [`REPLIES_MIN`].
    replies: u8,
}

impl AckDelay {
    /// A message of the peer is complete, and asked for an ACK.
    #[inline]
    pub(crate) fn note_message(&mut self, now: Time) {
        if self.arrived.replace(now).is_some() {
            self.replies = 0;
        }
    }

    /// A packet of a request leaves.
    #[inline]
    pub(crate) fn note_request(&mut self, now: Time) {
        let Some(arrived) = self.arrived.take() else {
            return;
        };
        self.replies = if now.duration_since(arrived) <= ACK_DELAY_MAX {
            REPLIES_MIN.min(self.replies + 1)
        } else {
            0
        };
    }

    /// An ACK has waited in vain.
    pub(crate) fn note_in_vain(&mut self) {
        self.replies = 0;
    }

    /// Whether a reply to the next message is likely.
    #[inline]
    pub(crate) fn expects_reply(&self) -> bool {
        self.replies >= REPLIES_MIN
    }
}
