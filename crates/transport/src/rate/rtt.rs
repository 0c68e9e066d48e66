//! The round trip to a peer, measured by PINGs and feedback.
//!
//! | parameter | value | source |
//! |---|---|---|
//! | weight of a sample, in the mean and in the deviation | 1/8, 1/4 | RFC 6298 2.3 |
//! | believed at once | up to 100 ms or 8 times the mean | a Wi-Fi queue is 25 ms long at line rate (SMUFF figure 8) |
//! | refused | 0, and more than 10 s | no packet lives that long |
//! | the shortest is forgotten after | 10 s | as BBR's (Cardwell et al. 2016): a path may get longer |

use core::time::Duration;

use crate::Time;

const SAMPLE_MAX: Duration = Duration::from_secs(10);
const BELIEVED_MAX: Duration = Duration::from_millis(100);
const BELIEVED_FACTOR: u32 = 8;
const SHORTEST_LASTS: Duration = Duration::from_secs(10);

/// Mean, deviation, latest and shortest of the measured round trips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtt {
    smoothed: Option<Duration>,
    deviation: Duration,
    latest: Duration,
    shortest: Duration,
    shortest_at: Time,
    /// The shortest since the current shortest became old.
    candidate: Option<Duration>,
    absurd: u64,
}

impl Rtt {
    /// No measurements yet.
    pub fn new() -> Self {
        Rtt::default()
    }

    /// Handles a measured round trip.
    pub fn handle_sample(&mut self, now: Time, sample: Duration) {
        if sample.is_zero() || sample > SAMPLE_MAX {
            self.absurd = self.absurd.saturating_add(1);
            return;
        }
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(sample);
            self.deviation = sample / 2;
            self.latest = sample;
            self.shortest = sample;
            self.shortest_at = now;
            return;
        };
        let believed = BELIEVED_MAX.max(smoothed.saturating_mul(BELIEVED_FACTOR));
        if sample > believed {
            self.absurd = self.absurd.saturating_add(1);
        }
        let sample = sample.min(believed);
        self.deviation = (self.deviation * 3 + smoothed.abs_diff(sample)) / 4;
        self.smoothed = Some((smoothed * 7 + sample) / 8);
        self.latest = sample;
        self.note_shortest(now, sample);
    }

    /// The mean, weighted towards the present.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The mean deviation from it.
    pub fn deviation(&self) -> Duration {
        self.deviation
    }

    /// The shortest of the last seconds: the path without queues. Zero before the first.
    pub fn shortest(&self) -> Duration {
        self.shortest
    }

    /// Difference of the last one to the shortest: the wait in queues.
    pub fn queueing(&self) -> Duration {
        self.latest.saturating_sub(self.shortest)
    }

    /// Whether the shortest must be measured again, with empty queues.
    pub fn is_shortest_old(&self, now: Time) -> bool {
        self.smoothed.is_some() && now.duration_since(self.shortest_at) > SHORTEST_LASTS
    }

    /// Samples that were refused or made smaller.
    pub fn absurd(&self) -> u64 {
        self.absurd
    }

    fn note_shortest(&mut self, now: Time, sample: Duration) {
        if sample <= self.shortest {
            self.renew(now, sample);
        } else if self.is_shortest_old(now) {
            let candidate = self.candidate.map_or(sample, |other| other.min(sample));
            self.candidate = Some(candidate);
            let age = now.duration_since(self.shortest_at);
            if age > SHORTEST_LASTS + self.measuring_time() {
                self.renew(now, candidate);
            }
        }
    }

    fn renew(&mut self, now: Time, shortest: Duration) {
        self.shortest = shortest;
        self.shortest_at = now;
        self.candidate = None;
    }

    /// Time that queues get to run empty.
    fn measuring_time(&self) -> Duration {
        let smoothed = self.smoothed.unwrap_or_default();
        (smoothed * 4).max(Duration::from_millis(50))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at_s(s: u64) -> Time {
        Time::from_nanos(s * 1_000_000_000)
    }

    fn rtt(samples: &[Duration]) -> Rtt {
        let mut rtt = Rtt::new();
        for &sample in samples {
            rtt.handle_sample(Time::ZERO, sample);
        }
        rtt
    }

    #[test]
    fn the_first_sample_counts_fully_each_later_one_an_eighth() {
        assert_eq!(Rtt::new().smoothed(), None);
        assert_eq!(rtt(&[8 * MS]).smoothed(), Some(8 * MS));
        assert_eq!(rtt(&[8 * MS]).deviation(), 4 * MS);
        assert_eq!(rtt(&[8 * MS, 16 * MS]).smoothed(), Some(9 * MS));
        assert_eq!(rtt(&[8 * MS, 16 * MS]).deviation(), 5 * MS);
        assert_eq!(rtt(&[8 * MS, 16 * MS]).queueing(), 8 * MS);
    }

    #[test]
    fn zero_and_ages_are_refused_and_counted() {
        let rtt = rtt(&[8 * MS, Duration::ZERO, Duration::MAX, 10_001 * MS]);
        assert_eq!(rtt.smoothed(), Some(8 * MS));
        assert_eq!(rtt.absurd(), 3);
    }

    #[test]
    fn an_outlier_is_reduced_and_a_lasting_change_is_believed() {
        let seconds = 8_000 * MS;
        assert_eq!(
            rtt(&[8 * MS, seconds]).smoothed(),
            Some(19_500 * MS / 1_000)
        );
        assert_eq!(rtt(&[8 * MS, seconds]).absurd(), 1);
        let lasting = rtt(&[[8 * MS; 1].as_slice(), [seconds; 40].as_slice()].concat());
        assert!(lasting.smoothed().unwrap() > 7_500 * MS);
    }

    #[test]
    fn the_shortest_is_measured_anew_once_it_is_old() {
        let mut rtt = rtt(&[2 * MS]);
        rtt.handle_sample(at_s(9), 9 * MS);
        assert!(!rtt.is_shortest_old(at_s(10)));
        assert_eq!(rtt.queueing(), 7 * MS);
        for (millis, sample) in [(10_001, 9), (10_020, 5), (10_040, 6)] {
            assert!(rtt.is_shortest_old(Time::ZERO + millis * MS));
            rtt.handle_sample(Time::ZERO + millis * MS, sample * MS);
        }
        assert_eq!(rtt.queueing(), 4 * MS);
        rtt.handle_sample(Time::ZERO + 10_080 * MS, 7 * MS);
        assert!(!rtt.is_shortest_old(Time::ZERO + 10_080 * MS));
        assert_eq!(rtt.queueing(), 2 * MS);
    }
}
