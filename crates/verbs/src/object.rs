//! C objects with Rust state behind them.
//!
//! The C struct is the first field, so the C pointer is the pointer to the whole. C programs read (and
//! some write) its fields, therefore it lies in an `UnsafeCell`; everything behind it is Rust's alone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::errno::Errno;

/// A `#[repr(C)]` struct whose first field is an `UnsafeCell` of its C struct.
///
/// # Safety
/// `offset_of!(Self, <C struct>)` is 0.
pub unsafe trait Object: Sized {
    /// The struct of `verbs.h`.
    type C;

    /// Hands the object to C, which gives it back to [`take`](Self::take) when it destroys it.
    fn into_raw(self: Box<Self>) -> *mut Self::C {
        Box::into_raw(self).cast()
    }

    /// The object behind a C pointer; null is the caller's misuse.
    ///
    /// # Safety
    /// `raw` is null or came from [`into_raw`](Self::into_raw), and is not taken back during `'a`.
    unsafe fn of<'a>(raw: *mut Self::C) -> Result<&'a Self, Errno> {
        // SAFETY: the caller's promise, and the C struct is the first field.
        unsafe { raw.cast::<Self>().as_ref() }.ok_or(Errno::INVALID)
    }

    /// Takes the object back from C.
    ///
    /// # Safety
    /// As for [`of`](Self::of), and nothing uses `raw` any more.
    unsafe fn take(raw: *mut Self::C) -> Box<Self> {
        // SAFETY: the caller's promise: the pointer came from `Box::into_raw`.
        unsafe { Box::from_raw(raw.cast()) }
    }
}

/// Events that the application got for an object, and those it acknowledged. Destroying the object
/// waits until they are equal (`ibv_get_cq_event(3)`, `ibv_get_async_event(3)`).
#[derive(Default)]
pub struct Events {
    /// Delivered minus acknowledged; wraps like the C counters would.
    outstanding: Mutex<u32>,
    acknowledged: Condvar,
}

impl Events {
    /// The application is about to get one event.
    pub fn deliver(&self) {
        let mut outstanding = self.lock();
        *outstanding = outstanding.wrapping_add(1);
    }

    /// The application acknowledged `count` events; more than were delivered count as all.
    pub fn acknowledge(&self, count: u32) {
        let mut outstanding = self.lock();
        *outstanding = outstanding.saturating_sub(count);
        self.acknowledged.notify_all();
    }

    /// Blocks until every delivered event is acknowledged.
    pub fn wait_acknowledged(&self) {
        let mut outstanding = self.lock();
        while *outstanding != 0 {
            outstanding = self
                .acknowledged
                .wait(outstanding)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.outstanding
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number for the `handle` field of a new object.
pub fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A C struct of all zeros, to be filled in.
///
/// # Safety
/// All zeros is a valid `T`: integers, raw pointers, optional functions, the C library's mutexes.
pub unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn destruction_waits_for_the_last_acknowledgement() {
        let events = Arc::new(Events::default());
        events.deliver();
        events.deliver();
        events.acknowledge(1);
        let waiter = std::thread::spawn({
            let events = Arc::clone(&events);
            move || events.wait_acknowledged()
        });
        assert!(!waiter.is_finished());
        events.acknowledge(1);
        waiter.join().unwrap();
    }

    #[test]
    fn too_many_acknowledgements_do_not_wrap() {
        let events = Events::default();
        events.deliver();
        events.acknowledge(5);
        events.wait_acknowledged();
    }
}
