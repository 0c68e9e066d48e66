//! Processes of a test's own program.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

pub const ROLE: &str = "AIRDMA_TEST_ROLE";
pub const SOCKET: &str = "AIRDMA_TEST_SOCKET";

/// A process that runs one test of this program in a role, killed when dropped.
pub struct Process {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    /// Runs the test `name`, which looks for its role in [`ROLE`].
    pub fn start(name: &str, role: &str, socket: &Path) -> Self {
        Self::launch(name, role, |command| command.env(SOCKET, socket))
    }

    /// As [`Process::start`], by a command that `prepare` changes.
    pub fn launch(
        name: &str,
        role: &str,
        prepare: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        // By its path it may be missing: some tests mount other directories at /tmp, and the build
        // may lie there.
        let mut command = Command::new("/proc/self/exe");
        command
            .args([name, "--exact", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = prepare(&mut command).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line that it prints which is not the test harness's.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let length = self.lines.read_line(&mut line).unwrap();
            assert!(length > 0, "the process ended");
            // The harness may have begun the line.
            let line = line.trim().rsplit(" ... ").next().unwrap_or_default();
            if line.starts_with(|c: char| c.is_ascii_digit()) || line == "ready" {
                return line.to_owned();
            }
        }
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: i32) {
        let process = i32::try_from(self.child.id()).unwrap();
        // SAFETY: a process of this test's, which it has not waited for.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Prints a line for the test that started this process.
pub fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
}
