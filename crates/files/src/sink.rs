//! The receiving end of the stream: writes chunks to files.
//!
//! Unfinished files are in a directory of their own at the top of the receiving one, `.airdma-` and
//! the manifest's id, each under the number of its entry, beside the journal. A checkpoint makes
//! them durable, records that in the journal, and then gives complete files their names. In this
//! order, data that the journal does not know can be received again without a clash with itself.
//!
//! Until the first checkpoint, new top-level directories lie there as well, with their files under
//! their own names; the checkpoint renames them as a whole.

mod ahead;
mod checkpoint;
mod finish;
mod resume;
mod staging;
#[cfg(test)]
mod tests;

use crate::grain::{is_rare, is_truncated};
use crate::journal::Journal;
use crate::manifest::{Content, Entry, Manifest};
use crate::options::{Options, Permissions};
use crate::plan::{CHUNK_BYTES, Part, Piece, Plan, TRAILER_BYTES, Unwanted};
use crate::trailer::{Flaw, Trailer};
use crate::tree::{Tree, is_of_name, temporary_name};
use crate::walk::modified;
use crate::{Error, Problem};
use rustix::fs::{FallocateFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

pub use finish::{Report, Unkept};
pub use resume::Preview;

use ahead::{Ahead, FILES_MIN, HANDFUL, Made, Wanted};
use checkpoint::{Checkpoint, Syncing};
use finish::unless_impossible;

/// Writes the chunks of a stream, in order, to files below a directory.
///
/// It resumes an interrupted transfer of the same offer: [`Sink::next`] is the first chunk to send.
/// After an error it accepts nothing more, and repeats the error; durable data stays durable.
#[derive(Debug)]
pub struct Sink {
    manifest: Arc<Manifest>,
    plan: Plan,
    options: Options,
    tree: Tree,
    staging: OwnedFd,
    staging_name: String,
    journal: Arc<Mutex<Journal>>,
    next: u64,
    /// Whether everything has its final name: from then on it belongs to the user.
    is_settled: bool,
    receiving: Option<Receiving>,
    ahead: Option<Ahead>,
    /// Files of this chunk to create ahead that were not ordered yet.
    to_make: VecDeque<u32>,
    /// Complete files that have no name yet.
    whole: Vec<u32>,
    checkpoint: Option<Checkpoint>,
    early: Option<Syncing>,
    durable: u64,
    flaws: Vec<(u32, Flaw)>,
    /// Directories and links that have no name yet.
    nameless: HashSet<u32>,
    unkept: Cell<Unkept>,
    bytes_since_checkpoint: u64,
    broken: Option<Error>,
}

/// The file that is being received.
#[derive(Debug)]
struct Receiving {
    /// Its index in the plan.
    index: usize,
    file: File,
    hasher: blake3::Hasher,
    /// Whether it has its own name already, in a directory that has not its own yet.
    in_batch: bool,
    /// Whether it was created with its final permissions.
    has_mode: bool,
    /// Why its data was discarded in an earlier attempt.
    lost: Option<Flaw>,
}

impl Sink {
    /// Entries that the sender need not send.
    pub fn unwanted(&self) -> &Unwanted {
        &self.tree.fitting.unwanted
    }

    /// The plan of the stream.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The chunk that [`Sink::write`] takes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Number of durable chunks, from the first on: where an interrupted transfer resumes.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Files that did not arrive so far.
    pub fn flaws(&self) -> &[(u32, Flaw)] {
        &self.flaws
    }

    /// Writes the next chunk, of the plan's length.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        assert_eq!(
            bytes.len(),
            self.plan.chunk_bytes(self.next),
            "a chunk has the length that the plan says"
        );
        self.unless_broken(|sink| {
            let pieces: Vec<_> = sink.plan.pieces(sink.next).collect();
            sink.to_make = sink.worth_making_ahead(&pieces);
            for piece in pieces {
                sink.write_piece(piece, &bytes[piece.at..piece.at + piece.length])?;
            }
            sink.next += 1;
            sink.bytes_since_checkpoint += CHUNK_BYTES;
            sink.pace()
        })
    }

    /// Makes all written data durable, and gives complete files their names.
    ///
    /// This happens in the background about every 64 MiB; a caller calls it, and waits for the
    /// disk, when no data has come for a while.
    pub fn checkpoint(&mut self) -> Result<(), Error> {
        self.unless_broken(Self::make_checkpoint)
    }

    fn unless_broken(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let result = work(self);
        self.broken = result.clone().err();
        result
    }

    fn write_piece(&mut self, piece: Piece, bytes: &[u8]) -> Result<(), Error> {
        match piece.part {
            Part::Data(at) => {
                let mut receiving = self.take_receiving(piece.file)?;
                receiving.hasher.update(bytes);
                let entry = self.plan.files()[piece.file].entry;
                write_data(&receiving.file, self.content(entry), at, bytes)
                    .map_err(|error| self.error("write", entry, &error))?;
                self.receiving = Some(receiving);
                Ok(())
            }
            Part::Padding => Ok(()),
            Part::Trailer => {
                let trailer: &[u8; TRAILER_BYTES as usize] =
                    bytes.try_into().expect("a trailer lies in one chunk");
                let receiving = self.take_receiving(piece.file)?;
                self.end_file(&receiving, Trailer::decode(trailer))
            }
        }
    }

    /// The file that is being received, or a new one.
    fn take_receiving(&mut self, index: usize) -> Result<Receiving, Error> {
        if let Some(receiving) = self.receiving.take() {
            assert_eq!(
                receiving.index, index,
                "a file ends before the next one begins"
            );
            return Ok(receiving);
        }
        self.make_ahead()?;
        let entry = self.plan.files()[index].entry;
        let mut made = match self.ahead.as_mut().and_then(Ahead::take) {
            Some(made) => made,
            None => self.create(entry)?,
        };
        let lost = match &made.file {
            Err(error) if made.in_batch => self.refusal(entry, error),
            Ok(_) | Err(_) => None,
        };
        if lost.is_some() {
            made = self.create_numbered(entry);
        }
        assert_eq!(
            made.entry, entry,
            "files are made in the order in which they are written"
        );
        let file = made.file.and_then(|file| self.make_room(file, entry));
        Ok(Receiving {
            index,
            file: file.map_err(|error| self.error("create", entry, &error))?,
            hasher: blake3::Hasher::new(),
            in_batch: made.in_batch,
            has_mode: made.has_mode,
            lost,
        })
    }

    fn create(&mut self, entry: u32) -> Result<Made, Error> {
        // A file that cannot have its name is reported when it gets it.
        if self.tree.refused(entry, self.staging.as_fd())?.is_some() {
            return Ok(self.create_numbered(entry));
        }
        let mode = self.mode_of_new(entry);
        let keep_permissions = self.options.permissions.are_kept();
        let Some(parent) = unless_refused(self.tree.in_batch(entry, keep_permissions))? else {
            return Ok(self.create_numbered(entry));
        };
        let name = &self.manifest.entry(entry).name;
        Ok(Made {
            entry,
            in_batch: true,
            has_mode: false,
            file: create(parent, name, IN_BATCH, mode),
        })
    }

    /// The flaw if a file cannot be created under its own name in a new, empty directory.
    fn refusal(&self, entry: u32, error: &io::Error) -> Option<Flaw> {
        let name = &self.manifest.entry(entry).name;
        match Errno::from_io_error(error)? {
            Errno::EXIST => Some(Flaw::SameName),
            errno => is_of_name(name, errno).then_some(Flaw::Name),
        }
    }

    fn create_numbered(&self, entry: u32) -> Made {
        let (name, mode) = (temporary_name(entry), self.mode_of_new(entry));
        Made {
            entry,
            in_batch: false,
            has_mode: false,
            file: create(self.staging.as_fd(), name.as_bytes(), NUMBERED, mode),
        }
    }

    fn mode_of_new(&self, entry: u32) -> Mode {
        match self.options.permissions {
            // The attempt may be interrupted, and the file opened again.
            Permissions::Masked => {
                permissions(self.manifest.entry(entry)) | Mode::RUSR | Mode::WUSR
            }
            Permissions::Exact | Permissions::New => NEW_MODE,
        }
    }

    /// The files that begin and end in the chunk of these pieces, if there are enough of them.
    ///
    /// They are not opened again for writing, so they can have their permissions from the start.
    fn worth_making_ahead(&self, pieces: &[Piece]) -> VecDeque<u32> {
        let under_way = self.receiving.as_ref().map(|receiving| receiving.index);
        let ends = |piece: &&Piece| piece.part == Part::Trailer && Some(piece.file) != under_way;
        let ends = pieces.iter().filter(ends);
        let files: VecDeque<u32> = ends
            .map(|piece| self.plan.files()[piece.file].entry)
            .collect();
        let may_be_taken = |&entry: &u32| self.tree.may_be_taken(entry);
        match files.len() < FILES_MIN || files.iter().any(may_be_taken) {
            true => VecDeque::new(),
            false => files,
        }
    }

    /// Orders some of them, not all: each may keep another directory open until it is created.
    fn make_ahead(&mut self) -> Result<(), Error> {
        while !self.to_make.is_empty() && self.ahead.as_ref().is_none_or(Ahead::has_room) {
            let handful = HANDFUL.min(self.to_make.len());
            let files: Vec<u32> = self.to_make.drain(..handful).collect();
            let wanted = self.wanted(&files)?;
            let ahead = match self.ahead.take() {
                Some(ahead) => ahead,
                None => Ahead::start().map_err(|error| self.staging_error("write", &error))?,
            };
            self.ahead.insert(ahead).order(wanted);
        }
        Ok(())
    }

    fn wanted(&mut self, files: &[u32]) -> Result<Vec<Wanted>, Error> {
        let manifest = Arc::clone(&self.manifest);
        let mut wanted: Vec<Wanted> = Vec::with_capacity(files.len());
        for &entry in files {
            let described = manifest.entry(entry);
            let of = |wanted: &&Wanted| manifest.entry(wanted.entry).parent == described.parent;
            let (directory, in_batch) = match wanted.last().filter(of) {
                Some(before) => (Arc::clone(&before.directory), before.in_batch),
                None => self.directory_of(entry)?,
            };
            let (name, how) = match in_batch {
                true => (described.name.clone(), IN_BATCH),
                false => (temporary_name(entry).into_bytes().into(), NUMBERED),
            };
            let mode = self
                .options
                .permissions
                .are_kept()
                .then(|| permissions(described));
            wanted.push(Wanted {
                entry,
                directory,
                name,
                how,
                mode,
                in_batch,
            });
        }
        Ok(wanted)
    }

    /// Where a file is created, and whether that is in a directory of the batch.
    fn directory_of(&mut self, entry: u32) -> Result<(Arc<OwnedFd>, bool), Error> {
        let keep_permissions = self.options.permissions.are_kept();
        let parent = unless_refused(self.tree.in_batch(entry, keep_permissions))?;
        let in_batch = parent.is_some();
        let directory = parent.unwrap_or(self.staging.as_fd()).try_clone_to_owned();
        let directory = directory.map_err(|error| self.error("create", entry, &error))?;
        Ok((Arc::new(directory), in_batch))
    }

    /// Allocates space for what is not sent: holes.
    fn make_room(&self, file: File, entry: u32) -> io::Result<File> {
        let content = self.content(entry);
        if content.extents.is_some() && content.size > 0 {
            if self.options.holes {
                file.set_len(content.size)?;
            } else {
                match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, content.size) {
                    // A file system that cannot allocate (FAT, NFS, FUSE) does so as it writes, or
                    // keeps holes.
                    Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(content.size)?,
                    made => made?,
                }
            }
        }
        Ok(file)
    }

    fn end_file(&mut self, receiving: &Receiving, trailer: Trailer) -> Result<(), Error> {
        let Receiving {
            index,
            file,
            hasher,
            in_batch,
            has_mode,
            lost,
        } = receiving;
        let entry = self.plan.files()[*index].entry;
        let flaw = match trailer {
            Trailer::Whole(hash) if hash == hasher.finalize() => {
                lost.filter(|lost| !lost.is_of_content())
            }
            Trailer::Whole(_) => Some(lost.unwrap_or(Flaw::Damaged)),
            Trailer::Void(flaw) => Some(flaw),
        };
        match flaw {
            None => {
                self.set_attributes(file, entry, *has_mode)
                    .map_err(|error| self.error("set mode and time of", entry, &error))?;
                if !in_batch {
                    self.whole.push(entry);
                }
            }
            Some(flaw) => {
                if *in_batch {
                    self.leave_batch(entry)?;
                }
                self.take_back(file, entry, flaw)
                    .map_err(|error| self.error("remove", entry, &error))?;
                self.flaws.push((entry, flaw));
            }
        }
        Ok(())
    }

    fn set_attributes(&self, file: impl AsFd, entry: u32, has_mode: bool) -> io::Result<()> {
        let described = self.manifest.entry(entry);
        let mode = permissions(described);
        match self.options.permissions {
            Permissions::Exact => {
                // The umask, or an ACL of the directory, may have removed some. A check is cheaper
                // than an unnecessary change.
                let is_so =
                    has_mode && rustix::fs::fstat(&file)?.st_mode & 0o7777 == mode.as_raw_mode();
                if !is_so {
                    self.set_mode(&file, mode)?;
                }
            }
            // The kernel has applied the umask. Rights that the owner got temporarily are removed;
            // none is ever added.
            Permissions::Masked if !has_mode && !mode.contains(OWN) => {
                let added = (OWN - mode).as_raw_mode();
                let found = rustix::fs::fstat(&file)?.st_mode & 0o7777;
                if found & added != 0 {
                    self.set_mode(&file, Mode::from_raw_mode(found & !added))?;
                }
            }
            Permissions::Masked | Permissions::New => {}
        }
        if self.options.times {
            let times = times(described.modified);
            self.unless_untimed(rustix::fs::futimens(&file, &times))?;
            // The kernel sets the nearest that the file system has, and reports nothing.
            if is_rare(described.modified) {
                let found = modified(&rustix::fs::fstat(&file)?);
                if !is_truncated(described.modified, found) {
                    self.unless_untimed(Err(Errno::OVERFLOW))?;
                }
            }
        }
        Ok(())
    }

    fn set_mode(&self, file: impl AsFd, mode: Mode) -> Result<(), Errno> {
        let set = rustix::fs::fchmod(&file, mode);
        unless_impossible(set, &self.unkept, |unkept| &mut unkept.modes)
    }

    fn unless_untimed(&self, set: Result<(), Errno>) -> Result<(), Errno> {
        unless_impossible(set, &self.unkept, |unkept| &mut unkept.times)
    }

    /// Moves an incomplete file out of the batch, to the other incomplete ones.
    fn leave_batch(&mut self, entry: u32) -> Result<(), Error> {
        let Some(parent) = self
            .tree
            .in_batch(entry, self.options.permissions.are_kept())?
        else {
            return Ok(());
        };
        let name = &*self.manifest.entry(entry).name;
        rustix::fs::renameat(parent, name, &self.staging, temporary_name(entry))
            .map_err(|errno| self.error("rename", entry, &errno.into()))
    }

    /// Replaces a file that did not arrive by a mark with its flaw, which survives an interruption.
    fn take_back(&self, file: &File, entry: u32, flaw: Flaw) -> io::Result<()> {
        file.set_len(0)?;
        rustix::fs::renameat(
            &self.staging,
            temporary_name(entry),
            &self.staging,
            flaw_name(entry, flaw),
        )?;
        Ok(())
    }

    fn content(&self, entry: u32) -> &Content {
        self.manifest
            .entry(entry)
            .content()
            .expect("the plan holds files alone")
    }

    fn error(&self, doing: &'static str, entry: u32, error: &io::Error) -> Error {
        Error::new(doing, self.manifest.path(entry), problem(error))
    }

    fn staging_error(&self, doing: &'static str, error: &io::Error) -> Error {
        Error::new(doing, &self.staging_name, problem(error))
    }
}

