//! Reads, writes and atomics of registered memory, by key and address.

use super::{
    Access, Backing, CHOSEN_BITS, Kind, MemoryTable, OURSELVES, Place, Refused, RunSums, on_demand,
};
use crate::index::PdIndex;
use airdma_transport::{AtomicOperation, RemoteAccess, RemoteFault, Spread};
use airdma_wire::ICRC_LEN;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

impl MemoryTable {
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
    pub(super) fn find(
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

fn remote_right(access: RemoteAccess) -> Access {
    match access {
        RemoteAccess::Read => Access::REMOTE_READ,
        RemoteAccess::Write => Access::REMOTE_WRITE,
        RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        RemoteAccess::Flush { needs, .. } => needs,
    }
}
