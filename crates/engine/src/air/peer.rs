//! State of one peer, and the times of messages to it.

use super::assembly::Assembly;
use super::bundling::Bundling;
use super::directory::Ends;
use super::pace::{OVERHEAD_BYTES, Pace};
use crate::index::QpIndex;
use airdma_transport::rate::Feedback;
use airdma_transport::{Owed, ReorderMemory, Time};
use airdma_wire::Neighbour;
use airdma_wire::air::PAUSE_US;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Round trip before the first measurement.
const RTT_START: Duration = Duration::from_millis(2);
/// Shortest interval between reports to a peer, whatever the round trip: each costs a system call
/// at both ends.
pub(super) const REPORT_INTERVAL_MIN: Duration = Duration::from_micros(100);
/// Allowance for busy machines.
const TOLD_SLACK: Duration = Duration::from_millis(1);
/// Bytes since the last report below which it is sent as soon as possible: a program may wait for
/// each message.
const LIGHT_BYTES: u64 = 8 * 1024;
/// Shortest interval between reports of gaps on a path with rate control.
const GAPS_APART: Duration = Duration::from_millis(20);
/// Shortest interval between those with [`MANY_GAPS`] missing packets, which take half of a
/// report's ranges, or after [`MUCH_BYTES`]: gaps delay all that programs may have in flight.
const MANY_GAPS_APART: Duration = Duration::from_millis(5);
const MANY_GAPS: u32 = 12;
const MUCH_BYTES: u64 = FULL_BYTES / 2;
/// Bytes after which a report is sent at once: half of what may be in flight, at a path MTU of
/// 1,024 bytes.
const FULL_BYTES: u64 = 4 << 20;
const PING_INTERVAL_MIN: Duration = Duration::from_millis(5);
/// Interval of pings if a rate controller sees the queue that matters, and does not need the round
/// trip for it.
const PING_INTERVAL_RARE: Duration = Duration::from_millis(20);
/// Most pings without an answer, and most pings in a round trip.
const PINGS_MAX: usize = 16;
const PINGS_IN_RTT: u32 = 8;
/// Shortest round trip: measurements are no more exact, and a peer that lies about the hold time
/// gains nothing.
const RTT_MIN: Duration = Duration::from_micros(200);
/// Longest round trip: more is that of a stopped peer, or a lie.
const RTT_MAX: Duration = Duration::from_secs(2);

/// Waits for the answer to each repetition of a question. The first is worth an early repetition:
/// until both have agreed, they use RoCEv2. After the last the peer is plain, unless it has agreed
/// and is silent altogether: then it is asked each [`ASK_SILENT`].
pub(super) const HELLO_AGAIN: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
];

/// Time between questions to a peer that has agreed and is silent.
const ASK_SILENT: Duration = Duration::from_secs(1);

/// Most that a report's number is ahead of the last one: no process sends more reports to all its
/// peers while one of them gets none.
const NUMBERS_AHEAD_MAX: u32 = 1 << 20;
/// Time without a report after which the next answer to a Hello resets the expected numbers: before
/// the timers of a connection end it.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// Most questions of a peer without an answer yet: those of one round, so that forged ones take no
/// genuine one's place.
const ASKED_MAX: usize = 64;

/// A question without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asking {
    /// Number of repetitions.
    pub(super) tries: usize,
    pub(super) again_at: Time,
    /// Nonce that its answer must have.
    pub(super) nonce: u64,
}

/// A question of the peer's: the name that it used for us, its instance, and its nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) as_whom: u32,
    pub(super) instance: u64,
    pub(super) nonce: u64,
}

/// Packets from a peer since the first one, or the first after a pause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    began: Time,
    pub(super) latest: Time,
    pub(super) bytes: u64,
    pub(super) marked_bytes: u32,
    pub(super) missed_packets: u32,
    /// Bytes since the last report.
    fresh_bytes: u64,
    /// Packets missed since the last report.
    fresh_missed: u32,
}

