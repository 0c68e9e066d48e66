//! Retransmission: the requester's half of selective repeat.
//!
//! The peer reports its progress and the missing packets. Exactly those are retransmitted, once in
//! a round trip: an earlier report of the same packet was made before the retransmission arrived. A
//! retransmission was lost if a later retransmission has arrived (as in RFC 8985 2; by 6.2 there,
//! that one must not have arrived so soon that it was the original). If nothing is received for two
//! round trips and the time that the peer may wait before it reports, the last packet is sent again
//! as a probe, to elicit a report (as TCP's tail loss probe, RFC 8985 7). When the timer of the
//! connection expires, everything is retransmitted (IBTA 9.7.6.1.3); since the peer reports now and
//! then, it expires no sooner than [`Repair::timeout_min`].
//!
//! Missing responses to READs and atomics show at this end by later ones, whose data is placed
//! already; this module notes that they arrived. Missing ones are requested again in the same way,
//! for a READ from the missing part on. That the peer has a request says nothing about its
//! response; and as long as responses to retransmitted requests arrive, those behind them are in
//! flight.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::memory::Kept;
use super::{AHEAD_MAX, Acknowledgement, ReorderMemory};
use crate::time::Time;
use airdma_wire::{Packet, Psn};

mod again;
mod packet_bits;

use again::Again;
use packet_bits::PacketBits;

/// Assumed round trip before the first measurement.
const RTT_START: Duration = Duration::from_millis(5);
/// Least round trip: a peer that lies about how long it held a ping does not cause endless
/// retransmissions.
const RTT_MIN: Duration = Duration::from_micros(500);
/// Greatest round trip: longer ones are those of a peer that was stopped.
const RTT_MAX: Duration = Duration::from_secs(2);
/// Assumed delay of the peer's reports before it is known.
const TOLD_WITHIN_START: Duration = Duration::from_millis(1);
const PROBE_BACKOFF_MAX: u8 = 6;
/// Number of searches in a round trip for lost responses among those requested again.
const LOOKS_PER_RTT: u32 = 4;
/// Delay of a report that was asked for.
const ASKED_WITHIN: Duration = Duration::from_millis(1);
/// Least timer of the connection; it also leaves the peer twice the time that it may wait before it
/// reports.
const TIMEOUT_MIN: Duration = Duration::from_millis(40);

/// Retransmissions of one packet after which it counts as too long for the path, if it is long.
const STUCK_REPEATS: i16 = 3;
/// The same where a long packet behind it has arrived: the path was wide, and may have become
/// narrow.
const STUCK_REPEATS_WIDE: i16 = 8;
/// Silence of a peer before it may be the path that is at fault.
const STUCK_SILENT_MIN: Duration = Duration::from_millis(250);

/// What is in flight, as the requester has it.
pub(crate) struct Flight {
    /// PSN of the oldest packet that is not acknowledged.
    pub(crate) psn: Psn,
    /// Sequence of the same.
    pub(crate) acked: u64,
    /// Sequence of the packet that is sent next.
    pub(crate) next: u64,
    /// Nothing is left to be sent for the first time.
    pub(crate) is_all_sent: bool,
}

