//! Links that last as long as a measurement, and programs on them.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::air::Side;
use crate::controller::Status;
use crate::error::{LinkError, Tried};
use crate::folder::Folder;
use crate::hosts::ipv4;
use crate::options::Options;
use crate::serve::down;
use crate::start::{on_host, start};
use crate::traffic::Found;

/// Of the ends of measurements.
pub const PORT: u16 = 5201;

/// A link that is ended when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct Link {
    airdma: PathBuf,
    folder: Folder,
}

/// A program on a host, of which the output is wanted. Killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    what: String,
}

impl Link {
    /// One of this binary's links.
    ///
    /// # Errors
    ///
    /// As of [`start`].
    pub fn new(airdma: &Path, options: &Options) -> Result<Link, LinkError> {
        let folder = Folder::of(&format!("measure-{}", std::process::id()))?;
        start(airdma, &folder, options, true)?;
        Ok(Link {
            airdma: airdma.into(),
            folder,
        })
    }

    /// What the link says of itself.
    pub fn status(&self) -> Status {
        self.folder.status().unwrap_or_default()
    }

    /// Starts a program on a host.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(&self, side: Side, program: &str, words: &[&str]) -> Result<Running, LinkError> {
        let mut command = self.command(side, program, words);
        command.stdout(Stdio::piped());
        let what = format!("{program} {} on host {side:?}", words.join(" "));
        let mut child = command.spawn().tried(format!("starting {what}"))?;
        let stdout = child.stdout.take();
        let stdout = stdout.ok_or_else(|| LinkError::Asked(format!("{what}: no output")))?;
        Ok(Running {
            child,
            stdout: BufReader::new(stdout),
            what,
        })
    }

    fn command(&self, side: Side, program: &str, words: &[&str]) -> Command {
        let mut command = on_host(&self.airdma, &self.folder.name(), side);
        command.arg(program).args(words).stdin(Stdio::null());
        command
    }

    /// Starts one of our own ends, and waits until it is ready if it is one that waits.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or ends before it is ready.
    pub fn traffic(&self, side: Side, words: &[&str]) -> Result<Running, LinkError> {
        let airdma = self.airdma.to_string_lossy();
        let all = [&["link", "traffic"], words].concat();
        let mut running = self.start(side, &airdma, &all)?;
        let waits = ["udp-receive", "tcp-receive", "echo"];
        if words.first().is_some_and(|word| waits.contains(word)) {
            let mut line = String::new();
            running
                .stdout
                .read_line(&mut line)
                .tried("waiting for an end")?;
            if line != "ready\n" {
                return Err(LinkError::Asked(format!("{}: {line}", running.what)));
            }
        }
        Ok(running)
    }

    /// A sender on A, and a receiver on B that is there first: what each found.
    ///
    /// # Errors
    ///
    /// If one of them fails.
    pub fn flow(&self, receive: &[&str], send: &[&str]) -> Result<[Found; 2], LinkError> {
        let receiver = self.traffic(Side::B, receive)?;
        let sender = self.traffic(Side::A, send)?;
        Ok([sender.found()?, receiver.found()?])
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = down(&self.folder);
    }
}

impl Running {
    /// Waits for the end, and reads the last line that one of our own ends says.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn found(self) -> Result<Found, LinkError> {
        let what = self.what.clone();
        let text = self.output()?;
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|_| LinkError::Asked(format!("{what}: {text}")))
    }

    /// Waits for the end, which must be a good one; what it printed.
    ///
    /// # Errors
    ///
    /// If it fails.
    pub fn output(mut self) -> Result<String, LinkError> {
        let mut text = String::new();
        let read = self.stdout.read_to_string(&mut text);
        read.tried(format!("reading what {} says", self.what))?;
        let status = self
            .child
            .wait()
            .tried(format!("waiting for {}", self.what))?;
        if status.success() {
            Ok(text)
        } else {
            Err(LinkError::Asked(format!("{}: {status} {text}", self.what)))
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the ends of measurements on B are.
pub fn target() -> String {
    SocketAddr::new(ipv4(Side::B), PORT).to_string()
}

/// Lets the link's own numbers catch up.
pub fn settle() {
    thread::sleep(Duration::from_millis(600));
}
