//! Datagrams: a program's calls on a UDP socket, with `airdma sockets --udp`.
//!
//! A datagram that fits a frame goes by the kernel. A longer one, which the kernel would cut into
//! IP fragments, goes by a *lane* where the receiver has the library too: its payload by an RDMA
//! connection, and in its place the kernel's socket sends a [*note*](words::Note), a datagram of 32
//! bytes between the same addresses. So order, readiness, the sender's address, what is beside the
//! data, errors and the choice of the receiving socket are the kernel's. A read that gets a note
//! returns the payload. Any datagram can go by the kernel at any time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use airdma::{Operation, Result};
use airdma_preload::errno;
use libc::iovec;

use crate::inside::Inside;
use crate::socket::{Socket, Stage};
use receiving::Receiving;
use sending::Sending;

mod opening;
pub mod options;
pub mod reading;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;
mod words;
pub mod writing;

/// The variable that turns it on.
const UDP: &str = "AIRDMA_SOCKETS_UDP";
/// Longest datagram of IPv4.
const LONGEST: usize = 65_507;
/// Length of a buffer of the longest, with its header.
const BUFFER_BYTES: usize = 1 << 16;
/// A datagram beyond that is long: more than a frame of Ethernet.
const FRAME: usize = 1472;
/// Datagrams of a lane that the program need not have read.
const WINDOW: usize = 16;
/// Long datagrams before a lane is tried.
const TRY_AT: u32 = 8;
/// Most addresses of which a socket counts the long datagrams that it sends, and most lanes from
/// peers.
const WAYS_MAX: usize = 64;
const RECEIVING_MAX: usize = 16;
/// How long what is on the way may take at the end.
const FLUSHED_WITHIN: Duration = Duration::from_millis(200);
/// How long a wait runs the device before it sleeps, and how long it sleeps.
const SPIN: Duration = Duration::from_micros(100);
const PAUSE: Duration = Duration::from_micros(20);

/// What a socket has of lanes.
#[derive(Default)]
pub struct Datagrams {
    ways: Vec<Way>,
    /// By the numbers in notes.
    receiving: Vec<(u64, Arc<Mutex<Receiving>>)>,
}

/// An address that gets long datagrams.
pub struct Way {
    to: SocketAddr,
    /// How many the kernel has sent, and at which number a lane is tried next.
    sent: u32,
    try_at: u32,
    /// The longest of them: the kernel takes what is no longer.
    longest: usize,
    is_trying: bool,
    lane: Option<Sending>,
}

impl Datagrams {
    fn way(&mut self, to: SocketAddr) -> Option<&mut Way> {
        self.ways.iter_mut().find(|way| way.to == to)
    }

    /// Adds a lane from a peer; whether there is room.
    fn receives(&mut self, number: u64, lane: &Arc<Mutex<Receiving>>) -> bool {
        let is_over =
            |lane: &Mutex<Receiving>| lane.try_lock().is_ok_and(|mut lane| lane.is_over());
        self.receiving.retain(|(_, lane)| !is_over(lane));
        let has_room = self.receiving.len() < RECEIVING_MAX;
        if has_room {
            self.receiving.push((number, Arc::clone(lane)));
        }
        has_room
    }

    /// The kernel has sent a long datagram; whether a lane should be tried.
    fn count(&mut self, to: SocketAddr, length: usize) -> bool {
        if self.way(to).is_none() && self.ways.len() < WAYS_MAX {
            self.ways.push(Way {
                to,
                sent: 0,
                try_at: TRY_AT,
                longest: 0,
                is_trying: false,
                lane: None,
            });
        }
        let Some(way) = self.way(to) else {
            return false;
        };
        way.longest = way.longest.max(length);
        way.sent = way.sent.saturating_add(1);
        let begins = way.sent >= way.try_at && !way.is_trying && way.lane.is_none();
        if begins {
            way.is_trying = true;
            way.try_at = way.sent.saturating_mul(2);
        }
        begins
    }

    /// The socket's buffers have another length.
    fn forget_lengths(&mut self) {
        for way in &mut self.ways {
            way.longest = 0;
        }
    }
}

/// Whether UDP sockets of this process may have lanes.
pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os(UDP).is_some_and(|value| value == "1"))
}

/// Whether a socket may have lanes still.
fn is_open(socket: &Socket, generation: u64) -> bool {
    socket.generation() == generation && matches!(socket.stage(), Stage::Candidate | Stage::Lane)
}

fn total(parts: &[iovec]) -> usize {
    parts.iter().map(|part| part.iov_len).sum()
}

/// The kernel's socket is needed: it is closed, or another process may read it. From then on all
/// datagrams go by the kernel. Where notes may be in its queue, they are dropped by reads.
pub fn hand_back(socket: &'static Socket) {
    if !socket.step(Stage::Candidate, Stage::Kernel) && !socket.step(Stage::Lane, Stage::Lost) {
        return;
    }
    let before = errno::current();
    let _inside = Inside::enter();
    // A signal handler may have interrupted the thread that has it.
    if let Ok(mut datagrams) = socket.datagrams.try_lock() {
        let has = std::mem::take(&mut *datagrams);
        drop(datagrams);
        let deadline = Instant::now() + FLUSHED_WITHIN;
        for mut lane in has.ways.into_iter().filter_map(|way| way.lane) {
            lane.flush(deadline);
        }
    }
    errno::set(before);
}

/// Waits for an operation, which runs the device for a while. It takes no descriptor of the thread,
/// as longer waits of the north API do.
fn wait<T>(operation: &mut Operation<T>, deadline: Instant) -> Option<Result<T>> {
    let start = Instant::now();
    loop {
        let done = operation.wait_timeout(Duration::ZERO);
        let now = Instant::now();
        if done.is_some() || now >= deadline {
            return done;
        }
        if now.duration_since(start) > SPIN {
            std::thread::sleep(PAUSE);
        } else {
            // The device's thread may wait for this core.
            std::thread::yield_now();
        }
    }
}
