//! Moving data: a program's calls on a connection, to the kernel or to its lane.
//!
//! While a lane may be opened, no call blocks in the kernel with the program's buffer, which the
//! last bytes of the kernel's stream are read into: a blocking read waits with `MSG_PEEK`, restarts
//! and times out as the kernel does, and then takes what is there.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use airdma_preload::errno;
use libc::{iovec, msghdr};

use crate::agent;
use crate::corking;
use crate::hand_back::{self, Need};
use crate::inside::{Inside, is_inside};
use crate::lane::Source;
use crate::next;
use crate::socket::{Socket, Stage};
use crate::{policy, tcp, turn, waiting};

/// Flags with which a read does not take the stream's next bytes.
const SPECIAL: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;
/// Calls on a connection before a lane is tried.
const TRY_AT: u32 = 8;
/// Calls by which the end that accepted is later: a message and its answer.
const LATER_BY: u32 = 2;
/// The least page, at address 0, is never mapped.
const PAGE_BYTES: usize = 4096;
/// Length of the part of a write by which the sequence number is learned.
const LEARN_BYTES: usize = 512;
/// Calls after which it is no longer tried.
const LEARN_WITHIN: u32 = 64;

/// The parts of a program's buffer, from some byte on.
struct Parts<'a> {
    parts: &'a [iovec],
    /// Read or written so far.
    done: usize,
}

impl Parts<'_> {
    fn total(&self) -> usize {
        self.parts.iter().map(|part| part.iov_len).sum()
    }

    /// What is left, at most `most` bytes of it.
    fn left(&self, most: usize) -> Vec<iovec> {
        let (mut skip, mut most) = (self.done, most);
        let mut left = Vec::new();
        for part in self.parts {
            let start = skip.min(part.iov_len);
            skip -= start;
            let length = (part.iov_len - start).min(most);
            most -= length;
            if length > 0 {
                left.push(iovec {
                    // SAFETY: within the part.
                    iov_base: unsafe { part.iov_base.cast::<u8>().add(start) }.cast(),
                    iov_len: length,
                });
            }
        }
        left
    }
}

/// Whether a part is at an address that no program has: the kernel says `EFAULT`, where a lane
/// would end the program.
pub fn has_no_memory(parts: &[iovec]) -> bool {
    let is_none = |part: &iovec| part.iov_len > 0 && (part.iov_base as usize) < PAGE_BYTES;
    parts.iter().any(is_none)
}

/// What a call that does not block came to.
type Step = Result<usize, c_int>;

fn step(returned: isize) -> Step {
    usize::try_from(returned).map_err(|_| errno::current())
}

