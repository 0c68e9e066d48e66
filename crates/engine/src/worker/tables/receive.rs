//! What becomes of a packet that arrives: whose it is, and what is drawn from it.

use super::Tables;
use crate::counter_names::EngineCounter;
use crate::index::{PdIndex, QpIndex, SrqIndex};
use crate::sharing::steering::Member;
use crate::tables::qp_host::Receives;
use airdma_port::Received;
use airdma_transport::{Arrival, Time};
use airdma_wire::sealed::is_sealed;
use airdma_wire::{Bth, Opcode, Packet, ParseError, Qpn, split_middle};

impl Tables {
    /// Takes one packet that the port has verified. What is wrong with it is counted by reason. After the last comes
    /// [`settle_received`](Self::settle_received).
    pub(crate) fn receive(&mut self, now: Time, received: &Received<'_>) {
        if received.bundled && !self.air.may_bundle(&mut self.qps, received.bytes) {
            return self.counters.count(EngineCounter::DropAir);
        }
        if let Some((bth, payload)) = split_middle(received.bytes)
            && self.receive_middle(now, received, &bth, payload)
        {
            return;
        }
        if is_sealed(received.bytes) {
            return self.receive_sealed(now, received);
        }
        let packet = match Packet::parse(received.bytes) {
            Ok(packet) => packet,
            Err(error) => return self.drop_malformed(error),
        };
        let arrival = arrival(received);
        let number = packet.headers.bth.dest_qpn;
        if received.destination.is_multicast() || number == Qpn::MULTICAST {
            return self.receive_multicast(now, &arrival, &packet);
        }
        if number == Qpn::GSI {
            return self.receive_management(now, received, &arrival, &packet);
        }
        let Some(index) = self.qps.find(number) else {
            return self.receive_unknown(now, received, number);
        };
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        let is_from_peer = slot.knows(received);
        if !is_from_peer {
            let reason = slot.why_not_plain();
            if !self.takes_from(index, now, received) {
                return self.counters.count(reason);
            }
        }
        self.deliver::<false>(index, now, received, &arrival, &packet);
        if !is_from_peer {
            self.resolve_candidate(now);
        }
    }

    /// Takes a packet that was sealed, for the queue pair that opened it.
    pub(crate) fn receive_for(&mut self, index: QpIndex, now: Time, received: &Received<'_>) {
        if let Some((bth, payload)) = split_middle(received.bytes)
            && self.take_middle::<true>(index, now, received, &bth, payload)
        {
            return;
        }
        match Packet::parse(received.bytes) {
            Ok(packet) if packet.headers.bth.opcode == Opcode::UdSendOnly => {
                if !self.receive_air(now, &arrival(received), &packet, Some(index)) {
                    self.counters.count(EngineCounter::DropAir);
                }
            }
            Ok(packet) => self.deliver::<true>(index, now, received, &arrival(received), &packet),
            Err(error) => self.drop_malformed(error),
        }
    }

    /// Takes a datagram that was sealed by the queue pair of this number.
    pub(crate) fn receive_datagram_of(
        &mut self,
        index: QpIndex,
        now: Time,
        received: &Received<'_>,
        sender: Qpn,
    ) {
        match Packet::parse(received.bytes) {
            // Of its own number it has to tell the truth.
            Ok(packet)
                if packet
                    .headers
                    .deth
                    .is_none_or(|deth| deth.src_qpn == sender) =>
            {
                self.deliver::<true>(index, now, received, &arrival(received), &packet);
            }
            Ok(_) => self.counters.count(EngineCounter::DropUnsealed),
            Err(error) => self.drop_malformed(error),
        }
    }

    /// Gives a packet to the queue pair that it is for.
    /// `SEALED`: each path has its own copy, inlined into it.
    #[inline(always)]
    fn deliver<const SEALED: bool>(
        &mut self,
        index: QpIndex,
        now: Time,
        received: &Received<'_>,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) {
        if let Some(named) = packet.headers.xrceth {
            self.enter_domain(index, SrqIndex::new(named.srqn));
        }
        self.takes_packets(index, now);
        if packet.headers.bth.opcode == Opcode::Cnp {
            return self.receive_cnp(index, now, arrival, packet);
        }
        self.arrived.note(received.bytes.len(), received.tos);
        self.with(index, |qp, host| {
            qp.handle_packet(now, arrival, packet, host)
        });
    }

    /// A packet names a shared receive queue: what it asks for is in the protection domain of that.
    fn enter_domain(&mut self, index: QpIndex, srqn: SrqIndex) {
        if let Some(slot) = self.qps.slot(index)
            && let Receives::Domain(domain) = slot.side.receives
        {
            let srq = self.srqs.of_domain(srqn, domain);
            slot.side.pd = srq.map_or(PdIndex::NONE, |srq| srq.pd);
        }
    }

