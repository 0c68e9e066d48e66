//! A part of the benchmark with cases, goals and a page of its own, such as `airdma bench records`.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use airdma_lab::LabError;
use anyhow::{Context, ensure};
use regex::Regex;

use crate::measurement::{LinkFacts, Measurement};
use crate::suite::Series;
use crate::targets::Verdict;
use crate::{begin, load, machine, plot, report, run, save, selection, table, with_ending, write};

/// What is special to a part.
pub struct Part {
    /// Its cases: all, or those that take a minute.
    pub cases: fn(quick: bool) -> Vec<Series>,
    /// Seconds of each sample.
    pub seconds: u32,
    /// Goals that a measurement is judged by.
    pub verdicts: fn(&Measurement) -> Vec<Verdict>,
    /// The measurement as the page shows it.
    pub shown: fn(&Measurement) -> Measurement,
    /// Whether curves are worth a picture: they have several points.
    pub is_drawn: bool,
    /// Title of the page.
    pub title: &'static str,
    /// What the page says before the figures.
    pub introduction: &'static str,
}

/// Options of a part.
#[derive(Clone, Debug, Default)]
pub struct PartRuns {
    /// Measure the cases that take a minute.
    pub quick: bool,
    /// Only cases whose name matches.
    pub only: Option<String>,
    /// Only print the names of the cases.
    pub list: bool,
    /// Samples of each case.
    pub runs: u32,
    /// Output files, without their extensions.
    pub output: PathBuf,
    /// Keep the cases of the JSON file that are not measured now.
    pub merge: bool,
    /// Only rewrite page and pictures from this JSON file.
    pub render: Option<PathBuf>,
    /// Version of airdma.
    pub version: &'static str,
}

/// Measures, prints, and writes files. The exit status is 1 if a run failed.
///
/// # Errors
///
/// If no hosts can be made here, or files cannot be written.
pub fn measure(part: &Part, options: &PartRuns) -> anyhow::Result<ExitCode> {
    if let Some(file) = &options.render {
        write_page(part, &load(file)?, &file.with_extension(""))?;
        return Ok(ExitCode::SUCCESS);
    }
    let only = options.only.as_deref().map(Regex::new).transpose();
    let only = only.context("--only wants a regular expression")?;
    let all = selection::choose((part.cases)(options.quick), only.as_ref(), true);
    ensure!(
        !all.is_empty(),
        "no case has such a name (FIGURE/LINK/SERIES/SIZE): --list prints them all"
    );
    if options.list {
        return crate::list(&all);
    }
    let (series, missing) = selection::installed(all);
    let mut err = io::stderr();
    for gone in &missing {
        let (program, package) = (&gone.program, &gone.package);
        writeln!(err, "airdma bench: {program} is not there ({package})")?;
    }
    airdma_lab::enter()?;
    let airdma = std::env::current_exe().context("finding this binary")?;
    let effort = run::Effort {
        runs: options.runs,
        seconds: part.seconds,
        airdma: airdma.to_string_lossy().into_owned(),
    };
    let begun = begin(options.version, &effort, &series, missing);
    for warning in machine::warnings(&begun.machine) {
        writeln!(err, "airdma bench: {warning}")?;
    }
    let file = with_ending(&options.output, "json");
    let mut taken = match options.merge && file.exists() {
        true => merged(load(&file)?, begun, &series),
        false => begun,
    };
    // Fails now rather than later if the folder is missing or not writable.
    save(&taken, &options.output)?;
    let outcome = run::measure(&series, &effort, &mut taken, |taken| {
        save(taken, &options.output)
    });
    let mut code = ExitCode::from(u8::from(taken.failures() > 0));
    if let Err(error) = outcome {
        let Some(LabError::Interrupted(signal)) = error.downcast_ref() else {
            return Err(error);
        };
        taken.interrupted = true;
        code = ExitCode::from(128 + *signal as u8);
    }
    save(&taken, &options.output)?;
    write_page(part, &taken, &options.output)?;
    let rows = report::verdict_rows(&(part.verdicts)(&taken));
    if rows.len() > 1 {
        writeln!(io::stdout(), "\n{}", table::aligned(&rows))?;
    }
    Ok(code)
}