const OPEN_ANY: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// An entry that can have no name here is not created; it is reported in its turn.
fn unless_refused<T>(found: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(error) if error.problem == Problem::Name => Ok(None),
        found => found,
    }
}

/// The kernel's error, also if it came through the standard library.
pub(crate) fn problem(error: &io::Error) -> Problem {
    Errno::from_io_error(error).map_or(Problem::Tampered, Problem::from)
}

/// A directory of the batch is new: an existing name in it is one that this file system treats as
/// the same.
const IN_BATCH: OFlags = OFlags::EXCL;
const NUMBERED: OFlags = OFlags::TRUNC;
/// Mode of a file that gets its permissions at the end, or the default ones.
const NEW_MODE: Mode = Mode::from_raw_mode(0o666);
/// The owner's rights to a file or directory until the end.
const OWN: Mode = Mode::RWXU;

fn create(directory: BorrowedFd<'_>, name: &[u8], how: OFlags, mode: Mode) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | how;
    Ok(rustix::fs::openat(directory, name, flags, mode)?.into())
}

/// The offered permissions without bits that would let others act as the owner.
fn permissions(entry: &Entry) -> Mode {
    Mode::from_raw_mode(u32::from(entry.mode) & 0o777)
}

/// Name of the mark of a file that did not arrive.
fn flaw_name(entry: u32, flaw: Flaw) -> String {
    format!("{entry}.{}", flaw.code())
}

/// The access time is set to now: if it is omitted, older FUSE file systems set nothing and report
/// success.
fn times(modified: crate::Modified) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        last_modification: Timespec {
            tv_sec: modified.seconds,
            tv_nsec: modified.nanos.into(),
        },
    }
}

/// Writes `bytes` to the place of the file's data from byte `at` on.
fn write_data(file: &File, content: &Content, mut at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (offset, run) = content.locate(at);
        let (now, later) = rest.split_at(run.min(rest.len() as u64) as usize);
        file.write_all_at(now, offset)?;
        at += now.len() as u64;
        rest = later;
    }
    Ok(())
}
