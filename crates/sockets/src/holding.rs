//! Calls that wait in a connection while another thread closes its last descriptor.
//!
//! In the kernel such a call keeps the connection: it returns what arrives, and then the connection
//! ends. A call of the shim waits and looks again, when the number may be another file's: so a
//! close leaves it a descriptor of its own.

use std::ffi::c_int;
use std::ptr;

use crate::inside::Inside;
use crate::socket::{self, Socket};
use crate::{closing, descriptors, next};

/// A call that waits.
pub struct Holder {
    socket: &'static Socket,
    generation: u64,
}

impl Holder {
    /// Registers a call; `None` if the descriptor is closed already.
    pub fn of(socket: &'static Socket, fd: c_int) -> Option<Holder> {
        let _inside = Inside::enter();
        let mut inner = socket.lock();
        let is_open = leads_to(fd, socket);
        inner.waiting += u32::from(is_open);
        drop(inner);
        socket.catch_up();
        let generation = socket.generation();
        is_open.then_some(Holder { socket, generation })
    }

    /// The descriptor by which the call, which began with `fd`, goes on.
    pub fn descriptor(&self, fd: c_int) -> c_int {
        let _inside = Inside::enter();
        if leads_to(fd, self.socket) {
            return fd;
        }
        let inner = self.socket.lock();
        let is_it = self.socket.generation() == self.generation;
        // Another one, if that one alone is closed: the number may be another file's.
        let other = inner.kept.unwrap_or(inner.fd);
        drop(inner);
        self.socket.catch_up();
        if is_it { other } else { -1 }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _inside = Inside::enter();
        let mut inner = self.socket.lock();
        if self.socket.generation() != self.generation {
            drop(inner);
            return self.socket.catch_up();
        }
        inner.waiting = inner.waiting.saturating_sub(1);
        let kept = if inner.waiting == 0 {
            inner.kept.take()
        } else {
            None
        };
        drop(inner);
        self.socket.catch_up();
        if let Some(kept) = kept {
            closing::before_close(kept);
            descriptors::unmark(kept);
            // SAFETY: a descriptor of the shim.
            unsafe { next::close(kept) };
        }
    }
}

fn leads_to(fd: c_int, socket: &Socket) -> bool {
    socket::of(fd).is_some_and(|now| ptr::eq(now, socket))
}

/// Before the last descriptor is closed: whether calls wait, and keep the connection.
pub fn is_kept(socket: &'static Socket, fd: c_int) -> bool {
    let mut inner = socket.lock();
    let kept = if inner.waiting > 0 && inner.kept.is_none() {
        // SAFETY: plain integers.
        unsafe { next::fcntl(fd, libc::F_DUPFD_CLOEXEC, descriptors::lowest()) }
    } else {
        -1
    };
    if kept >= 0 {
        inner.kept = Some(descriptors::mark(kept));
    }
    drop(inner);
    socket.catch_up();
    if kept >= 0 {
        socket::duplicate(fd, kept);
    }
    kept >= 0
}
