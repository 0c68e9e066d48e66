//! Calls that receive datagrams.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use airdma_preload::errno;
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t};

use super::receiving::Receiving;
use super::words::{NOTE_BYTES, Note};
use super::{FRAME, TRY_AT, is_open, opening, total};
use crate::address;
use crate::counters::{self, Counter};
use crate::entry::guard;
use crate::inside::{Inside, is_inside};
use crate::socket::{Socket, Stage, lock};
use crate::{next, tcp, turn, waiting};

/// Datagrams of any length after which a socket takes lanes; a long one counts as eight. Where IP
/// fragments are lost, no long one comes.
const LISTEN_AT: u32 = 64;
/// Most parts of a message of the kernel.
const PARTS_MAX: usize = 1024;

/// Receives a datagram as `recvfrom(2)` does.
///
/// # Safety
/// All pointers are the program's.
pub unsafe fn receive_from(
    socket: &'static Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> isize {
    // SAFETY: all zeros is an empty message; the caller's promise.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        if !from.is_null() && !from_length.is_null() {
            (message.msg_name, message.msg_namelen) = (from.cast(), *from_length);
        }
        let got = receive(socket, fd, parts, flags, &mut message);
        if got >= 0 && !message.msg_name.is_null() {
            *from_length = message.msg_namelen;
        }
        got
    }
}

/// What the kernel receives into: the parts of the program, and behind short ones room for a note.
struct Parts<'a> {
    of_program: &'a [iovec],
    /// Those with any length, and the room, where all are shorter than a note.
    short: [iovec; NOTE_BYTES],
    count: usize,
}

impl<'a> Parts<'a> {
    fn new(parts: &'a [iovec], spill: &mut [u8; NOTE_BYTES]) -> Parts<'a> {
        let spill = iovec {
            iov_base: spill.as_mut_ptr().cast(),
            iov_len: NOTE_BYTES,
        };
        let mut all = Parts {
            of_program: parts,
            short: [spill; NOTE_BYTES],
            count: 0,
        };
        if total(parts) < NOTE_BYTES {
            let with_length = parts.iter().filter(|part| part.iov_len > 0);
            for (part, place) in with_length.zip(&mut all.short) {
                *place = *part;
                all.count += 1;
            }
            all.count += 1;
        }
        all
    }

    fn all(&self) -> &[iovec] {
        match self.count {
            0 => self.of_program,
            count => &self.short[..count],
        }
    }

    /// The note that a datagram of that length is.
    ///
    /// # Safety
    /// The parts have been received into.
    unsafe fn note(&self, length: usize) -> Option<Note> {
        if length != NOTE_BYTES {
            return None;
        }
        let mut bytes = [0u8; NOTE_BYTES];
        let mut at = 0;
        for part in self.all() {
            let count = part.iov_len.min(NOTE_BYTES - at);
            // SAFETY: the caller's promise.
            unsafe {
                let to = bytes.as_mut_ptr().add(at);
                std::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>(), to, count);
            }
            at += count;
        }
        Note::read(&bytes)
    }
}

