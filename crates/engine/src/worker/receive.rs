//! The way of a packet that arrives to the queue pair that it is for.

use super::state::WorkerState;
use crate::air::{Arrived, NotAgreed};
use crate::counter_names::EngineCounter;
use crate::index::{PdIndex, QpIndex, SrqIndex};
use crate::sharing::steering::Member;
use crate::tables::qp_host::Receives;
use airdma_port::{Following, Received};
use airdma_transport::{Arrival, Time};
use airdma_wire::padded::PADDED_VERSION;
use airdma_wire::piece::{PIECE_OPCODE, Piece};
use airdma_wire::sealed::is_sealed;
use airdma_wire::{
    Bth, Deth, Opcode, Packet, ParseError, Qpn, RECORD_ACK_OPCODE, RECORD_ECHO_OPCODE,
    RECORD_OPCODE, RECORD_READ_OPCODE, RecordAck, RecordPacket, split_middle,
};

/// Packets that arrive together. When the guard goes out of scope, the queue pair that took the
/// last of them is settled.
pub(crate) struct Receiving<'a> {
    pub(super) state: &'a mut WorkerState,
    pub(super) now: Time,
    /// The queue pair that took packets last.
    unsettled: Option<QpIndex>,
    /// The packets that it took since.
    arrived: Arrived,
}

impl Drop for Receiving<'_> {
    #[inline(always)] // most rounds receive nothing
    fn drop(&mut self) {
        if let Some(index) = self.unsettled {
            self.settle_received(index);
        }
    }
}

impl WorkerState {
    /// Begins to receive packets.
    #[inline(always)]
    pub(crate) fn receiving(&mut self, now: Time) -> Receiving<'_> {
        Receiving {
            state: self,
            now,
            unsettled: None,
            arrived: Arrived::default(),
        }
    }
}

