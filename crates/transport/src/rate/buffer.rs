//! One buffer of the path: what is in it, how fast it empties, and what that lets a sender send
//! (SMUFF 3.3, equations 5 to 8).
//!
//! | paper | here | |
//! |---|---|---|
//! | `X_i` | `x` | bytes in it |
//! | `v_i` | `v` | the rate at which it empties: over a control latency at least, bounded, smoothed |
//! | `d_i` | `d` | control latency: how long until a change of the rate shows in it |
//! | `X_target_i` | [`Buffer::x_target`] | `X_under`: what keeps it from running empty |
//! | `v_0` | [`Buffer::v0`] | `max(v_i + (X_target_i - X_i) / d_i, 0)` |
//!
//! `X_under` is what leaves unexpectedly in one control latency if the rate rises as far as it may:
//! `v_i d_i` for a network's buffer, whose rate at most doubles, a tenth of it for one that a
//! processor or a disk empties. As much must fit if the rate falls as far, so a small capacity is
//! split between both. A program or a disk takes out pieces, and works on one while the next has to
//! be there: its target is at least an eighth of the capacity.
//!
//! A rate measured while the buffer runs empty is the input's, not the possible output's: it can
//! only raise `v_i`. A buffer that was never seen filled has no rate of its own yet. A network's
//! then gets a first burst in each control latency, whatever came before: a transfer after a
//! handshake of small messages starts like one without.

use core::time::Duration;

use super::{BURST_BYTES_MAX, Occupancy, Rate, Reading};
use crate::Time;

/// A share of 1.
pub(super) const WHOLE: u64 = 1024;
/// A sender claims one part in this many of the others' bytes.
const CLAIM: u64 = 16;
/// The weight of a new `v_i` is one in this many.
const EWMA_WEIGHT: u64 = 4;
/// Least time over which a first rate is measured.
const FIRST_SPAN_MIN: Duration = Duration::from_millis(1);
/// Largest step back of a late reading's time; with a larger one, the clock was set.
const LATE_MAX: Duration = Duration::from_secs(1);
/// Greatest age of a reading that says anything about the rate.
const SPAN_MAX: Duration = Duration::from_secs(10);
/// A smaller capacity counts as none.
const CAPACITY_BYTES_MIN: u64 = 4_096;
/// A program's buffer holds at least this many of the pieces that the program takes at a time.
const PIECES: u64 = 8;
/// Most bytes in a buffer of unknown size.
const OCCUPIED_BYTES_MAX: u64 = 1 << 32;

/// What empties a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A line, which may double or halve its rate within a control latency.
    Network,
    /// A processor or a disk, whose rate varies by a tenth.
    Processor,
}

/// Target of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// `X_under`, and at least a large segment: the line never idles.
    Throughput,
    /// Half of it, and at least a packet: enough to notice that more would get through.
    Latency,
}

/// Verdict on a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Plausible,
    /// It arrived after a later one, and is ignored.
    Late,
    /// It was bounded.
    Absurd,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    kind: Kind,
    aim: Aim,
    /// Whether the buffer is emptied in pieces of unknown size.
    by_pieces: bool,
    x: u64,
    capacity: Option<u64>,
    v: Rate,
    /// Whether `v` was measured while the buffer was never empty.
    is_v_known: bool,
    /// Whether its processor took nothing although there was something.
    is_stalled: bool,
    /// Whether it was empty since the measurement of `v` began.
    ran_empty: bool,
    /// Start of the measurement, and the bytes that had left until then.
    began: Option<(Time, u64)>,
    latest: Time,
}

impl Buffer {
    pub(super) const fn new(kind: Kind, aim: Aim) -> Self {
        Buffer {
            kind,
            aim,
            by_pieces: false,
            x: 0,
            capacity: None,
            v: Rate::ZERO,
            is_v_known: false,
            is_stalled: false,
            ran_empty: true,
            began: None,
            latest: Time::ZERO,
        }
    }

    /// A buffer between the transport and a program, or its disk.
    pub(super) const fn of_program(aim: Aim) -> Self {
        Buffer {
            by_pieces: true,
            ..Buffer::new(Kind::Processor, aim)
        }
    }