impl Arrivals {
    pub(super) fn note(&mut self, now: Time, arrived: Arrived, missed: u32) {
        let pause = Duration::from_micros(PAUSE_US.into());
        if self.bytes == 0 || now.duration_since(self.latest) >= pause {
            *self = Arrivals {
                began: now,
                ..Arrivals::default()
            };
        }
        self.latest = now;
        self.bytes += arrived.bytes;
        self.fresh_bytes += arrived.bytes;
        self.missed_packets = self.missed_packets.wrapping_add(missed);
        self.fresh_missed = self.fresh_missed.saturating_add(missed);
        self.marked_bytes = self.marked_bytes.wrapping_add(arrived.marked_bytes as u32);
    }

    pub(super) fn at_us(&self, now: Time) -> u32 {
        now.duration_since(self.began).as_micros() as u32
    }
}

/// Packets that a queue pair has accepted and not acknowledged to its peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    bytes: u64,
    marked_bytes: u64,
}

impl Arrived {
    /// Counts a packet of `len` bytes, BTH to pad.
    #[inline]
    pub(crate) fn note(&mut self, len: usize, tos: u8) {
        let bytes = len as u64 + OVERHEAD_BYTES;
        self.bytes += bytes;
        // CE (RFC 3168).
        if tos & 3 == 3 {
            self.marked_bytes += bytes;
        }
    }

    #[inline]
    pub(crate) fn has_marks(&self) -> bool {
        self.marked_bytes > 0
    }
}

pub(super) struct AirPeer {
    pub(super) address: Neighbour,
    /// Our address that it knows.
    pub(super) local: Neighbour,
    /// Range of its queue pair numbers. `None` for a host that only has a rate, whatever its
    /// processes.
    pub(super) range: Option<u8>,
    /// Row of `local` in the GID table.
    pub(super) source_index: u8,
    /// Queue pairs connected to it; a free entry has none.
    pub(super) users: BTreeSet<QpIndex>,
    /// Its instance, if it has agreed.
    pub(super) agreed: Option<u64>,
    /// Its instance when it agreed last: it may still use that agreement when it no longer answers.
    pub(super) known: Option<u64>,
    /// Largest payload to it, by its own report; 0 while there are no reports.
    pub(super) long_payload: u32,
    /// Whether it answers READs in packets as long, on request.
    pub(super) answers_long_reads: bool,
    /// Whether long messages may go to it in packets of one length.
    pub(super) takes_equal_lengths: bool,
    /// Whether it accepts packets in pieces.
    pub(super) takes_pieces: bool,
    /// Until when no long packets go either way, because they vanished.
    pub(super) narrow_until: Option<Time>,
    /// Its packet that arrives in pieces.
    pub(super) assembly: Assembly,
    /// Whether ACK packets tell it what is missing; it gets no reports.
    pub(super) is_told_by_acks: bool,
    /// Present while it has agreed to report its buffers, or since it sent a CNP.
    pub(super) pace: Option<Pace>,
    /// Present while both have agreed on bundles, and it sends reports.
    pub(super) bundling: Option<Bundling>,
    /// Whether it accepts bundles and was told that we do, so it may send some.
    pub(super) may_bundle: bool,
    pub(super) asking: Option<Asking>,
    /// Whether another question follows that one: a queue pair was connected since, or the MTU
    /// changed.
    pub(super) asks_once_more: bool,
    /// Time of the last question that a Hello caused.
    pub(super) asked_by_hello: Option<Time>,
    /// Instance of its last answer, if there is nothing to agree on with it.
    pub(super) incompatible: Option<u64>,
    /// Its questions without an answer yet.
    pub(super) asked: VecDeque<Asked>,
    /// Whether it is proven to be there; and whether it must be asked once it is
    /// ([`super::peer_proof`]).
    pub(super) is_proven: bool,
    /// Whether a queue pair connected to it seals: messages are packets of such a connection, and
    /// no others count.
    pub(super) is_sealed: bool,
    pub(super) wants_asking: bool,
    /// Whether a Hello of it named our instance, which no other host knows.
    pub(super) has_spoken: bool,
    /// Buffer for packets of its host out of order.
    pub(super) memory: ReorderMemory,
    /// Queue pairs that owe it an acknowledgement, each once.
    pub(super) owing: VecDeque<QpIndex>,
    pub(super) arrivals: Arrivals,
    report_at: Option<Time>,
    /// Time from which it does not wait for more packets.
    urgent_at: Option<Time>,
    reported_at: Time,
    /// Number and time of the last report.
    number_taken: Option<(u32, Time)>,
    rtt: Option<Duration>,
    /// The last pings, which are the numbers of their reports, with their times; the latest first.
    pings: VecDeque<(u32, Time)>,
    /// Its last ping with its time of arrival, until it is answered.
    pub(super) pong: Option<(u32, Time)>,
}

