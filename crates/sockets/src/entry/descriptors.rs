//! Calls that make, duplicate and close descriptors.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{sockaddr, socklen_t};

use super::{guard, hooks, known};
use crate::inside::{Inside, is_inside};
use crate::socket::{Kind, Stage};
use crate::{closing, datagram, descriptors, hand_back, next, socket, tcp};

/// The connection of a new descriptor becomes known.
pub fn accepted(fd: c_int) -> c_int {
    if fd >= 0 && !is_inside() {
        let before = airdma_preload::errno::current();
        let _inside = Inside::enter();
        if socket::is_candidate(fd) {
            socket::enter(fd, Kind::Accepted);
        }
        airdma_preload::errno::set(before);
    }
    fd
}

/// Before a call of the program closes `fd`.
fn closes(fd: c_int) {
    descriptors::forget_epoll_set(fd);
    if known(fd).is_some() && !is_inside() {
        let _inside = Inside::enter();
        closing::before_close(fd);
    }
}

/// After a call of the program made `to` from `fd`.
fn duplicated(fd: c_int, to: c_int) -> c_int {
    descriptors::duplicate_epoll_set(fd, to);
    if to < 0 || to == fd || known(fd).is_none() || is_inside() {
        return to;
    }
    if socket::is_of_parent() {
        // For the program that the child is about to become.
        hand_back::descriptor(fd);
    } else if socket::is_own_table() || is_lost(fd) {
        let _inside = Inside::enter();
        socket::duplicate(fd, to);
    }
    to
}

/// Whether the parent of this process has what the lane brought of the connection.
fn is_lost(fd: c_int) -> bool {
    known(fd).is_some_and(|socket| socket.stage() == Stage::Lost)
}

/// Opens a descriptor: the shim's, if the call is.
fn opened(open: impl FnOnce() -> c_int) -> c_int {
    if is_inside() {
        descriptors::take(open())
    } else {
        descriptors::settle();
        open()
    }
}

/// An epoll set of the program becomes known.
fn new_set(set: c_int) -> c_int {
    if !is_inside() {
        descriptors::note_epoll_set(set);
    }
    set
}

hooks! {
    /// `socket(2)`.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = opened(|| next::socket(domain, kind, protocol));
        let may = datagram::is_on() && datagram::options::is_udp(domain, kind, protocol);
        if may && fd >= 0 && !is_inside() && !socket::is_of_parent() {
            let _inside = Inside::enter();
            socket::enter(fd, Kind::Datagram);
        }
        fd
    }

    /// `eventfd(2)`.
    fn eventfd(value: c_uint, flags: c_int) -> c_int {
        opened(|| next::eventfd(value, flags))
    }

    /// `epoll_create1(2)`.
    fn epoll_create1(flags: c_int) -> c_int {
        new_set(opened(|| next::epoll_create1(flags)))
    }

    /// `epoll_create(2)`.
    fn epoll_create(size: c_int) -> c_int {
        new_set(opened(|| next::epoll_create(size)))
    }

    /// `epoll_ctl(2)`.
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
        let changed = next::epoll_ctl(set, operation, fd, event);
        if changed == 0 && !is_inside() {
            descriptors::note_epoll_set(set);
        }
        changed
    }

    /// `timerfd_create(2)`.
    fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
        opened(|| next::timerfd_create(clock, flags))
    }

    /// `inotify_init1(2)`.
    fn inotify_init1(flags: c_int) -> c_int {
        opened(|| next::inotify_init1(flags))
    }

    /// `open(2)`: without a flag that needs it, there is no mode.
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opened(|| next::open(path, flags, mode))
    }

    /// `open64`.
    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opened(|| next::open64(path, flags, mode))
    }

    /// `openat(2)`.
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opened(|| next::openat(folder, path, flags, mode))
    }

    /// `openat64`.
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opened(|| next::openat64(folder, path, flags, mode))
    }

    /// `memfd_create(2)`.
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
        opened(|| next::memfd_create(name, flags))
    }

    /// `listen(2)`: the SYN of each connection is kept, for the proof.
    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let listens = next::listen(fd, backlog);
        if listens == 0 && !is_inside() {
            let before = airdma_preload::errno::current();
            tcp::save_syn(fd);
            airdma_preload::errno::set(before);
        }
        listens
    }

    /// `connect(2)`. With `AF_UNSPEC` it ends the connection, and the socket may get another one.
    fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
        let is_end = length as usize >= size_of::<libc::sa_family_t>()
            && to.as_ref().is_some_and(|to| c_int::from(to.sa_family) == libc::AF_UNSPEC);
        if is_end && !is_inside() && known(fd).is_some() {
            let _inside = Inside::enter();
            closing::before_end(fd);
        }
        let connected = next::connect(fd, to, length);
        let before = airdma_preload::errno::current();
        if (connected == 0 || before == libc::EINPROGRESS) && !is_inside() && known(fd).is_none() {
            let _inside = Inside::enter();
            if socket::is_candidate(fd) {
                socket::enter(fd, Kind::Connected);
            }
        }
        airdma_preload::errno::set(before);
        connected
    }

    /// `shutdown(2)`.
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        match known(fd) {
            Some(socket) if !is_inside() => {
                let _inside = Inside::enter();
                closing::shutdown(socket, fd, how)
            }
            _ => next::shutdown(fd, how),
        }
    }

    /// `close(2)`.
    fn close(fd: c_int) -> c_int {
        if is_inside() {
            descriptors::unmark(fd);
            return next::close(fd);
        }
        if descriptors::is_own(fd) {
            airdma_preload::errno::set(libc::EBADF);
            return -1;
        }
        closes(fd);
        next::close(fd)
    }

    /// `close_range(2)`.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if is_inside() || first > last || flags != 0 {
            return next::close_range(first, last, flags);
        }
        for fd in first..=last.min(u32::from(u16::MAX)) {
            closes(fd as c_int);
        }
        let mut outcome = 0;
        descriptors::without_own(first, last, |first, last| {
            if next::close_range(first, last, 0) != 0 {
                outcome = -1;
            }
        });
        outcome
    }

    /// `closefrom(3)`.
    fn closefrom(first: c_int) -> c_int {
        // Without the kernel's call there is no way to close all.
        close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0)
    }

    /// `dup(2)`.
    fn dup(fd: c_int) -> c_int {
        descriptors::settle();
        duplicated(fd, next::dup(fd))
    }

    /// `dup2(2)`.
    fn dup2(fd: c_int, to: c_int) -> c_int {
        if takes_own(to) {
            return -1;
        }
        replaces(fd, to);
        duplicated(fd, next::dup2(fd, to))
    }

    /// `dup3(2)`.
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if takes_own(to) {
            return -1;
        }
        replaces(fd, to);
        duplicated(fd, next::dup3(fd, to, flags))
    }

    /// `fcntl(2)`.
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int
    where kernel(is_kernels(command) => next::fcntl(fd, command, argument)) {
        let argument = least(command, argument);
        let answer = next::fcntl(fd, command, argument);
        controlled(fd, command, argument, answer)
    }

    /// `fcntl64`.
    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int
    where kernel(is_kernels(command) => next::fcntl64(fd, command, argument)) {
        let argument = least(command, argument);
        let answer = next::fcntl64(fd, command, argument);
        controlled(fd, command, argument, answer)
    }

    /// `posix_spawn_file_actions_adddup2(3)`: the program that is started gets the connection.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int {
        if !is_inside() {
            hand_back::descriptor(fd);
        }
        next::posix_spawn_file_actions_adddup2(actions, fd, to)
    }
}

