//! An ACK that waits for the program's reply.

use super::{QueuePair, Service};
use crate::attributes::QpState;

impl QueuePair {
    /// Whether an ACK is all that a reliable connection has to send, and may wait for a reply of
    /// the program's, for up to [`ACK_DELAY_MAX`](crate::ACK_DELAY_MAX).
    #[inline]
    pub fn may_delay_ack(&self) -> bool {
        self.ack_delay.expects_reply() && self.has_only_ack()
    }

    #[inline(never)] // as below
    fn has_only_ack(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => {
                self.attributes.state == QpState::ReadyToSend
                    && responder.owes_only_acknowledgement()
                    && !requester.wants_transmit(&self.attributes, false)
            }
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    /// Notes that the ACK has waited in vain.
    pub fn end_ack_delay(&mut self) {
        self.ack_delay.note_in_vain();
    }

    /// Whether the next request may be the reply for which an ACK waits: it goes first, since the
    /// kernel sends packets of one size and a shorter last one at once.
    #[inline(never)] // no code for it on the path of all others
    pub(super) fn reply_goes_first(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => requester.sends_few() && responder.owes_only_acknowledgement(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }
}
