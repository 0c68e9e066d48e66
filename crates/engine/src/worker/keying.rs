//! Keys of sealed connections: when a queue pair exchanges them, and what is sealed and opened.

use super::receive::Receiving;
use super::state::WorkerState;
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use crate::seal::datagrams::{Name, Unopened};
use crate::seal::{Seal, Secret, TAG_LEN};
use crate::tables::destination::destination;
use crate::tables::qp_table::{NO_PORT, QpSlot};
use airdma_port::{Destination, Received};
use airdma_transport::{Arrival, Time};
use airdma_wire::air::{self, KeyOffer};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::sealed::is_sealed;
use airdma_wire::{Gid, Qpn};

impl WorkerState {
    /// A queue pair was connected: if it seals, it exchanges keys for this connection.
    pub(crate) fn begin_keying(&mut self, index: QpIndex, now: Time) {
        let slot = self.qps.slot(index);
        if let Some(slot) = slot.filter(|slot| slot.seals && slot.connection.is_some()) {
            let is_itself = slot.connection.is_some_and(|at| at.local == at.remote)
                && slot.qp.attributes().dest_qpn == slot.qp.qpn();
            let seal = if is_itself {
                Seal::with_itself(now, &mut self.random)
            } else {
                Seal::new(now, &mut self.random)
            };
            slot.seal = Some(Box::new(seal));
            if let Some(connection) = &mut slot.connection {
                connection.source_port = NO_PORT;
            }
            self.scheduler.keying.set(index, Some(now));
        }
    }

    /// Writes the next offer of a key into `out`.
    pub(crate) fn poll_keying(
        &mut self,
        now: Time,
        out: &mut [u8],
    ) -> Option<(usize, Destination)> {
        while let Some(index) = self.scheduler.keying.pop_due(now) {
            let Some(slot) = self.qps.slot(index) else {
                continue;
            };
            let QpSlot {
                qp,
                seal,
                datagrams,
                ..
            } = slot;
            if let Some(datagrams) = datagrams.as_deref_mut() {
                let next = datagrams.next_offer(now).filter(|_| qp.state().receives());
                self.scheduler.keying.set(index, datagrams.due(now));
                let Some((to, offer)) = next else {
                    // What waits for the keys may have waited long enough.
                    self.change(index, now).settle();
                    continue;
                };
                return Some((self.air.emit(&air::key(&offer), out), to));
            }
            let Some(seal) = seal else {
                continue;
            };
            if !qp.state().receives() {
                continue;
            }
            let next = seal.next_key_offer(now, qp.qpn(), qp.attributes().dest_qpn);
            self.scheduler.keying.set(index, seal.due(now));
            let path = &qp.attributes().path;
            let is_there = self.gsi.as_ref().is_none_or(|gsi| {
                let asked_by =
                    gsi.manager
                        .has_answered(qp.qpn(), path.gid, qp.attributes().dest_qpn);
                asked_by != Some(false)
            });
            if !is_there && next.as_ref().is_some_and(|offer| offer.asks) {
                // The request may be forged. The peer offers its key itself, which is answered.
                continue;
            }
            let Some(offer) = next else {
                // What waits for the keys may have waited long enough.
                self.change(index, now).settle();
                continue;
            };
            let destination = destination(&qp.attributes().path, &self.device.rows);
            return Some((self.air.emit(&air::key(&offer), out), destination));
        }
        None
    }

    /// Takes an offer of a key.
    pub(crate) fn take_key(&mut self, now: Time, arrival: &Arrival, offer: &KeyOffer) {
        let secret = self
            .device
            .secret
            .as_ref()
            .map_or(&[][..], Secret::of_sessions);
        let mut rows = self.device.rows.iter();
        let row = rows.position(|row| *row == Some(arrival.destination));
        let taken = self.qps.find(offer.receiver).and_then(|index| {
            let slot = self.qps.slot(index)?;
            if let Some(datagrams) = slot.datagrams.as_deref_mut() {
                let name = Name {
                    local: arrival.destination,
                    remote: arrival.source,
                    number: offer.sender,
                };
                let from = (name, answer_to(arrival, row? as u8));
                let is_new = datagrams.take(from, offer, secret, now, &mut self.random)?;
                self.scheduler.keying.set(index, datagrams.due(now));
                return Some((index, is_new));
            }
            let is_peer = slot.accepts(arrival.source, arrival.destination)
                && slot.qp.attributes().dest_qpn == offer.sender;
            let seal = slot.seal.as_deref_mut().filter(|_| is_peer)?;
            let is_new = seal.take(offer, secret)?;
            self.scheduler.keying.set(index, seal.due(now));
            Some((index, is_new))
        });
        match taken {
            Some((index, true)) => {
                self.counters.count(EngineCounter::SealsAgreed);
                self.air.ask_sealed(&mut self.qps, index, now);
                self.change(index, now).settle();
            }
            Some((_, false)) => {}
            None => self.counters.count(EngineCounter::DropAir),
        }
    }

