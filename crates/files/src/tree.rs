//! The receiving directory by entries of a manifest. Nothing outside of it is ever touched.
//!
//! Every call names one entry in a directory that is open ([`Descent`]), never a path, and follows
//! no symbolic link.

use crate::descent::Descent;
use crate::manifest::{Entry, Manifest};
use crate::plan::Unwanted;
use crate::trailer::Flaw;
use crate::twins::{Twins, are_one, without_end};
use crate::{Error, Problem};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// How an offer is fitted into the directory: decided once ([`crate::survey`]), and kept in the
/// journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fitting {
    /// New names of top-level entries.
    pub renamed: BTreeMap<u32, Box<[u8]>>,
    /// Entries that exist already.
    pub unwanted: Unwanted,
}

#[derive(Debug)]
pub(crate) struct Tree {
    directory: OwnedFd,
    manifest: Arc<Manifest>,
    pub fitting: Fitting,
    descent: Descent,
    batch: Option<Batch>,
    /// Computed at first use.
    twins: OnceLock<Twins>,
    /// Entries whose names the file system refused, and why.
    refused: HashMap<u32, Flaw>,
    /// Existing directories that were not writable, and the modes to restore at the end.
    opened: BTreeMap<u32, Mode>,
}

/// New top-level directories of the first checkpoint.
///
/// They are created in the staging directory under the numbers of their entries, with their
/// contents under final names. One rename for each gives them their place; a rename for each file
/// would cost more than creating it.
#[derive(Debug)]
struct Batch {
    staging: OwnedFd,
    /// Directories that were checked, and whether they are new.
    tops: BTreeMap<u32, bool>,
}