impl AirPeer {
    /// Whether an unanswered question must be repeated now: not if there is none, or it was
    /// repeated often enough.
    pub(super) fn ask_again(&mut self, now: Time) -> bool {
        let Some(asking) = &mut self.asking else {
            return false;
        };
        let Some(&wait) = HELLO_AGAIN.get(asking.tries) else {
            return false;
        };
        *asking = Asking {
            tries: asking.tries + 1,
            // A question within an answer does not count as a repetition.
            again_at: (now + wait).max(asking.again_at),
            nonce: asking.nonce,
        };
        true
    }

    /// A question that was repeated often enough is repeated later, too.
    pub(super) fn ask_later(&mut self, now: Time) {
        if let Some(asking) = &mut self.asking {
            asking.again_at = now + ASK_SILENT;
        }
    }

    /// Notes its question, for an answer. False if there are too many.
    pub(super) fn note_question(&mut self, asked: Asked) -> bool {
        if self.asked.contains(&asked) {
            return true;
        }
        let has_room = self.asked.len() < ASKED_MAX;
        if has_room {
            self.asked.push_back(asked);
        }
        has_room
    }

    /// Whether an answer carries a question: one that is due, or was sent before.
    pub(super) fn asks_with_answer(&mut self, now: Time) -> bool {
        let is_due = |asking: Asking| asking.tries > 0 || asking.again_at <= now;
        self.asking.is_some_and(is_due) && self.ask_again(now)
    }

    pub(super) fn new(
        (address, local): (Neighbour, Neighbour),
        range: Option<u8>,
        source_index: u8,
        memory: ReorderMemory,
    ) -> Self {
        AirPeer {
            address,
            local,
            range,
            source_index,
            users: BTreeSet::new(),
            agreed: None,
            known: None,
            long_payload: 0,
            answers_long_reads: false,
            takes_equal_lengths: false,
            takes_pieces: false,
            narrow_until: None,
            assembly: Assembly::default(),
            is_told_by_acks: false,
            pace: None,
            bundling: None,
            may_bundle: false,
            asking: None,
            asks_once_more: false,
            asked_by_hello: None,
            incompatible: None,
            asked: VecDeque::new(),
            is_proven: false,
            is_sealed: false,
            wants_asking: false,
            has_spoken: false,
            memory,
            owing: VecDeque::new(),
            arrivals: Arrivals::default(),
            report_at: None,
            urgent_at: None,
            reported_at: Time::ZERO,
            number_taken: None,
            rtt: None,
            pings: VecDeque::new(),
            pong: None,
        }
    }

    /// Its address, and ours.
    pub(super) fn ends(&self) -> Ends {
        (self.address, self.local)
    }

    pub(super) fn rtt(&self) -> Duration {
        self.rtt.unwrap_or(RTT_START)
    }

    /// Whether reports acknowledge its packets.
    pub(super) fn gets_reports(&self) -> bool {
        self.agreed.is_some() && !self.is_told_by_acks
    }

    /// Whether it has agreed to report its buffers.
    pub(super) fn tells_buffers(&self) -> bool {
        self.pace.as_ref().is_some_and(Pace::hears_buffers)
    }

    /// Whether packets to it leave in bundles now.
    pub(super) fn takes_bundles(&self) -> bool {
        self.bundling.as_ref().is_some_and(Bundling::is_on)
    }

