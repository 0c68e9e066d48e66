//! Tables of which each process has its own.
//!
//! A child after `fork(2)` begins with an empty table: its parent's entries are of no use to it,
//! and another thread of the parent may have held the lock at that moment, which no thread of the
//! child ever releases.

use std::ptr;
use std::sync::{PoisonError, TryLockError};

use crate::sync::{AtomicPtr, Mutex, MutexGuard, Ordering, Process};

/// A table behind a lock.
pub struct PerProcess<T: 'static> {
    current: AtomicPtr<Owned<T>>,
}

struct Owned<T: 'static> {
    process: Process,
    table: Mutex<T>,
    /// The parent's table, which is left as it is: its entries are not the child's to drop.
    _former: Option<&'static Owned<T>>,
}

#[cfg_attr(
    not(loom),
    expect(clippy::new_without_default, reason = "a static is made by `new`")
)]
impl<T: Default + Send> PerProcess<T> {
    /// Each process's table is empty at its first use.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        PerProcess {
            current: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// As above: loom's atomics cannot be made at compile time.
    #[cfg(loom)]
    pub fn new() -> Self {
        PerProcess {
            current: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// This process's table, locked.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        let table = self.table();
        table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`PerProcess::lock`], for code that may have interrupted the thread that holds the lock:
    /// `None` if it is held.
    pub fn try_lock(&'static self) -> Option<MutexGuard<'static, T>> {
        match self.table().try_lock() {
            Ok(table) => Some(table),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn table(&'static self) -> &'static Mutex<T> {
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: null, or leaked below.
            let former: Option<&'static Owned<T>> = unsafe { current.as_ref() };
            if let Some(owned) = former.filter(|owned| owned.process.is_current()) {
                return &owned.table;
            }
            let fresh = Box::into_raw(Box::new(Owned {
                process: Process::current(),
                table: Mutex::new(T::default()),
                _former: former,
            }));
            let (release, acquire) = (Ordering::Release, Ordering::Relaxed);
            let exchanged = self
                .current
                .compare_exchange(current, fresh, release, acquire);
            if exchanged.is_err() {
                // SAFETY: another thread was faster, so that this table was never published.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_childs_table_is_empty_even_while_the_parents_is_locked() {
        static TABLE: PerProcess<Vec<u32>> = PerProcess::new();
        let mut held = TABLE.lock();
        held.push(1);
        // SAFETY: the child only looks at the table, allocates (which the C library allows) and
        // ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a hang ends in a signal; ends the process.
            unsafe {
                libc::alarm(10);
                let empty = TABLE.lock().is_empty();
                TABLE.lock().push(2);
                let kept = TABLE.lock().as_slice() == [2];
                libc::_exit(i32::from(!(empty && kept)));
            }
        }
        let mut status = -1;
        // SAFETY: a child of ours and a local integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(held);
        assert_eq!(*TABLE.lock(), [1]);
    }

    #[test]
    fn a_child_of_vfork_leaves_the_tables_of_its_parent() {
        extern "C" fn look(_: *mut libc::c_void) -> libc::c_int {
            i32::from(*TABLE.lock() != [1])
        }
        static TABLE: PerProcess<Vec<u32>> = PerProcess::new();
        TABLE.lock().push(1);
        let mut stack = vec![0_u128; 1 << 12];
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own, and ends before this thread goes on.
        let child = unsafe {
            let top = stack.as_mut_ptr().add(stack.len());
            libc::clone(look, top.cast(), flags, ptr::null_mut())
        };
        let mut status = -1;
        // SAFETY: a child of ours and a local integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, TABLE.lock().as_slice()), (0, [1].as_slice()));
    }
}
