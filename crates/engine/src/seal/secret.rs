//! The secret that hosts share (`AIRDMA_SECRET`): its source, and authentication of connection
//! management by it.

use airdma_wire::Gid;
use airdma_wire::mad::MAD_LEN;
use ring::hmac::{self, HMAC_SHA256};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A shorter secret can be guessed.
const LEN_MIN: usize = 16;
const LEN_MAX: u64 = 4096;
/// Permissions that are refused: others read, write or execute; the group writes.
const MODE_REFUSED: u32 = 0o027;
/// Bytes that authentication adds to a datagram.
pub(crate) const TAG_LEN: usize = 16;

/// A secret that hosts share: it encrypts and authenticates the connections between them.
#[derive(Clone)]
pub struct Secret {
    sessions: hmac::Tag,
    datagrams: hmac::Key,
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.sessions.as_ref() == other.sessions.as_ref()
    }
}

impl fmt::Debug for Secret {
    /// Reveals no byte of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

impl Secret {
    /// The secret in these bytes, without white space at their end.
    ///
    /// # Errors
    /// `InvalidInput` for a secret of less than 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        // A text editor ends the file with a new line at one host and not at another.
        let bytes = bytes.trim_ascii_end();
        if bytes.len() < LEN_MIN {
            let message = format!("it has {} bytes, and needs {LEN_MIN}", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let key = hmac::Key::new(HMAC_SHA256, bytes);
        let datagrams = hmac::sign(&key, b"airdma datagrams 1");
        Ok(Secret {
            sessions: hmac::sign(&key, b"airdma sessions 1"),
            datagrams: hmac::Key::new(HMAC_SHA256, datagrams.as_ref()),
        })
    }

    /// The secret in a file of 16 to 4,096 bytes.
    ///
    /// # Errors
    /// The system's; `PermissionDenied` for a file of another user, or that other users can read or
    /// its group can change; `InvalidInput` for anything but a regular file, and a secret that is
    /// too short or too long.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // A FIFO must not delay the program that opens the device.
        let file = options
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)?;
        check(&file)?;
        let mut bytes = Vec::new();
        file.take(LEN_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LEN_MAX {
            let message = format!("it has more than {LEN_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Self::from_bytes(&bytes)
    }

    /// Key material for connections, in addition to their ends' exchange.
    pub(crate) fn of_sessions(&self) -> &[u8] {
        self.sessions.as_ref()
    }

    /// Tag that proves that a datagram is of a host that knows the secret.
    pub(crate) fn tag(&self, from: Gid, to: Gid, mad: &[u8]) -> [u8; TAG_LEN] {
        let mut context = hmac::Context::with_key(&self.datagrams);
        context.update(&from.0);
        context.update(&to.0);
        context.update(mad);
        let tag = context.sign();
        std::array::from_fn(|at| tag.as_ref()[at])
    }

    /// The datagram in a payload, if its sender knows the secret.
    pub(crate) fn check<'a>(&self, from: Gid, to: Gid, payload: &'a [u8]) -> Option<&'a [u8]> {
        let (mad, tag) = payload.split_at_checked(MAD_LEN)?;
        let expected = self.tag(from, to, mad);
        // In constant time, whichever byte differs first.
        let differs =
            |tag: &[u8; TAG_LEN]| (tag.iter().zip(&expected)).fold(0, |all, (a, b)| all | (a ^ b));
        let tag: &[u8; TAG_LEN] = tag.try_into().ok()?;
        (std::hint::black_box(differs(tag)) == 0).then_some(mad)
    }
}

fn check(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a file",
        ));
    }
    // SAFETY: takes and touches nothing.
    let user = unsafe { libc::geteuid() };
    if ![0, user].contains(&metadata.uid()) || metadata.mode() & MODE_REFUSED != 0 {
        let message = format!(
            "other users could know or change it: it belongs to user {} with mode {:o} (chmod 600)",
            metadata.uid(),
            metadata.mode() & 0o7777
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    const BYTES: &[u8] = b"0123456789abcdef";

    fn ends() -> (Gid, Gid) {
        let gid = |last| Gid::from(std::net::IpAddr::from([192, 0, 2, last]));
        (gid(1), gid(2))
    }

    #[test]
    fn a_datagram_counts_only_with_its_secret_and_hosts() {
        let (a, b) = ends();
        let secret = Secret::from_bytes(BYTES).unwrap();
        let mad = [7; MAD_LEN];
        let payload = [&mad[..], &secret.tag(a, b, &mad)].concat();
        assert_eq!(secret.check(a, b, &payload), Some(&mad[..]));
        assert_eq!(secret.check(b, a, &payload), None, "sent back");
        assert_eq!(secret.check(a, b, &mad), None, "without");
        let other = Secret::from_bytes(b"0123456789abcdeg").unwrap();
        assert_eq!(other.check(a, b, &payload), None);
        for at in 0..payload.len() {
            let mut changed = payload.clone();
            changed[at] ^= 1;
            assert_eq!(secret.check(a, b, &changed), None, "byte {at}");
        }
        let longer = [&payload[..], &[0]].concat();
        assert_eq!(secret.check(a, b, &longer), None);
    }

    #[test]
    fn a_file_that_others_can_read_or_that_is_none_is_refused() {
        let path = std::env::temp_dir().join(format!("airdma-secret-{}", std::process::id()));
        let kind = |bytes: &[u8], mode: u32| {
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Secret::from_file(&path).err().map(|error| error.kind())
        };
        assert_eq!(kind(BYTES, 0o600), None);
        assert_eq!(
            kind(BYTES, 0o440),
            None,
            "as Kubernetes mounts it for a group"
        );
        for mode in [0o604, 0o602, 0o620, 0o666] {
            assert_eq!(kind(BYTES, mode), Some(io::ErrorKind::PermissionDenied));
        }
        assert_eq!(
            kind(b"0123456789abcd\n\n", 0o600),
            Some(io::ErrorKind::InvalidInput)
        );
        assert_eq!(kind(&[1; 4097], 0o600), Some(io::ErrorKind::InvalidInput));
        let same = Secret::from_bytes(b"0123456789abcdef\n").unwrap();
        let secret = Secret::from_bytes(BYTES).unwrap();
        assert_eq!(
            same.of_sessions(),
            secret.of_sessions(),
            "whatever the editor does"
        );
        std::fs::remove_file(&path).unwrap();
        let missing = Secret::from_file(&path).err().unwrap();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let fifo = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        let fifo = Secret::from_file(&path).err().unwrap();
        assert_eq!(fifo.kind(), io::ErrorKind::InvalidInput);
        std::fs::remove_file(&path).unwrap();
    }
}
