//! Rows of the registry: how they change, and how they are read while they do.
//!
//! Whoever gives a row to somebody has the lock of the file, and so has the only one who does. A row is entered with its owner
//! last, and read, without the lock, with its owner first: who sees an owner sees what that owner entered, or something later. It
//! is later where the row is given to somebody else at this moment; then the rest may be the next one's, or half of it. So what
//! is read says what was true a moment ago, or sends a packet to a process that hands it on or drops it; nothing is changed for
//! it. What a member says of its own row without the lock (closed; a probe came) is one word, and for a row that may be taken
//! away meanwhile it is exchanged.
//!
//! `tests/loom` builds this file as it stands: its threads are the processes.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A word that can be stored and loaded whole.
pub(super) type Word = AtomicU64;

/// In the owner of a listener.
const CLOSED: u32 = 1 << 31;

/// Which round of probes it is.
#[derive(Default)]
#[repr(transparent)]
pub(super) struct Rounds(Word);

impl Rounds {
    /// The first, when the file is made.
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

/// A process.
#[derive(Default)]
#[repr(C)]
pub(super) struct MemberRow {
    taken: AtomicU32,
    /// It has a connection manager.
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

/// A range of queue pair numbers.
#[derive(Default)]
#[repr(C)]
pub(super) struct RangeRow {
    /// One more than the number of the member that has it.
    owner: AtomicU32,
    _pad: AtomicU32,
    /// What the clock said when it was given back; 0 for never used.
    rested: Word,
}

impl RangeRow {
    /// 0 for nobody.
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

/// An address, as the bits of one of IPv6.
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

/// A socket of a member at an address.
#[derive(Default)]
#[repr(C)]
pub(super) struct SeatRow {
    owner: AtomicU32,
    /// In the group of the address.
    place: AtomicU32,
    address: Address,
    /// The last probe that came: epoch, and in the low 16 bits the place it was sent to.
    probe: Word,
}

/// What a row says of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) owner: u32,
    pub(super) place: u16,
    pub(super) address: u128,
}

impl SeatRow {
    /// 0 for nobody. Under the lock, or to find one's own.
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

    /// `None` if nobody has it.
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

    /// A probe came to this socket, which is the caller's: in each process one thread at a time says so. One that was sent to a
    /// place where nobody is comes to somebody as well: the lowest of a round is the true one. One of a round that is over says
    /// nothing any more.
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

    /// What a probe of that round said.
    pub(super) fn answer(&self, epoch: u64) -> Option<u16> {
        let said = self.probe.load(Ordering::SeqCst);
        (said >> 16 == epoch).then_some(said as u16)
    }
}

/// Who listens to a service.
#[derive(Default)]
#[repr(C)]
pub(super) struct ListenerRow {
    /// With [`CLOSED`]: it is gone, but what is said about its connections goes there until somebody else wants the service.
    owner: AtomicU32,
    _pad: AtomicU32,
    service: Word,
    /// The unspecified address for all of a family, another one that no socket has for all addresses.
    address: Address,
}

/// What a row says of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) owner: u32,
    pub(super) is_closed: bool,
    pub(super) service: u64,
    pub(super) address: u128,
}

impl ListenerRow {
    /// 0 for nobody. Under the lock, or to find one's own.
    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed) & !CLOSED
    }

    pub(super) fn is_closed(&self) -> bool {
        self.owner.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Whoever had it, it is an open listener's now.
    pub(super) fn enter(&self, owner: u32, service: u64, address: u128) {
        self.clear();
        self.service.store(service, Ordering::Relaxed);
        self.address.store(address);
        self.owner.store(owner, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// `None` if nobody has it.
    pub(super) fn read(&self) -> Option<Listener> {
        let owner = self.owner.load(Ordering::Acquire);
        (owner != 0).then(|| Listener {
            owner: owner & !CLOSED,
            is_closed: owner & CLOSED != 0,
            service: self.service.load(Ordering::Relaxed),
            address: self.address.load(),
        })
    }

    /// Closes it if it is this one. Without the lock: a closed row of the same owner may be entered for somebody else meanwhile.
    pub(super) fn close(&self, owner: u32, service: u64, address: u128) {
        let is_it = |it: Listener| (it.owner, it.service, it.address) == (owner, service, address);
        if self.read().is_some_and(is_it) {
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            // It is another's, or closed, if this fails.
            let _ = self
                .owner
                .compare_exchange(owner, owner | CLOSED, release, relaxed);
        }
    }
}
