//! Signal strength of the link over time: steady, recorded, or of a walking station.

use std::time::Duration;

use airdma_sim::Random;
use serde::{Deserialize, Serialize};

use crate::error::LinkError;
use crate::profile::Profile;

/// SNR over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// Moments and SNR in dB, in order; between them it is linear, before the first and after the
    /// last as they are.
    points: Vec<(Duration, f64)>,
    /// Whether the values already say how the channel fades, as measured rates do.
    pub has_fading: bool,
}

/// Direction of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Walk {
    /// From the far end to the near one.
    Toward,
    /// From near to far.
    Away,
    /// To and fro, for ten minutes.
    Random,
}

/// No two rows of a trace may be farther apart: what was between them was not recorded.
const GAP_MAX: Duration = Duration::from_secs(10);
/// Least and greatest SNR that means anything, in dB.
const SNR_DB: (f64, f64) = (-30.0, 100.0);
const NEAR_M: f64 = 2.0;
const FAR_M: f64 = 60.0;
/// Walking pace.
const SPEED_M_PER_S: f64 = 1.3;
const STEP: Duration = Duration::from_millis(100);
const RANDOM_WALK: Duration = Duration::from_secs(600);
/// Shadowing by walls and people, in dB, and the way over which it changes
/// (log-normal shadowing indoors).
const SHADOWING_DB: f64 = 3.0;
const SHADOWING_M: f64 = 2.0;

impl Signal {
    /// Always the same.
    pub fn steady(snr_db: f64) -> Signal {
        Signal {
            points: vec![(Duration::ZERO, snr_db)],
            has_fading: false,
        }
    }

    /// The SNR at a moment, in dB.
    pub fn snr_db(&self, at: Duration) -> f64 {
        let after = self.points.partition_point(|(time, _)| *time <= at);
        let Some(&(begins, from)) = after
            .checked_sub(1)
            .and_then(|index| self.points.get(index))
        else {
            return self.points.first().map_or(0.0, |(_, snr_db)| *snr_db);
        };
        match self.points.get(after) {
            None => from,
            Some(&(ends, to)) => {
                let share = (at - begins).as_secs_f64() / (ends - begins).as_secs_f64();
                from + (to - from) * share
            }
        }
    }

    /// Time of the last change.
    pub fn duration(&self) -> Duration {
        self.points.last().map_or(Duration::ZERO, |(time, _)| *time)
    }

    /// Reads a trace: lines of "time_s,snr_db" or "time_s,rate_mbit" below a line that says which.
    /// A rate is one of UDP in one direction; it becomes the SNR that gives it with this profile.
    /// `file` is what messages call it.
    ///
    /// # Errors
    ///
    /// Which line is wrong, and what would be right.
    pub fn parse(text: &str, file: &str, profile: &Profile) -> Result<Signal, LinkError> {
        let complain = |line: usize, what: String| LinkError::Text {
            file: file.to_owned(),
            line,
            what,
        };
        let rows = text
            .lines()
            .enumerate()
            .map(|(index, row)| (index + 1, row.trim()));
        let mut rows = rows.filter(|(_, row)| !row.is_empty() && !row.starts_with('#'));
        const HEADER: &str = "the first line must be \"time_s,snr_db\" or \"time_s,rate_mbit\"";
        let (line, header) = rows
            .next()
            .ok_or_else(|| complain(1, format!("there is nothing in it; {HEADER}")))?;
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let is_rate = match names[..] {
            ["time_s", "snr_db"] => false,
            ["time_s", "rate_mbit"] => true,
            _ => return Err(complain(line, format!("{header:?}: {HEADER}"))),
        };
        let mut points: Vec<(Duration, f64)> = Vec::new();
        for (line, row) in rows {
            let (time, value) = read_row(row, is_rate).map_err(|what| complain(line, what))?;
            if let Some((before, _)) = points.last() {
                if time <= *before {
                    let before = before.as_secs_f64();
                    return Err(complain(
                        line,
                        format!("the time must grow, and the row before is at {before} s"),
                    ));
                }
                if time - *before > GAP_MAX {
                    return Err(complain(
                        line,
                        format!(
                            "a gap of {:.1} s; rows may be 10 s apart: add some between, or cut the trace",
                            (time - *before).as_secs_f64()
                        ),
                    ));
                }
            }
            let snr_db = if is_rate {
                profile.snr_for_mbit(value).map_err(|most| {
                    complain(
                        line,
                        format!(
                            "{value} Mb/s; {} carries {most:.0} at most",
                            profile.mac.name
                        ),
                    )
                })?
            } else {
                value
            };
            points.push((time, snr_db));
        }
        if points.is_empty() {
            return Err(complain(line, "there is no row below the header".into()));
        }
        Ok(Signal {
            points,
            has_fading: is_rate,
        })
    }

