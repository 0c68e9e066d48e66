//! The producers of a doorbell queue, and which of them live. Private to the consumer.
//!
//! A number stands for one process, held by a descriptor (`pidfd_open(2)`), so a process id that is
//! reused cannot be mistaken for it. The descriptor becomes readable when the last thread of the
//! process has ended, and stays so: from then on no write to the blocks that the process had
//! reserved can follow.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::doorbell_queue::{PRODUCERS_MAX, ProducerId};

/// The producers of one queue.
#[derive(Debug, Default)]
pub struct Producers {
    processes: HashMap<u32, OwnedFd>,
    last: u32,
}

impl Producers {
    /// No producers yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a number to the process `pid`.
    ///
    /// The caller must know that `pid` still names the process it means: its child, itself, or a
    /// process that has answered on a socket since the descriptor was opened. Otherwise use
    /// [`Producers::admit_pidfd`].
    ///
    /// # Errors
    /// `ESRCH` if there is no such process; `ENOSYS` or `EPERM` if the system refuses; those of
    /// [`Producers::admit_pidfd`].
    pub fn admit(&mut self, pid: u32) -> io::Result<ProducerId> {
        // SAFETY: plain integers; a new descriptor or -1 is returned.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just opened it, and nothing else owns it.
        self.admit_pidfd(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
    }

    /// Gives a number to the process behind a pidfd.
    ///
    /// # Errors
    /// `ENOSPC` if all numbers were given out: they are not reused.
    pub fn admit_pidfd(&mut self, pidfd: OwnedFd) -> io::Result<ProducerId> {
        let number = self.last.checked_add(1).and_then(ProducerId::new);
        let id = number.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
        self.last = id.get();
        self.processes.insert(id.get(), pidfd);
        Ok(id)
    }

    /// Whether any thread of that process is left (a system call). False for a number that was not
    /// given out.
    #[must_use]
    pub fn lives(&self, id: ProducerId) -> bool {
        let Some(pidfd) = self.processes.get(&id.get()) else {
            return false;
        };
        let mut entry = libc::pollfd {
            fd: pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd, as said; a timeout of 0 returns at once.
        let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
        // If the kernel gives no answer, the reservation still times out.
        ready <= 0
    }

    /// Removes a process that has ended.
    ///
    /// Returns false and keeps one that has not: blocks that it reserved would go to others.
    pub fn dismiss(&mut self, id: ProducerId) -> bool {
        let ended = !self.lives(id);
        if ended {
            self.processes.remove(&id.get());
        }
        ended
    }
}

const _: () = assert!(PRODUCERS_MAX < u32::MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    #[cfg_attr(miri, ignore = "Miri starts no processes")]
    fn a_process_lives_until_it_has_ended() {
        let mut producers = Producers::new();
        let own = producers.admit(std::process::id()).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let id = producers.admit(child.id()).unwrap();
        assert_ne!(own, id);
        assert!(producers.lives(own) && producers.lives(id));
        assert!(!producers.dismiss(id) && producers.lives(id));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!producers.lives(id));
        assert!(producers.dismiss(id) && !producers.lives(id));
        let error = producers.admit(child.id()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert!(!producers.lives(ProducerId::new(1000).unwrap()));
    }
}
