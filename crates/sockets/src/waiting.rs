//! Calls that wait for a connection.
//!
//! While the kernel has the stream, a read waits in the kernel, which restarts and times out as it
//! does. On a lane it waits for the gate.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use airdma_preload::errno;

use crate::holding::Holder;
use crate::inside::Inside;
use crate::lane::Lane;
use crate::sleeping::questions::{Poll, Time};
use crate::sleeping::{Question, Refused};
use crate::socket::{self, Socket, Stage};
use crate::{hand_back, next, sleeping, tcp, turn};

/// How long a write that finds no room, and no gate, waits before the program repeats it.
const NO_GATE_PAUSE: Duration = Duration::from_millis(1);

/// Waits, and keeps the connection; the descriptor by which the call goes on.
pub fn keeping(
    socket: &'static Socket,
    fd: c_int,
    holder: &mut Option<Holder>,
    wait: impl FnOnce() -> Result<(), c_int>,
) -> Result<c_int, c_int> {
    if holder.is_none() {
        *holder = Holder::of(socket, fd);
    }
    let held = holder.as_ref().ok_or(libc::EBADF)?;
    wait()?;
    Ok(held.descriptor(fd))
}

/// Waits until a blocking read should look again. One that `has_some` bytes does not restart after
/// a signal.
pub fn to_receive(socket: &'static Socket, fd: c_int, has_some: bool) -> Result<(), c_int> {
    if has_some || socket.stage() == Stage::Lane {
        pause_while_ready(socket);
        let waited = until(fd, libc::SO_RCVTIMEO, has_some, |time| ToRead {
            socket,
            fd,
            time,
        });
        if waited.is_err() {
            with_lane(socket, Lane::settle_read_gate);
        }
        return waited;
    }
    turn::flush();
    let mut byte = 0u8;
    // SAFETY: one byte.
    let got = unsafe { next::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if got < 0 {
        Err(errno::current())
    } else {
        Ok(())
    }
}

/// A call that is repeated waits a little where the kernel's descriptor may look ready: while the
/// stream is on its way to the kernel, and where writes wait without a gate.
pub fn pause_while_ready(socket: &'static Socket) {
    if socket.stage() != Stage::Lane {
        return;
    }
    let _inside = Inside::enter();
    let pause = match &socket.lock().lane {
        Some(lane) if lane.is_moving() => hand_back::PAUSE,
        Some(lane) if lane.has_no_gate() => NO_GATE_PAUSE,
        Some(_) | None => Duration::ZERO,
    };
    socket.catch_up();
    if !pause.is_zero() {
        std::thread::sleep(pause);
    }
}

/// After a read of a UDP socket that found nothing: waits if the call blocks, and runs the devices
/// of lanes meanwhile. Returns the call's result, or `None` to read again; `has_waited` if that did
/// not help before. No value here has a destructor: the thread may be cancelled in the wait.
pub fn to_receive_datagram(
    socket: &'static Socket,
    generation: u64,
    fd: c_int,
    has_waited: bool,
) -> Option<isize> {
    if tcp::is_nonblocking(fd) {
        errno::set(libc::EAGAIN);
        return Some(-1);
    }
    if has_waited && is_shut_for_reading(fd) {
        return Some(0);
    }
    let mut entry = entry(fd, libc::POLLIN);
    let entries = &raw mut entry;
    let waited = until(fd, libc::SO_RCVTIMEO, false, |time| {
        Looked(Poll {
            entries,
            count: 1,
            time,
            mask: ptr::null(),
        })
    });
    let is_it = |now: &Socket| ptr::eq(now, socket) && socket.generation() == generation;
    let error = match waited {
        Ok(()) if socket::of(fd).is_some_and(is_it) => return None,
        // Another thread has closed it.
        Ok(()) => libc::EBADF,
        Err(error) => error,
    };
    errno::set(error);
    Some(-1)
}

/// Whether a UDP socket is shut for reading: a read that does not wait says nothing of that.
fn is_shut_for_reading(fd: c_int) -> bool {
    let mut entry = entry(fd, libc::POLLRDHUP);
    // SAFETY: one entry.
    let ready = unsafe { next::poll(&raw mut entry, 1, 0) };
    ready == 1 && entry.revents & libc::POLLRDHUP != 0
}

/// Waits until a blocking write should look again.
pub fn to_send(fd: c_int, has_some: bool) -> Result<(), c_int> {
    until_ready(fd, libc::POLLOUT, libc::SO_SNDTIMEO, has_some)
}

fn until_ready(
    fd: c_int,
    events: libc::c_short,
    timeout: c_int,
    has_some: bool,
) -> Result<(), c_int> {
    let mut entry = entry(fd, events);
    let entries = &raw mut entry;
    until(fd, timeout, has_some, |time| Poll {
        entries,
        count: 1,
        time,
        mask: ptr::null(),
    })
}

fn entry(fd: c_int, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

fn with_lane<T>(socket: &'static Socket, of: impl FnOnce(&mut Lane, c_int) -> T) -> Option<T> {
    let _inside = Inside::enter();
    let mut inner = socket.lock();
    let fd = inner.fd;
    let found = inner.lane.as_deref_mut().map(|lane| of(lane, fd));
    drop(inner);
    socket.catch_up();
    found
}

/// A wait for what the caller has looked for: the sleep looks again.
#[derive(Clone, Copy)]
struct Looked(Poll);

impl Question for Looked {
    unsafe fn ask_kernel(&self) -> c_int {
        // SAFETY: the caller's promise; so below.
        unsafe { self.0.ask_kernel() }
    }

    unsafe fn ask_now(&self) -> c_int {
        // SAFETY: as above.
        unsafe { self.0.ask_now() }
    }

    unsafe fn ask_first(&self) -> c_int {
        0
    }

    unsafe fn descriptors(&self, to: &mut Vec<libc::pollfd>) {
        // SAFETY: as above.
        unsafe { self.0.descriptors(to) };
    }

    unsafe fn limit(&self) -> Result<Option<Duration>, Refused> {
        // SAFETY: as above.
        unsafe { self.0.limit() }
    }

    fn mask(&self) -> *const libc::sigset_t {
        self.0.mask()
    }
}

/// Whether the kernel has ended a connection with a lane, or the peer's kernel its stream.
pub fn notices_end(socket: &'static Socket) -> bool {
    socket.stage() == Stage::Lane && with_lane(socket, Lane::notices_end) == Some(true)
}

/// Whether a connection with a lane can be read. While the thread that reads runs the device, the
/// gate stays shut for what it reads itself.
#[derive(Clone, Copy)]
struct ToRead {
    socket: &'static Socket,
    fd: c_int,
    time: Time,
}

impl Question for ToRead {
    unsafe fn ask_kernel(&self) -> c_int {
        let Time::Milliseconds(limit) = self.time else {
            return 1;
        };
        let mut entry = entry(self.fd, libc::POLLIN);
        // SAFETY: one entry.
        unsafe { next::poll(&raw mut entry, 1, limit) }
    }

    unsafe fn ask_now(&self) -> c_int {
        if with_lane(self.socket, |lane, _| lane.is_quiet()) != Some(true) {
            return 1;
        }
        let mut entry = entry(self.fd, libc::POLLIN);
        // SAFETY: one entry.
        unsafe { next::poll(&raw mut entry, 1, 0) }
    }

    unsafe fn ask_first(&self) -> c_int {
        // The read has looked, and the sleep looks at the kernel's descriptor.
        0
    }

    fn set_turn(&self, has_turn: bool) {
        with_lane(self.socket, |lane, _| lane.set_awaited(has_turn));
    }

    unsafe fn descriptors(&self, to: &mut Vec<libc::pollfd>) {
        to.push(entry(self.fd, libc::POLLIN));
    }

    unsafe fn limit(&self) -> Result<Option<Duration>, Refused> {
        // SAFETY: no pointer.
        unsafe { self.time.limit() }
    }

    fn mask(&self) -> *const libc::sigset_t {
        ptr::null()
    }
}

fn until<Q: Question>(
    fd: c_int,
    timeout: c_int,
    has_some: bool,
    question: impl FnOnce(Time) -> Q,
) -> Result<(), c_int> {
    let limit = tcp::timeout_ms(fd, timeout);
    let question = question(Time::Milliseconds(limit));
    loop {
        // SAFETY: what the question points to outlives it.
        let ready = unsafe { sleeping::answer(question) };
        match (ready, errno::current()) {
            (0, _) => return Err(libc::EAGAIN),
            (1.., _) => return Ok(()),
            // As the kernel's sockets do: with a limit they never restart.
            (_, libc::EINTR) if limit < 0 && !has_some && all_restart() => {}
            (_, error) => return Err(error),
        }
    }
}

/// Whether all handlers of the program have `SA_RESTART`: `poll(2)` does not restart, and does not
/// say which signal has come.
fn all_restart() -> bool {
    // Handlers of faults, the engine's among them, do not interrupt a wait.
    let interrupts = |signal: &c_int| !matches!(*signal, libc::SIGSEGV | libc::SIGBUS);
    (1..=libc::SIGRTMAX()).filter(interrupts).all(|signal| {
        // SAFETY: the structure of the call, of which all zeros are a value.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action
        };
        let has_handler = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        !has_handler || action.sa_flags & libc::SA_RESTART != 0
    })
}
