//! The start of receiving: anew, or where an interrupted transfer stopped.

use super::staging::{
    Left, check_left, check_owner, left, make_staging, names, open_staging, remove, remove_left,
};
use super::{OPEN_ANY, Receiving, Sink, problem};
use crate::JournalKey;
use crate::grain::is_kept;
use crate::journal::{self, Journal, Record};
use crate::manifest::{Entry, Manifest, ManifestId, Modified};
use crate::options::Options;
use crate::owned::Owned;
use crate::plan::{CHUNK_BYTES, Placed, Plan};
use crate::printable;
use crate::survey::{check_links, survey};
use crate::trailer::Flaw;
use crate::tree::{Fitting, PASSED, Tree, open_top, path_of, temporary_name};
use crate::walk::modified;
use crate::{Error, Problem};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatVfs};
use rustix::io::Errno;
use rustix::process::Resource;
use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Coarsest granularity of a file system's modification times in seconds (FAT).
const TIME_GRAIN_SECONDS: u64 = 2;

/// Magic number of FAT (`statfs(2)`), and the length of its longest file: 4 GiB less one byte.
const FAT: u64 = 0x4d44;
const FAT_BYTES_MAX: u64 = u32::MAX as u64;

/// How much of a file is durable.
enum Reached {
    End,
    Middle,
    Nothing,
}

/// What accepting an offer would mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preview {
    /// Whether it resumes an interrupted transfer.
    pub goes_on: bool,
    /// Bytes of the stream that are still missing.
    pub bytes: u64,
}

/// The receiving directory as found.
struct Found {
    top: OwnedFd,
    /// Its path from the root, without symbolic links.
    path: PathBuf,
    staging_name: String,
    state: State,
}

enum State {
    /// Nothing to resume. Something useless may have the name of the unfinished directory, perhaps
    /// of another user.
    New(Fitting, Option<(OwnedFd, Owned)>),
    Begun(OwnedFd, Journal, Record),
}

impl Sink {
    /// Returns what [`Sink::open`] would find, or why it would refuse.
    ///
    /// It writes nothing, so it can run before the receiver is asked.
    pub fn preview(
        directory: &Path,
        manifest: &Arc<Manifest>,
        id: ManifestId,
        options: &Options,
        key: &JournalKey,
    ) -> Result<Preview, Error> {
        let (chunks, unwanted) = match look(directory, manifest, id, options, key)?.state {
            State::New(fitting, _) => (0, fitting.unwanted),
            State::Begun(_, _, record) => (record.chunks, record.fitting.unwanted),
        };
        let stream = Plan::new(manifest, &unwanted).bytes();
        let bytes = stream.saturating_sub(chunks.saturating_mul(CHUNK_BYTES));
        Ok(Preview {
            goes_on: chunks > 0,
            bytes,
        })
    }

    /// Begins to receive what `manifest` offers below `directory`.
    ///
    /// This is the first call that writes anything, so it must follow the receiver's consent. The
    /// state of an earlier attempt counts if it had the same `key`.
    pub fn open(
        directory: &Path,
        manifest: Arc<Manifest>,
        id: ManifestId,
        options: Options,
        key: &JournalKey,
    ) -> Result<Self, Error> {
        let found = look(directory, &manifest, id, &options, key)?;
        let Found {
            top,
            path,
            staging_name,
            state,
        } = found;
        let said = |doing| {
            let name = staging_name.clone();
            move |error: io::Error| Error::new(doing, name, problem(&error))
        };
        let (staging, journal, record) = match state {
            State::Begun(staging, journal, record) => (staging, journal, record),
            State::New(fitting, left) => {
                if let Some((left, owned)) = left {
                    check_owner(&left, owned, &staging_name)?;
                    remove_left(&top, &staging_name).map_err(said("remove"))?;
                }
                let (staging, owned) = make_staging(&top, &staging_name)?;
                let seal = key.seal(id, &path, owned);
                let journal = Journal::create(staging.as_fd(), id, seal, &fitting);
                let record = Record {
                    chunks: 0,
                    is_settled: false,
                    fitting,
                };
                (staging, journal.map_err(said("write"))?, record)
            }
        };
        let plan = Plan::new(&manifest, &record.fitting.unwanted);
        let tree = Tree::new(top, Arc::clone(&manifest), record.fitting);
        let mut sink = Self {
            manifest,
            plan,
            options,
            tree,
            staging,
            staging_name,
            journal: Arc::new(Mutex::new(journal)),
            next: record.chunks,
            is_settled: record.is_settled,
            receiving: None,
            ahead: None,
            to_make: VecDeque::new(),
            whole: Vec::new(),
            checkpoint: None,
            early: None,
            durable: record.chunks,
            flaws: Vec::new(),
            nameless: HashSet::new(),
            unkept: Cell::default(),
            bytes_since_checkpoint: 0,
            broken: None,
        };
        sink.take_over()?;
        Ok(sink)
    }

