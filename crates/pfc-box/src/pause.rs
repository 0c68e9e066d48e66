//! Decides when the host is stopped, and when it may resume.

use std::time::Duration;

/// A request to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Pause the priority for the longest time that a frame can name.
    Stop,
    /// The same again, because the time is about to expire.
    StayStopped,
    /// Resume.
    Go,
}

/// Watches the queue between two thresholds.
#[derive(Clone, Debug)]
pub struct Pause {
    high: usize,
    low: usize,
    /// Length of one pause.
    lasts: Duration,
    state: State,
    /// Number of frames that had left the queue when it last moved, and the time.
    moved: (u64, Duration),
    stopped: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Going,
    Stopped {
        since: Duration,
        asked: Duration,
    },
    /// The radio takes nothing: the host is not stopped for that, or it would be for ever.
    GivenUp,
}

/// Time without progress after which a queue stops the host no more, and drops.
///
/// Watchdogs of switches do the same, so that one dead link does not stop a host and everything
/// that waits for it.
pub const STUCK: Duration = Duration::from_millis(500);

impl Pause {
    /// Thresholds in bytes; `lasts` is the length of one pause.
    pub fn new(high: usize, low: usize, lasts: Duration) -> Pause {
        Pause {
            high,
            low,
            lasts,
            state: State::Going,
            moved: (0, Duration::ZERO),
            stopped: Duration::ZERO,
        }
    }

    /// The request at `now`, with `queued` bytes in the queue and `left` frames that have left it
    /// so far.
    pub fn decide(&mut self, now: Duration, queued: usize, left: u64) -> Option<Ask> {
        if left != self.moved.0 || queued == 0 {
            self.moved = (left, now);
        }
        let is_stuck = now.saturating_sub(self.moved.1) >= STUCK;
        match self.state {
            State::GivenUp if is_stuck => None,
            State::Going | State::GivenUp if queued >= self.high => {
                let (since, asked) = (now, now);
                self.state = State::Stopped { since, asked };
                Some(Ask::Stop)
            }
            State::Going | State::GivenUp => {
                self.state = State::Going;
                None
            }
            State::Stopped { since, .. } if queued <= self.low || is_stuck => {
                self.stopped += now.saturating_sub(since);
                self.state = if is_stuck {
                    State::GivenUp
                } else {
                    State::Going
                };
                Some(Ask::Go)
            }
            State::Stopped { since, asked } => {
                let is_due = now.saturating_sub(asked) >= self.lasts / 2;
                is_due.then(|| {
                    self.state = State::Stopped { since, asked: now };
                    Ask::StayStopped
                })
            }
        }
    }

    /// Time until [`Pause::decide`] must be called again even if nothing happens.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        match self.state {
            State::Stopped { asked, .. } => Some((asked + self.lasts / 2).saturating_sub(now)),
            State::Going | State::GivenUp => None,
        }
    }

    /// Whether the host is stopped.
    pub fn is_on(&self) -> bool {
        matches!(self.state, State::Stopped { .. })
    }

    /// Total time for which it was stopped.
    pub fn stopped(&self, now: Duration) -> Duration {
        match self.state {
            State::Stopped { since, .. } => self.stopped + now.saturating_sub(since),
            State::Going | State::GivenUp => self.stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pause() -> Pause {
        Pause::new(1000, 500, MS * 30)
    }

    #[test]
    fn the_host_stops_at_the_high_mark_and_goes_on_at_the_low_one() {
        let mut pause = pause();
        let steps = [
            (999, None),
            (1000, Some(Ask::Stop)),
            (1500, None),
            (501, None),
            (500, Some(Ask::Go)),
            (800, None),
            (1000, Some(Ask::Stop)),
        ];
        for (at, (queued, expected)) in steps.into_iter().enumerate() {
            let now = MS * at as u32;
            assert_eq!(pause.decide(now, queued, at as u64), expected, "step {at}");
        }
        assert!(pause.is_on());
        assert_eq!(pause.stopped(MS * 8), MS * 5);
    }

    #[test]
    fn a_stop_is_renewed_before_it_runs_out() {
        let mut pause = pause();
        assert_eq!(pause.wait(Duration::ZERO), None);
        assert_eq!(pause.decide(MS, 1000, 0), Some(Ask::Stop));
        assert_eq!(pause.wait(MS * 3), Some(MS * 13));
        assert_eq!(pause.decide(MS * 15, 900, 1), None);
        assert_eq!(pause.decide(MS * 16, 900, 2), Some(Ask::StayStopped));
        assert_eq!(pause.decide(MS * 17, 900, 3), None);
        assert_eq!(pause.decide(MS * 31, 900, 4), Some(Ask::StayStopped));
    }

    #[test]
    fn a_radio_that_takes_nothing_stops_nobody_for_long() {
        let mut pause = pause();
        assert_eq!(pause.decide(MS, 1000, 7), Some(Ask::Stop));
        let mut asked = Vec::new();
        for ms in 2..2000 {
            asked.extend(pause.decide(MS * ms, 2000, 7).filter(|ask| *ask == Ask::Go));
        }
        assert_eq!(asked, [Ask::Go]);
        assert!(!pause.is_on() && pause.stopped(MS * 2000) == MS * 500);
        // Once frames leave again, it works as before.
        assert_eq!(pause.decide(MS * 2000, 2000, 8), Some(Ask::Stop));
    }

    #[test]
    fn a_queue_that_was_empty_for_long_is_not_stuck() {
        let mut pause = pause();
        assert_eq!(pause.decide(MS * 5000, 0, 7), None);
        assert_eq!(pause.decide(MS * 5001, 1000, 7), Some(Ask::Stop));
        assert_eq!(pause.decide(MS * 5002, 1000, 7), None);
        assert!(pause.is_on());
    }
}
