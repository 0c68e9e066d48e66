//! Links that last as long as a measurement, and programs on them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::mem;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use airdma_lab::memory_file;
use serde::{Deserialize, Serialize};

use crate::air::Side;
use crate::controller::Status;
use crate::error::{LinkError, Tried};
use crate::folder::Folder;
use crate::hosts::ipv4;
use crate::options::Options;
use crate::serve::down;
use crate::start::{on_host, start};
use crate::traffic::Found;

/// Port of the ends of measurements.
pub const PORT: u16 = 5201;
/// First words of the command lines of our own ends ([`crate::traffic`]) begin.
pub const TRAFFIC: [&str; 2] = ["link", "traffic"];
/// Line that our own ends print once they can be reached.
const READY: &str = "ready";
/// Length of the traffic in [`Link::in_use`]: ten intervals of rate control.
const IN_USE_S: &str = "0.5";
const IN_USE_TRIES: u32 = 4;
/// No measurement takes longer.
const LONGEST: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(5);
/// Most bytes kept of a program's standard error.
const COMPLAINT_BYTES_MAX: usize = 4096;
/// Time limit for the end of a server's last children.
const CHILDREN: Duration = Duration::from_secs(1);
/// Time between SIGTERM and SIGKILL of a server.
const STOP: Duration = Duration::from_secs(3);

/// A link that is ended when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct Link {
    airdma: PathBuf,
    folder: Folder,
    /// Each program that was started, and what it complains about.
    complaints: Mutex<Vec<(String, File)>>,
}

/// A program on a host, of which the output is wanted. Killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    what: String,
    reaped: bool,
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
            complaints: Mutex::default(),
        })
    }

    /// A link whose radios have been in use: UDP fills it for half a second, every other packet is
    /// answered, and it is idle again.
    ///
    /// A radio that carries its first packets tries its rates for some 100 ms, in which the line
    /// rate is not available. A station that has been there for a while knows them, and 10 MB take
    /// no longer than that.
    ///
    /// # Errors
    /// Those of [`Link::new`], and if UDP does not get through.
    pub fn in_use(airdma: &Path, options: &Options) -> Result<Link, LinkError> {
        let link = Link::new(airdma, options)?;
        let (port, to) = (PORT.to_string(), target());
        let receive = [
            &TRAFFIC[..],
            &["udp-receive", "--port", &port, "--answer-each", "2"],
        ]
        .concat();
        let send = ["udp-send", "--to", &to, "--seconds", IN_USE_S];
        let send = [&TRAFFIC[..], &send].concat();
        // Where packets get lost, the first may be the question for the neighbour's address, which
        // the kernel repeats after a second.
        for _ in 0..IN_USE_TRIES {
            let [_, came] = link.flow(airdma, &receive, &send)?;
            if came.bytes > 0 {
                // Its counts are late.
                settle();
                return Ok(link);
            }
        }
        Err(LinkError::Asked("nothing gets through the link".into()))
    }

    /// State of the link, as its controller reports it.
    pub fn status(&self) -> Status {
        self.folder.status().unwrap_or_default()
    }

    /// Standard error of the programs on the link until now: each with its command,
    /// the latest first.
    pub fn complaints(&self) -> Vec<Complaint> {
        let files = self.complaints.lock();
        let files = files.unwrap_or_else(PoisonError::into_inner);
        let read = |(command, file): &(String, File)| {
            let mut bytes = [0; COMPLAINT_BYTES_MAX];
            // At a place of its own: the program goes on where it was.
            let length = file.read_at(&mut bytes, 0).unwrap_or(0);
            (length > 0).then(|| Complaint {
                command: command.clone(),
                said: String::from_utf8_lossy(&bytes[..length]).into_owned(),
            })
        };
        files.iter().rev().filter_map(read).collect()
    }

    /// Starts a program on a host.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(&self, side: Side, program: &str, words: &[&str]) -> Result<Running, LinkError> {
        let mut command = self.command(side, program, words);
        let what = format!("{program} {} on host {side:?}", words.join(" "));
        let starting = || format!("starting {what}");
        let complaint = memory_file().tried(starting())?;
        let stderr = complaint.try_clone().tried(starting())?;
        command.stdout(Stdio::piped()).stderr(stderr);
        let files = self.complaints.lock();
        let mut files = files.unwrap_or_else(PoisonError::into_inner);
        files.push((what.clone(), complaint));
        drop(files);
        let mut child = command.spawn().tried(starting())?;
        let stdout = child.stdout.take();
        let stdout = stdout.ok_or_else(|| LinkError::Asked(format!("{what}: no output")))?;
        Ok(Running {
            child,
            stdout: BufReader::new(stdout),
            what,
            reaped: false,
        })
    }

    fn command(&self, side: Side, program: &str, words: &[&str]) -> Command {
        let mut command = on_host(&self.airdma, &self.folder.name(), side);
        command.arg(program).args(words).stdin(Stdio::null());
        command
    }

    /// Starts this binary, with the words after `airdma`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn own(&self, side: Side, words: &[&str]) -> Result<Running, LinkError> {
        self.start(side, &self.airdma.to_string_lossy(), words)
    }

    /// The same with one that waits for another, once it is ready.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or ends before it is ready.
    pub fn own_ready(&self, side: Side, words: &[&str]) -> Result<Running, LinkError> {
        self.own(side, words)?.says(READY)
    }

    /// A sender on A, and a receiver on B that is there first: what each found. `program` is this
    /// binary, or another whose ends say the same.
    ///
    /// # Errors
    ///
    /// If one of them fails.
    pub fn flow(
        &self,
        program: &Path,
        receive: &[&str],
        send: &[&str],
    ) -> Result<[Found; 2], LinkError> {
        let program = program.to_string_lossy();
        let receiver = self.start(Side::B, &program, receive)?.says(READY)?;
        let sender = self.start(Side::A, &program, send)?;
        Ok([sender.found()?, receiver.found()?])
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = down(&self.folder);
    }
}

