//! In which process an object was made.
//!
//! After `fork(2)` the child has copies of all objects, while rings, sockets and descriptors are
//! shared with the parent: an operation of the child on them would happen to the parent.

use crate::wiped_page::WipedPage;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Forks between the process that loaded the library and this one. It only grows from a process to
/// its descendants, which alone inherit objects.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Identifier of the calling process, on a page that the kernel wipes for a child, by whatever call
/// it was made ([`WipedPage`]). Null without such a page.
///
/// A child of `vfork(2)` shares all memory with its parent, which waits for it, and counts as its
/// parent.
static OWN_ID: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

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
            let page = WipedPage::new().map_or(ptr::null_mut(), WipedPage::leak);
            OWN_ID.store(page.cast(), Ordering::Release);
        });
        Process {
            forks: FORKS.load(Ordering::Relaxed),
            id: own_id(),
        }
    }

    /// Whether the calling process is still this one, at the price of a load, for the data path. A
    /// child that was not made by the C library's `fork` is not noticed.
    #[inline]
    pub fn seems_current(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// As [`Process::seems_current`], for certain. Costs a second load, and a system call in the
    /// first call of a process or on Linux before 4.14.
    pub fn is_current(&self) -> bool {
        self.seems_current() && self.id == own_id()
    }
}

fn own_id() -> u32 {
    // SAFETY: null, or a page that stays mapped.
    let Some(kept) = (unsafe { OWN_ID.load(Ordering::Acquire).as_ref() }) else {
        return std::process::id();
    };
    match kept.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            kept.store(id, Ordering::Relaxed);
            id
        }
        id => id,
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
                let child = Process::current();
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

    #[test]
    fn a_child_that_no_handler_noticed_is_another_process() {
        let parent = Process::current();
        // SAFETY: as fork(2), without the handlers of the C library; the child only loads and ends.
        match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
            0 => {
                let differs = parent.seems_current() && !parent.is_current();
                let child_is = Process::current().is_current();
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!(differs && child_is))) }
            }
            child => assert_eq!(wait_for(child as libc::pid_t), 0),
        }
        assert!(parent.is_current());
    }

    fn wait_for(child: libc::pid_t) -> i32 {
        let mut status = -1;
        // SAFETY: a child of ours and a local integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }
}
