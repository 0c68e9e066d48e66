//! SIGINT and similar signals as a descriptor for poll(2).

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;

use crate::error::checked;

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Blocks SIGINT, SIGTERM and SIGHUP for its lifetime: they stay pending and do not end the
/// process.
#[derive(Debug)]
pub struct Interrupts {
    signals: OwnedFd,
    before: libc::sigset_t,
    taken: OnceLock<i32>,
}

impl Interrupts {
    /// Blocks the signals in the calling thread, and in those that it starts afterwards.
    ///
    /// A signal that the process ignores stays ignored.
    pub fn block() -> io::Result<Interrupts> {
        let set = signal_set();
        // SAFETY: `before` is plain data that the call fills; both sets live through the calls.
        unsafe {
            let mut before = mem::zeroed();
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before) {
                0 => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            let signals = OwnedFd::from_raw_fd(checked(libc::signalfd(-1, &set, flags))?);
            let taken = OnceLock::new();
            Ok(Interrupts {
                signals,
                before,
                taken,
            })
        }
    }

    /// Descriptor that is readable while a signal is pending.
    pub fn raw(&self) -> RawFd {
        self.signals.as_raw_fd()
    }

    /// Number of a pending signal, if there is one.
    pub fn take(&self) -> Option<i32> {
        let mut info = mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes into `info`, or none; it is read only if
        // all were written.
        let signal = unsafe {
            let length = libc::read(self.raw(), info.as_mut_ptr().cast(), size);
            (length == size as isize).then(|| info.assume_init().ssi_signo as i32)
        };
        if let Some(signal) = signal {
            let _ = self.taken.set(signal);
        }
        signal
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // A second Ctrl-C, meant for what has already ended, must not end the process half-way. The
        // first one must.
        while self.taken.get().is_some() && self.take().is_some() {}
        // SAFETY: the set is one that this call gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

/// Unblocks all signals in a new program. Async-signal-safe.
pub fn unblock_all() {
    // SAFETY: plain data, made empty by the call for it.
    unsafe {
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

fn signal_set() -> libc::sigset_t {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in SIGNALS {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}
