//! `airdma bench`: airdma compared with other programs, in turns, on links that it makes itself.
//!
//! [`suite`] lists the cases, [`peer`] knows each program's command line and output, [`run`] takes
//! the samples between two hosts of `airdma-lab`, [`measurement`] keeps all of them, [`targets`]
//! and [`report`] evaluate them, [`plot`] draws them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use airdma_lab::LabError;
use anyhow::{Context, bail, ensure};
use regex::Regex;
use serde::Serialize;

mod daemon;
mod end;
mod files;
mod machine;
mod measurement;
mod part;
mod peer;
mod plot;
mod records;
mod report;
mod run;
mod selection;
mod sockets;
mod ssh;
mod streams;
mod suite;
mod table;
mod targets;
mod tools;
mod units;
mod wireless;

pub use daemon::DAEMON;
pub use end::{End, Stop, run as run_end};
pub use files::{Files, files};
pub use part::{Part, PartRuns, measure as measure_part};
pub use peer::{ManyPairs, RecordsLoad, RecordsMode, read_output};
pub use records::RECORDS;
pub use sockets::SOCKETS;
pub use streams::STREAMS;
pub use wireless::{There, Wireless, wireless};

use measurement::{FORMAT, LinkFacts, Measurement};
use suite::Series;

/// Options of `airdma bench`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Measure the cases that take a few minutes.
    pub quick: bool,
    /// Only cases whose name matches.
    pub only: Option<String>,
    /// Measure the compared programs too.
    pub peers: bool,
    /// Only print the names of the cases.
    pub list: bool,
    /// Samples of each case.
    pub runs: u32,
    /// Seconds of a bandwidth run.
    pub seconds: u32,
    /// Output files, without their extensions.
    pub output: PathBuf,
    /// Only rewrite table and plots from this JSON file.
    pub render: Option<PathBuf>,
    /// Version of airdma.
    pub version: &'static str,
}

/// Seconds that a run takes in addition to its measurement.
const OVERHEAD_S: f64 = 0.7;

/// Exit status if no measurement is possible on this machine.
const CANNOT: u8 = 2;

/// Measures, prints and writes. Must be called before any thread is started.
///
/// Exit status 0: all chosen cases were measured. 1: a run failed. 2: no measurement is possible
/// here, and the message says what to do. 128 + signal: stopped by that signal; the samples until
/// then are written.
pub fn bench(options: &Options) -> ExitCode {
    match try_bench(options) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "airdma bench: {error:#}");
            ExitCode::from(CANNOT)
        }
    }
}

fn try_bench(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(file) = &options.render {
        let taken = load(file)?;
        write_page(&taken, &file.with_extension(""))?;
        return Ok(ExitCode::SUCCESS);
    }
    let only = options.only.as_deref().map(Regex::new).transpose();
    let only = only.context("--only wants a regular expression")?;
    let all = selection::choose(suite::all(options.quick), only.as_ref(), options.peers);
    ensure!(
        !all.is_empty(),
        "no case has such a name: `airdma bench --list` prints them all"
    );
    if options.list {
        return list(&all);
    }
    let (series, missing) = selection::installed(all);
    let mut err = io::stderr();
    for gone in &missing {
        let (program, package, count) = (&gone.program, &gone.package, gone.labels.len());
        writeln!(
            err,
            "airdma bench: {program} is not there ({package}): {count} series left out"
        )?;
    }
    let of_perftest = missing.iter().find(|missing| missing.package == "perftest");
    if let Some(missing) = of_perftest {
        let program = &missing.program;
        bail!(
            "{program} is not installed, and airdma is measured with it: apt-get install perftest"
        );
    }
    ensure!(
        !series.is_empty(),
        "none of the chosen programs is installed"
    );
    airdma_lab::enter()?;
    measure(options, &series, missing)
}