/// Flags to open a directory for reading.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Flags to open a directory for lookups of known names; it need not be readable.
pub(crate) const PASSED: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Tree {
    pub fn new(directory: OwnedFd, manifest: Arc<Manifest>, fitting: Fitting) -> Self {
        Self {
            directory,
            manifest,
            fitting,
            descent: Descent::default(),
            batch: None,
            twins: OnceLock::new(),
            refused: HashMap::new(),
            opened: BTreeMap::new(),
        }
    }

    /// Creates new top-level directories in `staging` from now on.
    pub fn begin_batch(&mut self, staging: OwnedFd) {
        let tops = BTreeMap::new();
        self.batch = Some(Batch { staging, tops });
    }

    /// Whether any were created.
    pub fn has_batch(&self) -> bool {
        let is_new = |batch: &Batch| batch.tops.values().any(|&is_new| is_new);
        self.batch.as_ref().is_some_and(is_new)
    }

    /// Ends the batch, and returns the created directories: call [`Tree::place_top`] for each.
    pub fn end_batch(&mut self) -> Vec<u32> {
        // Network disks of Windows hosts (CIFS, 9p of WSL) do not rename a directory in which
        // something is open.
        self.descent = Descent::default();
        let tops = self.batch.take().map(|batch| batch.tops);
        let tops = tops.into_iter().flatten();
        tops.filter_map(|(top, is_new)| is_new.then_some(top))
            .collect()
    }

    /// The directory of the batch that holds entry `index`, created with its parents if missing.
    ///
    /// `None` if the entry is in no new directory, or there is no batch.
    pub fn in_batch(
        &mut self,
        index: u32,
        keep_permissions: bool,
    ) -> Result<Option<BorrowedFd<'_>>, Error> {
        let Some(top) = self.manifest.ancestors(index).last() else {
            return Ok(None);
        };
        let Some(batch) = &self.batch else {
            return Ok(None);
        };
        // If two names may be the same here, the first gets its place before the other is
        // checked; a name that may be refused is tried first.
        if self.twins().contains(top) || is_unusual(self.name(top)) {
            return Ok(None);
        }
        let known = batch.tops.get(&top).copied();
        let is_new = known.map_or_else(|| self.exists(top).map(|exists| !exists), Ok)?;
        if known.is_none()
            && let Some(batch) = &mut self.batch
        {
            batch.tops.insert(top, is_new);
        }
        if is_new {
            self.parent(index, keep_permissions).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Gives a directory of the batch its final name.
    pub fn place_top(&self, staging: BorrowedFd<'_>, top: u32) -> Result<(), Error> {
        let (from, name) = (temporary_name(top), self.name(top));
        let renamed = rename_to_nothing(staging, &from, self.top(), name);
        renamed.map_err(Error::at("create", self.manifest.path(top)))
    }

    fn exists(&self, top: u32) -> Result<bool, Error> {
        match rustix::fs::statat(self.top(), self.name(top), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(errno) if is_absent(errno) => Ok(false),
            Err(errno) => Err(Error::at("look at", self.name(top))(errno)),
        }
    }

    /// The receiving directory itself.
    pub fn top(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The name of entry `index` in this directory.
    pub fn name(&self, index: u32) -> &[u8] {
        self.fitting
            .renamed
            .get(&index)
            .map_or(&*self.manifest.entry(index).name, |name| name)
    }

    /// The offered entry `index`.
    pub fn entry(&self, index: u32) -> &Entry {
        self.manifest.entry(index)
    }

    /// Opens with `how` the directory that holds entry `index`, which must exist.
    pub fn existing(&mut self, index: u32, how: OFlags) -> Result<BorrowedFd<'_>, Error> {
        self.reach(
            self.manifest.entry(index).parent,
            false,
            |above, name, _| rustix::fs::openat(above, name, how, Mode::empty()),
        )
    }

    /// Opens the directory that holds entry `index`, created with its parents if missing.
    pub fn parent(&mut self, index: u32, keep_permissions: bool) -> Result<BorrowedFd<'_>, Error> {
        self.reach(
            self.manifest.entry(index).parent,
            true,
            |above, name, mode| make(above, name, mode, keep_permissions),
        )
    }

    /// Opens the directory that is entry `index`, created if missing.
    pub fn directory(
        &mut self,
        index: u32,
        keep_permissions: bool,
    ) -> Result<BorrowedFd<'_>, Error> {
        self.reach(Some(index), true, |above, name, mode| {
            make(above, name, mode, keep_permissions)
        })
    }

    /// Whether the name of an entry, or of a directory above it, may be the same as another entry's
    /// here.
    pub fn may_be_taken(&self, index: u32) -> bool {
        self.twins().concerns(&self.manifest, index)
    }

    fn twins(&self) -> &Twins {
        self.twins.get_or_init(|| Twins::of(&self.manifest))
    }

    /// Why an entry cannot have its name, if that is known.
    ///
    /// The file system refuses it or that of a directory above it, or another entry has it.
    pub fn refused(&mut self, index: u32, staging: BorrowedFd<'_>) -> Result<Option<Flaw>, Error> {
        let known = self.known_refusal(index);
        if known.is_some() {
            return Ok(known);
        }
        if self.is_cut(index, staging) {
            return Ok(Some(Flaw::Name));
        }
        let is_taken = self.is_taken(index, Some(staging))?;
        Ok(is_taken.then_some(Flaw::SameName))
    }

    /// Why the file system refused the name of an entry, or that of a directory above it, if it
    /// did.
    pub fn known_refusal(&self, index: u32) -> Option<Flaw> {
        let mut way = std::iter::once(index).chain(self.manifest.ancestors(index));
        match self.refused.is_empty() {
            true => None,
            false => way.find_map(|index| self.refused.get(&index).copied()),
        }
    }

    /// Whether the file system cuts off the end of the name of an entry, or of a directory above
    /// it: it would arrive under another name.
    fn is_cut(&mut self, index: u32, staging: BorrowedFd<'_>) -> bool {
        if !self.may_be_taken(index) {
            return false;
        }
        let way: Vec<u32> = std::iter::once(index)
            .chain(self.manifest.ancestors(index))
            .filter(|&index| self.twins().may_be_cut(index))
            .collect();
        for index in way {
            let name = self.name(index);
            if without_end(name).is_some_and(|short| are_one(staging, name, short)) {
                self.refused.insert(index, Flaw::Name);
                return true;
            }
        }
        false
    }

    /// Whether another entry has the name of this one: whether both names find the same file.
    ///
    /// Some file systems (FUSE) number it differently for each name; they are probed in `staging`,
    /// if it is given.
    pub fn is_taken(&mut self, index: u32, staging: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        if !self.may_be_taken(index) {
            return Ok(false);
        }
        let mut way: Vec<u32> = self.manifest.ancestors(index).collect();
        way.reverse();
        way.push(index);
        for index in way {
            let twins = self.twins().before(index).map(<[u32]>::to_vec);
            if twins.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            let Some(own) = self.identity(index)? else {
                continue;
            };
            let Ok(twins) = twins else {
                return Ok(true);
            };
            for twin in twins {
                let Some(other) = self.identity(twin)? else {
                    continue;
                };
                let shows = |staging| are_one(staging, self.name(twin), self.name(index));
                if other == own || staging.is_some_and(shows) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Device and inode of the file with an entry's name.
    fn identity(&mut self, index: u32) -> Result<Option<(u64, u64)>, Error> {
        let name = self.name(index).to_vec();
        let parent = match self.existing(index, DIRECTORY) {
            Ok(parent) => parent,
            Err(error) if error.problem == Problem::Missing => return Ok(None),
            Err(error) => return Err(error),
        };
        match rustix::fs::statat(parent, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
            Err(errno) if is_absent(errno) => Ok(None),
            Err(errno) => Err(Error::at("look at", self.manifest.path(index))(errno)),
        }
    }

    /// Renames `from` in `staging` to entry `index`, atomically.
    pub fn place(
        &mut self,
        staging: BorrowedFd<'_>,
        from: &str,
        index: u32,
        replace: bool,
        keep_permissions: bool,
    ) -> Result<(), Error> {
        let name = self.name(index).to_vec();
        let above = self.manifest.entry(index).parent;
        let parent = self.parent(index, keep_permissions)?;
        let rename = || match replace {
            true => rename_over(staging, from, parent, &name),
            false => rename_to_nothing(staging, from, parent, &name),
        };
        let mut opened = None;
        let renamed = rename().or_else(|errno| {
            opened = above.zip(open_up(parent, errno));
            if opened.is_some() {
                rename()
            } else {
                Err(errno)
            }
        });
        let flaw = renamed
            .err()
            .and_then(|errno| refusal(parent, &name, errno));
        self.opened.extend(opened);
        let Err(errno) = renamed else {
            return Ok(());
        };
        let mut error = Error::at("create", self.manifest.path(index))(errno);
        if let Some(flaw) = flaw {
            self.refused.insert(index, flaw);
            error.problem = Problem::Name;
        }
        Err(error)
    }

    /// The mode to restore for a directory.
    pub fn opened(&self, index: u32) -> Option<Mode> {
        self.opened.get(&index).copied()
    }

    fn reach(
        &mut self,
        directory: Option<u32>,
        makes: bool,
        step: impl Fn(BorrowedFd<'_>, &[u8], u16) -> Result<OwnedFd, Errno>,
    ) -> Result<BorrowedFd<'_>, Error> {
        let Self {
            directory: top,
            manifest,
            fitting,
            descent,
            batch,
            twins: _,
            refused,
            opened,
        } = self;
        let top: &OwnedFd = top;
        let Some(directory) = directory else {
            return Ok(top.as_fd());
        };
        descent.reach(manifest, directory, |above, index| {
            let entry = manifest.entry(index);
            let name = fitting
                .renamed
                .get(&index)
                .map_or(&*entry.name, |name| name);
            let is_new = |batch: &&Batch| batch.tops.get(&index) == Some(&true);
            let in_batch = batch.as_ref().filter(is_new);
            match (above, in_batch) {
                (Some(above), _) => step(above, name, entry.mode).or_else(|errno| {
                    let found = entry.parent.filter(|_| makes);
                    let Some(found) = found.zip(open_up(above, errno)) else {
                        return Err(errno);
                    };
                    opened.extend([found]);
                    step(above, name, entry.mode)
                }),
                (None, Some(batch)) => step(
                    batch.staging.as_fd(),
                    temporary_name(index).as_bytes(),
                    entry.mode,
                ),
                (None, None) => step(top.as_fd(), name, entry.mode),
            }
            .map_err(|errno| {
                let mut error = Error::at("open", manifest.path(index))(errno);
                // What exists was opened.
                let flaw = match errno {
                    Errno::EXIST => Some(Flaw::SameName),
                    errno => is_of_name(name, errno).then_some(Flaw::Name),
                };
                if let Some(flaw) = flaw.filter(|_| makes) {
                    refused.insert(index, flaw);
                    error.problem = Problem::Name;
                }
                error
            })
        })
    }
}

/// Makes an existing directory of this user writable, if that is why nothing could be created in
/// it.
///
/// Returns its former mode, to be restored. The kernel refuses it for the directory of another
/// user; over NFS with `root_squash` or `all_squash` this user's has another owner.
fn open_up(directory: BorrowedFd<'_>, errno: Errno) -> Option<Mode> {
    let stat = (errno == Errno::ACCESS).then(|| rustix::fs::fstat(directory).ok())??;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let is_closed = !mode.contains(Mode::RWXU);
    let opened = is_closed && rustix::fs::fchmod(directory, mode | Mode::RWXU).is_ok();
    opened.then_some(mode)
}

/// Whether the error means that a name does not exist, or cannot.
pub(crate) fn is_absent(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::INVAL | Errno::ILSEQ | Errno::NAMETOOLONG
    )
}

/// Whether the error at creating something in an open directory is about its name. File systems
/// differ in it.
pub(crate) fn is_of_name(name: &[u8], errno: Errno) -> bool {
    match errno {
        Errno::ILSEQ | Errno::NAMETOOLONG | Errno::INVAL => true,
        Errno::NOENT | Errno::PERM => is_unusual(name),
        _ => false,
    }
}

/// Why the file system refuses a name in an open directory, if that is what the error means.
///
/// FAT that is mounted with `iocharset=utf8` tells names apart by case, but not their short forms:
/// the name exists, and is not found.
fn refusal(parent: BorrowedFd<'_>, name: &[u8], errno: Errno) -> Option<Flaw> {
    let find = || rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    match errno {
        Errno::EXIST if find().is_err_and(is_absent) => Some(Flaw::SameName),
        errno => is_of_name(name, errno).then_some(Flaw::Name),
    }
}

/// Whether some file systems refuse the name: FAT and NTFS, those that require UTF-8, and encrypted
/// ones with shorter names.
fn is_unusual(name: &[u8]) -> bool {
    const SHORTENED_BYTES_MAX: usize = 140;
    let stem = name.split(|&byte| byte == b'.').next().unwrap_or(name);
    let is_device = matches!(
        &*stem.to_ascii_lowercase(),
        b"con" | b"prn" | b"aux" | b"nul" | [b'c', b'o', b'm', _] | [b'l', b'p', b't', _]
    );
    let is_odd = |byte: &u8| *byte < b' ' || b"\\:*?\"<>|".contains(byte);
    is_device
        || name.len() > SHORTENED_BYTES_MAX
        || name.ends_with(b".")
        || name.ends_with(b" ")
        || name.iter().any(is_odd)
        || std::str::from_utf8(name).is_err()
}

/// Name of an entry in the staging directory.
pub(crate) fn temporary_name(entry: u32) -> String {
    entry.to_string()
}

/// Opens the receiving directory, which the user named: links are followed here, and nowhere below.
pub(crate) fn open_top(path: &std::path::Path) -> Result<OwnedFd, Error> {
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    let shown = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOTDIR => Error::new("receive into", shown, Problem::NoDirectory),
        errno => Error::at("receive into", shown)(errno),
    })
}

