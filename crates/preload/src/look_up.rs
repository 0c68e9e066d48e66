//! `dlsym(3)` and `dlvsym(3)`, by which programs ask a library that they opened for a function that
//! this library replaces; and `dlopen(3)`, for [`opening`](crate::opening).
//!
//! For every other name the next function, of the C library or of a library that interposes it too,
//! must see the caller: `RTLD_NEXT` is relative to it. So the two functions save their arguments,
//! ask [`LookUps`], restore them, and jump on, which takes a few instructions of assembler. Written
//! for x86-64 only.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::objects::{self, Object};

/// The look-ups that a library answers itself.
pub trait LookUps {
    /// Whether the name may be that of a replaced function: a comparison of bytes, safe wherever a
    /// system call is.
    fn may_be_replaced(name: &CStr) -> bool;

    /// Whether a replaced function of that name lies in the library at `path` or with that
    /// `soname`. Another library's function of the same name is what its caller asked for.
    fn replaces(path: &CStr, soname: Option<&CStr>) -> bool;

    /// A function of a library that is replaced is handed out because this library has none of that
    /// name.
    fn handed_out(name: &CStr);
}

/// The address to which the functions of [`look_ups!`](crate::look_ups) jump to, once [`exchange`]
/// or [`exchange_versioned`] has run.
#[doc(hidden)]
pub static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
#[doc(hidden)]
pub static NEXT_VERSIONED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Plain = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Versioned = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Defines `dlsym(3)`, `dlvsym(3)` and `dlopen(3)`, which ask a type that is [`LookUps`].
#[macro_export]
macro_rules! look_ups {
    ($asked:ty) => {
        /// `dlsym(3)`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn dlsym(
            handle: *mut ::std::ffi::c_void,
            symbol: *const ::std::ffi::c_char,
        ) -> *mut ::std::ffi::c_void {
            ::std::arch::naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx", // keeps the stack aligned
                "call {exchange}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jz 2f",
                "ret",
                "2: jmp qword ptr [rip + {next}]",
                exchange = sym $crate::look_up::exchange::<$asked>,
                next = sym $crate::look_up::NEXT,
            )
        }

        /// `dlvsym(3)`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn dlvsym(
            handle: *mut ::std::ffi::c_void,
            symbol: *const ::std::ffi::c_char,
            version: *const ::std::ffi::c_char,
        ) -> *mut ::std::ffi::c_void {
            ::std::arch::naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "call {exchange}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jz 2f",
                "ret",
                "2: jmp qword ptr [rip + {next}]",
                exchange = sym $crate::look_up::exchange_versioned::<$asked>,
                next = sym $crate::look_up::NEXT_VERSIONED,
            )
        }

        /// `dlopen(3)`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn dlopen(
            path: *const ::std::ffi::c_char,
            flags: ::std::ffi::c_int,
        ) -> *mut ::std::ffi::c_void {
            // The next one searches where the caller's own file says.
            ::std::arch::naked_asm!(
                "endbr64",
                "push rdi", // keeps the stack aligned
                "call {exchange}",
                "pop rdi",
                "mov esi, eax",
                "jmp qword ptr [rip + {next}]",
                exchange = sym $crate::opening::exchange_flags::<$asked>,
                next = sym $crate::opening::NEXT_OPEN,
            )
        }
    };
}

/// This library's function of that name, if the caller's handle leads to one that it replaces.
/// Afterwards [`NEXT`] is set.
#[doc(hidden)]
pub unsafe extern "C" fn exchange<L: LookUps>(
    handle: *mut c_void,
    symbol: *const c_char,
) -> *mut c_void {
    let nothing: Plain = no_plain;
    set_next(&NEXT, c"dlsym", nothing as *mut c_void);
    if symbol.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's string, which the C library is about to read too.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    if !L::may_be_replaced(symbol) {
        return ptr::null_mut();
    }
    // SAFETY: the caller's handle.
    in_place_of::<L>(unsafe { plain(handle, symbol) }, symbol)
}

