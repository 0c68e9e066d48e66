//! Registered memory: the table of regions, and the only copies between packets and the application's memory.
//!
//! A key is `slot << 12 | tag`: the slot finds the region in one step, and the tag is drawn anew from the kernel's
//! random numbers at each registration, so a key that was given back does not open what its slot holds next
//! (it differs from the slot's last tag for certain, from earlier ones with 4094 in 4095). Slots are reused oldest
//! first. A tag is never 0, so neither is a key.
//!
//! The application reads and writes its memory while we copy. So no reference to it is ever formed: every access is a
//! copy through raw pointers, or an atomic.

pub(crate) mod presence;

use crate::random::random_u32;
use crate::{Access, Error, LIMITS};
use airdma_transport::{AtomicOperation, LocalFault, RemoteAccess, RemoteFault};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

const TAG_BITS: u32 = 12;
const TAG_MASK: u32 = (1 << TAG_BITS) - 1;

/// Rights that mean something here; the others of [`Access`] are hints, or await later steps.
const ACCESS_KNOWN: Access = Access::all();

/// The regions of one device.
#[derive(Default)]
pub(crate) struct MemoryTable {
    regions: Vec<Region>,
    free: VecDeque<u32>,
}

/// A slot of the table. `key` 0 marks a free one; `tag` survives so that the next key differs.
#[derive(Clone, Copy)]
struct Region {
    key: u32,
    tag: u32,
    pd: u32,
    access: Access,
    address: usize,
    iova: u64,
    length: u64,
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

/// Where a stretch of memory is to be found: a key and an address in its region, for a protection domain.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) pd: u32,
    pub(crate) key: u32,
    pub(crate) va: u64,
}

impl MemoryTable {
    /// Registers memory and returns its key. The caller vouches that it stays mapped.
    pub(crate) fn register(
        &mut self,
        pd: u32,
        address: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<u32, Error> {
        let region = Region::checked(pd, address, length, iova, access)?;
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.regions.len() < LIMITS.max_mr as usize => {
                self.regions.push(Region { tag: 0, ..region });
                self.regions.len() as u32 - 1
            }
            None => {
                return Err(Error::NoMemory(
                    "no more memory regions: see max_mr of the device",
                ));
            }
        };
        let tag = next_tag(self.regions[slot as usize].tag);
        let key = slot << TAG_BITS | tag;
        self.regions[slot as usize] = Region { key, tag, ..region };
        Ok(key)
    }

    /// Forgets a region; its key opens nothing from now on.
    pub(crate) fn deregister(&mut self, key: u32) {
        let slot = key >> TAG_BITS;
        if let Some(region) = self.regions.get_mut(slot as usize)
            && region.key == key
            && key != 0
        {
            region.key = 0;
            region.address = 0;
            region.length = 0;
            self.free.push_back(slot);
        }
    }

    /// Copies registered memory out. Only the application's own requests may read without a right to.
    pub(crate) fn read(&self, place: Place, right: Access, out: &mut [u8]) -> Result<(), Refused> {
        if out.is_empty() {
            return Ok(());
        }
        let from = self.find(place, out.len() as u64, right)?;
        // SAFETY: `find` placed `out.len()` bytes at `from` inside a region whose owner keeps it mapped until
        // `deregister`, which needs the same exclusive access to this table that the caller's worker has. `out` is a
        // buffer of ours outside any region. The application may write meanwhile: it gets the bytes it deserves.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies into registered memory.
    pub(crate) fn write(&self, place: Place, right: Access, data: &[u8]) -> Result<(), Refused> {
        if data.is_empty() {
            return Ok(());
        }
        let to = self.find(place, data.len() as u64, right)?;
        // SAFETY: as in `read`; the region was registered for writing, which `right` demanded.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Whether a peer may access `length` bytes. A length of zero touches nothing, and its key is not looked at
    /// (IBTA 9.7.5.2.4, C9-88).
    pub(crate) fn check(
        &self,
        place: Place,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault> {
        if length == 0 {
            return Ok(());
        }
        self.find(place, u64::from(length), remote_right(access))?;
        Ok(())
    }

    /// Runs a peer's atomic on eight bytes, and returns what they held.
    pub(crate) fn atomic(
        &self,
        place: Place,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault> {
        let at = self.find(place, 8, remote_right(RemoteAccess::Atomic))?;
        if !place.va.is_multiple_of(8) || !at.addr().is_multiple_of(8) {
            return Err(RemoteFault::Misaligned);
        }
        // SAFETY: `find` placed eight bytes at `at` inside a mapped region registered for atomics, the check above
        // aligned them, and the reference lives for this call only. Accesses of the application that are not atomic
        // race with this one, as they do with an RDMA NIC's.
        let value = unsafe { AtomicU64::from_ptr(at.cast()) };
        Ok(match operation {
            AtomicOperation::FetchAdd { add } => value.fetch_add(add, Ordering::SeqCst),
            AtomicOperation::CompareSwap { compare, swap } => {
                match value.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(original) | Err(original) => original,
                }
            }
        })
    }

    /// The first byte of `length` bytes, if the key, its domain, the bounds and the right allow them.
    fn find(&self, place: Place, length: u64, right: Access) -> Result<*mut u8, Refused> {
        let region = self
            .regions
            .get((place.key >> TAG_BITS) as usize)
            .ok_or(Refused)?;
        if region.key != place.key || place.key == 0 || region.pd != place.pd {
            return Err(Refused);
        }
        if !region.access.contains(right) {
            return Err(Refused);
        }
        let offset = place.va.checked_sub(region.iova).ok_or(Refused)?;
        let end = offset.checked_add(length).ok_or(Refused)?;
        if end > region.length {
            return Err(Refused);
        }
        // In bounds, so the sum cannot wrap: registration checked address + length.
        Ok(ptr::with_exposed_provenance_mut(
            region.address + offset as usize,
        ))
    }
}

impl Region {
    fn checked(
        pd: u32,
        address: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Region, Error> {
        if length == 0 || length as u64 > LIMITS.max_mr_size {
            return Err(Error::Invalid(
                "a memory region has 1 byte to max_mr_size bytes",
            ));
        }
        let length = length as u64;
        if !ACCESS_KNOWN.contains(access) {
            return Err(Error::Invalid("unknown access flag"));
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::Invalid(
                "remote write and atomic access need local write access, ibv_reg_mr(3)",
            ));
        }
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
            key: 0,
            tag: 0,
            pd,
            access,
            address: address as usize,
            iova,
            length,
        })
    }
}

fn remote_right(access: RemoteAccess) -> Access {
    match access {
        RemoteAccess::Read => Access::REMOTE_READ,
        RemoteAccess::Write => Access::REMOTE_WRITE,
        RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
    }
}

fn next_tag(last: u32) -> u32 {
    loop {
        let tag = random_u32() & TAG_MASK;
        if tag != 0 && tag != last {
            return tag;
        }
    }
}

#[cfg(test)]
mod tests;
