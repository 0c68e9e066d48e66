//! Questions to a person.

use crate::words::printable_lines;
use airdma_transfer::Cancel;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;

/// How often a question looks whether it still matters.
const LOOK_EVERY_MS: libc::c_int = 100;
/// More than anybody types.
const LINE_BYTES_MAX: usize = 1000;

/// The terminal of the user, if there is one to ask at. `is_data`: standard input is for something else.
pub fn open(is_data: bool) -> Option<File> {
    if !io::stdin().is_terminal() && !is_data {
        return None;
    }
    File::open("/dev/tty").ok()
}

/// Asks, and waits for a line; none when the terminal is closed, or the question does not matter any more.
pub fn ask(terminal: &mut File, question: &str, over: &[&Cancel]) -> Option<String> {
    let mut out = io::stderr();
    let question = printable_lines(question);
    // The answer may come though the question was not seen.
    let _ = write!(out, "{question}").and_then(|()| out.flush());
    let line = read_line(terminal, over);
    if line.is_none() {
        let _ = writeln!(out);
    }
    line
}

fn read_line(terminal: &mut File, over: &[&Cancel]) -> Option<String> {
    let mut line = Vec::new();
    loop {
        if over.iter().any(|over| over.is_cancelled()) || line.len() > LINE_BYTES_MAX {
            return None;
        }
        if !is_readable(terminal) {
            continue;
        }
        let mut byte = [0];
        match terminal.read(&mut byte) {
            Ok(0) | Err(_) => return None,
            Ok(_) if byte == *b"\n" => return Some(String::from_utf8_lossy(&line).into_owned()),
            Ok(_) => line.extend(byte),
        }
    }
}

/// Waits a moment for something to read.
pub fn is_readable(file: &impl AsRawFd) -> bool {
    let mut entry = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives as long as the call.
    unsafe { libc::poll(&raw mut entry, 1, LOOK_EVERY_MS) > 0 }
}