/// What an earlier command measured, without the cases of this one.
fn merged(mut before: Measurement, begun: Measurement, series: &[Series]) -> Measurement {
    for curve in &mut before.curves {
        let again = series.iter().find(|series| {
            (series.figure, series.link.name, series.name)
                == (curve.figure, curve.link.as_str(), curve.name.as_str())
        });
        if let Some(again) = again {
            curve.points.retain(|x, _| !again.xs.contains(x));
        }
    }
    before.curves.retain(|curve| !curve.points.is_empty());
    let links: Vec<LinkFacts> = begun
        .links
        .into_iter()
        .filter(|link| before.links.iter().all(|known| known.name != link.name))
        .collect();
    before.links.extend(links);
    Measurement {
        // A line of a shell that measures all of it.
        command: format!("{} && {}", before.command, begun.command),
        interrupted: false,
        machine: begun.machine,
        versions: begun.versions,
        missing: begun.missing,
        runs: begun.runs.min(before.runs),
        ..before
    }
}

fn write_page(part: &Part, taken: &Measurement, stem: &Path) -> anyhow::Result<()> {
    let name = stem.file_name().context("--output wants a file name")?;
    let name = name.to_string_lossy();
    let taken = (part.shown)(taken);
    let files = match part.is_drawn {
        true => plot::save(&taken, stem)?,
        false => Vec::new(),
    };
    let page = with_ending(stem, "md");
    write(&page, part.markdown(&taken, &name).as_bytes())?;
    let (page, count) = (page.display(), files.len());
    writeln!(
        io::stdout(),
        "\nwrote {page} and {count} pictures beside it"
    )?;
    Ok(())
}

impl Part {
    /// Renders the page; `name` is the stem of the plots' and the data's files.
    fn markdown(&self, taken: &Measurement, name: &str) -> String {
        let mut page = format!("# {}\n\n{}\n\n", self.title, self.introduction);
        let _ = writeln!(page, "{}", report::facts(taken, name));
        if self.is_drawn {
            for (picture, _) in plot::pictures(taken) {
                let file = plot::file(name, &picture, "svg");
                let _ = write!(page, "\n![{picture}]({file})\n");
            }
        }
        let verdicts = (self.verdicts)(taken);
        let rows = report::verdict_rows(&verdicts);
        if rows.len() > 1 {
            let _ = write!(page, "\n## Targets\n\n{}\n", table::markdown(&rows, 1));
        }
        let _ = write!(
            page,
            "\n## What failed, and what was not measured\n\n{}\n",
            report::gaps(taken, &verdicts)
        );
        for (figure, link) in taken.groups() {
            let rows = table::markdown(&report::rows(taken, figure, link), 1);
            let _ = write!(page, "\n## {}; {}\n\n{rows}\n", figure.title(), link.label);
            if figure.has_p99() {
                let rows = table::markdown(&report::p99_rows(taken, figure, link), 1);
                let _ = write!(page, "\n99th percentiles, us:\n\n{rows}\n");
            }
        }
        let _ = write!(
            page,
            "\n## Commands\n\nAt the largest `x` of each:\n\n{}",
            report::commands(taken)
        );
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Figure;
    use crate::measurement::made_up::measurement;
    use crate::records::RECORDS;

    #[test]
    fn another_command_replaces_its_own_cases() {
        let before = measurement(&[
            (Figure::Bandwidth, "write_record", false, 1024, &[1.0]),
            (Figure::Bandwidth, "write_record", false, 4096, &[2.0]),
            (Figure::Latency, "write_record", false, 64, &[3.0]),
        ]);
        let only = Regex::new("^bandwidth/veth-1500/write_record/1024$").unwrap();
        let series = selection::choose((RECORDS.cases)(false), Some(&only), false);
        let after = merged(before.clone(), before, &series);
        let point = |figure, x| after.point(figure, "veth-1500", "write_record", x);
        assert!(point(Figure::Bandwidth, 1024).is_none());
        assert!(point(Figure::Bandwidth, 4096).is_some());
        assert!(point(Figure::Latency, 64).is_some());
        assert_eq!(after.command, "airdma bench && airdma bench");
    }
}
