//! Notices to the peers of a process that is killed: a file for each process, with a row for each
//! open connection.
//!
//! A process that shares the addresses of a dead process, then or later, sends them (a DREQ for
//! each connection), so that the peers do not have to wait for their retries.
//!
//! The owner holds a lock on the file, which the kernel releases when it dies. Only the owner
//! writes rows, without a lock: an unfinished row is used as it is, since it causes at most one
//! datagram, from one of this user's own addresses, that means nothing to its receiver.

use crate::random::random_u32;
use crate::sharing::runtime_dir::{
    keep, network_namespace, open_file, shared_directories, shared_directory,
};
use airdma_cm::{ConnectionId, OrphanNotice, Route};
use airdma_preload::Process;
use airdma_wire::{Gid, Qpn};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Raised when the layout changes.
const VERSION: u8 = 2;

/// Bytes of a connection's row.
///
/// Used (1), version (1), traffic class (1), whether the peer was there (1), local id (4), remote
/// id (4), remote queue pair (4), local GID (16), remote GID (16), zeros. Numbers are in native
/// order, since only processes of one host read them.
const ROW: usize = 64;

/// Rows of a file: as many as a connection manager has connections
/// ([`airdma_cm::Config::connections_max`]).
const ROWS_MAX: u64 = 1 << 16;

/// The file of this process.
pub(crate) struct NoticeFile {
    file: File,
    path: PathBuf,
    rows: HashMap<ConnectionId, u64>,
    free: Vec<u64>,
    end: u64,
    process: Process,
}

