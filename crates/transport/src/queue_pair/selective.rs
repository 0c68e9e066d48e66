//! Features beyond RoCEv2 that two airdma peers agree on: selective repeat, and long packets.

use airdma_wire::{Bth, Packet, Psn, Transport};

use super::{QueuePair, Service, View};
use crate::counter::Counter;
use crate::host::Host;
use crate::selective::{Acknowledgement, Owed, PsnRange, ReorderMemory};
use crate::tag::Tags;
use crate::time::Time;

impl QueuePair {
    /// Turns selective repeat on or off (`memory`: for packets out of order). Both ends must have
    /// agreed on it.
    ///
    /// A reliable connection then buffers packets after a gap, retransmits exactly what its peer
    /// reports as missing, and acknowledges by [`take_report`](Self::take_report) instead of ACK
    /// packets. Call it again after each transition to ready-to-receive; other services do not
    /// change.
    pub fn set_selective(&mut self, memory: Option<&ReorderMemory>) {
        if let Service::Connected {
            requester,
            responder,
        } = &mut self.service
            && self.transport == Transport::Rc
        {
            requester.set_selective(memory);
            responder.set_selective(memory);
        }
    }

    /// Sets the tags that both ends have agreed on.
    ///
    /// From now on each sent packet has one; once the peer has used its own, packets without it are
    /// refused. Until then nothing is accepted out of order. Tags stay until the queue pair is
    /// reset, the peer's until the path leads to another address. Other services do not change.
    pub fn set_tags(&mut self, tags: Tags) {
        if self.transport == Transport::Rc {
            self.tagging.set(tags);
        }
    }

    /// Notes that the path leads to another address.
    ///
    /// Until its host agrees, packets are accepted as in plain RoCEv2. Sent packets keep their tag.
    pub fn forget_peer_tag(&mut self) {
        self.tagging.forget_peer();
    }

    /// Whether a packet of a reliable connection's peer was accepted in order.
    pub fn has_heard_peer(&self) -> bool {
        let first = self.attributes.rq_psn;
        (self.progress()).is_some_and(|at| at.expected != first || at.acked > 0)
    }

    /// Whether a packet may be the peer's, by its tag.
    pub fn takes(&self, bth: &Bth) -> bool {
        self.tagging.takes(bth)
    }

    /// Tag of sent packets; 0 without tags.
    pub fn tag(&self) -> u16 {
        self.tagging.sent()
    }

