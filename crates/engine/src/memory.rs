//! Registered memory: the table of regions and windows. [`copies`] has the only copies between
//! packets and the application's memory.
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

mod copies;
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
use airdma_transport::{LocalFault, RemoteFault};
use airdma_wire::Neighbour;
use std::mem;

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

/// Whether the whole address space is asked for: an implicit on-demand region (`ibv_reg_mr(3)`).
fn is_everything(address: u64, length: usize, access: Access) -> bool {
    address == 0 && length == usize::MAX && access.contains(Access::ON_DEMAND)
}

/// Rights of peers that need local write access.
const REMOTE_WRITES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// Rights of peers to flush.
const FLUSHES: Access = Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT);

#[cfg(test)]
mod tests;