    /// Sorts the state of an earlier attempt.
    ///
    /// Complete files get their names, the one that was interrupted is read for its hash, and all
    /// that is not durable is removed.
    fn take_over(&mut self) -> Result<(), Error> {
        let (mut whole, mut tops) = (Vec::new(), Vec::new());
        let mut lost = None;
        for name in names(&self.staging).map_err(|error| self.staging_error("read", &error))? {
            match left(&name.to_string_lossy(), &self.manifest) {
                Left::Top(top) if self.next > 0 => tops.push(top),
                Left::File(entry) => match self.reached(entry) {
                    Reached::End if self.is_file(&name)? => whole.push(entry),
                    Reached::End => return Err(self.tampered()),
                    Reached::Middle => {}
                    Reached::Nothing => self.remove(&name)?,
                },
                Left::Flaw(entry, flaw) if self.is_without_content(entry) => {
                    self.nameless.insert(entry);
                    self.flaws.push((entry, flaw));
                }
                Left::Flaw(entry, flaw) => match self.reached(entry) {
                    Reached::End => self.flaws.push((entry, flaw)),
                    // Its data is gone, so it can no longer be completed, though its trailer may
                    // say so.
                    Reached::Middle => {
                        self.rename(&name, &temporary_name(entry))?;
                        lost = Some(flaw);
                    }
                    Reached::Nothing => self.remove(&name)?,
                },
                Left::Journal => {}
                Left::Top(_) | Left::Other => self.remove(&name)?,
            }
        }
        for top in tops {
            self.tree.place_top(self.staging.as_fd(), top)?;
        }
        if self.next == 0 {
            let staging = self.staging.try_clone();
            let staging = staging.map_err(|error| self.staging_error("open", &error))?;
            self.tree.begin_batch(staging);
        }
        whole.sort_unstable();
        self.flaws.sort_unstable_by_key(|(entry, _)| *entry);
        self.place(&whole)?;
        self.reopen(lost)
    }

