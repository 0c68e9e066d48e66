//! Paces frames to the radio by the state of its queue.
//!
//! While the radio's queue is not empty, its output is the rate of the link: measured, not assumed.
//! The desired queue is a time, [`TARGET`]: with less, more may be sent than the link carries; with
//! more, less. A queue that runs empty while frames wait for it shows that the rate is too low.

use std::time::Duration;

/// A reading of the radio's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Bytes in it.
    pub waiting: u64,
    /// Bytes that have left it since it was made.
    pub left: u64,
}

/// Follows the rate of the link.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// Rate of the link in bytes per second.
    rate: f64,
    last: Option<(Duration, Reading)>,
    waiting: u64,
}

/// Desired waiting time in the radio's queue: two aggregates of up to 5.5 ms each.
///
/// The next aggregate must be there when one ends, or it will be short.
pub const TARGET: Duration = Duration::from_millis(12);
/// Averaging time of the rate: several aggregates.
const AVERAGE: Duration = Duration::from_millis(16);
/// Multiple of the target above which nothing is sent.
const TOO_MUCH: f64 = 3.0;
/// Largest relative deviation from the link's rate, to fill or drain the radio's queue.
const CORRECTION: f64 = 0.5;
/// Least target in bytes: one unsegmented frame has to fit.
const TARGET_BYTES_MIN: f64 = 96.0 * 1024.0;
/// Bounds of the rate in bytes per second: the slowest scheme of 802.11, and more than any radio.
const RATES: [f64; 2] = [125_000.0, 6.25e9];

impl Pacer {
    /// Starts slow, since the rate is known after milliseconds.
    pub fn new() -> Pacer {
        Pacer {
            rate: 1.25e6,
            last: None,
            waiting: 0,
        }
    }

    /// Handles a reading at `now`. `is_held_back`: frames wait for the pacer.
    pub fn see(&mut self, now: Duration, reading: Reading, is_held_back: bool) {
        self.waiting = reading.waiting;
        let last = self.last.replace((now, reading));
        let Some((then, before)) = last.filter(|(then, _)| *then < now) else {
            return;
        };
        let passed = (now - then).as_secs_f64();
        let weight = (passed / AVERAGE.as_secs_f64()).min(1.0);
        let drained = reading.left.saturating_sub(before.left) as f64 / passed;
        if before.waiting > 0 && reading.waiting > 0 {
            self.rate += (drained - self.rate) * weight;
        } else if is_held_back {
            self.rate += self.rate * weight;
        }
        self.rate = self.rate.clamp(RATES[0], RATES[1]);
    }

    /// Rate of the link in bytes per second.
    pub fn link(&self) -> f64 {
        self.rate
    }

    /// Allowed rate in bytes per second.
    pub fn allowed(&self) -> f64 {
        let target = (self.rate * TARGET.as_secs_f64()).max(TARGET_BYTES_MIN);
        let waiting = self.waiting as f64 / target;
        if waiting >= TOO_MUCH {
            return 0.0;
        }
        self.rate * (1.0 + CORRECTION * (1.0 - waiting)).max(0.0)
    }
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A link with a queue, to which a pacer sends all that it may, once a millisecond.
    struct Link {
        pacer: Pacer,
        ms: u32,
        reading: Reading,
        longest: u64,
    }

    impl Link {
        fn new() -> Link {
            let reading = Reading {
                waiting: 0,
                left: 0,
            };
            Link {
                pacer: Pacer::new(),
                ms: 0,
                reading,
                longest: 0,
            }
        }

        /// Returns the bytes that left, per second.
        fn run(&mut self, ms: u32, bytes_per_s: f64) -> f64 {
            let before = self.reading.left;
            self.longest = 0;
            for _ in 0..ms {
                self.ms += 1;
                self.reading.waiting += (self.pacer.allowed() / 1000.0) as u64;
                let leaves = ((bytes_per_s / 1000.0) as u64).min(self.reading.waiting);
                self.reading.waiting -= leaves;
                self.reading.left += leaves;
                self.longest = self.longest.max(self.reading.waiting);
                self.pacer.see(MS * self.ms, self.reading, true);
            }
            (self.reading.left - before) as f64 * 1000.0 / f64::from(ms)
        }
    }

    #[test]
    fn the_link_is_full_and_its_queue_short() {
        for mbit in [10.0, 60.0, 300.0, 1000.0, 5000.0] {
            let bytes_per_s = mbit * 1e6 / 8.0;
            let mut link = Link::new();
            link.run(400, bytes_per_s);
            let left = link.run(1000, bytes_per_s);
            assert!(
                left > 0.99 * bytes_per_s,
                "{mbit} Mb/s: {left} of {bytes_per_s}"
            );
            assert!(
                (link.pacer.link() / bytes_per_s - 1.0).abs() < 0.02,
                "{mbit}"
            );
            let bound = (bytes_per_s * 0.018).max(1.5 * TARGET_BYTES_MIN);
            assert!(
                (link.longest as f64) < bound,
                "{mbit} Mb/s: {}",
                link.longest
            );
        }
    }

    #[test]
    fn a_link_that_becomes_slow_or_fast_is_followed() {
        let mut link = Link::new();
        link.run(400, 75e6);
        link.run(100, 7.5e6);
        // What was sent before the change was noticed is the most that ever waits.
        assert!(link.longest < (75e6 * 0.036) as u64, "{}", link.longest);
        let left = link.run(1000, 7.5e6);
        assert!(left > 0.99 * 7.5e6, "{left}");
        link.run(200, 75e6);
        let left = link.run(500, 75e6);
        assert!(left > 0.98 * 75e6, "{left}");
    }

    #[test]
    fn an_idle_link_says_nothing_of_its_rate() {
        let mut link = Link::new();
        link.run(400, 25e6);
        let before = link.pacer.link();
        link.reading.waiting = 0;
        for _ in 0..1000 {
            link.ms += 1;
            link.pacer.see(MS * link.ms, link.reading, false);
        }
        assert_eq!(link.pacer.link(), before);
    }
}
