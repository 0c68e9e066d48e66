//! `socket(2)` and the functions that send, for programs that ask the kernel about RDMA devices by
//! netlink (`rdma(8)`, UCX): such a socket becomes one of `NETLINK_USERSOCK`, on which processes
//! talk to each other, and what the program sends is answered by [`crate::netlink`]. All else about
//! it, binding, options, receiving, is the kernel's.
//!
//! For every other socket a call costs one load more. Nothing is allocated or locked then, and
//! `errno` is the C library's.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

use airdma_preload::{Uncancelled, real};

use crate::errno::Errno;
use crate::netlink;

/// Descriptors that were made for `NETLINK_RDMA`, as far as is known: another socket may have the
/// number now.
static ASKING: [AtomicI32; ASKING_MAX] = [const { AtomicI32::new(NONE) }; ASKING_MAX];
/// The place of the next descriptor. Programs have one of these at a time.
static NEXT: AtomicI32 = AtomicI32::new(NONE);
const ASKING_MAX: usize = 8;
const NONE: c_int = -1;

/// `socket(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let real = real!(socket: fn(c_int, c_int, c_int) -> c_int);
    if domain != libc::AF_NETLINK || protocol != libc::NETLINK_RDMA {
        // SAFETY: the caller's arguments, as they came.
        return unsafe { real(domain, kind, protocol) };
    }
    // SAFETY: three integers.
    let fd = unsafe { real(domain, kind, libc::NETLINK_USERSOCK) };
    if fd >= 0 {
        let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        ASKING[next.unsigned_abs() as usize % ASKING_MAX].store(fd, Ordering::Relaxed);
    }
    fd
}

/// `send(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let real = real!(send: fn(c_int, *const c_void, usize, c_int) -> isize);
    // SAFETY: the caller's arguments, as they came.
    match unsafe { answer(fd, &[(data, len)]) } {
        Some(sent) => sent,
        // SAFETY: as above.
        None => unsafe { real(fd, data, len, flags) },
    }
}

/// `sendto(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    address: *const c_void,
    address_len: libc::socklen_t,
) -> isize {
    type Address = *const c_void;
    let real =
        real!(sendto: fn(c_int, *const c_void, usize, c_int, Address, libc::socklen_t) -> isize);
    // SAFETY: the caller's arguments, as they came.
    match unsafe { answer(fd, &[(data, len)]) } {
        Some(sent) => sent,
        // SAFETY: as above.
        None => unsafe { real(fd, data, len, flags, address, address_len) },
    }
}

/// `sendmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    let real = real!(sendmsg: fn(c_int, *const libc::msghdr, c_int) -> isize);
    if !is_asking(fd) || message.is_null() {
        // SAFETY: the caller's arguments, as they came.
        return unsafe { real(fd, message, flags) };
    }
    // SAFETY: the caller's message, which the kernel would read too.
    let parts: Vec<_> = unsafe {
        (0..(*message).msg_iovlen)
            .map(|number| &*(*message).msg_iov.add(number))
            .map(|part| (part.iov_base.cast_const(), part.iov_len))
            .collect()
    };
    // SAFETY: as above.
    match unsafe { answer(fd, &parts) } {
        Some(sent) => sent,
        // SAFETY: the caller's arguments, as they came.
        None => unsafe { real(fd, message, flags) },
    }
}

/// Whether a descriptor may be one of those.
#[inline]
fn is_asking(fd: c_int) -> bool {
    NEXT.load(Ordering::Relaxed) != NONE
        && fd >= 0
        && ASKING.iter().any(|one| one.load(Ordering::Relaxed) == fd)
}

/// Answers what the program sends on a socket for `NETLINK_RDMA`: how many bytes it sent, or -1.
/// `None` for any other socket.
///
/// # Safety
/// The parts are the caller's memory.
#[inline]
unsafe fn answer(fd: c_int, parts: &[(*const c_void, usize)]) -> Option<isize> {
    if !is_asking(fd) {
        return None;
    }
    if !is_ours(fd) {
        for one in &ASKING {
            let _ = one.compare_exchange(fd, NONE, Ordering::Relaxed, Ordering::Relaxed);
        }
        return None;
    }
    let _whole = Uncancelled::new();
    let mut request = Vec::new();
    for (data, len) in parts {
        if data.is_null() || request.len() + len > netlink::REQUEST_LEN_MAX {
            Errno::INVALID.set();
            return Some(-1);
        }
        // SAFETY: the caller's promise.
        request.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), *len) });
    }
    let answered = std::panic::catch_unwind(|| netlink::answer(fd, &request));
    Some(match answered {
        Ok(Ok(())) => request.len().cast_signed(),
        Ok(Err(errno)) => {
            errno.set();
            -1
        }
        Err(_) => {
            Errno(libc::EIO).set();
            -1
        }
    })
}

/// Whether the socket is still one of [`socket`]'s.
fn is_ours(fd: c_int) -> bool {
    let errno = Errno::current();
    let option = |name: c_int| {
        let mut value = MaybeUninit::<c_int>::uninit();
        let mut len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the integer and its length may be written; it is filled when the answer is 0.
        unsafe {
            let got = libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                name,
                value.as_mut_ptr().cast(),
                &raw mut len,
            );
            (got == 0).then(|| value.assume_init())
        }
    };
    let is_ours = option(libc::SO_DOMAIN) == Some(libc::AF_NETLINK)
        && option(libc::SO_PROTOCOL) == Some(libc::NETLINK_USERSOCK);
    errno.set();
    is_ours
}
