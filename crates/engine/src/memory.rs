//! Registered memory: the table of regions and windows, and the only copies between packets and the
//! application's memory.
//!
//! All 32 bits of a key are drawn from the kernel's random numbers at each registration, so a peer
//! that holds some keys knows nothing of the others: with n keys in use a guess opens one of them
//! in n of 2^32 tries. The low 8 bits of a window's key are the application's to choose at each
//! bind (IBTA 10.6.7.2.2), so the bits above them find the row: the table has a power of two of
//! rows, at least twice as many as are used, and a key is drawn again while the row that its bits
//! lead to is taken. The bits above the low 8 are never all 0, so neither is a key.
//!
//! The application reads and writes its memory while we copy. So no reference to it is ever formed:
//! every access is a copy through raw pointers, or an atomic.
//!
//! Memory registered on demand may come and go meanwhile: those copies are the kernel's
//! (`process_vm_readv(2)`), which finds a hole where a copy of ours would end in a fault. So are
//! those of memory of files, which can be cut ([`files`]). Other memory that a program unmaps while
//! it is registered is found by a handler of faults ([`faults`]).

pub(crate) mod faults;
pub(crate) mod files;
pub(crate) mod foreign;
mod on_demand;
pub(crate) mod populate;
mod records;
mod windows;

use self::faults::Copying;
use self::foreign::Homes;
pub(crate) use self::records::GroupKey;
use self::records::GroupKeys;
use crate::index::{PdIndex, Serial, client_of};
use crate::random::Random;
use crate::{Access, Error, LIMITS};
use airdma_port::CopySum;
use airdma_shm::Sge;
use airdma_transport::{AtomicOperation, LocalFault, RemoteAccess, RemoteFault, Spread};
use airdma_wire::{ICRC_LEN, Neighbour};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::{mem, ptr};

/// The bits of a key that a bind may choose.
const CHOSEN_BITS: u32 = 8;
const CHOSEN_MASK: u32 = (1 << CHOSEN_BITS) - 1;

/// Rows of the first table.
const ROWS_MIN: usize = 64;

/// Keys drawn until one leads to a free row. Half of the rows are free, so all are in vain once in
/// 2^64 registrations.
const DRAWS_MAX: u32 = 64;

/// Rights that mean something here; the others of [`Access`] are hints, or await later steps.
const ACCESS_KNOWN: Access = Access::all();

/// The regions of one device.
#[derive(Default)]
pub(crate) struct MemoryTable {
    /// None, or a power of two of them: see [`MemoryTable::row`].
    rows: Vec<Region>,
    /// Rows that are not free.
    used: usize,
    random: Random,
    copying: Copying,
    /// Regions for records to groups, by their keys there.
    groups: GroupKeys,
    /// Memory of clients of a daemon.
    homes: Homes,
}

/// A row of the table. `key` 0 marks a free one.
#[derive(Clone, Copy)]
struct Region {
    key: u32,
    pd: PdIndex,
    access: Access,
    address: usize,
    iova: u64,
    length: u64,
    backing: Backing,
    kind: Kind,
}

/// How bytes get there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backing {
    /// Memory that stays mapped.
    Mapped,
    /// Memory that may come and go: registered so, or of a file that can be cut.
    OnDemand,
    /// None: reads give zeros, writes vanish.
    Null,
    /// Memory of a client of this daemon.
    Foreign,
}

#[derive(Clone, Copy)]
enum Kind {
    Region {
        /// Windows that are bound in it.
        windows: u32,
    },
    /// Peers write records to it, and do nothing else: it has no right of theirs.
    Records {
        /// The only host that may.
        source: Option<Neighbour>,
    },
    /// As [`Kind::Records`], for messages to a multicast group, which name it otherwise: its key
    /// opens it for the application's own requests alone.
    GroupRecords {
        /// The only host that may.
        source: Option<Neighbour>,
    },
    /// Peers read it by datagrams, and do nothing else.
    RecordReads {
        /// The only host that may.
        source: Option<Neighbour>,
    },
    /// Opens nothing until it is bound.
    Window {
        type_two: bool,
        /// Key of the region it is bound in.
        region: Option<u32>,
        /// Serial number of the queue pair that bound it, for windows of type 2: only that one's
        /// peer may use it.
        qp: Serial,
    },
}