fn returned(step: Step) -> isize {
    match step {
        Ok(count) => count as isize,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

/// A read that is the kernel's as the program made it, if no lane needs more; its result. Such a
/// read costs no call of the system beside its own.
#[inline]
pub fn read_by_kernel(
    socket: &'static Socket,
    fd: c_int,
    flags: c_int,
    kernel: impl FnOnce() -> isize,
) -> Option<isize> {
    let is_plain = flags & libc::MSG_OOB == 0;
    let may = is_plain && (flags & libc::MSG_DONTWAIT != 0 || socket.reads_in_kernel());
    if may {
        by_kernel(socket, fd, flags, kernel)
    } else {
        None
    }
}

/// The same of a write: those by which the sequence number is learned are others.
#[inline]
pub fn write_by_kernel(
    socket: &'static Socket,
    fd: c_int,
    flags: c_int,
    kernel: impl FnOnce() -> isize,
) -> Option<isize> {
    let may = flags & libc::MSG_OOB == 0 && !learns(socket, flags);
    if may {
        by_kernel(socket, fd, flags, kernel)
    } else {
        None
    }
}

fn by_kernel(
    socket: &'static Socket,
    fd: c_int,
    flags: c_int,
    kernel: impl FnOnce() -> isize,
) -> Option<isize> {
    let call = socket.enter_kernel()?;
    if turn::has_lanes() && flags & libc::MSG_DONTWAIT == 0 && !socket.is_nonblocking(fd) {
        turn::flush();
    }
    let moves = kernel();
    drop(call);
    if moves >= 0 {
        moved(socket, fd);
    }
    Some(moves)
}

/// Reads from a connection as `recvmsg(2)` does. `control`: room for control messages, used while
/// the kernel has the stream.
///
/// # Safety
/// The parts are memory of the program.
pub unsafe fn receive(
    socket: &'static Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    mut control: Option<&mut msghdr>,
) -> isize {
    if flags & libc::MSG_OOB != 0 && !is_inside() {
        hand_back::connection(socket, Need::All);
    }
    let mut parts = Parts { parts, done: 0 };
    let total = parts.total();
    let (mut fd, mut holder) = (fd, None);
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let before = errno::current();
    // The sleep of a read that waits notices an end; one that does not wait asks for it.
    let mut looks_for_end = false;
    let outcome = loop {
        let control = control.as_deref_mut();
        // SAFETY: the caller's promise.
        match unsafe { receive_now(socket, fd, &parts, flags, looks_for_end, control) } {
            Ok(0) => break Ok(parts.done),
            Ok(count) => {
                parts.done += count;
                if !waits_for_all || parts.done >= total {
                    break Ok(parts.done);
                }
            }
            Err(libc::EAGAIN) if flags & libc::MSG_DONTWAIT == 0 && !socket.is_nonblocking(fd) => {
                let has_some = parts.done > 0;
                let wait = || waiting::to_receive(socket, fd, has_some);
                match waiting::keeping(socket, fd, &mut holder, wait) {
                    Ok(now) => fd = now,
                    Err(error) => break Err(error),
                }
                looks_for_end = true;
            }
            Err(libc::EAGAIN) if !looks_for_end && waiting::notices_end(socket) => {
                looks_for_end = true;
            }
            Err(error) => break Err(error),
        }
    };
    match outcome {
        Ok(count) => {
            errno::set(before);
            moved(socket, fd);
            count as isize
        }
        Err(_) if parts.done > 0 => parts.done as isize,
        Err(error) => returned(Err(error)),
    }
}

/// Reads what is there.
///
/// # Safety
/// As [`receive`].
unsafe fn receive_now(
    socket: &'static Socket,
    fd: c_int,
    parts: &Parts,
    flags: c_int,
    looks_for_end: bool,
    control: Option<&mut msghdr>,
) -> Step {
    // SAFETY: the caller's promise.
    let from_kernel = |most: usize, control| unsafe {
        receive_from_kernel(fd, &parts.left(most), flags, control)
    };
    if let Some(_call) = socket.enter_kernel() {
        return from_kernel(usize::MAX, control);
    }
    if is_inside() {
        return Err(libc::EINTR);
    }
    if socket.stage() == Stage::Lost {
        return Err(libc::ECONNRESET);
    }
    if flags & libc::MSG_TRUNC == 0 && has_no_memory(parts.parts) {
        return Err(libc::EFAULT);
    }
    let inside = Inside::enter();
    let mut inner = socket.lock();
    let peek = flags & libc::MSG_PEEK != 0;
    let taken = match &mut inner.lane {
        None => from_kernel(usize::MAX, control),
        Some(_) if flags & libc::MSG_ERRQUEUE != 0 => from_kernel(usize::MAX, control),
        Some(lane) => match lane.source() {
            Source::Kernel(most) => {
                let taken = from_kernel(most, control);
                if let Ok(count) = taken
                    && count > 0
                    && !peek
                {
                    lane.read_from_kernel(fd, count);
                }
                taken
            }
            Source::Lane => {
                if let Some(control) = control {
                    (
                        control.msg_controllen,
                        control.msg_namelen,
                        control.msg_flags,
                    ) = (0, 0, 0);
                }
                let left = parts.left(usize::MAX);
                let mut discarded = Vec::new();
                let mut buffers: Vec<&mut [u8]> = if flags & libc::MSG_TRUNC != 0 {
                    // Bytes are discarded, and the buffer may be none.
                    let length = left.iter().map(|part| part.iov_len).sum::<usize>();
                    discarded.resize(length.min(lane.readable()), 0);
                    vec![&mut discarded[..]]
                } else {
                    // SAFETY: the caller's promise.
                    let slice = |part: &iovec| unsafe {
                        std::slice::from_raw_parts_mut(part.iov_base.cast(), part.iov_len)
                    };
                    left.iter().map(slice).collect()
                };
                let mut count = lane.read(fd, &mut buffers, peek);
                if count == 0 && looks_for_end && lane.notices_end(fd) {
                    count = lane.read(fd, &mut buffers, peek);
                }
                match count {
                    0 if parts.total() == 0 && lane.readable() > 0 => Ok(0),
                    0 if lane.is_shut_for_reading() => Ok(0),
                    0 if lane.is_back() => lane
                        .read_due_tokens(fd)
                        .and_then(|()| from_kernel(usize::MAX, None)),
                    0 if lane.is_lost() => {
                        // The kernel's answer, if it knows of the end: an error once, then 0.
                        lane.take_all_tokens(fd);
                        let answer = from_kernel(usize::MAX, None);
                        match answer {
                            // Its error was told, or taken by SO_ERROR.
                            Err(libc::ENOTCONN) => Ok(0),
                            Err(error) if error != libc::EAGAIN => {
                                lane.failure_told = true;
                                Err(error)
                            }
                            Ok(0) if lane.failure_told => Ok(0),
                            Ok(_) | Err(_) => {
                                lane.failure_told = true;
                                Err(libc::ECONNRESET)
                            }
                        }
                    }
                    0 => {
                        lane.settle_read_gate(fd);
                        Err(libc::EAGAIN)
                    }
                    count => Ok(count),
                }
            }
        },
    };
    drop(inner);
    socket.catch_up();
    drop(inside);
    taken
}

/// # Safety
/// As [`receive`].
unsafe fn receive_from_kernel(
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    control: Option<&mut msghdr>,
) -> Step {
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    if let ([part], None) = (parts, &control) {
        // SAFETY: the caller's promise.
        return step(unsafe { next::recv(fd, part.iov_base, part.iov_len, flags) });
    }
    // SAFETY: all zeros is an empty message.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    if let Some(control) = &control {
        message = msghdr { ..**control };
    }
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len();
    // SAFETY: the caller's promise.
    let got = step(unsafe { next::recvmsg(fd, &raw mut message, flags) });
    if let Some(control) = control {
        control.msg_namelen = message.msg_namelen;
        control.msg_controllen = message.msg_controllen;
        control.msg_flags = message.msg_flags;
    }
    got
}

/// Writes to a connection as `sendmsg(2)` does.
///
/// # Safety
/// The parts are memory of the program; `message` is its own, if the call has one.
pub unsafe fn send(
    socket: &'static Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    message: Option<&msghdr>,
) -> isize {
    if flags & libc::MSG_OOB != 0 && !is_inside() {
        hand_back::connection(socket, Need::All);
    }
    let mut parts = Parts { parts, done: 0 };
    let total = parts.total();
    let (mut fd, mut holder) = (fd, None);
    let before = errno::current();
    let outcome = loop {
        // SAFETY: the caller's promise.
        match unsafe { send_now(socket, fd, &parts, flags, message) } {
            Ok((count, is_all)) => {
                parts.done += count;
                if is_all || parts.done >= total {
                    break Ok(());
                }
            }
            Err(libc::EAGAIN) => {}
            Err(error) => break Err(error),
        }
        waiting::pause_while_ready(socket);
        if flags & libc::MSG_DONTWAIT != 0 || socket.is_nonblocking(fd) {
            break Err(libc::EAGAIN);
        }
        let has_some = parts.done > 0;
        let wait = || waiting::to_send(fd, has_some);
        match waiting::keeping(socket, fd, &mut holder, wait) {
            Ok(now) => fd = now,
            Err(error) => break Err(error),
        }
    };
    match outcome {
        Err(error) if parts.done == 0 => returned(Err(error)),
        Ok(()) | Err(_) => {
            errno::set(before);
            moved(socket, fd);
            parts.done as isize
        }
    }
}

/// Writes what there is room for; whether that ends the call.
///
/// # Safety
/// As [`send`].
unsafe fn send_now(
    socket: &'static Socket,
    fd: c_int,
    parts: &Parts,
    flags: c_int,
    message: Option<&msghdr>,
) -> Result<(usize, bool), c_int> {
    // SAFETY: the caller's promise.
    let to_kernel = |flags| unsafe {
        let left = parts.left(usize::MAX);
        let mut whole = message.map_or_else(|| std::mem::zeroed(), |message| msghdr { ..*message });
        whole.msg_iov = left.as_ptr().cast_mut();
        whole.msg_iovlen = left.len();
        step(next::sendmsg(fd, &raw const whole, flags)).map(|count| (count, true))
    };
    if let Some(_call) = socket.enter_kernel() {
        if learns(socket, flags)
            && let Some(count) = learn(socket, fd, parts)
        {
            return Ok((count, false));
        }
        return to_kernel(flags);
    }
    if is_inside() {
        return Err(libc::EINTR);
    }
    if socket.stage() == Stage::Lost {
        return Err(libc::ECONNRESET);
    }
    if has_no_memory(parts.parts) {
        return Err(libc::EFAULT);
    }
    let inside = Inside::enter();
    let mut inner = socket.lock();
    let mut breaks_pipe = false;
    let sent = match &mut inner.lane {
        None => to_kernel(flags | libc::MSG_DONTWAIT).map(|(count, _)| (count, false)),
        Some(lane) if lane.is_shut_for_writing() => {
            breaks_pipe = true;
            Err(libc::EPIPE)
        }
        // The peer would take the bytes for tokens.
        Some(lane) if lane.is_lost() && tcp::is_established(fd) => Err(libc::ECONNRESET),
        Some(lane) if lane.is_lost() => {
            // The kernel's answer, and its signal.
            let answer = to_kernel(flags | libc::MSG_DONTWAIT);
            lane.failure_told |= answer.is_err();
            answer
        }
        Some(lane) if lane.is_back() => {
            // Nothing goes before what was written to the lane.
            lane.run(fd);
            if lane.rest_bytes() > 0 {
                Err(libc::EAGAIN)
            } else {
                to_kernel(flags | libc::MSG_DONTWAIT).map(|(count, _)| (count, false))
            }
        }
        Some(lane) => {
            let mut written = 0;
            let left = parts.left(usize::MAX);
            let corked = flags & libc::MSG_MORE != 0;
            for (index, part) in left.iter().enumerate() {
                // SAFETY: the caller's promise.
                let bytes =
                    unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
                let more = corked || index + 1 < left.len();
                let count = lane.write(fd, bytes, more);
                written += count;
                if count < bytes.len() {
                    break;
                }
            }
            corking::kept_back(socket, lane);
            if written == 0 && lane.is_lost() {
                Err(libc::ECONNRESET)
            } else if written == 0 && lane.notices_end(fd) {
                // After an end of the stream alone it would take the bytes.
                if tcp::is_ended(fd) {
                    to_kernel(flags | libc::MSG_DONTWAIT)
                } else {
                    Err(libc::ECONNRESET)
                }
            } else if written == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok((written, false))
            }
        }
    };
    drop(inner);
    socket.catch_up();
    drop(inside);
    if breaks_pipe && flags & libc::MSG_NOSIGNAL == 0 {
        // As the kernel does: to the thread that writes.
        // SAFETY: a plain integer.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    sent
}

/// Whether a write is one by which the sequence number may be learned.
fn learns(socket: &Socket, flags: c_int) -> bool {
    socket.active.load(Ordering::Relaxed)
        && socket.sequence().is_none()
        && socket.stage() == Stage::Candidate
        && flags & !(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) == 0
}

/// Learns the sequence number of a connection that this end made, by the beginning of a write: of
/// the first one, since many clients write once.
///
/// # Safety
/// As [`send`].
fn learn(socket: &Socket, fd: c_int, parts: &Parts) -> Option<usize> {
    if socket.calls.load(Ordering::Relaxed) >= LEARN_WITHIN {
        // Without it there is no lane.
        socket.step(Stage::Candidate, Stage::Kernel);
        return None;
    }
    let (own, peer) = tcp::ends(fd)?;
    if !policy::allows(own, peer, true) {
        socket.step(Stage::Candidate, Stage::Kernel);
        return None;
    }
    let leaves_at_once = tcp::integer(fd, libc::IPPROTO_TCP, libc::TCP_CORK) == Some(0);
    let positions = tcp::positions(fd, true).filter(|at| at.unacknowledged == 0);
    let (true, Some(positions)) = (leaves_at_once, positions) else {
        return None;
    };
    let left = parts.left(LEARN_BYTES);
    let first = left.first()?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(first.iov_base.cast::<u8>(), first.iov_len) };
    let (sent, sequence) = tcp::send_and_learn(fd, bytes);
    if let Some(sequence) = sequence {
        let before = (positions.written as u32).wrapping_add(1);
        socket.learn_sequence(sequence.wrapping_sub(before));
    }
    usize::try_from(sent).ok().filter(|count| *count > 0)
}

