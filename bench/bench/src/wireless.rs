//! `airdma bench wireless`: transports on an emulated Wi-Fi link, each alone on it, in turns.
//!
//! [`plan`] lists the cases, [`transport`] and [`ssh`] run the transports, [`run`] takes a sample,
//! [`taken`] keeps all of them, [`page`] and [`pictures`] show them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use regex::Regex;

use crate::machine::Session;
use crate::{machine, save};

mod page;
mod pictures;
mod plan;
mod run;
mod shape;
mod ssh;
mod taken;
mod targets;
mod transport;

use plan::{Row, SIGNALS, beside_runs, beside_s};
use shape::Shape;
use taken::{Taken, load};
use transport::{TRANSPORTS, Transport};

pub(crate) use transport::beside;

/// Options of `airdma bench wireless`.
#[derive(Clone, Debug, Default)]
pub struct Wireless {
    /// Measure other transports than airdma and bare UDP too.
    pub peers: bool,
    /// Only cases whose name matches (SIGNAL/TRANSPORT/MB, beside/TRANSPORT,
    /// messages/TRANSPORT/BYTES and the like).
    pub only: Option<String>,
    /// Only print the names of the cases and their duration.
    pub list: bool,
    /// Sizes in MB; empty for the signal's usual ones.
    pub megabytes: Vec<u64>,
    /// Samples of each case, if not the usual number.
    pub runs: Option<u32>,
    /// Profile of the link.
    pub profile: String,
    /// Output files, without their extensions.
    pub output: PathBuf,
    /// Treatment of an existing JSON file.
    pub there: There,
    /// Only rewrite page and pictures from this JSON file.
    pub render: Option<PathBuf>,
}

/// Treatment of the samples in an existing JSON file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum There {
    /// Discard them.
    #[default]
    Replace,
    /// Keep them, and measure only missing ones.
    Resume,
    /// Keep them, except those of the cases measured now.
    Merge,
}

/// Note on croc, a program that copies files and cannot be measured here.
pub(crate) const CROC: &str = "croc: Debian has no package of it, and it is not measured";

/// Cases that the user selected and this machine can measure.
#[derive(Default)]
struct Chosen {
    rows: Vec<Row>,
    /// Transports measured beside a TCP flow.
    beside: Vec<Transport>,
    shapes: Vec<Shape>,
}

impl Chosen {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.beside.is_empty() && self.shapes.is_empty()
    }

    fn list(&self, options: &Wireless) -> io::Result<()> {
        let rows = self.rows.iter().map(|row| (row.name(), row.runs));
        let beside = self.beside.iter().map(|transport| {
            let name = format!("beside/{}", transport.name());
            (name, beside_runs(options))
        });
        let shapes = self.shapes.iter();
        let shapes = shapes.map(|shape| (shape.name(), shape::runs(options)));
        for (name, runs) in rows.chain(beside).chain(shapes) {
            writeln!(io::stdout(), "{name:<32} {runs} runs")?;
        }
        Ok(())
    }
}

