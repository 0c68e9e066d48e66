//! Directories of the files that a user's programs share: counters, the registry of processes, and
//! files of front ends.
//!
//! Files common to all processes of a user, whatever their environment, lie in the first of these
//! that can be used:
//!
//! | directory | reason | not available |
//! | --- | --- | --- |
//! | `/run/airdma-<euid>` | only root can make it, for itself or for a user, and it outlives sessions | for other users, unless it was made for them |
//! | `/run/user/<euid>/airdma` | made by the system for this user alone (mode 0700) | if the user has no session |
//! | `/tmp/airdma-<euid>` | outlives sessions | if another user made it first |
//! | `/tmp/airdma-<euid>-<user namespace>` | in a user namespace, outside of which a user may have that name | if another user made it first |
//!
//! Each is a directory of mode 0700 that belongs to the user, is not a link, and lies in one in
//! which others can replace nothing. So only processes of this user can have written its files; a
//! directory that another user made first is not used.
//!
//! Other files, such as counters, lie in `$XDG_RUNTIME_DIR/airdma` if that is set to a directory of
//! the user's own.

use crate::environment::session_directory;
use airdma_port::descriptors::keep_away;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::time::Duration;

/// The directory for other files; made if it does not exist.
///
/// # Errors
/// As [`shared_directory`].
pub fn directory() -> io::Result<PathBuf> {
    let runtime = session_directory().filter(|path| path.is_absolute());
    let wanted = runtime.and_then(|parent| Candidate::in_own(parent).make().ok());
    wanted.map_or_else(shared_directory, Ok)
}

/// The directory common to all processes of a user, whatever their environment; made if it does not
/// exist.
///
/// # Errors
/// There is none; the error lists what is wrong with each candidate.
pub fn shared_directory() -> io::Result<PathBuf> {
    first_of(&candidates(&Roots::default())?)
}

/// All existing directories that [`shared_directory`] may have returned, or will:
/// `/run/user/<euid>` comes and goes with sessions.
pub fn shared_directories() -> Vec<PathBuf> {
    let candidates = candidates(&Roots::default()).unwrap_or_default();
    let there = candidates.into_iter().filter(|it| it.check().is_ok());
    there.map(|it| it.path).collect()
}

/// The system's directories.
struct Roots {
    run: PathBuf,
    tmp: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Roots {
            run: PathBuf::from("/run"),
            tmp: PathBuf::from("/tmp"),
        }
    }
}

/// A candidate, and the condition on its parent.
struct Candidate {
    path: PathBuf,
    parent: Parent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    /// It belongs to the user, and no other user writes to it.
    Own,
    /// Others cannot replace its entries.
    Common,
}

fn candidates(roots: &Roots) -> io::Result<Vec<Candidate>> {
    let user = effective_user();
    let name = format!("airdma-{user}");
    let namespace = std::fs::metadata("/proc/self/ns/user")?.ino();
    let common = |path| Candidate {
        path,
        parent: Parent::Common,
    };
    Ok(vec![
        common(roots.run.join(&name)),
        Candidate::in_own(roots.run.join("user").join(user.to_string())),
        common(roots.tmp.join(&name)),
        common(roots.tmp.join(format!("{name}-{namespace}"))),
    ])
}

fn first_of(candidates: &[Candidate]) -> io::Result<PathBuf> {
    let mut reasons = Vec::new();
    for candidate in candidates {
        match candidate.make() {
            Ok(path) => return Ok(path),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        reasons.join("; "),
    ))
}

impl Candidate {
    fn in_own(parent: PathBuf) -> Self {
        Candidate {
            path: parent.join("airdma"),
            parent: Parent::Own,
        }
    }

    fn make(&self) -> io::Result<PathBuf> {
        self.check_parent()?;
        make_directory(&self.path)?;
        Ok(self.path.clone())
    }

    fn check(&self) -> io::Result<()> {
        self.check_parent()?;
        check_directory(&self.path)
    }

    fn check_parent(&self) -> io::Result<()> {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let metadata = std::fs::symlink_metadata(parent).map_err(|error| about(parent, &error))?;
        let others_write = metadata.mode() & 0o022 != 0;
        let is_sticky = metadata.mode() & libc::S_ISVTX != 0;
        let wrong = match self.parent {
            Parent::Own => whats_wrong(&metadata).or(others_write.then_some(WRITABLE)),
            Parent::Common if !metadata.is_dir() => Some(NO_DIRECTORY),
            Parent::Common => (others_write && !is_sticky).then_some(WRITABLE),
        };
        wrong.map_or(Ok(()), |wrong| Err(refused(parent, &metadata, wrong)))
    }
}