    /// Whether the file about to get a name of the offer is a regular one.
    fn is_file(&self, name: &CStr) -> Result<bool, Error> {
        let stat = rustix::fs::statat(&self.staging, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|errno| self.staging_error("look at", &errno.into()))?;
        Ok(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }

    fn is_without_content(&self, entry: u32) -> bool {
        let entry = self.manifest.entries().get(entry as usize);
        entry.is_some_and(|entry| entry.content().is_none())
    }

    fn reached(&self, entry: u32) -> Reached {
        let position = self.next.saturating_mul(CHUNK_BYTES);
        let cut = self.plan.files_before(self.next);
        let files = self.plan.files();
        match files.binary_search_by_key(&entry, |file| file.entry) {
            Ok(index) if index < cut => Reached::End,
            Ok(index) if index == cut && files[index].has_data_before(position) => Reached::Middle,
            Ok(_) | Err(_) => Reached::Nothing,
        }
    }

    /// Opens the file whose reception was interrupted, if any.
    fn reopen(&mut self, lost: Option<Flaw>) -> Result<(), Error> {
        let position = self.next.saturating_mul(CHUNK_BYTES);
        let index = self.plan.files_before(self.next);
        let Some(placed) = self
            .plan
            .files()
            .get(index)
            .copied()
            .filter(|file| file.has_data_before(position))
        else {
            return Ok(());
        };
        let file = match self.open_to_go_on(&temporary_name(placed.entry)) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Err(self.tampered()),
            Err(errno) => return Err(self.error("open", placed.entry, &errno.into())),
        };
        let stat = rustix::fs::fstat(&file);
        let stat = stat.map_err(|errno| self.error("look at", placed.entry, &errno.into()))?;
        // With a second name, writing would change another file of the user's.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink > 1 {
            return Err(self.tampered());
        }
        let mut hasher = blake3::Hasher::new();
        let before = (position - placed.start).min(placed.data_bytes);
        let content = self.content(placed.entry);
        let length = if content.extents.is_some() {
            content.size
        } else {
            before
        };
        file.set_len(length)
            .map_err(|error| self.error("write", placed.entry, &error))?;
        self.hash_before(&file, placed.entry, before, &mut hasher)
            .map_err(|error| self.error("read", placed.entry, &error))?;
        self.receiving = Some(Receiving {
            index,
            file,
            hasher,
            in_batch: false,
            has_mode: false,
            lost,
        });
        Ok(())
    }

    fn open_to_go_on(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(&self.staging, name, flags, Mode::empty());
        let opened = open().or_else(|errno| match errno {
            // It was complete and has its permissions; its trailer, which comes again, sets them
            // again.
            Errno::ACCESS => self.make_writable(name).and_then(|()| open()),
            errno => Err(errno),
        });
        opened.map(File::from)
    }

    /// Cannot be led elsewhere by a link: no other user can write to the staging directory.
    fn make_writable(&self, name: &str) -> Result<(), Errno> {
        let stat = rustix::fs::statat(&self.staging, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
            return Err(Errno::ACCESS);
        }
        let mode = Mode::from_raw_mode(stat.st_mode) | Mode::RUSR | Mode::WUSR;
        rustix::fs::chmodat(&self.staging, name, mode, AtFlags::empty())
    }

    fn hash_before(
        &self,
        file: &File,
        entry: u32,
        before: u64,
        hasher: &mut blake3::Hasher,
    ) -> io::Result<()> {
        let content = self.content(entry);
        let mut buffer = vec![0; 1 << 18];
        let mut at = 0;
        while at < before {
            let (offset, run) = content.locate(at);
            let length = run.min(before - at).min(buffer.len() as u64) as usize;
            file.read_exact_at(&mut buffer[..length], offset)?;
            hasher.update(&buffer[..length]);
            at += length as u64;
        }
        Ok(())
    }

    fn remove(&self, name: &CStr) -> Result<(), Error> {
        remove(&self.staging, name).map_err(|error| self.staging_error("empty", &error))
    }

    fn rename(&self, from: &CStr, to: &str) -> Result<(), Error> {
        rustix::fs::renameat(&self.staging, from, &self.staging, to)
            .map_err(|errno| self.staging_error("write", &errno.into()))
    }

    fn tampered(&self) -> Error {
        Error::new("go on with", &self.staging_name, Problem::Tampered)
    }
}

fn look(
    directory: &Path,
    manifest: &Arc<Manifest>,
    id: ManifestId,
    options: &Options,
    key: &JournalKey,
) -> Result<Found, Error> {
    check_links(manifest, options)?;
    let top = open_top(directory)?;
    let path = path_of(&top, directory)?;
    let staging_name = key.staging_name(id);
    let staging = open_staging(&top, &staging_name)?;
    let known = match &staging {
        Some((staging, owned)) => {
            let seal = key.seal(id, &path, *owned);
            Journal::open(staging.as_fd(), *owned, id, seal, manifest)
                .map_err(|error| Error::new("read", &staging_name, problem(&error)))?
        }
        None => None,
    };
    let still_there = |staging: &OwnedFd, record: &Record| {
        let plan = Plan::new(manifest, &record.fitting.unwanted);
        let mut tree = Tree::new(copy(&top)?, Arc::clone(manifest), record.fitting.clone());
        if !keeps_all(&mut tree, manifest) {
            return Ok(false);
        }
        if record.chunks < plan.chunks() {
            // There may be room: what is not durable is removed first.
            let missing = &plan.files()[plan.files_before(record.chunks)..];
            check_sizes(missing, manifest, limit(&top))?;
            return Ok(true);
        }
        has_all(staging, &mut tree, manifest, &plan, options)
            .map_err(|error| Error::new("read", &staging_name, problem(&error)))
    };
    let state = match (known, staging) {
        (Some((journal, record)), Some((staging, _))) if still_there(&staging, &record)? => {
            State::Begun(staging, journal, record)
        }
        (_, left) => {
            if let Some((left, _)) = &left {
                check_left(left, &staging_name, manifest)?;
            }
            let fitting = survey(copy(&top)?, manifest, options)?;
            let plan = Plan::new(manifest, &fitting.unwanted);
            check_room(&top, &plan, manifest, options)?;
            check_sizes(plan.files(), manifest, limit(&top))?;
            State::New(fitting, left)
        }
    };
    Ok(Found {
        top,
        path,
        staging_name,
        state,
    })
}

