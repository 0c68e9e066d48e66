//! Another program of a host: datagrams at an even rate, regardless of loss.

use super::middle_and_high;
use core::time::Duration;

/// Bytes of an IP packet.
const BYTES: u32 = 1_500;

pub(super) struct Foreground {
    interval: Option<Duration>,
    due: Duration,
    sent: u64,
    times: Vec<Duration>,
}

impl Foreground {
    /// Starts at `from` with this rate.
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

    /// Time of the next datagram.
    pub(super) fn due(&self) -> Option<Duration> {
        self.interval.map(|_| self.due)
    }

    /// Bytes of the datagram that leaves now, if one is due.
    pub(super) fn poll(&mut self, now: Duration) -> Option<u32> {
        let interval = self.interval.filter(|_| self.due <= now)?;
        self.due += interval;
        self.sent += 1;
        Some(BYTES)
    }

    /// Records an arrival after `took`.
    pub(super) fn came(&mut self, took: Duration) {
        self.times.push(took);
    }

    /// Share of the datagrams that arrived, and the 99 % delay in ms.
    pub(super) fn seen(mut self) -> [f64; 2] {
        let share = self.times.len() as f64 / self.sent.max(1) as f64;
        let [_, high] = middle_and_high(&mut self.times);
        [share, high]
    }
}
