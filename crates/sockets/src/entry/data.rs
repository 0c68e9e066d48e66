//! Calls that move data.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, null, null_mut};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::{hooks, known};
use crate::datagram::{reading, writing};
use crate::inside::is_inside;
use crate::socket::{self, Stage};
use crate::stream::{self, is_special, part, parts_of};
use crate::{copying, hand_back};
use crate::{next, socket::Socket};

/// The address of a call that has none.
const NO_NAME: (*const sockaddr, socklen_t) = (null(), 0);

/// The socket, unless the call is the kernel's alone.
#[inline]
fn streamed(fd: c_int) -> Option<&'static Socket> {
    known(fd).filter(|socket| socket.stage() != Stage::Kernel)
}

/// The same, of a connection.
fn connection(fd: c_int) -> Option<&'static Socket> {
    streamed(fd).filter(|socket| !socket.is_datagram())
}

/// The same, of a UDP socket; `None` if the read is of no bytes, which takes no datagram.
fn datagrams(fd: c_int, reads_some: bool) -> Option<&'static Socket> {
    streamed(fd).filter(|socket| socket.is_datagram() && reads_some)
}

/// Whether a message of a program passes no descriptors.
unsafe fn passes_nothing(message: *const msghdr) -> bool {
    // SAFETY: null, or the program's.
    unsafe { message.as_ref() }.is_none_or(|message| message.msg_controllen == 0)
}

