//! What was measured, as JSON and as a page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::SIGNALS;
use crate::table;

/// How often one looks at what arrived.
pub const LOOK: Duration = Duration::from_millis(500);

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Payload, in Mb/s; of UDP the best second.
    pub mbit: f64,
    /// Payload that arrived.
    pub bytes: f64,
    /// From the first byte to the last, in seconds.
    pub seconds: f64,
    /// CPU time of both ends for 10^9 bytes, in seconds.
    pub cpu_s_per_gb: f64,
    /// Packets from the receiver for 10^6 bytes, those of ping not counted.
    pub answers_per_mb: f64,
    /// Round trips beside it, in ms: median and 95 %.
    pub ping_ms: [f64; 2],
    /// What arrived over the link in each half second, in Mb/s, and the radio's rate by the table.
    pub over_time: Vec<[f64; 2]>,
    /// Why it failed, if it did.
    pub error: Option<String>,
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

/// Everything that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Taken {
    pub format: u32,
    pub command: String,
    pub started: String,
    pub machine: BTreeMap<String, String>,
    pub cases: Vec<Case>,
    pub beside: Vec<Beside>,
}

/// What a transport leaves to a flow of TCP CUBIC beside it, at a good signal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beside {
    pub transport: String,
    /// Of TCP, alone and beside it, in Mb/s: each run.
    pub alone_mbit: Vec<f64>,
    pub beside_mbit: Vec<f64>,
    /// Why runs failed.
    pub errors: Vec<String>,
}

/// The median of what was measured, if anything was.
fn median(case: &Case, value: impl Fn(&Sample) -> f64) -> Option<f64> {
    let good = case.samples.iter().filter(|sample| sample.error.is_none());
    middle(good.map(value).collect())
}

/// The median of what is a number.
pub fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn failures(case: &Case) -> usize {
    let failed = case.samples.iter().filter(|sample| sample.error.is_some());
    failed.count()
}

pub fn line(case: &Case) -> String {
    let mbit = median(case, |sample| sample.mbit)
        .map_or("failed".into(), |mbit| format!("{mbit:.0} Mb/s"));
    format!(
        "{:<32} {mbit}, {} of {} failed",
        format!("{}/{}/{}", case.signal, case.transport, case.megabytes),
        failures(case),
        case.samples.len()
    )
}

