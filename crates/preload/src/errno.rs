//! The calling thread's `errno`.

use std::ffi::c_int;

/// The number that the last failed call left.
pub fn current() -> c_int {
    // SAFETY: the C library hands out a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Stores a number, as a function of the C library does when it fails.
pub fn set(number: c_int) {
    // SAFETY: as in `current`.
    unsafe { *libc::__errno_location() = number }
}
