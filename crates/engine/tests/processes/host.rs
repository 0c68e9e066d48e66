//! The part of the test that starts processes.

use crate::common;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// A process with a device.
pub struct Process {
    process: common::Process,
    /// Number of its queue pair, address, and key of its memory.
    pub number: u32,
    pub address: String,
    memory: String,
}

impl Process {
    /// Starts a process that opens the device on `interface`, and has a queue pair.
    pub fn start(interface: &str) -> Self {
        let mut this = Self::launch(interface);
        this.await_ready();
        this
    }

    /// Starts several processes at the same time.
    pub fn start_many(interfaces: &[&str]) -> Vec<Self> {
        let mut all: Vec<_> = interfaces.iter().map(|name| Self::launch(name)).collect();
        all.iter_mut().for_each(Self::await_ready);
        all
    }

    /// As [`Process::start_many`], with `AIRDMA_AIR=0`: nothing is sent unless a test asks for it.
    pub fn start_many_silent(interfaces: &[&str]) -> Vec<Self> {
        let launch =
            |name: &&str| Self::launch_with(name, |command| command.env("AIRDMA_AIR", "0"));
        let mut all: Vec<_> = interfaces.iter().map(launch).collect();
        all.iter_mut().for_each(Self::await_ready);
        all
    }

    /// Starts a process with this runtime directory in its environment, or none.
    pub fn start_with(interface: &str, runtime: Option<&Path>) -> Self {
        let mut this = Self::launch_with(interface, |command| match runtime {
            Some(runtime) => command.env("XDG_RUNTIME_DIR", runtime),
            None => command.env_remove("XDG_RUNTIME_DIR"),
        });
        this.await_ready();
        this
    }

    /// Error of a process that gets no device.
    pub fn refused(interface: &str) -> String {
        let mut this = Self::launch_with(interface, |command| command.stderr(Stdio::piped()));
        this.hear_first("refused");
        let mut said = String::new();
        let mut errors = this.process.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        said
    }

    fn launch(interface: &str) -> Self {
        Self::launch_with(interface, |command| command)
    }

    fn launch_with(interface: &str, prepare: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        Process {
            process: common::Process::launch("in_a_process", interface, prepare),
            number: 0,
            address: String::new(),
            memory: String::new(),
        }
    }

    fn await_ready(&mut self) {
        let ready = self.hear_first("ready ");
        let words: Vec<_> = ready.split_whitespace().collect();
        self.number = words[1].parse().unwrap();
        self.address = words[2].to_owned();
        self.memory = format!("{} {}", words[3], words[4]);
    }

    /// The range of numbers that its queue pair is in.
    pub fn range(&self) -> u32 {
        self.number >> 12 & 0xff
    }

    pub fn tell(&mut self, line: &str) {
        self.process.tell(line);
    }

    pub fn hear(&mut self) -> String {
        self.process.hear()
    }

    /// The test harness prints lines before.
    fn hear_first(&mut self, start: &str) -> String {
        for _ in 0..10 {
            let line = self.hear();
            if line.starts_with(start) {
                return line;
            }
        }
        panic!("it does not say {start}");
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    pub fn counter(&mut self, name: &str) -> u64 {
        self.ask(&format!("counter {name}")).parse().unwrap()
    }

    pub fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }

    /// Stops it, and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.process.child.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Closes the device and ends.
    pub fn quit(&mut self) {
        self.tell("quit");
        self.await_end();
    }

    pub fn await_end(&mut self) {
        assert_eq!(self.hear(), "quitting");
        assert_eq!(self.hear(), "gone");
        self.process.child.wait().unwrap();
    }
}

/// Connects two of them, or one with itself.
pub fn connect(left: &mut Process, right: &mut Process) {
    let to = |peer: &Process| format!("connect {} {} {}", peer.number, peer.address, peer.memory);
    let (to_left, to_right) = (to(left), to(right));
    assert_eq!(left.ask(&to_right), "connected");
    assert_eq!(right.ask(&to_left), "connected");
}

pub fn connect_to_itself(process: &mut Process) {
    let to_it = format!(
        "connect {} {} {}",
        process.number, process.address, process.memory
    );
    assert_eq!(process.ask(&to_it), "connected");
}

/// Number of rounds without an error.
pub fn rounds(said: &str) -> u32 {
    let rounds = said
        .strip_prefix("ran ")
        .unwrap_or_else(|| panic!("{said}"));
    rounds.parse().unwrap()
}
