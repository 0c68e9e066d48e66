//! Output of a transfer: a bar on a terminal, JSON objects for programs, and otherwise only what is
//! necessary.

mod link;
mod meter;
mod turned;

use crate::words::{json_line, printable_lines};
use airdma_transfer::Progress;
use indicatif::{DecimalBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use link::Link;
use meter::{Meter, Reading};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use turned::Turned;

/// Interval of progress objects.
const OBJECT_EVERY: Duration = Duration::from_millis(500);

/// Which end this is: the slowest part has other names there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Sender,
    Receiver,
}

/// Output of a transfer.
pub struct Show {
    side: Side,
    style: Style,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Lines and a bar on a terminal.
    People,
    /// Standard error is not a terminal: only what is necessary.
    Quiet,
    /// JSON objects on standard output, or on standard error if standard output is data.
    Objects { to_error: bool },
}

struct State {
    bar: Option<ProgressBar>,
    meter: Meter,
    link: Option<Link>,
    told: Option<Instant>,
    turned: Turned,
}

/// Result of a transfer.
pub struct End {
    pub files: u64,
    pub bytes: u64,
    /// Files that did not arrive: printable paths, and why.
    pub flaws: Vec<(String, String)>,
    /// Notes on files that arrived.
    pub notes: Vec<String>,
    pub reconnects: u32,
}

impl Show {
    pub fn new(side: Side, json: bool, quiet: bool, output_is_data: bool) -> Self {
        let style = if json {
            Style::Objects {
                to_error: output_is_data,
            }
        } else if quiet || !io::stderr().is_terminal() {
            Style::Quiet
        } else {
            Style::People
        };
        Self {
            side,
            style,
            state: Mutex::new(State {
                bar: None,
                meter: Meter::default(),
                link: None,
                told: None,
                turned: Turned::default(),
            }),
        }
    }

    /// Prints a line on a terminal.
    pub fn line(&self, text: &str) {
        if self.style == Style::People {
            self.must(text);
        }
    }

    /// Prints a line in pipes, too: the user must act on it.
    pub fn must(&self, text: &str) {
        // If standard error is closed, the line is lost.
        drop(self.try_must(text));
    }

