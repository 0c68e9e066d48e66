//! Where processes of a host find each other: a socket of each in a directory of their user, with a
//! name for each of its addresses.
//!
//! ```text
//! local-<id>            the socket; id: random, 16 hexadecimal digits
//! local-<id>-<address>  a link to it for each address: its GID, 32 digits
//! ```
//! A name says that a process *may* be the one that an address leads to, and no more: an address
//! may exist in several network namespaces. Names outlive a process that is killed; the next one
//! that connects to such a name, or opens a device, removes it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use airdma_wire::{Gid, Neighbour};

use super::unix;

/// Processes that are asked for one address. More than one has it only if the address exists in
/// several network namespaces, or several processes share it.
const CANDIDATES_MAX: usize = 16;
/// Names that are tried for that: any number may be those of dead processes.
const TRIED_MAX: usize = 32;
/// Names of other processes that a new one looks at.
const SWEPT_MAX: usize = 256;
/// Age at which a socket that never got its name is that of a dead process.
const NEW_MAX: Duration = Duration::from_secs(60);

const PREFIX: &str = "local-";
const PREFIX_NEW: &str = "new-local-";

/// This process's socket and names.
pub struct Meeting {
    directory: PathBuf,
    id: String,
    listener: OwnedFd,
    /// By row of the GID table.
    names: Vec<Option<PathBuf>>,
    /// The user that the other ends of connections must belong to.
    user: libc::uid_t,
    /// The process that made the names. A child of fork leaves them alone.
    owner: u32,
}

impl Meeting {
    /// Begins to listen in `directory`, which is common to the processes of this user, and which no
    /// other user can write to.
    ///
    /// # Errors
    /// Those of the system: descriptors, a directory that cannot hold sockets.
    pub fn open(directory: &Path) -> io::Result<Self> {
        // SAFETY: no arguments, and it cannot fail.
        Self::open_for(directory, unsafe { libc::geteuid() })
    }

    /// As [`Meeting::open`], for processes of this user.
    pub(super) fn open_for(directory: &Path, user: libc::uid_t) -> io::Result<Self> {
        sweep(directory);
        let id = format!("{:016x}", u64::from_ne_bytes(random()?));
        // A socket that does not listen yet looks like that of a dead process: it has another name.
        let new = directory.join(format!("{PREFIX_NEW}{id}"));
        let meeting = Meeting {
            directory: directory.to_owned(),
            id,
            listener: unix::listen(&new)?,
            names: Vec::new(),
            user,
            owner: process::id(),
        };
        fs::rename(new, meeting.socket())?;
        Ok(meeting)
    }

    /// Gives the row of the GID table another name, or none.
    pub(super) fn set_address(&mut self, row: usize, address: Option<Neighbour>) {
        if self.names.len() <= row {
            self.names.resize(row + 1, None);
        }
        if let Some(former) = self.names[row].take() {
            let _ = fs::remove_file(former);
        }
        let Some(address) = address else { return };
        let name = self
            .directory
            .join(format!("{PREFIX}{}-{}", self.id, digits(address)));
        // Without a name, peers of this address use the network.
        if fs::hard_link(self.socket(), &name).is_ok() {
            self.names[row] = Some(name);
        }
    }

    /// Connects to up to `most` of the processes that have this address in some network namespace.
    pub(super) fn candidates(&self, address: Neighbour, most: usize) -> Vec<OwnedFd> {
        let wanted = digits(address);
        let mut found = Vec::new();
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let has_it = |name: &OsStr| matches!(parts(name), Some((_, Some(of))) if of == wanted);
        let named = entries.filter(|entry| has_it(&entry.file_name()));
        for entry in named.take(TRIED_MAX) {
            if found.len() >= most.min(CANDIDATES_MAX) {
                break;
            }
            match self.connect(&entry.path()) {
                Ok(connection) => found.push(connection),
                Err(error) => remove_if_dead(&self.directory, &entry.file_name(), &error),
            }
        }
        found
    }

    fn connect(&self, path: &Path) -> io::Result<OwnedFd> {
        let connection = unix::connect(path)?;
        self.check(&connection)?;
        Ok(connection)
    }

    /// The next process that connects; `None` if none waits.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        loop {
            let connection = unix::accept(&self.listener)?;
            if self.check(&connection).is_ok() {
                return Some(connection);
            }
        }
    }

    /// Whether the other end belongs to the user.
    fn check(&self, connection: &OwnedFd) -> io::Result<()> {
        if unix::peer_user(connection)? == self.user {
            Ok(())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    pub(super) fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    /// Removes all names.
    pub(super) fn close(&mut self) {
        if process::id() != self.owner {
            return;
        }
        for name in self.names.drain(..).flatten() {
            let _ = fs::remove_file(name);
        }
        let _ = fs::remove_file(self.socket());
    }

    /// Ends as a process does that is killed.
    #[cfg(test)]
    pub(super) fn abandon(mut self) {
        self.owner = 0;
    }

    fn socket(&self) -> PathBuf {
        self.directory.join(format!("{PREFIX}{}", self.id))
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.close();
    }
}

/// Removes names of processes that were killed.
fn sweep(directory: &Path) {
    remove_unnamed(directory);
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| matches!(parts(&entry.file_name()), Some((_, None))));
    for entry in sockets.take(SWEPT_MAX) {
        if let Err(error) = unix::connect(&entry.path()) {
            remove_if_dead(directory, &entry.file_name(), &error);
        }
    }
}

/// Removes sockets of processes that were killed before they had named them.
fn remove_unnamed(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_unnamed = |name: &OsStr| name.to_str().is_some_and(|it| it.starts_with(PREFIX_NEW));
    let unnamed = entries.filter(|entry| is_unnamed(&entry.file_name()));
    for entry in unnamed.take(SWEPT_MAX) {
        let made = entry.metadata().and_then(|metadata| metadata.modified());
        let age = made.ok().and_then(|made| made.elapsed().ok());
        if age.is_some_and(|age| age >= NEW_MAX) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes all names of the process that this one belongs to, if no process listens there.
fn remove_if_dead(directory: &Path, name: &OsStr, error: &io::Error) {
    let Some((dead, _)) = parts(name).filter(|_| error.kind() == io::ErrorKind::ConnectionRefused)
    else {
        return;
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if matches!(parts(&entry.file_name()), Some((id, _)) if id == dead) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The id and the address in a name.
fn parts(name: &OsStr) -> Option<(&str, Option<&str>)> {
    let rest = name.to_str()?.strip_prefix(PREFIX)?;
    Some(match rest.split_once('-') {
        Some((id, address)) => (id, Some(address)),
        None => (rest, None),
    })
}

fn digits(address: Neighbour) -> String {
    let Gid(bytes) = address.into();
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Random bytes of the kernel's.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: room for that many bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if got == N as isize {
        Ok(bytes)
    } else {
        Err(io::Error::last_os_error())
    }
}
