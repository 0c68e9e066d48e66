//! How long ends of connections wait for peers that do not answer.

use std::time::{Duration, Instant};

/// The longest that the end of a connection waits for the answers to what was posted: with the
/// timer of connections by RDMA CM (268 ms) its last packet is sent three times.
const FINISH_TIME_MAX: Duration = Duration::from_millis(600);
/// If no wait was in vain for this long, the next one may last as long as the first.
const RESET_AFTER: Duration = Duration::from_secs(10);
/// Each wait in vain divides the next by this factor, down to 2.3 ms, in which a running peer
/// answers.
const SHORTER_BY: u32 = 4;
const SHORTER_TIMES_MAX: u32 = 4;

/// How long ends of connections wait for answers.
#[derive(Default)]
pub(crate) struct FinishTime {
    /// Waits in vain, one soon after the other.
    in_vain: u32,
    last: Option<Instant>,
}

impl FinishTime {
    pub(crate) fn time(&mut self, now: Instant) -> Duration {
        let is_over = |last: Instant| now.saturating_duration_since(last) >= RESET_AFTER;
        if self.last.is_some_and(is_over) {
            *self = FinishTime::default();
        }
        FINISH_TIME_MAX / SHORTER_BY.pow(self.in_vain)
    }

    pub(crate) fn note_in_vain(&mut self, now: Instant) {
        self.in_vain = SHORTER_TIMES_MAX.min(self.in_vain + 1);
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_vain_ends_take_less_than_twice_the_time_of_one() {
        let (mut finish_time, mut now) = (FinishTime::default(), Instant::now());
        let start = now;
        for _ in 0..100 {
            now += finish_time.time(now);
            finish_time.note_in_vain(now);
        }
        assert!(now - start < FINISH_TIME_MAX * 2, "{:?}", now - start);
        assert!(finish_time.time(now) > Duration::from_millis(2));
        assert_eq!(finish_time.time(now + RESET_AFTER), FINISH_TIME_MAX);
    }
}
