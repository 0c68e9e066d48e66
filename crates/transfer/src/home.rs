//! What a user keeps between transfers: a key, and the keys of peers that were met.

use airdma_files::session::{Identity, KnownPeers, PublicKey};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const IDENTITY: &str = "identity";
const PEERS: &str = "known_peers";

/// A directory with the files `identity` and `known_peers`.
#[derive(Debug)]
pub struct Home {
    directory: PathBuf,
    identity: Identity,
    peers: Mutex<KnownPeers>,
}

impl Home {
    /// The user's: `$AIRDMA_HOME`, `$XDG_CONFIG_HOME/airdma` or `~/.config/airdma`.
    ///
    /// # Errors
    /// The system's, with the path; nobody's home is known.
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
        Self::at(&directory)
    }

    /// The one in this directory, which is made if it is not there.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn at(directory: &Path) -> io::Result<Self> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        made.map_err(|error| with_path(&error, directory))?;
        let (identity, peers) = (directory.join(IDENTITY), directory.join(PEERS));
        Ok(Self {
            directory: directory.to_path_buf(),
            identity: Identity::load_or_create(&identity)
                .map_err(|error| with_path(&error, &identity))?,
            peers: Mutex::new(KnownPeers::load(&peers).map_err(|error| with_path(&error, &peers))?),
        })
    }

    /// The user's key.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether a peer was met before.
    pub fn knows(&self, key: &PublicKey) -> bool {
        self.peers().name(key).is_some()
    }

    /// Its name.
    pub fn name(&self, key: &PublicKey) -> Option<String> {
        self.peers().name(key).map(str::to_owned)
    }

    /// The keys of all who were met under this name: users of one host, say, or hosts that had one address.
    pub fn keys(&self, name: &str) -> Vec<PublicKey> {
        self.peers().keys(name).collect()
    }

    /// Knows a peer from now on; under a name that another one had, if `replace` says so.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn pin(&self, key: PublicKey, name: &str, replace: bool) -> io::Result<()> {
        let path = self.directory.join(PEERS);
        let mut peers = self.peers();
        // Another program may have met somebody meanwhile.
        let mut read = KnownPeers::load(&path).map_err(|error| with_path(&error, &path))?;
        if replace {
            let former: Vec<PublicKey> = read.keys(name).collect();
            former.iter().for_each(|former| read.forget(former));
        }
        read.pin(key, name);
        read.save(&path).map_err(|error| with_path(&error, &path))?;
        *peers = read;
        Ok(())
    }

    fn peers(&self) -> MutexGuard<'_, KnownPeers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn with_path(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