    /// Whether it was ever read.
    pub(super) const fn is_observed(&self) -> bool {
        self.began.is_some()
    }

    /// Handles a reading, taken at `at` by the clock of its host.
    pub(super) fn observe(&mut self, at: Time, reading: &Reading, d: Duration) -> Verdict {
        let Some((began, drained)) = self.began else {
            let verdict = self.note_occupancy(reading.occupancy);
            let span = at.duration_since(Time::ZERO).max(FIRST_SPAN_MIN);
            self.v = Rate::of(reading.drained_bytes, span);
            self.begin(at, reading.drained_bytes, d);
            return verdict;
        };
        if at < self.latest && self.latest.duration_since(at) < LATE_MAX {
            return Verdict::Late;
        }
        let verdict = self.note_occupancy(reading.occupancy);
        self.latest = at;
        self.ran_empty |= self.is_empty(d);
        let span = at.duration_since(began);
        if at < began || reading.drained_bytes < drained || span > SPAN_MAX {
            self.begin(at, reading.drained_bytes, d);
            return if span > SPAN_MAX {
                verdict
            } else {
                Verdict::Absurd
            };
        }
        if span >= d {
            self.measured(Rate::of(reading.drained_bytes - drained, span), d);
            self.begin(at, reading.drained_bytes, d);
        }
        verdict
    }

    /// The part of [`Buffer::v0`] of a sender whose share of the input was `share` (of [`WHOLE`]).
    ///
    /// That is its share, and a little of the others', who take theirs back in proportion, so that
    /// shares become equal.
    pub(super) fn v0_of(&self, share: u64, x_target: u64, d: Duration) -> Rate {
        let own = self.v0(x_target, d).times(share, WHOLE);
        own.plus(self.v.times(WHOLE - share, WHOLE * CLAIM))
    }

    /// The sending rate that makes this buffer hold `x_target`.
    pub(super) fn v0(&self, x_target: u64, d: Duration) -> Rate {
        let v = match self.kind {
            Kind::Processor if self.is_stalled => Rate::ZERO,
            // It has always been faster than its input.
            Kind::Processor if !self.is_v_known && self.is_empty(d) => self.v.times(2, 1),
            Kind::Network | Kind::Processor => self.v,
        };
        if x_target >= self.x {
            v.plus(Rate::of(x_target - self.x, d))
        } else {
            v.minus(Rate::of(self.x - x_target, d))
        }
    }

    /// `X_target_i`.
    pub(super) fn x_target(&self, d: Duration) -> u64 {
        let vd = self.v.bytes_in(d);
        let x_under = match self.kind {
            Kind::Network => vd,
            Kind::Processor => vd / 10,
        };
        let x_target = match (self.aim, self.kind) {
            (Aim::Throughput, Kind::Network) if !self.is_v_known => x_under.max(BURST_BYTES_MAX),
            (Aim::Throughput, Kind::Network) => x_under.max(16 * 1024),
            (Aim::Latency, Kind::Network) => (x_under / 2).max(4 * 1024),
            // Packets reach the receiver in bunches of a large segment.
            (Aim::Throughput | Aim::Latency, Kind::Processor) => x_under.max(64 * 1024),
        };
        let Some(capacity) = self.capacity else {
            return x_target;
        };
        match self.kind {
            // Its rate is unknown, but half of it may fill without loss.
            Kind::Processor if !self.is_v_known => capacity / 2,
            // When a piece was taken, the next one is there.
            Kind::Processor if self.by_pieces => {
                x_target.clamp(capacity / PIECES, self.share_of(capacity))
            }
            Kind::Network | Kind::Processor => x_target.min(self.share_of(capacity)),
        }
    }

    /// Part of `X_under` in a capacity that also has to hold what comes in while the rate falls.
    fn share_of(&self, capacity: u64) -> u64 {
        match self.kind {
            Kind::Network => capacity / 3 * 2,
            Kind::Processor => capacity / 2,
        }
    }

    pub(super) const fn x(&self) -> u64 {
        self.x
    }

    pub(super) const fn v(&self) -> Rate {
        self.v
    }