    /// The signal of a walk, which is the same for the same seed.
    pub fn walk(walk: Walk, profile: &Profile, seed: u64) -> Signal {
        let mut random = Random::new(seed);
        let step_m = SPEED_M_PER_S * STEP.as_secs_f64();
        let mut goal_m = match walk {
            Walk::Toward => NEAR_M,
            Walk::Away => FAR_M,
            Walk::Random => between(&mut random, NEAR_M, FAR_M),
        };
        let mut at_m = match walk {
            Walk::Toward => FAR_M,
            Walk::Away => NEAR_M,
            Walk::Random => between(&mut random, NEAR_M, FAR_M),
        };
        let mut shadow_db = SHADOWING_DB * gaussian(&mut random);
        let kept = (-step_m / SHADOWING_M).exp();
        let mut points = Vec::new();
        let mut time = Duration::ZERO;
        loop {
            let snr_db = profile.snr_at_db(at_m) - shadow_db;
            points.push((time, snr_db.clamp(SNR_DB.0, SNR_DB.1)));
            let has_arrived = (goal_m - at_m).abs() <= step_m;
            let ends = match walk {
                Walk::Toward | Walk::Away => has_arrived,
                Walk::Random => time >= RANDOM_WALK,
            };
            if ends {
                return Signal {
                    points,
                    has_fading: false,
                };
            }
            if has_arrived {
                goal_m = between(&mut random, NEAR_M, FAR_M);
            }
            at_m += step_m * (goal_m - at_m).signum();
            let fresh = SHADOWING_DB * (1.0 - kept * kept).sqrt();
            shadow_db = kept * shadow_db + fresh * gaussian(&mut random);
            time += STEP;
        }
    }

    /// The trace that [`Signal::parse`] reads.
    pub fn csv(&self) -> String {
        let rows = self.points.iter();
        let rows = rows.map(|(time, snr_db)| format!("{:.3},{snr_db:.2}\n", time.as_secs_f64()));
        std::iter::once("time_s,snr_db\n".to_owned())
            .chain(rows)
            .collect()
    }
}

fn read_row(row: &str, is_rate: bool) -> Result<(Duration, f64), String> {
    let cells: Vec<&str> = row.split(',').map(str::trim).collect();
    let [time, value] = cells[..] else {
        return Err(format!(
            "{row:?} has {} cells; it must have two",
            cells.len()
        ));
    };
    let number = |cell: &str, what: &str| {
        let number: Option<f64> = cell.parse().ok();
        number
            .filter(|number| number.is_finite())
            .ok_or_else(|| format!("{what} is {cell:?}; it must be a number"))
    };
    let time = number(time, "the time")?;
    if !(0.0..=1e7).contains(&time) {
        return Err(format!(
            "the time is {time} s; it must be between 0 and 10,000,000"
        ));
    }
    let (what, least, most) = if is_rate {
        ("the rate in Mb/s", 0.0, 1e5)
    } else {
        ("the SNR in dB", SNR_DB.0, SNR_DB.1)
    };
    let value = number(value, what)?;
    if !(least..=most).contains(&value) {
        return Err(format!(
            "{what} is {value}; it must be between {least} and {most}"
        ));
    }
    Ok((Duration::from_secs_f64(time), value))
}

fn between(random: &mut Random, least: f64, most: f64) -> f64 {
    least + (most - least) * random.fraction()
}