/// The path of an open directory, from the root and without symbolic links.
///
/// It comes from the kernel, or from a lookup where there is no /proc.
pub(crate) fn path_of(
    directory: &OwnedFd,
    named: &std::path::Path,
) -> Result<std::path::PathBuf, Error> {
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let found = std::fs::read_link(link).or_else(|_| named.canonicalize());
    let shown = std::os::unix::ffi::OsStrExt::as_bytes(named.as_os_str());
    found.map_err(|error| {
        let problem = Errno::from_io_error(&error).map_or(Problem::Missing, Problem::from);
        Error::new("receive into", shown, problem)
    })
}

fn make(
    above: BorrowedFd<'_>,
    name: &[u8],
    mode: u16,
    keep_permissions: bool,
) -> Result<OwnedFd, Errno> {
    // Writable for this user until the end, which sets the offered mode; never more permissive
    // meanwhile.
    let mode = if keep_permissions {
        u32::from(mode) & 0o777 | 0o700
    } else {
        0o777
    };
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(mode)) {
        Ok(()) => rustix::fs::openat(above, name, DIRECTORY, Mode::empty()),
        Err(Errno::EXIST) => {
            let opened = rustix::fs::openat(above, name, DIRECTORY, Mode::empty());
            // It exists under another name.
            opened.map_err(|errno| {
                if is_absent(errno) {
                    Errno::EXIST
                } else {
                    errno
                }
            })
        }
        Err(errno) => Err(errno),
    }
}

