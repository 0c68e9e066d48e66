//! What a queue pair is doing, for a reader beside the data path.

use super::{QueuePair, Service};

/// What a queue pair has done and still has to do, as its own state says: nothing is counted for
/// it. A reader that looks twice has rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Packet sequence numbers used for requests, modulo 2^24.
    pub sent: u32,
    /// Packet sequence numbers received in order, modulo 2^24; stands still for datagrams.
    pub received: u32,
    /// Messages received, modulo 2^24; reliable connections only.
    pub messages_received: u32,
    /// Requests posted and not completed.
    pub queued: usize,
    /// Bytes sent and not acknowledged; reliable connections only.
    pub in_flight_bytes: u32,
    /// Whether the peer had no receive posted, and is not asked again yet.
    pub receiver_not_ready: bool,
}

impl QueuePair {
    /// What it is doing.
    pub fn activity(&self) -> Activity {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => Activity {
                sent: (requester.sent_packets() & PSN_MASK) as u32,
                received: responder.expected().get(),
                messages_received: responder.messages(),
                queued: requester.queued(),
                in_flight_bytes: requester.in_flight_bytes(&self.attributes),
                receiver_not_ready: requester.waits_for_receiver(),
            },
            Service::Unreliable {
                requester,
                responder,
            } => Activity {
                sent: requester.next_psn().get(),
                received: responder.expected().get(),
                queued: requester.queued(),
                ..Activity::default()
            },
            Service::Datagram(datagrams) => Activity {
                sent: datagrams.next_psn().get(),
                queued: datagrams.queued(),
                ..Activity::default()
            },
        }
    }
}

const PSN_MASK: u64 = 0xff_ffff;
