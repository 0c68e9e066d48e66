//! Calls that wait for descriptors. See [`crate::sleeping`].

use std::ffi::c_int;
use std::ptr;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::sleeping::answer;
use crate::sleeping::questions::{Epoll, Poll, Select, SelectTime, Time};
use crate::turn::has_lanes;

/// Defines C functions that may be cancelled while they sleep.
macro_rules! waits {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the man page demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            // SAFETY: what the man page demands of the caller is what the body demands.
            unsafe { answer($body) }
        }
    )*};
}

waits! {
    /// `poll(2)`.
    fn poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) {
        Poll { entries, count, time: Time::Milliseconds(timeout_ms), mask: ptr::null() }
    }

    /// `ppoll(2)`.
    fn ppoll(entries: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) {
        Poll { entries, count, time: Time::Timespec(time), mask }
    }

    /// `select(2)`.
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *mut timeval) {
        Select::new(count, [read, write, except], SelectTime::Left(time), ptr::null(), has_lanes())
    }

    /// `pselect(2)`.
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *const timespec, mask: *const sigset_t) {
        Select::new(count, [read, write, except], SelectTime::Kept(time), mask, has_lanes())
    }

    /// `epoll_wait(2)`.
    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) {
        Epoll { set, events, most, time: Time::Milliseconds(timeout_ms), mask: ptr::null() }
    }

    /// `epoll_pwait(2)`.
    fn epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int, mask: *const sigset_t) {
        Epoll { set, events, most, time: Time::Milliseconds(timeout_ms), mask }
    }

    /// `epoll_pwait2(2)`.
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, time: *const timespec, mask: *const sigset_t) {
        Epoll { set, events, most, time: Time::Timespec(time), mask }
    }
}

/// `__poll_chk`, of programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As `poll(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { poll(entries, count, timeout_ms) }
}

/// `__ppoll_chk`.
///
/// # Safety
/// As `ppoll(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's promise.
    unsafe { ppoll(entries, count, time, mask) }
}