/// What each message needs stands first, in two cache lines: with thousands of queue pairs it comes
/// from memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Repair {
    lost_count: u32,
    probes: u8,
    /// Retransmissions of the oldest packet since [`silent_since`](Self::silent_since), less those
    /// by rewinds before.
    oldest_again: i16,
    /// The peer has reported all before this as executed.
    told: u64,
    probe_at: Option<Time>,
    /// When the oldest packet became that, or the peer was last known not to run.
    silent_since: Time,
    /// Whether a later long packet has arrived since.
    is_wide: bool,
    /// Whether the peer has said since that it has others.
    is_alive: bool,
    /// Whether the peer knows that a report is awaited.
    is_asked: bool,
    answered_count: u32,
    /// A packet whose acknowledgement is timed, by the sequence behind it, and when it left. It
    /// measures the round trip if nothing else does.
    timing: Option<(u64, Time)>,
    measured_rtt: Option<Duration>,
    rtt: Duration,
    /// Time that the peer may take to report, beyond the round trip.
    told_within: Duration,
    /// When packets in flight were retransmitted.
    again: Again,
    /// All bits of `lost` before this sequence are clear.
    clean: u64,
    /// The latest retransmission that has arrived: its time and sequence.
    arrived: Option<(Time, u64)>,
    /// The latest retransmission whose response has arrived.
    answered_again: Option<(Time, u64)>,
    /// Responses to requests retransmitted at the first time have arrived up to that sequence, the
    /// last one at the second time.
    heard: Option<(Time, u64, Time)>,
    /// Missing responses before this were searched; all that arrived out of order are.
    answered_end: u64,
    /// Those of them that are buffered, not placed.
    kept: BTreeMap<u64, Kept>,
    /// End of the last earlier request with the same memory, or 0, by the first sequence of a
    /// request with responses out of order.
    ///
    /// Later posts are never before it, so this stays true.
    in_the_way: BTreeMap<u64, u64>,
    memory: ReorderMemory,
    /// When all missing responses before that were searched.
    looked_at: Time,
    /// Packets that must be retransmitted.
    lost: PacketBits,
    /// Packets whose response arrived out of order and was placed.
    answered: PacketBits,
}

/// The end of what an ordinary message needs.
const USUAL_END: usize = std::mem::offset_of!(Repair, again) + again::USUAL_END;
const _: () = assert!(USUAL_END <= 128);

impl Repair {
    /// Uses `memory` for responses that have to wait.
    pub(crate) fn new(memory: ReorderMemory) -> Self {
        Repair {
            again: Again::new(memory.clone()),
            memory,
            kept: BTreeMap::new(),
            in_the_way: BTreeMap::new(),
            lost: PacketBits::default(),
            lost_count: 0,
            clean: 0,
            arrived: None,
            answered_again: None,
            heard: None,
            rtt: RTT_START,
            told_within: TOLD_WITHIN_START,
            is_asked: false,
            timing: None,
            measured_rtt: None,
            probe_at: None,
            probes: 0,
            told: 0,
            answered: PacketBits::default(),
            answered_count: 0,
            answered_end: 0,
            looked_at: Time::ZERO,
            oldest_again: 0,
            is_wide: false,
            silent_since: Time::ZERO,
            is_alive: false,
        }
    }

    pub(crate) fn into_memory(self) -> ReorderMemory {
        self.memory
    }

    /// Clears everything; nothing before `acked` will be retransmitted.
    pub(crate) fn clear(&mut self, acked: u64) {
        self.lost = PacketBits::default();
        self.lost_count = 0;
        self.clean = acked;
        self.probe_at = None;
        self.timing = None;
        self.answered = PacketBits::default();
        self.answered_count = 0;
        self.answered_end = acked;
        self.kept.clear();
    }

    /// Notes that a response was placed out of order. Returns the sequence from which unnoticed
    /// earlier ones may be missing.
    ///
    /// That is where the last search ended, or the oldest (`acked`) if this one fills a gap, as
    /// others that were requested with it should have. The full search runs only a few times in a
    /// round trip: a peer that answers backwards fills a gap with each packet.
    pub(crate) fn note_answered(&mut self, sequence: u64, acked: u64, now: Time) -> u64 {
        self.answered.set(sequence);
        self.answered_count += 1;
        self.remove(sequence);
        self.look_before(sequence, sequence + 1, acked, now)
    }

    /// Notes that a response out of order could not be used: it is missing like those before it.
    ///
    /// Returns what [`note_answered`](Self::note_answered) would. A later response reveals it.
    pub(crate) fn note_dropped(&mut self, sequence: u64, acked: u64, now: Time) -> u64 {
        self.look_before(sequence, sequence, acked, now)
    }

