//! Rows of the registry: changes, and reads during changes.
//!
//! A row's owner is changed under the file lock only, by one process at a time. The owner is
//! written last and, without the lock, read first: a reader that sees an owner sees what that owner
//! entered, or something later. It is later if the row gets a new owner at this moment; the rest
//! may then be the next owner's, wholly or in part. So a read returns the state of a moment ago, or
//! sends a packet to a process that forwards or drops it; no change depends on it. A member's
//! change of its own row without the lock (closed; a probe came) is one word, and for a row that
//! may be removed meanwhile it is a compare-and-swap.
//!
//! `tests/loom` builds this file unchanged: its threads are the processes.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A word that is stored and loaded atomically.
pub(super) type Word = AtomicU64;

/// Flag in the owner of a closed listener.
const CLOSED: u32 = 1 << 31;

/// Number of the round of probes.
#[derive(Default)]
#[repr(transparent)]
pub(super) struct Rounds(Word);

impl Rounds {
    /// Starts the first round, when the file is made.
    pub(super) fn start(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Begins the next round, and returns its number.
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn is(&self, epoch: u64) -> bool {
        self.0.load(Ordering::SeqCst) == epoch
    }
}

/// Row of a process.
#[derive(Default)]
#[repr(C)]
pub(super) struct MemberRow {
    taken: AtomicU32,
    /// Whether it has a connection manager.
    manages: AtomicU32,
}

impl MemberRow {
    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed) != 0
    }

    pub(super) fn take(&self) {
        self.manages.store(0, Ordering::Relaxed);
        self.taken.store(1, Ordering::Release);
    }

    pub(super) fn give_back(&self) {
        self.taken.store(0, Ordering::Release);
    }

    pub(super) fn manage(&self) {
        self.manages.store(1, Ordering::Release);
    }

    pub(super) fn manages(&self) -> bool {
        self.manages.load(Ordering::Relaxed) != 0
    }
}

/// Row of a range of queue pair numbers.
#[derive(Default)]
#[repr(C)]
pub(super) struct RangeRow {
    /// Number of the owning member, plus one.
    owner: AtomicU32,
    _pad: AtomicU32,
    /// The clock when the range was returned; 0 if never used.
    rested: Word,
}

impl RangeRow {
    /// Owner; 0 if there is none.
    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    pub(super) fn rested(&self) -> u64 {
        self.rested.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self, owner: u32) {
        self.owner.store(owner, Ordering::Release);
    }

    pub(super) fn give_back(&self, now: u64) {
        self.rested.store(now, Ordering::Relaxed);
        self.owner.store(0, Ordering::Release);
    }
}

/// An IPv6 address, or an IPv4 address mapped to one.
#[derive(Default)]
#[repr(transparent)]
struct Address([Word; 2]);

impl Address {
    fn store(&self, bits: u128) {
        self.0[0].store((bits >> 64) as u64, Ordering::Relaxed);
        self.0[1].store(bits as u64, Ordering::Relaxed);
    }

    fn load(&self) -> u128 {
        let [high, low] =
            [&self.0[0], &self.0[1]].map(|word| u128::from(word.load(Ordering::Relaxed)));
        high << 64 | low
    }
}

/// Row of a member's socket at an address.
#[derive(Default)]
#[repr(C)]
pub(super) struct SeatRow {
    owner: AtomicU32,
    /// Socket index in the group of the address.
    place: AtomicU32,
    address: Address,
    /// The last probe: epoch, and in the low 16 bits the index that it was sent to.
    probe: Word,
}

/// Content of a socket's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) owner: u32,
    pub(super) place: u16,
    pub(super) address: u128,
}

impl SeatRow {
    /// Owner; 0 if there is none. Exact under the lock, or for the owner itself.
    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    pub(super) fn enter(&self, socket: Socket) {
        self.address.store(socket.address);
        self.set_place(socket.place);
        self.probe.store(0, Ordering::Relaxed);
        self.owner.store(socket.owner, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// Content; `None` if there is no owner.
    pub(super) fn read(&self) -> Option<Socket> {
        let owner = self.owner.load(Ordering::Acquire);
        (owner != 0).then(|| Socket {
            owner,
            place: self.place(),
            address: self.address.load(),
        })
    }

    pub(super) fn place(&self) -> u16 {
        self.place.load(Ordering::Relaxed) as u16
    }

    pub(super) fn set_place(&self, place: u16) {
        self.place.store(u32::from(place), Ordering::Relaxed);
    }

    /// Records a probe to this socket, which is the caller's; one thread of a process at a time.
    ///
    /// A probe to an index without a socket arrives at some socket too: the lowest index of a round
    /// is the right one. A probe of an earlier round is ignored.
    pub(super) fn probed(&self, rounds: &Rounds, epoch: u64, place: u16) {
        if !rounds.is(epoch) {
            return;
        }
        let said = epoch << 16 | u64::from(place);
        let before = self.probe.load(Ordering::SeqCst);
        if before >> 16 != epoch || said < before {
            self.probe.store(said, Ordering::SeqCst);
        }
    }

    /// Result of a probe of that round.
    pub(super) fn answer(&self, epoch: u64) -> Option<u16> {
        let said = self.probe.load(Ordering::SeqCst);
        (said >> 16 == epoch).then_some(said as u16)
    }
}

/// Row of a listener.
#[derive(Default)]
#[repr(C)]
pub(super) struct ListenerRow {
    /// With [`CLOSED`]: it is closed, but messages of its connections go there until another
    /// listener takes the service.
    owner: AtomicU32,
    _pad: AtomicU32,
    service: Word,
    /// The unspecified address for all addresses of a family; another one that no socket has for
    /// all addresses.
    address: Address,
}

/// Content of a listener's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) owner: u32,
    pub(super) is_closed: bool,
    pub(super) service: u64,
    pub(super) address: u128,
}

impl ListenerRow {
    /// Owner; 0 if there is none. Exact under the lock, or for the owner itself.
    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed) & !CLOSED
    }

    pub(super) fn is_closed(&self) -> bool {
        self.owner.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Enters an open listener, whatever the row had before.
    pub(super) fn enter(&self, owner: u32, service: u64, address: u128) {
        self.clear();
        self.service.store(service, Ordering::Relaxed);
        self.address.store(address);
        self.owner.store(owner, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// Content; `None` if there is no owner.
    pub(super) fn read(&self) -> Option<Listener> {
        let owner = self.owner.load(Ordering::Acquire);
        (owner != 0).then(|| Listener {
            owner: owner & !CLOSED,
            is_closed: owner & CLOSED != 0,
            service: self.service.load(Ordering::Relaxed),
            address: self.address.load(),
        })
    }

    /// Closes it if it is this listener. Without the lock, a closed row of the same owner may
    /// meanwhile be entered for another member.
    pub(super) fn close(&self, owner: u32, service: u64, address: u128) {
        let is_it = |it: Listener| (it.owner, it.service, it.address) == (owner, service, address);
        if self.read().is_some_and(is_it) {
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            // A failure means that it belongs to another member, or is closed.
            let _ = self
                .owner
                .compare_exchange(owner, owner | CLOSED, release, relaxed);
        }
    }
}