/// As [`exchange`], for a function with a version. Afterwards [`NEXT_VERSIONED`] is set.
#[doc(hidden)]
pub unsafe extern "C" fn exchange_versioned<L: LookUps>(
    handle: *mut c_void,
    symbol: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let nothing: Versioned = no_versioned;
    let nothing = nothing as *mut c_void;
    set_next(&NEXT_VERSIONED, c"dlvsym", nothing);
    if symbol.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's strings and handle, which the C library is about to read too; its
    // function has this type.
    unsafe {
        let name = CStr::from_ptr(symbol);
        if !L::may_be_replaced(name) {
            return ptr::null_mut();
        }
        let real = found(&REAL, || objects::in_c_library(c"dlvsym"), nothing);
        let real = std::mem::transmute::<*mut c_void, Versioned>(real);
        in_place_of::<L>(real(handle, symbol, version), name)
    }
}

/// This library's function, or NULL where the caller has found nothing, or a function that is not
/// replaced.
fn in_place_of<L: LookUps>(found: *mut c_void, name: &CStr) -> *mut c_void {
    let Some(this) = objects::this().filter(|this| is_replaced::<L>(found, this.base())) else {
        return ptr::null_mut();
    };
    this.function(name).unwrap_or_else(|| {
        L::handed_out(name);
        ptr::null_mut()
    })
}

/// Whether a function lies in a library that is replaced, and not in this one, which may have that
/// name.
fn is_replaced<L: LookUps>(function: *mut c_void, this: usize) -> bool {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked about; the struct is filled when the answer is not 0, and
    // its strings live as long as the object.
    unsafe {
        if libc::dladdr(function, info.as_mut_ptr()) == 0 {
            return false;
        }
        let info = info.assume_init();
        if info.dli_fbase.addr() == this || info.dli_fname.is_null() {
            return false;
        }
        let soname = objects::at(info.dli_fbase).and_then(Object::soname);
        L::replaces(CStr::from_ptr(info.dli_fname), soname)
    }
}

/// The C library's `dlsym(3)`, as called from here.
///
/// # Safety
/// `handle` is one of the C library's.
pub(crate) unsafe fn plain(handle: *mut c_void, symbol: &CStr) -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let nothing: Plain = no_plain;
    let nothing = nothing as *mut c_void;
    let real = found(&REAL, || objects::in_c_library(c"dlsym"), nothing);
    // SAFETY: the C library's function of that name, or the one in its place, has this type; the
    // caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, Plain>(real)(handle, symbol.as_ptr()) }
}

#[inline]
pub(crate) fn set_next(known: &AtomicPtr<c_void>, name: &CStr, nothing: *mut c_void) {
    found(known, || objects::next(name), nothing);
}

/// The known function, or the one that is found now, or one that does nothing.
#[inline]
fn found(
    known: &AtomicPtr<c_void>,
    find: impl Fn() -> Option<*mut c_void>,
    nothing: *mut c_void,
) -> *mut c_void {
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        found = find().unwrap_or(nothing);
        known.store(found, Ordering::Relaxed);
    }
    found
}

/// Takes the place of a function that the C library does not have.
unsafe extern "C" fn no_plain(_handle: *mut c_void, _symbol: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

unsafe extern "C" fn no_versioned(
    _handle: *mut c_void,
    _symbol: *const c_char,
    _version: *const c_char,
) -> *mut c_void {
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_own_functions_are_found_without_asking_it() {
        for name in [c"dlsym", c"dlvsym"] {
            let found = objects::in_c_library(name);
            assert!(found.is_some_and(|found| !found.is_null()), "{name:?}");
            // The test's executable comes before the C library.
            assert_eq!(objects::next(name), found);
        }
        assert_eq!(objects::in_c_library(c"airdma_no_such_function"), None);
        assert_eq!(objects::next(c"airdma_no_such_function"), None);
    }
}
