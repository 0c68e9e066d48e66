//! Options of a link, in the words of the command line.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::controller::Plan;
use crate::error::LinkError;
use crate::hosts::Place;
use crate::profile::Profile;
use crate::signal::{Signal, Walk};

/// One of `snr`, `distance`, `trace` and `walk` at most; none: the profile's own SNR.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// A name, or a TOML file.
    pub profile: String,
    /// In dB.
    pub snr: Option<f64>,
    /// In metres.
    pub distance: Option<f64>,
    /// A CSV file.
    pub trace: Option<PathBuf>,
    /// toward, away or random.
    pub walk: Option<Walk>,
    /// Number of other stations.
    pub stations: usize,
    /// Loss behind the MAC: 0 to 1.
    pub loss: f64,
    /// Seed of the model.
    pub seed: u64,
    /// One scheme instead of rate control.
    pub mcs: Option<u8>,
    /// No radio: the bare veth pair, to compare with.
    pub plain: bool,
    /// Over a plain one segmented packets cross whole, as between any two containers. Over a radio
    /// each packet crosses by itself.
    pub whole: bool,
    /// Two interfaces that are there, in place of two new hosts.
    pub between: Option<[Place; 2]>,
}

/// More are more than a channel has room for.
const STATIONS_MAX: usize = 100;
const DISTANCE_M_MAX: f64 = 10_000.0;

impl Default for Options {
    fn default() -> Options {
        Options {
            profile: "wifi5-80".into(),
            snr: None,
            distance: None,
            trace: None,
            walk: None,
            stations: 0,
            loss: 0.0,
            seed: 1,
            mcs: None,
            plain: false,
            whole: false,
            between: None,
        }
    }
}

impl Options {
    /// Reads what has to be read, and checks all of it.
    ///
    /// # Errors
    ///
    /// What cannot be, and what would be right.
    pub fn plan(&self) -> Result<Plan, LinkError> {
        let profile = Profile::find(&self.profile)?;
        let within = |value: f64, what: &str, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                return Ok(value);
            }
            Err(LinkError::Asked(format!(
                "{what} {value}: it must be between {least} and {most}"
            )))
        };
        within(self.loss, "--loss", 0.0, 1.0)?;
        within(self.stations as f64, "--stations", 0.0, STATIONS_MAX as f64)?;
        let mcs_max = profile.mac.phy.mcs_max();
        if let Some(mcs) = self.mcs {
            within(mcs.into(), "--mcs", 0.0, mcs_max.into())?;
        }
        let signal = if let Some(snr_db) = self.snr {
            Signal::steady(within(snr_db, "--snr", -30.0, 100.0)?)
        } else if let Some(distance_m) = self.distance {
            let distance_m = within(distance_m, "--distance", 0.1, DISTANCE_M_MAX)?;
            Signal::steady(profile.snr_at_db(distance_m))
        } else if let Some(file) = &self.trace {
            let name = file.display().to_string();
            let text = fs::read_to_string(file)
                .map_err(|error| LinkError::Asked(format!("reading the trace {name}: {error}")))?;
            Signal::parse(&text, &name, &profile)?
        } else if let Some(walk) = self.walk {
            Signal::walk(walk, &profile, self.seed)
        } else {
            Signal::steady(profile.snr_db)
        };
        Ok(Plan {
            profile,
            signal,
            stations: self.stations,
            loss: self.loss,
            seed: self.seed,
            mcs: self.mcs,
            plain: self.plain,
        })
    }

    /// As one would write them, without what is as usual.
    pub fn words(&self) -> String {
        let mut words = format!("--profile {}", self.profile);
        let mut add = |option: &str, value: Option<String>| {
            if let Some(value) = value {
                words.push_str(&format!(" --{option} {value}"));
            }
        };
        add("snr", self.snr.map(|value| value.to_string()));
        add("distance", self.distance.map(|value| value.to_string()));
        let trace = self.trace.as_ref();
        add("trace", trace.map(|file| file.display().to_string()));
        add(
            "walk",
            self.walk.map(|walk| format!("{walk:?}").to_lowercase()),
        );
        add(
            "stations",
            (self.stations > 0).then(|| self.stations.to_string()),
        );
        add("loss", (self.loss > 0.0).then(|| self.loss.to_string()));
        add("mcs", self.mcs.map(|value| value.to_string()));
        add("plain", self.plain.then(String::new));
        let between = self.between.as_ref();
        add(
            "between",
            between.map(|[a, b]| format!("{},{}", a.words(), b.words())),
        );
        add("seed", Some(self.seed.to_string()));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let usual = Options::default;
        let cases = [
            (
                Options {
                    snr: Some(f64::NAN),
                    ..usual()
                },
                "--snr NaN",
            ),
            (
                Options {
                    snr: Some(400.0),
                    ..usual()
                },
                "--snr 400: it must be between -30 and 100",
            ),
            (
                Options {
                    distance: Some(-1.0),
                    ..usual()
                },
                "--distance -1",
            ),
            (
                Options {
                    loss: 1.5,
                    ..usual()
                },
                "--loss 1.5: it must be between 0 and 1",
            ),
            (
                Options {
                    stations: 101,
                    ..usual()
                },
                "--stations 101",
            ),
            (
                Options {
                    mcs: Some(10),
                    ..usual()
                },
                "--mcs 10: it must be between 0 and 9",
            ),
            (
                Options {
                    trace: Some("/not/there".into()),
                    ..usual()
                },
                "reading the trace /not/there",
            ),
            (
                Options {
                    profile: "x".into(),
                    ..usual()
                },
                "no profile is called x",
            ),
        ];
        for (options, expected) in cases {
            let found = options.plan().unwrap_err().to_string();
            assert!(found.starts_with(expected), "{found}\n{expected}");
        }
    }

    #[test]
    fn words_say_what_is_not_as_usual() {
        let options = Options {
            walk: Some(Walk::Away),
            loss: 0.01,
            ..Options::default()
        };
        assert_eq!(
            options.words(),
            "--profile wifi5-80 --walk away --loss 0.01 --seed 1"
        );
    }
}
