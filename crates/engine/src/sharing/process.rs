//! In which process something was made. After `fork(2)` the child has copies of everything, while rings, sockets and
//! descriptors are the parent's as well: what the child did with them would happen to the parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that loaded the library and this one. It only grows on the way from a process to its
/// descendants, and they are the only ones that inherit anything.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process.
pub struct Process {
    forks: u32,
    id: u32,
}

impl Process {
    /// This one.
    pub fn current() -> Self {
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            // SAFETY: the handler is a plain function that lives as long as the library, and only counts. It can be refused
            // for want of memory; then the process's id has to do.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Process {
            forks: FORKS.load(Ordering::Relaxed),
            id: std::process::id(),
        }
    }

    /// Whether this is still the same: costs a load, for the data path. A child that was not made by the C library's `fork`
    /// is not noticed.
    #[inline]
    pub(crate) fn seems_current(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// The same for certain, at the price of a system call.
    pub fn is_current(&self) -> bool {
        self.seems_current() && self.id == std::process::id()
    }
}

/// Tests that fork, and those that a child of another test would disturb, run one at a time: it has a copy of every descriptor.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process_and_so_is_its_child() {
        let _alone = alone();
        let parent = Process::current();
        assert!(parent.is_current());
        // SAFETY: the child only loads, stores and ends.
        match unsafe { libc::fork() } {
            0 => {
                let child_differs = !parent.seems_current() && !parent.is_current();
                let child = Process {
                    forks: FORKS.load(Ordering::Relaxed),
                    id: std::process::id(),
                };
                // SAFETY: as above.
                match unsafe { libc::fork() } {
                    0 => {
                        let differs = !parent.seems_current() && !child.seems_current();
                        // SAFETY: ends the process.
                        unsafe { libc::_exit(i32::from(!differs)) }
                    }
                    grandchild => {
                        let status = wait_for(grandchild);
                        // SAFETY: ends the process.
                        unsafe { libc::_exit(i32::from(!child_differs || status != 0)) }
                    }
                }
            }
            child => assert_eq!(wait_for(child), 0),
        }
        assert!(parent.seems_current());
    }

    fn wait_for(child: libc::pid_t) -> i32 {
        let mut status = -1;
        // SAFETY: a child of ours and a local integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }
}
