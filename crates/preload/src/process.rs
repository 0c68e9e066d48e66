//! In which process an object was made.
//!
//! After `fork(2)` the child has copies of all objects, while rings, sockets and descriptors are
//! shared with the parent: an operation of the child on them would happen to the parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that loaded the library and this one. It only grows from a process to
/// its descendants, which alone inherit objects.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process.
pub struct Process {
    forks: u32,
    id: u32,
}

impl Process {
    /// The calling process.
    pub fn current() -> Self {
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            // SAFETY: the handler is a plain function that lives as long as the library, and only
            // counts. Without memory it is refused; then only the process's id tells processes
            // apart.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Process {
            forks: FORKS.load(Ordering::Relaxed),
            id: std::process::id(),
        }
    }

    /// Whether the calling process is still this one, at the price of a load, for the data path. A
    /// child that was not made by the C library's `fork` is not noticed.
    #[inline]
    pub fn seems_current(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// As [`Process::seems_current`], for certain, at the price of a system call.
    pub fn is_current(&self) -> bool {
        self.seems_current() && self.id == std::process::id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process_and_so_is_its_child() {
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
