//! A link in the background, and programs on its hosts: for commands and for measurements.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::air::Side;
use crate::error::{LinkError, Tried};
use crate::folder::{Folder, Record};
use crate::options::Options;

/// Line that the background process prints when packets can cross.
pub const READY: &str = "up\n";

/// Makes a link that another process drives: `airdma link serve`, of this binary. It stays, or ends
/// with the calling thread.
///
/// # Errors
///
/// As of [`crate::serve()`]; what the other process said.
pub fn start(
    airdma: &Path,
    folder: &Folder,
    options: &Options,
    with_us: bool,
) -> Result<Record, LinkError> {
    // What is wrong with them is said here, not in the background.
    options.plan()?;
    let options = serde_json::to_string(options)
        .map_err(|error| LinkError::Asked(format!("an option that is not a number: {error}")))?;
    let mut command = Command::new(airdma);
    command
        .args(["link", "serve", "--name", &folder.name(), "--options"])
        .arg(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // SAFETY: system calls alone: the terminal's Ctrl-C is not the link's, our end is if it shall
    // be.
    unsafe {
        command.pre_exec(move || {
            let bound = !with_us || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) == 0;
            if !bound || libc::setsid() == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    };
    let mut child = command.spawn().tried("starting the link's process")?;
    let mut first = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut said = BufReader::new(stdout);
        said.read_line(&mut first).tried("reading what it says")?;
        if first == READY {
            let gone = || LinkError::Asked("the link is gone again".into());
            return folder.record().ok_or_else(gone);
        }
        let _ = said.read_to_string(&mut first);
    }
    let _ = child.wait();
    let reason = first.trim();
    Err(LinkError::Asked(if reason.is_empty() {
        "the link's process was killed".into()
    } else {
        reason.into()
    }))
}

/// The command that runs another on a host of a link.
pub fn on_host(airdma: &Path, name: &str, side: Side) -> Command {
    let mut command = Command::new(airdma);
    let host = format!("{side:?}");
    command.args(["link", "exec", &host, "--name", name, "--"]);
    command
}
