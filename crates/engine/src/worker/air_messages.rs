//! Messages of air mode that arrive, and the queue pairs that they are about.

use super::state::WorkerState;
use crate::air::{Air, AirView, RANGES_MAX};
use crate::counter_names::EngineCounter;
use crate::index::QpIndex;
use airdma_transport::{Acknowledgement, Arrival, PsnRange, Time};
use airdma_wire::air::{self, Message, Record, Records, Report};
use airdma_wire::mad::GSI_QKEY;
use airdma_wire::{Opcode, Packet, Psn};
use std::time::Duration;

impl WorkerState {
    /// Calls air mode with the parts of the worker that it may touch, and puts the queue pairs that
    /// it wakes in line.
    pub(crate) fn with_air<R>(&mut self, call: impl FnOnce(&mut Air, &mut AirView<'_>) -> R) -> R {
        let mut wakes = std::mem::take(&mut self.wakes);
        let mut view = AirView {
            qps: &mut self.qps,
            peers: &mut self.scheduler.peers,
            counters: &mut self.counters,
            rows: &self.device.rows,
            manager: self.gsi.as_ref().map(|gsi| &gsi.manager),
            wakes: &mut wakes,
        };
        let result = call(&mut self.air, &mut view);
        for index in wakes.drain(..) {
            self.scheduler.join(&mut self.qps, index);
        }
        self.wakes = wakes;
        result
    }

    /// Takes a datagram to queue pair 1, or one that came sealed by the `carrier`. False if it is
    /// no message of air mode; one that is malformed is counted.
    pub(crate) fn receive_air(
        &mut self,
        now: Time,
        arrival: &Arrival,
        packet: &Packet<'_>,
        carrier: Option<QpIndex>,
    ) -> bool {
        if packet.payload.get(1) != Some(&air::AIR_CLASS) {
            return false;
        }
        let secret = packet
            .headers
            .deth
            .is_some_and(|deth| deth.qkey == GSI_QKEY);
        let is_datagram = packet.headers.bth.opcode == Opcode::UdSendOnly && secret;
        let offers = self.air.offers_more();
        match air::parse(packet.payload) {
            Ok(Message::Key(offer)) if is_datagram && carrier.is_none() => {
                self.take_key(now, arrival, &offer);
            }
            Ok(Message::Hello(hello, receiver)) if is_datagram && offers => {
                self.with_air(|air, view| {
                    air.take_hello(view, now, arrival, &hello, receiver, carrier);
                });
            }
            Ok(Message::Report(report, records)) if is_datagram && offers => {
                self.take_report(now, arrival, &report, records, carrier);
            }
            Ok(_) | Err(_) => self.counters.count(EngineCounter::DropAir),
        }
        true
    }

    fn take_report(
        &mut self,
        now: Time,
        arrival: &Arrival,
        report: &Report,
        records: Records<'_>,
        carrier: Option<QpIndex>,
    ) {
        let taken = self.with_air(|air, view| air.take_report(view, now, arrival, report, carrier));
        let Some(taken) = taken else {
            return;
        };
        let mut seen = [None; air::RECORDS_MAX];
        for (record, place) in records.zip(0..) {
            // Each is work; a process tells once of each queue pair.
            if seen.contains(&Some(record.qpn)) {
                self.counters.count(EngineCounter::DropAir);
                continue;
            }
            seen[place] = Some(record.qpn);
            self.take_record(now, arrival, &record, (taken.rtt, taken.told_within));
        }
        self.with_air(|air, view| air.take_feedback(view, &taken, report, now));
    }

    fn take_record(
        &mut self,
        now: Time,
        arrival: &Arrival,
        record: &Record<'_>,
        (rtt, told_within): (Duration, Duration),
    ) {
        let mut missing = [PsnRange {
            first: Psn::default(),
            packets: 0,
        }; RANGES_MAX];
        let mut count = 0;
        for ((first, packets), place) in record.missing().zip(&mut missing) {
            *place = PsnRange { first, packets };
            count += 1;
        }
        let told = Acknowledgement {
            expected: record.expected,
            missing: &missing[..count],
            rtt,
            told_within,
        };
        let Some(index) = self.qps.find(record.qpn) else {
            return self.counters.count(EngineCounter::DropAir);
        };
        let slot = self.qps.slot(index);
        if !slot.is_some_and(|slot| slot.accepts(arrival.source, arrival.destination)) {
            return self.counters.count(EngineCounter::DropAir);
        }
        self.change(index, now)
            .call(|qp, host| qp.handle_acknowledgement(now, &told, host));
    }

    /// A CNP came for a queue pair.
    #[cold]
    pub(crate) fn receive_cnp(
        &mut self,
        index: QpIndex,
        now: Time,
        arrival: &Arrival,
        packet: &Packet<'_>,
    ) {
        self.with(index, |qp, host| {
            qp.handle_packet(now, arrival, packet, host)
        });
        let bth = &packet.headers.bth;
        self.with_air(|air, view| air.take_cnp(view, index, now, bth));
    }
}
