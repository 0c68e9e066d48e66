//! Times of the last messages in both directions.

use super::{Config, Time};

#[derive(Debug)]
pub(super) struct Liveness {
    heard: Time,
    said: Time,
}

impl Liveness {
    pub fn new(now: Time) -> Self {
        Self {
            heard: now,
            said: now,
        }
    }

    pub fn heard(&mut self, now: Time) {
        self.heard = now;
    }

    pub fn said(&mut self, now: Time) {
        self.said = now;
    }

    /// Whether the peer counts as lost.
    pub fn is_silent(&self, now: Time, config: &Config) -> bool {
        now >= self.heard + config.silence_max
    }

    /// Whether a message is due, so that the peer does not count this end as lost.
    pub fn is_due(&self, now: Time, config: &Config) -> bool {
        now >= self.said + config.alive_every
    }

    pub fn timeout(&self, config: &Config) -> Time {
        (self.heard + config.silence_max).min(self.said + config.alive_every)
    }
}
