//! A folder for files that outlive programs (XDG_RUNTIME_DIR), such as airdma's counters.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;

const PREFIX: &str = "airdma-lab-";

/// Removed on drop.
#[derive(Debug)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// Makes a folder; removes those of dead processes, which only SIGKILL leaves.
    pub fn new() -> io::Result<RuntimeDir> {
        remove_abandoned(&env::temp_dir());
        let base = env::temp_dir().join(format!("{PREFIX}{}", process::id()));
        for number in 0.. {
            let path = PathBuf::from(format!("{}-{number}", base.display()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(RuntimeDir(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    // SAFETY: reads the user id.
    let user = unsafe { libc::geteuid() };
    for entry in entries.flatten() {
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == user);
        if is_ours && owner(&entry.file_name().to_string_lossy()).is_some_and(is_gone) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Process id in the name of a folder.
fn owner(name: &str) -> Option<u32> {
    let (process, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    process.parse().ok()
}

fn is_gone(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_goes_with_its_lab_and_with_its_process() {
        let dir = RuntimeDir::new().unwrap();
        let path = dir.path().to_owned();
        assert!(path.is_dir());
        // Beyond PID_MAX_LIMIT: no process has this number.
        let abandoned = env::temp_dir().join(format!("{PREFIX}4194999-0"));
        fs::create_dir_all(&abandoned).unwrap();
        let other = RuntimeDir::new().unwrap();
        assert!(!abandoned.exists());
        assert!(path.is_dir());
        assert_ne!(other.path(), path);
        drop(dir);
        assert!(!path.exists());
    }
}