fn rename_to_nothing(
    staging: BorrowedFd<'_>,
    from: &str,
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<(), Errno> {
    let unlink = || rustix::fs::unlinkat(staging, from, AtFlags::empty());
    let renamed =
        match rustix::fs::renameat_with(staging, from, parent, name, RenameFlags::NOREPLACE) {
            // A file system without that flag (NFS, FUSE, 9p): a hard link cannot replace anything
            // either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                match rustix::fs::linkat(staging, from, parent, name, AtFlags::empty()) {
                    Ok(()) => unlink(),
                    // Some have no hard links (FAT, CIFS), and none has them for directories.
                    Err(
                        Errno::PERM
                        | Errno::NOSYS
                        | Errno::OPNOTSUPP
                        | Errno::MLINK
                        | Errno::ACCESS,
                    ) => rename_to_what_looks_free(staging, from, parent, name),
                    Err(errno) => Err(errno),
                }
            }
            result => result,
        };
    match renamed {
        // It was killed between the two steps.
        Err(Errno::EXIST) if is_one_file(staging, from, parent, name) => unlink(),
        result => result,
    }
}

/// Renames after a check that the name is free.
///
/// Another program may take the name in between and lose its file; this file system allows nothing
/// better.
fn rename_to_what_looks_free(
    staging: BorrowedFd<'_>,
    from: &str,
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<(), Errno> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(errno) if is_absent(errno) => rustix::fs::renameat(staging, from, parent, name),
        Err(errno) => Err(errno),
    }
}