    /// Takes a packet from the middle of a message, if it is the one that comes next; see [`QueuePair::take_middle`].
    fn receive_middle(
        &mut self,
        now: Time,
        received: &Received<'_>,
        bth: &Bth,
        payload: &[u8],
    ) -> bool {
        let Some(index) = self.qps.find(bth.dest_qpn) else {
            return false;
        };
        let slot = self.qps.slot(index);
        if !slot.is_some_and(|slot| slot.knows(received)) {
            return false;
        }
        self.take_middle::<false>(index, now, received, bth, payload)
    }

    /// The same for the queue pair that it is for.
    /// `SEALED`: as in [`deliver`](Self::deliver).
    #[inline]
    fn take_middle<const SEALED: bool>(
        &mut self,
        index: QpIndex,
        now: Time,
        received: &Received<'_>,
        bth: &Bth,
        payload: &[u8],
    ) -> bool {
        self.takes_packets(index, now);
        let taken = self.with(index, |qp, host| qp.take_middle(now, bth, payload, host));
        if taken == Some(true) {
            self.arrived.note(received.bytes.len(), received.tos);
        }
        taken.unwrap_or(false)
    }

    /// The queue pair takes packets; another that did before is settled.
    fn takes_packets(&mut self, index: QpIndex, now: Time) {
        if self.unsettled != Some(index) {
            self.settle_received(now);
            self.unsettled = Some(index);
        }
    }

    /// Draws the consequences of the packets that were taken. Most packets follow one for the same queue pair, so that is
    /// done when one comes for another, and to be done after the last.
    pub(crate) fn settle_received(&mut self, now: Time) {
        if let Some(index) = self.unsettled.take() {
            let arrived = std::mem::take(&mut self.arrived);
            self.settle(index, now);
            if arrived.has_marks() {
                self.air.note_marked(&mut self.qps, index, now);
            }
            self.air.note_arrived(&mut self.qps, index, arrived, now);
            self.air.note_owed(&mut self.qps, index, now);
        }
    }

    /// Nobody here has that number; another process may.
    #[cold]
    pub(crate) fn receive_unknown(&mut self, now: Time, received: &Received<'_>, number: Qpn) {
        let steering = self.steering.as_ref();
        match steering.and_then(|steering| steering.owner_of_number(number)) {
            Some(owner) => self.receive_misrouted(now, received, owner),
            None => self.counters.count(EngineCounter::DropUnknownQp),
        }
    }

    /// Hands a packet on to the process that it is for.
    fn receive_misrouted(&mut self, now: Time, received: &Received<'_>, owner: Member) {
        self.counters.count(EngineCounter::RxMisrouted);
        if let Some(steering) = &self.steering {
            steering.forward(received, owner);
            self.misrouted |= steering.note_misrouted(now);
        }
    }

    /// Gives a packet for queue pair 1 to the connection manager.
    fn receive_management(
        &mut self,
        now: Time,
        received: &Received<'_>,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) {
        let manages = self.gsi.is_some();
        if let Some(steering) = &self.steering
            && let Some(owner) =
                steering.owner_of_datagram(arrival.destination, packet.payload, manages)
        {
            return self.receive_misrouted(now, received, owner);
        }
        let Some(payload) = self.check_signed(arrival, packet.payload) else {
            return self.counters.count(EngineCounter::DropUnsealed);
        };
        let packet = &Packet { payload, ..*packet };
        if self.receive_air(now, arrival, packet, None) {
            return;
        }
        let gsi = self.gsi.as_mut();
        if !gsi.is_some_and(|gsi| gsi.receive(now, arrival, received.source_port, packet)) {
            self.counters.count(EngineCounter::DropUnknownQp);
        }
        let (remote, local) = (arrival.source, arrival.destination);
        self.with_air(|air, view| air.note_management(view, remote, local, now));
    }

    /// Gives each queue pair that is attached to the group a copy.
    fn receive_multicast(&mut self, now: Time, arrival: &Arrival, packet: &Packet<'_>) {
        let group = arrival.destination;
        let is_for_groups = packet.headers.bth.dest_qpn == Qpn::MULTICAST;
        if !is_for_groups || self.multicast.member(group, 0).is_none() {
            return self.counters.count(EngineCounter::DropUnknownQp);
        }
        let mut nth = 0;
        while let Some(index) = self.multicast.member(group, nth) {
            self.with(index, |qp, host| {
                qp.handle_packet(now, arrival, packet, host)
            });
            self.settle(index, now);
            nth += 1;
        }
    }

    fn drop_malformed(&mut self, error: ParseError) {
        match error {
            ParseError::Truncated => self.counters.count(EngineCounter::DropTruncated),
            ParseError::UnknownOpcode(_) => self.counters.count(EngineCounter::DropUnknownOpcode),
            ParseError::BadVersion(_) | ParseError::BadPad | ParseError::BadLength => {
                self.counters
                    .count_transport(airdma_transport::Counter::DropMalformed);
            }
        }
    }
}

/// What the transport is told of the way that a packet came.
fn arrival(received: &Received<'_>) -> Arrival {
    Arrival {
        source: received.source,
        destination: received.destination,
        tos: received.tos,
        ttl: received.ttl,
        flow_label: received.flow_label,
    }
}