/// Defines functions that return a connection of a listener, in which the thread may be cancelled.
macro_rules! accepts {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the man page demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            guard((), descriptors::settle);
            // SAFETY: the caller's promise.
            let fd = unsafe { next::$name($($arg),*) };
            guard(fd, || accepted(fd))
        }
    )*};
}

accepts! {
    /// `accept(2)`.
    fn accept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t);

    /// `accept4(2)`.
    fn accept4(fd: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int);
}

/// Whether a command of `fcntl(2)` is the kernel's alone, such as one that waits for a file's lock.
fn is_kernels(command: c_int) -> bool {
    !matches!(
        command,
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFD | libc::F_SETFL
    )
}

/// The argument of `fcntl(2)`: the shim's own duplicates have numbers like all its descriptors.
fn least(command: c_int, argument: c_ulong) -> c_ulong {
    if !matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return argument;
    }
    if is_inside() {
        return argument.max(descriptors::lowest());
    }
    descriptors::settle();
    argument
}

/// After `fcntl(2)`.
fn controlled(fd: c_int, command: c_int, argument: c_ulong, answer: c_int) -> c_int {
    if command == libc::F_SETFL
        && let Some(socket) = known(fd)
    {
        socket.forget_blocking();
    }
    let is_inherited = command == libc::F_SETFD && argument & libc::FD_CLOEXEC as c_ulong == 0;
    if is_inherited && socket::is_of_parent() && !is_inside() {
        hand_back::descriptor(fd);
    }
    if !matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) || answer < 0 {
        return answer;
    }
    if is_inside() {
        return descriptors::mark(answer);
    }
    duplicated(fd, answer)
}

/// Whether a call of the program would replace a descriptor of the shim: to the program it is none
/// that it may have.
fn takes_own(fd: c_int) -> bool {
    let takes = descriptors::is_own(fd) && !is_inside();
    if takes {
        airdma_preload::errno::set(libc::EBADF);
    }
    takes
}

/// Before `dup2(2)` closes its target.
fn replaces(fd: c_int, to: c_int) {
    if fd != to && known(to).is_some() {
        // SAFETY: a plain integer.
        let is_valid = unsafe { next::fcntl(fd, libc::F_GETFD, 0) } >= 0;
        if is_valid {
            closes(to);
        }
    }
}
