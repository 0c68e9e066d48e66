//! A line that serialises packets at its rate, and the queue in front of it.

use std::collections::VecDeque;

use airdma_transport::Time;

use crate::random::Random;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A line of a fixed rate. The remainder of rounding to nanoseconds is kept, so that a million
/// packets take exactly their time.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    bits_per_s: u64,
    /// End of the last bit: `free_ns + rest / bits_per_s` nanoseconds.
    free_ns: u64,
    rest: u64,
}

impl Line {
    pub(crate) fn new(bits_per_s: u64) -> Self {
        assert!(bits_per_s > 0);
        Line {
            bits_per_s,
            free_ns: 0,
            rest: 0,
        }
    }

    pub(crate) fn bits_per_s(&self) -> u64 {
        self.bits_per_s
    }

    /// Time from which the line is free, in whole nanoseconds.
    pub(crate) fn free_at(&self) -> Time {
        Time::from_nanos(self.free_ns + u64::from(self.rest > 0))
    }

    /// Sends `bytes` as soon as the line is free, from `at` on. Returns begin and end.
    pub(crate) fn occupy(&mut self, at: Time, bytes: u64) -> (Time, Time) {
        if at >= self.free_at() {
            self.free_ns = at.as_nanos();
            self.rest = 0;
        }
        let start = self.free_at();
        let total = u128::from(self.rest) + u128::from(bytes * 8) * u128::from(NANOS_PER_SECOND);
        let rate = u128::from(self.bits_per_s);
        self.free_ns += (total / rate) as u64;
        self.rest = (total % rate) as u64;
        (start, self.free_at())
    }

    /// Time of `bytes`, in nanoseconds, rounded up.
    pub(crate) fn nanos_of(&self, bytes: u64) -> u64 {
        let bits = u128::from(bytes * 8) * u128::from(NANOS_PER_SECOND);
        bits.div_ceil(u128::from(self.bits_per_s)) as u64
    }
}

/// Marking of packets by a queue before it is full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Marking {
    /// Nothing.
    Never,
    /// Marks packets that find more than this many bytes waiting.
    Above(u64),
    /// Marks with a probability that rises from 0 at `kmin` bytes to `pmax` at `kmax`, and marks
    /// everything above, as switches do for DCQCN (Zhu et al., SIGCOMM 2015, 3.1).
    Ramp {
        /// Bytes up to which nothing is marked.
        kmin: u64,
        /// Bytes above which everything is marked.
        kmax: u64,
        /// The probability just below `kmax`.
        pmax: f64,
    },
}

impl Marking {
    fn marks(self, waiting: u64, random: &mut Random) -> bool {
        match self {
            Marking::Never => false,
            Marking::Above(limit) => waiting > limit,
            Marking::Ramp { kmin, kmax, pmax } => {
                if waiting <= kmin {
                    false
                } else if waiting > kmax {
                    true
                } else {
                    let part = (waiting - kmin) as f64 / (kmax - kmin) as f64;
                    random.chance(pmax * part)
                }
            }
        }
    }
}

/// A line with a queue of bounded length. The packet on the line is not in the queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) line: Line,
    pub(crate) bytes_max: u64,
    pub(crate) marking: Marking,
    /// Waiting packets: when each one's turn comes, and its length.
    waiting: VecDeque<(Time, u64)>,
    waiting_bytes: u64,
    longest_bytes: u64,
}

/// Result of a packet at a queue.
pub(crate) enum Queued {
    Full,
    Leaves { at: Time, marked: bool },
}

impl Queue {
    pub(crate) fn new(line: Line, bytes_max: u64, marking: Marking) -> Self {
        if let Marking::Ramp { kmin, kmax, .. } = marking {
            assert!(kmin < kmax);
        }
        Queue {
            line,
            bytes_max,
            marking,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            longest_bytes: 0,
        }
    }

    /// Most bytes that waited.
    pub(crate) fn longest_bytes(&self) -> u64 {
        self.longest_bytes
    }

    /// Takes a packet of `bytes` at `at`; packets come in order of time. A packet that is not
    /// `markable` is never marked.
    pub(crate) fn enter(
        &mut self,
        at: Time,
        bytes: u64,
        markable: bool,
        random: &mut Random,
    ) -> Queued {
        while let Some(&(start, gone)) = self.waiting.front()
            && start <= at
        {
            self.waiting.pop_front();
            self.waiting_bytes -= gone;
        }
        let waits = self.line.free_at() > at;
        if waits && self.waiting_bytes + bytes > self.bytes_max {
            return Queued::Full;
        }
        let marked = markable && self.marking.marks(self.waiting_bytes, random);
        let (start, end) = self.line.occupy(at, bytes);
        if waits {
            self.waiting.push_back((start, bytes));
            self.waiting_bytes += bytes;
            self.longest_bytes = self.longest_bytes.max(self.waiting_bytes);
        }
        Queued::Leaves { at: end, marked }
    }
}
