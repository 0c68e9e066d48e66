//! A user's state between transfers: a key, and the keys of known peers.

use airdma_files::session::{Identity, KnownPeers, Pin, Place, PublicKey, Role, check_home};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const IDENTITY: &str = "identity";
const PEERS: &str = "known_peers";
const LOCK: &str = "known_peers.lock";
/// Time that other programs may hold the lock: each holds it for one write.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A directory with the files `identity` and `known_peers`.
#[derive(Debug)]
pub struct Home {
    directory: PathBuf,
    identity: Identity,
    peers: Mutex<KnownPeers>,
    warning: Option<String>,
}

impl Home {
    /// Opens the user's: `$AIRDMA_HOME`, `$XDG_CONFIG_HOME/airdma` or `~/.config/airdma`.
    ///
    /// # Errors
    /// The system's error, with the path; no home directory is known; another user can write there.
    pub fn open() -> io::Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let directory = set("AIRDMA_HOME").map(PathBuf::from).or_else(|| {
            let config = set("XDG_CONFIG_HOME").map(PathBuf::from);
            let config = config.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")));
            Some(config?.join("airdma"))
        });
        let directory = directory.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "no place for this user's key: set HOME or AIRDMA_HOME",
            )
        })?;
        Self::at(&directory).map_err(|error| {
            let refused = [
                io::ErrorKind::ReadOnlyFilesystem,
                io::ErrorKind::PermissionDenied,
            ];
            if !refused.contains(&error.kind()) {
                return error;
            }
            let advice = "this user's key is kept there: AIRDMA_HOME=FOLDER names another place";
            io::Error::new(error.kind(), format!("{error}; {advice}"))
        })
    }

    /// Opens this directory, which is created if it does not exist.
    ///
    /// # Errors
    /// The system's error, with the path; another user can write there.
    pub fn at(directory: &Path) -> io::Result<Self> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        let checked = made.and_then(|()| check_home(directory));
        checked.map_err(|error| with_path(&error, directory))?;
        let identity = directory.join(IDENTITY);
        let peers = load(directory)?;
        Ok(Self {
            identity: Identity::load_or_create(&identity)
                .map_err(|error| with_path(&error, &identity))?,
            warning: warning(&peers, directory),
            peers: Mutex::new(peers),
            directory: directory.to_path_buf(),
        })
    }

    /// The user's key.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Lines of `known_peers` that could not be parsed, for display.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Whether a peer is known in this role.
    pub fn knows(&self, key: &PublicKey, role: Role) -> bool {
        self.peers().knows(key, role)
    }

    /// Name of a peer that is known in one of `roles`; the first role takes precedence.
    pub fn name(&self, key: &PublicKey, roles: &[Role]) -> Option<String> {
        self.peers().name(key, roles).map(str::to_owned)
    }

    /// Keys of all peers with this role, place and name.
    pub fn keys(&self, role: Role, place: &Place, name: &str) -> Vec<PublicKey> {
        self.peers().keys(role, place, name)
    }

    /// Adds a peer, replacing those with the same role, place and name if `instead` is set.
    ///
    /// Returns the keys of those.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn pin(&self, pin: Pin, instead: bool) -> io::Result<Vec<PublicKey>> {
        let mut peers = self.peers();
        let lock = self.lock()?;
        // Another program may have added a peer meanwhile.
        let mut read = load(&self.directory)?;
        let former = read.pin(pin, instead);
        let path = self.directory.join(PEERS);
        read.save(&path).map_err(|error| with_path(&error, &path))?;
        drop(lock);
        *peers = read;
        Ok(former)
    }

    /// Locks the file of peers against other programs until dropped.
    ///
    /// The file itself is replaced at each write, so it cannot be locked.
    fn lock(&self) -> io::Result<File> {
        let path = self.directory.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options
            .open(&path)
            .map_err(|error| with_path(&error, &path))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_MAX => {
                    std::thread::sleep(LOOK_EVERY);
                }
                Err(TryLockError::WouldBlock) => {
                    let error = io::Error::new(
                        io::ErrorKind::TimedOut,
                        "another airdma has held this lock for 10 s: end the one that hangs",
                    );
                    return Err(with_path(&error, &path));
                }
                Err(TryLockError::Error(error)) => return Err(with_path(&error, &path)),
            }
        }
    }

    fn peers(&self) -> MutexGuard<'_, KnownPeers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load(directory: &Path) -> io::Result<KnownPeers> {
    let path = directory.join(PEERS);
    KnownPeers::load(&path).map_err(|error| with_path(&error, &path))
}

fn warning(peers: &KnownPeers, directory: &Path) -> Option<String> {
    let first = peers.bad_lines().next()?;
    let more = match peers.bad_lines().count() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let path = directory.join(PEERS);
    Some(format!(
        "{}, line {first}{more}: no known peer, and left as it is; a line is KEY receiver|sender -|NETWORK NAME",
        path.display()
    ))
}

fn with_path(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// Variables with directory and number of a process in the test below.
    const WHERE: &str = "AIRDMA_TEST_HOME";
    const WHICH: &str = "AIRDMA_TEST_NUMBER";
    const PROCESSES: u8 = 16;
    const PEERS_EACH: u8 = 10;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("airdma-home-{name}-{}", std::process::id()))
    }

    #[test]
    fn no_program_loses_what_others_learn_at_the_same_time() {
        let pin = |process: u8, number: u8| {
            let key = PublicKey([process ^ 0x80, number].repeat(16).try_into().unwrap());
            let name = format!("{process} {number}");
            Pin::new(key, Role::Receiver, Place::Anywhere, &name)
        };
        if let Some(directory) = std::env::var_os(WHERE) {
            let process = std::env::var(WHICH).unwrap().parse().unwrap();
            let home = Home::at(Path::new(&directory)).unwrap();
            for number in 0..PEERS_EACH {
                home.pin(pin(process, number), true).unwrap();
            }
            return;
        }
        let directory = folder("many");
        let children: Vec<_> = (0..PROCESSES)
            .map(|process| {
                Command::new(std::env::current_exe().unwrap())
                    .args([
                        "--exact",
                        "home::tests::no_program_loses_what_others_learn_at_the_same_time",
                    ])
                    .env(WHERE, &directory)
                    .env(WHICH, process.to_string())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let known = KnownPeers::load(&directory.join(PEERS)).unwrap();
        assert_eq!(
            known.pins().count(),
            usize::from(PROCESSES) * usize::from(PEERS_EACH)
        );
        // A process that has ended leaves nothing.
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 3);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_home_that_others_may_write_to_is_refused() {
        let directory = folder("open");
        Home::at(&directory).unwrap();
        for mode in [0o770, 0o702] {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = Home::at(&directory).unwrap_err().to_string();
            assert!(error.contains("other users may write it"), "{error}");
        }
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        let home = Home::at(&directory).unwrap();
        assert_eq!(home.warning(), None);
        std::fs::write(directory.join(PEERS), "# mine\nsomething else\n").unwrap();
        let home = Home::at(&directory).unwrap();
        assert!(home.warning().unwrap().contains("line 2:"));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
