//! The measurement: every sample, as in the JSON file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use airdma_link::measure::Complaint;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::plan::{Row, SIGNALS};
use super::shape::{Shape, Shaped};
use super::transport::Transport;
use crate::machine::Session;

/// Format of the JSON file.
pub const FORMAT: u32 = 2;
/// Shortest busy time that counts: the kernel counts in hundredths of a second.
const BUSY_S: f64 = 1.0;
/// Interval between two looks at the arrived payload.
pub const LOOK: Duration = Duration::from_millis(500);

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Payload rate, in Mb/s; for UDP the best second.
    pub mbit: f64,
    /// Payload that arrived.
    pub bytes: f64,
    /// Seconds from the first byte to the last; for programs that copy files, from start to end.
    pub seconds: f64,
    /// CPU time of both ends' programs for 10^9 bytes, in seconds.
    pub cpu_s_per_gb: f64,
    /// Core seconds of the whole machine for 10^9 bytes; none if the run was too short to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_s_per_gb: Option<f64>,
    /// Packets from the receiver for 10^6 bytes, without ping's.
    pub answers_per_mb: f64,
    /// Round trips of ping in ms, median and 95 %; none without replies.
    pub ping_ms: Option<[f64; 2]>,
    /// Payload that arrived over the link in each half second, in Mb/s, and the radio's rate by the
    /// table.
    pub over_time: Vec<[f64; 2]>,
    /// Reason of a failure.
    pub error: Option<String>,
    /// Output of the failed run's programs, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<Complaint>,
}

impl Sample {
    /// `bytes` moved in `seconds`, at `cpu_s` CPU seconds of both ends.
    pub fn moved(bytes: f64, seconds: f64, cpu_s: f64) -> Sample {
        Sample {
            mbit: bytes * 8.0 / 1e6 / seconds.max(1e-9),
            bytes,
            seconds,
            cpu_s_per_gb: cpu_s / (bytes.max(1.0) / 1e9),
            ..Sample::default()
        }
    }

    /// Records how long the machine was busy, from before the run began until it was over.
    pub fn note_busy(&mut self, busy: Option<Duration>) {
        let is_long = self.seconds >= BUSY_S;
        let of_each = |busy: Duration| busy.as_secs_f64() / (self.bytes.max(1.0) / 1e9);
        self.busy_s_per_gb = busy.filter(|_| is_long).map(of_each);
    }
}

/// A cell of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub signal: String,
    pub link: String,
    pub transport: String,
    pub megabytes: u64,
    pub samples: Vec<Sample>,
}

/// Rate that a transport leaves to a flow of TCP CUBIC, at a good signal.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Beside {
    pub transport: String,
    /// Rate of TCP alone and beside the transport, in Mb/s, of each run.
    pub alone_mbit: Vec<f64>,
    pub beside_mbit: Vec<f64>,
    /// Errors of failed runs.
    pub errors: Vec<String>,
}

/// All samples of a JSON file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    pub format: u32,
    pub profile: String,
    /// Sessions: more than one if it was interrupted or rows were measured again.
    pub sessions: Vec<Session>,
    /// Peers that were left out, with reasons.
    pub missing: Vec<String>,
    pub cases: Vec<Case>,
    pub beside: Vec<Beside>,
    #[serde(default)]
    pub shapes: Vec<Shaped>,
}

impl Taken {
    pub fn new(profile: &str) -> Taken {
        Taken {
            format: FORMAT,
            profile: profile.into(),
            sessions: Vec::new(),
            missing: Vec::new(),
            cases: Vec::new(),
            beside: Vec::new(),
            shapes: Vec::new(),
        }
    }

    /// Samples of a row; new rows are empty.
    pub fn case(&mut self, row: &Row) -> &mut Case {
        let (signal, transport) = (row.signal.name, row.transport.name());
        let is_it = |case: &Case| {
            case.signal == signal && case.transport == transport && case.megabytes == row.megabytes
        };
        let at = self.cases.iter().position(is_it).unwrap_or_else(|| {
            self.cases.push(Case {
                signal: signal.into(),
                link: row.signal.options(&self.profile, 1).words(),
                transport: transport.into(),
                megabytes: row.megabytes,
                samples: Vec::new(),
            });
            self.cases.len() - 1
        });
        &mut self.cases[at]
    }

    /// Samples of TCP beside a transport; new transports have none.
    pub fn beside(&mut self, transport: Transport) -> &mut Beside {
        let name = transport.name();
        let found = self
            .beside
            .iter()
            .position(|beside| beside.transport == name);
        let at = found.unwrap_or_else(|| {
            self.beside.push(Beside {
                transport: name.into(),
                ..Beside::default()
            });
            self.beside.len() - 1
        });
        &mut self.beside[at]
    }

    /// Samples of a shape; new shapes have none.
    pub fn shaped(&mut self, shape: Shape) -> &mut Shaped {
        let name = shape.name();
        let found = self.shapes.iter().position(|shaped| shaped.name == name);
        let at = found.unwrap_or_else(|| {
            self.shapes.push(Shaped {
                name,
                samples: Vec::new(),
            });
            self.shapes.len() - 1
        });
        &mut self.shapes[at]
    }

    /// Measured cases of a signal, the smallest first.
    pub fn of(&self, signal: &str) -> Vec<&Case> {
        let is_it = |case: &&Case| case.signal == signal && !case.samples.is_empty();
        let cases = self.cases.iter().filter(is_it);
        let mut cases: Vec<&Case> = cases.collect();
        cases.sort_by_key(|case| case.megabytes);
        cases
    }

