//! The secret by which a receiver recognises its own journals and unfinished directories.
//!
//! Others can write to the receiving directory: peers, other users, an unpacked archive. So data
//! that is read back from there counts only if this key vouches for it.

use crate::manifest::{ManifestId, STAGING_PREFIX};
use crate::owned::Owned;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A secret of the receiving user, derived from the key in the user's home, which no peer and no
/// archive has.
#[derive(Clone)]
pub struct JournalKey([u8; 32]);

/// The key for the journals of one offer in one directory.
pub(crate) struct Seal([u8; 32]);

const CONTEXT: &str = "airdma 2026-11-25 files: journals of a receiving user";

impl JournalKey {
    /// Derives the key from a secret of the user.
    pub fn derive(secret: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }

    /// Name of the unfinished directory of an offer.
    ///
    /// It cannot be predicted without the key, so no sender and no archive can have put anything
    /// there.
    pub fn staging_name(&self, id: ManifestId) -> String {
        let name = ManifestId(mac(&self.0, &[b"name", &id.0]));
        format!("{}{name}", String::from_utf8_lossy(STAGING_PREFIX))
    }

    /// The key of a journal.
    ///
    /// It is bound to the offer and to the path of the directory, from the root and without
    /// symbolic links: the path survives a reboot and a file system that renumbers its inodes (FAT,
    /// sshfs), and a copy elsewhere has another one. It is bound as well to the owner and mode that
    /// the unfinished directory had when it was proven to be this user's: it vouches for no other.
    pub(crate) fn seal(&self, id: ManifestId, directory: &Path, owned: Owned) -> Seal {
        let path = directory.as_os_str().as_bytes();
        Seal(mac(&self.0, &[b"seal", &id.0, &owned.bytes(), path]))
    }
}

impl Seal {
    /// The seal of these parts.
    pub fn of(&self, parts: &[&[u8]]) -> [u8; 32] {
        mac(&self.0, parts)
    }
}

fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// Does not print the key.
impl fmt::Debug for JournalKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JournalKey")
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_offers_and_directories_have_seals_of_their_own() {
        let (mine, another) = (JournalKey::derive(b"mine"), JournalKey::derive(b"another"));
        let (one, two) = (ManifestId([1; 32]), ManifestId([2; 32]));
        let here = Path::new("/here");
        let own = Owned::own();
        let first = mine.seal(one, here, own).of(&[b"text"]);
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_uid, stat.st_mode) = (rustix::process::geteuid().as_raw(), 0o722);
        for seal in [
            another.seal(one, here, own),
            mine.seal(two, here, own),
            mine.seal(one, Path::new("/here/there"), own),
            mine.seal(one, here, Owned::of(&stat)),
        ] {
            assert_ne!(seal.of(&[b"text"]), first);
        }
        assert_eq!(mine.seal(one, here, own).of(&[b"te", b"xt"]), first);
        let name = mine.staging_name(one);
        assert_eq!(name.len(), STAGING_PREFIX.len() + 16);
        for other in [mine.staging_name(two), another.staging_name(one)] {
            assert_ne!(other, name);
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", JournalKey::derive(b"x")), "JournalKey");
    }
}
