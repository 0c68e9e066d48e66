//! The end of a transfer: empty directories, links, modes and times of directories. Can be repeated
//! if interrupted.

use super::checkpoint::{at_once, hold, sync_directory};
use super::{NEW_MODE, NUMBERED, Sink, create, flaw_name, times};
use crate::manifest::Kind;
use crate::options::{Permissions, Symlinks};
use crate::trailer::Flaw;
use crate::tree::{Tree, unless_gone};
use crate::{Error, Problem};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Mode bits of others than the owner.
const OTHERS: u32 = 0o077;

/// Result of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Number of files that arrived completely.
    pub files: u64,
    /// Files that did not arrive, by entry.
    pub flaws: Vec<(u32, Flaw)>,
    /// Attributes that this file system did not keep.
    pub unkept: Unkept,
}

/// Number of files and directories that arrived without some attribute.
///
/// The file system has one mode for all, or does not let this user set times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unkept {
    /// Those without their permissions.
    pub modes: u64,
    /// Those without their times.
    pub times: u64,
}

/// Ignores an error that only means that the file system cannot keep an attribute.
pub(super) fn unless_impossible(
    set: Result<(), Errno>,
    unkept: &Cell<Unkept>,
    count: impl FnOnce(&mut Unkept) -> &mut u64,
) -> Result<(), Errno> {
    match set {
        Err(
            Errno::PERM
            | Errno::ACCESS
            | Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::INVAL
            | Errno::OVERFLOW,
        ) => {
            let mut counted = unkept.get();
            *count(&mut counted) += 1;
            unkept.set(counted);
            Ok(())
        }
        set => set,
    }
}

impl Sink {
    /// Ends a transfer after its last chunk: [`Sink::settle`], then [`Sink::forget`].
    pub fn finish(mut self) -> Result<Report, Error> {
        let report = self.settle()?;
        self.forget()?;
        Ok(report)
    }

    /// Gives everything that arrived its name, durably. The journal stays.
    ///
    /// A sender that missed the end asks again; the receiver then opens a sink that wants nothing
    /// and is settled, and later changes of the user stay.
    pub fn settle(&mut self) -> Result<Report, Error> {
        self.unless_broken(Self::make_settled)?;
        self.flaws.sort_unstable_by_key(|(entry, _)| *entry);
        let is_file = |flaw: &&(u32, Flaw)| self.manifest.entry(flaw.0).content().is_some();
        let flawed = self.flaws.iter().filter(is_file).count();
        let mut unkept = self.unkept.get();
        if !self.keeps_modes() {
            let lacks = |index: &u32| self.flaws.binary_search_by_key(index, |(entry, _)| *entry);
            let with_mode = self.manifest.iter().filter(|(index, entry)| {
                !matches!(entry.kind, Kind::Symlink(_))
                    && !self.tree.fitting.unwanted.contains(*index)
                    && lacks(index).is_err()
            });
            unkept.modes = with_mode.count() as u64;
        }
        Ok(Report {
            files: (self.plan.files().len() - flawed) as u64,
            flaws: self.flaws.clone(),
            unkept,
        })
    }

    /// Whether the file system keeps modes, or none are wanted.
    ///
    /// FAT changes none and reports no error. The unfinished directory, which is closed to others
    /// when it is made, shows that.
    fn keeps_modes(&self) -> bool {
        let is_open = |stat: rustix::fs::Stat| stat.st_mode & OTHERS != 0;
        self.options.permissions == Permissions::New
            || !rustix::fs::fstat(&self.staging).is_ok_and(is_open)
    }

    /// Removes the journal and the staging directory: the sender knows of the end, and will not ask
    /// again.
    ///
    /// From then on the names of the offer exist like any other. An error means that some of it
    /// stays; nothing else is wrong.
    pub fn forget(self) -> Result<(), Error> {
        let Self {
            tree,
            staging,
            staging_name,
            journal,
            flaws,
            ..
        } = self;
        // On NFS an open file is renamed when it is removed, and its directory stays.
        drop(journal);
        let removed = remove_staging(&tree, &staging, &staging_name, &flaws);
        let problem = |errno| match errno {
            Errno::NOTEMPTY => Problem::Other(errno),
            errno => errno.into(),
        };
        removed.map_err(|errno| Error::new("clean up", &staging_name, problem(errno)))
    }

    fn make_settled(&mut self) -> Result<(), Error> {
        assert_eq!(self.next, self.plan.chunks(), "all chunks were written");
        if self.is_settled {
            return Ok(());
        }
        self.make_checkpoint()?;
        // Without any file, no directory was created.
        self.tree.end_batch();
        let manifest = std::sync::Arc::clone(&self.manifest);
        for (index, entry) in manifest.iter() {
            if entry.content().is_none() && self.leave_out(index)? {
                continue;
            }
            match &entry.kind {
                Kind::Directory => {
                    let keep_permissions = self.options.permissions.are_kept();
                    let made = self.tree.directory(index, keep_permissions).map(drop);
                    match made {
                        Err(error) if error.problem == Problem::Name => self.lack_name(index)?,
                        made => made?,
                    }
                }
                Kind::Symlink(target) if self.options.symlinks != Symlinks::Skip => {
                    self.link(index, target)?
                }
                Kind::File(_) | Kind::Symlink(_) => {}
            }
        }
        // Children before their parents: a directory's time changes with its entries, and its mode
        // may forbid access.
        for (index, entry) in manifest.iter().rev() {
            if entry.kind == Kind::Directory && !self.nameless.contains(&index) {
                let closed = self.tree.opened(index);
                let directory = self
                    .tree
                    .directory(index, self.options.permissions.are_kept())?
                    .try_clone_to_owned();
                directory
                    .and_then(|directory| {
                        if let Some(mode) = closed {
                            rustix::fs::fchmod(&directory, mode)?;
                        }
                        self.set_attributes(&directory, index, false)
                    })
                    .map_err(|error| self.error("set mode and time of", index, &error))?;
            }
        }
        self.sync_names()
            .map_err(|error| self.staging_error("write", &error))?;
        self.is_settled = true;
        // If this cannot be recorded, the next attempt repeats everything.
        let _ = hold(&self.journal).settle(self.next);
        Ok(())
    }

