//! The journal of jobs on disk: one line for each change; the last line of a job counts.
//!
//! ```text
//! crc32(8 hexadecimal digits) {"last_id":7}\n
//! crc32(8 hexadecimal digits) {"job":{...}}\n
//! ```
//!
//! A line is durable before its change is reported. A process that is killed while writing leaves
//! part of a line at the end, which alone is dropped. After many lines, a new file is written next
//! to it and renamed over it.

use crate::job::Job;
use crate::own;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

const NAME: &str = "queue.journal";
const NEW: &str = "queue.journal.new";
const DAMAGED: &str = "queue.journal.damaged";
const LOCK: &str = "queue.lock";
/// Most bytes of a journal, read or written.
///
/// Enough for all orders, six times over if paths are written as numbers, and as much again for
/// spare lines.
const BYTES_MAX: u64 = 1 << 30;
/// Superfluous lines after which the file is rewritten.
const SPARE_LINES: usize = 200;
/// Bytes, beyond twice the necessary ones, after which the file is rewritten.
const SPARE_BYTES: u64 = 64 << 20;

/// The journal of one service, which holds it exclusively.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    file: File,
    /// Length of the whole lines in bytes.
    length: u64,
    lines: usize,
    /// Length after the last rewrite.
    needed: u64,
    /// Holds the lock while the journal is open.
    _lock: File,
}

/// The contents of a journal.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub last_id: u64,
    pub jobs: BTreeMap<u64, Job>,
    /// Lines in the middle that are not lines of a journal: another program or the disk damaged the
    /// file.
    pub damaged_lines: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another service has the lock.
    #[error("another `airdma serve` keeps its jobs in {}: stop that one, or give another --state", .0.display())]
    Taken(PathBuf),
    /// The system's error.
    #[error("{}: {error}", path.display())]
    System { path: PathBuf, error: io::Error },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    LastId(u64),
    Job(Box<Job>),
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum RecordOf<'a> {
    LastId(u64),
    Job(&'a Job),
}

impl Journal {
    /// Opens the journal in a directory, which is made if it does not exist, and reads it.
    pub fn open(directory: &Path) -> Result<(Journal, Recovered), JournalError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            |error| JournalError::System { path, error }
        };
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        let checked = made.and_then(|()| own::check_directory(directory));
        checked.map_err(at(directory))?;
        let lock = directory.join(LOCK);
        let lock = own::options().create(true).open(&lock).map_err(at(&lock))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::Taken(directory.into())),
            Err(TryLockError::Error(error)) => return Err(at(directory)(error)),
        }
        let path = directory.join(NAME);
        let bytes = match own::read(&path, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(at(&path)(error)),
        };
        let recovered = read(&bytes);
        if recovered.damaged_lines > 0 {
            let kept = directory.join(DAMAGED);
            let written = fresh(&kept).and_then(|mut file| file.write_all(&bytes));
            written.map_err(at(&kept))?;
        }
        let mut journal = Journal {
            directory: directory.to_owned(),
            file: lock.try_clone().map_err(at(&path))?,
            length: 0,
            lines: 0,
            needed: 0,
            _lock: lock,
        };
        let rewritten = journal.rewrite(recovered.last_id, recovered.jobs.values());
        rewritten.map_err(at(&path))?;
        Ok((journal, recovered))
    }

    /// Records the state of a job durably.
    pub fn record(&mut self, job: &Job) -> io::Result<()> {
        let line = line(&RecordOf::Job(job))?;
        check_length(self.length + line.len() as u64)?;
        let written = self.file.write_all_at(&line, self.length);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            // Removes half a line. If this fails, the next line overwrites it, or a reader skips
            // it.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    /// Whether it is time for [`Journal::rewrite`].
    pub fn is_long(&self, jobs: usize) -> bool {
        self.lines > 2 * jobs + SPARE_LINES || self.length > 2 * self.needed + SPARE_BYTES
    }

    /// Rewrites the whole journal. The old one stays in place until the new one is complete.
    pub fn rewrite<'a>(
        &mut self,
        last_id: u64,
        jobs: impl Iterator<Item = &'a Job>,
    ) -> io::Result<()> {
        let mut bytes = line(&RecordOf::LastId(last_id))?;
        let mut lines = 1;
        for job in jobs {
            bytes.extend(line(&RecordOf::Job(job))?);
            lines += 1;
        }
        let length = bytes.len() as u64;
        check_length(length)?;
        let new = self.directory.join(NEW);
        let mut file = fresh(&new)?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        std::fs::rename(&new, self.directory.join(NAME))?;
        File::open(&self.directory)?.sync_all()?;
        (self.file, self.length, self.lines) = (file, length, lines);
        self.needed = length;
        Ok(())
    }
}

#[cfg(test)]
impl Journal {
    /// Makes writes fail from now on, as on a full disk.
    pub fn refuse_writes(&mut self) {
        self.file = File::open("/dev/null").unwrap();
    }
}

/// Creates a new file in place of an old one, which may have hard links that others can write to.
fn fresh(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    own::options().create_new(true).open(path)
}

/// Refuses a length that could not be read again.
fn check_length(bytes: u64) -> io::Result<()> {
    if bytes > BYTES_MAX {
        let text =
            "the journal would be longer than is read: wait until jobs are done, or cancel some";
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    Ok(())
}

fn line(record: &RecordOf<'_>) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(record)?;
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    Ok(line)
}

fn read(bytes: &[u8]) -> Recovered {
    let mut recovered = Recovered::default();
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        match record_of(line) {
            Some(Record::LastId(id)) => recovered.last_id = recovered.last_id.max(id),
            Some(Record::Job(job)) => {
                recovered.last_id = recovered.last_id.max(job.id);
                recovered.jobs.insert(job.id, *job);
            }
            // The last line of a process that was killed.
            None if !line.ends_with(b"\n") => {}
            None => recovered.damaged_lines += 1,
        }
    }
    recovered
}

fn record_of(line: &[u8]) -> Option<Record> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, rest) = line.split_at_checked(8)?;
    let json = rest.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    if crc32fast::hash(json) != sum {
        return None;
    }
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests;