    fn is_empty(&self, d: Duration) -> bool {
        self.x <= self.x_target(d) / 8
    }

    fn begin(&mut self, at: Time, drained: u64, d: Duration) {
        self.began = Some((at, drained));
        self.latest = at;
        self.ran_empty = self.is_empty(d);
    }

    fn note_occupancy(&mut self, occupancy: Occupancy) -> Verdict {
        self.capacity = occupancy
            .capacity
            .filter(|&bytes| bytes >= CAPACITY_BYTES_MIN);
        self.x = occupancy
            .bytes
            .min(self.capacity.unwrap_or(OCCUPIED_BYTES_MAX));
        if self.capacity == occupancy.capacity && self.x == occupancy.bytes {
            Verdict::Plausible
        } else {
            Verdict::Absurd
        }
    }

    /// Handles a sample of the output, over at least a control latency of `d`.
    fn measured(&mut self, sample: Rate, d: Duration) {
        let stands_still = sample == Rate::ZERO && !self.ran_empty;
        self.is_stalled = stands_still && self.kind == Kind::Processor;
        if self.is_stalled {
            // A program that pauses resumes as fast as before.
            return;
        }
        if self.v == Rate::ZERO {
            self.v = sample;
            self.is_v_known |= !self.ran_empty;
            return;
        }
        let (least, most) = match self.kind {
            Kind::Processor if self.is_v_known => (self.v.times(9, 10), self.v.times(11, 10)),
            Kind::Processor => (self.v.times(1, 2), self.v.times(4, 1)),
            Kind::Network if self.is_v_known => (self.v.times(1, 2), self.v.times(2, 1)),
            Kind::Network => {
                let first = Rate::of(BURST_BYTES_MAX, d);
                (self.v.times(1, 2), self.v.times(2, 1).max(first))
            }
        };
        let bounded = sample.clamp(least, most);
        if self.ran_empty {
            self.v = self.v.max(bounded);
        } else {
            let smoothed = self.v.smoothed(bounded, EWMA_WEIGHT);
            self.v = match self.kind {
                // Radios send more at once when more waits for them: what got through once will get
                // through again.
                Kind::Network => smoothed.max(bounded),
                Kind::Processor if self.is_v_known => smoothed,
                // So far it was the input's rate.
                Kind::Processor => bounded,
            };
            self.is_v_known = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Duration = Duration::from_millis(4);
    const CAPACITY: u64 = 2_000_000;

    fn at(ticks: u64) -> Time {
        Time::ZERO + D * u32::try_from(ticks).unwrap()
    }

    fn mb_per_s(n: u64) -> Rate {
        Rate::from_bytes_per_s(n * 1_000_000)
    }

    fn reading(bytes: u64, drained_bytes: u64) -> Reading {
        Reading {
            occupancy: Occupancy {
                bytes,
                capacity: Some(CAPACITY),
            },
            drained_bytes,
        }
    }

    /// A buffer that empties at 80 MB/s, and holds 4 ms of that. The last reading was at tick 2.
    fn busy(kind: Kind) -> Buffer {
        let mut buffer = Buffer::new(kind, Aim::Throughput);
        for tick in 0..=2 {
            buffer.observe(at(tick), &reading(320_000, tick * 320_000), D);
        }
        assert_eq!((buffer.v(), buffer.is_v_known), (mb_per_s(80), true));
        buffer
    }

    /// Takes this much out of a busy buffer in the next tick.
    fn drains(kind: Kind, bytes_left: u64, drained: u64) -> Buffer {
        let mut buffer = busy(kind);
        let verdict = buffer.observe(at(3), &reading(bytes_left, 640_000 + drained), D);
        assert_eq!(verdict, Verdict::Plausible);
        buffer
    }

    #[test]
    fn v_is_smoothed_and_moves_by_no_more_than_its_bounds() {
        use Kind::{Network, Processor};
        // A network can repeat what it did; of less, and of everything for a processor, a quarter
        // counts.
        for (kind, drained, expected) in [
            (Network, 400_000, 100_000_000),
            (Network, 32_000_000, 160_000_000),
            (Network, 1, 70_000_000),
            (Processor, 330_000, 80_625_000),
            (Processor, 32_000_000, 82_000_000),
            (Processor, 1, 78_000_000),
        ] {
            let v = drains(kind, 320_000, drained).v();
            assert_eq!(v.bytes_per_s(), expected, "{kind:?} {drained}");
        }
    }

    #[test]
    fn v_is_measured_over_a_control_latency_at_least() {
        let mut buffer = busy(Kind::Network);
        let half = at(2) + D / 2;
        buffer.observe(half, &reading(300_000, 640_000 + 10_000), D);
        assert_eq!((buffer.v(), buffer.x()), (mb_per_s(80), 300_000));
        buffer.observe(at(3), &reading(320_000, 640_000 + 400_000), D);
        assert_eq!(buffer.v(), mb_per_s(100));
    }

    #[test]
    fn a_buffer_that_ran_empty_can_only_raise_v() {
        assert_eq!(drains(Kind::Network, 0, 100_000).v(), mb_per_s(80));
        assert_eq!(drains(Kind::Network, 0, 480_000).v(), mb_per_s(120));
        assert_eq!(drains(Kind::Network, 0, 32_000_000).v(), mb_per_s(160));
        assert_eq!(drains(Kind::Processor, 0, 480_000).v(), mb_per_s(88));
    }

    #[test]
    fn a_network_never_seen_filled_gets_a_first_burst() {
        let rate = |bytes: u64| Rate::of(bytes, D);
        let mut buffer = Buffer::new(Kind::Network, Aim::Throughput);
        for tick in 0..=3 {
            buffer.observe(at(tick), &reading(0, tick * 400), D);
        }
        assert_eq!(buffer.v(), rate(400));
        let first = rate(400 + BURST_BYTES_MAX);
        assert_eq!(buffer.v0(buffer.x_target(D), D), first);
        // What got through is doubled.
        buffer.observe(at(4), &reading(0, 1_200 + 60_000), D);
        assert_eq!(buffer.v(), rate(60_000));
        buffer.observe(at(5), &reading(0, 61_200 + 500_000), D);
        assert_eq!(buffer.v(), rate(120_000));
        // Once it was filled, its own rate is known.
        let filled = |tick, left: u64| (at(tick), reading(100_000, 561_200 + left));
        for (at, reading) in [filled(6, 40_000), filled(7, 80_000)] {
            buffer.observe(at, &reading, D);
        }
        buffer.v = rate(400);
        assert_eq!(buffer.x_target(D), 16 * 1024);
        buffer.observe(at(8), &reading(0, 641_200 + 60_000), D);
        assert_eq!(buffer.v(), rate(800));
    }

    #[test]
    fn a_stalled_network_slows_down_and_a_processor_does_not() {
        assert_eq!(drains(Kind::Network, 320_000, 0).v(), mb_per_s(70));
        let mut processor = drains(Kind::Processor, 320_000, 0);
        assert_eq!(processor.v(), mb_per_s(80));
        assert_eq!(processor.v0(320_000, D), Rate::ZERO);
        processor.observe(at(4), &reading(0, 640_000 + 320_000), D);
        assert_eq!(processor.v0(0, D), mb_per_s(80));
    }

    #[test]
    fn v0_is_v_plus_the_deviation_in_one_control_latency() {
        let buffer = busy(Kind::Network);
        assert_eq!(buffer.v0(320_000, D), mb_per_s(80));
        assert_eq!(buffer.v0(480_000, D), mb_per_s(120));
        assert_eq!(buffer.v0(160_000, D), mb_per_s(40));
        assert_eq!(buffer.v0(320_000, 2 * D), mb_per_s(80));
        assert_eq!(buffer.v0(160_000, 2 * D), mb_per_s(60));
        assert_eq!(
            drains(Kind::Network, 1_000_000, 320_000).v0(320_000, D),
            Rate::ZERO
        );
    }

    #[test]
    fn the_target_is_the_unexpected_output_of_a_control_latency() {
        let network = busy(Kind::Network);
        assert_eq!(network.x_target(D), 320_000);
        assert_eq!(network.x_target(3 * D), 960_000);
        let processor = busy(Kind::Processor);
        assert_eq!(processor.x_target(25 * D), 800_000);
        assert_eq!(processor.x_target(D), 64 * 1024);
    }

    #[test]
    fn for_latency_the_target_of_a_queue_is_half() {
        let mut buffer = busy(Kind::Network);
        buffer.aim = Aim::Latency;
        assert_eq!(buffer.x_target(D), 160_000);
        buffer.v = Rate::from_bytes_per_s(1);
        assert_eq!(buffer.x_target(D), 4_096);
    }

    #[test]
    fn a_small_capacity_is_shared_with_input_while_the_rate_falls() {
        for (kind, expected) in [(Kind::Network, 200_000), (Kind::Processor, 150_000)] {
            let mut buffer = busy(kind);
            buffer.capacity = Some(300_000);
            assert_eq!(buffer.x_target(40 * D), expected, "{kind:?}");
        }
    }

    #[test]
    fn a_program_always_has_an_eighth_of_its_buffer_to_take() {
        let mut program = Buffer {
            by_pieces: true,
            ..busy(Kind::Processor)
        };
        assert_eq!(program.x_target(D), CAPACITY / 8);
        assert_eq!(program.x_target(100 * D), CAPACITY / 2);
        program.capacity = None;
        assert_eq!(program.x_target(D), 64 * 1024);
    }

    #[test]
    fn a_processor_never_seen_busy_may_get_half_of_its_buffer() {
        let mut buffer = Buffer::new(Kind::Processor, Aim::Latency);
        buffer.observe(at(1), &reading(0, 40_000), D);
        assert_eq!(buffer.x_target(D), CAPACITY / 2);
        assert_eq!(buffer.v(), mb_per_s(10));
        buffer.observe(at(2), &reading(0, 40_000 + 60_000), D);
        assert_eq!(buffer.v(), mb_per_s(15));
        assert_eq!(buffer.v0(0, D), mb_per_s(30));
        buffer.observe(at(3), &reading(0, 100_000 + 600_000), D);
        assert_eq!(buffer.v(), mb_per_s(60), "four times as much");
        // Now it is busy, and shows its rate.
        buffer.observe(at(4), &reading(CAPACITY, 700_000 + 240_000), D);
        buffer.observe(at(5), &reading(CAPACITY, 940_000 + 160_000), D);
        assert_eq!(buffer.v(), mb_per_s(40));
    }

    #[test]
    fn a_total_or_clock_that_goes_back_restarts_the_measurement() {
        let mut buffer = busy(Kind::Network);
        let verdict = buffer.observe(at(3), &reading(320_000, 5), D);
        assert_eq!((verdict, buffer.v()), (Verdict::Absurd, mb_per_s(80)));
        buffer.observe(at(4), &reading(320_000, 400_005), D);
        assert_eq!(buffer.v(), mb_per_s(100));
        let later = at(4) + Duration::from_secs(3_600);
        buffer.observe(later, &reading(320_000, u64::MAX), D);
        assert_eq!(buffer.v(), mb_per_s(100));
        let verdict = buffer.observe(at(5), &reading(320_000, 0), D);
        assert_eq!((verdict, buffer.v()), (Verdict::Absurd, mb_per_s(100)));
    }

    #[test]
    fn late_readings_are_ignored_and_impossible_ones_bounded() {
        let mut buffer = busy(Kind::Network);
        let verdict = buffer.observe(at(1), &reading(1, 320_000), D);
        assert_eq!((verdict, buffer.x()), (Verdict::Late, 320_000));
        let verdict = buffer.observe(at(2), &reading(CAPACITY + 1, 640_000), D);
        assert_eq!((verdict, buffer.x()), (Verdict::Absurd, CAPACITY));
        let unlimited = Reading {
            occupancy: Occupancy {
                bytes: u64::MAX,
                capacity: Some(0),
            },
            drained_bytes: 640_000,
        };
        let verdict = buffer.observe(at(2), &unlimited, D);
        assert_eq!((verdict, buffer.x()), (Verdict::Absurd, OCCUPIED_BYTES_MAX));
    }
}
