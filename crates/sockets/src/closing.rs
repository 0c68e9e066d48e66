//! The end of a connection: the kernel's, which delivers what was written before its FIN.

use std::ffi::c_int;

use crate::hand_back::{self, Need};
use crate::socket::{self, Socket, Stage};
use crate::{holding, next, tcp};

/// Before the kernel closes the last descriptor of a connection.
fn finish(socket: &'static Socket) {
    if socket.stage() == Stage::Kernel {
        return;
    }
    // The kernel closes by RST if bytes are unread, and the peer must not read an end before.
    let leaves_bytes = {
        let inner = socket.lock();
        let fd = inner.fd;
        inner
            .lane
            .as_ref()
            .is_some_and(|lane| lane.leaves_bytes(fd))
    };
    socket.catch_up();
    hand_back::connection(socket, Need::Close);
    if leaves_bytes {
        tcp::reset_at_close(socket.lock().fd);
    }
}

/// Before `close(2)` and what closes as it does.
pub fn before_close(fd: c_int) {
    let Some(socket) = socket::of(fd) else { return };
    if socket.stage() == Stage::Lost {
        return socket::leave(fd);
    }
    if !socket::is_own_table() {
        return;
    }
    let is_last = socket.let_go() && !holding::is_kept(socket, fd);
    if is_last {
        finish(socket);
    }
    socket::let_gone(fd, is_last);
}

/// `shutdown(2)` of a connection.
///
/// # Safety
/// None beyond the call's own.
pub unsafe fn shutdown(socket: &'static Socket, fd: c_int, how: c_int) -> c_int {
    hand_back::connection(socket, Need::Close);
    // SAFETY: plain integers.
    unsafe { next::shutdown(fd, how) }
}
