//! Whether a thread is inside the shim.
//!
//! The engine calls the C library through the same symbols as the program, which are this
//! library's. A thread inside passes through its hooks, and its descriptors are the shim's own. A
//! signal handler that interrupts such a thread is inside too: on a lane its calls are answered
//! with `EINTR`, since the lane's lock may be held.

use std::cell::{Cell, RefCell};
use std::ptr;

use crate::socket::Socket;

/// Where a thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the program.
    Program,
    /// In a call of the shim.
    Inside,
    /// In the engine, as a thread that the shim started.
    Engine,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Program) };
    /// Sockets whose lanes were woken while the thread was inside.
    static LATER: RefCell<Vec<&'static Socket>> = const { RefCell::new(Vec::new()) };
}

fn place() -> Place {
    PLACE.try_with(Cell::get).unwrap_or(Place::Engine)
}

/// Whether the calling thread is inside. A thread that ends counts as inside.
#[inline]
pub fn is_inside() -> bool {
    place() != Place::Program
}

/// A number of the calling thread, as long as it lives; 0 for one that ends.
pub fn thread() -> usize {
    PLACE
        .try_with(|place| ptr::from_ref(place).addr())
        .unwrap_or(0)
}

/// The calling thread is the shim's own.
pub fn is_own_thread() {
    // A thread that ends has no mark.
    let _ = PLACE.try_with(|place| place.set(Place::Engine));
}

/// The calling thread is the program's, in a child after fork.
pub fn is_program() {
    // As above.
    let _ = PLACE.try_with(|place| place.set(Place::Program));
}

/// Until dropped, the thread is inside.
pub struct Inside {
    before: Place,
}

impl Inside {
    /// Enters.
    pub fn enter() -> Inside {
        let before = PLACE.try_with(|place| place.replace(Place::Inside));
        Inside {
            before: before.unwrap_or(Place::Inside),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.before == Place::Inside {
            return;
        }
        let next = || {
            let next = LATER.try_with(|later| later.try_borrow_mut().ok()?.pop());
            next.ok().flatten()
        };
        // What is woken below is added behind.
        while let Some(socket) = next() {
            socket.catch_up();
        }
        // A thread that ends has no mark.
        let _ = PLACE.try_with(|place| place.set(self.before));
    }
}

/// Calls [`Socket::catch_up`] when the thread leaves the shim; at once, if it is not inside.
pub fn catch_up_later(socket: &'static Socket) {
    if place() != Place::Inside {
        let _inside = Inside::enter();
        socket.catch_up();
        return;
    }
    let kept = LATER.try_with(|later| {
        later.try_borrow_mut().map(|mut later| {
            if !later.iter().any(|known| std::ptr::eq(*known, socket)) {
                later.push(socket);
            }
        })
    });
    // A thread that ends: the next call on the socket finds the mark.
    drop(kept);
}
