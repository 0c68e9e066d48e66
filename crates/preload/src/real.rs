//! Finds the function that an interposed one replaces.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, looked up at its first call.
///
/// The look-up neither allocates nor locks, and does not call the program's `dlsym(3)`, which may
/// belong to a library that calls interposed functions itself. So a call may interrupt another one,
/// or happen inside of it.
pub struct Real(AtomicPtr<c_void>);

impl Real {
    /// Not looked up yet.
    #[must_use]
    pub const fn new() -> Real {
        Real(AtomicPtr::new(ptr::null_mut()))
    }

    /// The next function of that name behind this library's. Costs one relaxed load once it is
    /// known.
    #[inline]
    pub fn find(&self, name: &CStr) -> Option<*mut c_void> {
        let known = self.0.load(Ordering::Relaxed);
        let found = if known.is_null() {
            self.look_up(name)
        } else {
            known
        };
        (!found.is_null()).then_some(found)
    }

    #[cold]
    fn look_up(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle always exists.
        let found = unsafe { real(libc::RTLD_NEXT, name) };
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

impl Default for Real {
    fn default() -> Self {
        Self::new()
    }
}

/// The C library's `dlsym(3)`, as called from this library.
///
/// # Safety
/// `handle` is one of the C library's.
#[cfg(target_arch = "x86_64")]
pub unsafe fn real(handle: *mut c_void, symbol: &CStr) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { crate::look_up::plain(handle, symbol) }
}

/// `dlsym(3)`, which is interposed on x86-64 only.
///
/// # Safety
/// `handle` is one of the C library's.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn real(handle: *mut c_void, symbol: &CStr) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { libc::dlsym(handle, symbol.as_ptr()) }
}

/// The value with which a C function reports that it failed.
pub trait Failure {
    /// That value.
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: c_int = -1;
}

impl Failure for isize {
    const FAILURE: isize = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: *mut T = ptr::null_mut();
}

/// The C library's function of a name, as a function pointer of the given type.
///
/// Where the C library has none of that name, the calling function returns its [`Failure`] with
/// `ENOSYS`.
#[macro_export]
macro_rules! real {
    ($name:ident: fn($($ty:ty),* $(,)?) -> $ret:ty) => {{
        type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
        static REAL: $crate::Real = $crate::Real::new();
        // SAFETY: the name ends in NUL.
        let name = unsafe {
            ::std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
        };
        let Some(real) = REAL.find(name) else {
            $crate::errno::set($crate::ENOSYS);
            return <$ret as $crate::Failure>::FAILURE;
        };
        // SAFETY: the C library's function of this name has this type.
        unsafe { ::std::mem::transmute::<*mut ::std::ffi::c_void, Function>(real) }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_the_c_library_is_found_and_another_name_is_not() {
        let known = Real::new();
        let found = known.find(c"getpid");
        assert!(found.is_some());
        assert_eq!(known.find(c"getpid"), found);
        assert_eq!(Real::new().find(c"airdma_no_such_function"), None);
    }

    #[test]
    fn a_missing_function_fails_with_enosys() {
        fn absent() -> c_int {
            let real = real!(airdma_no_such_function: fn(c_int) -> c_int);
            // SAFETY: not reached.
            unsafe { real(0) }
        }
        assert_eq!(absent(), -1);
        assert_eq!(crate::errno::current(), libc::ENOSYS);
    }
}
