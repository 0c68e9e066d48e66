//! Another program of a host: datagrams, one after the other at an even rate, whatever becomes of them.

use super::middle_and_high;
use core::time::Duration;

/// An IP packet.
const BYTES: u32 = 1_500;

pub(super) struct Foreground {
    interval: Option<Duration>,
    due: Duration,
    sent: u64,
    times: Vec<Duration>,
}

impl Foreground {
    /// At this rate, from then on.
    pub(super) fn new(mbit: u32, from: Duration) -> Foreground {
        let interval =
            (mbit > 0).then(|| Duration::from_nanos(u64::from(BYTES) * 8_000 / u64::from(mbit)));
        Foreground {
            interval,
            due: from,
            sent: 0,
            times: Vec::new(),
        }
    }

    /// When the next one leaves.
    pub(super) fn due(&self) -> Option<Duration> {
        self.interval.map(|_| self.due)
    }

    /// How long the one is that leaves now.
    pub(super) fn poll(&mut self, now: Duration) -> Option<u32> {
        let interval = self.interval.filter(|_| self.due <= now)?;
        self.due += interval;
        self.sent += 1;
        Some(BYTES)
    }

    /// One has arrived, after so long.
    pub(super) fn came(&mut self, took: Duration) {
        self.times.push(took);
    }

    /// What arrived, of what was sent, and how long 99 % took, in ms.
    pub(super) fn seen(mut self) -> [f64; 2] {
        let share = self.times.len() as f64 / self.sent.max(1) as f64;
        let [_, high] = middle_and_high(&mut self.times);
        [share, high]
    }
}
