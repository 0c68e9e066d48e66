//! A walk on its own thread, while the caller connects and runs the handshake.

use crate::walk::{Roots, Walked, name_root};
use crate::{Error, Limits, Problem};
use rustix::io::Errno;
use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The result of a walk, once it is done.
#[derive(Debug)]
pub struct Walking {
    found: OnceCell<Result<Walked, Error>>,
    /// Disconnected after the result.
    coming: Receiver<Result<Walked, Error>>,
}

impl Walking {
    /// Starts [`crate::walk()`] on a thread. A path that does not exist is an error at once.
    pub fn start<P: AsRef<Path>>(paths: &[P], limits: Limits) -> Result<Self, Error> {
        Self::begin(Roots::find(paths)?, limits)
    }

    /// As [`Walking::start`], for paths that may be offered under other names.
    pub fn start_named(
        paths: Vec<(Option<OsString>, PathBuf)>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let named = paths.into_iter().map(|(name, path)| match name {
            Some(name) => Ok((name.into_vec(), path)),
            None => name_root(&path),
        });
        Self::begin(Roots::named(named.collect::<Result<_, _>>()?)?, limits)
    }

    fn begin(roots: Roots, limits: Limits) -> Result<Self, Error> {
        let (found, coming) = channel();
        let work = move || {
            // A caller that does not wait any more needs no result.
            let _ = found.send(roots.walk(limits));
        };
        let thread = thread::Builder::new().name("airdma-walk".into());
        thread.spawn(work).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
            Error::new("start", "a thread that reads directories", errno.into())
        })?;
        Ok(Self {
            found: OnceCell::new(),
            coming,
        })
    }

    /// The result, if it is known within `limit`.
    pub fn wait(&self, limit: Duration) -> Option<Result<&Walked, Error>> {
        if self.found.get().is_none() {
            let found = match self.coming.recv_timeout(limit) {
                Ok(found) => found,
                Err(RecvTimeoutError::Timeout) => return None,
                // The thread has printed its panic.
                Err(RecvTimeoutError::Disconnected) => Err(Error::new(
                    "walk",
                    "the directories",
                    Problem::Other(Errno::CANCELED),
                )),
            };
            // No other thread can have set it: the type is not shared.
            let _ = self.found.set(found);
        }
        self.found
            .get()
            .map(|found| found.as_ref().map_err(Error::clone))
    }
}

/// A walk that is done already.
impl From<Walked> for Walking {
    fn from(walked: Walked) -> Self {
        let (_, coming) = channel();
        let found = OnceCell::from(Ok(walked));
        Self { found, coming }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn missing_paths_are_reported_before_the_walk() {
        let directory = std::env::temp_dir().join(format!("airdma-walking-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("within")).unwrap();
        let missing = Walking::start(&[directory.join("nowhere")], Limits::default());
        assert_eq!(missing.unwrap_err().problem, Problem::Missing);
        let walking = Walking::start(&[&directory], Limits::default()).unwrap();
        for _ in 0..2 {
            let walked = walking.wait(LONG).unwrap().unwrap();
            assert_eq!(walked.manifest.entries().len(), 2);
        }
        let none = Limits {
            entries_max: 1,
            ..Limits::default()
        };
        let walking = Walking::start(&[&directory], none).unwrap();
        for _ in 0..2 {
            let error = walking.wait(LONG).unwrap().unwrap_err();
            assert!(matches!(error.problem, Problem::Manifest(_)), "{error}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_running_walk_is_waited_for_and_a_failed_one_is_not() {
        let (found, coming) = channel();
        let walking = Walking {
            found: OnceCell::new(),
            coming,
        };
        assert!(walking.wait(Duration::from_millis(1)).is_none());
        drop(found);
        assert!(walking.wait(LONG).unwrap().is_err());
    }
}