/// Whether all files that need not be sent still exist.
///
/// They are reported as arrived, too. They are recognised as in the survey. Missing links are
/// created.
fn keeps_all(tree: &mut Tree, manifest: &Manifest) -> bool {
    let unwanted = tree.fitting.unwanted.clone();
    let mut unwanted = unwanted.ranges().iter().cloned().flatten();
    let is_file = |entry: u32| manifest.entry(entry).content().is_some();
    let by_time = |entry: &Entry, found| is_kept(entry.modified, found);
    unwanted.all(|entry| !is_file(entry) || is_in_place(tree, entry, by_time))
}

/// Whether all files of a completed offer still exist unchanged.
///
/// A sender that missed the end may ask again after they have been removed or changed; to report
/// that they arrived would then be wrong.
fn has_all(
    staging: &OwnedFd,
    tree: &mut Tree,
    manifest: &Manifest,
    plan: &Plan,
    options: &Options,
) -> io::Result<bool> {
    let mut unplaced = HashSet::new();
    for name in names(staging)? {
        match left(&name.to_string_lossy(), manifest) {
            Left::File(entry) | Left::Top(entry) | Left::Flaw(entry, _) => {
                unplaced.insert(entry);
            }
            Left::Journal | Left::Other => {}
        }
    }
    let journal = rustix::fs::statat(staging, journal::NAME, AtFlags::SYMLINK_NOFOLLOW)?;
    let settled = modified(&journal).seconds;
    // The journal was written after all of them, by the same clock.
    let as_it_came = |entry: &Entry, found: Modified| match options.times {
        true => {
            found.seconds.abs_diff(entry.modified.seconds) <= TIME_GRAIN_SECONDS
                || is_kept(entry.modified, found)
        }
        false => found.seconds <= settled.saturating_add_unsigned(TIME_GRAIN_SECONDS),
    };
    Ok(plan.files().iter().all(|file| {
        let top = manifest.ancestors(file.entry).last();
        unplaced.contains(&file.entry)
            || top.is_some_and(|top| unplaced.contains(&top))
            || is_in_place(tree, file.entry, as_it_came)
    }))
}

/// Whether the file with an entry's name can be that entry, judged also by its modification time.
fn is_in_place(tree: &mut Tree, index: u32, by_time: impl Fn(&Entry, Modified) -> bool) -> bool {
    let name = tree.name(index).to_vec();
    let parent = tree.existing(index, PASSED).ok();
    let found = parent
        .and_then(|parent| rustix::fs::statat(parent, &*name, AtFlags::SYMLINK_NOFOLLOW).ok());
    let entry = tree.entry(index);
    found.zip(entry.content()).is_some_and(|(stat, content)| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_size as u64 == content.size
            && by_time(entry, modified(&stat))
    })
}

/// Refuses an offer that cannot fit before anything is written.
fn check_room(
    top: &OwnedFd,
    plan: &Plan,
    manifest: &Manifest,
    options: &Options,
) -> Result<(), Error> {
    let stat =
        rustix::fs::fstatvfs(top).map_err(Error::at("look at", "the receiving directory"))?;
    let content = |file: &Placed| {
        manifest
            .entry(file.entry)
            .content()
            .map_or(0, |content| content.size)
    };
    let needed = if options.holes {
        plan.bytes()
    } else {
        plan.files()
            .iter()
            .fold(0_u64, |sum, file| sum.saturating_add(content(file)))
    };
    match room(&stat) {
        Some(room) if room < needed => {
            let what =
                format!("a directory with room for {room} bytes, where {needed} are to come");
            Err(Error::new("receive into", what, Problem::NoSpace))
        }
        Some(_) | None => Ok(()),
    }
}