/// Inode number of the calling thread's network namespace, which is part of the names of files
/// about interfaces.
///
/// # Errors
/// `/proc` cannot be read.
pub fn network_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Makes a directory of mode 0700, or checks that it is the user's alone.
///
/// # Errors
/// `PermissionDenied` if another user owns it or may look into it, or if it is a link.
pub fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(about(path, &error)),
    }
    check_directory(path)
}

fn check_directory(path: &Path) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(path).map_err(|error| about(path, &error))?;
    let open_to_others = metadata.mode() & 0o077 != 0;
    let wrong = whats_wrong(&metadata).or(open_to_others.then_some(OPEN));
    wrong.map_or(Ok(()), |wrong| Err(refused(path, &metadata, wrong)))
}

/// Reason why a file is not a directory of this user's alone.
fn whats_wrong(metadata: &Metadata) -> Option<&'static str> {
    if !metadata.is_dir() {
        return Some(NO_DIRECTORY);
    }
    (metadata.uid() != effective_user()).then_some("belongs to another user")
}

const NO_DIRECTORY: &str = "is not a directory";
const WRITABLE: &str = "is writable for others";
const OPEN: &str = "is open to others";

fn refused(path: &Path, metadata: &Metadata, wrong: &str) -> io::Error {
    let (user, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let message = format!("{} {wrong} (user {user}, mode {mode:o})", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Opens a file of this user for reading and writing.
///
/// # Errors
/// `PermissionDenied` if another user owns it or it is not a regular file; errors of `open(2)`,
/// which refuses links.
pub fn open_file(path: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).mode(0o600);
    of_this_user(&mut options, path)
}

/// Sets the sticky bit, so that `systemd-tmpfiles` (XDG Base Directory Specification) keeps the
/// file, however old it is. The processes that use it must remove it.
///
/// # Errors
/// Errors of `fchmod(2)`.
pub fn keep(file: &File) -> io::Result<()> {
    if file.metadata()?.mode() & libc::S_ISVTX == 0 {
        file.set_permissions(Permissions::from_mode(0o600 | libc::S_ISVTX))?;
    }
    Ok(())
}

/// Opens a file of this user for reading.
///
/// # Errors
/// As [`open_file`].
pub fn open_to_read(path: &Path) -> io::Result<File> {
    of_this_user(OpenOptions::new().read(true), path)
}

fn of_this_user(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = options.custom_flags(flags).open(path)?;
    let file = File::from(keep_away(file.into()));
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != effective_user() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(file)
}

/// Grows a file to at least `bytes`, with disk space for all of them.
///
/// A mapping of a file without space would end the program at the first write (SIGBUS). The file
/// never shrinks, since others may have mapped it.
///
/// # Errors
/// `ENOSPC`, and other errors of `posix_fallocate(3)`.
pub fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    // SAFETY: plain integers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Maps the first `bytes` of a file, shared with all mappings of it, until `munmap(2)`.
///
/// # Errors
/// Errors of `mmap(2)`.
pub fn map(file: &File, bytes: usize) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (flags, fd) = (libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: at an address that the kernel chooses, where nothing is mapped.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// A file that one process at a time may use.
///
/// The lock belongs to the open file, which a mapping or a forked child may keep, so it is released
/// explicitly.
pub struct Locked(pub File);

impl Locked {
    /// Waits for the lock, at most 1 s: its holder may be starved of its processor.
    ///
    /// # Errors
    /// `WouldBlock` if another process was stopped while holding it; errors of `flock(2)`.
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

const LOCK_TRIES: u32 = 1000;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

fn effective_user() -> u32 {
    // SAFETY: geteuid has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Id of another user.
    const NOBODY: u32 = 65_534;

    /// Directories that stand in for the system's.
    struct System {
        folder: PathBuf,
        roots: Roots,
    }

    impl System {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("airdma-test-{}-{name}", std::process::id()));
            let roots = Roots {
                run: folder.join("run"),
                tmp: folder.join("tmp"),
            };
            for (path, mode) in [(&roots.run, 0o755), (&roots.tmp, 0o1777)] {
                std::fs::create_dir_all(path).unwrap();
                std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            System { folder, roots }
        }

        /// `/run/user/<euid>`.
        fn session(&self) -> PathBuf {
            let path = self
                .roots
                .run
                .join("user")
                .join(effective_user().to_string());
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
            path
        }

        fn candidates(&self) -> Vec<Candidate> {
            candidates(&self.roots).unwrap()
        }

        fn chosen(&self) -> io::Result<PathBuf> {
            first_of(&self.candidates())
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.folder).ok();
        }
    }

    fn is_root() -> bool {
        effective_user() == 0
    }

    /// Entries that another user may have made in the way.
    const SQUATTERS: [&str; 6] = [
        "a link to /",
        "a link to a directory for all",
        "a file",
        "a pipe",
        "a directory for all",
        "a directory of another user",
    ];

    fn squat(what: &str, path: &Path) {
        match what {
            "a link to /" => std::os::unix::fs::symlink("/", path).unwrap(),
            "a link to a directory for all" => {
                std::os::unix::fs::symlink(std::env::temp_dir(), path).unwrap();
            }
            "a file" => std::fs::write(path, b"no directory").unwrap(),
            "a pipe" => {
                let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
                // SAFETY: a string with its end, and a plain integer.
                assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
            }
            _ => {
                std::fs::create_dir(path).unwrap();
                let mode = if what == SQUATTERS[4] { 0o777 } else { 0o700 };
                std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
                if what == SQUATTERS[5] {
                    std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
                }
            }
        }
    }

    /// Takes away whatever is there.
    fn clear(path: &Path) {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path).unwrap(),
            Ok(_) => std::fs::remove_file(path).unwrap(),
            Err(_) => {}
        }
    }

    #[test]
    fn what_another_user_made_first_is_not_used() {
        let system = System::new("squatted");
        let session = system.session();
        let places: Vec<_> = system.candidates().into_iter().map(|it| it.path).collect();
        for (index, place) in places.iter().enumerate() {
            // Only root can make the last one.
            let possible = SQUATTERS.len() - usize::from(!is_root());
            for what in &SQUATTERS[..possible] {
                clear(place);
                squat(what, place);
                let refused = system.candidates()[index].make().unwrap_err();
                assert!(
                    refused.to_string().contains(place.to_str().unwrap()),
                    "{refused}"
                );
                assert!(system.candidates()[index].check().is_err());
                assert_ne!(&system.chosen().unwrap(), place);
            }
            clear(place);
        }
        // Another user may have all names in common directories; the session's directory is not in
        // one.
        for place in places.iter().filter(|place| !place.starts_with(&session)) {
            clear(place);
            std::fs::write(place, b"").unwrap();
        }
        assert_eq!(system.chosen().unwrap(), session.join("airdma"));
    }

    #[test]
    fn a_place_in_which_others_can_replace_things_is_not_used() {
        let system = System::new("parents");
        let session = system.session();
        let all = |modes: [u32; 3]| {
            let parents = [&system.roots.run, &session, &system.roots.tmp];
            for (parent, mode) in parents.into_iter().zip(modes) {
                std::fs::set_permissions(parent, Permissions::from_mode(mode)).unwrap();
            }
            let error = system.chosen().err().map(|error| error.to_string());
            for (parent, mode) in parents.into_iter().zip([0o755, 0o700, 0o1777]) {
                std::fs::set_permissions(parent, Permissions::from_mode(mode)).unwrap();
            }
            error
        };
        let error = all([0o777, 0o770, 0o777]).unwrap();
        assert_eq!(
            error.matches("is writable for others").count(),
            4,
            "{error}"
        );
        assert_eq!(all([0o777, 0o770, 0o1777]), None);
        assert_eq!(all([0o777, 0o700, 0o777]), None);
        assert_eq!(all([0o755, 0o770, 0o777]), None);
        if is_root() {
            std::os::unix::fs::chown(&session, Some(NOBODY), None).unwrap();
            let error = all([0o777, 0o700, 0o777]).unwrap();
            assert!(
                error.contains("belongs to another user (user 65534, mode 700)"),
                "{error}"
            );
        }
    }

    #[test]
    fn files_are_not_taken_away_for_their_age() {
        let system = System::new("age");
        let directory = system.chosen().unwrap();
        let (kept, other) = (directory.join("kept"), directory.join("other"));
        keep(&open_file(&kept, true).unwrap()).unwrap();
        std::fs::write(&other, b"").unwrap();
        let metadata = std::fs::metadata(&kept).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o1600);
        // A second call is not a change.
        keep(&open_file(&kept, true).unwrap()).unwrap();
        assert_eq!(
            std::fs::metadata(&kept).unwrap().ctime_nsec(),
            metadata.ctime_nsec()
        );
        // With an age of zero every file is too old.
        let rule = system.folder.join("rule.conf");
        std::fs::write(&rule, format!("d {} 1777 - - 0\n", system.folder.display())).unwrap();
        let clean = std::process::Command::new("systemd-tmpfiles")
            .arg("--clean")
            .arg(&rule)
            .output();
        let Ok(output) = clean else {
            eprintln!("no systemd-tmpfiles here");
            return;
        };
        assert!(output.status.success(), "{output:?}");
        assert!(!other.exists(), "it cleans nothing: {output:?}");
        assert!(kept.exists());
    }

    #[test]
    fn only_a_real_directory_of_ones_own_will_do() {
        let path = std::env::temp_dir().join(format!("airdma-test-{}-own", std::process::id()));
        make_directory(&path).unwrap();
        make_directory(&path).unwrap();
        let link = path.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(make_directory(&link).is_err());
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
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