/// Counts a call that moved data, and tries to open a lane after some.
fn moved(socket: &'static Socket, fd: c_int) {
    if socket.stage() != Stage::Candidate {
        return;
    }
    let calls = 1 + socket.calls.fetch_add(1, Ordering::Relaxed);
    // The end that accepted asks, once the other one has had time to listen.
    let calls = if socket.active.load(Ordering::Relaxed) {
        calls
    } else {
        calls.saturating_sub(LATER_BY)
    };
    if calls >= TRY_AT && calls.is_power_of_two() {
        let before = errno::current();
        agent::consider(socket, fd);
        errno::set(before);
    }
}

/// Whether a read with these flags is the kernel's alone.
pub fn is_special(flags: c_int) -> bool {
    flags & SPECIAL != 0
}

/// One part.
pub fn part(bytes: *const c_void, length: usize) -> [iovec; 1] {
    [iovec {
        iov_base: bytes.cast_mut(),
        iov_len: length,
    }]
}

/// The parts of a message.
///
/// # Safety
/// The message is the program's, with valid parts.
pub unsafe fn parts_of<'a>(parts: *const iovec, count: usize) -> &'a [iovec] {
    if parts.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(parts, count) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_lanes_have_leaves_before_a_call_that_may_sleep() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut passive, _) = listener.accept().unwrap();
        active.write_all(&[1; 8]).unwrap();
        let socket = crate::socket::of(passive.as_raw_fd()).unwrap();
        // Its reads are the kernel's.
        socket.leave_alone();
        let mut bytes = [0; 2];
        let flushes_of = |call: &mut dyn FnMut()| {
            let before = turn::flushes();
            call();
            turn::flushes() - before
        };
        let lane = turn::Counted::new();
        assert_eq!(
            flushes_of(&mut || passive.read_exact(&mut bytes).unwrap()),
            1
        );
        assert_eq!(flushes_of(&mut || passive.write_all(&bytes).unwrap()), 1);
        passive.set_nonblocking(true).unwrap();
        assert_eq!(
            flushes_of(&mut || passive.read_exact(&mut bytes).unwrap()),
            0
        );
        drop(lane);
    }
}