impl NoticeFile {
    /// Makes an empty file.
    ///
    /// # Errors
    /// The system's; peers then detect the end by their own retries.
    pub(crate) fn new(interface_index: u32) -> io::Result<Self> {
        for _ in 0..TRIES {
            let name = format!("{}{:08x}", prefix(interface_index)?, random_u32());
            let path = shared_directory()?.join(name);
            let file = open_file(&path, true)?;
            keep(&file)?;
            // Another process that collects notices may have locked the file before, and removes
            // it.
            if lock(&file) && file.metadata()?.len() == 0 && path.exists() {
                return Ok(NoticeFile {
                    file,
                    path,
                    rows: HashMap::new(),
                    free: Vec::new(),
                    end: 0,
                    process: Process::current(),
                });
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Adds the notice of a connection.
    pub(crate) fn write(&mut self, id: ConnectionId, notice: &OrphanNotice) {
        let next = (self.free.pop()).unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        let row = *self.rows.entry(id).or_insert(next);
        if row != next {
            self.free.push(next);
        }
        // A full disk costs a peer its notice, and this process nothing.
        let _ = self.file.write_all_at(&encode(notice), row * ROW as u64);
    }

    /// Removes the notice of a connection.
    pub(crate) fn erase(&mut self, id: ConnectionId) {
        if let Some(row) = self.rows.remove(&id) {
            let _ = self.file.write_all_at(&[0], row * ROW as u64);
            self.free.push(row);
        }
    }

    /// Descriptor of the lock: a child after fork must close it.
    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for NoticeFile {
    fn drop(&mut self) {
        // In a child after fork the file is the parent's.
        if self.process.is_current() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

const TRIES: usize = 16;

/// The notices of processes that died, each collected by one process at a time.
///
/// The files are removed once the notices were sent: if the collecting process dies before, another
/// one takes them.
pub(crate) struct OrphanNotices {
    /// The notices.
    pub(crate) notices: Vec<OrphanNotice>,
    /// The files, locked.
    files: Vec<(File, PathBuf)>,
}

impl OrphanNotices {
    /// Collects the notices of dead processes with the addresses of an interface.
    pub(crate) fn of(interface_index: u32) -> Self {
        let mut orphans = OrphanNotices {
            notices: Vec::new(),
            files: Vec::new(),
        };
        let Ok(prefix) = prefix(interface_index) else {
            return orphans;
        };
        let folders = shared_directories().into_iter().map(std::fs::read_dir);
        for entry in folders.flatten().flatten().flatten() {
            // Other files are not opened, since that would wake the processes that watch them.
            if !entry.file_name().to_string_lossy().starts_with(&prefix) {
                continue;
            }
            let Ok(file) = open_file(&entry.path(), false) else {
                continue;
            };
            // The previous holder of the lock may have removed it.
            if lock(&file) && entry.path().exists() {
                orphans.notices.extend(read(&file));
                orphans.files.push((file, entry.path()));
            }
        }
        orphans
    }

    /// Removes the files, once all notices were sent.
    pub(crate) fn settled(self) {
        for (_locked, path) in &self.files {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn prefix(interface_index: u32) -> io::Result<String> {
    Ok(format!("will-{}-{interface_index}-", network_namespace()?))
}

/// Locks the file; false if another process has it.
fn lock(file: &File) -> bool {
    // SAFETY: flock takes no pointer.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

fn encode(notice: &OrphanNotice) -> [u8; ROW] {
    let mut row = [0; ROW];
    row[0] = 1;
    row[1] = VERSION;
    row[2] = notice.route.traffic_class;
    row[3] = u8::from(notice.is_proven);
    row[4..8].copy_from_slice(&notice.local_id.to_ne_bytes());
    row[8..12].copy_from_slice(&notice.remote_id.to_ne_bytes());
    row[12..16].copy_from_slice(&notice.remote_qpn.get().to_ne_bytes());
    row[16..32].copy_from_slice(&notice.route.local.0);
    row[32..48].copy_from_slice(&notice.route.remote.0);
    row
}

fn decode(row: &[u8; ROW]) -> Option<OrphanNotice> {
    if row[0] != 1 || row[1] != VERSION {
        return None;
    }
    let word = |at: usize| u32::from_ne_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
    let gid = |at: usize| Gid(std::array::from_fn(|index| row[at + index]));
    Some(OrphanNotice {
        route: Route {
            local: gid(16),
            remote: gid(32),
            traffic_class: row[2],
        },
        local_id: word(4),
        remote_id: word(8),
        remote_qpn: Qpn::new(word(12)),
        is_proven: row[3] == 1,
    })
}

/// Reads at most as many rows as a process has connections: more are invalid.
fn read(file: &File) -> Vec<OrphanNotice> {
    let mut all = Vec::new();
    let mut row = [0; ROW];
    for index in 0..ROWS_MAX {
        if file.read_exact_at(&mut row, index * ROW as u64).is_err() {
            break;
        }
        all.extend(decode(&row));
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn notice(number: u32) -> OrphanNotice {
        OrphanNotice {
            route: Route {
                local: Gid([1; 16]),
                remote: Gid([2; 16]),
                traffic_class: 8,
            },
            local_id: number,
            remote_id: number + 1,
            remote_qpn: Qpn::new(number + 2),
            is_proven: number.is_multiple_of(2),
        }
    }

    /// An interface that does not exist, so that no other test writes notices for it.
    const NOWHERE: u32 = 0x7fff_0001;

    #[test]
    fn notices_of_a_dead_process_are_read_once_of_a_live_one_never() {
        let mut notice_file = NoticeFile::new(NOWHERE).unwrap();
        for number in 1..=3 {
            notice_file.write(ConnectionId(number), &notice(number));
        }
        notice_file.erase(ConnectionId(2));
        notice_file.write(ConnectionId(4), &notice(4));
        notice_file.write(ConnectionId(4), &notice(4));
        assert_eq!(OrphanNotices::of(NOWHERE).notices, []);
        // As when the process is killed: the lock is released, the file exists.
        // SAFETY: flock takes no pointer.
        unsafe { libc::flock(notice_file.fd(), libc::LOCK_UN) };
        let all = [notice(1), notice(4), notice(3)];
        let taken = OrphanNotices::of(NOWHERE);
        assert_eq!(taken.notices, all);
        // One process at a time; if that one dies before it has sent all, another.
        assert_eq!(OrphanNotices::of(NOWHERE).notices, []);
        drop(taken);
        let taken = OrphanNotices::of(NOWHERE);
        assert_eq!(taken.notices, all);
        taken.settled();
        assert_eq!(OrphanNotices::of(NOWHERE).notices, []);
    }

    #[test]
    fn a_huge_file_of_notices_is_read_to_its_bound() {
        let mut notice_file = NoticeFile::new(NOWHERE + 2).unwrap();
        notice_file.write(ConnectionId(1), &notice(1));
        notice_file
            .file
            .write_all_at(&encode(&notice(2)), ROWS_MAX * ROW as u64)
            .unwrap();
        // A hole of a terabyte takes no room, and reads as zeros.
        notice_file.file.set_len(1 << 40).unwrap();
        // SAFETY: flock takes no pointer.
        unsafe { libc::flock(notice_file.fd(), libc::LOCK_UN) };
        let taken = OrphanNotices::of(NOWHERE + 2);
        assert_eq!(taken.notices, [notice(1)]);
        taken.settled();
    }

    #[test]
    fn a_process_that_exits_in_order_leaves_no_notices() {
        let path = {
            let notice_file = NoticeFile::new(NOWHERE + 1).unwrap();
            notice_file.path.clone()
        };
        assert!(!path.exists());
    }
}
