//! `airdma sockets`: executes a program whose TCP connections, and with `--udp` long datagrams, use
//! RDMA where the peer's do.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use airdma_sockets_policy::{Policy, TEXT_MAX};

use super::program::Program;
use super::{NOT_FOUND, artefact, become_program, explain, wrapper};
use crate::warn;

/// How to run a program.
pub struct Options {
    /// Print what is set, and let the program print a line when it ends.
    pub verbose: bool,
    /// Print what would be set and what blocks it, and do nothing.
    pub explain: bool,
    /// File of rules which connections may use RDMA.
    pub policy: Option<PathBuf>,
    /// Long datagrams may use RDMA, too.
    pub udp: bool,
}

/// The variable by which the library prints a line when the program ends.
const VERBOSE: &str = "AIRDMA_SOCKETS_VERBOSE";
/// The variable with the rules themselves: the program may run where the file is not.
const RULES: &str = "AIRDMA_SOCKETS_RULES";
/// The variable that lets datagrams use RDMA.
const UDP: &str = "AIRDMA_SOCKETS_UDP";
/// Exit status if the rules cannot be read, as for other arguments.
const USAGE: u8 = 2;

/// Executes `command`; returns only if that fails, or if only an explanation was requested.
pub fn run(options: &Options, command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        warn("no command given: airdma sockets -- CMD ARGS");
        return ExitCode::from(NOT_FOUND);
    };
    let rules = match options.policy.as_deref().map(rules).transpose() {
        Ok(rules) => rules,
        Err(message) => {
            warn(&message);
            return ExitCode::from(USAGE);
        }
    };
    let started = wrapper::look_through(command);
    let found = Program::find(&started.command[0]);
    let ends = found.as_ref().is_ok_and(Program::ends_by_preload);
    let set = artefact::sockets().and_then(|library| artefact::preload(&library));
    let set = set.map(|variable| (!ends).then_some(variable));
    let obstacle = explain::obstacle(&started, found.as_ref().ok());
    if options.explain {
        let allowed = if rules.is_some() {
            "that the policy allows"
        } else {
            "to private addresses"
        };
        return print(
            &set,
            found.as_ref().err(),
            obstacle.as_ref(),
            allowed,
            options.udp,
        );
    }
    let mut variables = match set {
        Ok(variable) => Vec::from_iter(variable),
        Err(message) => {
            warn(&message);
            return ExitCode::from(NOT_FOUND);
        }
    };
    if let Some(obstacle) = obstacle {
        warn(&obstacle);
    }
    variables.extend(rules.map(|rules| (RULES, rules.into())));
    variables.extend(options.udp.then(|| (UDP, "1".into())));
    if options.verbose {
        for (name, value) in &variables {
            warn(&format!("{name}={}", value.to_string_lossy()));
        }
        variables.push((VERBOSE, "1".into()));
    }
    become_program(program, arguments, variables)
}

/// The rules of a policy file.
fn rules(path: &Path) -> Result<String, String> {
    let name = path.display();
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(TEXT_MAX as u64 + 1).read_to_string(&mut text))
        .map_err(|error| format!("{name}: {error}"))?;
    match text.parse::<Policy>() {
        Ok(_) => Ok(text),
        Err(fault) => Err(format!("{name}: {fault}")),
    }
}

/// Prints whether it will work.
fn print(
    set: &Result<Option<(&'static str, OsString)>, String>,
    missing: Option<&impl std::fmt::Display>,
    obstacle: Option<&String>,
    allowed: &str,
    udp: bool,
) -> ExitCode {
    let mut lines = Vec::new();
    match set {
        Ok(Some((name, value))) => {
            lines.push(format!("sets {name}={}", value.to_string_lossy()));
        }
        Ok(None) => {}
        Err(message) => lines.push(format!("not installed: {message}")),
    }
    if let Some(missing) = missing {
        lines.push(format!("the program: {missing}"));
    }
    match obstacle {
        Some(obstacle) => lines.push(format!("the kernel's sockets only: {obstacle}")),
        None => {
            let datagrams = if udp {
                ", and UDP datagrams longer than a frame"
            } else {
                ""
            };
            lines.push(format!(
                "TCP connections{datagrams} {allowed} get a lane where the peer has the library too"
            ));
        }
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