    /// Sizes of files, the smallest first.
    pub fn sizes(&self) -> Vec<u64> {
        let is_walk = |case: &&Case| {
            let signal = SIGNALS.iter().find(|signal| signal.name == case.signal);
            signal.is_none_or(|signal| signal.walk.is_some())
        };
        let cases = self.cases.iter().filter(|case| !is_walk(case));
        let mut sizes: Vec<u64> = cases.map(|case| case.megabytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

impl Case {
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.signal, self.transport, self.megabytes)
    }

    /// Median over the runs that did not fail.
    pub fn median(&self, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        let good = self.samples.iter().filter(|sample| sample.error.is_none());
        middle(good.map(value).collect())
    }

    /// Median; none if no run was long enough to tell.
    pub fn busy_s_per_gb(&self) -> Option<f64> {
        let good = self.samples.iter().filter(|sample| sample.error.is_none());
        middle(good.filter_map(|sample| sample.busy_s_per_gb).collect())
    }

    /// Round trips of ping, in ms: the median (0) or 95 % (1).
    pub fn ping_ms(&self, which: usize) -> Option<f64> {
        self.median(|sample| sample.ping_ms.map_or(f64::NAN, |ping| ping[which]))
    }

    pub fn failures(&self) -> usize {
        let failed = self.samples.iter().filter(|sample| sample.error.is_some());
        failed.count()
    }

    /// One line of text: the median, and the failures with the last error.
    pub fn line(&self) -> String {
        let mbit = self.median(|sample| sample.mbit);
        let mbit = mbit.map_or("failed".into(), |mbit| format!("{mbit:.0} Mb/s"));
        let (failed, all) = (self.failures(), self.samples.len());
        let mut line = format!("{:<32} {mbit}, {failed} of {all} failed", self.name());
        let bad = self.samples.iter().find(|sample| sample.error.is_some());
        if let Some(bad) = bad {
            let error = bad.error.as_deref().unwrap_or_default();
            line += &format!("\n  {}", error.lines().next().unwrap_or_default());
            let said = bad.complaints.iter().flat_map(|said| said.said.lines());
            if let Some(first) = { said }.find(|line| !line.trim().is_empty()) {
                line += &format!("\n  {first}");
            }
        }
        line
    }
}

/// Median of the values that are numbers.
pub fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// JSON file of an output.
pub fn file(stem: &Path) -> PathBuf {
    crate::with_ending(stem, "json")
}

/// Reads a JSON file of this profile's links.
pub fn load(file: &Path) -> anyhow::Result<Taken> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("reading {shown}"))?;
    let taken: Taken = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a result of this version's bench wireless"))?;
    ensure!(
        taken.format == FORMAT,
        "{shown} has format {}, not {FORMAT}",
        taken.format
    );
    Ok(taken)
}

#[cfg(test)]
pub mod made_up {
    use super::*;

    /// A case with these rates; a run of 0 Mb/s has failed.
    pub fn case(signal: &str, transport: &str, megabytes: u64, mbit: &[f64]) -> Case {
        let sample = |mbit: &f64| Sample {
            mbit: *mbit,
            seconds: 80.0 / mbit.max(1.0),
            cpu_s_per_gb: 1.5,
            ping_ms: Some([1.0, 20.0]),
            over_time: vec![[*mbit, 500.0]; 4],
            error: (*mbit == 0.0).then(|| "it ended with 1".into()),
            complaints: match *mbit == 0.0 {
                true => vec![Complaint {
                    command: "scp".into(),
                    said: "\nno such host\n".into(),
                }],
                false => Vec::new(),
            },
            ..Sample::default()
        };
        Case {
            signal: signal.into(),
            link: "--snr 35".into(),
            transport: transport.into(),
            megabytes,
            samples: mbit.iter().map(sample).collect(),
        }
    }

    pub fn taken(cases: Vec<Case>) -> Taken {
        let mut taken = Taken::new("wifi5-80");
        taken.sessions.push(Session {
            command: "airdma bench wireless".into(),
            started: "now".into(),
            machine: Default::default(),
        });
        taken.cases = cases;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::{case, taken};
    use super::*;

    #[test]
    fn a_failed_run_says_why() {
        let line = case("good", "scp", 10, &[300.0, 0.0]).line();
        assert!(line.contains("300 Mb/s, 1 of 2 failed"), "{line}");
        assert!(line.contains("it ended with 1\n  no such host"), "{line}");
    }

    #[test]
    fn what_was_saved_is_loaded_again() {
        let stem = std::env::temp_dir().join(format!("airdma-taken-{}", std::process::id()));
        // Numbers whose last digit once changed when they were written and read.
        let mbit = [221.40940124908778, 210.46309101538193, 0.0];
        let before = taken(vec![case("good", "scp", 10, &mbit)]);
        crate::save(&before, &stem).unwrap();
        let after = load(&file(&stem)).unwrap();
        assert_eq!(after.cases[0].line(), before.cases[0].line());
        let read = after.cases[0].samples.iter().map(|sample| sample.mbit);
        assert_eq!(read.collect::<Vec<_>>(), mbit);
        fs::write(file(&stem), "{\"format\": 1}").unwrap();
        assert!(load(&file(&stem)).is_err());
        fs::remove_file(file(&stem)).unwrap();
    }
}
