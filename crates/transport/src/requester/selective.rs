//! The requester's part in selective repeat: what the peer says, and what early answers show, goes
//! to [`Repair`]; what that says is missing is sent again.
//!
//! Answers that come before their turn are placed, and retire their requests in it.

use airdma_wire::{Opcode, Packet, Psn, Seth};

use super::completer::place_answer;
use super::{Entry, Requester, Turn, entry_at, write};
use crate::attributes::QpAttributes;
use crate::completion::Status;
use crate::counter::Counter;
use crate::host::Host;
use crate::queue_pair::View;
use crate::request_packet::RequestPacket;
use crate::selective::sack::{ACK_WITHIN, Missing};
use crate::selective::{AHEAD_MAX, Acknowledgement, Flight, ReorderMemory, Repair};
use crate::time::Time;

impl Requester {
    /// Turns selective repeat on or off.
    pub(crate) fn set_selective(&mut self, memory: Option<&ReorderMemory>) {
        match (&self.repair, memory) {
            (None, Some(memory)) => self.repair = Some(Box::new(Repair::new(memory.clone()))),
            (Some(_), None) => self.repair = None,
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.is_reported = memory.is_some();
    }

    /// Sets how the peer tells its progress: by ACKs, when it is asked, or by reports.
    pub(crate) fn tell_by_acks(&mut self, by_acks: bool) {
        self.is_reported = self.repair.is_some() && !by_acks;
    }

    /// Whether there are packets to retransmit that the peer reported as missing, and nothing
    /// prevents it.
    pub(crate) fn wants_repair(&self) -> bool {
        let missing = |repair: &Repair| !repair.is_empty();
        self.repair.as_deref().is_some_and(missing) && self.not_ready_until.is_none()
    }

    /// The next packet that the peer reported as missing, or a probe.
    pub(super) fn next_repair(&mut self) -> Option<u64> {
        self.repair.as_mut()?.next(self.acked)
    }

    /// Writes that packet.
    ///
    /// The window of the path does not apply: the packet counts as in flight already.
    #[cold]
    pub(super) fn poll_repair<H: Host>(
        &mut self,
        sequence: u64,
        turn: &Turn,
        attributes: &QpAttributes,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<usize> {
        let repair = self.repair.as_mut()?;
        let entry = entry_at(&self.queue, sequence)?;
        let index = u32::try_from(sequence - entry.first).expect("an entry has < 2^32 packets");
        let mut packet = RequestPacket::new(&entry, index, 0);
        repair.sent(sequence, packet.packets, self.acked, turn.now);
        packet.headers.bth.ack_request =
            repair.is_empty() && (turn.credit == 0 || self.next == self.posted);
        packet.headers.bth.psn = self.psn_of(sequence);
        let Ok(end) = write(&entry, &mut packet, turn, attributes, host, out) else {
            // Its memory is gone: it fails when its turn comes again.
            self.rewind(None);
            return self.poll_transmit(turn, attributes, host, out);
        };
        host.count(Counter::Retransmits);
        Some(end)
    }

    /// Handles the peer's report of its progress: `expected` and `missing`, with the round trip to
    /// it.
    pub(crate) fn handle_acknowledgement<H: Host>(
        &mut self,
        now: Time,
        view: View<'_>,
        told: &Acknowledgement<'_>,
        host: &mut H,
    ) {
        let Some(expected) = self.sequence_of(told.expected) else {
            return host.count(Counter::Duplicates);
        };
        if expected > self.sent_max {
            return host.count(Counter::DropGhost);
        }
        // A READ or an atomic is retired by its own response, which may still be in flight.
        self.retire_before(now, view, expected, host);
        let flight = Flight {
            psn: self.psn_of(self.acked),
            acked: self.acked,
            next: self.next,
            is_all_sent: self.next == self.posted,
        };
        let is_wide = self.has_long_behind(view.attributes, told);
        let Some(repair) = &mut self.repair else {
            return;
        };
        if is_wide {
            repair.note_wide_path();
        }
        if repair.take_told(now, &flight, expected, told) {
            self.note_loss();
        }
    }

    /// Whether the peer has a long packet behind the oldest one, which it misses: such packets got
    /// through when that one was sent first.
    fn has_long_behind(&self, attributes: &QpAttributes, told: &Acknowledgement<'_>) -> bool {
        let is_news = self.repair.as_deref().is_some_and(Repair::may_be_narrow);
        // A packet that has arrived ends each range.
        let ends = told
            .missing
            .iter()
            .map(|range| range.first.add(range.packets));
        let mut arrived = ends.filter_map(|end| self.sequence_of(end));
        is_news
            && arrived.any(|sequence| {
                (self.acked + 1..self.sent_max).contains(&sequence)
                    && entry_at(&self.queue, sequence)
                        .is_some_and(|entry| is_long(&entry, sequence, attributes))
            })
    }

    /// Whether packets longer than the path MTU do not get through: the oldest one is, and does not
    /// arrive however often it is sent, to a process that runs.
    pub(crate) fn is_path_narrow(&self, attributes: &QpAttributes, now: Time) -> bool {
        let is_stuck = |repair: &Repair| repair.is_stuck(self.repeats, now);
        let is_cut_long = |entry: Entry| entry.payload > attributes.path_mtu.bytes();
        self.acked < self.sent_max
            && self.repair.as_deref().is_some_and(is_stuck)
            && entry_at(&self.queue, self.acked).is_some_and(is_cut_long)
    }

    /// Whether `expected` can be the peer's progress: neither behind what it has acknowledged, nor
    /// ahead of what was sent.
    pub(crate) fn has_sent_before(&self, expected: Psn) -> bool {
        let sequence = self.sequence_of(expected);
        sequence.is_some_and(|sequence| sequence <= self.sent_max)
    }

    /// Handles an ACK with the packets missing from `expected` on.
    pub(super) fn handle_sack<H: Host>(
        &mut self,
        now: Time,
        view: View<'_>,
        expected: Psn,
        seth: Seth<'_>,
        host: &mut H,
    ) {
        let missing = Missing::parse(expected, seth);
        let sequence = self.sequence_of(expected);
        let Some(repair) = &mut self.repair else {
            return;
        };
        if let Some(sequence) = sequence.filter(|sequence| *sequence <= self.sent_max) {
            repair.take_timing(sequence, now);
        }
        let told = Acknowledgement {
            expected,
            missing: missing.ranges(),
            rtt: repair.measured_rtt(),
            told_within: ACK_WITHIN,
        };
        self.handle_acknowledgement(now, view, &told, host);
    }

    /// Handles a response while an earlier one is missing.
    ///
    /// Its data is placed, unless an earlier request has the same memory, which must end up with
    /// the data of the last one: then it is buffered. The missing ones are requested again. An
    /// error in the response takes effect in its turn.
    #[cold]
    pub(super) fn handle_early_answer<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        sequence: u64,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let (queue, acked) = (&self.queue, self.acked);
        let Some(repair) = &mut self.repair else {
            return;
        };
        let Some(entry) = entry_at(queue, sequence) else {
            return;
        };
        if sequence - acked >= u64::from(AHEAD_MAX) {
            return host.count(Counter::DropEarly);
        }
        if repair.is_answered(sequence) {
            return host.count(Counter::Duplicates);
        }
        let find_in_the_way = || {
            let earlier = queue.partition_point(|other| other.first < entry.first);
            let mut earlier = queue.range(..earlier).rev();
            let last = earlier.find(|other| {
                other.request.operation.lands()
                    && host.share_memory(other.request.slot, entry.request.slot)
            });
            last.map(Entry::end)
        };
        let has_to_wait = entry.request.operation.lands()
            && repair.has_to_wait(entry.first, acked, find_in_the_way);
        let (is_here, why_not) = if has_to_wait {
            (repair.keep(sequence, packet), Counter::DropEarly)
        } else {
            let placed = place_answer(&entry, sequence, packet, host);
            (placed.is_ok(), Counter::DropMalformed)
        };
        let look_from = if is_here {
            if is_long(&entry, sequence, attributes) {
                repair.note_wide_path();
            }
            repair.note_answered(sequence, acked, now)
        } else {
            host.count(why_not);
            repair.note_dropped(sequence, acked, now)
        };
        // The peer executes in order.
        repair.note_told(sequence);
        let awaits = |sequence| {
            entry_at(queue, sequence)
                .is_some_and(|entry| entry.request.operation.is_read_or_atomic())
        };
        let mut is_new = false;
        for earlier in look_from..sequence {
            if !repair.is_answered(earlier) && awaits(earlier) {
                is_new |= repair.note_missing_answer(earlier, acked, now);
            }
        }
        if is_new {
            host.count(Counter::ImpliedNaks);
            self.note_loss();
        }
    }

    /// Handles the oldest response, then those that arrived before it, and what was reported as
    /// executed meanwhile.
    ///
    /// An error is the status of the oldest request.
    pub(super) fn handle_answered<H: Host>(
        &mut self,
        now: Time,
        view: View<'_>,
        host: &mut H,
    ) -> Result<(), Status> {
        loop {
            let told = self.repair.as_ref().map_or(0, |repair| repair.told());
            if told > self.acked {
                self.retire_before(now, view, told, host);
            }
            let acked = self.acked;
            let Some(repair) = &mut self.repair else {
                return Ok(());
            };
            if !repair.take_answered(acked) {
                if repair.answers_wait() {
                    repair.note_missing_answer(acked, acked, now);
                }
                return Ok(());
            }
            if let Some(kept) = repair.take_kept(acked)
                && let Some(entry) = self.queue.front()
            {
                place_answer(entry, acked, &kept.packet(), host)?;
            }
            self.answered(view.qpn, host);
            self.progressed(now, view.attributes);
        }
    }

    /// Whether a response is dropped because it is out of order and its peer has not shown its tag.
    pub(crate) fn refuse_early<H: Host>(&self, packet: &Packet<'_>, host: &mut H) -> bool {
        let bth = &packet.headers.bth;
        if self.repair.is_none() || bth.opcode == Opcode::RcAcknowledge {
            return false;
        }
        let mut all = self.queue.iter();
        let awaits = all.find(|entry| entry.request.operation.is_read_or_atomic());
        let is_early = awaits.is_some_and(|entry| {
            let sequence = self.sequence_of(bth.psn);
            sequence.is_some_and(|sequence| sequence > entry.first.max(self.acked))
        });
        if is_early {
            host.count(Counter::DropEarly);
        }
        is_early
    }
}

/// Whether a packet of a request, or its response, is longer than the path MTU allows.
fn is_long(entry: &Entry, sequence: u64, attributes: &QpAttributes) -> bool {
    let index = u32::try_from(sequence - entry.first).expect("an entry has < 2^32 packets");
    entry.filled(index) > attributes.path_mtu.bytes()
}