    fn has_rare_reports(&self) -> bool {
        self.pace.as_ref().is_some_and(Pace::has_rare_reports)
    }

    /// Longest time beyond the round trip until the peer reports: as long as we would take.
    pub(super) fn told_within(&self) -> Duration {
        if self.has_rare_reports() {
            Feedback::INTERVAL + TOLD_SLACK
        } else {
            TOLD_SLACK
        }
    }

    fn quarter(&self) -> Duration {
        (self.rtt() / 4).min(Feedback::INTERVAL)
    }

    /// Schedules a report at this time, unless an earlier one is due; not too close to the last.
    fn report_by(&mut self, at: Time) -> Time {
        let at = at.max(self.reported_at + REPORT_INTERVAL_MIN);
        let by = self.report_at.map_or(at, |before| before.min(at));
        self.report_at = Some(by);
        by
    }

    /// Schedules a report now. Returns its time.
    pub(super) fn report_now(&mut self, now: Time) -> Time {
        self.report_urgently(now)
    }

    fn report_urgently(&mut self, at: Time) -> Time {
        self.urgent_at = Some(self.urgent_at.map_or(at, |before| before.min(at)));
        self.report_by(at)
    }

    /// Schedules the report of a queue pair's debt. Returns its time.
    pub(super) fn report_owed(&mut self, owed: Owed, now: Time) -> Time {
        let gap = owed.has_gap.then(|| self.report_gap(now));
        // A peer that waits for an answer has nothing else to send: it gets the gaps with the
        // answer.
        let asked = owed.is_asked.then(|| self.report_asked(now));
        let soonest = gap.into_iter().chain(asked).min();
        soonest.unwrap_or_else(|| self.report_soon(now))
    }

    /// Packets are missing, which every arriving packet shows until it is reported. The first ones
    /// are reported at once; among many, a report for each would take more of the air than it
    /// saves. Returns the report's time.
    fn report_gap(&mut self, now: Time) -> Time {
        let apart = if self.has_rare_reports() {
            let arrivals = &self.arrivals;
            let is_much = arrivals.fresh_missed >= MANY_GAPS || arrivals.fresh_bytes >= MUCH_BYTES;
            let apart = if is_much { MANY_GAPS_APART } else { GAPS_APART };
            self.quarter().max(apart)
        } else {
            REPORT_INTERVAL_MIN
        };
        self.report_urgently(now.max(self.reported_at + apart))
    }

    /// The peer waits for an answer, and leaves the air to it. Returns the answer's time.
    fn report_asked(&mut self, now: Time) -> Time {
        self.report_urgently(now.max(self.reported_at + self.quarter()))
    }

    /// Reports what it waits for, if anything, before a message that makes it give up. Returns the
    /// time, if so.
    pub(super) fn report_first(&mut self, now: Time) -> Option<Time> {
        if self.agreed.is_none() || self.owing.is_empty() {
            return None;
        }
        self.urgent_at = Some(now);
        self.report_at = Some(now);
        self.report_at
    }

    /// There is something to report. Returns the report's time.
    pub(super) fn report_soon(&mut self, now: Time) -> Time {
        self.report_by(self.reported_at.max(now) + self.quarter())
    }

    /// The round trip must be measured: returns the time of a report for it, unless one is due
    /// anyway.
    pub(super) fn report_for_ping(&mut self, now: Time) -> Option<Time> {
        if self.agreed.is_none() || self.is_told_by_acks || self.report_at.is_some() {
            return None;
        }
        let at = self.ping_at(now);
        Some(self.report_by(at))
    }

    /// Whether a report must leave now. While many packets come it waits for more: each takes an
    /// access to the air.
    pub(super) fn is_report_due(&mut self, now: Time) -> bool {
        if self.report_at.is_none_or(|at| at > now) {
            return false;
        }
        let full = self.reported_at + Feedback::INTERVAL;
        let fresh = self.arrivals.fresh_bytes;
        let is_beginning = fresh * 2 >= self.arrivals.bytes;
        let is_heavy =
            self.has_rare_reports() && !is_beginning && (LIGHT_BYTES..FULL_BYTES).contains(&fresh);
        let at = full.min(self.urgent_at.unwrap_or(full));
        if is_heavy && now < at {
            self.report_at = Some(at);
            return false;
        }
        true
    }