/// Receives a datagram as `recvmsg(2)` does, into `parts`; the message has the rest.
///
/// A socket without lanes costs the call of the kernel alone, also where it waits. The thread may
/// be cancelled in that: no value here has a destructor.
///
/// # Safety
/// The parts and the message are the program's.
pub unsafe fn receive(
    socket: &'static Socket,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    message: &mut msghdr,
) -> isize {
    if is_kernels(socket, fd, parts, flags) {
        (message.msg_iov, message.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len());
        // SAFETY: the caller's promise.
        return unsafe { next::recvmsg(fd, message, flags) };
    }
    let before = errno::current();
    let asked = *message;
    let generation = socket.generation();
    // SAFETY: all zeros is a value of the structure.
    let mut from: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut spill = [0; NOTE_BYTES];
    let mut has_waited = false;
    loop {
        let all = Parts::new(parts, &mut spill);
        let mut received = asked;
        received.msg_iov = all.all().as_ptr().cast_mut();
        received.msg_iovlen = all.all().len();
        if asked.msg_name.is_null() {
            received.msg_name = (&raw mut from).cast();
            received.msg_namelen = size_of_val(&from) as socklen_t;
        }
        // A read that waits runs the devices of lanes.
        let runs = flags & libc::MSG_DONTWAIT == 0 && turn::has_lanes() && !is_inside();
        let now = if runs { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the caller's promise.
        let got = unsafe { next::recvmsg(fd, &raw mut received, flags | now | libc::MSG_TRUNC) };
        let Ok(got) = usize::try_from(got) else {
            if !runs || errno::current() != libc::EAGAIN {
                return -1;
            }
            match waiting::to_receive_datagram(socket, generation, fd, has_waited) {
                None => has_waited = true,
                Some(answer) => return answer,
            }
            continue;
        };
        let call = Call {
            socket,
            generation,
            fd,
            flags,
            asked: &asked,
        };
        // SAFETY: the kernel has written there.
        match guard(Some(-1), || unsafe { call.end(&all, got, &received) }) {
            Some(length) if length >= 0 => {
                if !asked.msg_name.is_null() {
                    message.msg_namelen = received.msg_namelen;
                }
                message.msg_controllen = received.msg_controllen;
                message.msg_flags = received.msg_flags & !libc::MSG_TRUNC;
                let room = total(parts) as isize;
                if length > room {
                    message.msg_flags |= libc::MSG_TRUNC;
                }
                errno::set(before);
                let is_whole = flags & libc::MSG_TRUNC != 0;
                return if is_whole { length } else { length.min(room) };
            }
            Some(failed) => return failed,
            None => {}
        }
    }
}

/// Whether a read is the kernel's alone.
fn is_kernels(socket: &Socket, fd: c_int, parts: &[iovec], flags: c_int) -> bool {
    // What is read beside the program's parts would count for the next peek.
    let peeks_from_offset =
        || socket.stage() == Stage::Lost && flags & libc::MSG_PEEK != 0 && has_peek_offset(fd);
    flags & libc::MSG_ERRQUEUE != 0 || parts.len() >= PARTS_MAX || peeks_from_offset()
}

/// Whether each peek begins where the last one ended.
fn has_peek_offset(fd: c_int) -> bool {
    tcp::integer(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_some_and(|offset| offset >= 0)
}

/// A call that the kernel has answered.
struct Call<'a> {
    socket: &'static Socket,
    generation: u64,
    fd: c_int,
    flags: c_int,
    asked: &'a msghdr,
}

impl Call<'_> {
    /// The length of the datagram, whose first bytes are in the program's parts; `None` if it is
    /// lost, and the call goes on.
    ///
    /// # Safety
    /// The kernel has received `got` bytes into the parts, and the rest into the message.
    unsafe fn end(&self, all: &Parts, got: usize, received: &msghdr) -> Option<isize> {
        let (socket, generation, fd) = (self.socket, self.generation, self.fd);
        // SAFETY: the caller's promise.
        let Some(note) = (unsafe { all.note(got) }) else {
            // A name may be longer than the program's room for it.
            let room = if self.asked.msg_name.is_null() {
                size_of::<libc::sockaddr_storage>() as socklen_t
            } else {
                self.asked.msg_namelen
            };
            let name = received.msg_name.cast_const().cast();
            let name = (name, received.msg_namelen.min(room));
            // SAFETY: the kernel has written that many bytes of the name.
            unsafe { by_kernel(socket, generation, fd, got, name) };
            return Some(got as isize);
        };
        // SAFETY: the caller's promise.
        if unsafe { payload(socket, generation, &note, all.of_program, self.flags) } {
            return Some(note.length as isize);
        }
        if self.flags & libc::MSG_PEEK != 0 {
            take(fd);
        }
        None
    }
}

/// Copies the payload of a note; false if it is lost.
///
/// # Safety
/// The parts are memory of the program.
unsafe fn payload(
    socket: &'static Socket,
    generation: u64,
    note: &Note,
    parts: &[iovec],
    flags: c_int,
) -> bool {
    let is_peek = flags & libc::MSG_PEEK != 0;
    let interrupts = is_inside();
    let _inside = Inside::enter();
    let lane = if interrupts {
        // A signal handler: the interrupted thread may have the locks.
        None
    } else {
        lane_of(socket, generation, note)
    };
    let Some(lane) = lane else {
        counters::add_here(Counter::DatagramsLost, 1);
        return false;
    };
    let mut lane = lock(&lane);
    // SAFETY: the caller's promise.
    let has = unsafe { lane.read(note, parts, is_peek) };
    if !has {
        lane.count(Counter::DatagramsLost);
    } else if !is_peek {
        lane.count(Counter::DatagramsReceived);
    }
    has
}

/// The lane of a note.
fn lane_of(socket: &Socket, generation: u64, note: &Note) -> Option<Arc<Mutex<Receiving>>> {
    // In a child after fork the lock may be held for ever.
    is_open(socket, generation).then_some(())?;
    let datagrams = lock(&socket.datagrams);
    let mut lanes = datagrams.receiving.iter();
    let found = lanes.find(|(number, _)| *number == note.lane);
    found.map(|(_, lane)| Arc::clone(lane))
}