fn list(all: &[Series]) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    for series in all {
        for x in &series.xs {
            writeln!(out, "{:<45} {}", series.case(*x), series.label)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    options: &Options,
    series: &[Series],
    missing: Vec<measurement::Missing>,
) -> anyhow::Result<ExitCode> {
    let airdma = std::env::current_exe().context("finding this binary")?;
    let effort = run::Effort {
        runs: options.runs.max(1),
        seconds: options.seconds.max(1),
        airdma: airdma.to_string_lossy().into_owned(),
    };
    let known_missing = missing.len();
    let mut taken = begin(options.version, &effort, series, missing);
    for warning in machine::warnings(&taken.machine) {
        writeln!(io::stderr(), "airdma bench: {warning}")?;
    }
    let runs: u32 = series
        .iter()
        .map(|series| series.xs.len() as u32)
        .sum::<u32>()
        * effort.runs;
    let minutes = f64::from(runs) * (f64::from(effort.seconds) + OVERHEAD_S) / 60.0;
    writeln!(
        io::stderr(),
        "airdma bench: {runs} runs, about {minutes:.0} min"
    )?;
    // Fails now rather than after half an hour if the folder is missing or not writable.
    save(&taken, &options.output)?;
    let outcome = run::measure(series, &effort, &mut taken, |taken| {
        save(taken, &options.output)
    });
    // Programs that are not installed were known before; a link that cannot be made is a failure.
    let failed = taken.failures() > 0 || taken.missing.len() > known_missing;
    let mut code = ExitCode::from(u8::from(failed));
    if let Err(error) = outcome {
        let Some(LabError::Interrupted(signal)) = error.downcast_ref() else {
            return Err(error);
        };
        taken.interrupted = true;
        code = ExitCode::from(128 + *signal as u8);
    }
    save(&taken, &options.output)?;
    write_page(&taken, &options.output)?;
    let mut out = io::stdout();
    let rows = report::target_rows(&taken);
    if rows.len() > 1 {
        writeln!(out, "\n{}", table::aligned(&rows))?;
    }
    writeln!(out, "\nWhere airdma loses:\n{}", report::losses(&taken))?;
    Ok(code)
}

fn begin(
    version: &str,
    effort: &run::Effort,
    series: &[Series],
    missing: Vec<measurement::Missing>,
) -> Measurement {
    let mut programs: Vec<&str> = series.iter().flat_map(Series::programs).collect();
    programs.sort_unstable();
    programs.dedup();
    let mut links: Vec<LinkFacts> = Vec::new();
    for link in series.iter().map(|series| series.link) {
        if links.iter().all(|known| known.name != link.name) {
            links.push(LinkFacts {
                name: link.name.into(),
                label: link.label.into(),
                mtu: link.cable.mtu,
            });
        }
    }
    let words = std::env::args().skip(1);
    Measurement {
        format: FORMAT,
        command: format!("airdma {}", words.collect::<Vec<_>>().join(" ")),
        started: machine::now(),
        runs: effort.runs,
        seconds: effort.seconds,
        interrupted: false,
        machine: machine::describe(),
        versions: machine::versions(version, &programs),
        missing,
        links,
        curves: Vec::new(),
    }
}

fn load(file: &Path) -> anyhow::Result<Measurement> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let taken: Measurement = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a result of airdma bench", file.display()))?;
    ensure!(
        taken.format == FORMAT,
        "{} has format {}, not {FORMAT}",
        file.display(),
        taken.format
    );
    Ok(taken)
}

/// Writes the JSON file of an output atomically: an interrupted run resumes from it.
fn save(taken: &impl Serialize, stem: &Path) -> anyhow::Result<()> {
    let part = with_ending(stem, "json.part");
    let mut text = serde_json::to_string_pretty(taken)?;
    text.push('\n');
    write(&part, text.as_bytes())?;
    let file = with_ending(stem, "json");
    fs::rename(&part, &file).with_context(|| format!("writing {}", file.display()))
}

/// Writes the page of an output.
///
/// `pictures` exist: the ends of their names, and their captions. Remarks written by hand live in a
/// file of their own, `STEM.remarks`, so that they outlive the next measurement.
fn write_illustrated(
    stem: &Path,
    pictures: &[(String, String)],
    markdown: impl FnOnce(&[(String, String)], &str) -> String,
) -> anyhow::Result<()> {
    let name = stem.file_name().context("--output wants a file name")?;
    let name = name.to_string_lossy();
    let shown: Vec<(String, String)> = pictures
        .iter()
        .map(|(part, what)| (format!("{name}-{part}.svg"), what.clone()))
        .collect();
    let mut remarks = fs::read_to_string(with_ending(stem, "remarks")).unwrap_or_default();
    if !remarks.is_empty() {
        // A paragraph of its own, however the file ends.
        remarks = format!("{}\n\n", remarks.trim_end());
    }
    let page = with_ending(stem, "md");
    write(&page, markdown(&shown, &remarks).as_bytes())?;
    let (page, count) = (page.display(), pictures.len());
    writeln!(
        io::stdout(),
        "\nwrote {page} and {count} pictures (SVG, PNG) beside it"
    )?;
    Ok(())
}

fn write_page(taken: &Measurement, stem: &Path) -> anyhow::Result<()> {
    let name = stem.file_name().context("--output wants a file name")?;
    let name = name.to_string_lossy();
    let page = with_ending(stem, "md");
    write(&page, report::markdown(taken, &name).as_bytes())?;
    let mut files = vec![page];
    files.extend(plot::save(taken, stem)?);
    let files: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    writeln!(io::stdout(), "\nwrote {}", files.join(", "))?;
    Ok(())
}

/// Appends an extension; `with_extension` would replace what follows a dot in the name.
fn with_ending(stem: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}.{ending}", stem.display()))
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        let making = || format!("making {}", folder.display());
        fs::create_dir_all(folder).with_context(making)?;
    }
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// A closed reader (`airdma bench --list | head -1`) is not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