    /// Appends to a datagram for queue pair 1 (BTH to payload) what shows that it comes from a host
    /// that knows the secret, if there is one. Returns its length then.
    pub(crate) fn sign(&self, packet: &mut [u8], len: usize, to: &Destination) -> usize {
        let row = self.device.rows.get(usize::from(to.source_index)).copied();
        let (Some(secret), Some(from)) = (&self.device.secret, row.flatten()) else {
            return len;
        };
        let mad = &packet[len - MAD_LEN..len];
        let tag = secret.tag(Gid::from(from), Gid::from(to.address), mad);
        packet[len..len + TAG_LEN].copy_from_slice(&tag);
        len + TAG_LEN
    }

    /// The datagram in the payload of a packet to queue pair 1; `None` if it is not of a host that
    /// knows the secret.
    pub(crate) fn check_signed<'a>(
        &self,
        arrival: &Arrival,
        payload: &'a [u8],
    ) -> Option<&'a [u8]> {
        let Some(secret) = &self.device.secret else {
            return Some(payload);
        };
        let (from, to) = (arrival.source, arrival.destination);
        secret.check(Gid::from(from), Gid::from(to), payload)
    }

    /// The peer has sealed a packet: it is there, as its last word of connection management would
    /// say (IBTA 12.9.7.2). From which port it comes decides nothing here.
    #[inline]
    fn note_authentic(&mut self, index: QpIndex, now: Time) {
        let slot = self.qps.slot(index);
        if let Some(QpSlot { qp, seal, .. }) = slot
            && let Some(seal) = seal
            && seal.note_heard()
            && let Some(gsi) = &mut self.gsi
        {
            gsi.data_arrived(now, qp.qpn());
        }
    }
}

impl Receiving<'_> {
    /// Takes a sealed packet.
    #[inline(never)] // packets in the clear do not pay for it
    pub(crate) fn receive_sealed(&mut self, now: Time, received: &Received<'_>) {
        let Some(number) = sealed_number(received.bytes) else {
            return self.state.counters.count(EngineCounter::DropTruncated);
        };
        let Some(index) = self.state.qps.find(number) else {
            return self.receive_unknown(now, received, number);
        };
        let Some(slot) = self.state.qps.slot(index) else {
            return;
        };
        if slot.datagrams.is_some() {
            return self.receive_sealed_datagram(index, now, received);
        }
        if !slot.accepts(received.source, received.destination) {
            return self.state.counters.count(EngineCounter::DropBadSource);
        }
        let mut opened = std::mem::take(&mut self.state.opened);
        let mut next = Some(received.bytes);
        while let Some(packet) = next {
            match self.open(index, packet, &mut opened) {
                Ok(len) => {
                    self.state.note_authentic(index, now);
                    self.receive_for(index, now, &alone(received, &opened[..len]));
                }
                Err(reason) => self.state.counters.count(reason),
            }
            // Packets behind it have the same origin.
            next = received.following.and_then(|following| {
                let packet = following.peek().filter(|packet| is_sealed(packet));
                let packet = packet.filter(|packet| sealed_number(packet) == Some(number))?;
                following.take();
                Some(packet)
            });
        }
        self.state.opened = opened;
    }

    /// Opens a packet of a connection. Returns its length, or why it is dropped.
    #[inline(always)]
    fn open(
        &mut self,
        index: QpIndex,
        packet: &[u8],
        opened: &mut [u8],
    ) -> Result<usize, EngineCounter> {
        let slot = self.state.qps.slot(index);
        let seal = slot.and_then(|slot| slot.seal.as_deref_mut());
        let seal = seal.ok_or(EngineCounter::DropUnsealed)?;
        let session = seal.session().ok_or(EngineCounter::DropUnkeyed)?;
        let len = session.open(packet, opened);
        len.ok_or(EngineCounter::DropUnsealed)
    }

    /// Takes a sealed packet for a queue pair of datagrams.
    fn receive_sealed_datagram(&mut self, index: QpIndex, now: Time, received: &Received<'_>) {
        let slot = self.state.qps.slot(index);
        let Some(datagrams) = slot.and_then(|slot| slot.datagrams.as_deref_mut()) else {
            return;
        };
        let mut opened = std::mem::take(&mut self.state.opened);
        match datagrams.open(received, &mut opened, now) {
            Ok((len, number)) => {
                let bytes = &opened[..len];
                self.receive_datagram_of(index, now, &alone(received, bytes), number);
            }
            Err(Unopened::NoKeys) => self.state.counters.count(EngineCounter::DropUnkeyed),
            Err(Unopened::Forged) => self.state.counters.count(EngineCounter::DropUnsealed),
        }
        self.state.opened = opened;
    }
}

/// Where an offer goes that answers one.
fn answer_to(arrival: &Arrival, source_index: u8) -> Destination {
    Destination {
        address: arrival.source,
        source_index,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    }
}

/// The queue pair that a sealed packet is for.
fn sealed_number(packet: &[u8]) -> Option<Qpn> {
    let &[a, b, c] = packet.get(5..8)?.first_chunk::<3>()?;
    Some(Qpn::new(u32::from_be_bytes([0, a, b, c])))
}

/// A packet as received, with other bytes and without those that follow it.
fn alone<'a>(received: &Received<'_>, bytes: &'a [u8]) -> Received<'a> {
    Received {
        bytes,
        following: None,
        ..*received
    }
}