hooks! {
    /// `read(2)`.
    fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t
    where kernel(streamed(fd).is_none() => next::read(fd, to, length)),
        waits(socket = datagrams(fd, length > 0) => {
            reading::receive_from(socket, fd, &part(to, length), 0, null_mut(), null_mut())
        }) {
        match connection(fd) {
            Some(socket) if length > 0 => stream::read_by_kernel(socket, fd, 0, || next::read(fd, to, length))
                .unwrap_or_else(|| stream::receive(socket, fd, &part(to, length), 0, None)),
            _ => next::read(fd, to, length),
        }
    }

    /// `__read_chk`, of programs built with `_FORTIFY_SOURCE`.
    fn __read_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t) -> ssize_t {
        if length > room {
            libc::abort();
        }
        read(fd, to, length)
    }

    /// `readv(2)`.
    fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t
    where kernel(streamed(fd).is_none() => next::readv(fd, to, count)),
        waits(socket = datagrams(fd, count > 0) => {
            let parts = parts_of(to, count.unsigned_abs() as usize);
            reading::receive_from(socket, fd, parts, 0, null_mut(), null_mut())
        }) {
        match connection(fd) {
            Some(socket) if count > 0 => {
                let parts = parts_of(to, count.unsigned_abs() as usize);
                stream::read_by_kernel(socket, fd, 0, || next::readv(fd, to, count))
                    .unwrap_or_else(|| stream::receive(socket, fd, parts, 0, None))
            }
            _ => next::readv(fd, to, count),
        }
    }

    /// `recv(2)`.
    fn recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t
    where kernel(streamed(fd).is_none() => next::recv(fd, to, length, flags)),
        waits(socket = datagrams(fd, true) => {
            reading::receive_from(socket, fd, &part(to, length), flags, null_mut(), null_mut())
        }) {
        match connection(fd) {
            Some(socket) if socket.stage() == Stage::Lane || (length > 0 && !is_special(flags)) => {
                stream::read_by_kernel(socket, fd, flags, || next::recv(fd, to, length, flags))
                    .unwrap_or_else(|| stream::receive(socket, fd, &part(to, length), flags, None))
            }
            _ => next::recv(fd, to, length, flags),
        }
    }

    /// `__recv_chk`.
    fn __recv_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t {
        if length > room {
            libc::abort();
        }
        recv(fd, to, length, flags)
    }

    /// `recvfrom(2)`.
    fn recvfrom(fd: c_int, to: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t
    where kernel(streamed(fd).is_none() => next::recvfrom(fd, to, length, flags, from, from_length)),
        waits(socket = datagrams(fd, from.is_null() == from_length.is_null()) => {
            reading::receive_from(socket, fd, &part(to, length), flags, from, from_length)
        }) {
        match connection(fd) {
            Some(socket) if socket.stage() == Stage::Lane || (length > 0 && !is_special(flags)) => {
                let kernel = || next::recvfrom(fd, to, length, flags, from, from_length);
                if let Some(got) = stream::read_by_kernel(socket, fd, flags, kernel) {
                    return got;
                }
                let got = stream::receive(socket, fd, &part(to, length), flags, None);
                if got >= 0 && !from.is_null() && !from_length.is_null() {
                    // As the kernel does for TCP.
                    *from_length = 0;
                }
                got
            }
            _ => next::recvfrom(fd, to, length, flags, from, from_length),
        }
    }

    /// `__recvfrom_chk`.
    fn __recvfrom_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t {
        if length > room {
            libc::abort();
        }
        recvfrom(fd, to, length, flags, from, from_length)
    }

    /// `recvmsg(2)`.
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t
    where kernel(streamed(fd).is_none() => next::recvmsg(fd, message, flags)),
        waits(socket = datagrams(fd, !message.is_null()) => {
            let message = &mut *message;
            let parts = parts_of(message.msg_iov, message.msg_iovlen);
            reading::receive(socket, fd, parts, flags, message)
        }) {
        match (connection(fd), message.as_mut()) {
            (Some(socket), Some(message)) if !is_special(flags) || socket.stage() == Stage::Lane => {
                let parts = parts_of(message.msg_iov, message.msg_iovlen);
                if parts.iter().all(|part| part.iov_len == 0) {
                    return next::recvmsg(fd, message, flags);
                }
                let at = ptr::from_mut(message);
                stream::read_by_kernel(socket, fd, flags, || next::recvmsg(fd, at, flags))
                    .unwrap_or_else(|| stream::receive(socket, fd, parts, flags, Some(&mut *at)))
            }
            _ => next::recvmsg(fd, message, flags),
        }
    }

    /// `recvmmsg(2)`.
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec) -> c_int
    where kernel(streamed(fd).is_none() => next::recvmmsg(fd, messages, count, flags, timeout)),
        waits(socket = datagrams(fd, !messages.is_null()) => {
            reading::receive_many(socket, fd, messages, count, flags, timeout)
        }) {
        match connection(fd) {
            // One message has all that a stream has to give.
            Some(_) if count > 0 && !messages.is_null() => {
                let got = recvmsg(fd, &raw mut (*messages).msg_hdr, flags & !libc::MSG_WAITFORONE);
                if got < 0 {
                    return -1;
                }
                (*messages).msg_len = got as c_uint;
                1
            }
            _ => next::recvmmsg(fd, messages, count, flags, timeout),
        }
    }

    /// `write(2)`.
    fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t
    where kernel(streamed(fd).is_none() => next::write(fd, from, length)) {
        match streamed(fd) {
            Some(socket) if socket.is_datagram() => {
                let kernel = || next::write(fd, from, length);
                writing::send(socket, fd, &part(from, length), 0, NO_NAME, kernel)
            }
            Some(socket) if length > 0 => stream::write_by_kernel(socket, fd, 0, || next::write(fd, from, length))
                .unwrap_or_else(|| stream::send(socket, fd, &part(from, length), 0, None)),
            _ => next::write(fd, from, length),
        }
    }

    /// `writev(2)`.
    fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t
    where kernel(streamed(fd).is_none() => next::writev(fd, from, count)) {
        match streamed(fd) {
            Some(socket) if count > 0 => {
                let parts = parts_of(from, count.unsigned_abs() as usize);
                if socket.is_datagram() {
                    let kernel = || next::writev(fd, from, count);
                    return writing::send(socket, fd, parts, 0, NO_NAME, kernel);
                }
                if parts.iter().all(|part| part.iov_len == 0) {
                    return next::writev(fd, from, count);
                }
                stream::write_by_kernel(socket, fd, 0, || next::writev(fd, from, count))
                    .unwrap_or_else(|| stream::send(socket, fd, parts, 0, None))
            }
            _ => next::writev(fd, from, count),
        }
    }

    /// `send(2)`.
    fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t
    where kernel(streamed(fd).is_none() => next::send(fd, from, length, flags)) {
        match streamed(fd) {
            Some(socket) if socket.is_datagram() => {
                let kernel = || next::send(fd, from, length, flags);
                writing::send(socket, fd, &part(from, length), flags, NO_NAME, kernel)
            }
            Some(socket) if length > 0 => {
                stream::write_by_kernel(socket, fd, flags, || next::send(fd, from, length, flags))
                    .unwrap_or_else(|| stream::send(socket, fd, &part(from, length), flags, None))
            }
            _ => next::send(fd, from, length, flags),
        }
    }

    /// `sendto(2)`: the kernel ignores the address on a connection.
    fn sendto(fd: c_int, from: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t) -> ssize_t
    where kernel(streamed(fd).is_none() => next::sendto(fd, from, length, flags, to, to_length)) {
        match streamed(fd) {
            Some(socket) if socket.is_datagram() => {
                let kernel = || next::sendto(fd, from, length, flags, to, to_length);
                writing::send(socket, fd, &part(from, length), flags, (to, to_length), kernel)
            }
            Some(socket) if length > 0 && flags & libc::MSG_FASTOPEN == 0 => {
                let kernel = || next::sendto(fd, from, length, flags, to, to_length);
                stream::write_by_kernel(socket, fd, flags, kernel)
                    .unwrap_or_else(|| stream::send(socket, fd, &part(from, length), flags, None))
            }
            _ => next::sendto(fd, from, length, flags, to, to_length),
        }
    }

    /// `sendmsg(2)`.
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t
    where kernel(streamed(fd).is_none() && passes_nothing(message) => next::sendmsg(fd, message, flags)) {
        let Some(header) = message.as_ref() else {
            return next::sendmsg(fd, message, flags);
        };
        match streamed(fd) {
            Some(socket) if socket.is_datagram() => {
                // What is beside the data is for the kernel alone.
                let is_plain = header.msg_controllen == 0;
                let parts = parts_of(header.msg_iov, if is_plain { header.msg_iovlen } else { 0 });
                let name = (header.msg_name.cast_const().cast(), header.msg_namelen);
                let kernel = || next::sendmsg(fd, message, flags);
                writing::send(socket, fd, parts, flags, name, kernel)
            }
            Some(socket) if flags & libc::MSG_FASTOPEN == 0 => {
                let parts = parts_of(header.msg_iov, header.msg_iovlen);
                if parts.iter().all(|part| part.iov_len == 0) {
                    return next::sendmsg(fd, message, flags);
                }
                stream::write_by_kernel(socket, fd, flags, || next::sendmsg(fd, message, flags))
                    .unwrap_or_else(|| stream::send(socket, fd, parts, flags, Some(header)))
            }
            _ => {
                socket::passed(header);
                next::sendmsg(fd, message, flags)
            }
        }
    }

    /// `sendmmsg(2)`.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if streamed(fd).is_none() || messages.is_null() {
            for index in 0..if messages.is_null() { 0 } else { count as usize } {
                socket::passed(&(*messages.add(index)).msg_hdr);
            }
            return next::sendmmsg(fd, messages, count, flags);
        }
        let goes_whole = flags & libc::MSG_MORE == 0 && !writing::any_is_long(messages, count);
        if known(fd).is_some_and(Socket::is_datagram) && goes_whole {
            return next::sendmmsg(fd, messages, count, flags);
        }
        let mut sent = 0;
        for index in 0..count as usize {
            let message = messages.add(index);
            let written = sendmsg(fd, &raw const (*message).msg_hdr, flags);
            if written < 0 {
                break;
            }
            (*message).msg_len = written as c_uint;
            sent += 1;
        }
        if sent == 0 && count > 0 { -1 } else { sent }
    }

    /// `sendfile(2)`.
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
    where kernel(connection(to).is_none() => next::sendfile(to, from, offset, count)) {
        match connection(to) {
            Some(socket) => match socket.enter_kernel() {
                Some(_call) => next::sendfile(to, from, offset, count),
                None => copying::send_file(socket, to, from, offset, count),
            },
            None => next::sendfile(to, from, offset, count),
        }
    }

    /// `sendfile64`.
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
    where kernel(connection(to).is_none() => next::sendfile64(to, from, offset, count)) {
        match connection(to) {
            Some(_) => sendfile(to, from, offset, count),
            None => next::sendfile64(to, from, offset, count),
        }
    }

    /// `splice(2)`: a connection that is spliced is the kernel's.
    fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, length: size_t, flags: c_uint) -> ssize_t {
        if let Some(socket) = connection(from).filter(|socket| !is_inside() && copying::has_kept(socket)) {
            return copying::splice_kept(socket, from, to, length, flags);
        }
        for fd in [from, to] {
            if is_inside() {
                break;
            }
            hand_back::descriptor(fd);
        }
        next::splice(from, from_offset, to, to_offset, length, flags)
    }
}
