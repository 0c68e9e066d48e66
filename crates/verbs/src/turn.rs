//! State that one thread at a time uses, from one C call to a later one.

use crate::sync::{AtomicUsize, Ordering, UnsafeCell};

/// State that belongs to the thread whose turn it is.
pub struct Turn<T> {
    /// The thread whose turn it is; 0 for none. Only that thread looks into `state`.
    owner: AtomicUsize,
    state: UnsafeCell<Option<T>>,
}

// SAFETY: `state` is touched by the one thread whose turn it is. It may hold a lock, which that
// thread gives back.
unsafe impl<T> Sync for Turn<T> {}
// SAFETY: as above; an object is not destroyed while a thread uses it.
unsafe impl<T> Send for Turn<T> {}

impl<T> Turn<T> {
    /// No thread has the turn.
    pub fn new() -> Self {
        Turn {
            owner: AtomicUsize::new(0),
            state: UnsafeCell::new(None),
        }
    }

    /// The state, if it is the calling thread's turn.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "one thread at a time, see `owner`")]
    pub fn mine(&self) -> Option<&mut T> {
        if self.owner.load(Ordering::Relaxed) != this_thread() {
            return None;
        }
        // SAFETY: this thread has the turn, and the reference does not outlive the C call it is in.
        self.state.with_mut(|state| unsafe { (*state).as_mut() })
    }

    /// Begins the calling thread's turn.
    ///
    /// # Safety
    /// `state` holds a lock that every thread takes before it begins a turn.
    #[inline]
    pub unsafe fn begin(&self, state: T) {
        // SAFETY: the lock inside makes this thread the only one here.
        self.state.with_mut(|at| unsafe { *at = Some(state) });
        self.owner.store(this_thread(), Ordering::Relaxed);
    }

    /// Ends the calling thread's turn; dropping the state lets others begin theirs.
    #[inline]
    pub fn end(&self) -> Option<T> {
        self.mine()?;
        self.owner.store(0, Ordering::Relaxed);
        // SAFETY: this thread had the turn, and the state still holds the lock.
        self.state.with_mut(|state| unsafe { (*state).take() })
    }
}

/// A number of the calling thread, not 0. It may have been that of a thread that has ended, whose
/// stores of it the caller then cannot see any more: memory that is freed is handed on in order
/// (C11, 7.22.3).
#[inline]
fn this_thread() -> usize {
    #[cfg(not(loom))]
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    // Loom does not know that order: there, no number comes twice.
    #[cfg(loom)]
    loom::thread_local! {
        static HERE: &'static u8 = Box::leak(Box::new(0));
    }
    HERE.with(|here| std::ptr::from_ref::<u8>(here).addr())
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::{Arc, Mutex, MutexGuard};

    #[test]
    fn the_state_is_there_for_one_thread_between_begin_and_end() {
        let lock: &'static Mutex<()> = Box::leak(Box::new(Mutex::new(())));
        let turn: Arc<Turn<(MutexGuard<'static, ()>, u32)>> = Arc::new(Turn::new());
        assert!(turn.mine().is_none() && turn.end().is_none());
        // SAFETY: the state holds the lock.
        unsafe { turn.begin((lock.lock().unwrap(), 5)) };
        assert_eq!(turn.mine().unwrap().1, 5);
        let other = {
            let turn = Arc::clone(&turn);
            std::thread::spawn(move || turn.mine().is_none() && turn.end().is_none())
        };
        assert!(other.join().unwrap());
        assert_eq!(turn.end().unwrap().1, 5);
        assert!(turn.mine().is_none());
        assert!(lock.try_lock().is_ok());
    }
}
