//! C objects with Rust state behind them.
//!
//! The C struct is the first field, so the C pointer is the pointer to the whole. C programs read
//! (and some write) its fields, therefore it lies in an `UnsafeCell`; everything behind it is
//! Rust's alone.

use std::sync::atomic::{AtomicU32, Ordering};

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
