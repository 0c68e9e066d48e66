//! `airdma sockets`: executes a program whose TCP connections use RDMA where the peer's do.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use super::program::Program;
use super::{NOT_FOUND, artefact, become_program, explain, wrapper};
use crate::warn;

/// How to run a program.
pub struct Options {
    /// Print what is set, and let the program print a line when it ends.
    pub verbose: bool,
    /// Print what would be set and what blocks it, and do nothing.
    pub explain: bool,
}

/// The variable by which the library prints a line when the program ends.
const VERBOSE: &str = "AIRDMA_SOCKETS_VERBOSE";

/// Executes `command`; returns only if that fails, or if only an explanation was requested.
pub fn run(options: &Options, command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        warn("no command given: airdma sockets -- CMD ARGS");
        return ExitCode::from(NOT_FOUND);
    };
    let set = artefact::sockets().and_then(|library| artefact::preload(&library));
    let started = wrapper::look_through(command);
    let found = Program::find(&started.command[0]);
    let obstacle = explain::obstacle(&started, found.as_ref().ok());
    if options.explain {
        return print(&set, found.as_ref().err(), obstacle.as_ref());
    }
    let mut variables = match set {
        Ok(variable) => vec![variable],
        Err(message) => {
            warn(&message);
            return ExitCode::from(NOT_FOUND);
        }
    };
    if let Some(obstacle) = obstacle {
        warn(&obstacle);
    }
    if options.verbose {
        for (name, value) in &variables {
            warn(&format!("{name}={}", value.to_string_lossy()));
        }
        variables.push((VERBOSE, "1".into()));
    }
    become_program(program, arguments, variables)
}

/// Prints whether it will work.
fn print(
    set: &Result<(&'static str, OsString), String>,
    missing: Option<&impl std::fmt::Display>,
    obstacle: Option<&String>,
) -> ExitCode {
    let mut lines = Vec::new();
    match set {
        Ok((name, value)) => lines.push(format!("sets {name}={}", value.to_string_lossy())),
        Err(message) => lines.push(format!("not installed: {message}")),
    }
    if let Some(missing) = missing {
        lines.push(format!("the program: {missing}"));
    }
    match obstacle {
        Some(obstacle) => lines.push(format!("the kernel's sockets only: {obstacle}")),
        None => lines.push(
            "TCP connections to private addresses get a lane where the peer has the library too"
                .to_owned(),
        ),
    }
    let works = set.is_ok() && missing.is_none() && obstacle.is_none();
    let text = lines.join("\n");
    // Nothing reads it, if that fails.
    let _ = writeln!(io::stdout(), "{text}");
    if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
