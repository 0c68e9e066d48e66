//! The functions that this library stands in front of, as they are behind it.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use airdma_preload::real;
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

/// Defines one function for each, which calls the next one of its name.
macro_rules! next {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {$(
        /// The next function of that name.
        ///
        /// # Safety
        /// As its man page demands.
        #[inline]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            let next = real!($name: fn($($ty),*) -> $ret);
            // SAFETY: the caller's promise.
            unsafe { next($($arg),*) }
        }
    )*};
}

next! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn accept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t;
    fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, to: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec) -> c_int;
    fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t;
    fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, from: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: c_uint) -> ssize_t;
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
    fn ppoll(fds: *mut libc::pollfd, count: libc::nfds_t, time: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn select(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, time: *mut libc::timeval) -> c_int;
    fn pselect(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, except: *mut libc::fd_set, time: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn epoll_wait(set: c_int, events: *mut libc::epoll_event, most: c_int, timeout_ms: c_int) -> c_int;
    fn epoll_pwait(set: c_int, events: *mut libc::epoll_event, most: c_int, timeout_ms: c_int, mask: *const libc::sigset_t) -> c_int;
    fn epoll_pwait2(set: c_int, events: *mut libc::epoll_event, most: c_int, time: *const libc::timespec, mask: *const libc::sigset_t) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int;
    fn eventfd(value: c_uint, flags: c_int) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int;
    fn inotify_init1(flags: c_int) -> c_int;
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> isize;
}
