//! Rate, remaining time and slowest part, from the last few seconds.

use super::Side;
use airdma_transfer::{Progress, Waits};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time that is averaged.
const WINDOW: Duration = Duration::from_secs(3);
/// Least time for an estimate.
const LEAST: Duration = Duration::from_millis(300);

#[derive(Default)]
pub struct Meter {
    started: Option<Instant>,
    samples: VecDeque<(Instant, Progress)>,
}

/// Estimates from the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    pub bytes_per_second: f64,
    pub left: Option<Duration>,
    pub slowest: Option<Slowest>,
}

/// The slowest of the three parts of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slowest {
    Reading,
    Network,
    Writing,
}

impl Meter {
    /// Starts a new connection; the clock goes on.
    pub fn start(&mut self, progress: &Progress) {
        self.started.get_or_insert_with(Instant::now);
        self.samples = [(Instant::now(), *progress)].into();
    }

    pub fn elapsed(&self) -> Duration {
        self.started
            .map_or(Duration::ZERO, |started| started.elapsed())
    }

    pub fn read(&mut self, progress: &Progress) -> Reading {
        self.read_at(Instant::now(), progress)
    }

    fn read_at(&mut self, now: Instant, progress: &Progress) -> Reading {
        self.samples.push_back((now, *progress));
        while self.samples.len() > 2 && now - self.samples[1].0 >= WINDOW {
            self.samples.pop_front();
        }
        let (then, before) = self.samples[0];
        let time = now - then;
        if time < LEAST {
            return Reading::default();
        }
        let bytes = progress.bytes.saturating_sub(before.bytes) as f64;
        let rate = bytes / time.as_secs_f64();
        let left = progress.bytes_total.saturating_sub(progress.bytes) as f64;
        Reading {
            bytes_per_second: rate,
            // Without progress there is no estimate.
            left: Duration::try_from_secs_f64(left / rate).ok(),
            slowest: slowest(before.waits, progress.waits),
        }
    }
}

fn slowest(before: Waits, now: Waits) -> Option<Slowest> {
    let waited = [
        (now.reading.saturating_sub(before.reading), Slowest::Reading),
        (now.network.saturating_sub(before.network), Slowest::Network),
        (now.writing.saturating_sub(before.writing), Slowest::Writing),
    ];
    let longest = waited.into_iter().max_by_key(|(time, _)| *time)?;
    (!longest.0.is_zero()).then_some(longest.1)
}

impl Slowest {
    /// Text for display. A receiver with nothing to write cannot tell whether the network or the
    /// sender is slow.
    pub fn words(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::Reading, _) => "this disk",
            (Self::Network, Side::Sender) => "network",
            (Self::Network, Side::Receiver) => "network or sender",
            (Self::Writing, Side::Sender) => "receiver's disk",
            (Self::Writing, Side::Receiver) => "this disk",
        }
    }

    /// Word for programs.
    pub fn word(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::Reading, _) => "sender_disk",
            (Self::Network, Side::Sender) => "network",
            (Self::Network, Side::Receiver) => "network_or_sender",
            (Self::Writing, _) => "receiver_disk",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(bytes: u64, network_ms: u64, writing_ms: u64) -> Progress {
        Progress {
            bytes,
            bytes_total: 10_000,
            bytes_durable: 0,
            waits: Waits {
                reading: Duration::ZERO,
                network: Duration::from_millis(network_ms),
                writing: Duration::from_millis(writing_ms),
            },
        }
    }

    #[test]
    fn rate_and_time_left_are_those_of_the_last_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut meter = Meter::default();
        assert_eq!(meter.read_at(start, &progress(0, 0, 0)), Reading::default());
        meter.read_at(at(1), &progress(5000, 1000, 0));
        for second in 2..6 {
            meter.read_at(
                at(second),
                &progress(5000 + 100 * second, 1000, 1000 * second),
            );
        }
        let reading = meter.read_at(at(6), &progress(5600, 1000, 6000));
        assert_eq!(reading.bytes_per_second, 100.0);
        assert_eq!(reading.left, Some(Duration::from_secs(44)));
        assert_eq!(reading.slowest, Some(Slowest::Writing));
    }

    #[test]
    fn a_receiver_does_not_blame_the_network_for_what_it_cannot_see() {
        assert_eq!(Slowest::Network.word(Side::Receiver), "network_or_sender");
        assert_eq!(Slowest::Network.word(Side::Sender), "network");
    }
}