/// A standard normal number, near enough: the sum of twelve fractions.
fn gaussian(random: &mut Random) -> f64 {
    (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile::find("wifi5-80").unwrap()
    }

    fn at(signal: &Signal, seconds: f64) -> f64 {
        signal.snr_db(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn a_trace_is_linear_between_its_rows() {
        let text = "# a comment\ntime_s, snr_db\n\n1,20\n 3.0 , 30\n";
        let signal = Signal::parse(text, "t.csv", &profile()).unwrap();
        for (seconds, snr_db) in [
            (0.0, 20.0),
            (1.0, 20.0),
            (2.5, 27.5),
            (3.0, 30.0),
            (99.0, 30.0),
        ] {
            assert!((at(&signal, seconds) - snr_db).abs() < 1e-9, "{seconds}");
        }
        assert!(!signal.has_fading);
    }

    #[test]
    fn rates_become_the_snr_that_gives_them() {
        let text = "time_s,rate_mbit\n0,0\n1,300\n2,660\n";
        let signal = Signal::parse(text, "t.csv", &profile()).unwrap();
        let [none, some, most] = [0.0, 1.0, 2.0].map(|seconds| at(&signal, seconds));
        assert!(none < -5.0 && none < some && some < most && most < 40.0);
        assert!((profile().goodput_mbit(some) - 300.0).abs() < 3.0);
        assert!(signal.has_fading);
    }

    #[test]
    fn what_is_wrong_with_a_trace_is_said_with_its_line() {
        let cases = [
            ("", "t.csv:1: there is nothing in it"),
            (
                "1,2\n",
                "t.csv:1: \"1,2\": the first line must be \"time_s,snr_db\"",
            ),
            ("time_s,snr_db\n", "t.csv:1: there is no row below"),
            ("time_s,snr_db\n0,30\n0,31\n", "t.csv:3: the time must grow"),
            ("time_s,snr_db\n0,30\n11,31\n", "t.csv:3: a gap of 11.0 s"),
            (
                "time_s,snr_db\n0,NaN\n",
                "t.csv:2: the SNR in dB is \"NaN\"; it must be a number",
            ),
            (
                "time_s,snr_db\n0,\n",
                "t.csv:2: the SNR in dB is \"\"; it must be a number",
            ),
            ("time_s,snr_db\n-1,30\n", "t.csv:2: the time is -1 s"),
            ("time_s,snr_db\n0,30,4\n", "t.csv:2: \"0,30,4\" has 3 cells"),
            (
                "time_s,snr_db\n0,500\n",
                "t.csv:2: the SNR in dB is 500; it must be between -30 and 100",
            ),
            (
                "time_s,rate_mbit\n0,-3\n",
                "t.csv:2: the rate in Mb/s is -3; it must be between 0",
            ),
            (
                "time_s,rate_mbit\n0,900\n",
                "t.csv:2: 900 Mb/s; wifi5-80 carries 668 at most",
            ),
        ];
        for (text, expected) in cases {
            let found = Signal::parse(text, "t.csv", &profile())
                .unwrap_err()
                .to_string();
            assert!(found.starts_with(expected), "{found}\n{expected}");
        }
    }

    #[test]
    fn who_walks_away_is_heard_less() {
        let profile = profile();
        for seed in 0..20 {
            let away = Signal::walk(Walk::Away, &profile, seed);
            let seconds = away.duration().as_secs_f64();
            assert!((44.0..46.0).contains(&seconds), "{seconds}");
            assert!(at(&away, 0.0) > at(&away, seconds) + 20.0);
            let toward = Signal::walk(Walk::Toward, &profile, seed);
            assert!(at(&toward, 0.0) < at(&toward, seconds) - 20.0);
        }
        let walks = [1, 1, 2].map(|seed| Signal::walk(Walk::Random, &profile, seed));
        assert_eq!(walks[0], walks[1]);
        assert_ne!(walks[0], walks[2]);
        assert!(walks[0].duration() >= RANDOM_WALK);
    }

    #[test]
    fn a_walk_is_a_trace() {
        let profile = profile();
        let walk = Signal::walk(Walk::Away, &profile, 5);
        let again = Signal::parse(&walk.csv(), "t.csv", &profile).unwrap();
        assert!((at(&walk, 20.0) - at(&again, 20.0)).abs() < 0.01);
    }
}
