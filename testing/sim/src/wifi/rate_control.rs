//! Choice of a station's scheme from the share of answered MPDUs, in the manner of minstrel_ht.
//!
//! Per scheme, the share of MPDUs that arrive is averaged over intervals of 50 ms, old ones with a
//! weight of 3/4 each. It determines the throughput; the best two are tried in turn, then the most
//! reliable. A few PPDUs in each interval, short ones, try schemes without recent results. As in
//! Linux, a collision looks like a bad scheme.

use core::time::Duration;

use airdma_transport::Time;

use super::phy::{PPDU_NS_MAX, Phy, subframe_bytes};
use crate::random::Random;

/// Interval of the averages (HZ/20 in mac80211).
pub const INTERVAL: Duration = Duration::from_millis(50);

/// MPDUs of a PPDU that tries another scheme.
pub const PROBE_MPDUS_MAX: usize = 8;

/// Weight of the last interval's average.
const WEIGHT_OLD: f64 = 0.75;

/// Schemes that arrive more often than this count as equally reliable.
const RELIABLE: f64 = 0.9;

/// Schemes that arrive less often than this have no throughput.
const HOPELESS: f64 = 0.1;

/// Whole PPDUs lost in a row after which a scheme is left without waiting for the interval's end.
const LOST_IN_A_ROW_MAX: u8 = 2;

/// Cost of each PPDU besides its symbols, in ns: AIFS, half of the smallest window, SIFS and block
/// ack.
const ACCESS_NS: f64 = 160_000.0;

/// Attempts of the oldest MPDU with the best and the second best scheme, each.
const ATTEMPTS_EACH: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Scheme {
    /// Averaged share of MPDUs that arrived; meaningless before `tried`.
    probability: f64,
    tried: bool,
    /// Intervals since the last attempt.
    age: i32,
    attempts: u32,
    successes: u32,
}

/// Scheme of a PPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The scheme.
    pub mcs: u8,
    /// Whether this PPDU only tries it.
    pub probing: bool,
}

/// The rate control of one sender towards one receiver.
#[derive(Clone, Debug)]
pub struct RateControl {
    phy: Phy,
    schemes: Vec<Scheme>,
    best: u8,
    second: u8,
    reliable: u8,
    lost_in_a_row: u8,
    mpdus_mean: f64,
    next_update: Option<Time>,
    next_probe: Time,
    probes: Vec<u8>,
    intervals: u64,
    fixed: Option<u8>,
}

impl RateControl {
    /// Starts with the slowest scheme and tries others at once.
    pub fn new(phy: Phy) -> Self {
        let scheme = Scheme {
            probability: 0.0,
            tried: false,
            age: 0,
            attempts: 0,
            successes: 0,
        };
        RateControl {
            phy,
            schemes: vec![scheme; usize::from(phy.mcs_max()) + 1],
            best: 0,
            second: 0,
            reliable: 0,
            lost_in_a_row: 0,
            mpdus_mean: 1.0,
            next_update: None,
            next_probe: Time::ZERO,
            probes: Vec::new(),
            intervals: 0,
            fixed: None,
        }
    }

    /// Uses this scheme only, or goes back to choosing.
    pub fn fix(&mut self, mcs: Option<u8>) {
        assert!(mcs.is_none_or(|mcs| mcs <= self.phy.mcs_max()));
        self.fixed = mcs;
    }

    /// The scheme considered best.
    pub fn best(&self) -> u8 {
        self.fixed.unwrap_or(self.best)
    }

    /// The scheme for the next PPDU, whose oldest MPDU was sent `attempts` times before.
    pub fn choose(&mut self, now: Time, attempts: u8, random: &mut Random) -> Choice {
        if let Some(mcs) = self.fixed {
            return Choice {
                mcs,
                probing: false,
            };
        }
        if self.next_update.is_none_or(|at| at <= now) {
            self.update(now, random);
        }
        if attempts == 0
            && self.next_probe <= now
            && let Some(mcs) = self.probes.pop()
        {
            self.next_probe = now + INTERVAL / 8;
            return Choice { mcs, probing: true };
        }
        let mcs = match attempts / ATTEMPTS_EACH {
            0 => self.best,
            1 => self.second,
            _ => self.reliable,
        };
        Choice {
            mcs,
            probing: false,
        }
    }

