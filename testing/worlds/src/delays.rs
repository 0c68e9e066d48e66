//! The longest delay since any moment, of packets in flight or waiting for a port.

use core::time::Duration;
use std::collections::VecDeque;

/// Delays, each with the moment at which it ended; a delay is dropped once a later one is as long.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    ended: VecDeque<(Duration, Duration)>,
}

impl Delays {
    /// Adds a delay that ended at `now`, which is not earlier than the last one.
    pub fn add(&mut self, now: Duration, delay: Duration) {
        while self.ended.back().is_some_and(|&(_, last)| last <= delay) {
            self.ended.pop_back();
        }
        self.ended.push_back((now, delay));
    }

    /// The longest delay that ended at `since` or later.
    pub fn longest(&self, since: Duration) -> Duration {
        let from = self.ended.partition_point(|&(at, _)| at < since);
        self.ended
            .get(from)
            .map_or(Duration::ZERO, |&(_, delay)| delay)
    }
}

/// The latest moment since which the longest delays of all kinds add up to `enough`.
pub fn slow_since(all: &[Delays], enough: Duration) -> Option<Duration> {
    let moments = all.iter().flat_map(|delays| &delays.ended);
    let mut moments: Vec<_> = moments.map(|&(at, _)| at).collect();
    moments.sort_unstable();
    let slow = |since: Duration| {
        all.iter()
            .map(|delays| delays.longest(since))
            .sum::<Duration>()
            >= enough
    };
    // The later a moment, the shorter the delays since then.
    let slow = moments.partition_point(|&since| slow(since));
    moments[..slow].last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_once_excuses_nothing_that_began_later() {
        let micros = Duration::from_micros;
        let (mut there, mut back) = (Delays::default(), Delays::default());
        there.add(micros(10), micros(5));
        there.add(micros(20), micros(8));
        there.add(micros(30), micros(2));
        back.add(micros(25), micros(3));
        assert_eq!(there.longest(micros(0)), micros(8));
        assert_eq!(there.longest(micros(21)), micros(2));
        assert_eq!(there.longest(micros(31)), micros(0));
        let both = [there, back];
        assert_eq!(slow_since(&both, micros(11)), Some(micros(20)));
        assert_eq!(slow_since(&both, micros(5)), Some(micros(25)));
        assert_eq!(slow_since(&both, micros(12)), None);
    }
}