impl Receiving<'_> {
    /// Takes one packet that the port has verified. A packet that is dropped is counted by reason.
    pub(crate) fn receive(&mut self, received: &Received<'_>) {
        let now = self.now;
        if received.bundled
            && !self
                .state
                .air
                .may_bundle(&mut self.state.qps, received.bytes)
        {
            return self.state.counters.count(EngineCounter::DropAir);
        }
        if let Some((bth, payload)) = split_middle(received.bytes)
            && self.receive_middle(now, received, &bth, payload)
        {
            return;
        }
        if is_sealed(received.bytes) {
            return self.receive_sealed(now, received);
        }
        // By reference: a packet is long to move.
        match &Packet::parse(received.bytes) {
            Ok(packet) => self.receive_packet(received, packet),
            Err(error) => self.receive_other(received, *error),
        }
    }

    /// Takes what is no packet of RoCEv2, as `error` says.
    #[inline(never)] // packets save no registers for it
    fn receive_other(&mut self, received: &Received<'_>, mut error: ParseError) {
        if error == ParseError::BadVersion(PADDED_VERSION) {
            match self.parse_padded(received.bytes) {
                Ok(packet) => return self.receive_packet(received, &packet),
                Err(of_padded) => error = of_padded,
            }
        }
        match error {
            ParseError::UnknownOpcode(PIECE_OPCODE) => self.receive_piece(received),
            ParseError::UnknownOpcode(RECORD_OPCODE) => self.receive_record(received),
            ParseError::UnknownOpcode(RECORD_ACK_OPCODE) => self.receive_answer(received),
            ParseError::UnknownOpcode(RECORD_ECHO_OPCODE) => self.receive_record_echo(received),
            ParseError::UnknownOpcode(RECORD_READ_OPCODE) => self.receive_read(received),
            error @ (ParseError::UnknownOpcode(_)
            | ParseError::Truncated
            | ParseError::BadVersion(_)
            | ParseError::BadPad
            | ParseError::BadLength) => self.drop_malformed(error),
        }
    }

    /// Takes a packet in the clear.
    #[inline(always)] // each way has its own copy
    fn receive_packet(&mut self, received: &Received<'_>, packet: &Packet<'_>) {
        let now = self.now;
        let arrival = arrival(received);
        let number = packet.headers.bth.dest_qpn;
        if received.destination.is_multicast() || number == Qpn::MULTICAST {
            return self.receive_multicast(now, &arrival, packet);
        }
        if number == Qpn::GSI {
            return self.receive_management(now, received, &arrival, packet);
        }
        let Some(index) = self.state.qps.find(number) else {
            return self.receive_unknown(now, received, number);
        };
        let Some(slot) = self.state.qps.slot(index) else {
            return;
        };
        let is_from_peer = slot.knows(received);
        if !is_from_peer {
            let reason = slot.why_not_plain();
            if !self.state.takes_from(index, now, received) {
                return self.state.counters.count(reason);
            }
        }
        self.deliver::<false>(index, now, received, &arrival, packet);
        if !is_from_peer {
            self.state.resolve_candidate(now);
        }
    }

    /// Takes a piece of a packet; the packet arrives with the last one.
    #[cold]
    fn receive_piece(&mut self, received: &Received<'_>) {
        let Some(piece) = Piece::parse(received.bytes) else {
            return self.drop_malformed(ParseError::Truncated);
        };
        let number = match piece.header() {
            Ok(header) => header.dest_qpn,
            Err(error) => return self.drop_malformed(error),
        };
        let Some(index) = self.state.qps.find(number) else {
            return self.receive_unknown(self.now, received, number);
        };
        let slot = self.state.qps.slot(index);
        if !slot.is_some_and(|slot| slot.accepts(received.source, received.destination)) {
            return self.state.counters.count(EngineCounter::DropBadSource);
        }
        match self
            .state
            .air
            .take_piece(&mut self.state.qps, index, &piece)
        {
            Ok(None) => {}
            Ok(Some(packet)) => self.receive(&Received {
                bytes: &packet,
                ..*received
            }),
            Err(NotAgreed) => self.state.counters.count(EngineCounter::DropAir),
        }
    }

    /// Takes a packet that was sealed, for the queue pair that opened it.
    pub(super) fn receive_for(&mut self, index: QpIndex, now: Time, received: &Received<'_>) {
        if let Some((bth, payload)) = split_middle(received.bytes)
            && self.take_middle::<true>(index, now, received, &bth, payload)
        {
            return;
        }
        match self.parse(received.bytes) {
            Ok(packet) if packet.headers.bth.opcode == Opcode::UdSendOnly => {
                if !self
                    .state
                    .receive_air(now, &arrival(received), &packet, Some(index))
                {
                    self.state.counters.count(EngineCounter::DropAir);
                }
            }
            Ok(packet) => self.deliver::<true>(index, now, received, &arrival(received), &packet),
            Err(error) => self.drop_malformed(error),
        }
    }

    /// Takes a datagram that was sealed by the queue pair of this number.
    pub(super) fn receive_datagram_of(
        &mut self,
        index: QpIndex,
        now: Time,
        received: &Received<'_>,
        sender: Qpn,
    ) {
        match self.parse(received.bytes) {
            // The number in the packet must be the one of the queue pair that sealed it.
            Ok(packet)
                if packet
                    .headers
                    .deth
                    .is_none_or(|deth| deth.src_qpn == sender) =>
            {
                self.deliver::<true>(index, now, received, &arrival(received), &packet);
            }
            Ok(_) => self.state.counters.count(EngineCounter::DropUnsealed),
            Err(ParseError::UnknownOpcode(RECORD_OPCODE)) => {
                match RecordPacket::parse(received.bytes) {
                    Ok(packet) if packet.headers.deth.src_qpn == sender => {
                        self.deliver_record(index, received, &packet, None);
                    }
                    Ok(_) => self.state.counters.count(EngineCounter::DropUnsealed),
                    Err(error) => self.drop_malformed(error),
                }
            }
            Err(ParseError::UnknownOpcode(RECORD_ACK_OPCODE)) => {
                match RecordAck::parse(received.bytes) {
                    Ok(answer) if answer.deth.src_qpn == sender => {
                        self.deliver_answer(index, received, &answer);
                    }
                    Ok(_) => self.state.counters.count(EngineCounter::DropUnsealed),
                    Err(error) => self.drop_malformed(error),
                }
            }
            Err(ParseError::UnknownOpcode(RECORD_ECHO_OPCODE)) => {
                self.receive_sealed_echo(index, received, sender);
            }
            Err(ParseError::UnknownOpcode(RECORD_READ_OPCODE)) => {
                self.receive_sealed_read(index, received, sender);
            }
            Err(error) => self.drop_malformed(error),
        }
    }

    /// Reads a packet: an ordinary one, or a padded one of a peer that may send such.
    #[inline(always)] // as Packet::parse
    fn parse<'b>(&mut self, bytes: &'b [u8]) -> Result<Packet<'b>, ParseError> {
        match Packet::parse(bytes) {
            Err(ParseError::BadVersion(PADDED_VERSION)) => self.parse_padded(bytes),
            parsed => parsed,
        }
    }

    #[inline(never)] // one packet of a message at most
    fn parse_padded<'b>(&mut self, bytes: &'b [u8]) -> Result<Packet<'b>, ParseError> {
        let packet = Packet::parse_padded(bytes)?;
        let index = self.state.qps.find(packet.headers.bth.dest_qpn);
        let slot = index.and_then(|index| self.state.qps.slot(index));
        if slot.is_some_and(|slot| !slot.qp.takes_padded()) {
            return Err(ParseError::BadVersion(PADDED_VERSION));
        }
        Ok(packet)
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
        self.takes_packets(index);
        if packet.headers.bth.opcode == Opcode::Cnp {
            return self.state.receive_cnp(index, now, arrival, packet);
        }
        self.arrived.note(received.bytes.len(), received.tos);
        self.state.with(index, |qp, host| {
            qp.handle_packet(now, arrival, packet, host)
        });
        if let Some(deth) = &packet.headers.deth {
            self.note_datagram(index, received, deth);
        }
    }

    /// A datagram came for a queue pair, which reports to its sender count if both are in air mode.
    pub(super) fn note_datagram(&mut self, index: QpIndex, received: &Received<'_>, deth: &Deth) {
        let state = &mut *self.state;
        if !state.air.counts_datagrams() {
            return;
        }
        let slot = state.qps.slot(index);
        if slot.is_some_and(|slot| slot.qp.attributes().qkey == deth.qkey) {
            let mut arrived = Arrived::default();
            arrived.note(received.bytes.len(), received.tos);
            let ends = (received.source, received.destination);
            (state.air).note_datagram(ends, deth.src_qpn, arrived, self.now);
        }
    }

    /// A packet names a shared receive queue: what it asks for is in the protection domain of that.
    fn enter_domain(&mut self, index: QpIndex, srqn: SrqIndex) {
        if let Some(slot) = self.state.qps.slot(index)
            && let Receives::Domain(domain) = slot.side.receives
        {
            let srq = self.state.device.srqs.of_domain(srqn, domain);
            slot.side.pd = srq.map_or(PdIndex::NONE, |srq| srq.pd);
        }
    }

    /// Takes a packet from the middle of a message, if it is the one that comes next; see
    /// [`take_middle`](airdma_transport::QueuePair::take_middle).
    fn receive_middle(
        &mut self,
        now: Time,
        received: &Received<'_>,
        bth: &Bth,
        payload: &[u8],
    ) -> bool {
        let Some(index) = self.state.qps.find(bth.dest_qpn) else {
            return false;
        };
        let slot = self.state.qps.slot(index);
        if !slot.is_some_and(|slot| slot.knows(received)) {
            return false;
        }
        self.take_middle::<false>(index, now, received, bth, payload)
    }

    /// Hands a packet from the middle of a message to its queue pair, and those that follow it;
    /// returns whether the first was taken.
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
        self.takes_packets(index);
        let taken = self
            .state
            .with(index, |qp, host| qp.take_middle(now, bth, payload, host));
        if taken != Some(true) {
            return false;
        }
        self.arrived.note(received.bytes.len(), received.tos);
        if let Some(following) = received.following {
            self.take_following(index, now, received.tos, bth.dest_qpn, following);
        }
        true
    }

    /// Hands what follows a packet from the middle of a message to its queue pair, as far as it is
    /// more of them.
    #[inline(never)] // other packets save no registers for it
    fn take_following(
        &mut self,
        index: QpIndex,
        now: Time,
        tos: u8,
        number: Qpn,
        following: &Following<'_>,
    ) {
        let arrived = &mut self.arrived;
        self.state.with(index, |qp, host| {
            while let Some(bytes) = following.peek()
                && let Some((bth, payload)) = split_middle(bytes)
                && bth.dest_qpn == number
                && qp.take_middle(now, &bth, payload, host)
            {
                following.take();
                arrived.note(bytes.len(), tos);
            }
        });
    }

    /// A queue pair takes packets. If another one took the packets before, that one is settled.
    #[inline(always)]
    fn takes_packets(&mut self, index: QpIndex) {
        if self.unsettled != Some(index) {
            if let Some(before) = self.unsettled {
                self.settle_received(before);
            }
            self.unsettled = Some(index);
        }
    }

    /// Settles the queue pair that took packets last. Most packets follow one for the same queue
    /// pair, so that is done when a packet comes for another one, and after the last.
    #[inline(never)]
    fn settle_received(&mut self, index: QpIndex) {
        let now = self.now;
        let arrived = std::mem::take(&mut self.arrived);
        self.state.change(index, now).settle();
        if arrived.has_marks() {
            self.state.air.note_marked(&mut self.state.qps, index, now);
        }
        self.state
            .air
            .note_arrived(&mut self.state.qps, index, arrived, now);
        self.state.air.note_owed(&mut self.state.qps, index, now);
    }

    /// No queue pair of this process has that number; one of another process may.
    #[cold]
    pub(super) fn receive_unknown(&mut self, now: Time, received: &Received<'_>, number: Qpn) {
        let steering = self.state.device.steering.as_ref();
        match steering.and_then(|steering| steering.owner_of_number(number)) {
            Some(owner) => self.receive_misrouted(now, received, owner),
            None => self.state.counters.count(EngineCounter::DropUnknownQp),
        }
    }

    /// Hands a packet on to the process that it is for.
    fn receive_misrouted(&mut self, now: Time, received: &Received<'_>, owner: Member) {
        self.state.counters.count(EngineCounter::RxMisrouted);
        if let Some(steering) = &self.state.device.steering {
            steering.forward(received, owner);
            self.state.misrouted |= steering.note_misrouted(now);
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
        let manages = self.state.gsi.is_some();
        if let Some(steering) = &self.state.device.steering
            && let Some(owner) =
                steering.owner_of_datagram(arrival.destination, packet.payload, manages)
        {
            return self.receive_misrouted(now, received, owner);
        }
        let Some(payload) = self.state.check_signed(arrival, packet.payload) else {
            return self.state.counters.count(EngineCounter::DropUnsealed);
        };
        let packet = &Packet { payload, ..*packet };
        if self.state.receive_air(now, arrival, packet, None) {
            return;
        }
        let gsi = self.state.gsi.as_mut();
        if !gsi.is_some_and(|gsi| gsi.receive(now, arrival, received.source_port, packet)) {
            self.state.counters.count(EngineCounter::DropUnknownQp);
        }
        let (remote, local) = (arrival.source, arrival.destination);
        self.state
            .with_air(|air, view| air.note_management(view, remote, local, now));
    }

    /// Gives each queue pair that is attached to the group a copy.
    fn receive_multicast(&mut self, now: Time, arrival: &Arrival, packet: &Packet<'_>) {
        let group = arrival.destination;
        let is_for_groups = packet.headers.bth.dest_qpn == Qpn::MULTICAST;
        if !is_for_groups || self.state.multicast.member(group, 0).is_none() {
            return self.state.counters.count(EngineCounter::DropUnknownQp);
        }
        let mut nth = 0;
        while let Some(index) = self.state.multicast.member(group, nth) {
            self.state
                .change(index, now)
                .call(|qp, host| qp.handle_packet(now, arrival, packet, host));
            nth += 1;
        }
    }

    pub(super) fn drop_malformed(&mut self, error: ParseError) {
        match error {
            ParseError::Truncated => self.state.counters.count(EngineCounter::DropTruncated),
            ParseError::UnknownOpcode(_) => {
                self.state.counters.count(EngineCounter::DropUnknownOpcode)
            }
            ParseError::BadVersion(_) | ParseError::BadPad | ParseError::BadLength => {
                self.state
                    .counters
                    .count_transport(airdma_transport::Counter::DropMalformed);
            }
        }
    }
}

/// What the transport needs of a packet's IP header.
pub(super) fn arrival(received: &Received<'_>) -> Arrival {
    Arrival {
        source: received.source,
        destination: received.destination,
        tos: received.tos,
        ttl: received.ttl,
        flow_label: received.flow_label,
    }
}