    /// Records the result of a PPDU.
    pub fn report(&mut self, choice: Choice, attempts: u32, successes: u32) {
        let scheme = &mut self.schemes[usize::from(choice.mcs)];
        scheme.attempts += attempts;
        scheme.successes += successes;
        if choice.probing {
            return;
        }
        self.mpdus_mean += (f64::from(attempts) - self.mpdus_mean) / 8.0;
        if choice.mcs != self.best {
            return;
        }
        if successes > 0 {
            self.lost_in_a_row = 0;
            return;
        }
        self.lost_in_a_row += 1;
        if self.lost_in_a_row >= LOST_IN_A_ROW_MAX {
            scheme.probability /= 2.0;
            self.step_down();
        }
    }

    fn step_down(&mut self) {
        self.lost_in_a_row = 0;
        self.best = self.best.saturating_sub(1);
        self.second = self.second.min(self.best.saturating_sub(1));
        self.reliable = self.reliable.min(self.second);
    }

    /// The end of an interval: averages, the order of the schemes, and what to try next.
    fn update(&mut self, now: Time, random: &mut Random) {
        self.next_update = Some(now + INTERVAL);
        self.intervals += 1;
        for scheme in &mut self.schemes {
            scheme.fold();
        }
        let schemes = 0..=self.phy.mcs_max();
        let throughputs: Vec<f64> = schemes.clone().map(|mcs| self.throughput(mcs)).collect();
        let top = |but: Option<u8>| {
            let rated = schemes.clone().filter(|&mcs| Some(mcs) != but);
            rated.fold(0, |best, mcs| {
                if throughputs[usize::from(mcs)] > throughputs[usize::from(best)] {
                    mcs
                } else {
                    best
                }
            })
        };
        let old_best = self.best;
        self.best = top(None);
        self.second = top(Some(self.best));
        self.reliable = self.most_reliable(&throughputs);
        if self.best != old_best {
            self.lost_in_a_row = 0;
        }
        self.plan_probes(random);
        self.next_probe = now;
    }

    /// The fastest scheme that nearly always arrives, or the one that arrives most often; no faster
    /// than the second best.
    fn most_reliable(&self, throughputs: &[f64]) -> u8 {
        let limit = self.best.min(self.second);
        let mut found = 0;
        for mcs in 0..=limit {
            let (new, old) = (self.probability(mcs), self.probability(found));
            let better = if new >= 0.95 && old >= 0.95 {
                throughputs[usize::from(mcs)] > throughputs[usize::from(found)]
            } else {
                new > old
            };
            if better {
                found = mcs;
            }
        }
        found
    }

    /// The next faster scheme, two that are faster by any step, and sometimes a slower one.
    fn plan_probes(&mut self, random: &mut Random) {
        self.probes.clear();
        if self.intervals.is_multiple_of(4) && self.best > 0 {
            self.probes.push(self.best - 1);
        }
        let faster = u64::from(self.phy.mcs_max() - self.best);
        if faster == 0 {
            return;
        }
        for _ in 0..2 {
            let step = random.between(1, faster) as u8;
            self.probes.push(self.best + step);
        }
        self.probes.push(self.best + 1);
    }

    /// Share of a scheme; without attempts that of the next faster scheme that has some.
    fn probability(&self, mcs: u8) -> f64 {
        self.schemes[usize::from(mcs)..]
            .iter()
            .find(|scheme| scheme.tried)
            .map_or(0.0, |scheme| scheme.probability)
    }