/// Measures, prints a table, and writes files.
///
/// # Errors
///
/// If no link can be made here, or the files cannot be written.
pub fn wireless(options: &Wireless) -> anyhow::Result<ExitCode> {
    if let Some(file) = &options.render {
        let taken = load(file)?;
        write_page(&taken, &file.with_extension(""))?;
        return Ok(ExitCode::SUCCESS);
    }
    let only = options.only.as_deref().map(Regex::new).transpose();
    let only = only.context("--only wants a regular expression")?;
    let chosen = Chosen {
        rows: plan::rows(options, only.as_ref()),
        beside: plan::beside(options, only.as_ref()),
        shapes: shape::chosen(options, only.as_ref()),
    };
    ensure!(
        !chosen.is_empty(),
        "no case has such a name (SIGNAL/TRANSPORT/MB, beside/TRANSPORT): --list prints them all"
    );
    let mut taken = begin(options, &chosen)?;
    let minutes = left_s(&mut taken, options, &chosen)? / 60.0;
    if options.list {
        chosen.list(options)?;
        writeln!(io::stdout(), "about {minutes:.0} min")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut err = io::stderr();
    for missing in &taken.missing {
        writeln!(err, "airdma bench: left out: {missing}")?;
    }
    let session = taken.sessions.last();
    for warning in session.map_or(Vec::new(), |last| machine::warnings(&last.machine)) {
        writeln!(err, "airdma bench: {warning}")?;
    }
    writeln!(err, "airdma bench: about {minutes:.0} min")?;
    // Fails now rather than after half an hour if the folder is missing or not writable.
    save(&taken, &options.output)?;
    measure(&mut taken, options, &chosen)?;
    write_page(&taken, &options.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Results of earlier sessions, and the description of this one.
fn begin(options: &Wireless, chosen: &Chosen) -> anyhow::Result<Taken> {
    let file = taken::file(&options.output);
    let mut taken = match options.there {
        There::Resume | There::Merge if file.exists() => load(&file)?,
        There::Replace | There::Resume | There::Merge => Taken::new(&options.profile),
    };
    ensure!(
        taken.profile == options.profile,
        "{} is of links of {}: choose another --output, or --profile {}",
        file.display(),
        taken.profile,
        taken.profile
    );
    if options.there == There::Merge {
        for row in &chosen.rows {
            taken.case(row).samples.clear();
        }
        for transport in &chosen.beside {
            taken
                .beside
                .retain(|beside| beside.transport != transport.name());
        }
        for shape in &chosen.shapes {
            taken.shaped(*shape).samples.clear();
        }
    }
    taken
        .sessions
        .push(Session::now(&[machine::HTB_HYSTERESIS]));
    let missing = TRANSPORTS.into_iter().filter_map(|transport| {
        let what = transport.missing()?;
        Some(format!("{}: {what}", transport.name()))
    });
    taken.missing = missing.collect();
    taken.missing.push(CROC.into());
    Ok(taken)
}

/// Estimated duration of the remaining cases, in seconds.
fn left_s(taken: &mut Taken, options: &Wireless, chosen: &Chosen) -> anyhow::Result<f64> {
    let mut seconds = 0.0;
    let left = |wanted: u32, done: usize| f64::from(wanted.saturating_sub(done as u32));
    for row in &chosen.rows {
        let done = taken.case(row).samples.len();
        seconds += left(row.runs, done) * row.guessed_s(&options.profile)?;
    }
    for transport in &chosen.beside {
        let done = taken.beside(*transport).alone_mbit.len();
        seconds += left(beside_runs(options), done) * beside_s();
    }
    for shape in &chosen.shapes {
        let done = taken.shaped(*shape).samples.len();
        seconds += left(shape::runs(options), done) * shape::guessed_s();
    }
    Ok(seconds)
}

/// Measures what is missing; each sample is saved at once.
fn measure(taken: &mut Taken, options: &Wireless, chosen: &Chosen) -> anyhow::Result<()> {
    let airdma = std::env::current_exe().context("finding this binary")?;
    let (rows, beside) = (&chosen.rows, &chosen.beside);
    for turn in rows.chunk_by(|one, other| one.is_beside(other)) {
        in_turns(taken, options, turn, &airdma)?;
    }
    for transport in beside {
        for run in taken.beside(*transport).alone_mbit.len() as u32..beside_runs(options) {
            let link = SIGNALS[0].options(&options.profile, u64::from(run) + 1);
            run::beside(&airdma, &link, *transport, taken.beside(*transport))?;
            save(taken, &options.output)?;
        }
        let found = taken.beside(*transport);
        let [alone, both] = [&found.alone_mbit, &found.beside_mbit]
            .map(|runs| taken::middle(runs.clone()).unwrap_or(f64::NAN));
        let name = format!("beside/{}", found.transport);
        writeln!(
            io::stdout(),
            "{name:<32} TCP CUBIC {both:.0} of {alone:.0} Mb/s"
        )?;
    }
    for shape in &chosen.shapes {
        for run in taken.shaped(*shape).samples.len() as u32..shape::runs(options) {
            let link = SIGNALS[0].options(&options.profile, u64::from(run) + 1);
            let sample = shape.sample(&airdma, &link)?;
            taken.shaped(*shape).samples.push(sample);
            save(taken, &options.output)?;
        }
        writeln!(io::stdout(), "{}", taken.shaped(*shape).line())?;
    }
    Ok(())
}

fn in_turns(
    taken: &mut Taken,
    options: &Wireless,
    turn: &[Row],
    airdma: &Path,
) -> anyhow::Result<()> {
    let runs = turn.first().map_or(0, |row| row.runs);
    for run in 0..runs {
        for row in turn {
            if taken.case(row).samples.len() > run as usize {
                continue;
            }
            let link = row.signal.options(&options.profile, u64::from(run) + 1);
            let sample = run::sample(airdma, &link, row.transport, row.megabytes)?;
            taken.case(row).samples.push(sample);
            save(taken, &options.output)?;
        }
    }
    for row in turn {
        writeln!(io::stdout(), "{}", taken.case(row).line())?;
    }
    Ok(())
}

fn write_page(taken: &Taken, stem: &Path) -> anyhow::Result<()> {
    let pictures = pictures::save(taken, stem)?;
    crate::write_illustrated(stem, &pictures, |shown, remarks| {
        page::markdown(taken, shown, remarks)
    })
}

#[cfg(test)]
mod tests {
    use super::taken::made_up;
    use super::*;

    #[test]
    fn a_run_goes_on_and_a_row_is_measured_again() {
        let stem = std::env::temp_dir().join(format!("airdma-resume-{}", std::process::id()));
        let mut options = Wireless {
            peers: true,
            profile: "wifi5-80".into(),
            output: stem.clone(),
            there: There::Resume,
            ..Wireless::default()
        };
        let only = Regex::new("^good/(udp|tcp_cubic)/10$").unwrap();
        let chosen = Chosen {
            rows: plan::rows(&options, Some(&only)),
            ..Chosen::default()
        };
        let before = made_up::taken(vec![
            made_up::case("good", "udp", 10, &[600.0; 3]),
            made_up::case("good", "tcp_cubic", 10, &[300.0]),
            made_up::case("poor", "tcp_cubic", 10, &[100.0]),
        ]);
        save(&before, &stem).unwrap();
        let mut taken = begin(&options, &chosen).unwrap();
        let of_two = 2.0 * chosen.rows[1].guessed_s("wifi5-80").unwrap();
        let left = left_s(&mut taken, &options, &chosen).unwrap();
        assert!((left - of_two).abs() < 1e-9, "{left} s are left");
        assert_eq!(taken.sessions.len(), 2);
        options.there = There::Merge;
        let taken = begin(&options, &chosen).unwrap();
        let kept: Vec<usize> = taken.cases.iter().map(|case| case.samples.len()).collect();
        assert_eq!(kept, [0, 0, 1]);
        options.profile = "wifi6-80".into();
        assert!(begin(&options, &chosen).is_err());
        std::fs::remove_file(taken::file(&stem)).unwrap();
    }
}
