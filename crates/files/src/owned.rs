//! Whether an unfinished directory is this receiver's, also where the file system has one owner and one mode for all (FAT, NTFS, CIFS,
//! NFS with `root_squash`, WSL, bindfs).
//!
//! Where owners are kept, the directory of another user has another owner. Elsewhere a file that this process makes shows which owner and
//! which mode all things have: a directory that has them is as much this user's as anything there is. What was found is part of the
//! journal's seal, so that a journal vouches for the directory with the owner and mode that were proven when it was made, and no other.

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Bits of a mode by which others write.
const OTHERS_WRITE: u32 = 0o022;
/// The file that shows them, for a moment.
pub(crate) const PROBE: &str = "owner.probe";
/// What it is made with: a file system that keeps modes adds nothing to that, whatever its lists of access say.
const PROBE_MODE: u32 = 0o200;

/// The owner of a directory, and whether others may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    user: u32,
    others: u32,
}

impl Owned {
    /// What a directory has.
    pub fn of(directory: &Stat) -> Self {
        Self {
            user: directory.st_uid,
            others: directory.st_mode & OTHERS_WRITE,
        }
    }

    /// What a directory of this user's has where the file system keeps owners and modes.
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

    /// For a seal.
    pub fn bytes(self) -> [u8; 8] {
        let both = u64::from(self.user) << u32::BITS | u64::from(self.others);
        both.to_be_bytes()
    }

    /// Whether the open `directory`, which has this, is this user's: writes, and removes, a file in it where its owner and mode alone do not
    /// say so.
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

/// What a file of this process's has there, which is none that was there before; none where it may make none.
fn probe(directory: BorrowedFd<'_>) -> Result<Option<Stat>, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = || rustix::fs::openat(directory, PROBE, flags, Mode::from_raw_mode(PROBE_MODE));
    let remove = || rustix::fs::unlinkat(directory, PROBE, AtFlags::empty());
    let made = make().or_else(|errno| match errno {
        // Left by one that was killed here.
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
    fn where_owners_and_modes_are_kept_a_directory_of_others_proves_nothing() {
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
        // Who may not give it away is no other user either.
        if chown(&path, Some(Owned::own().user + 1), None).is_ok() {
            assert!(!is_proven());
        }
        fs::remove_dir_all(path).unwrap();
    }
}
