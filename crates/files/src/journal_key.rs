//! The secret by which a receiver knows its own journals and unfinished directories again.
//!
//! The receiving directory is a place where others can write: peers, other users, an archive that is unpacked. So what is read back
//! from there counts only as far as this key vouches for it.

use crate::manifest::{ManifestId, STAGING_PREFIX};
use crate::owned::Owned;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A secret of the receiving user's. It is derived from the key in the user's home, which no peer and no archive has.
#[derive(Clone)]
pub struct JournalKey([u8; 32]);

/// The key of the journals of one offer in one directory.
pub(crate) struct Seal([u8; 32]);

const CONTEXT: &str = "airdma 2026-11-25 files: journals of a receiving user";

impl JournalKey {
    /// The key that belongs to a secret of the user's.
    pub fn derive(secret: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }

    /// The name of the unfinished directory of an offer. Without the key it cannot be told beforehand, so no sender and no archive has
    /// put something there.
    pub fn staging_name(&self, id: ManifestId) -> String {
        let name = ManifestId(mac(&self.0, &[b"name", &id.0]));
        format!("{}{name}", String::from_utf8_lossy(STAGING_PREFIX))
    }

    /// The key of a journal. It is bound to the offer and to the path of the directory, from the root and without symbolic links: that
    /// survives a reboot and a file system that numbers its inodes anew (FAT, sshfs), and a copy elsewhere has another one. It is bound to what
    /// owner and mode the unfinished directory had when it was proven to be this user's, too: it vouches for no other.
    pub(crate) fn seal(&self, id: ManifestId, directory: &Path, owned: Owned) -> Seal {
        let path = directory.as_os_str().as_bytes();
        Seal(mac(&self.0, &[b"seal", &id.0, &owned.bytes(), path]))
    }
}

impl Seal {
    /// What vouches for the parts.
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

/// Keys are not for logs.
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
