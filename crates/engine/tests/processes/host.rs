//! The part of the test that starts processes.

use crate::role::ROLE;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process with a device.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
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
        let mut errors = this.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        said
    }

    fn launch(interface: &str) -> Self {
        Self::launch_with(interface, |command| command)
    }

    fn launch_with(interface: &str, prepare: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        // By its path it may be missing: some tests mount other directories at /tmp, and the build
        // may lie there.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--exact", "in_a_process", "--nocapture", "--quiet"])
            .env(ROLE, interface)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = prepare(&mut command).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process {
            child,
            input,
            output,
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
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
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
        // SAFETY: a child of this process that was not waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Stops it, and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().unwrap();
    }

    /// Closes the device and ends.
    pub fn quit(&mut self) {
        self.tell("quit");
        self.await_end();
    }

    pub fn await_end(&mut self) {
        assert_eq!(self.hear(), "quitting");
        assert_eq!(self.hear(), "gone");
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
        self.child.kill().ok();
        self.child.wait().ok();
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
