//! `airdma bench files`: copies of files by airdma and by other programs, each alone on a link, in
//! turns.
//!
//! [`wire`] lists the cases of each link, [`content`] makes the files, [`peer`] runs each copy,
//! [`run`] takes a sample, [`taken`] keeps all samples, [`page`] and [`pictures`] show them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use regex::Regex;

use crate::machine::{self, Session};
use crate::save;
use crate::wireless::CROC;

mod content;
mod page;
mod peer;
mod pictures;
mod run;
mod taken;
mod wire;

use peer::PEERS;
use run::Place;
use taken::{Taken, load};
use wire::{Row, Wire, rows};

/// Options of `airdma bench files`.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Measure the cases that take seconds.
    pub quick: bool,
    /// Only cases whose name (LINK/PEER/FILES) matches.
    pub only: Option<String>,
    /// Only print the names of the cases.
    pub list: bool,
    /// Samples of each case.
    pub runs: u32,
    /// Folder for the copied files.
    pub folder: PathBuf,
    /// Output files, without their extensions.
    pub output: PathBuf,
    /// Keep the cases of the JSON file that are not measured now.
    pub merge: bool,
    /// Only rewrite page and pictures from this JSON file.
    pub render: Option<PathBuf>,
}

/// Measures, prints, and writes files. The exit status is 1 if a copy failed.
///
/// # Errors
///
/// If no link can be made here, or files cannot be written.
pub fn files(options: &Files) -> anyhow::Result<ExitCode> {
    if let Some(file) = &options.render {
        write_page(&load(file)?, &file.with_extension(""))?;
        return Ok(ExitCode::SUCCESS);
    }
    let only = options.only.as_deref().map(Regex::new).transpose();
    let only = only.context("--only wants a regular expression")?;
    let rows = rows(options, only.as_ref());
    ensure!(
        !rows.is_empty(),
        "no case that can be measured here has such a name (LINK/PEER/FILES): --list prints them all"
    );
    if options.list {
        for row in &rows {
            writeln!(io::stdout(), "{}", row.name())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut taken = begin(options, &rows)?;
    let mut err = io::stderr();
    for missing in &taken.missing {
        writeln!(err, "airdma bench: left out: {missing}")?;
    }
    let session = taken.sessions.last();
    for warning in session.map_or(Vec::new(), |last| machine::warnings(&last.machine)) {
        writeln!(err, "airdma bench: {warning}")?;
    }
    // Fails now rather than after half an hour if the folder is missing or not writable.
    save(&taken, &options.output)?;
    measure(&mut taken, options, &rows)?;
    write_page(&taken, &options.output)?;
    let failed = rows.iter().any(|row| taken.case(row).failures() > 0);
    Ok(ExitCode::from(u8::from(failed)))
}

/// Results of earlier sessions, and the description of this one.
fn begin(options: &Files, rows: &[Row]) -> anyhow::Result<Taken> {
    let file = taken::file(&options.output);
    let mut taken = match options.merge && file.exists() {
        true => load(&file)?,
        false => Taken::new(),
    };
    for row in rows {
        taken.case(row).samples.clear();
        taken.line(row.wire.name).mbit.clear();
    }
    let mut settings = vec![machine::PAGE_REPORTING];
    if rows.iter().any(|row| row.wire.profile.is_some()) {
        settings.push(machine::HTB_HYSTERESIS);
    }
    let mut session = Session::now(&settings);
    let disk = run::file_system(&options.folder);
    session.machine.insert("file_system".into(), disk);
    taken.sessions.push(session);
    let missing = PEERS.into_iter().filter_map(|peer| {
        let what = peer.missing()?;
        Some(format!("{}: {what}", peer.name()))
    });
    taken.missing = missing.collect();
    taken.missing.push(CROC.into());
    Ok(taken)
}

/// Measures all rows; each sample is saved at once.
fn measure(taken: &mut Taken, options: &Files, rows: &[Row]) -> anyhow::Result<()> {
    let airdma = std::env::current_exe().context("finding this binary")?;
    let mut place = Place::new(&options.folder)?;
    for of_wire in rows.chunk_by(|one, other| one.wire.name == other.wire.name) {
        look(taken, options, of_wire[0].wire, &airdma)?;
        for turn in of_wire.chunk_by(|one, other| one.content == other.content) {
            for run in 0..options.runs {
                for row in turn {
                    let link = row.wire.options(u64::from(run) + 1);
                    let sample = run::sample(&airdma, &link, row.peer, row.content, &mut place)?;
                    taken.case(row).samples.push(sample);
                    save(taken, &options.output)?;
                }
            }
            for row in turn {
                writeln!(io::stdout(), "{}", taken.case(row).line())?;
            }
        }
    }
    Ok(())
}

/// Measures the rate that a link carries.
fn look(taken: &mut Taken, options: &Files, wire: &Wire, airdma: &Path) -> anyhow::Result<()> {
    for _ in 0..options.runs {
        let found = run::line(airdma, wire).context("looking at what the link carries")?;
        taken.line(wire.name).mbit.extend(found);
    }
    if let Some(mbit) = taken.line_mbit(wire.name) {
        let name = wire.name;
        writeln!(io::stdout(), "{name:<28} {} {mbit:.0} Mb/s", wire.measure())?;
    }
    Ok(())
}

fn write_page(taken: &Taken, stem: &Path) -> anyhow::Result<()> {
    let pictures = pictures::save(taken, stem)?;
    crate::write_illustrated(stem, &pictures, |shown, remarks| {
        page::markdown(taken, shown, remarks)
    })
}