    fn look_before(&mut self, sequence: u64, end: u64, acked: u64, now: Time) -> u64 {
        self.is_alive = true;
        self.note_heard(sequence, now);
        let looked_to = self.answered_end.max(acked);
        self.answered_end = looked_to.max(end);
        if sequence >= looked_to {
            return looked_to;
        }
        if now.duration_since(self.looked_at) < self.rtt / LOOKS_PER_RTT {
            return sequence;
        }
        self.looked_at = now;
        acked
    }

    /// Buffers a response until its turn, as it cannot be placed yet. False without memory for it.
    pub(crate) fn keep(&mut self, sequence: u64, packet: &Packet<'_>) -> bool {
        let kept = Kept::new(&self.memory, packet);
        let has_room = kept.is_some();
        self.kept.extend(kept.map(|kept| (sequence, kept)));
        has_room
    }

    /// Whether a response to the request that begins at `first` has to wait for an earlier one with
    /// the same memory.
    ///
    /// `find` returns where the last such request ends. That search is long, so it runs once for
    /// each request: a peer could otherwise cause it with each packet.
    pub(crate) fn has_to_wait(
        &mut self,
        first: u64,
        acked: u64,
        find: impl FnOnce() -> Option<u64>,
    ) -> bool {
        while let Some(oldest) = self.in_the_way.first_entry()
            && *oldest.key() < acked
        {
            oldest.remove();
        }
        let end = self.in_the_way.entry(first);
        acked < *end.or_insert_with(|| find().unwrap_or(0))
    }

    /// Takes the buffered response of `sequence`, whose turn it is.
    pub(crate) fn take_kept(&mut self, sequence: u64) -> Option<Kept> {
        self.kept.remove(&sequence)
    }

    /// Notes that a response arrived: those behind it are still in flight.
    pub(crate) fn note_heard(&mut self, sequence: u64, now: Time) {
        if let Some(at) = self.sent_again_at(sequence) {
            self.heard = Some((at, sequence, now));
            if now.duration_since(at) >= RTT_MIN {
                self.answered_again = self.answered_again.max(Some((at, sequence)));
            }
        }
    }

    pub(crate) fn is_answered(&self, sequence: u64) -> bool {
        self.answered.is_set(sequence)
    }

    /// Whether the response of `sequence`, whose turn it is, has arrived out of order.
    pub(crate) fn take_answered(&mut self, sequence: u64) -> bool {
        let is_answered = self.answered.clear(sequence);
        self.answered_count -= u32::from(is_answered);
        is_answered
    }

    /// Whether responses have arrived out of order: then the oldest one is missing.
    pub(crate) fn answers_wait(&self) -> bool {
        self.answered_count > 0
    }

    /// Times a packet that asks for an acknowledgement and left for the first time. One at a time
    /// is timed (RFC 6298 3).
    pub(crate) fn time(&mut self, end: u64, now: Time) {
        self.timing.get_or_insert((end, now));
    }

    /// Drops all before `sequence`, which was acknowledged.
    pub(crate) fn take_timing(&mut self, sequence: u64, now: Time) {
        if let Some((_, left)) = self.timing.take_if(|(end, _)| *end <= sequence) {
            let sample = now.duration_since(left).min(RTT_MAX);
            // RFC 6298 2.3.
            let smoothed = |rtt| rtt * 7 / 8 + sample / 8;
            self.measured_rtt = Some(self.measured_rtt.map_or(sample, smoothed));
        }
    }

    pub(crate) fn measured_rtt(&self) -> Duration {
        self.measured_rtt.unwrap_or(RTT_START)
    }

    pub(crate) fn set_rtt(&mut self, rtt: Duration, told_within: Duration) {
        self.rtt = rtt.max(RTT_MIN);
        self.told_within = told_within;
    }