/// What a rereg call changes (`ibv_rereg_mr(3)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionChange {
    /// Other memory: address and length. Its remote addresses are its own.
    pub translation: Option<(u64, usize)>,
    /// Other rights.
    pub access: Option<Access>,
}

/// Key, protection domain, bounds or rights do not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl From<Refused> for LocalFault {
    fn from(_: Refused) -> LocalFault {
        LocalFault
    }
}

impl From<Refused> for RemoteFault {
    fn from(_: Refused) -> RemoteFault {
        RemoteFault::Access
    }
}

/// The sums of a run of packets, which are made with the copies of their payloads.
#[derive(Default)]
pub(crate) struct RunSums {
    /// What makes them; `None` if they are not wanted.
    pub(crate) by: Option<CopySum>,
    /// Whether the sum of each packet of the last run stands behind it.
    pub(crate) are_done: bool,
}

/// A stretch of memory to find: key and address in its region, for a protection domain.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) pd: PdIndex,
    pub(crate) key: u32,
    pub(crate) va: u64,
    /// Serial number of the queue pair whose peer asks; [`OURSELVES`] for the application's own
    /// requests.
    pub(crate) qp: Serial,
}

/// No queue pair's serial number.
pub(crate) const OURSELVES: Serial = 0;

impl MemoryTable {
    pub(crate) fn new(random: Random) -> Self {
        MemoryTable {
            random,
            ..MemoryTable::default()
        }
    }

    /// How many regions and windows there are.
    pub(crate) fn count(&self) -> usize {
        self.used
    }

