//! `airdma daemon`: one device for all programs of a user.

use crate::files::{stop, take_descriptors};
use airdma_engine::{Daemon, DeviceConfig, runtime_dir};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

pub const HELP: &str = "\
Examples:
  airdma daemon &
  AIRDMA_DAEMON=$XDG_RUNTIME_DIR/airdma/daemon.sock airdma run -- ib_send_bw 192.0.2.1

The variables of a device (AIRDMA_MTU, AIRDMA_AIR, ...) count for the daemon, and not for its
programs. docs/design/034-daemon.md says what it carries and what not.";

/// Serves programs until a signal ends it.
pub fn daemon(socket: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    take_descriptors();
    let path = match socket {
        Some(path) => std::path::absolute(path)?,
        None => runtime_dir::directory()?.join("daemon.sock"),
    };
    let (stopped, stop) = UnixStream::pair()?;
    // Before there are other threads.
    stop::then(move || {
        (&stop).write_all(&[0]).ok();
    })?;
    let config = DeviceConfig::from_environment()?;
    // Where nothing reads the lines the daemon serves on.
    let daemon = Daemon::bind(&path, config, |line| {
        writeln!(io::stderr(), "airdma: daemon: {line}").ok();
    })?;
    writeln!(
        io::stdout(),
        "airdma: daemon: AIRDMA_DAEMON={}",
        path.display()
    )?;
    daemon.run(&stopped)?;
    Ok(ExitCode::SUCCESS)
}