    /// Takes what the peer says of how far it is: `expected`, the sequence of `told.expected`, and
    /// what is missing. Returns whether packets are newly missing.
    pub(crate) fn take_told(
        &mut self,
        now: Time,
        flight: &Flight,
        expected: u64,
        told: &Acknowledgement<'_>,
    ) -> bool {
        let Flight {
            psn, acked, next, ..
        } = *flight;
        self.note_told(expected);
        self.set_rtt(told.rtt, told.told_within);
        let end = next.min(acked + u64::from(AHEAD_MAX));
        // Ranges come in order: each packet is visited twice at most, whatever a hostile peer
        // reports.
        let ranges = || {
            told.missing.iter().scan(expected, |from, range| {
                let first = i64::from(range.first.distance_from(psn));
                let end = end.max(*from);
                let first = acked.saturating_add_signed(first).clamp(*from, end);
                *from = first.saturating_add(range.packets.into()).min(end);
                Some(first..*from)
            })
        };
        self.is_alive = !told.missing.is_empty();
        // What follows the last range is unknown.
        let mut seen = expected;
        for missing in ranges() {
            self.note_arrived(seen..missing.start, now);
            seen = missing.end;
        }
        let mut is_new = false;
        for sequence in ranges().flatten() {
            is_new |= self.note_missing(sequence, acked, now);
        }
        if acked < next {
            self.put_off_probe(now, flight.is_all_sent, acked);
        }
        is_new
    }

    /// Notes that the peer reported all before `sequence` as executed.
    pub(crate) fn note_told(&mut self, sequence: u64) {
        self.told = self.told.max(sequence);
    }

    pub(crate) fn told(&self) -> u64 {
        self.told
    }

    /// Time that a response may take without any loss.
    pub(crate) fn timeout_min(&self) -> Duration {
        self.rtt * 2 + TIMEOUT_MIN.max(self.told_within * 2)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lost_count == 0
    }

    /// Notes that the peer has received these.
    pub(crate) fn note_arrived(&mut self, sequences: Range<u64>, now: Time) {
        if self.again.is_empty() {
            return;
        }
        for sequence in sequences {
            if let Some(at) = self.again.at(sequence)
                && now.duration_since(at) >= RTT_MIN
            {
                self.arrived = self.arrived.max(Some((at, sequence)));
            }
        }
    }

    fn sent_again_at(&self, sequence: u64) -> Option<Time> {
        self.again.at(sequence)
    }

    /// Notes that a packet is missing at the peer; `acked` is the oldest unacknowledged one.
    ///
    /// False if that was known, or if the packet may still arrive.
    pub(crate) fn note_missing(&mut self, sequence: u64, acked: u64, now: Time) -> bool {
        let may_come = self.sent_again_at(sequence).is_some_and(|at| {
            now.duration_since(at) < self.patience() && Some((at, sequence)) > self.arrived
        });
        !may_come && self.add(sequence, acked)
    }

    /// Notes that the response to a packet is missing here; otherwise as
    /// [`note_missing`](Self::note_missing).
    pub(crate) fn note_missing_answer(&mut self, sequence: u64, acked: u64, now: Time) -> bool {
        let may_come = self.sent_again_at(sequence).is_some_and(|at| {
            let heard = self.heard.filter(|&(of, to, _)| of == at && to < sequence);
            let since = heard.map_or(at, |(.., last)| last);
            now.duration_since(since) < self.patience()
                && Some((at, sequence)) > self.answered_again
        });
        !may_come && self.add(sequence, acked)
    }

    /// Time to wait for the effect of a retransmission.
    fn patience(&self) -> Duration {
        self.rtt + self.rtt / 4
    }

    /// Sets the bit of a packet; false if it was set.
    fn add(&mut self, sequence: u64, acked: u64) -> bool {
        self.forget_before(acked);
        let is_new = self.lost.set(sequence);
        self.lost_count += u32::from(is_new);
        is_new
    }

    /// The first packet to retransmit, from `acked` on.
    pub(crate) fn next(&mut self, acked: u64) -> Option<u64> {
        self.forget_before(acked);
        if self.lost_count == 0 {
            return None;
        }
        self.lost.first_from(acked)
    }