/// The length of the longest file that the receiving directory takes, and what sets it.
struct Limit {
    bytes: u64,
    by: &'static str,
}

/// The limit of the file system, if it is known, or of this process.
fn limit(top: &OwnedFd) -> Option<Limit> {
    let of_process = rustix::process::getrlimit(Resource::Fsize).current;
    let of_process = of_process.map(|bytes| Limit {
        bytes,
        by: "the limit of this process (`ulimit -f`)",
    });
    let system = rustix::fs::fstatfs(top).map(|system| system.f_type as u64);
    let of_system = (system == Ok(FAT)).then_some(Limit {
        bytes: FAT_BYTES_MAX,
        by: "the limit of its file system, FAT",
    });
    let limits = [of_system, of_process].into_iter().flatten();
    limits.min_by_key(|limit| limit.bytes)
}

/// Refuses an offer if one of the missing files is too long, before anything is written.
fn check_sizes(missing: &[Placed], manifest: &Manifest, limit: Option<Limit>) -> Result<(), Error> {
    let Some(Limit { bytes: most, by }) = limit else {
        return Ok(());
    };
    let too_long = missing.iter().find_map(|file| {
        let content = manifest.entry(file.entry).content()?;
        (content.size > most).then_some((file.entry, content.size))
    });
    match too_long {
        Some((entry, bytes)) => {
            let name = printable(&manifest.path(entry));
            let what = format!("{name}, which has {bytes} bytes, where {by} is {most}");
            Err(Error::new("receive", what, Problem::TooLarge))
        }
        None => Ok(()),
    }
}

/// Free bytes; `None` if the file system does not report its size (FUSE without `statfs`, some
/// network file systems).
fn room(stat: &StatVfs) -> Option<u64> {
    let block_bytes = if stat.f_frsize > 0 {
        stat.f_frsize
    } else {
        stat.f_bsize
    };
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(block_bytes))
}

fn copy(top: &OwnedFd) -> Result<OwnedFd, Error> {
    let copied = rustix::fs::openat(top, ".", OPEN_ANY | OFlags::DIRECTORY, Mode::empty());
    copied.map_err(Error::at("open", "the receiving directory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Builder, Content, Kind};

    #[test]
    fn a_file_that_is_too_long_for_fat_is_named_at_the_offer() {
        let check = |size| {
            let mut builder = Builder::new(crate::Limits::default());
            let kind = Kind::File(Content {
                size,
                stamp: 0,
                extents: Some([].into()),
            });
            let modified = Modified {
                seconds: 0,
                nanos: 0,
            };
            let entry = Entry {
                parent: None,
                depth: 0,
                name: b"film".as_slice().into(),
                mode: 0o644,
                modified,
                kind,
            };
            builder.push(entry).unwrap();
            let manifest = builder.finish();
            let limit = Limit {
                bytes: FAT_BYTES_MAX,
                by: "FAT",
            };
            let plan = Plan::new(&manifest, &Default::default());
            check_sizes(plan.files(), &manifest, Some(limit))
        };
        check((4 << 30) - 1).unwrap();
        let error = check(4 << 30).unwrap_err();
        assert_eq!(error.problem, Problem::TooLarge);
        let said = error.to_string();
        assert!(said.contains("film, which has 4294967296 bytes"), "{said}");
        // Magic numbers of ext4, tmpfs and others differ.
        let root = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
        let of_root = limit(&root).filter(|limit| limit.by.contains("FAT"));
        assert!(of_root.is_none());
    }

    #[test]
    fn a_file_system_of_unknown_size_may_have_room() {
        let mut stat = rustix::fs::statvfs("/").unwrap();
        (stat.f_blocks, stat.f_bavail) = (10, 3);
        (stat.f_frsize, stat.f_bsize) = (512, 4096);
        assert_eq!(room(&stat), Some(3 * 512));
        stat.f_frsize = 0;
        assert_eq!(room(&stat), Some(3 * 4096));
        (stat.f_blocks, stat.f_bavail) = (0, 0);
        assert_eq!(room(&stat), None);
    }
}
