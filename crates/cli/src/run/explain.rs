//! `airdma run --explain`: prints what would be done and why, and whether it will work.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::process::ExitCode;

use airdma_engine::{DeviceInfo, devices, selftest::SelfTest};

use super::artefact::{Choice, how_to_get_drop_in};
use super::environment::{self, Remark};
use super::holder::{self, PORT};
use super::host::{CM, Host, VERBS};
use super::imports::{Imports, Lack};
use super::ports::{self, Verdict};
use super::program::{Deaf, Program};
use super::wrapper::Started;
use crate::devices::mode::Mode;
use crate::devices::why_no_device;

/// Prints the explanation. Exits with 0 if the program will find and can use airdma's devices, with
/// 1 if not.
pub fn print(
    started: &Started<'_>,
    found: Result<&Program, &io::Error>,
    host: &Host,
    chosen: &Result<Choice, String>,
    imports: &Imports,
    findings: &SelfTest,
) -> ExitCode {
    let mut report = Report::default();
    let program = report.program(started, found);
    report.libraries(host, chosen, program);
    report.imports(host, chosen, imports);
    let devices = report.devices();
    report.port(&devices);
    report.environment(&devices, program);
    if findings.refuted() {
        report.line("kernel", format!("self-test on loopback:\n{findings}"));
        report.careful(super::REFUTED.to_owned());
    }
    // A closed pipe is not an error.
    let _ = io::stdout().write_all(report.text().as_bytes());
    if report.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The explanation, line by line.
#[derive(Default)]
struct Report {
    lines: Vec<(&'static str, String)>,
    /// Why it will not work, each with its remedy.
    problems: Vec<String>,
}

impl Report {
    fn line(&mut self, label: &'static str, text: String) {
        self.lines.push((label, text));
    }

    /// Adds a warning, which does not keep it from working.
    fn careful(&mut self, text: String) {
        self.line("careful", text);
    }

    fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    fn program<'p>(
        &mut self,
        started: &Started<'_>,
        found: Result<&'p Program, &io::Error>,
    ) -> Option<&'p Program> {
        let program = match found {
            Ok(program) => program,
            Err(error) => {
                self.problem(error.to_string());
                return None;
            }
        };
        let files: Vec<_> = program
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        self.line("program", files.join(", a script for "));
        let last = &files[files.len() - 1];
        match &program.elf {
            Some(elf) => {
                let links: Vec<&str> = [VERBS, CM]
                    .into_iter()
                    .filter(|name| elf.needed.iter().any(|needed| needed == name))
                    .collect();
                self.line(
                    "links",
                    match links[..] {
                        [] => {
                            "neither libibverbs nor librdmacm itself; what it loads may".to_owned()
                        }
                        [..] => links.join(", "),
                    },
                );
            }
            None => self.careful(format!("{last} may not be read, so it was not looked at")),
        }
        if let Some(obstacle) = obstacle(started, Some(program)) {
            self.problem(obstacle);
        }
        if let Some((_, text)) = ELSEWHERE.iter().find(|(name, _)| program.name() == *name) {
            self.careful(format!("{} {text}", program.name().to_string_lossy()));
        }
        Some(program)
    }

    fn libraries(
        &mut self,
        host: &Host,
        chosen: &Result<Choice, String>,
        program: Option<&Program>,
    ) {
        for (name, path) in [(VERBS, &host.verbs), (CM, &host.cm)] {
            let path = path
                .as_deref()
                .map_or("none".into(), |path| path.display().to_string());
            self.line("host has", format!("{name}: {path}"));
        }
        let choice = match chosen {
            Ok(choice) => choice,
            Err(message) => return self.problem(message.clone()),
        };
        for line in super::settings(choice) {
            self.line("sets", line);
        }
        self.line("because", choice.because.clone());
        let elf = program.and_then(|program| program.elf.as_ref());
        if choice.drop_in && elf.is_some_and(|elf| elf.rsockets) {
            self.problem(
                "the program uses rsockets, which are rdma-core's and not in the drop-in directory: install librdmacm1, and run it \
                 without --dropin"
                    .to_owned(),
            );
        }
        let missing = host.missing();
        if !choice.drop_in && !missing.is_empty() {
            let advice = format!(
                "install libibverbs1 and librdmacm1; or {}",
                how_to_get_drop_in(&choice.library)
            );
            let needed = |name: &&&str| {
                elf.is_some_and(|elf| elf.needed.iter().any(|needed| needed == **name))
            };
            let needed: Vec<&str> = missing.iter().filter(needed).copied().collect();
            if needed.is_empty() {
                self.careful(format!(
                    "this host has no {}, should the program load it: {advice}",
                    missing.join(" and no ")
                ));
            } else {
                self.problem(format!(
                    "the program links {}, which this host does not have: {advice}",
                    needed.join(" and ")
                ));
            }
        }
    }

    /// Compares the program's imports with the chosen libraries.
    fn imports(&mut self, host: &Host, chosen: &Result<Choice, String>, imports: &Imports) {
        let Ok(choice) = chosen else { return };
        if let Some(summary) = imports.summary() {
            self.line("imports", summary);
        }
        for lack in imports.lacks(choice, host) {
            match lack {
                Lack::NotLoaded(text) => self.problem(text),
                Lack::Refused(text) => self.careful(text),
            }
        }
    }

    fn devices(&mut self) -> Vec<DeviceInfo> {
        let devices = match devices() {
            Ok(devices) => devices,
            Err(error) => {
                self.problem(format!("cannot list the network interfaces: {error}"));
                return Vec::new();
            }
        };
        for device in &devices {
            let addresses: Vec<String> = device
                .gids
                .iter()
                .map(|row| row.address.to_string())
                .collect();
            let state = if device.up { "up" } else { "down" };
            self.line(
                "device",
                format!("{} {state} {}", device.name, addresses.join(" ")),
            );
        }
        let mode = Mode::look(&devices);
        self.line("mode", mode.to_string());
        if let Some(why) = mode.refusal() {
            self.problem(why.to_owned());
        }
        if devices.is_empty() {
            self.problem(why_no_device());
        } else if devices.iter().all(|device| !device.up) {
            let interface = &devices[0].interface;
            self.problem(format!(
                "every device is down: `ip link set {interface} up`, or look at the cable"
            ));
        }
        devices
    }

    fn port(&mut self, devices: &[DeviceInfo]) {
        let mut taken = false;
        for verdict in ports::verdicts(devices) {
            match verdict {
                Verdict::Fine(text) => self.line("port", text),
                Verdict::Careful { says, remedy } => self.careful(format!("{says}: {remedy}")),
                // What keeps one address from the program keeps the others, too: said once.
                Verdict::Problem { says, .. } if taken => self.line("port", says),
                Verdict::Problem { says, remedy } => {
                    self.line("port", says.clone());
                    self.problem(format!("{says}: {remedy}"));
                    taken = true;
                }
            }
        }
    }

    fn environment(&mut self, devices: &[DeviceInfo], program: Option<&Program>) {
        let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        let mut variables: Vec<(String, String)> = env::vars_os()
            .map(|(name, value)| {
                (
                    name.to_string_lossy().into_owned(),
                    value.to_string_lossy().into_owned(),
                )
            })
            .collect();
        variables.sort();
        for (name, value) in &variables {
            match environment::remark(name, value, &names) {
                Some(Remark::Fine(meaning)) => {
                    self.line("variable", format!("{name}={value}: {meaning}"))
                }
                Some(Remark::Careful(text)) => self.careful(format!("{name}={value}: {text}")),
                None => {}
            }
        }
        let starts_mpi =
            program.is_some_and(|program| MPI.iter().any(|name| program.name() == *name));
        if starts_mpi && env::var_os("OMPI_MCA_pml").is_none() {
            self.careful(
                "OMPI_MCA_pml is not set; OMPI_MCA_pml=ucx makes Open MPI use the devices or fail"
                    .to_owned(),
            );
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut before = "";
        for (label, line) in &self.lines {
            let shown = if *label == before { "" } else { *label };
            text.push_str(&format!("{shown:LABEL_LEN$}{line}\n"));
            before = label;
        }
        for problem in &self.problems {
            text.push_str(&format!("{:LABEL_LEN$}{problem}\n", "problem"));
        }
        let verdict = if self.problems.is_empty() {
            "it will work"
        } else {
            "it will not work"
        };
        text.push_str(&format!("{:LABEL_LEN$}{verdict}\n", "result"));
        text
    }
}

/// Why the library will not be loaded into the program, and what to do.
pub fn obstacle(started: &Started<'_>, program: Option<&Program>) -> Option<String> {
    if started.lost.is_some() {
        return started.lost.clone();
    }
    let program = program?;
    let advice = advice(program.deaf?, &started.command[0], program.name());
    let last = program.files.last()?;
    Some(format!("{} {advice}", last.display()))
}

/// The first device whose port another program holds, and what to do.
pub fn taken_port() -> Option<String> {
    let port = holder::Port::look();
    let devices = if port.is_free() {
        Vec::new()
    } else {
        devices().unwrap_or_default()
    };
    let rows = devices.iter().flat_map(|device| &device.gids);
    rows.map(|row| row.address).find_map(|address| {
        let advice = port.relations(address).1?;
        Some(format!("UDP {PORT} at {address} is taken: {advice}"))
    })
}

/// Why a preload does not reach a program, and what to do.
fn advice(deaf: Deaf, command: &OsStr, name: &OsStr) -> String {
    let command = command.to_string_lossy();
    match deaf {
        Deaf::Static => "is static: no library can be put into it; use a build that links libibverbs dynamically".to_owned(),
        Deaf::Foreign => "is for another processor, and the library is not; use a build for this one".to_owned(),
        Deaf::OtherLibc => "is linked with musl, and the library with glibc: it runs without; use a build for glibc".to_owned(),
        Deaf::SetId if CHANGERS.iter().any(|known| name == *known) => {
            format!("changes the user, and the loader takes no LD_PRELOAD from others; put it in front: {command} airdma run -- CMD")
        }
        Deaf::SetId => {
            "changes its user or group (setuid, setgid), so the loader takes no LD_PRELOAD; run it as the user that it changes to, or a \
             copy without that (cp PROGRAM /tmp)"
                .to_owned()
        }
        Deaf::Capabilities => {
            "gets capabilities from its file, so the loader takes no LD_PRELOAD; run it as root, or a copy without them (cp PROGRAM /tmp)"
                .to_owned()
        }
    }
}

/// Programs that run others as another user.
const CHANGERS: [&str; 4] = ["sudo", "su", "doas", "pkexec"];
/// Programs that start Open MPI's ranks.
const MPI: [&str; 3] = ["mpirun", "mpiexec", "orterun"];
/// Programs that start others where the variables may not reach.
const ELSEWHERE: [(&str, &str); 3] = [
    ("mpirun", REMOTE_RANKS),
    ("mpiexec", REMOTE_RANKS),
    ("orterun", REMOTE_RANKS),
];
const REMOTE_RANKS: &str =
    "hands the variables to ranks on this host alone; let it start `airdma run -- CMD` instead";
const LABEL_LEN: usize = 10;
