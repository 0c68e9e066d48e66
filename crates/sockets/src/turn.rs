//! Threads of the program run the devices of lanes while they wait.
//!
//! Otherwise each message wakes two threads, the device's and then the program's. One thread at a
//! time has the turn; others wait in the kernel, and are woken by the gates.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use airdma::Runner;
use airdma_preload::errno;

use crate::agent;
use crate::inside::Inside;

/// Lanes of this process.
static LANES: AtomicU32 = AtomicU32::new(0);
/// Whether a thread has the turn.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Counts a lane, as long as it lives.
pub struct Counted(());

impl Counted {
    /// One lane more.
    pub fn new() -> Counted {
        LANES.fetch_add(1, Ordering::Relaxed);
        Counted(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // In a child after fork there are none.
        let less = |count: u32| count.checked_sub(1);
        let _ = LANES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Whether there are lanes, whose devices a thread that waits could run.
#[inline]
pub fn has_lanes() -> bool {
    LANES.load(Ordering::Relaxed) > 0
}

/// Before a thread waits: what it wrote to many lanes leaves together.
pub fn flush() {
    if has_lanes() {
        let before = errno::current();
        {
            let _inside = Inside::enter();
            #[cfg(test)]
            FLUSHES.set(FLUSHES.get() + 1);
            agent::flush();
        }
        errno::set(before);
    }
}

#[cfg(test)]
thread_local! {
    static FLUSHES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// How often the calling thread did so.
#[cfg(test)]
pub fn flushes() -> u32 {
    FLUSHES.get()
}

/// In a child after fork.
pub fn in_child() {
    LANES.store(0, Ordering::Relaxed);
    IS_TAKEN.store(false, Ordering::Relaxed);
}

/// The turn of a thread. Signals of the program are blocked while it runs the devices: a handler
/// would find locks taken, and one that jumps out would leave them so.
pub struct Turn {
    runners: Vec<Runner>,
    before: libc::sigset_t,
}

impl Turn {
    /// Takes the turn, unless another thread has it.
    pub fn take() -> Option<Turn> {
        let _inside = Inside::enter();
        if IS_TAKEN.swap(true, Ordering::Acquire) {
            return None;
        }
        let runners = agent::runners();
        if runners.is_empty() {
            IS_TAKEN.store(false, Ordering::Release);
            return None;
        }
        let before = block_signals();
        Some(Turn { runners, before })
    }

    /// The signals that the program had blocked.
    pub fn mask(&self) -> &libc::sigset_t {
        &self.before
    }

    /// Runs the devices. Whether lanes were woken.
    pub fn run(&mut self) -> bool {
        let _inside = Inside::enter();
        // A device that is gone tells its lanes so by itself.
        let mut woken = false;
        for runner in &mut self.runners {
            woken |= runner.run().unwrap_or(false);
        }
        woken
    }

    /// Adds what to sleep on; how long at most.
    pub fn descriptors(&mut self, to: &mut Vec<libc::pollfd>) -> Option<Duration> {
        let mut least = None;
        for runner in &mut self.runners {
            let (descriptors, limit) = runner.descriptors();
            to.extend_from_slice(descriptors);
            least = [least, limit].into_iter().flatten().min();
        }
        least
    }

    /// The sleep is over; `slept_on` is what [`Turn::descriptors`] added.
    pub fn woke(&mut self, mut slept_on: &[libc::pollfd]) {
        let _inside = Inside::enter();
        for runner in &mut self.runners {
            let (descriptors, _) = runner.descriptors();
            let Some((own, others)) = slept_on.split_at_checked(descriptors.len()) else {
                return;
            };
            descriptors.copy_from_slice(own);
            slept_on = others;
            runner.woke(own.iter().filter(|entry| entry.revents != 0).count());
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _inside = Inside::enter();
        self.runners.clear();
        IS_TAKEN.store(false, Ordering::Release);
        // SAFETY: a set that the kernel filled in.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            )
        };
    }
}

/// Blocks all signals but those of faults; which ones were blocked before.
fn block_signals() -> libc::sigset_t {
    const FAULTS: [c_int; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sets on the stack, of which all zeros are a value.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}
