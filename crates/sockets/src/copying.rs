//! Calls by which the kernel moves data between a connection and another file, through a buffer.

use std::ffi::{c_int, c_uint};
use std::ptr;

use airdma_preload::errno;

use crate::inside::Inside;
use crate::next;
use crate::socket::{Socket, Stage};
use crate::stream::{part, receive, send};

/// Sends a file as `sendfile(2)` does on a lane: through a buffer.
///
/// # Safety
/// `offset` is null or valid.
pub unsafe fn send_file(
    socket: &'static Socket,
    fd: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    count: usize,
) -> isize {
    // SAFETY: plain integers, or the caller's promise.
    let mut at = unsafe {
        if offset.is_null() {
            libc::lseek(from, 0, libc::SEEK_CUR)
        } else {
            *offset
        }
    };
    if at < 0 {
        if !offset.is_null() {
            errno::set(libc::EINVAL);
        }
        return -1;
    }
    let mut buffer = vec![0u8; count.min(1 << 16)];
    let mut sent = 0usize;
    while sent < count {
        let length = buffer.len().min(count - sent);
        // SAFETY: that many bytes.
        let got = unsafe { libc::pread(from, buffer.as_mut_ptr().cast(), length, at) };
        let Ok(got @ 1..) = usize::try_from(got) else {
            if got < 0 && sent == 0 {
                return -1;
            }
            break;
        };
        let parts = part(buffer.as_ptr().cast(), got);
        // SAFETY: the buffer above.
        let written = unsafe { send(socket, fd, &parts, 0, None) };
        let Ok(written) = usize::try_from(written) else {
            if sent == 0 {
                return -1;
            }
            break;
        };
        sent += written;
        at += written as libc::off_t;
        if written < got {
            break;
        }
    }
    // SAFETY: as above.
    unsafe {
        if offset.is_null() {
            libc::lseek(from, at, libc::SEEK_SET);
        } else {
            ptr::write(offset, at);
        }
    }
    sent as isize
}

/// Whether the lane brought bytes that the program has not read before the stream was handed back.
pub fn has_kept(socket: &'static Socket) -> bool {
    let _inside = Inside::enter();
    let has = socket.stage() == Stage::Lane
        && socket
            .lock()
            .lane
            .as_ref()
            .is_some_and(|lane| lane.has_kept());
    socket.catch_up();
    has
}

/// Splices such bytes into a pipe.
///
/// # Safety
/// None beyond the call's own.
pub unsafe fn splice_kept(
    socket: &'static Socket,
    from: c_int,
    to: c_int,
    length: usize,
    flags: c_uint,
) -> isize {
    let mut entry = libc::pollfd {
        fd: to,
        events: libc::POLLOUT,
        revents: 0,
    };
    let limit = if flags & libc::SPLICE_F_NONBLOCK == 0 {
        -1
    } else {
        0
    };
    // SAFETY: one entry.
    match unsafe { next::poll(&raw mut entry, 1, limit) } {
        0 => {
            errno::set(libc::EAGAIN);
            return -1;
        }
        1.. => {}
        _ => return -1,
    }
    // What a pipe that is writable takes without blocking.
    let mut bytes = [0u8; libc::PIPE_BUF];
    let parts = part(bytes.as_mut_ptr().cast(), length.min(bytes.len()));
    // SAFETY: the buffer above.
    unsafe {
        let there = receive(
            socket,
            from,
            &parts,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
            None,
        );
        let Ok(there @ 1..) = usize::try_from(there) else {
            return there;
        };
        let written = next::write(to, bytes.as_ptr().cast(), there);
        let Ok(taken @ 1..) = usize::try_from(written) else {
            return written;
        };
        receive(socket, from, &part(bytes.as_ptr().cast(), taken), 0, None)
    }
}