/// Takes a note that was peeked at, and whose payload is lost, from the kernel's queue.
fn take(fd: c_int) {
    let mut note = [0u8; NOTE_BYTES];
    // SAFETY: that many bytes.
    unsafe { next::recv(fd, note.as_mut_ptr().cast(), note.len(), libc::MSG_DONTWAIT) };
}

/// The program has read a datagram that went by the kernel: after some, lanes are taken.
///
/// # Safety
/// The name has that many bytes.
unsafe fn by_kernel(
    socket: &'static Socket,
    generation: u64,
    fd: c_int,
    length: usize,
    (name, name_length): (*const sockaddr, socklen_t),
) {
    if is_inside() || !is_open(socket, generation) {
        return;
    }
    let worth = if length > FRAME {
        drop_orphans(socket);
        LISTEN_AT / TRY_AT
    } else {
        1
    };
    let heard = worth + socket.calls.fetch_add(worth, Ordering::Relaxed);
    if heard < LISTEN_AT {
        return;
    }
    // SAFETY: the caller's promise.
    let from = unsafe { address::read(name, name_length) };
    if let Some(from) = from
        && socket.begin_attempt()
    {
        let before = errno::current();
        let _inside = Inside::enter();
        opening::listen(socket, fd, from);
        errno::set(before);
    }
}

/// Payloads without notes leave room for others.
fn drop_orphans(socket: &Socket) {
    if socket.stage() != Stage::Lane || is_inside() {
        return;
    }
    let before = errno::current();
    let _inside = Inside::enter();
    let lanes = lock(&socket.datagrams).receiving.clone();
    for (_, lane) in lanes {
        if let Ok(mut lane) = lane.try_lock() {
            lane.drop_orphans();
        }
    }
    errno::set(before);
}

/// Length of the next datagram, of which the kernel says that it has `length` bytes.
pub fn next_length(fd: c_int, length: c_int) -> c_int {
    if usize::try_from(length) != Ok(NOTE_BYTES) {
        return length;
    }
    if has_peek_offset(fd) {
        return length;
    }
    let mut bytes = [0u8; NOTE_BYTES];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: that many bytes.
    let got = unsafe { next::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    let note = usize::try_from(got)
        .ok()
        .and_then(|got| Note::read(&bytes[..got]));
    note.and_then(|note| c_int::try_from(note.length).ok())
        .unwrap_or(length)
}

/// Receives datagrams as `recvmmsg(2)` does, one after the other.
///
/// # Safety
/// All pointers are the program's.
pub unsafe fn receive_many(
    socket: &'static Socket,
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut libc::timespec,
) -> c_int {
    let start = Instant::now();
    // SAFETY: the caller's promise.
    let limit = unsafe { limit.as_mut() };
    let within = limit.as_ref().map(|limit| {
        let seconds = u64::try_from(limit.tv_sec).ok()?;
        let nanoseconds = u32::try_from(limit.tv_nsec).ok()?;
        (nanoseconds < 1_000_000_000).then(|| Duration::new(seconds, nanoseconds))
    });
    let within = match within {
        Some(None) => {
            errno::set(libc::EINVAL);
            return -1;
        }
        Some(within) => within,
        None => None,
    };
    let mut each = flags & !libc::MSG_WAITFORONE;
    let mut got = 0;
    while got < count.min(PARTS_MAX as c_uint) {
        // SAFETY: the caller's promise.
        let (one, parts) = unsafe {
            let one = &mut *messages.add(got as usize);
            let (at, count) = (one.msg_hdr.msg_iov, one.msg_hdr.msg_iovlen);
            (one, crate::stream::parts_of(at, count))
        };
        // SAFETY: as above.
        let length = unsafe { receive(socket, fd, parts, each, &mut one.msg_hdr) };
        let Ok(length) = c_uint::try_from(length) else {
            break;
        };
        one.msg_len = length;
        got += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            each |= libc::MSG_DONTWAIT;
        }
        if within.is_some_and(|within| start.elapsed() >= within) {
            break;
        }
    }
    if got == 0 && count > 0 {
        return -1;
    }
    if let (Some(limit), Some(within)) = (limit, within) {
        let left = within.saturating_sub(start.elapsed());
        limit.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or_default();
        limit.tv_nsec = left.subsec_nanos().into();
    }
    got as c_int
}
