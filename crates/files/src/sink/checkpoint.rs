//! Checkpoints: a thread makes data durable and records that in the journal while writing goes on.
//!
//! So the disk is never idle, and the writer does not wait for it. There is one checkpoint at a
//! time; data written meanwhile belongs to the next.

use super::{OPEN_ANY, Sink, flaw_name, temporary_name, times};
use crate::journal::Journal;
use crate::options::Clash;
use crate::plan::CHUNK_BYTES;
use crate::trailer::Flaw;
use crate::{Error, Problem};
use rustix::fs::{Mode, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes after which a checkpoint begins.
const BYTES_MAX: u64 = 64 << 20;
/// Complete files after which a checkpoint begins.
const FILES_MAX: usize = 1024;
/// Writing waits for the disk once this many times as much has gathered.
const BEHIND_MAX: usize = 4;
/// Most files that are synced one by one; more are synced by one call for the file system.
const FSYNC_FILES_MAX: usize = 8;

/// Bytes of a first checkpoint after which writing to the disk starts, so that not all of it is
/// left for the end.
const EARLY_BYTES: u64 = 16 << 20;

/// The thread that makes data durable. Dropping it joins the thread, which holds the staging
/// directory.
#[derive(Debug)]
pub(super) struct Syncing(Option<JoinHandle<io::Result<()>>>);

/// A checkpoint in progress.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Chunks that will be durable.
    pub chunks: u64,
    /// Files that will get their names.
    pub whole: Vec<u32>,
    /// Directories that will get their names, with everything in them.
    tops: Vec<u32>,
    sync: Syncing,
}

impl Syncing {
    pub(super) fn start(
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let thread = thread::Builder::new().name("airdma-sync".into());
        Ok(Self(Some(thread.spawn(work)?)))
    }

    fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn wait(&mut self) -> io::Result<()> {
        let synced = self.0.take().map(JoinHandle::join);
        synced
            .unwrap_or(Ok(Ok(())))
            .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        // A caller that did not ask for the result has another error, or drops the sink.
        let _ = self.wait();
    }
}

impl Sink {
    /// After each chunk: ends a checkpoint that is done, and begins one that is due.
    pub(super) fn pace(&mut self) -> Result<(), Error> {
        let is_made = |checkpoint: &Checkpoint| checkpoint.sync.is_done();
        if self.checkpoint.as_ref().is_some_and(is_made) || self.is_due(BEHIND_MAX) {
            self.end_checkpoint()?;
        }
        if self.checkpoint.is_none() && self.is_due(1) {
            self.begin_checkpoint()
        } else if self.tree.has_batch() && self.next.is_multiple_of(EARLY_BYTES / CHUNK_BYTES) {
            self.write_early()
                .map_err(|error| self.staging_error("write", &error))
        } else {
            Ok(())
        }
    }

    /// Starts writing to the disk.
    ///
    /// This vouches for nothing, but an error must be kept: the sync of a checkpoint would not
    /// report it again.
    fn write_early(&mut self) -> io::Result<()> {
        if let Some(early) = &mut self.early {
            if !early.is_done() {
                return Ok(());
            }
            early.wait()?;
        }
        let staging = self.staging.try_clone()?;
        self.early = Some(Syncing::start(move || Ok(rustix::fs::syncfs(staging)?))?);
        Ok(())
    }

    /// Ends a checkpoint that is done, and begins one if there is new data.
    ///
    /// For callers whose data comes slowly and must become durable all the same.
    pub fn checkpoint_beside(&mut self) -> Result<(), Error> {
        self.unless_broken(|sink| {
            let is_made = |checkpoint: &Checkpoint| checkpoint.sync.is_done();
            if sink.checkpoint.as_ref().is_some_and(is_made) {
                sink.end_checkpoint()?;
            }
            if sink.checkpoint.is_none() && sink.durable < sink.next {
                sink.begin_checkpoint()
            } else {
                Ok(())
            }
        })
    }

    /// Makes all written data durable, and gives complete files their names.
    pub(super) fn make_checkpoint(&mut self) -> Result<(), Error> {
        self.end_checkpoint()?;
        if self.durable < self.next {
            self.begin_checkpoint()?;
        }
        self.end_checkpoint()
    }

    fn is_due(&self, times: usize) -> bool {
        self.bytes_since_checkpoint >= BYTES_MAX * times as u64
            || self.whole.len() >= FILES_MAX * times
    }

    pub(super) fn begin_checkpoint(&mut self) -> Result<(), Error> {
        // Data that comes meanwhile is not covered, and must not be in a directory that gets its
        // name.
        if let Some(mut receiving) = self.receiving.take() {
            if std::mem::take(&mut receiving.in_batch) {
                self.leave_batch(self.plan.files()[receiving.index].entry)?;
            }
            self.receiving = Some(receiving);
        }
        let tops = self.tree.end_batch();
        let begun = self
            .sync_beside(tops)
            .map_err(|error| self.staging_error("write", &error))?;
        self.whole.clear();
        self.bytes_since_checkpoint = 0;
        self.checkpoint = Some(begun);
        Ok(())
    }