    /// Notes that `packets` packets were retransmitted; `acked` is the oldest.
    pub(crate) fn sent(&mut self, first: u64, packets: u32, acked: u64, now: Time) {
        self.oldest_again = (self.oldest_again).saturating_add(i16::from(first == acked));
        // An acknowledgement that waits for missing packets says nothing about the round trip
        // (Karn).
        self.timing = None;
        let sequences = first..first + u64::from(packets);
        self.again.note(sequences.clone(), acked, now);
        for sequence in sequences {
            self.remove(sequence);
        }
    }

    fn forget_before(&mut self, acked: u64) {
        let from = self.clean.max(acked.saturating_sub(u64::from(AHEAD_MAX)));
        if self.lost_count > 0 {
            for sequence in from..acked {
                self.remove(sequence);
            }
        }
        self.clean = self.clean.max(acked);
    }

    fn remove(&mut self, sequence: u64) {
        self.lost_count -= u32::from(self.lost.clear(sequence));
    }

    /// Puts off the probe after a sign of the peer, or the first request for a report.
    ///
    /// A peer that has executed what was not answered answers now, though, so its probe stays.
    pub(crate) fn put_off_probe(&mut self, now: Time, is_asked: bool, acked: u64) {
        self.again.forget_before(acked);
        if self.told <= acked || self.probe_at.is_none() {
            self.restart_probe(now, is_asked);
        }
    }

    /// Notes that another packet is the oldest.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Time) {
        self.oldest_again = 0;
        self.is_wide = false;
        self.silent_since = now;
        self.is_alive = false;
    }

    /// Notes that the process at the other end does not run, to which the oldest packet was sent
    /// `repeats` times by rewinds: nothing until now says anything of the path.
    pub(crate) fn note_excuse(&mut self, repeats: u8, now: Time) {
        self.silent_since = now;
        self.oldest_again = -i16::from(repeats);
        self.is_alive = false;
    }

    /// Notes that a long packet behind the oldest one has arrived.
    pub(crate) fn note_wide_path(&mut self) {
        self.is_wide = true;
    }

    /// Whether a long packet behind the oldest one would be news.
    pub(crate) fn may_be_narrow(&self) -> bool {
        self.oldest_again != 0 && !self.is_wide
    }

    /// Whether the oldest packet, which was sent `repeats` times by rewinds as well, does not
    /// arrive while others may: the peer says that it has others, or the silence is long.
    pub(crate) fn is_stuck(&self, repeats: u8, now: Time) -> bool {
        let again = self.oldest_again.saturating_add(repeats.into());
        let has_waited = now.duration_since(self.silent_since) >= STUCK_SILENT_MIN;
        let enough = if self.is_wide {
            STUCK_REPEATS_WIDE
        } else {
            STUCK_REPEATS
        };
        again >= enough && (self.is_alive || has_waited)
    }

    /// Restarts the probe: packets are in flight, and there was progress.
    pub(crate) fn restart_probe(&mut self, now: Time, is_asked: bool) {
        self.probes = 0;
        self.is_asked = is_asked;
        self.probe_at = Some(now + self.probe_timeout());
    }

    /// Stops the probe: nothing is in flight.
    pub(crate) fn stop_probe(&mut self) {
        self.again.forget_before(u64::MAX);
        self.probe_at = None;
    }

    pub(crate) fn probe_at(&self) -> Option<Time> {
        self.probe_at
    }

    /// Whether a probe is due; the next one is due later.
    pub(crate) fn take_probe(&mut self, now: Time) -> bool {
        if self.probe_at.is_none_or(|at| at > now) {
            return false;
        }
        self.probes = (self.probes + 1).min(PROBE_BACKOFF_MAX);
        self.probe_at = Some(now + self.probe_timeout());
        true
    }

    fn probe_timeout(&self) -> Duration {
        let told_within = if self.is_asked {
            self.told_within.min(ASKED_WITHIN)
        } else {
            self.told_within
        };
        (self.rtt * 2 + told_within) * (1 << self.probes)
    }
}

fn slot(sequence: u64) -> usize {
    (sequence % u64::from(AHEAD_MAX)) as usize
}

#[cfg(test)]
mod tests;
