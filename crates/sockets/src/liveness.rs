//! Whether the peer of a lane lives: the kernel's connection tells.
//!
//! A lane waits for its peer for as long as it takes: a process that is stopped goes on after days.
//! The kernel ends the connection of a process that has died; and where the peer acknowledges
//! nothing for a while, a token goes through the kernel's connection. The peer's kernel
//! acknowledges it also for a process that is stopped; that of a dead host does not, and after the
//! time that the program's options and the system's say, the connection and its lane end with the
//! kernel's error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::agent;
use crate::socket::{self, Socket, Stage};

/// Between two looks at all lanes.
const EVERY: Duration = Duration::from_millis(250);

static WATCHED: AtomicBool = AtomicBool::new(false);

/// Watches the lanes of this process from now on.
pub fn watch() {
    if WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    agent::spawn(|agent| async move {
        loop {
            agent.sleep(EVERY).await;
            if !look() {
                // The next lane is opened by this thread.
                return WATCHED.store(false, Ordering::Relaxed);
            }
        }
    });
}

/// Whether there are lanes.
fn look() -> bool {
    let mut any = false;
    for socket in socket::all().filter(|socket| has_lane(socket)) {
        any = true;
        // One whose lock is held is in use.
        let Some(mut inner) = socket.try_lock() else {
            continue;
        };
        let fd = inner.fd;
        if let Some(lane) = &mut inner.lane {
            lane.check_peer(fd);
        }
        drop(inner);
        socket.catch_up();
    }
    any
}

fn has_lane(socket: &Socket) -> bool {
    socket.stage() == Stage::Lane && !socket.is_datagram()
}

/// In a child after fork: it has no agent.
pub fn in_child() {
    WATCHED.store(false, Ordering::Relaxed);
}
