//! The progress thread of a device: starting, waking and stopping it. When it runs the worker is decided in
//! [`crate::core::progress_loop`].

use crate::progress::eventfd::EventFd;
use crate::progress::poll_set::PollSet;
use crate::progress::slice::shorten;
use crate::progress::standby::Standby;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// The application's side of the helper.
pub(crate) struct Helper {
    thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) exit: AtomicBool,
    /// Threads that run the worker while they are blocked.
    pub(crate) standby: Standby,
    /// Wakes it, and it alone.
    pub(crate) wake: EventFd,
    /// Readable when `wake` is, or something else that the helper is to see to.
    pub(crate) alarm: PollSet,
    /// Readable when packets wait. A socket that is closed leaves it by itself: a sleep on this need not end before.
    pub(crate) packets: PollSet,
}

impl Helper {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = EventFd::nonblocking()?;
        let alarm = PollSet::out_of_sight()?;
        alarm.add(wake.fd())?;
        Ok(Helper {
            alarm,
            packets: PollSet::new()?,
            wake,
            thread: Mutex::default(),
            exit: AtomicBool::new(false),
            standby: Standby::new(),
        })
    }

    /// Starts the thread, which calls `run`, unless it runs.
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

    /// Wakes it when `fd` is readable: [`Core::look_around`] will see to it.
    pub(crate) fn watch(&self, fd: RawFd) -> io::Result<()> {
        self.alarm.add(fd)
    }

    /// Makes it look whether there is something for it to do, whatever it waits for.
    pub(crate) fn wake(&self) {
        self.wake.signal();
    }

    /// Ends the thread and waits until it is gone.
    pub(crate) fn stop(&self) {
        self.exit.store(true, Ordering::SeqCst);
        self.wake.signal();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // What it does when the interface is gone may drop the last of the device.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            thread.join().ok();
        }
    }
}

/// What the instruction of a thread causes. Blocked in that thread it would end the process, whatever handler the application has: one that makes
/// memory accessible which was registered and then protected, or one that says where the fault was.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Runs `spawn` with all signals blocked but those of faults, which the new thread inherits: the application's handlers run in its own threads.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both point to a sigset_t, of which the first call fills the first and the second the other.
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
