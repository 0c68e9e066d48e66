//! A program with a daemon of its own, which may be stopped for a time. Both end with this process.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Stop;

/// How long a connection may take to come.
const CONNECTED_MAX: Duration = Duration::from_secs(30);
/// From a connection until the program behind it waits for nothing but its traffic.
const SETTLED: Duration = Duration::from_millis(500);
/// Number of the state "established" in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

/// Runs the program to its end. Its status is this process's.
pub fn run(socket: Option<&Path>, stop: Option<Stop>, command: &[String]) -> anyhow::Result<()> {
    let daemon = socket.map(start).transpose()?;
    let (program, arguments) = command.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(socket) = socket {
        command.env("AIRDMA_DAEMON", socket);
    }
    let mut child = bound(&mut command)
        .spawn()
        .context("starting the program")?;
    let stopped = stop.map_or(Ok(()), |stop| hold(&mut child, stop));
    let status = child.wait().context("waiting for the program")?;
    if let Some(mut daemon) = daemon {
        signal(&daemon, libc::SIGTERM);
        daemon.wait().context("waiting for the daemon")?;
    }
    stopped?;
    ensure!(status.success(), "the program ended with {status}");
    Ok(())
}

/// Starts a daemon, and waits until it listens.
fn start(socket: &Path) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["daemon", "--socket"]).arg(socket);
    let daemon = command.env_remove("AIRDMA_DAEMON").stdout(Stdio::piped());
    let mut daemon = bound(daemon).spawn().context("starting the daemon")?;
    let mut said = String::new();
    let out = daemon.stdout.take().context("the daemon's output")?;
    // It prints the path once it listens.
    BufReader::new(out).read_line(&mut said)?;
    ensure!(!said.is_empty(), "the daemon did not start");
    Ok(daemon)
}

/// Lets a process end with this one, which the benchmark kills when a run takes too long.
fn bound(command: &mut Command) -> &mut Command {
    // SAFETY: one system call, of plain integers.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            },
        )
    }
}

/// Stops the program for a time, once its peer has connected.
fn hold(child: &mut Child, stop: Stop) -> anyhow::Result<()> {
    let start = Instant::now();
    while !is_connected(stop.port)? {
        ensure!(child.try_wait()?.is_none(), "the program ended early");
        ensure!(start.elapsed() < CONNECTED_MAX, "no peer connected");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(SETTLED);
    signal(child, libc::SIGSTOP);
    thread::sleep(Duration::from_secs(stop.seconds.into()));
    signal(child, libc::SIGCONT);
    Ok(())
}

fn is_connected(port: u16) -> anyhow::Result<bool> {
    let mut tables = String::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        tables += &fs::read_to_string(table).unwrap_or_default();
    }
    let local = format!(":{port:04X}");
    let is_it = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_here = words.next().is_some_and(|word| word.ends_with(&local));
        is_here && words.nth(1) == Some(ESTABLISHED)
    };
    Ok(tables.lines().any(is_it))
}

fn signal(process: &Child, signal: libc::c_int) {
    if let Ok(id) = libc::pid_t::try_from(process.id()) {
        // SAFETY: plain integers; the process has not been waited for.
        unsafe { libc::kill(id, signal) };
    }
}