    /// Bits per second, with the cost of each PPDU.
    fn throughput(&self, mcs: u8) -> f64 {
        let probability = self.probability(mcs);
        if probability < HOPELESS {
            return 0.0;
        }
        const TYPICAL_MPDU_BYTES: u32 = 1554;
        let subframe = f64::from(subframe_bytes(TYPICAL_MPDU_BYTES));
        let most = self.phy.bytes_within(mcs, PPDU_NS_MAX) as f64;
        let bytes = (subframe * self.mpdus_mean).min(most);
        let ns = bytes * 8e9 / self.phy.bits_per_s(mcs) as f64;
        probability.min(RELIABLE) * bytes * 8e9 / (ns + ACCESS_NS)
    }
}

impl Scheme {
    fn fold(&mut self) {
        self.age = self.age.saturating_add(1);
        if self.attempts == 0 {
            return;
        }
        let fresh = f64::from(self.successes) / f64::from(self.attempts);
        let old = if self.tried {
            WEIGHT_OLD.powi(self.age)
        } else {
            0.0
        };
        self.probability = old * self.probability + (1.0 - old) * fresh;
        self.tried = true;
        self.age = 0;
        self.attempts = 0;
        self.successes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wifi::Profile;
    use crate::wifi::errors;

    /// PPDUs of 1 ms each at this SNR; the best scheme after each.
    fn drive(control: &mut RateControl, now: &mut Time, ms: u64, snr_db: f64) -> Vec<u8> {
        let mut random = Random::new(5);
        let mut seen = Vec::new();
        let mut attempts = 0;
        for _ in 0..ms {
            let choice = control.choose(*now, attempts, &mut random);
            let sent = if choice.probing { 8 } else { 64 };
            let loss = errors::loss(snr_db, choice.mcs, 1554);
            let lost = (0..sent).filter(|_| random.chance(loss)).count() as u32;
            control.report(choice, sent, sent - lost);
            attempts = if lost == sent { attempts + 1 } else { 0 };
            *now = *now + Duration::from_millis(1);
            seen.push(control.best());
        }
        seen
    }

    #[test]
    fn it_finds_the_best_scheme_for_each_snr() {
        // With some dB to spare, but not enough for the next scheme.
        let cases = [
            (1.0, 0),
            (3.5, 1),
            (6.5, 2),
            (9.3, 3),
            (13.0, 4),
            (15.8, 5),
            (17.1, 6),
            (20.0, 7),
            (22.5, 8),
            (25.0, 9),
            (27.6, 10),
            (31.0, 11),
        ];
        for (snr_db, expected) in cases {
            let mut control = RateControl::new(Profile::AX_80.phy);
            let seen = drive(&mut control, &mut Time::ZERO.clone(), 1_000, snr_db);
            let settled = &seen[500..];
            let right = settled.iter().filter(|&&mcs| mcs == expected).count();
            assert!(right >= 480, "{snr_db} dB: {right} of 500 ms at {expected}");
        }
    }

    #[test]
    fn it_follows_a_step_in_both_directions() {
        let mut control = RateControl::new(Profile::AX_80.phy);
        let mut now = Time::ZERO;
        drive(&mut control, &mut now, 1_000, 40.0);
        assert_eq!(control.best(), 11);
        let down = drive(&mut control, &mut now, 1_000, 13.0);
        let settled = |seen: &[u8], mcs| seen.iter().rposition(|&m| m != mcs).map_or(0, |i| i + 1);
        assert!(settled(&down, 4) <= 400, "down in {} ms", settled(&down, 4));
        let up = drive(&mut control, &mut now, 1_000, 40.0);
        assert!(settled(&up, 11) <= 400, "up in {} ms", settled(&up, 11));
    }

    #[test]
    fn a_fixed_scheme_stays() {
        let mut control = RateControl::new(Profile::AC_80.phy);
        control.fix(Some(7));
        let seen = drive(&mut control, &mut Time::ZERO.clone(), 300, 40.0);
        assert!(seen.iter().all(|&mcs| mcs == 7));
    }
}
