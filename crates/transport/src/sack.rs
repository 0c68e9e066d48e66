//! Selective acknowledgement: ACK packets that say what is missing, by a header behind the AETH ([`Seth`]), for peers that repeat
//! selectively without reports.
//!
//! An ACK leaves when the peer asks for one, when a packet comes again, and at once when packets are newly missing. What is
//! missing is sent again as [`Repair`](crate::repair::Repair) says; the round trip is measured by what is acknowledged.

use std::time::Duration;

use airdma_wire::{Psn, Qpn, SETH_RANGES_MAX, Seth, SethRange, emit_seth};

use crate::attributes::QpAttributes;
use crate::counter::Counter;
use crate::host::Host;
use crate::queue_pair::Acknowledgement;
use crate::reorder::{PsnRange, Reorder};
use crate::replies::{Peer, emit_acknowledge};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::time::Time;

/// A peer that says by ACKs what is missing says so at once; but machines are busy.
const ACK_WITHIN: Duration = Duration::from_millis(1);

impl Responder {
    /// Owes an ACK that says what is missing, if that is how the peer is told.
    pub(crate) fn owe_sack(&mut self) {
        let by_acks = |reorder: &Reorder| reorder.tells_by_acks();
        if self.reorder.as_deref().is_some_and(by_acks) {
            self.replies.acknowledge(self.latest(), self.msn);
        }
    }

    /// PSN of the last packet before the expected one.
    fn latest(&self) -> Psn {
        self.expected.add(u32::MAX)
    }

    /// Writes the next reply if it is an ACK that says what is missing.
    pub(crate) fn poll_sack<H: Host>(
        &mut self,
        peer: &Peer,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<usize> {
        let latest = (self.latest(), self.msn);
        let reorder = self.reorder.as_mut();
        let reorder = reorder.filter(|reorder| reorder.tells_by_acks())?;
        let (psn, msn) = self.replies.take_acknowledgement(latest)?;
        let len = emit_acknowledge(psn, msn, peer, out);
        let from = psn.add(1);
        let missing = reorder.missing(self.expected, self.gap_reported);
        let ranges = missing.map(|range| SethRange {
            first: range.first.distance_from(from) as u16,
            packets: range.packets as u16,
        });
        let len = len + emit_seth(ranges, &mut out[len..]);
        reorder.told();
        host.count(Counter::AcksSent);
        Some(len)
    }
}

impl Requester {
    /// Takes an ACK that says what is missing from `expected` on.
    pub(crate) fn handle_sack<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        expected: Psn,
        seth: Seth<'_>,
        host: &mut H,
    ) {
        let mut missing = [PsnRange {
            first: Psn::default(),
            packets: 0,
        }; SETH_RANGES_MAX];
        let mut count = 0;
        for (range, place) in seth.ranges().zip(&mut missing) {
            *place = PsnRange {
                first: expected.add(range.first.into()),
                packets: range.packets.into(),
            };
            count += 1;
        }
        let sequence = self.sequence_of(expected);
        let Some(repair) = &mut self.repair else {
            return;
        };
        if let Some(sequence) = sequence.filter(|sequence| *sequence <= self.sent_max) {
            repair.take_timing(sequence, now);
        }
        let told = Acknowledgement {
            expected,
            missing: &missing[..count],
            rtt: repair.measured_rtt(),
            told_within: ACK_WITHIN,
        };
        self.handle_acknowledgement(now, attributes, qpn, &told, host);
    }
}
