//! The progress thread of a device: starting, waking and stopping it.
//! [`crate::core::progress_loop`] decides when it runs the worker.

pub(crate) mod standby;

use crate::progress::eventfd::EventFd;
use crate::progress::poll_set::PollSet;
use crate::progress::progress_thread::standby::Standby;
use crate::progress::slice::shorten;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// The application's side of the progress thread.
pub(crate) struct ProgressThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) exit: AtomicBool,
    /// Threads that run the worker while they are blocked.
    pub(crate) standby: Standby,
    /// Wakes the progress thread, and no other one.
    pub(crate) wake: EventFd,
    /// Readable when `wake` is, or another descriptor that the thread must handle.
    pub(crate) alarm: PollSet,
    /// Readable when packets wait. A closed socket leaves the set automatically: a sleep on it need
    /// not end before.
    pub(crate) packets: PollSet,
}

impl ProgressThread {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = EventFd::nonblocking()?;
        let alarm = PollSet::out_of_sight()?;
        alarm.add(wake.fd())?;
        Ok(ProgressThread {
            alarm,
            packets: PollSet::new()?,
            wake,
            thread: Mutex::default(),
            exit: AtomicBool::new(false),
            standby: Standby::new(),
        })
    }

    /// Starts the thread, which calls `run`, unless it is running.
    pub(crate) fn start(&self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            *thread = Some(without_signals(|| {
                std::thread::Builder::new()
                    .name("airdma-helper".into())
                    .spawn(move || {
                        shorten();
                        run();
                    })
            })?);
        }
        Ok(())
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
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // If the interface is gone, the thread itself may drop the device's last reference.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            thread.join().ok();
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