    /// Handles the tag of a packet; returns whether the packet is done with.
    #[inline(never)]
    pub(super) fn handle_tagged<H: Host>(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> bool {
        let bth = &packet.headers.bth;
        if !self.tagging.takes(bth) {
            host.count(Counter::DropUntagged);
            return true;
        }
        let is_pending = self.tagging.is_pending() && bth.opcode.transport() == Transport::Rc;
        if is_pending {
            self.handle_pending(now, packet, host);
        }
        is_pending
    }

    /// Handles a packet while the peer has not used its tag.
    #[cold]
    fn handle_pending<H: Host>(&mut self, now: Time, packet: &Packet<'_>, host: &mut H) {
        if let Service::Connected {
            requester,
            responder,
        } = &mut self.service
        {
            let is_refused = if packet.headers.bth.opcode.is_request() {
                responder.refuse_early(packet, host)
            } else {
                requester.refuse_early(packet, host)
            };
            if is_refused {
                return;
            }
        }
        let before = self.progress();
        self.handle_connected(now, packet, host);
        if self.progress() != before && self.tagging.has_tag(&packet.headers.bth) {
            self.tagging.show();
        }
    }

    /// Lets packets carry more than the path MTU.
    ///
    /// Packets of the peer may carry up to `taken` bytes (once announced to it, this stays for the
    /// connection's life); those of new requests carry `sent` bytes, which the peer must have
    /// announced. New READs ask for responses of `sent` bytes, too, if the peer `answers` so; the
    /// peer's READs are answered as they ask, up to `taken` bytes. Call it again after each
    /// transition to ready-to-receive; other services do not change.
    pub fn set_long_payloads(&mut self, taken: u32, sent: u32, answers: bool) {
        if let Service::Connected {
            requester,
            responder,
        } = &mut self.service
            && self.transport == Transport::Rc
        {
            responder.take_long_payloads(taken);
            requester.set_long_payload(sent, answers, &self.attributes);
        }
    }

    /// Lets long messages leave in packets of one length, the last one
    /// [padded](airdma_wire::padded), and asks for such responses; the peer must have announced
    /// that it accepts them. Otherwise as [`set_long_payloads`](Self::set_long_payloads).
    pub fn set_equal_lengths(&mut self, equal: bool) {
        if let Service::Connected { requester, .. } = &mut self.service
            && self.transport == Transport::Rc
        {
            requester.set_equal_lengths(equal, &self.attributes);
        }
    }

    /// Whether the peer may send [padded](airdma_wire::padded) packets.
    pub fn takes_padded(&self) -> bool {
        match &self.service {
            Service::Connected { responder, .. } => responder.takes_padded(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    /// Whether packets longer than the path MTU do not get through, by what the peer acknowledges.
    pub fn is_path_narrow(&self, now: Time) -> bool {
        match &self.service {
            Service::Connected { requester, .. } => requester.is_path_narrow(&self.attributes, now),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    /// Largest payload of a packet of the next run.
    pub fn payload_max(&self) -> u32 {
        let path_mtu = self.attributes.path_mtu.bytes();
        match &self.service {
            Service::Connected { requester, .. } => {
                requester.long_payload(&self.attributes).unwrap_or(path_mtu)
            }
            Service::Unreliable { .. } | Service::Datagram(_) => path_mtu,
        }
    }

    /// Reports missing packets to the peer by ACK packets with a SETH instead of
    /// [`take_report`](Self::take_report), or not.
    ///
    /// Call it after [`set_selective`](Self::set_selective).
    pub fn tell_by_acks(&mut self, by_acks: bool) {
        if let Service::Connected {
            requester,
            responder,
        } = &mut self.service
        {
            requester.tell_by_acks(by_acks);
            responder.tell_by_acks(by_acks);
        }
    }

    /// Whether our progress must be reported to the peer.
    pub fn owes_acknowledgement(&self) -> Option<Owed> {
        let Service::Connected { responder, .. } = &self.service else {
            return None;
        };
        responder.owed()
    }

    /// Packets found missing since the last call.
    pub fn take_missed(&mut self) -> u32 {
        match &mut self.service {
            Service::Connected { responder, .. } => responder.take_missed(),
            Service::Unreliable { .. } | Service::Datagram(_) => 0,
        }
    }

    /// Takes the report that is owed: PSN of the first packet not executed, and the first missing
    /// ranges.
    ///
    /// The ranges go to `missing`; their number is returned as well.
    pub fn take_report(&mut self, missing: &mut [PsnRange]) -> Option<(Psn, usize)> {
        let Service::Connected { responder, .. } = &mut self.service else {
            return None;
        };
        responder.take_report(missing)
    }

    /// Handles the peer's report of its progress. A peer that reports writes its tag into all
    /// packets.
    pub fn handle_acknowledgement<H: Host>(
        &mut self,
        now: Time,
        told: &Acknowledgement<'_>,
        host: &mut H,
    ) {
        if !self.attributes.state.sends() {
            return host.count(Counter::DropBadState);
        }
        if let Service::Connected { requester, .. } = &mut self.service {
            if requester.has_sent_before(told.expected) {
                self.tagging.show();
            }
            let view = View {
                qpn: self.config.qpn,
                attributes: &self.attributes,
            };
            requester.handle_acknowledgement(now, view, told, host);
            let outcome = requester.due_failure();
            self.after_requester(outcome, host);
        }
    }
}