pub fn save(taken: &Taken, stem: &Path) -> anyhow::Result<()> {
    let file = PathBuf::from(format!("{}.json", stem.display()));
    let mut text = serde_json::to_string_pretty(taken)?;
    text.push('\n');
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

pub fn markdown(taken: &Taken) -> String {
    let mut text = String::from("# Transports on an emulated Wi-Fi link\n\n");
    let _ = writeln!(text, "`{}`, {}.\n", taken.command, taken.started);
    for (what, value) in &taken.machine {
        let _ = writeln!(text, "- {what}: {value}");
    }
    text.push_str(
        "\nMedians. The line rate is the best second of bare UDP on that link. A failed run is one that did not end well within a minute; \
         why is in the JSON file.\n",
    );
    for signal in &SIGNALS {
        let cases: Vec<&Case> = taken
            .cases
            .iter()
            .filter(|case| case.signal == signal.name)
            .collect();
        let Some(first) = cases.first() else { continue };
        let _ = writeln!(
            text,
            "\n## {}\n\n`airdma link up {}`\n",
            signal.name, first.link
        );
        let udp = cases.iter().find(|case| case.transport == "udp");
        let line = udp.and_then(|case| median(case, |sample| sample.mbit));
        let mut rows = vec![
            [
                "transport",
                "MB",
                "Mb/s",
                "of the line rate",
                "seconds",
                "CPU s/GB",
                "answers/MB",
                "ping ms",
                "ping 95 %",
                "failed",
            ]
            .map(String::from)
            .to_vec(),
        ];
        for case in cases {
            let cell = |value: Option<f64>, digits: usize| {
                value.map_or("-".into(), |value| format!("{value:.digits$}"))
            };
            let mbit = median(case, |sample| sample.mbit);
            let size = match (&*case.transport, signal.walk) {
                ("udp", _) | (_, Some(_)) => "-".into(),
                _ => case.megabytes.to_string(),
            };
            rows.push(vec![
                case.transport.clone(),
                size,
                cell(mbit, 0),
                cell(mbit.zip(line).map(|(mbit, line)| mbit / line), 2),
                cell(median(case, |sample| sample.seconds), 2),
                cell(median(case, |sample| sample.cpu_s_per_gb), 2),
                cell(median(case, |sample| sample.answers_per_mb), 0),
                cell(median(case, |sample| sample.ping_ms[0]), 1),
                cell(median(case, |sample| sample.ping_ms[1]), 1),
                format!("{} of {}", failures(case), case.samples.len()),
            ]);
        }
        let _ = writeln!(text, "{}", table::markdown(&rows, 1));
    }
    if !taken.beside.is_empty() {
        text.push_str(
            "\n## A flow of TCP CUBIC beside it\n\nAt a good signal, for five seconds. Half would be fair.\n\n",
        );
        let titles = [
            "beside",
            "Mb/s alone",
            "Mb/s beside",
            "share left",
            "failed",
        ];
        let mut rows = vec![titles.map(String::from).to_vec()];
        for beside in &taken.beside {
            let [alone, both] = [&beside.alone_mbit, &beside.beside_mbit]
                .map(|runs| middle(runs.clone()).unwrap_or(f64::NAN));
            let share = both / alone;
            let numbers = [
                format!("{alone:.0}"),
                format!("{both:.0}"),
                format!("{share:.2}"),
                format!("{} of {}", beside.errors.len(), beside.alone_mbit.len()),
            ];
            rows.push([vec![beside.transport.clone()], numbers.to_vec()].concat());
        }
        let _ = writeln!(text, "{}", table::markdown(&rows, 1));
    }
    text
}

/// What arrived over time, by transport, and what the radio would have carried.
pub fn curves<'a>(
    cases: impl Iterator<Item = &'a Case>,
    signal: &str,
) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut curves = Vec::new();
    let points = |sample: &Sample, which: usize| -> Vec<(f64, f64)> {
        let rows = sample.over_time.iter().enumerate();
        rows.map(|(index, row)| (LOOK.as_secs_f64() * (index + 1) as f64, row[which]))
            .collect()
    };
    for case in cases.filter(|case| case.signal == signal) {
        if let Some(sample) = case.samples.first() {
            if curves.is_empty() {
                curves.push(("the radio, by the table".to_owned(), points(sample, 1)));
            }
            curves.push((case.transport.clone(), points(sample, 0)));
        }
    }
    curves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(transport: &str, mbit: &[f64]) -> Case {
        let sample = |mbit: &f64| Sample {
            mbit: *mbit,
            error: (*mbit == 0.0).then(|| "no".into()),
            ping_ms: [f64::NAN; 2],
            ..Sample::default()
        };
        Case {
            signal: "good".into(),
            link: "--snr 35".into(),
            transport: transport.into(),
            megabytes: 10,
            samples: mbit.iter().map(sample).collect(),
        }
    }

    #[test]
    fn a_failed_run_is_no_sample_and_is_said() {
        let cases = vec![
            case("udp", &[600.0]),
            case("tcp_cubic", &[300.0, 0.0, 200.0, 400.0]),
            case("airdma_write", &[0.0]),
        ];
        let taken = Taken {
            format: 1,
            command: "airdma bench wireless".into(),
            started: "now".into(),
            machine: Default::default(),
            cases,
            beside: vec![Beside {
                transport: "udp".into(),
                alone_mbit: vec![400.0],
                beside_mbit: vec![100.0],
                errors: vec!["no".into()],
            }],
        };
        let page = markdown(&taken);
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
        assert!(
            rows[3].contains(" 300 ") && rows[3].contains("0.50") && rows[3].contains("1 of 4"),
            "{page}"
        );
        assert!(rows[4].contains("1 of 1"), "{page}");
        assert!(page.contains("0.25"), "{page}");
    }
}
