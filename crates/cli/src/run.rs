//! `airdma run`: executes a program with airdma in place of rdma-core's libraries.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use airdma_engine::selftest;

use crate::warn;
use artefact::{Choice, Installed};
use host::Host;
use imports::{Imports, Lack};
use program::Program;

pub mod artefact;
mod elf;
pub mod environment;
mod explain;
mod holder;
pub mod host;
mod imports;
mod order;
pub mod ports;
mod program;
mod search;
pub mod sockets;
mod wrapper;

/// Exit statuses if something was not found, or was found but cannot be run (as in POSIX shells).
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;

/// How to run a program.
pub struct Options {
    /// Print what is done.
    pub verbose: bool,
    /// Print what would be done and whether it will work, and do nothing.
    pub explain: bool,
    /// Use the drop-in directory regardless of the host's libraries.
    pub drop_in: bool,
    /// Preload the library of `airdma sockets` as well.
    pub sockets: bool,
}

/// Executes `command`; returns only if that fails, or if only an explanation was requested.
pub fn run(options: &Options, command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        warn("no command given: airdma run -- CMD ARGS");
        return ExitCode::from(NOT_FOUND);
    };
    let host = Host::look();
    let started = wrapper::look_through(command);
    // A program that cannot be found or read is reported when it is started.
    let found = Program::find(&started.command[0]);
    let found = found.as_ref();
    let imports = found
        .map(|program| Imports::of(program.last(), &host))
        .unwrap_or_default();
    let host = imports.seen_from(host);
    let too_new = imports.too_new_for(&host);
    let mut chosen =
        Installed::look().and_then(|installed| installed.choose(&host, options.drop_in, too_new));
    if let Ok(choice) = &mut chosen {
        choice.arrange(found.ok(), &host);
    }
    if options.sockets {
        chosen = chosen.and_then(|mut choice| {
            choice.also(&artefact::sockets()?)?;
            Ok(choice)
        });
    }
    if let (Ok(choice), Ok(program)) = (&mut chosen, found)
        && program.ends_by_preload()
    {
        choice.variables.clear();
    }
    // It forks; this process has not started a thread yet.
    let findings = selftest::run();
    if options.explain {
        return explain::print(&started, found, &host, &chosen, &imports, &findings);
    }
    let choice = match chosen {
        Ok(choice) => choice,
        Err(message) => {
            warn(&message);
            return ExitCode::from(NOT_FOUND);
        }
    };
    if let Some(obstacle) = explain::obstacle(&started, found.ok()) {
        warn(&obstacle);
    }
    if let Some(taken) = explain::taken_port() {
        warn(&taken);
    }
    for lack in imports.lacks(&choice, &host) {
        let (Lack::NotLoaded(text) | Lack::Refused(text)) = lack;
        warn(&text);
    }
    if options.verbose {
        for line in settings(&choice) {
            warn(&line);
        }
    }
    if options.verbose || findings.refuted() {
        warn(&format!("self-test on loopback:\n{findings}"));
    }
    if findings.refuted() {
        warn(REFUTED);
    }
    become_program(program, arguments, choice.variables)
}

/// Executes a program in place of this one; returns only if that fails.
fn become_program(
    program: &OsString,
    arguments: &[OsString],
    variables: Vec<(&'static str, OsString)>,
) -> ExitCode {
    let error = Command::new(program).args(arguments).envs(variables).exec();
    warn(&format!("{}: {error}", program.to_string_lossy()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        CANNOT_RUN
    })
}

/// Consequence of a failed self-test.
pub const REFUTED: &str =
    "hosts that are not airdma will drop what this one sends over IPv4; use IPv6 addresses";

/// The settings in the syntax of a shell.
fn settings(choice: &Choice) -> Vec<String> {
    let variables = choice.variables.iter();
    variables
        .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
        .collect()
}
