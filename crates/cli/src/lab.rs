//! `airdma lab`: two hosts on this machine, for tests.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::{Command, ExitCode};

use airdma_lab::{Cable, Lab, NAMED, Namespace};
use anyhow::{Context, bail};

pub const EXAMPLES: &str = "\
Examples:
  mkfifo open; airdma lab hold < open & exec 9> open
  airdma lab exec airdma-lab-$$-b -- iperf3 -s -D
  airdma lab exec airdma-lab-$$-a -- iperf3 -c 10.77.0.2
  exec 9>&-
      TCP between two hosts; the last line removes them and ends the programs on them";

#[derive(clap::Subcommand)]
pub enum LabCommand {
    /// Make two hosts joined by a veth pair, and keep them until standard input ends.
    ///
    /// Their names for `ip netns` are airdma-lab-PID-a (10.77.0.1, fd77::1) and airdma-lab-PID-b
    /// (10.77.0.2, fd77::2), where PID is the process that started this. Prints one line of JSON
    /// when packets can cross: each host's name, addresses and core, and a folder for
    /// XDG_RUNTIME_DIR. Needs CAP_SYS_ADMIN and a writable /run/netns.
    Hold {
        /// MTU of both ends, in bytes.
        #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(68..=65535))]
        mtu: u32,
        /// Make each packet cross alone, segmented by the kernel.
        #[arg(long)]
        no_segmentation: bool,
    },
    /// Read what a measuring program printed from standard input, and print its numbers as JSON.
    ///
    /// perftest: the rows of its table, title to value; iperf3 (-J): Gb/s and bytes that arrived;
    /// sockperf: median and 99th percentile in microseconds. Exits with 1 if there is no result.
    Read {
        /// perftest, iperf3 or sockperf.
        #[arg(value_parser = ["perftest", "iperf3", "sockperf"])]
        program: String,
    },
    /// Run a command on a host, in place of this process.
    ///
    /// The command ends with the process that started this. Exits as the command does, with 127 if
    /// it is not found.
    Exec {
        /// The host's name, or any other of `ip netns`.
        host: String,
        /// The core that the command may use; all if not given.
        #[arg(long, value_name = "N", value_parser = parse_core)]
        core: Option<usize>,
        /// The command and its arguments.
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "CMD"
        )]
        command: Vec<OsString>,
    },
}

/// Below the size of the kernel's set of cores in the C library.
fn parse_core(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(core) if core < libc::CPU_SETSIZE as usize => Ok(core),
        _ => Err(format!("a core is a number below {}", libc::CPU_SETSIZE)),
    }
}

pub fn lab(command: LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::Hold {
            mtu,
            no_segmentation,
        } => hold(Cable {
            mtu,
            segmented: !no_segmentation,
            ..Cable::default()
        }),
        LabCommand::Read { program } => read(&program),
        LabCommand::Exec {
            host,
            core,
            command,
        } => exec(&host, core, &command),
    }
}

fn hold(cable: Cable) -> anyhow::Result<ExitCode> {
    let owner = parent_id();
    airdma_lab::enter()?;
    let lab = Lab::new(cable)?;
    let names = lab.publish(owner)?;
    let hosts = [&lab.a, &lab.b]
        .into_iter()
        .zip(&names)
        .map(|(host, name)| {
            serde_json::json!({
                "namespace": name.name(),
                "ipv4": host.ipv4.to_string(),
                "ipv6": host.ipv6.to_string(),
                "core": host.core,
            })
        });
    let hosts: Vec<_> = hosts.collect();
    let ready = serde_json::json!({ "hosts": hosts, "runtime": lab.runtime() });
    let mut out = io::stdout();
    writeln!(out, "{ready}")?;
    out.flush()?;
    lab.wait_closed(io::stdin())
        .context("waiting for the end of standard input")?;
    Ok(ExitCode::SUCCESS)
}

fn read(program: &str) -> anyhow::Result<ExitCode> {
    let output = io::read_to_string(io::stdin())?;
    let Some(reading) = airdma_bench::read_output(program, &output) else {
        bail!("{program} printed no result");
    };
    writeln!(io::stdout(), "{reading}")?;
    Ok(ExitCode::SUCCESS)
}

fn exec(host: &str, core: Option<usize>, command: &[OsString]) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("no command");
    };
    if host.contains('/') {
        bail!("{host:?} is not the name of a host");
    }
    let namespace = Namespace::open(&Path::new(NAMED).join(host))
        .with_context(|| format!("opening host {host}"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    let error = airdma_lab::exec(&mut command, &namespace, core);
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let code = if is_missing { 127 } else { 126 };
    crate::warn(&format!("{}: {error}", program.to_string_lossy()));
    Ok(ExitCode::from(code))
}