fn rename_over(
    staging: BorrowedFd<'_>,
    from: &str,
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<(), Errno> {
    rustix::fs::renameat(staging, from, parent, name)?;
    // Renaming one name of a file to another of its names leaves both.
    unless_gone(rustix::fs::unlinkat(staging, from, AtFlags::empty()))
}

fn is_one_file(staging: BorrowedFd<'_>, from: &str, parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    let find = |directory, name: &[u8]| {
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.ok().map(|stat| (stat.st_dev, stat.st_ino))
    };
    let here = find(staging, from.as_bytes());
    here.is_some() && here == find(parent, name)
}

/// Treats a missing file as removed.
pub(crate) fn unless_gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Builder, Kind, Limits, Modified};

    #[test]
    fn nothing_is_open_in_a_directory_that_is_to_get_its_place() {
        let path = std::env::temp_dir().join(format!("airdma-tree-{}", std::process::id()));
        std::fs::create_dir_all(path.join("staging")).unwrap();
        let mut builder = Builder::new(Limits::default());
        for (depth, name) in [(0, "top"), (1, "within"), (2, "deep")] {
            builder
                .push(Entry {
                    parent: None,
                    depth,
                    name: name.as_bytes().into(),
                    mode: 0o755,
                    modified: Modified {
                        seconds: 0,
                        nanos: 0,
                    },
                    kind: Kind::Directory,
                })
                .unwrap();
        }
        let manifest = Arc::new(builder.finish());
        let mut tree = Tree::new(open_top(&path).unwrap(), manifest, Fitting::default());
        tree.begin_batch(open_top(&path.join("staging")).unwrap());
        assert!(tree.in_batch(2, true).unwrap().is_some());
        let moved = path.join("staging/0").canonicalize().unwrap();
        let open_below = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let open = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            open.filter(|open| open.starts_with(&moved)).count()
        };
        assert_eq!(open_below(), 2);
        assert_eq!(tree.end_batch(), [0]);
        assert_eq!(open_below(), 0);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn an_error_is_about_a_name_if_some_disks_refuse_the_name() {
        for name in [
            &b"a:b"[..],
            b"what?",
            b"back\\slash",
            b"ends.",
            b"ends ",
            b"nul",
            b"COM1.txt",
            b"not \xff text",
            b"\x01",
            &[b'x'; 200],
        ] {
            let shown = String::from_utf8_lossy(name);
            assert!(is_of_name(name, Errno::NOENT), "{shown}");
            assert!(!is_of_name(name, Errno::ACCESS), "{shown}");
        }
        for name in [
            &b"a"[..],
            b"a b.c",
            b".hidden",
            b"com",
            b"com10",
            "é".as_bytes(),
        ] {
            let shown = String::from_utf8_lossy(name);
            assert!(!is_of_name(name, Errno::NOENT), "{shown}");
            assert!(is_of_name(name, Errno::INVAL), "{shown}");
            assert!(is_of_name(name, Errno::ILSEQ), "{shown}");
        }
    }
}