    /// As [`Show::must`], and says whether the line was written.
    pub fn try_must(&self, text: &str) -> io::Result<()> {
        if matches!(self.style, Style::Objects { .. }) {
            return Ok(());
        }
        let text = printable_lines(text);
        let write = || writeln!(io::stderr(), "{text}");
        match &self.state().bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Prints an object for programs.
    pub fn object(&self, object: &Value) {
        drop(self.try_object(object));
    }

    /// As [`Show::object`], and says whether the object was written.
    pub fn try_object(&self, object: &Value) -> io::Result<()> {
        let line = || json_line(object);
        match self.style {
            Style::Objects { to_error: true } => writeln!(io::stderr(), "{}", line()),
            Style::Objects { to_error: false } => writeln!(io::stdout(), "{}", line()),
            Style::People | Style::Quiet => Ok(()),
        }
    }

    /// Notes the interface of the transfer.
    pub fn over(&self, interface: &str) {
        self.state().link = Some(Link::of(interface, self.side));
    }

    /// Reports a connection that was refused, or left before an offer was accepted.
    pub fn turned(&self, why: &str) {
        let Some(silent) = self.state().turned.next(Instant::now()) else {
            return;
        };
        self.object(&json!({"event": "turned", "message": why, "untold": silent}));
        let before = match silent {
            0 => String::new(),
            silent => format!(" (after {silent} more that were not told)"),
        };
        self.must(&format!(
            "airdma: a connection was not let in, or left{before}: {why}"
        ));
    }

    /// Notes that data moves from now on.
    pub fn accepted(&self, progress: &Progress) {
        self.object(&json!({"event": "start", "bytes": progress.bytes, "bytes_total": progress.bytes_total}));
        let mut state = self.state();
        state.meter.start(progress);
        if self.style == Style::People && state.bar.is_none() {
            state.bar = Some(bar(progress.bytes_total));
        }
    }

    pub fn progress(&self, progress: &Progress) {
        let mut state = self.state();
        let reading = state.meter.read(progress);
        let link = state.link.as_mut().and_then(Link::bits_per_second);
        if let Some(bar) = &state.bar {
            bar.set_position(progress.bytes);
            bar.set_message(self.words(progress, &reading, link));
        }
        if matches!(self.style, Style::Objects { .. })
            && state.told.is_none_or(|told| told.elapsed() >= OBJECT_EVERY)
        {
            state.told = Some(Instant::now());
            drop(state);
            self.object(&json!({
                "event": "progress",
                "bytes": progress.bytes,
                "bytes_total": progress.bytes_total,
                "bytes_durable": progress.bytes_durable,
                "bytes_per_second": reading.bytes_per_second,
                "link_bits_per_second": link,
                "seconds_left": reading.left.map(|left| left.as_secs_f64()),
                "waits_for": reading.slowest.map(|wait| wait.word(self.side)),
            }));
        }
    }

    pub fn end(&self, end: &End) {
        self.clear();
        for (path, why) in &end.flaws {
            self.must(&format!("airdma: {path}: {why}"));
        }
        for note in &end.notes {
            self.must(&format!("airdma: {note}"));
        }
        // Another transfer may follow.
        let elapsed = std::mem::take(&mut self.state().meter).elapsed();
        let rate = end.bytes as f64 / elapsed.as_secs_f64().max(1e-3);
        self.line(&format!(
            "{} {}, {} in {} ({}/s)",
            files(end.files),
            match self.side {
                Side::Sender => "sent",
                Side::Receiver => "received",
            },
            DecimalBytes(end.bytes),
            time(elapsed),
            DecimalBytes(rate as u64),
        ));
        let flaws = end.flaws.iter();
        let flaws = flaws.map(|(path, why)| json!({"path": path, "why": why}));
        let flaws: Vec<Value> = flaws.collect();
        self.object(&json!({
            "event": "end",
            "files": end.files,
            "bytes": end.bytes,
            "seconds": elapsed.as_secs_f64(),
            "reconnects": end.reconnects,
            "flaws": flaws,
            "notes": end.notes,
        }));
    }

    pub fn error(&self, word: &str, status: u8, text: &str) {
        self.clear();
        self.state().meter = Meter::default();
        self.object(&json!({"event": "error", "kind": word, "status": status, "message": text}));
        self.must(&format!("airdma: {text}"));
    }

    fn clear(&self) {
        if let Some(bar) = self.state().bar.take() {
            bar.finish_and_clear();
        }
    }

    fn words(&self, progress: &Progress, reading: &Reading, link: Option<f64>) -> String {
        // The least important comes last: a narrow terminal cuts it off.
        let mut words = format!("{}/s", DecimalBytes(reading.bytes_per_second as u64));
        if let Some(link) = link {
            let share = 800.0 * reading.bytes_per_second / link;
            words += &format!(" ({share:.0}% of link)");
        }
        if let Some(left) = reading.left {
            words += &format!(", {} left", time(left));
        }
        if let Some(slowest) = reading.slowest {
            words += &format!(", waits for {}", slowest.words(self.side));
        }
        let (there, all) = (
            DecimalBytes(progress.bytes),
            DecimalBytes(progress.bytes_total),
        );
        words + &format!(", {there} of {all}")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bar(bytes_total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(bytes_total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{percent:>3}% [{bar:16}] {wide_msg}");
    // The template is a constant; if it were invalid, the bar would be plainer.
    bar.with_style(
        style
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> "),
    )
}

/// "1 file", "7 files".
pub fn files(count: u64) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

/// "0.8 s", "12 s", "3 min 10 s", "2 h 5 min".
fn time(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        // A longer time is shown as this.
        seconds @ 3600.. => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_two_units_at_most() {
        let said =
            [0.84, 12.9, 190.0, 7500.0].map(|seconds| time(Duration::from_secs_f64(seconds)));
        assert_eq!(said, ["0.8 s", "12 s", "3 min 10 s", "2 h 5 min"]);
        assert_eq!(
            (files(1), files(0)),
            ("1 file".to_owned(), "0 files".to_owned())
        );
    }
}
