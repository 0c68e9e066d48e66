//! One buffer of the path: what is in it, how fast it empties, and what that lets a sender send (SMUFF 3.3, equations 5 to 8).
//!
//! | paper | here | |
//! |---|---|---|
//! | `X_i` | `x` | bytes in it |
//! | `v_i` | `v` | the rate at which it empties: over a control latency at least, bounded, smoothed |
//! | `d_i` | `d` | control latency: how long until a change of the rate shows in it |
//! | `X_target_i` | [`Buffer::x_target`] | `X_under`: what keeps it from running empty |
//! | `v_0` | [`Buffer::v0`] | `max(v_i + (X_target_i - X_i) / d_i, 0)` |
//!
//! `X_under` is what leaves beyond expectation during one control latency if the rate rises as far as it may: `v_i d_i` for a
//! network's buffer, whose rate at most doubles, a tenth of it for one that a processor or a disk empties. As much must
//! fit if the rate falls as far, so where the capacity is small both get their share of it.
//!
//! A rate that is measured while the buffer runs empty is what comes in, not what could leave: it can only raise `v_i`. A
//! buffer that was never seen filled has no rate of its own yet.

use core::time::Duration;

use super::{Occupancy, Rate, Reading};
use crate::Time;

/// Weight of a new `v_i` is one in so many.
const EWMA_WEIGHT: u64 = 4;
/// A first rate is not taken over less.
const FIRST_SPAN_MIN: Duration = Duration::from_millis(1);
/// Readings that are older than the last one by less came late; by more, the clock was set anew.
const LATE_MAX: Duration = Duration::from_secs(1);
/// What lies further back says nothing about the rate now.
const SPAN_MAX: Duration = Duration::from_secs(10);
/// What fits into no less is taken for no capacity at all.
const CAPACITY_BYTES_MIN: u64 = 4_096;
/// No buffer of unknown size holds more.
const OCCUPIED_BYTES_MAX: u64 = 1 << 32;

/// Who empties a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A line. It may double or halve its rate within a control latency.
    Network,
    /// A processor or a disk. A tenth more or less.
    Processor,
}

/// What a buffer is to be kept at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// `X_under`, and no less than a large segment: the line never idles.
    Throughput,
    /// Half of it, and no less than a packet: enough to notice that more would get through.
    Latency,
}

/// What to think of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Plausible,
    /// It came later than one that was taken after it, and is ignored.
    Late,
    /// It was bounded.
    Absurd,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    kind: Kind,
    aim: Aim,
    x: u64,
    capacity: Option<u64>,
    v: Rate,
    /// `v` was measured while the buffer was never empty.
    is_v_known: bool,
    /// Its processor took nothing, though there was something.
    is_stalled: bool,
    /// It was empty since the measurement of `v` began.
    ran_empty: bool,
    /// When that was, and what had left until then.
    began: Option<(Time, u64)>,
    latest: Time,
}

impl Buffer {
    pub(super) const fn new(kind: Kind, aim: Aim) -> Self {
        Buffer {
            kind,
            aim,
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

    /// Whether it was ever looked at.
    pub(super) const fn is_observed(&self) -> bool {
        self.began.is_some()
    }

    /// The buffer was looked at. `at` is by the clock of its host.
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
            self.measured(Rate::of(reading.drained_bytes - drained, span));
            self.begin(at, reading.drained_bytes, d);
        }
        verdict
    }

    /// The sending rate that this buffer allows if it is to hold `x_target`.
    pub(super) fn v0(&self, x_target: u64, d: Duration) -> Rate {
        let v = if self.is_stalled { Rate::ZERO } else { self.v };
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
            (Aim::Throughput, Kind::Network) => x_under.max(16 * 1024),
            (Aim::Latency, Kind::Network) => (x_under / 2).max(4 * 1024),
            // Packets come up to the receiver in bunches of a large segment.
            (Aim::Throughput | Aim::Latency, Kind::Processor) => x_under.max(64 * 1024),
        };
        let Some(capacity) = self.capacity else {
            return x_target;
        };
        match self.kind {
            // Nobody knows how fast it empties, but half of it may fill without loss.
            Kind::Processor if !self.is_v_known => capacity / 2,
            Kind::Network | Kind::Processor => x_target.min(self.share_of(capacity)),
        }
    }

    /// What `X_under` gets of a capacity that has to hold, too, what comes in while the rate falls.
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

    /// `sample` is what left, over a control latency at least.
    fn measured(&mut self, sample: Rate) {
        let stands_still = sample == Rate::ZERO && !self.ran_empty;
        self.is_stalled = stands_still && self.kind == Kind::Processor;
        if self.is_stalled {
            // A program that pauses goes on as fast as before.
            return;
        }
        if self.v == Rate::ZERO {
            self.v = sample;
            self.is_v_known |= !self.ran_empty;
            return;
        }
        let (least, most) = match self.kind {
            Kind::Network => (self.v.times(1, 2), self.v.times(2, 1)),
            Kind::Processor => (self.v.times(9, 10), self.v.times(11, 10)),
        };
        let bounded = sample.clamp(least, most);
        if self.ran_empty {
            self.v = self.v.max(bounded);
        } else {
            self.v = self.v.smoothed(bounded, EWMA_WEIGHT);
            self.is_v_known = true;
        }
    }
}