    /// A report leaves. While packets are in flight the round trip must be measured, and what did
    /// not fit follows at once.
    pub(super) fn reported(&mut self, now: Time, under_way: bool) {
        self.reported_at = now;
        // Queue pairs that did not fit in may wait for it.
        self.urgent_at = (!self.owing.is_empty()).then(|| now + REPORT_INTERVAL_MIN);
        self.arrivals.fresh_bytes = 0;
        self.arrivals.fresh_missed = 0;
        self.report_at = if !self.owing.is_empty() {
            Some(now + REPORT_INTERVAL_MIN)
        } else if under_way {
            Some(self.ping_at(now))
        } else {
            None
        };
    }

    /// Records its agreement with this instance, or that it is plain: another instance than before
    /// needs no report.
    pub(super) fn note_agreed(&mut self, agreed: Option<u64>) {
        if self.agreed != agreed {
            self.number_taken = None;
            self.report_at = None;
            self.owing.clear();
            self.arrivals = Arrivals::default();
        }
        self.agreed = agreed;
        self.known = agreed.or(self.known);
    }

    /// Records the number of its last report, from its answer.
    pub(super) fn note_number(&mut self, number: u32, now: Time) {
        if self.is_silent(now) {
            self.number_taken = Some((number, now));
        }
    }

    /// Whether none of its reports was accepted for long.
    pub(super) fn is_silent(&self, now: Time) -> bool {
        (self.number_taken).is_none_or(|(_, at)| now.duration_since(at) >= SILENCE_MAX)
    }

    /// Accepts a report's number if it is later than all before, but not by so much that it would
    /// silence those that follow.
    pub(super) fn take_number(&mut self, number: u32, now: Time) -> bool {
        let ahead = self
            .number_taken
            .map_or(1, |(taken, _)| number.wrapping_sub(taken));
        let is_taken = (1..=NUMBERS_AHEAD_MAX).contains(&ahead);
        if is_taken {
            self.number_taken = Some((number, now));
        }
        is_taken
    }

