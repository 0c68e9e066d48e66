//! The progress thread of a device: starting, waking and stopping it.
//! [`crate::core::progress_loop`] decides when it runs the worker.

pub(crate) mod standby;

use crate::progress::eventfd::EventFd;
use crate::progress::poll_set::PollSet;
use crate::progress::progress_thread::standby::Standby;
use crate::progress::watcher::{self, Device};
use crate::sharing::runtime_dir::network_namespace;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Other processes whose connections the thread accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Caller {
    /// Looks at the device ([`crate::core::viewers`]).
    Viewer,
    /// A peer that asks whether this process runs ([`crate::host::presence`]).
    Peer,
}

/// The application's side of the progress thread.
pub(crate) struct ProgressThread {
    /// Number by which the watcher knows the device; 0 before the thread is started.
    token: AtomicU64,
    /// Held while it is started.
    starting: Mutex<()>,
    pub(crate) exit: AtomicBool,
    /// Whether the interface changed since the progress thread last looked at it.
    pub(crate) changed: AtomicBool,
    /// Threads that run the worker while they are blocked.
    pub(crate) standby: Standby,
    /// Wakes the progress thread, and no other one.
    pub(crate) wake: EventFd,
    /// Readable when `wake` is, or another descriptor that the thread must handle.
    pub(crate) alarm: PollSet,
    /// Readable when another process calls, each kind under the number of [`Caller`]; a part of
    /// `alarm`.
    pub(crate) callers: Arc<PollSet>,
    /// Readable when packets wait. A closed socket leaves the set automatically: a sleep on it need
    /// not end before.
    pub(crate) packets: PollSet,
}

impl ProgressThread {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = EventFd::nonblocking()?;
        let alarm = PollSet::out_of_sight()?;
        alarm.add(wake.fd())?;
        let callers = Arc::new(PollSet::out_of_sight()?);
        alarm.add(callers.fd())?;
        Ok(ProgressThread {
            alarm,
            callers,
            packets: PollSet::out_of_sight()?,
            wake,
            token: AtomicU64::new(0),
            starting: Mutex::default(),
            exit: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            standby: Standby::new(),
        })
    }

    /// Serves the device from now on, if it is not served: by a thread of its own while it is busy,
    /// by the watcher while it is idle.
    pub(crate) fn start(&self, device: Arc<dyn Device>) -> io::Result<()> {
        if self.is_started() {
            return Ok(());
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_started() {
            // Where /proc does not tell, all devices have one watcher.
            let namespace = network_namespace().unwrap_or_default();
            let token = watcher::enter(device, namespace)?;
            self.token.store(token, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Whether the device is served: before that, nothing needs to be woken.
    pub(crate) fn is_started(&self) -> bool {
        self.token.load(Ordering::SeqCst) != 0
    }

    /// Wakes the thread when `fd` is readable: [`apply_changes`] handles it.
    ///
    /// [`apply_changes`]: crate::core::Core::apply_changes
    pub(crate) fn watch(&self, fd: RawFd) -> io::Result<()> {
        self.alarm.add(fd)
    }

    /// Makes the thread check for work, whatever it waits for.
    pub(crate) fn wake(&self) {
        self.wake.signal();
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&self) {
        self.exit.store(true, Ordering::SeqCst);
        self.wake.signal();
        let token = self.token.load(Ordering::SeqCst);
        if token != 0 {
            watcher::leave(token);
        }
    }
}

/// Signals caused by an instruction of a thread.
///
/// Blocked in that thread they would end the process, whatever handler the application has: one
/// that makes registered and then protected memory accessible, or one that reports the fault.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Runs `spawn` with all signals blocked except those of faults, which the new thread inherits.
///
/// The application's handlers run in its own threads.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both point to a sigset_t, of which the first call fills the first and the second the
    // other.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr())
    };
    let result = spawn();
    if blocked == 0 {
        // SAFETY: `before` was filled in by the call above, which succeeded.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}
