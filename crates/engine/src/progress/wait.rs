//! Sleeping until a descriptor is ready.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Descriptors to wait for. Kept between waits, so that a wait does not allocate.
#[derive(Default)]
pub(crate) struct Descriptors {
    entries: Vec<libc::pollfd>,
}

/// Reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// A descriptor is ready.
    Ready,
    /// The timeout has expired.
    TimedOut,
}

impl Descriptors {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Waits for `fd` to become readable.
    pub(crate) fn add(&mut self, fd: RawFd) {
        self.entries.push(libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
    }

    /// Waits for `fd` to become writable as well, for a batch that could not be emptied.
    pub(crate) fn add_writable(&mut self, fd: RawFd) {
        self.entries.push(libc::pollfd {
            fd,
            events: libc::POLLIN | libc::POLLOUT,
            revents: 0,
        });
    }

    /// All descriptors, for `ppoll(2)`.
    pub(crate) fn entries(&mut self) -> &mut [libc::pollfd] {
        &mut self.entries
    }

    /// Whether the `index`-th descriptor that was added is ready, after [`Waited::Ready`].
    pub(crate) fn is_ready(&self, index: usize) -> bool {
        self.entries[index].revents != 0
    }

    /// Sleeps until one is ready or `timeout` has expired (`None`: for ever).
    ///
    /// # Errors
    /// `EINTR` after a signal that the program must see (see [`signal_restarts`]).
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Waited> {
        let timespec = timeout.map(timespec_of);
        let timespec = timespec
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.entries.len() as libc::nfds_t;
        // SAFETY: `entries` holds `count` pollfds; `timespec` is null or points to a local that
        // outlives the call.
        let ready =
            unsafe { libc::ppoll(self.entries.as_mut_ptr(), count, timespec, std::ptr::null()) };
        match ready {
            0 => Ok(Waited::TimedOut),
            1.. => Ok(Waited::Ready),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

pub(crate) fn timespec_of(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Whether an interrupted call continues, as the `read(2)` of a kernel's completion channel would.
///
/// With `SA_RESTART` that is restarted, without it fails with `EINTR`. `ppoll(2)` always fails,
/// without telling which signal it was, so one handler without the flag suffices for `EINTR`.
/// Handlers of faults do not count: language runtimes install them without the flag, and a fault
/// does not happen in `ppoll(2)`.
pub(crate) fn signal_restarts() -> bool {
    (1..=libc::SIGRTMAX())
        .filter(|signal| !FAULTS.contains(signal))
        .all(|signal| {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: a null new action only queries; the old one is written to `action`.
            let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
            if asked != 0 {
                return true;
            }
            // SAFETY: zeroed is a valid sigaction, and the call has filled it in.
            let action = unsafe { action.assume_init() };
            action.sa_sigaction == libc::SIG_DFL
                || action.sa_sigaction == libc::SIG_IGN
                || action.sa_flags & libc::SA_RESTART != 0
        })
}

const FAULTS: [libc::c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];
