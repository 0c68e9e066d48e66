//! Whether an unfinished directory belongs to this receiver.
//!
//! That must also be known where the file system has one owner and one mode for everything (FAT,
//! NTFS, CIFS, NFS with `root_squash`, WSL, bindfs).
//!
//! Where owners are kept, the directory of another user has another owner. Elsewhere, a file that
//! this process creates shows the owner and mode that everything has: a directory with the same is
//! as much this user's as any other. The result enters the journal's seal, so a journal vouches
//! only for a directory with the owner and mode that were proven when it was made.

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Mode bits that let others write.
const OTHERS_WRITE: u32 = 0o022;
/// Name of the probe file, which exists only for a moment.
pub(crate) const PROBE: &str = "owner.probe";
/// Mode of the probe file: a file system that keeps modes adds nothing to it, whatever its ACLs.
const PROBE_MODE: u32 = 0o200;

/// The owner of a directory, and whether others may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    user: u32,
    others: u32,
}

impl Owned {
    /// Owner and mode of a directory.
    pub fn of(directory: &Stat) -> Self {
        Self {
            user: directory.st_uid,
            others: directory.st_mode & OTHERS_WRITE,
        }
    }

    /// Owner and mode of this user's directory if the file system keeps them.
    pub fn own() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            others: 0,
        }
    }

    /// The owner.
    pub fn user(self) -> u32 {
        self.user
    }

    /// The bytes that enter a seal.
    pub fn bytes(self) -> [u8; 8] {
        let both = u64::from(self.user) << u32::BITS | u64::from(self.others);
        both.to_be_bytes()
    }

    /// Whether the open `directory`, which has this owner and mode, is this user's.
    ///
    /// Creates and removes a file in it if its owner and mode alone do not tell.
    pub fn is_proven(self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        if self == Self::own() {
            return Ok(true);
        }
        let Some(probe) = probe(directory)? else {
            return Ok(false);
        };
        let keeps_modes = probe.st_mode & 0o777 & !PROBE_MODE == 0;
        Ok(self.user == probe.st_uid && (self.others == 0 || !keeps_modes))
    }
}

/// Owner and mode of a new file of this process in the directory; `None` if it may not create one.
fn probe(directory: BorrowedFd<'_>) -> Result<Option<Stat>, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = || rustix::fs::openat(directory, PROBE, flags, Mode::from_raw_mode(PROBE_MODE));
    let remove = || rustix::fs::unlinkat(directory, PROBE, AtFlags::empty());
    let made = make().or_else(|errno| match errno {
        // Left by a process that was killed here.
        Errno::EXIST => remove().and_then(|()| make()),
        errno => Err(errno),
    });
    match made {
        Ok(file) => {
            let stat = rustix::fs::fstat(&file);
            remove()?;
            stat.map(Some)
        }
        Err(Errno::ACCESS | Errno::PERM | Errno::ISDIR | Errno::EXIST) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn with_real_owners_a_directory_of_others_proves_nothing() {
        let path = std::env::temp_dir().join(format!("airdma-owned-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let is_proven = || {
            let directory = fs::File::open(&path).unwrap();
            let owned = Owned::of(&rustix::fs::fstat(&directory).unwrap());
            let is_proven = owned.is_proven(directory.as_fd()).unwrap();
            assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing is left");
            is_proven
        };
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o700);
        assert!(is_proven());
        for others in [0o777, 0o720, 0o702] {
            mode(others);
            assert!(!is_proven(), "{others:o}");
        }
        mode(0o700);
        // A user that may not give the file away is not another user either.
        if chown(&path, Some(Owned::own().user + 1), None).is_ok() {
            assert!(!is_proven());
        }
        fs::remove_dir_all(path).unwrap();
    }
}
