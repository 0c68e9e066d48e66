//! Waking the threads of this process that sleep until something is in one of its rings.
//!
//! A thread that sleeps says so in every ring ([`airdma_shm::SleepFlag`]); a producer that finds
//! that makes the eventfd readable, on which the thread sleeps beside the sockets. While no thread
//! sleeps, nothing is written, and a look at the rings costs no system call.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use airdma_shm::PacketWatch;

use crate::descriptors;

/// The rings of one port, as its sleeping threads see them.
pub struct Bell {
    eventfd: OwnedFd,
    sleepers: AtomicU32,
    /// The eventfd may be readable: a thread has slept since it was last read.
    may_ring: AtomicBool,
    rings: Mutex<Vec<(RingId, PacketWatch)>>,
}

/// Names a ring of this process.
pub(super) type RingId = u64;

impl Bell {
    /// A bell without rings.
    ///
    /// # Errors
    /// Those of the system (descriptors).
    pub fn new() -> io::Result<Self> {
        // SAFETY: plain integers.
        let open = || unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Ok(Bell {
            eventfd: descriptors::open(open)?,
            sleepers: AtomicU32::new(0),
            may_ring: AtomicBool::new(false),
            rings: Mutex::default(),
        })
    }

    /// A thread is about to sleep until one of the port's descriptors is ready. They are at once,
    /// if something is in a ring. [`Bell::woke`] must follow.
    pub fn will_sleep(&self) {
        let rings = self.rings();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.may_ring.store(true, Ordering::SeqCst);
        for (_, ring) in rings.iter() {
            ring.set_asleep(true);
        }
        if rings.iter().any(|(_, ring)| ring.has_packets()) {
            ring_eventfd(self.eventfd.as_fd());
        }
    }

    /// A thread sleeps no more.
    pub fn woke(&self) {
        let rings = self.rings();
        if self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            for (_, ring) in rings.iter() {
                ring.set_asleep(false);
            }
        }
    }

    /// The port is about to look at the rings. Returns whether a thread has slept since it did
    /// last.
    pub(super) fn answer(&self) -> bool {
        if !self.may_ring.load(Ordering::Relaxed) {
            return false;
        }
        self.may_ring.store(false, Ordering::SeqCst);
        if self.has_sleepers() {
            self.may_ring.store(true, Ordering::SeqCst);
        }
        let mut count = 0_u64;
        // SAFETY: room for eight bytes; the descriptor does not block.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        true
    }

    /// The port leaves something in the rings.
    pub(super) fn leave_work(&self) {
        if self.has_sleepers() {
            self.may_ring.store(true, Ordering::SeqCst);
            ring_eventfd(self.eventfd.as_fd());
        }
    }

    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    pub(super) fn add(&self, id: RingId, ring: PacketWatch) {
        let mut rings = self.rings();
        // As for the rings before: a thread that sleeps now has said so to none but those.
        ring.set_asleep(self.has_sleepers());
        rings.push((id, ring));
    }

    pub(super) fn remove(&self, id: RingId) {
        self.rings().retain(|(other, _)| *other != id);
    }

    /// The descriptor to sleep on.
    pub(super) fn fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    fn rings(&self) -> MutexGuard<'_, Vec<(RingId, PacketWatch)>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes an eventfd readable.
pub(super) fn ring_eventfd(fd: BorrowedFd<'_>) {
    let one = 1_u64;
    // SAFETY: eight bytes at `one` may be read.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Whether a write to a descriptor that another process sent neither blocks nor ends this program:
/// it belongs to no pipe, socket or file, and waits for nothing.
pub(super) fn is_bell(fd: BorrowedFd<'_>) -> bool {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: room for the struct.
    let known = unsafe { libc::fstat(fd.as_raw_fd(), about.as_mut_ptr()) } == 0;
    // SAFETY: integers, of which every value is one.
    let kind = unsafe { about.assume_init() }.st_mode & libc::S_IFMT;
    // SAFETY: plain integers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // What the kernel makes without a file has no kind.
    known && kind == 0 && flags >= 0 && flags & libc::O_NONBLOCK != 0
}
