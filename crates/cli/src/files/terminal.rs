//! Questions to the user.

use crate::words::printable_lines;
use airdma_transfer::Cancel;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;

/// Interval at which a question checks whether it is obsolete.
const LOOK_EVERY_MS: libc::c_int = 100;
/// Most bytes of a typed line.
const LINE_BYTES_MAX: usize = 1000;

/// The user's terminal, if there is one for questions. `is_data`: standard input is data.
pub fn open(is_data: bool) -> Option<File> {
    if !io::stdin().is_terminal() && !is_data {
        return None;
    }
    File::open("/dev/tty").ok()
}

/// Asks, and waits for a line; `None` if the terminal is closed, or the question is obsolete.
pub fn ask(terminal: &mut File, question: &str, over: &[&Cancel]) -> Option<String> {
    let mut out = io::stderr();
    let question = printable_lines(question);
    // The user may answer even if the question could not be printed.
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

/// Waits briefly; returns whether there is input.
pub fn is_readable(file: &impl AsRawFd) -> bool {
    let mut entry = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives as long as the call.
    unsafe { libc::poll(&raw mut entry, 1, LOOK_EVERY_MS) > 0 }
}