    /// Registers memory and returns its key. The caller vouches that it stays mapped.
    pub(crate) fn register(
        &mut self,
        pd: PdIndex,
        address: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<u32, Error> {
        let region = Region::checked(pd, address, length, iova, access)?;
        self.insert(region)
    }

    /// The memory of a region may be gone at any time.
    pub(crate) fn may_go(&mut self, key: u32) {
        if let Some(region) = self.at_mut(key)
            && region.backing == Backing::Mapped
        {
            region.backing = Backing::OnDemand;
        }
    }

    /// Registers nothing: a region of any address that reads as zeros and swallows what is written
    /// (`ibv_alloc_null_mr(3)`).
    pub(crate) fn register_null(&mut self, pd: PdIndex) -> Result<u32, Error> {
        self.insert(Region {
            length: u64::MAX,
            access: Access::LOCAL_WRITE,
            backing: Backing::Null,
            ..Region::empty(pd)
        })
    }

    /// Registers no bytes, of device memory.
    pub(crate) fn register_empty(&mut self, pd: PdIndex) -> Result<u32, Error> {
        self.insert(Region::empty(pd))
    }

    /// Takes a free row, and gives it a new key.
    fn insert(&mut self, region: Region) -> Result<u32, Error> {
        let full = Error::NoMemory("no more memory regions: see max_mr of the device");
        if self.used >= LIMITS.max_mr as usize {
            return Err(full);
        }
        if 2 * (self.used + 1) > self.rows.len() {
            self.grow();
        }
        for _ in 0..DRAWS_MAX {
            let key = self.random.next_u32();
            let row = self.row(key);
            if key >> CHOSEN_BITS != 0 && self.rows[row].key == 0 {
                self.rows[row] = Region { key, ..region };
                self.used += 1;
                return Ok(key);
            }
        }
        Err(full)
    }

    /// Doubles the rows. No two keys that led to different rows lead to the same one afterwards.
    fn grow(&mut self) {
        let count = ROWS_MIN.max(2 * self.rows.len());
        let before = mem::replace(&mut self.rows, vec![Region::empty(PdIndex::NONE); count]);
        for region in before.into_iter().filter(|region| region.key != 0) {
            let row = self.row(region.key);
            self.rows[row] = region;
        }
    }

    /// The only row that can have this key; beyond the table while that has none.
    #[inline]
    fn row(&self, key: u32) -> usize {
        (key >> CHOSEN_BITS) as usize & self.rows.len().wrapping_sub(1)
    }

    /// The region or window that has this key now.
    #[inline]
    fn at(&self, key: u32) -> Option<&Region> {
        let region = self.rows.get(self.row(key))?;
        (region.key == key && key != 0).then_some(region)
    }

    /// As [`MemoryTable::at`], to be changed.
    fn at_mut(&mut self, key: u32) -> Option<&mut Region> {
        let row = self.row(key);
        let region = self.rows.get_mut(row)?;
        (region.key == key && key != 0).then_some(region)
    }

    /// Forgets a region; its key opens nothing from now on.
    ///
    /// # Errors
    /// `EBUSY` while windows are bound in it (IBTA 11.2.8.7).
    pub(crate) fn deregister(&mut self, key: u32) -> Result<(), Error> {
        if let Some(region) = self.at_mut(key) {
            region.check_no_windows()?;
            let is_of_group = matches!(region.kind, Kind::GroupRecords { .. });
            *region = Region::empty(PdIndex::NONE);
            self.used -= 1;
            if is_of_group {
                self.groups.remove(key);
            }
        }
        Ok(())
    }

    /// Changes a region; the key stays. Nothing is changed on error.
    ///
    /// # Errors
    /// `EBUSY` while windows are bound in it; otherwise as [`MemoryTable::register`].
    pub(crate) fn reregister(
        &mut self,
        key: u32,
        pd: PdIndex,
        change: &RegionChange,
    ) -> Result<(), Error> {
        let gone = Error::Gone("the memory region");
        let Some(region) = self.at_mut(key) else {
            return Err(gone);
        };
        if region.backing == Backing::Null {
            return Err(gone);
        }
        if matches!(
            region.kind,
            Kind::Records { .. } | Kind::GroupRecords { .. } | Kind::RecordReads { .. }
        ) {
            return Err(Error::Invalid("a memory region for records stays as it is"));
        }
        region.check_no_windows()?;
        let access = change.access.unwrap_or(region.access);
        let (address, length, iova) = match change.translation {
            Some((address, length)) => (address, length, address),
            None => (region.address as u64, region.length as usize, region.iova),
        };
        let changed = Region::checked(pd, address, length, iova, access)?;
        *region = Region { key, ..changed };
        Ok(())
    }

    /// Where `length` bytes of a region of the application's own lie in its address space; `None`
    /// if it has no such part.
    pub(crate) fn address_of(
        &self,
        pd: PdIndex,
        key: u32,
        va: u64,
        length: u32,
        right: Access,
    ) -> Option<u64> {
        let place = Place {
            pd,
            key,
            va,
            qp: OURSELVES,
        };
        let (at, _) = self.find(place, u64::from(length), right).ok()?;
        Some(at.addr() as u64)
    }

    /// From where to where in its address space an element of a list of the application's own
    /// leads; nowhere if it has no bytes, or those of a null region.
    pub(crate) fn span(&self, pd: PdIndex, sge: &Sge) -> Result<Option<(u64, u64)>, Refused> {
        let place = Place {
            pd,
            key: sge.lkey,
            va: sge.addr,
            qp: OURSELVES,
        };
        let length = u64::from(sge.length);
        if length == 0 {
            return Ok(None);
        }
        Ok(match self.find(place, length, Access::empty())? {
            (_, Backing::Null) => None,
            (at, Backing::Mapped | Backing::OnDemand | Backing::Foreign) => {
                let start = at.addr() as u64;
                Some((start, start.saturating_add(length)))
            }
        })
    }

    /// Copies registered memory out. Only the application's own requests may read without a right
    /// to.
    #[inline(always)] // for each packet of a READ response
    pub(crate) fn read(&self, place: Place, right: Access, out: &mut [u8]) -> Result<(), Refused> {
        if out.is_empty() {
            return Ok(());
        }
        let (from, backing) = self.find(place, out.len() as u64, right)?;
        if backing != Backing::Mapped {
            return self.read_otherwise(place.pd, (from, backing), out);
        }
        self.copying.guard(from, out.len(), || {
            // SAFETY: `find` placed `out.len()` bytes at `from` inside a region that is registered
            // until `deregister`, which needs the same exclusive access to this table that the
            // caller's worker has; where its owner has unmapped it, `guard` lends memory. `out` is
            // a buffer of ours outside any region. The application may write meanwhile: it gets
            // the bytes it deserves.
            unsafe { ptr::copy_nonoverlapping(from.cast_const(), out.as_mut_ptr(), out.len()) };
        })
    }

    /// As [`MemoryTable::read`], of memory that this thread cannot just copy.
    #[cold]
    #[inline(never)]
    fn read_otherwise(
        &self,
        pd: PdIndex,
        (from, backing): (*mut u8, Backing),
        out: &mut [u8],
    ) -> Result<(), Refused> {
        match backing {
            Backing::Mapped | Backing::OnDemand => self
                .copying
                .guard(from, out.len(), || on_demand::read(from, out))?,
            Backing::Null => {
                out.fill(0);
                Ok(())
            }
            Backing::Foreign => self.home(pd)?.read(from, out),
        }
    }

    /// Copies what lies together out to the parts of `spread`, with one look at key and bounds.
    /// With `sums`, tries to sum the packets that end with the parts at the same time, and notes
    /// whether all are.
    pub(crate) fn read_run(
        &self,
        place: Place,
        right: Access,
        out: &mut [u8],
        spread: Spread,
        sums: &mut RunSums,
    ) -> Result<(), Refused> {
        let (from, backing) = self.find(place, spread.bytes() as u64, right)?;
        if backing != Backing::Mapped {
            return match backing {
                Backing::Foreign => self.home(place.pd)?.read_spread(from, out, spread),
                Backing::Mapped | Backing::OnDemand | Backing::Null => {
                    self.read_parts(place, right, out, spread)
                }
            };
        }
        let copy = || copy_run(from, out, spread, sums);
        self.copying.guard(from, spread.bytes(), copy)
    }

    #[cold]
    fn read_parts(
        &self,
        place: Place,
        right: Access,
        out: &mut [u8],
        spread: Spread,
    ) -> Result<(), Refused> {
        spread.fill(out, |before, part| {
            let va = place.va.wrapping_add(before as u64);
            self.read(Place { va, ..place }, right, part)
        })
    }

    /// Copies into registered memory.
    #[inline(always)] // for each packet of a WRITE
    pub(crate) fn write(&self, place: Place, right: Access, data: &[u8]) -> Result<(), Refused> {
        if data.is_empty() {
            return Ok(());
        }
        let (to, backing) = self.find(place, data.len() as u64, right)?;
        if backing != Backing::Mapped {
            return self.write_otherwise(place.pd, (to, backing), data);
        }
        // What is written to memory that the program has unmapped is lost, as with a NIC.
        let written = self.copying.guard(to, data.len(), || {
            // SAFETY: as in `read`; the region was registered for writing, which `right` demanded.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        });
        written.or(Ok(()))
    }

    /// As [`MemoryTable::write`], to memory that this thread cannot just copy to.
    #[cold]
    #[inline(never)]
    fn write_otherwise(
        &self,
        pd: PdIndex,
        (to, backing): (*mut u8, Backing),
        data: &[u8],
    ) -> Result<(), Refused> {
        match backing {
            Backing::Mapped | Backing::OnDemand => self
                .copying
                .guard(to, data.len(), || on_demand::write(to, data))?,
            Backing::Null => Ok(()),
            Backing::Foreign => self.home(pd)?.write(to, data),
        }
    }

    /// As [`write`](Self::write), for the end of a message: if its last eight bytes are a word at a
    /// multiple of 8, that is stored at once, after all other bytes.
    ///
    /// A copy of bytes has no order that other threads could rely on: the C library's begins with
    /// the last ones, for some lengths.
    #[inline]
    pub(crate) fn write_last(
        &self,
        place: Place,
        right: Access,
        data: &[u8],
    ) -> Result<(), Refused> {
        let Some((before, word)) = data.split_last_chunk::<8>() else {
            return self.write(place, right, data);
        };
        let (to, backing) = self.find(place, data.len() as u64, right)?;
        // In bounds, as `find` checked.
        let at = to.wrapping_add(before.len());
        if backing != Backing::Mapped || !at.addr().is_multiple_of(8) {
            return self.write_last_otherwise(place, (to, backing), data);
        }
        let written = self.copying.guard(to, data.len(), || {
            // SAFETY: as in `write`; the check above aligned the word. A program's accesses that
            // are not atomic race with the store, as with an RDMA NIC's.
            unsafe {
                ptr::copy_nonoverlapping(before.as_ptr(), to, before.len());
                let word = u64::from_ne_bytes(*word);
                AtomicU64::from_ptr(at.cast()).store(word, Ordering::Release);
            }
        });
        written.or(Ok(()))
    }

    /// As [`MemoryTable::write_last`], where the last bytes are no word, or to memory that this
    /// thread cannot just copy to.
    #[cold]
    #[inline(never)]
    fn write_last_otherwise(
        &self,
        place: Place,
        (to, backing): (*mut u8, Backing),
        data: &[u8],
    ) -> Result<(), Refused> {
        match (backing, data.split_last_chunk::<8>()) {
            (Backing::Foreign, Some((before, word))) => {
                let home = self.home(place.pd)?;
                home.write(to, before)?;
                home.write(to.wrapping_add(before.len()), word)
            }
            (Backing::Mapped, _) => {
                let written = self.copying.guard(to, data.len(), || {
                    // SAFETY: as in `write`: `find` has placed all bytes of `data` at `to`.
                    unsafe { ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
                });
                written.or(Ok(()))
            }
            (Backing::OnDemand | Backing::Null | Backing::Foreign, _) => {
                self.write_otherwise(place.pd, (to, backing), data)
            }
        }
    }

    /// Whether a peer may access `length` bytes. A length of zero touches nothing, and its key is
    /// not looked at (IBTA 9.7.5.2.4, C9-88).
    pub(crate) fn check(
        &self,
        place: Place,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault> {
        match access {
            RemoteAccess::Flush { needs, whole } => self.flush(place, length, needs, whole)?,
            _ if length == 0 => {}
            RemoteAccess::Read | RemoteAccess::Write | RemoteAccess::Atomic => {
                self.find(place, u64::from(length), remote_right(access))?;
            }
        }
        Ok(())
    }

    /// A FLUSH of a peer: what it wrote to a part of a region, or to the `whole`, is seen by all
    /// threads of the host from now on.
    #[cold]
    fn flush(&self, place: Place, length: u32, needs: Access, whole: bool) -> Result<(), Refused> {
        let region = self.at(place.key).ok_or(Refused)?;
        let (va, length) = if whole {
            (region.iova, 0)
        } else {
            (place.va, u64::from(length))
        };
        self.find(Place { va, ..place }, length, needs)?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Stores eight bytes of a peer at once.
    pub(crate) fn write_atomic(&self, place: Place, data: [u8; 8]) -> Result<(), RemoteFault> {
        let data = u64::from_ne_bytes(data);
        let store = |value: &AtomicU64| value.store(data, Ordering::SeqCst);
        self.on_word(place, Access::REMOTE_WRITE, store)
    }

    /// Runs a peer's atomic on eight bytes, and returns what they held.
    pub(crate) fn atomic(
        &self,
        place: Place,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault> {
        let right = remote_right(RemoteAccess::Atomic);
        self.on_word(place, right, |value| match operation {
            AtomicOperation::FetchAdd { add } => value.fetch_add(add, Ordering::SeqCst),
            AtomicOperation::CompareSwap { compare, swap } => {
                match value.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(original) | Err(original) => original,
                }
            }
        })
    }

    /// Calls `call` on the eight bytes that a peer's atomic works on.
    fn on_word<R>(
        &self,
        place: Place,
        right: Access,
        call: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, RemoteFault> {
        let (at, backing) = self.find(place, 8, right)?;
        if !place.va.is_multiple_of(8) || !at.addr().is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        match backing {
            Backing::Mapped => {}
            Backing::OnDemand => on_demand::bring(at, 8)?,
            Backing::Null => return Err(RemoteFault::Access),
            Backing::Foreign => return Ok(self.on_foreign_word(place.pd, at, call)?),
        }
        let result = self.copying.guard(at, 8, || {
            // SAFETY: `find` placed eight bytes at `at` inside a region registered for this access,
            // the check above aligned them, and `guard` lends memory where they are not mapped.
            // Accesses of the application that are not atomic race with this one, as they do with
            // an RDMA NIC's.
            call(unsafe { AtomicU64::from_ptr(at.cast()) })
        });
        Ok(result?)
    }

    /// The first byte of `length` bytes, if the key, its domain, the bounds and the right allow
    /// them.
    fn find(
        &self,
        place: Place,
        length: u64,
        right: Access,
    ) -> Result<(*mut u8, Backing), Refused> {
        let Some(region) = self.at(place.key) else {
            return flushed(place, length, right);
        };
        if region.pd != place.pd || !region.access.contains(right) {
            return Err(Refused);
        }
        if let Kind::Window { type_two, qp, .. } = region.kind
            && (place.qp == OURSELVES || (type_two && place.qp != qp))
        {
            return Err(Refused);
        }
        let offset = place.va.checked_sub(region.iova).ok_or(Refused)?;
        let end = offset.checked_add(length).ok_or(Refused)?;
        if end > region.length {
            return Err(Refused);
        }
        // In bounds, so the sum cannot wrap: registration checked address + length.
        let at = region.address.wrapping_add(offset as usize);
        Ok((ptr::with_exposed_provenance_mut(at), region.backing))
    }
}

/// Copies bytes that lie together at `from` to the parts of `spread`, and sums packets if it can.
///
/// The caller found them, and guards them.
fn copy_run(from: *mut u8, out: &mut [u8], spread: Spread, sums: &mut RunSums) {
    if let Some(by) = sums.by {
        let mut packets = spread.packets(out, ICRC_LEN).enumerate();
        sums.are_done = packets.all(|(index, packet)| {
            // SAFETY: as in `read`; `find` placed the bytes of all parts together at `from`.
            unsafe {
                let from = from.add(index * spread.len).cast_const();
                by.copy(from, packet, spread.start)
            }
        });
        if sums.are_done {
            return;
        }
    }
    let filled: Result<(), Refused> = spread.fill(out, |before, part| {
        // SAFETY: as above.
        unsafe {
            let from = from.add(before).cast_const();
            ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len());
        }
        Ok(())
    });
    debug_assert!(filled.is_ok());
}

impl Region {
    /// A region of no bytes.
    fn empty(pd: PdIndex) -> Region {
        Region {
            key: 0,
            pd,
            access: Access::empty(),
            address: 0,
            iova: 0,
            length: 0,
            backing: Backing::Mapped,
            kind: Kind::Region { windows: 0 },
        }
    }

    fn check_no_windows(&self) -> Result<(), Error> {
        match self.kind {
            Kind::Region { windows: 0 } => Ok(()),
            Kind::Region { .. } => Err(Error::Busy("a memory region in which windows are bound")),
            Kind::Records { .. } | Kind::GroupRecords { .. } | Kind::RecordReads { .. } => Ok(()),
            Kind::Window { .. } => Err(Error::Gone("the memory region")),
        }
    }

    fn checked(
        pd: PdIndex,
        address: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Region, Error> {
        if !ACCESS_KNOWN.contains(access) {
            return Err(Error::Invalid("unknown access flag"));
        }
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(Error::Invalid(
                "flushing to persistent memory: the memory is not known to be persistent",
            ));
        }
        if access.intersects(REMOTE_WRITES) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::Invalid(
                "remote write and atomic access need local write access, ibv_reg_mr(3)",
            ));
        }
        let is_foreign = client_of(pd.serial()) != 0;
        let backing = match access.contains(Access::ON_DEMAND) {
            _ if is_foreign => Backing::Foreign,
            true => Backing::OnDemand,
            false => Backing::Mapped,
        };
        if is_everything(address, length, access) {
            return Ok(Region {
                access,
                length: u64::MAX,
                backing,
                ..Region::empty(pd)
            });
        }
        if length == 0 || length as u64 > LIMITS.max_mr_size {
            return Err(Error::Invalid(
                "a memory region has 1 byte to max_mr_size bytes",
            ));
        }
        let length = length as u64;
        if address.checked_add(length).is_none() || usize::try_from(address).is_err() {
            return Err(Error::Invalid(
                "the memory wraps around the end of the address space",
            ));
        }
        let iova = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            iova
        };
        if iova.checked_add(length - 1).is_none() {
            return Err(Error::Invalid("the remote addresses wrap around"));
        }
        Ok(Region {
            access,
            address: address as usize,
            iova,
            length,
            backing,
            ..Region::empty(pd)
        })
    }
}

/// Result of a READ by which a peer flushes its writes (UCX's `UCT_FLUSH_FLAG_REMOTE`): zeros.
///
/// Without a key for that, UCX 1.23 uses an invalid key, and hangs if the answer is an error, as
/// that of all hardware but one vendor's is. No region can have that key, and the zeros are in no
/// program's memory.
#[cold]
fn flushed(place: Place, length: u64, right: Access) -> Result<(*mut u8, Backing), Refused> {
    let is_flush = place.key == NO_FLUSH_KEY && place.va == 0 && length <= FLUSH_LENGTH_MAX;
    if is_flush && place.qp != OURSELVES && right == Access::REMOTE_READ {
        Ok((ptr::null_mut(), Backing::Null))
    } else {
        Err(Refused)
    }
}

/// UCX's word for no key (`UCT_IB_MD_INVALID_FLUSH_RKEY`). The bits of it above those that a bind
/// may choose are all 0.
const NO_FLUSH_KEY: u32 = 0xff;
const _: () = assert!(NO_FLUSH_KEY >> CHOSEN_BITS == 0);
/// What UCX reads (`UCT_IB_MD_FLUSH_REMOTE_LENGTH`).
const FLUSH_LENGTH_MAX: u64 = 8;

/// Whether the whole address space is asked for: an implicit on-demand region (`ibv_reg_mr(3)`).
fn is_everything(address: u64, length: usize, access: Access) -> bool {
    address == 0 && length == usize::MAX && access.contains(Access::ON_DEMAND)
}

/// Rights of peers that need local write access.
const REMOTE_WRITES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// Rights of peers to flush.
const FLUSHES: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);

fn remote_right(access: RemoteAccess) -> Access {
    match access {
        RemoteAccess::Read => Access::REMOTE_READ,
        RemoteAccess::Write => Access::REMOTE_WRITE,
        RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        RemoteAccess::Flush { needs, .. } => needs,
    }
}

#[cfg(test)]
mod tests;
