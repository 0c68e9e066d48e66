//! Threads and the end of processes.

use std::ffi::{c_int, c_void};

use airdma_preload::real;

use crate::inside::{self, is_inside};
use crate::{next, process};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

struct Own {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn own_thread(own: *mut c_void) -> *mut c_void {
    inside::is_own_thread();
    // SAFETY: the box that `pthread_create` made for this thread.
    let own = unsafe { Box::from_raw(own.cast::<Own>()) };
    (own.start)(own.argument)
}

/// `pthread_create(3)`: threads that the shim starts are its own.
///
/// # Safety
/// As the man page demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let next = real!(pthread_create: fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int);
    if !is_inside() {
        // SAFETY: the caller's promise.
        return unsafe { next(thread, attributes, start, argument) };
    }
    let own = Box::into_raw(Box::new(Own { start, argument }));
    // SAFETY: the caller's promise; the thread takes the box.
    let created = unsafe { next(thread, attributes, own_thread, own.cast()) };
    if created != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(own) });
    }
    created
}

/// `_Fork(3)`, which runs no handlers.
///
/// # Safety
/// As the man page demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let next = real!(_Fork: fn() -> libc::pid_t);
    if is_inside() {
        // SAFETY: the caller's promise.
        return unsafe { next() };
    }
    process::before_fork();
    // SAFETY: the caller's promise.
    let child = unsafe { next() };
    if child == 0 {
        process::in_child();
    } else {
        process::after_fork();
    }
    child
}

/// `_exit(2)`.
///
/// # Safety
/// As the man page demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    super::guard((), || process::at_exit());
    // SAFETY: ends the process, as `_exit(2)` does.
    unsafe { next::syscall(libc::SYS_exit_group, status.into(), 0, 0, 0, 0, 0) };
    loop {
        // Not reached.
        std::hint::spin_loop();
    }
}

/// `_Exit(3)`.
///
/// # Safety
/// As the man page demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the same.
    unsafe { _exit(status) }
}
