//! Jobs: what was asked for, and what became of it.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// As `lp -q` has them: 100 goes first.
pub const PRIORITIES: RangeInclusive<u8> = 1..=100;
/// That of who says none.
pub const PRIORITY: u8 = 50;
/// Files and directories of one job.
pub const PATHS_MAX: usize = 10_000;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Absolute.
    pub paths: Vec<FilePath>,
    /// Whom to send them to: an address or a name.
    pub to: String,
    /// How the receiver is met. Never shown; gone once it has been used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The receiver's key, 64 hexadecimal digits: no other one gets the files. A code that was used leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// One of [`PRIORITIES`].
    #[serde(default = "default_priority")]
    pub priority: u8,
}

impl Order {
    /// What it takes to keep it, about.
    pub(crate) fn bytes(&self) -> usize {
        let paths = self.paths.iter();
        let paths = paths.map(|path| path.0.as_os_str().len() + size_of::<FilePath>());
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        paths.sum::<usize>() + self.to.len() + length(&self.code) + length(&self.key)
    }
}

fn default_priority() -> u8 {
    PRIORITY
}

/// A path: text in JSON where it is text, else an array of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct FilePath(pub PathBuf);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its turn comes, or it is tried again.
    Queued,
    /// Files are on their way, or the receiver is asked.
    Running,
    /// All that could be read has arrived.
    Done,
    /// It will not be tried again.
    Failed,
    /// Somebody gave it up.
    Cancelled,
}

impl State {
    /// Whether nothing will happen to it any more.
    pub fn is_over(self) -> bool {
        match self {
            State::Queued | State::Running => false,
            State::Done | State::Failed | State::Cancelled => true,
        }
    }
}

/// A job, as the journal has it and as programs see it (without the code).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number; none is used twice.
    pub id: u64,
    /// What was asked for.
    pub order: Order,
    /// Where it is.
    pub state: State,
    /// When it was queued, in seconds since 1970, as the other times.
    pub added: u64,
    /// When it ran first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// How often it ran.
    #[serde(default)]
    pub attempts: u32,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
    /// Bytes that the receiver has.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes of all files; 0 while that is not known.
    #[serde(default)]
    pub bytes_total: u64,
    /// Files that arrived, once it is done.
    #[serde(default)]
    pub files: u64,
    /// Files that did not, though the job is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flaws: Vec<Flaw>,
    /// Seconds until it is tried again: only for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in: Option<u64>,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// A word for programs: those of `airdma send --json`.
    pub kind: String,
    /// What happened, and what to do.
    pub message: String,
}

/// A file that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flaw {
    /// Printable.
    pub path: String,
    /// Why.
    pub why: String,
}

impl From<Written> for FilePath {
    fn from(written: Written) -> FilePath {
        FilePath(match written {
            Written::Text(text) => text.into(),
            Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

impl From<FilePath> for Written {
    fn from(path: FilePath) -> Written {
        match path.0.to_str() {
            Some(text) => Written::Text(text.to_owned()),
            None => Written::Bytes(path.0.as_os_str().as_bytes().to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_no_text_come_through_json() {
        for bytes in [&b"/a b\n\"c"[..], b"/\xff\xfe", "/grün".as_bytes()] {
            let path = FilePath(OsString::from_vec(bytes.to_vec()).into());
            let json = serde_json::to_string(&path).unwrap();
            let read: FilePath = serde_json::from_str(&json).unwrap();
            assert_eq!(read, path, "{json}");
            assert_eq!(json.starts_with('"'), std::str::from_utf8(bytes).is_ok());
        }
    }
}
