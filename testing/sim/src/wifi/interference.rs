//! Noise that carrier sense does not detect: radios on overlapping channels, hidden stations,
//! microwave ovens. It comes in bursts. A strong signal survives it with a slower scheme; a weak
//! one loses packets for the length of a burst, which retries do not repair.

use core::time::Duration;

use airdma_transport::Time;

use crate::random::Random;

/// Bursts of noise. Lengths are exponential with these means; a PPDU sees what is there when it
/// begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interference {
    /// Reduction of the SNR by a burst, in dB.
    pub rise_db: f64,
    /// Mean length of a burst.
    pub on: Duration,
    /// Mean length of the time between two.
    pub off: Duration,
}

/// Cycles without a call after which the state is drawn anew instead of followed.
const CYCLES_MAX: u32 = 32;

/// State of the bursts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bursts {
    is_on: bool,
    until: Time,
}

impl Bursts {
    /// Present reduction of the SNR, in dB.
    pub(crate) fn rise_db(
        &mut self,
        now: Time,
        interference: &Interference,
        random: &mut Random,
    ) -> f64 {
        let Interference { rise_db, on, off } = *interference;
        if now.duration_since(self.until) > (on + off) * CYCLES_MAX {
            let share = on.as_secs_f64() / (on + off).as_secs_f64();
            // The exponential distribution has no memory, so the state may be drawn as if it ended
            // now.
            self.is_on = !random.chance(share);
            self.until = now;
        }
        while self.until <= now {
            self.is_on = !self.is_on;
            let mean = if self.is_on { on } else { off };
            self.until = self.until + exponential(mean, random);
        }
        if self.is_on { rise_db } else { 0.0 }
    }
}

/// An exponentially distributed length with this mean, at least 1 ns.
pub(crate) fn exponential(mean: Duration, random: &mut Random) -> Duration {
    let length = mean.mul_f64(-(1.0 - random.fraction()).ln());
    length.max(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURSTS: Interference = Interference {
        rise_db: 15.0,
        on: Duration::from_millis(1),
        off: Duration::from_millis(3),
    };

    /// Share of calls, this far apart, that find a burst.
    fn share(apart: Duration) -> f64 {
        let mut random = Random::new(1);
        let mut bursts = Bursts::default();
        let looks = 20_000;
        let noisy = (0..looks)
            .filter(|&look| bursts.rise_db(Time::ZERO + apart * look, &BURSTS, &mut random) > 0.0)
            .count();
        noisy as f64 / f64::from(looks)
    }

    #[test]
    fn bursts_take_their_share_however_rarely_one_looks() {
        for apart in [
            Duration::from_micros(100),
            Duration::from_millis(10),
            Duration::from_secs(1),
        ] {
            assert!((share(apart) - 0.25).abs() < 0.03, "{}", share(apart));
        }
    }

    /// Years without a call cost two draws, not one for each burst.
    #[test]
    fn a_long_time_is_passed_over() {
        let (mut random, mut twice) = (Random::new(2), Random::new(2));
        let mut bursts = Bursts::default();
        bursts.rise_db(Time::from_nanos(1 << 60), &BURSTS, &mut random);
        let _ = [twice.next_u64(), twice.next_u64()];
        assert_eq!(random.next_u64(), twice.next_u64());
    }
}
