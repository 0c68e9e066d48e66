//! Jobs as text for display.

use airdma_files::printable;
use airdma_queue::{Job, State};
use indicatif::HumanBytes;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

/// A table with one line for each job.
pub fn table(jobs: &[Job]) -> String {
    let mut rows = vec![["job", "state", "priority", "to", "files", ""].map(str::to_owned)];
    rows.extend(jobs.iter().map(|job| {
        [
            job.id.to_string(),
            state(job).to_owned(),
            job.order.priority.to_string(),
            printable(job.order.to.as_bytes()),
            files(job),
            news(job),
        ]
    }));
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    rows.iter().fold(String::new(), |mut text, row| {
        let line = row.iter().zip(&widths);
        let line = line.fold(String::new(), |line, (cell, width)| {
            line + &format!("{cell:width$}  ")
        });
        text.push_str(line.trim_end());
        text.push('\n');
        text
    })
}

/// A job in one line.
pub fn line(job: &Job) -> String {
    format!("job {} is {}  {}", job.id, state(job), news(job))
}

/// Everything about a job.
pub fn details(job: &Job) -> String {
    let mut text = format!("job       {}\nstate     {}\n", job.id, state(job));
    let mut put = |title: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{title:8}  {value}");
    };
    put("to", &printable(job.order.to.as_bytes()));
    put("priority", &job.order.priority.to_string());
    put("attempts", &job.attempts.to_string());
    let news = news(job);
    if !news.is_empty() {
        put("news", &news);
    }
    for path in &job.order.paths {
        put("file", &printable(path.0.as_os_str().as_bytes()));
    }
    for flaw in &job.flaws {
        put("missing", &format!("{}: {}", flaw.path, flaw.why));
    }
    text.trim_end().to_owned()
}

fn state(job: &Job) -> &'static str {
    match job.state {
        State::Queued => "queued",
        State::Running => "running",
        State::Done => "done",
        State::Failed => "failed",
        State::Cancelled => "cancelled",
    }
}

/// The first path, and the number of others.
fn files(job: &Job) -> String {
    let mut paths = job.order.paths.iter();
    let first = paths
        .next()
        .map_or_else(String::new, |path| printable(path.0.as_os_str().as_bytes()));
    match paths.len() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Progress or result of a job.
fn news(job: &Job) -> String {
    let trouble = job.trouble.as_ref().map_or("", |trouble| &trouble.message);
    match job.state {
        State::Queued if trouble.is_empty() => String::new(),
        State::Queued => match job.retry_in {
            Some(seconds) => format!("again in {seconds} s: {trouble}"),
            None => trouble.to_owned(),
        },
        State::Running if job.bytes_total == 0 => "asking the receiver".into(),
        State::Running => {
            let percent = u128::from(job.bytes) * 100 / u128::from(job.bytes_total);
            format!("{percent} % of {}", HumanBytes(job.bytes_total))
        }
        State::Done if job.flaws.is_empty() => {
            format!("{} files, {}", job.files, HumanBytes(job.bytes))
        }
        State::Done => format!(
            "{} files, {}, and {} that did not arrive",
            job.files,
            HumanBytes(job.bytes),
            job.flaws.len()
        ),
        State::Failed => trouble.to_owned(),
        State::Cancelled => String::new(),
    }
}
