//! State of links between commands: a folder for each user, in it one for each link.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::controller::Status;
use crate::error::{LinkError, Tried};
use crate::hosts::Place;

const RECORD: &str = "link.json";
const STATUS: &str = "status.json";

/// The folder of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// Data by which other commands find a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the link.
    pub name: String,
    /// The process of its controller.
    pub process: u32,
    /// Start time of that process, in the kernel's ticks: process ids are reused.
    pub began: u64,
    /// In the environment of every program in it.
    pub id: String,
    /// Descriptors of the controller: the namespaces of A and B.
    pub descriptors: [i32; 2],
    /// Their numbers.
    pub namespaces: [u64; 2],
    /// Names of `ip netns`, if there are.
    pub names: Option<[String; 2]>,
    /// Addresses of A and B.
    pub addresses: [String; 2],
    /// The request in words.
    pub words: String,
    /// Interfaces that were there before, and stay.
    pub given: Option<[Place; 2]>,
}

impl Folder {
    /// The folder of the link with this name, which may not exist.
    ///
    /// # Errors
    /// If the name is invalid, or other users can write to the parent folder.
    pub fn of(name: &str) -> Result<Folder, LinkError> {
        let good = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        if name.is_empty() || name.len() > 32 || !name.chars().all(good) {
            return Err(LinkError::Asked(format!(
                "a link cannot be called {name:?}: 1 to 32 letters, digits, '-' and '_'"
            )));
        }
        Ok(Folder(base()?.join(name)))
    }

    /// Those of all links that are up, or were and left something.
    pub fn all() -> Result<Vec<Folder>, LinkError> {
        let entries = fs::read_dir(base()?).tried("looking for links")?.flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let mut folders: Vec<Folder> = folders.map(|entry| Folder(entry.path())).collect();
        folders.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(folders)
    }

    /// Makes it; false if there is one.
    pub fn make(&self) -> Result<bool, LinkError> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).tried(format!("making {}", self.0.display())),
        }
    }

    /// Name of the link.
    pub fn name(&self) -> String {
        let name = self.0.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Record of the link, if it exists.
    pub fn record(&self) -> Option<Record> {
        serde_json::from_str(&fs::read_to_string(self.0.join(RECORD)).ok()?).ok()
    }

    /// The link's controller says what others need to know.
    pub fn save_record(&self, record: &Record) -> Result<(), LinkError> {
        self.save(RECORD, &serde_json::to_string_pretty(record))
    }

    /// Last state that the controller wrote, at most half a second old, if any.
    pub fn status(&self) -> Option<Status> {
        serde_json::from_str(&fs::read_to_string(self.0.join(STATUS)).ok()?).ok()
    }

    /// The link's controller says how it is.
    pub fn save_status(&self, status: &Status) -> Result<(), LinkError> {
        self.save(STATUS, &serde_json::to_string(status))
    }

    /// Writes a file atomically.
    fn save(&self, name: &str, text: &serde_json::Result<String>) -> Result<(), LinkError> {
        let what = || format!("writing {}", self.0.join(name).display());
        let text = text.as_ref().map_err(|error| LinkError::Refused {
            what: what(),
            error: io::Error::other(error.to_string()),
            hint: "",
        })?;
        let new = self.0.join(format!("{name}.new"));
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, self.0.join(name)))
            .tried(what())
    }

    /// Reason for the end of the last link of this name, unless a user ended it.
    pub fn end(&self) -> Option<String> {
        fs::read_to_string(self.end_file()).ok()
    }

    /// For those who look for it later; none: forget it. Nothing can be done if it cannot be
    /// written.
    pub(crate) fn save_end(&self, reason: Option<&str>) {
        let _ = match reason {
            Some(reason) => fs::write(self.end_file(), reason),
            None => fs::remove_file(self.end_file()),
        };
    }

    fn end_file(&self) -> PathBuf {
        self.0.with_extension("end")
    }

    /// Removes it.
    pub fn remove(&self) -> Result<(), LinkError> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).tried(format!("removing {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }
}

impl Record {
    /// Whether the controller is still there.
    pub fn is_up(&self) -> bool {
        began(self.process) == Some(self.began)
    }
}

/// Start time of a process, in the kernel's ticks; none if it does not exist or has ended.
pub(crate) fn began(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    if ["Z", "X"].contains(fields.first()?) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// The folder of all links of this user: in XDG_RUNTIME_DIR, or else in the temporary one.
fn base() -> Result<PathBuf, LinkError> {
    // SAFETY: only reads who we are.
    let user = unsafe { libc::geteuid() };
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| is_ours(folder, user));
    let path = match runtime {
        Some(folder) => folder.join("airdma-link"),
        None => {
            let shared = env::temp_dir();
            check_shared(&shared)?;
            shared.join(format!("airdma-link-{user}"))
        }
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).tried(format!("making {}", path.display()));
        }
        _ => {}
    }
    if !is_ours(&path, user) {
        return Err(LinkError::Asked(format!(
            "{} belongs to another user, or others may write to it: remove it, or set XDG_RUNTIME_DIR",
            path.display()
        )));
    }
    Ok(path)
}

/// Whether no other user can put another folder in the place of one in there: that is what the
/// sticky bit of `/tmp` is for.
fn check_shared(folder: &Path) -> Result<(), LinkError> {
    let found = fs::metadata(folder).tried(format!("looking at {}", folder.display()))?;
    if found.mode() & 0o022 == 0 || found.mode() & libc::S_ISVTX != 0 {
        return Ok(());
    }
    Err(LinkError::Asked(format!(
        "others may replace what is in {}: chmod +t it, or set TMPDIR or XDG_RUNTIME_DIR to another folder",
        folder.display()
    )))
}

/// Whether no other user can have prepared the folder.
fn is_ours(folder: &Path, user: u32) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|found| found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names_that_are_paths_are_refused() {
        for name in ["", "..", "a/b", "a b", &"a".repeat(33)] {
            assert!(Folder::of(name).is_err(), "{name}");
        }
        assert_eq!(Folder::of("air-1_b").unwrap().name(), "air-1_b");
    }

    #[test]
    fn a_folder_in_which_others_replace_folders_is_not_used() {
        let folder = env::temp_dir().join(format!("airdma-link-shared-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let with = |mode: u32| {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            check_shared(&folder).is_ok()
        };
        assert_eq!([0o700, 0o755, 0o1777].map(with), [true; 3]);
        assert_eq!([0o777, 0o770, 0o707].map(with), [false; 3]);
        fs::remove_dir(&folder).unwrap();
        assert!(check_shared(&folder).is_err());
    }

    #[test]
    fn a_process_has_a_beginning() {
        assert!(began(std::process::id()).is_some());
        // Beyond PID_MAX_LIMIT.
        assert_eq!(began(4_194_999), None);
    }
}