    /// Time of the next call.
    pub(super) fn due(&self) -> Option<Time> {
        if self.users.is_empty() {
            return None;
        }
        if !self.asked.is_empty() {
            return Some(Time::ZERO);
        }
        let again_at = self.asking.map(|asking| asking.again_at);
        let report_at = self.report_at.filter(|_| self.agreed.is_some());
        let pace = self.pace.as_ref().and_then(Pace::due);
        [again_at, report_at, pace, self.narrow_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether it needs a call now.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// Whether the next report must be a ping.
    pub(super) fn wants_ping(&self, now: Time) -> bool {
        self.ping_at(now) <= now
    }

    /// Time of that. If the round trip is longer than estimated, the most pings wait for answers,
    /// but not for ever.
    fn ping_at(&self, now: Time) -> Time {
        let Some((_, latest)) = self.pings.front() else {
            return now;
        };
        let at = *latest + self.ping_interval();
        match self.pings.back() {
            Some((_, oldest)) if self.pings.len() >= PINGS_MAX => at.max(*oldest + RTT_MAX),
            Some(_) | None => at,
        }
    }

    pub(super) fn note_ping(&mut self, number: u32, now: Time) {
        self.pings.truncate(PINGS_MAX - 1);
        self.pings.push_front((number, now));
    }

    /// A ping was answered, after the peer had `held` it. Older ones are no longer awaited.
    pub(super) fn take_pong(&mut self, now: Time, number: u32, held: Duration) {
        let place = self.pings.iter().position(|(ping, _)| *ping == number);
        let Some(place) = place else {
            return;
        };
        let (_, left) = self.pings[place];
        // The last one determines when to ask again; it is answered at most once.
        self.pings.truncate(place.max(1));
        if place == 0 {
            self.pings[0].0 = 0;
        }
        let all = now.duration_since(left);
        if let Some(pace) = &mut self.pace {
            pace.take_rtt(now, all, held);
        }
        self.take_rtt(all.saturating_sub(held));
    }

    fn ping_interval(&self) -> Duration {
        let sees_queue = self.pace.as_ref().is_some_and(Pace::sees_queue);
        let least = if sees_queue {
            PING_INTERVAL_RARE
        } else {
            PING_INTERVAL_MIN
        };
        least.max(self.rtt() / PINGS_IN_RTT)
    }

    fn take_rtt(&mut self, raw: Duration) {
        let sample = raw.clamp(RTT_MIN, RTT_MAX);
        // As TCP smooths it (RFC 6298 2.3).
        self.rtt = Some(self.rtt.map_or(sample, |rtt| rtt * 7 / 8 + sample / 8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RateControl;

    #[test]
    fn a_round_trip_is_measured_however_long_it_is() {
        const MS: u64 = 1_000_000;
        for rtt_ms in [1, 20, 100, 300, 1_500] {
            let address = Neighbour::from([192, 0, 2, 1]);
            let mut peer = AirPeer::new((address, address), Some(0), 0, ReorderMemory::new(0));
            let mut under_way = VecDeque::new();
            // Packets are in flight all the time.
            for ms in 0..rtt_ms + 2 {
                let now = Time::from_nanos(ms * MS);
                if peer.wants_ping(now) {
                    peer.note_ping(ms as u32 + 1, now);
                    under_way.push_back((ms + rtt_ms, ms as u32 + 1));
                }
                while let Some((_, number)) = under_way.pop_front_if(|(at, _)| *at <= ms) {
                    peer.take_pong(now, number, Duration::ZERO);
                }
            }
            assert_eq!(peer.rtt, Some(Duration::from_millis(rtt_ms)));
        }
    }

    /// A peer that sent many packets, and got a report at 50 ms.
    fn busy() -> AirPeer {
        let address = Neighbour::from([192, 0, 2, 1]);
        let mut peer = AirPeer::new((address, address), Some(0), 0, ReorderMemory::new(0));
        peer.pace = Pace::new(RateControl::Buffers, 1024, Time::ZERO);
        arrives(&mut peer, 49_000, 8 * FULL_BYTES);
        assert!(peer.is_report_due(at(50_000)));
        peer.reported(at(50_000), false);
        peer
    }

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1_000)
    }

    fn arrives(peer: &mut AirPeer, at_us: u64, bytes: u64) {
        let arrived = Arrived {
            bytes,
            marked_bytes: 0,
        };
        peer.arrivals.note(at(at_us), arrived, 0);
        peer.report_soon(at(at_us));
    }

    /// A packet arrives, and the one before it is missing.
    fn one_arrives(peer: &mut AirPeer, at_us: u64) {
        let arrived = Arrived {
            bytes: 1024,
            marked_bytes: 0,
        };
        peer.arrivals.note(at(at_us), arrived, 1);
        peer.report_gap(at(at_us));
    }

    /// Time of the report, in microseconds, if it is polled often.
    fn told_at(peer: &mut AirPeer) -> Option<u64> {
        (0..1_000)
            .map(|n| 50_000 + n * 100)
            .find(|&us| peer.is_report_due(at(us)))
    }

    #[test]
    fn what_comes_is_told_rarely_where_each_report_takes_from_it() {
        let mut peer = busy();
        arrives(&mut peer, 50_100, 2 * LIGHT_BYTES);
        assert_eq!(told_at(&mut peer), Some(90_000));
        let mut peer = busy();
        arrives(&mut peer, 50_100, LIGHT_BYTES - 1);
        assert_eq!(told_at(&mut peer), Some(50_600), "somebody may wait for it");
        let mut peer = busy();
        arrives(&mut peer, 50_100, LIGHT_BYTES);
        arrives(&mut peer, 51_100, FULL_BYTES);
        assert_eq!(told_at(&mut peer), Some(50_600), "it is much");
    }

    #[test]
    fn in_the_beginning_each_doubling_is_told() {
        let address = Neighbour::from([192, 0, 2, 1]);
        let mut peer = AirPeer::new((address, address), Some(0), 0, ReorderMemory::new(0));
        peer.pace = Pace::new(RateControl::Buffers, 1024, Time::ZERO);
        arrives(&mut peer, 50_000, 64 * 1024);
        assert_eq!(told_at(&mut peer), Some(50_500));
        peer.reported(at(50_500), false);
        arrives(&mut peer, 50_600, 60 * 1024);
        assert_eq!(told_at(&mut peer), Some(90_500));
        arrives(&mut peer, 51_600, 8 * 1024);
        assert_eq!(told_at(&mut peer), Some(52_100));
    }

    #[test]
    fn who_waits_is_told_in_a_quarter_of_a_round_trip() {
        let mut peer = busy();
        arrives(&mut peer, 50_100, 2 * LIGHT_BYTES);
        peer.report_asked(at(50_100));
        assert_eq!(told_at(&mut peer), Some(50_500));
        peer.reported(at(50_500), false);
        arrives(&mut peer, 70_000, 2 * LIGHT_BYTES);
        peer.report_asked(at(70_000));
        assert_eq!(told_at(&mut peer), Some(70_000), "the last is long ago");
    }

    #[test]
    fn what_did_not_fit_into_a_report_follows_at_once() {
        let mut peer = busy();
        arrives(&mut peer, 50_100, 2 * LIGHT_BYTES);
        peer.report_asked(at(50_100));
        peer.owing.push_back(QpIndex::new(19));
        peer.reported(at(50_500), false);
        arrives(&mut peer, 50_550, 2 * LIGHT_BYTES);
        assert_eq!(told_at(&mut peer), Some(50_600));
    }

    #[test]
    fn before_a_goodbye_what_is_owed_is_told_at_once() {
        let mut peer = busy();
        assert_eq!(peer.report_first(at(50_010)), None);
        peer.agreed = Some(7);
        assert_eq!(peer.report_first(at(50_010)), None, "nothing is owed");
        peer.owing.push_back(QpIndex::new(3));
        arrives(&mut peer, 50_010, 2 * LIGHT_BYTES);
        assert_eq!(peer.report_first(at(50_020)), Some(at(50_020)));
        assert!(peer.is_report_due(at(50_020)));
    }

    #[test]
    fn gaps_are_told_at_once_but_not_one_by_one() {
        let mut peer = busy();
        arrives(&mut peer, 50_100, 2 * LIGHT_BYTES);
        peer.report_gap(at(50_200));
        assert_eq!(told_at(&mut peer), Some(70_000));
        peer.reported(at(70_000), false);
        arrives(&mut peer, 92_000, 2 * LIGHT_BYTES);
        peer.report_gap(at(92_000));
        assert!(peer.is_report_due(at(92_000)));
    }

    #[test]
    fn who_waits_hears_of_gaps_at_once() {
        let mut peer = busy();
        arrives(&mut peer, 50_100, 2 * LIGHT_BYTES);
        let owed = Owed {
            is_asked: true,
            has_gap: true,
        };
        assert_eq!(peer.report_owed(owed, at(50_100)), at(50_500));
        assert_eq!(told_at(&mut peer), Some(50_500));
    }

    #[test]
    fn gaps_are_told_before_there_are_more_than_a_report_takes() {
        let mut peer = busy();
        for _ in 1..MANY_GAPS {
            one_arrives(&mut peer, 50_100);
        }
        assert_eq!(told_at(&mut peer), Some(70_000));
        one_arrives(&mut peer, 50_200);
        assert_eq!(told_at(&mut peer), Some(55_000));
    }

    #[test]
    fn gaps_are_told_before_much_waits_for_them() {
        let mut peer = busy();
        arrives(&mut peer, 50_100, MUCH_BYTES - 1024);
        peer.report_gap(at(50_100));
        assert_eq!(told_at(&mut peer), Some(70_000));
        arrives(&mut peer, 50_200, 1024);
        peer.report_gap(at(50_200));
        assert_eq!(told_at(&mut peer), Some(55_000));
    }
}
