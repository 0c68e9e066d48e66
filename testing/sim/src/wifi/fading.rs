//! Variation of a channel's SNR over time.
//!
//! Slow log-normal fading: the deviation in dB is Gaussian, exponentially correlated in time (an
//! Ornstein-Uhlenbeck process) and constant during one PPDU. It stands for the effective SNR that
//! a wideband MIMO receiver has after its equaliser: frequency and antenna diversity average the
//! deep notches of Rayleigh fading away, what remains is nearly Gaussian in dB. Both directions of
//! a pair see the same deviation, as the channel is reciprocal.

use core::time::Duration;

use airdma_transport::Time;

use crate::random::Random;

/// Parameters of a channel's fading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fading {
    /// Standard deviation of the SNR, in dB; 0 for a channel that does not fade.
    pub sigma_db: f64,
    /// Time after which the correlation has fallen to 1/e.
    pub coherence: Duration,
}

impl Fading {
    /// A channel without fading.
    pub const NONE: Fading = Fading {
        sigma_db: 0.0,
        coherence: Duration::from_millis(100),
    };

    /// People at walking pace in a room. An assumption, not a measurement; with it the rate
    /// changes by more than a factor of two within 40 ms in less than 1 % of the cases, as SMUFF
    /// (NSDI 2024, figure 10) saw.
    pub const INDOOR: Fading = Fading {
        sigma_db: 1.5,
        coherence: Duration::from_millis(100),
    };
}

/// The channel between two stations.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) mean_db: f64,
    deviation_db: f64,
    drawn_at: Option<Time>,
}

impl Channel {
    pub(crate) fn new(mean_db: f64) -> Self {
        Channel {
            mean_db,
            deviation_db: 0.0,
            drawn_at: None,
        }
    }

    /// The SNR of a PPDU that starts now.
    pub(crate) fn snr_db(&mut self, now: Time, fading: &Fading, random: &mut Random) -> f64 {
        if fading.sigma_db > 0.0 {
            let kept = self.drawn_at.map_or(0.0, |drawn_at| {
                let age = now.duration_since(drawn_at).as_secs_f64();
                (-age / fading.coherence.as_secs_f64()).exp()
            });
            let fresh = fading.sigma_db * (1.0 - kept * kept).sqrt();
            self.deviation_db = kept * self.deviation_db + fresh * gaussian(random);
            self.drawn_at = Some(now);
        }
        self.mean_db + self.deviation_db
    }
}

/// A standard normal number: twelve fractions, as exact as needed and free of branches.
fn gaussian(random: &mut Random) -> f64 {
    (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_and_correlation_are_as_set() {
        let fading = Fading {
            sigma_db: 2.0,
            coherence: Duration::from_millis(50),
        };
        let mut random = Random::new(3);
        let mut channel = Channel::new(20.0);
        let step = Duration::from_millis(25);
        let mut now = Time::ZERO;
        let mut values = Vec::new();
        for _ in 0..40_000 {
            values.push(channel.snr_db(now, &fading, &mut random) - 20.0);
            now = now + step;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / count;
        let covariance = values.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / count;
        assert!(mean.abs() < 0.1, "{mean}");
        assert!((variance - 4.0).abs() < 0.2, "{variance}");
        let correlation = covariance / variance;
        assert!(
            (correlation - (-0.5f64).exp()).abs() < 0.03,
            "{correlation}"
        );
    }

    #[test]
    fn a_channel_that_does_not_fade_draws_nothing() {
        let mut random = Random::new(3);
        let mut channel = Channel::new(20.0);
        let snr_db = channel.snr_db(Time::ZERO, &Fading::NONE, &mut random);
        assert_eq!(snr_db, 20.0);
        assert_eq!(random.next_u64(), Random::new(3).next_u64());
    }
}
