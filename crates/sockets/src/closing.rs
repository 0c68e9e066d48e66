//! The end of a connection on a lane: what was written arrives before the kernel's FIN.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::counters::{self, Counter};
use crate::socket::{self, Socket, Stage};
use crate::{next, tcp};

/// How long a call waits until what was written is at the peer.
const DELIVERY: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Delivers what was written, and unless the connection is aborted, tells the peer that there is no
/// more. Whether the lane is alive.
fn deliver(socket: &Socket, generation: u64, limit: Duration, aborts: bool) -> bool {
    let start = Instant::now();
    let mut told = aborts;
    let mut pause = PAUSE;
    loop {
        {
            let mut inner = socket.lock();
            let fd = inner.fd;
            let Some(lane) = inner
                .lane
                .as_mut()
                .filter(|_| socket.generation() == generation)
            else {
                return false;
            };
            lane.cork(false);
            lane.shut();
            if lane.is_delivered(fd, &mut told) {
                return !lane.failed;
            }
        }
        socket.catch_up();
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Before the kernel closes the last descriptor of a connection.
///
/// The kernel closes a connection by RST if bytes are unread: tokens are taken away, unless the
/// program has left bytes unread too.
pub fn finish(socket: &Socket, limit: Duration) {
    if socket.stage() != Stage::Lane {
        return;
    }
    let generation = socket.generation();
    let (is_shut, aborts) = {
        let inner = socket.lock();
        let fd = inner.fd;
        let lane = inner.lane.as_ref();
        let is_shut = lane.is_some_and(|lane| lane.is_shut());
        // The kernel sends RST, and the peer must not read an end before.
        let leaves_bytes = lane.is_some_and(|lane| lane.leaves_bytes(fd));
        (is_shut, leaves_bytes || tcp::aborts_at_close(fd))
    };
    if !is_shut {
        deliver(socket, generation, limit, aborts);
    }
    let mut inner = socket.lock();
    let fd = inner.fd;
    if let Some(lane) = &mut inner.lane {
        let (sent, received) = lane.bytes();
        counters::add(Counter::Sent, sent);
        counters::add(Counter::Received, received);
        counters::add(Counter::Failed, u64::from(lane.failed && !lane.is_at_end()));
        if !lane.has_unread() {
            lane.take_all_tokens(fd);
        }
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
    if socket.is_last_descriptor() {
        finish(socket, DELIVERY);
    }
    socket::leave(fd);
}

/// Before the process ends.
pub fn finish_all() {
    let start = Instant::now();
    for socket in socket::all() {
        finish(socket, DELIVERY.saturating_sub(start.elapsed()));
    }
}

/// `shutdown(2)` of a connection.
///
/// # Safety
/// None beyond the call's own.
pub unsafe fn shutdown(socket: &Socket, fd: c_int, how: c_int) -> c_int {
    if socket.stage() == Stage::Lane {
        if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
            deliver(socket, socket.generation(), DELIVERY, false);
        }
        if (how == libc::SHUT_RD || how == libc::SHUT_RDWR)
            && let Some(lane) = &mut socket.lock().lane
        {
            lane.shut_reading();
        }
        socket.catch_up();
    }
    // SAFETY: plain integers.
    unsafe { next::shutdown(fd, how) }
}
