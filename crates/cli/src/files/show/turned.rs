//! Limits lines about refused connections, of which any host can make many.

use std::time::{Duration, Instant};

/// Most lines in a minute. Further ones are counted.
const LINES_MAX: u32 = 10;
const WHILE: Duration = Duration::from_secs(60);

/// Lines of the last minute.
#[derive(Debug, Default)]
pub struct Turned {
    since: Option<Instant>,
    lines: u32,
    silent: u64,
}

impl Turned {
    /// Counts one at `now`; `Some` if a line is due, with the number that came before it without
    /// one.
    pub fn next(&mut self, now: Instant) -> Option<u64> {
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= WHILE)
        {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES_MAX {
            self.silent += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_brings_ten_lines_a_minute_and_a_count() {
        let (mut turned, start) = (Turned::default(), Instant::now());
        let lines = |turned: &mut Turned, seconds: u64| -> Vec<u64> {
            let at = start + Duration::from_secs(seconds);
            (0..1_000).filter_map(|_| turned.next(at)).collect()
        };
        assert_eq!(lines(&mut turned, 0), [0; 10]);
        assert_eq!(lines(&mut turned, 59), [0; 0]);
        assert_eq!(lines(&mut turned, 60)[..2], [1_990, 0]);
    }
}
