//! Where the running programs of a user keep the files that they share: counters, and whatever a front end adds.
//!
//! It is `$XDG_RUNTIME_DIR/airdma`, or else `/tmp/airdma-<euid>`, or else (in a user namespace, where somebody outside may
//! hold that name) `/tmp/airdma-<euid>-<user namespace>`: mode 0700, owner checked, links not followed. So only processes
//! of this user can have put there what is found there.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::time::Duration;

/// The directory; made if need be.
///
/// # Errors
/// What the last of the candidates fails with.
pub fn directory() -> io::Result<PathBuf> {
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map(|path| PathBuf::from(path).join("airdma"));
    let ours = format!("/tmp/airdma-{}", effective_user());
    if let Some(found) = runtime
        .into_iter()
        .chain([PathBuf::from(&ours)])
        .find(|path| make_directory(path).is_ok())
    {
        return Ok(found);
    }
    let namespace = std::fs::metadata("/proc/self/ns/user")?.ino();
    let path = PathBuf::from(format!("{ours}-{namespace}"));
    make_directory(&path)?;
    Ok(path)
}

/// The directory for what all processes of a user have in common, whatever their environment: as [`directory`], but
/// `$XDG_RUNTIME_DIR` comes last.
///
/// # Errors
/// What the last of the candidates fails with.
pub fn shared_directory() -> io::Result<PathBuf> {
    let ours = PathBuf::from(format!("/tmp/airdma-{}", effective_user()));
    match make_directory(&ours) {
        Ok(()) => Ok(ours),
        Err(_) => directory(),
    }
}

/// The number of the calling thread's network namespace: part of the name of everything that is about interfaces.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn network_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Makes a directory that is this user's alone, or checks that it is.
///
/// # Errors
/// `PermissionDenied` if somebody else owns it or may look into it, or if it is a link.
pub fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != effective_user() || metadata.mode() & 0o077 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

/// Opens a file of this user for reading and writing.
///
/// # Errors
/// `PermissionDenied` if somebody else owns it or it is no plain file; what `open(2)` fails with, links included.
pub fn open_file(path: &Path, create: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != effective_user() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(file)
}

/// Makes a file at least so long, with room on the disk for all of it: a mapping of a file without would end the program that
/// writes there first (SIGBUS). It is never made shorter, since others may have mapped it.
///
/// # Errors
/// `ENOSPC`, and what else `posix_fallocate(3)` fails with.
pub fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    // SAFETY: plain integers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// A new mapping of the first `bytes` of a file, which all who map it share; `munmap(2)` ends it.
///
/// # Errors
/// Those of `mmap(2)`.
pub fn map(file: &File, bytes: usize) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: at an address of the kernel's choice, where nothing is.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// A file that one process at a time may use. The lock belongs to the open file, which a mapping or a forked child may
/// keep, so it is given back in so many words.
pub struct Locked(pub File);

impl Locked {
    /// Waits for the lock, 0.1 s at most.
    ///
    /// # Errors
    /// `WouldBlock` when somebody was stopped while holding it; what `flock(2)` fails with.
    pub fn new(file: File) -> io::Result<Self> {
        for _ in 0..LOCK_TRIES {
            // SAFETY: flock takes no pointer.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(Locked(file));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: flock takes no pointer.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

fn effective_user() -> u32 {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_real_directory_of_ones_own_will_do() {
        let path = std::env::temp_dir().join(format!("airdma-test-{}-own", std::process::id()));
        make_directory(&path).unwrap();
        make_directory(&path).unwrap();
        let link = path.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(make_directory(&link).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(make_directory(&path).is_err());
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_lock_that_is_not_given_back_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("airdma-test-{}-lock", std::process::id()));
        let held = Locked::new(open_file(&path, true).unwrap()).unwrap();
        let refused = Locked::new(open_file(&path, false).unwrap());
        assert_eq!(refused.err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        Locked::new(open_file(&path, false).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
