//! A network namespace without a name, held by a descriptor.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic;
use std::path::Path;
use std::thread;

use crate::error::checked;

/// A network namespace that exists as long as this, a process or a thread in it does.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    /// Makes a namespace with only a loopback interface that is down. Needs CAP_SYS_ADMIN.
    pub fn new() -> io::Result<Namespace> {
        let made = || {
            // SAFETY: takes only flags; concerns this thread, which ends here.
            checked(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = thread::scope(|scope| scope.spawn(made).join());
        Ok(Namespace(OwnedFd::from(unwound(file)?)))
    }

    /// Opens the namespace of a file: `/proc/PID/ns/net`, or a name of `ip netns`.
    pub fn open(path: &Path) -> io::Result<Namespace> {
        Ok(Namespace(File::open(path)?.into()))
    }

    /// Runs `work` in a thread of its own in this namespace; returns its result.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let inside = || {
            self.join()?;
            work()
        };
        unwound(thread::scope(|scope| scope.spawn(inside).join()))
    }

    /// Moves the calling thread into this namespace.
    pub fn join(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open and that of a network namespace.
        checked(unsafe { libc::setns(self.raw(), libc::CLONE_NEWNET) }).map(drop)
    }

    /// Its descriptor, open for as long as this lives.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Continues a panic of the joined thread in this one.
fn unwound<T>(joined: thread::Result<T>) -> T {
    joined.unwrap_or_else(|payload| panic::resume_unwind(payload))
}