    /// Whether a directory or link is left out, which is reported as for a file.
    ///
    /// It can have no name here, or the options exclude it.
    fn leave_out(&mut self, index: u32) -> Result<bool, Error> {
        if self.nameless.contains(&index) {
            return Ok(true);
        }
        let entry = self.manifest.entry(index);
        let leads_out = match &entry.kind {
            Kind::Symlink(target) => {
                let links = self.options.symlinks;
                links != Symlinks::Skip && !links.makes(target, entry.depth)
            }
            Kind::File(_) | Kind::Directory => false,
        };
        let flaw = match leads_out {
            true => Some(Flaw::LeadsOut),
            false => self.tree.refused(index, self.staging.as_fd())?,
        };
        if let Some(flaw) = flaw {
            self.lack(index, flaw)?;
        }
        Ok(flaw.is_some())
    }

    /// The same as [`Sink::lack`] for one whose name was refused.
    fn lack_name(&mut self, index: u32) -> Result<(), Error> {
        let flaw = self.tree.known_refusal(index).unwrap_or(Flaw::Name);
        self.lack(index, flaw)
    }

    /// Leaves a mark for a directory or link that is not created, as for a file.
    fn lack(&mut self, index: u32, flaw: Flaw) -> Result<(), Error> {
        self.nameless.insert(index);
        let mark = flaw_name(index, flaw);
        create(self.staging.as_fd(), mark.as_bytes(), NUMBERED, NEW_MODE)
            .map_err(|error| self.staging_error("write", &error))?;
        self.flaws.push((index, flaw));
        Ok(())
    }

    fn link(&mut self, index: u32, target: &[u8]) -> Result<(), Error> {
        let name = self.tree.name(index).to_vec();
        let keep_permissions = self.options.permissions.are_kept();
        let parent = match self.tree.parent(index, keep_permissions) {
            Err(error) if error.problem == Problem::Name => return self.lack_name(index),
            parent => parent?,
        };
        match rustix::fs::readlinkat(parent, &*name, Vec::new()) {
            Ok(existing) if existing.as_bytes() == target => return Ok(()),
            // Another link, or none: this is decided when it is placed.
            Ok(_) | Err(_) => {}
        }
        let temporary = super::temporary_name(index);
        let made =
            rustix::fs::symlinkat(target, &self.staging, &temporary).or_else(|errno| match errno {
                // Left by an interruption here.
                Errno::EXIST => rustix::fs::unlinkat(&self.staging, &temporary, AtFlags::empty())
                    .and_then(|()| rustix::fs::symlinkat(target, &self.staging, &temporary)),
                errno => Err(errno),
            });
        match made {
            Err(errno) if NO_LINK.contains(&errno) => return self.lack(index, Flaw::NoLinks),
            made => made,
        }
        .and_then(|()| self.time_link(index, &temporary))
        .map_err(|errno| self.error("create", index, &errno.into()))?;
        if let Some(flaw) = self.place_unless_refused(index, &temporary)? {
            let removed = rustix::fs::unlinkat(&self.staging, &temporary, AtFlags::empty());
            unless_gone(removed).map_err(|errno| self.staging_error("write", &errno.into()))?;
            self.lack(index, flaw)?;
        }
        Ok(())
    }

    fn time_link(&self, index: u32, temporary: &str) -> Result<(), Errno> {
        if !self.options.times {
            return Ok(());
        }
        let times = times(self.manifest.entry(index).modified);
        let timed =
            rustix::fs::utimensat(&self.staging, temporary, &times, AtFlags::SYMLINK_NOFOLLOW);
        self.unless_untimed(timed)
    }

    fn sync_names(&self) -> io::Result<()> {
        let entries = self.manifest.entries();
        if entries.iter().any(|entry| entry.content().is_none()) {
            return Ok(rustix::fs::syncfs(self.tree.top())?);
        }
        // All names have moved from one directory to the other: sync both, for a file system
        // without a journal. A sync of the whole file system would also wait for other programs'
        // data.
        let (top, staging) = (self.tree.top(), &self.staging);
        at_once(|| sync_directory(top), || sync_directory(staging))
    }
}

/// What file systems say to a symbolic link that they do not take: FAT, old FUSE, WSL and 9p, CIFS
/// of Linux 6.12, Samba and Windows without the right to, and those to whom its target is too long.
const NO_LINK: [Errno; 7] = [
    Errno::PERM,
    Errno::NOSYS,
    Errno::OPNOTSUPP,
    Errno::IO,
    Errno::ACCESS,
    Errno::INVAL,
    Errno::NAMETOOLONG,
];

/// Removes the journal first: with a journal, but without the marks of missing files, all files
/// would seem to have arrived.
fn remove_staging(
    tree: &Tree,
    staging: &OwnedFd,
    staging_name: &str,
    flaws: &[(u32, Flaw)],
) -> Result<(), Errno> {
    let unlink = |name: &str| unless_gone(rustix::fs::unlinkat(staging, name, AtFlags::empty()));
    unlink(crate::journal::NAME)?;
    for &(entry, flaw) in flaws {
        unlink(&flaw_name(entry, flaw))?;
    }
    unless_gone(rustix::fs::unlinkat(
        tree.top(),
        staging_name,
        AtFlags::REMOVEDIR,
    ))
}
