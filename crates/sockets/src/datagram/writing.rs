//! Calls that send datagrams.

use std::ffi::{c_int, c_uint};
use std::net::SocketAddr;

use airdma_preload::errno;
use libc::{iovec, mmsghdr, sockaddr, socklen_t};

use super::words::Note;
use super::{FRAME, LONGEST, TRY_AT, hand_back, is_open, opening, total};
use crate::address;
use crate::counters::Counter;
use crate::inside::{Inside, is_inside};
use crate::next;
use crate::socket::{Socket, lock};

/// Flags of a datagram that may go by a lane.
const PLAIN: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Sends a datagram. `kernel`: the call as it is.
///
/// # Safety
/// The parts and the name are the program's.
pub unsafe fn send(
    socket: &'static Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    name: (*const sockaddr, socklen_t),
    kernel: impl FnOnce() -> isize,
) -> isize {
    if is_inside() {
        return kernel();
    }
    if flags & libc::MSG_MORE != 0 {
        // Parts of one datagram: a note would be another part.
        hand_back(socket);
        return kernel();
    }
    let length = total(parts);
    let may = length > FRAME && length <= LONGEST && flags & !PLAIN == 0;
    if !may || !is_open(socket, socket.generation()) {
        return kernel();
    }
    let before = errno::current();
    let to = if name.0.is_null() {
        address::peer(fd)
    } else {
        // SAFETY: the caller's promise.
        unsafe { address::read(name.0, name.1) }
    };
    errno::set(before);
    let Some(to) = to else { return kernel() };
    // SAFETY: the caller's promise.
    if let Some(sent) = unsafe { send_by_lane(socket, fd, parts, flags, name, to, length) } {
        return sent;
    }
    let sent = kernel();
    if usize::try_from(sent) == Ok(length) {
        let before = errno::current();
        let _inside = Inside::enter();
        if lock(&socket.datagrams).count(to, length) {
            opening::connect(socket, to);
        }
        errno::set(before);
    }
    sent
}

/// Sends a datagram by its lane; `None` if the kernel should.
///
/// # Safety
/// As [`send`].
unsafe fn send_by_lane(
    socket: &Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    name: (*const sockaddr, socklen_t),
    to: SocketAddr,
    length: usize,
) -> Option<isize> {
    let before = errno::current();
    let inside = Inside::enter();
    let mut datagrams = lock(&socket.datagrams);
    let way = datagrams.way(to)?;
    let lane = way.lane.as_mut()?;
    lane.progress();
    if lane.failed {
        // Another may follow, for a receiver that was started again.
        (way.lane, way.sent, way.try_at) = (None, 0, TRY_AT);
        return None;
    }
    if length > way.longest || !lane.takes(length) || crate::stream::has_no_memory(parts) {
        return None;
    }
    // The payload first, so that the note seldom waits for it.
    // SAFETY: the caller's promise.
    let note = unsafe { lane.send(parts, length)? };
    lane.count(Counter::DatagramsSent);
    // SAFETY: as above.
    let mut told = unsafe { tell(fd, &note, flags | libc::MSG_DONTWAIT, name) };
    let is_full = told < 0 && errno::current() == libc::EAGAIN;
    drop(datagrams);
    drop(inside);
    if is_full && flags & libc::MSG_DONTWAIT == 0 && !crate::tcp::is_nonblocking(fd) {
        // SAFETY: as above.
        told = unsafe { tell(fd, &note, flags, name) };
    }
    if told < 0 {
        return Some(-1);
    }
    errno::set(before);
    Some(length as isize)
}

/// Sends a note as the program would send the datagram.
///
/// # Safety
/// As [`send`].
unsafe fn tell(
    fd: c_int,
    note: &Note,
    flags: c_int,
    (name, length): (*const sockaddr, socklen_t),
) -> isize {
    let bytes = note.bytes();
    // SAFETY: the bytes above, and the caller's promise.
    unsafe { next::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, name, length) }
}

/// Whether a datagram of several is long, so that each needs a call of its own.
///
/// # Safety
/// The messages are the program's.
pub unsafe fn any_is_long(messages: *const mmsghdr, count: c_uint) -> bool {
    (0..count as usize).any(|index| {
        // SAFETY: the caller's promise.
        let parts = unsafe {
            let message = &(*messages.add(index)).msg_hdr;
            crate::stream::parts_of(message.msg_iov, message.msg_iovlen)
        };
        total(parts) > FRAME
    })
}
