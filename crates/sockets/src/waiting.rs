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
use crate::sleeping::questions::{Poll, Time};
use crate::socket::{Socket, Stage};
use crate::{hand_back, next, sleeping, tcp};

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
        return until(fd, libc::POLLIN, libc::SO_RCVTIMEO, has_some);
    }
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

/// Waits until a blocking write should look again.
pub fn to_send(fd: c_int, has_some: bool) -> Result<(), c_int> {
    until(fd, libc::POLLOUT, libc::SO_SNDTIMEO, has_some)
}

fn until(fd: c_int, events: libc::c_short, timeout: c_int, has_some: bool) -> Result<(), c_int> {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let limit = tcp::timeout_ms(fd, timeout);
    loop {
        let question = Poll {
            entries: &raw mut entry,
            count: 1,
            time: Time::Milliseconds(limit),
            mask: ptr::null(),
        };
        // SAFETY: one entry.
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
