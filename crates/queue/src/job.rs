//! Jobs: what was asked for, and their state.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Priorities as in `lp -q`: 100 runs first.
pub const PRIORITIES: RangeInclusive<u8> = 1..=100;
/// Default priority.
pub const PRIORITY: u8 = 50;
/// Most files and directories of one job.
pub const PATHS_MAX: usize = 10_000;

/// A request to send files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Absolute paths.
    pub paths: Vec<FilePath>,
    /// Receiver: an address or a name.
    pub to: String,
    /// Code to meet the receiver with. Never shown; removed once it has been used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The receiver's key, 64 hexadecimal digits: no other receiver gets the files.
    ///
    /// Set by the caller, or by a code that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// One of [`PRIORITIES`].
    #[serde(default = "default_priority")]
    pub priority: u8,
}

impl Order {
    /// Approximate memory that it takes.
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

/// A path: in JSON a string if it is text, otherwise an array of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct FilePath(pub PathBuf);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits for its turn, or for a retry.
    Queued,
    /// Files are in transfer, or the receiver is being asked.
    Running,
    /// All files that could be read have arrived.
    Done,
    /// It failed, and is not retried.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl State {
    /// Whether the state is final.
    pub fn is_over(self) -> bool {
        match self {
            State::Queued | State::Running => false,
            State::Done | State::Failed | State::Cancelled => true,
        }
    }
}

/// A job, as in the journal and as programs see it (without the code).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number, which is never reused.
    pub id: u64,
    /// What was asked for.
    pub order: Order,
    /// Its state.
    pub state: State,
    /// When it was queued, in seconds since 1970 like the other times.
    pub added: u64,
    /// When it first ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// Number of attempts.
    #[serde(default)]
    pub attempts: u32,
    /// The last error.
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
    /// Files that did not arrive although the job is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flaws: Vec<Flaw>,
    /// Seconds until the next attempt. Only in answers to programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in: Option<u64>,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// Kind of the error, as in `airdma send --json`.
    pub kind: String,
    /// What happened, and what to do about it.
    pub message: String,
}

/// A file that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flaw {
    /// Its path, printable.
    pub path: String,
    /// Why it did not arrive.
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
