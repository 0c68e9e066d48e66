//! What two airdma peers agree on beyond RoCEv2: selective repeat, and long packets.

use airdma_wire::{Bth, Packet, Psn, Transport};

use super::{QueuePair, Service, View};
use crate::counter::Counter;
use crate::host::Host;
use crate::selective::{Acknowledgement, Owed, PsnRange, ReorderMemory};
use crate::tag::Tags;
use crate::time::Time;

impl QueuePair {
    /// The peer repeats selectively (`memory`: for what comes before its turn), or does so no more.
    /// Both ends must have agreed on it. A reliable connection then keeps what comes after a gap,
    /// sends again what its peer says is missing, and nothing else, and acknowledges by
    /// [`acknowledge`](Self::acknowledge) in place of ACK packets. To be said again after each move
    /// to ready-to-receive; other services do not change.
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

    /// Both ends have agreed on tags: from now on all that is sent has one, and from when on the
    /// peer has shown its own, nothing is taken without. Until then nothing is kept ahead of its
    /// turn. They stay until the queue pair is reset, that of the peer until the path leads to
    /// another address. Other services do not change.
    pub fn set_tags(&mut self, tags: Tags) {
        if self.transport == Transport::Rc {
            self.tagging.set(tags);
        }
    }

    /// The path leads to another address: until its host agrees, what comes is taken as on RoCEv2.
    /// What is sent has the tag still.
    pub fn forget_peer_tag(&mut self) {
        self.tagging.forget_peer();
    }

    /// Whether the peer of a reliable connection was heard: a packet of it was taken in its turn.
    pub fn has_heard_peer(&self) -> bool {
        let first = self.attributes.rq_psn;
        (self.progress()).is_some_and(|at| at.expected != first || at.acked > 0)
    }

    /// Whether a packet may be the peer's, as far as its tag says.
    pub fn takes(&self, bth: &Bth) -> bool {
        self.tagging.takes(bth)
    }

    /// Of all that is sent; 0 without tags.
    pub fn tag(&self) -> u16 {
        self.tagging.sent()
    }

    /// A packet came for a queue pair with tags. Whether nothing is left to be done with it.
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

    /// A packet came while the peer has not shown its tag.
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

    /// Packets may carry more than the path MTU: those of the peer up to `taken` bytes (what it was
    /// told once it may go by as long as the connection lasts), and those of requests that have not
    /// begun `sent` bytes, which the peer must have said that it takes. READs that have not begun
    /// ask for answers of `sent` bytes, too, if the peer said that it `answers` so; those of the
    /// peer are answered as they ask, up to `taken` bytes. To be said again after each move to
    /// ready-to-receive; other services do not change.
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

    /// The most that a packet of the next run may carry.
    pub fn payload_max(&self) -> u32 {
        let path_mtu = self.attributes.path_mtu.bytes();
        match &self.service {
            Service::Connected { requester, .. } => {
                requester.long_payload(&self.attributes).unwrap_or(path_mtu)
            }
            Service::Unreliable { .. } | Service::Datagram(_) => path_mtu,
        }
    }

    /// The peer, which repeats selectively, hears what is missing by ACK packets with a SETH, and
    /// nothing is to be told by [`acknowledge`](Self::acknowledge); or not. To be said after
    /// [`set_selective`](Self::set_selective).
    pub fn tell_by_acks(&mut self, by_acks: bool) {
        if let Service::Connected { responder, .. } = &mut self.service {
            responder.tell_by_acks(by_acks);
        }
    }

    /// Whether the peer is to be told how far we are.
    pub fn owes_acknowledgement(&self) -> Option<Owed> {
        let Service::Connected { responder, .. } = &self.service else {
            return None;
        };
        responder.owed()
    }

    /// Packets that were missing when later ones came, since this was asked last.
    pub fn take_missed(&mut self) -> u32 {
        match &mut self.service {
            Service::Connected { responder, .. } => responder.take_missed(),
            Service::Unreliable { .. } | Service::Datagram(_) => 0,
        }
    }

    /// The peer is told: PSN of the first packet that was not executed, and in `missing` the first
    /// ranges of what is missing from there on. Returns how many ranges there are, too.
    pub fn acknowledge(&mut self, missing: &mut [PsnRange]) -> Option<(Psn, usize)> {
        let Service::Connected { responder, .. } = &mut self.service else {
            return None;
        };
        responder.acknowledge(missing)
    }

    /// Takes what the peer says of how far it is. A peer that does writes its tag into all that it
    /// sends.
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
                now,
                qpn: self.config.qpn,
                attributes: &self.attributes,
            };
            requester.handle_acknowledgement(&view, told, host);
            let outcome = requester.due_failure();
            self.after_requester(outcome, host);
        }
    }
}
