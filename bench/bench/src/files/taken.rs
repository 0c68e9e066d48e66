//! The measurement: every sample, as in the JSON file.

use std::fs;
use std::path::{Path, PathBuf};

use airdma_link::measure::Complaint;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::wire::Row;
use crate::machine::Session;
use crate::measurement::median;

/// Format of the JSON file.
pub const FORMAT: u32 = 1;

/// One copy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// From the start of the command until both ends have ended.
    pub seconds: f64,
    /// As `seconds`, but until all of it is on the disk.
    pub durable_s: f64,
    /// Rate of the files, in Mb/s, by `seconds`.
    pub mbit: f64,
    /// CPU time of both ends for 10^9 bytes, in seconds.
    pub cpu_s_per_gb: f64,
    /// Reason of a failure; a copy with different content is one.
    pub error: Option<String>,
    /// Output of the failed run's programs, the latest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<Complaint>,
}

impl Sample {
    pub fn moved(bytes: u64, seconds: f64, syncing_s: f64, cpu_s: f64) -> Sample {
        let bytes = bytes as f64;
        Sample {
            seconds,
            durable_s: seconds + syncing_s,
            mbit: bytes * 8.0 / 1e6 / seconds.max(1e-9),
            cpu_s_per_gb: cpu_s / (bytes.max(1.0) / 1e9),
            ..Sample::default()
        }
    }
}

/// A cell of the table: one peer, content and link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub wire: String,
    pub peer: String,
    pub content: String,
    pub samples: Vec<Sample>,
}

/// Rate of a link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub wire: String,
    /// Rate of each measurement, in Mb/s.
    pub mbit: Vec<f64>,
}

/// All samples of a JSON file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    pub format: u32,
    /// Sessions: more than one if rows were measured again.
    pub sessions: Vec<Session>,
    /// Peers that were left out, with reasons.
    pub missing: Vec<String>,
    pub lines: Vec<Line>,
    pub cases: Vec<Case>,
}

impl Taken {
    pub fn new() -> Taken {
        Taken {
            format: FORMAT,
            sessions: Vec::new(),
            missing: Vec::new(),
            lines: Vec::new(),
            cases: Vec::new(),
        }
    }

    /// Samples of a row; new rows are empty.
    pub fn case(&mut self, row: &Row) -> &mut Case {
        let name = row.name();
        let found = self.cases.iter().position(|case| case.name() == name);
        let at = found.unwrap_or_else(|| {
            self.cases.push(Case {
                wire: row.wire.name.into(),
                peer: row.peer.name().into(),
                content: row.content.name.into(),
                samples: Vec::new(),
            });
            self.cases.len() - 1
        });
        &mut self.cases[at]
    }

    /// Line rates of a link; new links have none.
    pub fn line(&mut self, wire: &str) -> &mut Line {
        let found = self.lines.iter().position(|line| line.wire == wire);
        let at = found.unwrap_or_else(|| {
            self.lines.push(Line {
                wire: wire.into(),
                mbit: Vec::new(),
            });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }

    /// Median rate of a link, if it was measured.
    pub fn line_mbit(&self, wire: &str) -> Option<f64> {
        let line = self.lines.iter().find(|line| line.wire == wire)?;
        median(line.mbit.iter().copied())
    }

    /// Measured cases of a link and a content.
    pub fn of(&self, wire: &str, content: &str) -> Vec<&Case> {
        let is_it =
            |case: &&Case| case.wire == wire && case.content == content && !case.samples.is_empty();
        self.cases.iter().filter(is_it).collect()
    }
}

impl Case {
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.wire, self.peer, self.content)
    }

    /// Median over the runs that did not fail.
    pub fn median(&self, value: impl Fn(&Sample) -> f64) -> Option<f64> {
        let good = self.samples.iter().filter(|sample| sample.error.is_none());
        median(good.map(value))
    }

    pub fn seconds(&self) -> Option<f64> {
        self.median(|sample| sample.seconds)
    }

    pub fn durable_s(&self) -> Option<f64> {
        self.median(|sample| sample.durable_s)
    }

    pub fn failures(&self) -> usize {
        let failed = self.samples.iter().filter(|sample| sample.error.is_some());
        failed.count()
    }

    /// One line of text: the median, and the failures with the last error.
    pub fn line(&self) -> String {
        let found = self.seconds().zip(self.median(|sample| sample.mbit));
        let found = found.map_or("failed".into(), |(seconds, mbit)| {
            format!("{seconds:.2} s, {mbit:.0} Mb/s")
        });
        let mut line = format!("{:<28} {found}", self.name());
        if let Some(error) = self.samples.iter().find_map(|sample| sample.error.as_ref()) {
            let (failed, all) = (self.failures(), self.samples.len());
            line += &format!(", {failed} of {all} failed\n  {error}");
        }
        line
    }
}

/// JSON file of an output.
pub fn file(stem: &Path) -> PathBuf {
    crate::with_ending(stem, "json")
}

/// Reads a JSON file of this format.
pub fn load(file: &Path) -> anyhow::Result<Taken> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("reading {shown}"))?;
    let taken: Taken = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a result of this version's bench files"))?;
    ensure!(
        taken.format == FORMAT,
        "{shown} has format {}, not {FORMAT}",
        taken.format
    );
    Ok(taken)
}
