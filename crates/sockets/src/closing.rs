//! The end of a connection: the kernel's, which delivers what was written before its FIN.
//!
//! As the kernel's, `close(2)` and `shutdown(2)` do not wait for the peer's program. The peer's
//! library answers a hand-back at once as a rule, and is waited for; else, and while the kernel's
//! queue has no room, the connection is left to the agent, which closes it, or shuts it, once the
//! kernel has all that was written.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::hand_back::{self, Need};
use crate::inside::Inside;
use crate::socket::{self, Socket, Stage};
use crate::{agent, descriptors, holding, next, tcp};

/// How long a call waits for the peer's library.
const PATIENCE: Duration = Duration::from_millis(2);
/// Between two looks at a connection that is left to the agent, at first and at last.
const LOOK_AFTER: Duration = Duration::from_millis(1);
const LOOK_AFTER_MAX: Duration = Duration::from_millis(100);

/// Connections that are left to the agent. The more there are, the less a call waits: a program
/// that closes the connections of many dead hosts waits some milliseconds for all of them.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Before `close(2)` and what closes as it does.
pub fn before_close(fd: c_int) {
    let Some(socket) = socket::of(fd) else { return };
    if socket.stage() == Stage::Lost {
        return socket::leave(fd);
    }
    if !socket::is_own_table() {
        return;
    }
    let is_last = socket.let_go() && !holding::is_kept(socket, fd) && !is_left(socket, fd);
    socket::let_gone(fd, is_last);
}

/// Before the last descriptor of a connection is closed: whether the agent keeps another one until
/// the kernel has the stream.
fn is_left(socket: &'static Socket, fd: c_int) -> bool {
    if socket.stage() == Stage::Kernel {
        return false;
    }
    // The kernel closes by RST if bytes are unread, and the peer must not read an end before.
    let leaves_bytes = {
        let inner = socket.lock();
        inner
            .lane
            .as_ref()
            .is_some_and(|lane| lane.leaves_bytes(fd))
    };
    socket.catch_up();
    let lingers = tcp::linger(fd);
    let patience = match lingers {
        None => PATIENCE / (1 + LEFT.load(Ordering::Relaxed)),
        Some(lingers) => lingers.max(PATIENCE),
    };
    let is_back = hand_back::within(socket, Need::End, patience);
    if leaves_bytes {
        tcp::reset_at_close(fd);
    }
    if is_back || lingers == Some(Duration::ZERO) {
        return false;
    }
    let is_left = leave(socket, fd);
    if !is_left {
        hand_back::connection(socket, Need::End);
    } else if !leaves_bytes && lingers.is_some() {
        // The agent does not wait in `close(2)`.
        tcp::linger_no_more(fd);
    }
    is_left
}

/// Leaves a connection to the agent. Whether there is a descriptor for it.
fn leave(socket: &'static Socket, fd: c_int) -> bool {
    let Some(left) = descriptors::leave(fd) else {
        return false;
    };
    // The kernel does so when the last descriptor is closed.
    descriptors::leave_epoll_sets(fd);
    tcp::keep_alive(fd);
    LEFT.fetch_add(1, Ordering::Relaxed);
    socket.leave_to_agent();
    socket::duplicate(fd, left);
    let generation = socket.generation();
    agent::spawn(move |agent| async move {
        let mut pause = LOOK_AFTER;
        while !hand_back::look(socket, generation, Need::End, false) {
            agent.sleep(pause).await;
            pause = (pause * 2).min(LOOK_AFTER_MAX);
        }
        let is_last = socket.let_go();
        socket::let_gone(left, is_last);
        descriptors::close_left(left);
        LEFT.fetch_sub(1, Ordering::Relaxed);
    });
    true
}

/// Before the kernel ends a connection, which its descriptors outlast.
pub fn before_end(fd: c_int) {
    let Some(socket) = socket::of(fd) else { return };
    if socket.stage() != Stage::Lost && !socket.is_datagram() && socket::is_own_table() {
        socket::forget_all(socket);
        // The next connection of the socket has the options of this one.
        tcp::open_read_gate(fd);
        tcp::open_write_gate(fd);
    }
}

/// In a child after fork: the parent's agent has them.
pub fn in_child() {
    LEFT.store(0, Ordering::Relaxed);
}

/// `shutdown(2)` of a connection.
///
/// # Safety
/// None beyond the call's own.
pub unsafe fn shutdown(socket: &'static Socket, fd: c_int, how: c_int) -> c_int {
    let is_valid = matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR);
    if is_valid && !hand_back::within(socket, Need::Shutdown, PATIENCE) {
        let _inside = Inside::enter();
        let mut inner = socket.lock();
        if let Some(lane) = &mut inner.lane {
            lane.shut_later(fd, how);
            drop(inner);
            socket.catch_up();
            return 0;
        }
    }
    // SAFETY: plain integers.
    unsafe { next::shutdown(fd, how) }
}
