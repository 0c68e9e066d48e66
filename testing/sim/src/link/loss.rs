//! Loss in bursts.

use crate::random::Random;

/// The channel of Gilbert (1960) and Elliott (1963), with the names of Hasslinger and Hohlfeld
/// (2008) and of `tc-netem(8)`: a packet that finds the channel good is lost with probability
/// `1 - k`, one that finds it bad with `1 - h`; then the channel turns bad with probability `p` if
/// it was good, and good with `r` if it was bad. It begins good.
///
/// The share of packets lost is `(p (1 - h) + r (1 - k)) / (p + r)`, and the bad state lasts
/// `1 / r` packets on average. `h = 0`, `k = 1` is the simple Gilbert channel: it loses all that
/// finds it bad, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Probability to turn bad, for each packet.
    pub p: f64,
    /// Probability to turn good, for each packet.
    pub r: f64,
    /// Probability that a packet passes in the bad state.
    pub h: f64,
    /// Probability that a packet passes in the good state.
    pub k: f64,
}

impl GilbertElliott {
    /// A channel that loses this share of all packets, in bursts of this many on average.
    pub fn bursts(share: f64, mean_len: f64) -> Self {
        assert!((0.0..1.0).contains(&share) && mean_len >= 1.0);
        let r = 1.0 / mean_len;
        let p = r * share / (1.0 - share);
        assert!(p <= 1.0, "bursts that short cannot be that frequent");
        GilbertElliott {
            p,
            r,
            h: 0.0,
            k: 1.0,
        }
    }

    /// Whether a packet is lost; reads and updates the state in `bad`.
    pub(crate) fn loses(&self, bad: &mut bool, random: &mut Random) -> bool {
        let passes = if *bad { self.h } else { self.k };
        let lost = !random.chance(passes);
        let turns = if *bad { self.r } else { self.p };
        *bad ^= random.chance(turns);
        lost
    }
}
