//! Functions of the C library that take a path, for programs that look at `/sys/class/infiniband*`
//! and `/dev/infiniband` themselves: they change the path as [`crate::redirect`] says, and call the
//! C library's own.
//!
//! Any program calls these at any time: in a signal handler, after `fork`, from inside its
//! `malloc`, before `main`. So a path that is not ours costs a comparison of bytes and one atomic
//! load; nothing is allocated or locked, and `errno` is the C library's. The first call of each
//! function asks the dynamic linker where the C library's own is.
//!
//! Some are cancellation points (`pthreads(7)`), and `scandir` calls the program back, which may
//! throw: so the stack may unwind through these functions. It holds nothing to be dropped but where
//! the path is ours, and there cancellations wait.
//!
//! The variadic ones (`open`) are defined with the argument that may follow. On every Linux ABI
//! that Rust's standard library supports, variadic integers go where fixed ones go; without
//! `O_CREAT` what is there means nothing, here as in the C library.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use airdma_preload::{Uncancelled, real};

use crate::errno::Errno;
use crate::redirect;

/// Defines such functions: an optional directory descriptor, the path, what follows, and when the
/// call would write.
macro_rules! hooks {
    ($(fn $name:ident($(@ $at:ident,)? path $(, $arg:ident: $ty:ty)*) -> $ret:ty $(, writes if $writes:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($at: c_int,)? path: *const c_char $(, $arg: $ty)*) -> $ret {
            let real = real!($name: fn($(hooks!(@int $at),)? *const c_char $(, $ty)*) -> $ret);
            // SAFETY: the C caller's path.
            if !unsafe { redirect::may_be_ours(path) } {
                // SAFETY: the caller's arguments, as they came.
                return unsafe { real($($at,)? path $(, $arg)*) };
            }
            let _whole = Uncancelled::new();
            let writes = false $(|| $writes)?;
            // SAFETY: it begins like one of ours, so it is a string.
            let led = redirect::lead(unsafe { CStr::from_ptr(path) }, writes);
            let path = led.as_deref().map_or(path, CStr::as_ptr);
            // SAFETY: the caller's arguments, but for a path that lives until the call is over.
            let answer = unsafe { real($($at,)? path $(, $arg)*) };
            drop_silently(led);
            answer
        }
    )*};
    (@int $at:ident) => { c_int };
}

hooks! {
    fn open(path, flags: c_int, mode: libc::mode_t) -> c_int, writes if flags_write(flags);
    fn open64(path, flags: c_int, mode: libc::mode_t) -> c_int, writes if flags_write(flags);
    fn __open_2(path, flags: c_int) -> c_int, writes if flags_write(flags);
    fn __open64_2(path, flags: c_int) -> c_int, writes if flags_write(flags);
    fn openat(@directory, path, flags: c_int, mode: libc::mode_t) -> c_int, writes if flags_write(flags);
    fn openat64(@directory, path, flags: c_int, mode: libc::mode_t) -> c_int, writes if flags_write(flags);
    fn __openat_2(@directory, path, flags: c_int) -> c_int, writes if flags_write(flags);
    fn __openat64_2(@directory, path, flags: c_int) -> c_int, writes if flags_write(flags);
    // SAFETY: the caller's string.
    fn fopen(path, mode: *const c_char) -> *mut c_void, writes if unsafe { mode_writes(mode) };
    // SAFETY: the caller's string.
    fn fopen64(path, mode: *const c_char) -> *mut c_void, writes if unsafe { mode_writes(mode) };
    fn opendir(path) -> *mut c_void;
    fn scandir(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    fn scandir64(path, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
}

hooks! {
    fn stat(path, buffer: *mut c_void) -> c_int;
    fn stat64(path, buffer: *mut c_void) -> c_int;
    fn lstat(path, buffer: *mut c_void) -> c_int;
    fn lstat64(path, buffer: *mut c_void) -> c_int;
    fn fstatat(@directory, path, buffer: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(@directory, path, buffer: *mut c_void, flags: c_int) -> c_int;
    fn statx(@directory, path, flags: c_int, mask: c_uint, buffer: *mut c_void) -> c_int;
    fn chdir(path) -> c_int;
    fn access(path, mode: c_int) -> c_int;
    fn faccessat(@directory, path, mode: c_int, flags: c_int) -> c_int;
    fn euidaccess(path, mode: c_int) -> c_int;
    fn eaccess(path, mode: c_int) -> c_int;
    fn getxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn lgetxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn listxattr(path, list: *mut c_char, size: usize) -> isize;
    fn llistxattr(path, list: *mut c_char, size: usize) -> isize;
}

hooks! {
    fn readlink(path, buffer: *mut c_char, size: usize) -> isize;
    fn __readlink_chk(path, buffer: *mut c_char, size: usize, room: usize) -> isize;
    fn readlinkat(@directory, path, buffer: *mut c_char, size: usize) -> isize;
    fn __readlinkat_chk(@directory, path, buffer: *mut c_char, size: usize, room: usize) -> isize;
    fn realpath(path, resolved: *mut c_char) -> *mut c_char;
    fn __realpath_chk(path, resolved: *mut c_char, room: usize) -> *mut c_char;
    fn canonicalize_file_name(path) -> *mut c_char;
}

/// Functions for programs that were linked with a C library older than 2.33: `version` says which
/// struct, of which 64-bit machines have only ever had one.
macro_rules! versioned {
    ($(fn $name:ident($(@ $at:ident,)? path $(, $arg:ident: $ty:ty)*) = $now:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(_version: c_int, $($at: c_int,)? path: *const c_char $(, $arg: $ty)*) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe { $now($($at,)? path $(, $arg)*) }
        }
    )*};
}

versioned! {
    fn __xstat(path, buffer: *mut c_void) = stat;
    fn __xstat64(path, buffer: *mut c_void) = stat64;
    fn __lxstat(path, buffer: *mut c_void) = lstat;
    fn __lxstat64(path, buffer: *mut c_void) = lstat64;
    fn __fxstatat(@directory, path, buffer: *mut c_void, flags: c_int) = fstatat;
    fn __fxstatat64(@directory, path, buffer: *mut c_void, flags: c_int) = fstatat64;
}

fn flags_write(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0
}

/// # Safety
/// `mode` is a string or NULL.
unsafe fn mode_writes(mode: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !mode.is_null()
        && unsafe { CStr::from_ptr(mode) }
            .to_bytes()
            .iter()
            .any(|byte| b"wa+".contains(byte))
}

/// Frees a path; `errno` stays what the call left.
fn drop_silently(led: Option<CString>) {
    let errno = Errno::current();
    drop(led);
    errno.set();
}
