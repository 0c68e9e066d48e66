//! The key pair of a host's user: generated once, kept in a file that no other user may read.

use super::private;
use crate::JournalKey;
use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Most bytes of a key file: more than any has.
const IDENTITY_BYTES_MAX: u64 = 1000;

/// An X25519 key pair.
#[derive(Clone)]
pub struct Identity {
    private: [u8; 32],
    public: PublicKey,
}

/// A peer's public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

/// The text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: a key is 64 hexadecimal digits")]
pub struct NoKey;

impl Identity {
    /// A new key pair.
    pub fn draw() -> Self {
        let keys = super::handshake::noise()
            .generate_keypair()
            .expect("the kernel has random bytes");
        let public = PublicKey(keys.public.try_into().expect("a public key has 32 bytes"));
        Self {
            private: keys.private.try_into().expect("a private key has 32 bytes"),
            public,
        }
    }

    /// Loads the key pair from a file, or creates it there.
    pub fn load_or_create(path: &Path) -> io::Result<Self> {
        match private::open(path, private::ANY) {
            Ok(file) => Self::read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path),
            Err(error) => Err(error),
        }
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The key that vouches for this user's journals.
    pub fn journal_key(&self) -> JournalKey {
        JournalKey::derive(&self.private)
    }

    pub(super) fn private(&self) -> &[u8; 32] {
        &self.private
    }

    fn read(file: File) -> io::Result<Self> {
        let bytes = private::read(file, IDENTITY_BYTES_MAX)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut keys = text.lines().map(str::parse::<PublicKey>);
        match (keys.next(), keys.next()) {
            (Some(Ok(PublicKey(private))), Some(Ok(public))) => Ok(Self { private, public }),
            (Some(_) | None, _) => Err(private::refused(
                "this is not a key of airdma: remove it to get a new one",
            )),
        }
    }

    /// Creates the file atomically; two processes that do so at once get the same key.
    fn create(path: &Path) -> io::Result<Self> {
        let identity = Self::draw();
        let temporary = beside(path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(
            &temporary,
            flags,
            Mode::from_raw_mode(0o600),
        )?);
        let text = format!("{}\n{}\n", PublicKey(identity.private), identity.public);
        let linked = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::hard_link(&temporary, path));
        std::fs::remove_file(&temporary)?;
        match linked {
            Ok(()) => Ok(identity),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::read(private::open(path, private::ANY)?)
            }
            Err(error) => Err(error),
        }
    }
}

/// Checks that a directory may hold a user's key and peers.
///
/// It must belong to this user, and no other user may create or remove a file in it.
///
/// # Errors
/// The reason and its remedy; the system's error.
pub fn check_home(path: &Path) -> io::Result<()> {
    private::check_directory(path)
}

/// A path next to `path` that no other process uses.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", PublicKey(*super::DataKey::draw().bytes())));
    name.into()
}

/// Does not print the key.
impl fmt::Debug for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Identity({})", self.public)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl std::str::FromStr for PublicKey {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(NoKey);
        }
        let mut key = [0; 32];
        for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| NoKey)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NoKey)?;
        }
        Ok(Self(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_drawn_once_and_is_for_its_owner_alone() {
        let directory = beside(&std::env::temp_dir().join("airdma-identity"));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("identity");
        let drawn = Identity::load_or_create(&path).unwrap();
        let kept = Identity::load_or_create(&path).unwrap();
        assert_eq!((kept.private, kept.public), (drawn.private, drawn.public));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(
            Identity::load_or_create(&path).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_public_key_survives_being_written_down() {
        let key = Identity::draw().public();
        assert_eq!(key.to_string().parse(), Ok(key));
        for text in ["", "00", &"g".repeat(64), &"+1".repeat(32)] {
            assert_eq!(text.parse::<PublicKey>(), Err(NoKey));
        }
    }
}