    fn sync_beside(&mut self, tops: Vec<u32>) -> io::Result<Checkpoint> {
        let early = self.early.take();
        let journal = Arc::clone(&self.journal);
        let staging = self.staging.try_clone()?;
        let receiving = self
            .receiving
            .as_ref()
            .map(|receiving| receiving.file.try_clone())
            .transpose()?;
        let (chunks, whole) = (self.next, self.whole.clone());
        let timed = self.options.times && is_smb(&staging);
        let file = |&entry: &u32| Synced {
            name: temporary_name(entry),
            times: timed.then(|| times(self.manifest.entry(entry).modified)),
        };
        let files: Vec<_> = whole.iter().map(file).collect();
        let is_many = !tops.is_empty() || files.len() > FSYNC_FILES_MAX;
        let work = move || {
            match is_many {
                true => rustix::fs::syncfs(&staging)?,
                false => sync(&staging, &files, receiving.as_ref())?,
            }
            early.map_or(Ok(()), |mut early| early.wait())?;
            hold(&journal).record(chunks)
        };
        let sync = Syncing::start(work)?;
        Ok(Checkpoint {
            chunks,
            whole,
            tops,
            sync,
        })
    }

    /// Waits for the checkpoint in progress, if any, records it in the journal, and only then gives
    /// names.
    pub(super) fn end_checkpoint(&mut self) -> Result<(), Error> {
        let Some(mut checkpoint) = self.checkpoint.take() else {
            return Ok(());
        };
        checkpoint
            .sync
            .wait()
            .map_err(|error| self.staging_error("write", &error))?;
        self.durable = checkpoint.chunks;
        for &top in &checkpoint.tops {
            self.tree.place_top(self.staging.as_fd(), top)?;
        }
        self.place(&checkpoint.whole)
    }

    pub(super) fn place(&mut self, whole: &[u32]) -> Result<(), Error> {
        for &entry in whole {
            let name = temporary_name(entry);
            if let Some(flaw) = self.place_unless_refused(entry, &name)? {
                let flawed = flaw_name(entry, flaw);
                rustix::fs::renameat(&self.staging, &name, &self.staging, &flawed)
                    .map_err(|errno| self.error("rename", entry, &errno.into()))?;
                self.flaws.push((entry, flaw));
            }
        }
        Ok(())
    }

    /// Renames `name` in the staging directory to its entry's name, or returns why the entry cannot
    /// have it.
    pub(super) fn place_unless_refused(
        &mut self,
        entry: u32,
        name: &str,
    ) -> Result<Option<Flaw>, Error> {
        let replace = self.options.clash == Clash::Overwrite;
        let keep_permissions = self.options.permissions.are_kept();
        let (tree, staging) = (&mut self.tree, self.staging.as_fd());
        if let Some(flaw) = tree.refused(entry, staging)? {
            return Ok(Some(flaw));
        }
        match tree.place(staging, name, entry, replace, keep_permissions) {
            Ok(()) => Ok(None),
            Err(error) if error.problem == Problem::Name => {
                Ok(Some(self.tree.known_refusal(entry).unwrap_or(Flaw::Name)))
            }
            Err(error) => Err(error),
        }
    }
}

/// Locks the journal, which is never contended: there is one checkpoint at a time, and the end
/// follows it.
pub(super) fn hold(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Syncs the directory and the files at once: a disk does both in the time of one.
pub(super) fn sync(
    staging: &OwnedFd,
    whole: &[Synced],
    receiving: Option<&File>,
) -> io::Result<()> {
    at_once(
        || sync_directory(staging),
        || sync_files(staging, whole, receiving),
    )
}

/// A complete file in the staging directory.
pub(super) struct Synced {
    name: String,
    /// Set again after the sync.
    times: Option<Timestamps>,
}

/// Magic numbers of SMB (`statfs(2)`), in the kernel's `cifs`.
const SMB: [u64; 2] = [0xff53_4d42, 0xfe53_4d42];

/// Whether a sync changes the modification time of a file: a Samba server takes the time of the
/// sync in place of one that was set before.
fn is_smb(directory: &OwnedFd) -> bool {
    rustix::fs::fstatfs(directory).is_ok_and(|stat| SMB.contains(&(stat.f_type as u64)))
}

/// Runs both, the first in a thread, and returns an error of either.
pub(super) fn at_once(
    first: impl FnOnce() -> io::Result<()> + Send,
    second: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("airdma-sync".into());
        let first = thread.spawn_scoped(scope, first)?;
        second()?;
        let done = first.join();
        done.unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
    })
}

/// Makes the entries of a directory durable.
///
/// File systems that cannot sync a single directory sync everything, or do so at each change.
pub(super) fn sync_directory(directory: impl AsFd) -> io::Result<()> {
    let cannot = |errno| matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP);
    let synced = rustix::fs::fsync(&directory).or_else(|errno| match cannot(errno) {
        true => rustix::fs::syncfs(&directory),
        false => Err(errno),
    });
    match synced {
        Err(errno) if cannot(errno) => Ok(()),
        synced => Ok(synced?),
    }
}

fn sync_files(staging: &OwnedFd, whole: &[Synced], receiving: Option<&File>) -> io::Result<()> {
    for Synced { name, times } in whole {
        match rustix::fs::openat(staging, name, OPEN_ANY, Mode::empty()) {
            Ok(file) => {
                rustix::fs::fsync(&file)?;
                if let Some(times) = times {
                    // An error was reported when they were set first.
                    let _ = rustix::fs::futimens(&file, times);
                }
            }
            // The file arrived without permissions for its owner.
            Err(Errno::ACCESS) => rustix::fs::syncfs(staging)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    if let Some(receiving) = receiving {
        receiving.sync_all()?;
    }
    Ok(())
}