/// First bytes of a program's standard error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Complaint {
    /// Its command line, and where it ran.
    pub command: String,
    /// The text.
    pub said: String,
}

/// End of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// Standard output.
    pub text: String,
    /// User and system time, in seconds.
    pub cpu_s: f64,
}

impl Running {
    /// Waits for its first line, which must have `word` in it: what a program says once it is
    /// ready.
    ///
    /// # Errors
    ///
    /// If it says something else, or ends before.
    pub fn says(mut self, word: &str) -> Result<Running, LinkError> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        read.tried("waiting for an end")?;
        if !line.contains(word) {
            return Err(LinkError::Asked(format!("{}: {line}", self.what)));
        }
        Ok(self)
    }

    /// Waits for the end, and reads the last line that one of our own ends says.
    ///
    /// # Errors
    ///
    /// If it fails, or takes more than ten minutes.
    pub fn found(self) -> Result<Found, LinkError> {
        let what = self.what.clone();
        let text = self.ended(LONGEST)?.text;
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|_| LinkError::Asked(format!("{what}: {text}")))
    }

    /// Waits for the end, which must be a good one and come in time.
    ///
    /// # Errors
    ///
    /// If it fails, or is killed because it takes longer: what it printed until then.
    pub fn ended(mut self, limit: Duration) -> Result<Ended, LinkError> {
        let deadline = Instant::now() + limit;
        let what = mem::take(&mut self.what);
        let (stdout, child) = (&mut self.stdout, &mut self.child);
        let (text, status, cpu_s) = thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut bytes = Vec::new();
                let _ = stdout.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            });
            let mut killed = false;
            let (status, cpu_s) = loop {
                if let Some(ended) = reaped(child.id()) {
                    break ended;
                }
                if Instant::now() > deadline && !killed {
                    killed = true;
                    let _ = child.kill();
                }
                thread::sleep(POLL);
            };
            (reader.join().unwrap_or_default(), status, cpu_s)
        });
        self.reaped = true;
        if status == 0 {
            return Ok(Ended { text, cpu_s });
        }
        let how = std::process::ExitStatus::from_raw(status);
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("; ");
        Err(LinkError::Asked(format!("{what}: {how}; {last}")))
    }

    /// Ends a server that has nothing left to do: user and system time, that of its children as
    /// well.
    ///
    /// # Errors
    ///
    /// If it has ended before, or does not end.
    pub fn stopped(mut self) -> Result<f64, LinkError> {
        let process = self.child.id();
        // A child that is not reaped would not be counted.
        let children = format!("/proc/{process}/task/{process}/children");
        let deadline = Instant::now() + CHILDREN;
        let busy = || fs::read_to_string(&children).is_ok_and(|numbers| !numbers.is_empty());
        while busy() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        let gone = reaped(process);
        // SAFETY: takes numbers alone. It is our child, and was not waited for unless it is gone.
        if gone.is_none() && unsafe { libc::kill(process as libc::pid_t, libc::SIGTERM) } == 0 {
            let deadline = Instant::now() + STOP;
            while Instant::now() < deadline {
                if let Some((_, cpu_s)) = reaped(process) {
                    self.reaped = true;
                    return Ok(cpu_s);
                }
                thread::sleep(POLL);
            }
        }
        self.reaped = gone.is_some();
        let what = mem::take(&mut self.what);
        let how = gone.map_or("does not end", |_| "has ended before it was asked to");
        Err(LinkError::Asked(format!("{what} {how}")))
    }

    /// Waits until it listens at a port of TCP; false if it does not within ten seconds.
    pub fn listens(&self, port: u16) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        let place = format!(":{port:04X} ");
        while Instant::now() < deadline {
            let tables = ["tcp", "tcp6"].map(|table| {
                let file = format!("/proc/{}/net/{table}", self.child.id());
                fs::read_to_string(file).unwrap_or_default()
            });
            let mut lines = tables.iter().flat_map(|table| table.lines());
            // State 0A is LISTEN.
            if lines.any(|line| line.contains(&place) && line.contains(" 0A ")) {
                return true;
            }
            thread::sleep(POLL);
        }
        false
    }
}

/// The end of a child and the time that it took, if it has ended.
fn reaped(process: u32) -> Option<(i32, f64)> {
    let (mut status, mut usage) = (0, mem::MaybeUninit::<libc::rusage>::uninit());
    // SAFETY: both live through the call; `usage` is read only after the kernel filled it.
    unsafe {
        let process = process as libc::pid_t;
        let found = libc::wait4(process, &mut status, libc::WNOHANG, usage.as_mut_ptr());
        match found {
            0 => None,
            -1 => Some((-1, 0.0)),
            _ => {
                let usage = usage.assume_init();
                let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
                Some((status, seconds(usage.ru_utime) + seconds(usage.ru_stime)))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Address of host B, the target of measurements.
pub fn target() -> String {
    SocketAddr::new(ipv4(Side::B), PORT).to_string()
}

/// Lets the link's own numbers catch up.
pub fn settle() {
    thread::sleep(Duration::from_millis(600));
}
