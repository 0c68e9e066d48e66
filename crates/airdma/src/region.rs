//! Memory that a device sends from and receives into.

use crate::connection::Connection;
use crate::hub::{Hub, lock};
use crate::landing::{Landings, Purpose, RecordKeys};
use crate::pages::{PageFile, Pages};
use crate::{DatagramAddress, Endpoint, Error, Record, Remote, Result};
use airdma_engine::{Access, Gid, Mr, Mw, Pd, Rkey, Sge};
use bitflags::bitflags;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Registered memory that the program owns: read and write it as a slice of bytes.
///
/// An operation takes the region and returns it when the device is done, so memory in flight can
/// neither be changed nor freed. A region may be dropped at any time: memory in flight is kept
/// until the transfer has ended.
pub struct Region {
    memory: Arc<Memory>,
    start: usize,
    length: usize,
}

bitflags! {
    /// What peers may do with a shared region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// Read it.
        const READ = 1;
        /// Write it.
        const WRITE = 1 << 1;
        /// Execute atomics on its words.
        const ATOMIC = 1 << 2;
        /// Write records to it, by datagrams: with keys that open it for nothing else.
        const RECORD = 1 << 3;
        /// Read it by datagrams: with keys that open it for nothing else.
        const RECORD_READ = 1 << 4;
    }
}

/// A region that peers can access while the program does something else.
///
/// Only peers that were given a key can do so ([`Shared::remote`]). It is not a slice, since its
/// bytes may change at any time: they are copied out and in. [`Shared::withdraw`] ends the sharing.
pub struct Shared {
    // Dropped first: peers have access to the pages as long as they exist.
    openings: Mutex<Vec<Opening>>,
    access: Access,
    /// With [`Rights::RECORD`] or [`Rights::RECORD_READ`].
    records: Option<RecordKeys>,
    rights: Rights,
    region: Region,
}

/// Access of one endpoint's peer to a region.
struct Opening {
    to: Weak<Connection>,
    /// Ends the access when dropped.
    _window: Arc<Mw>,
    key: Rkey,
}

/// Registered pages.
pub(crate) struct Memory {
    // Dropped first: then the device does not access the pages any more.
    mr: Arc<Mr>,
    pd: Arc<Pd>,
    landings: Arc<Landings>,
    pages: Pages,
}

impl Memory {
    pub(crate) fn landings(&self) -> &Arc<Landings> {
        &self.landings
    }

    /// A pointer to an address within the pages.
    pub(crate) fn at(&self, address: u64) -> *mut u8 {
        let offset = address - self.pages.address();
        // SAFETY: within the pages.
        unsafe { self.pages.start().add(offset as usize) }
    }

    /// Opens a part to datagrams of one host, or of all; to a group by `key`, or by one that is
    /// drawn.
    pub(crate) fn register_records(
        &self,
        purpose: Purpose,
        (address, length): (u64, usize),
        from: Option<Gid>,
        key: Option<Rkey>,
    ) -> Result<Arc<Mr>> {
        let pd = &self.pd;
        Ok(match purpose {
            Purpose::Write => pd.reg_sealed_record_mr(address, length, from)?,
            Purpose::Read => pd.reg_sealed_record_read_mr(address, length, from)?,
            Purpose::WriteToGroup(group) => {
                let name = (Gid::from(group), key.unwrap_or_default());
                pd.reg_group_record_mr(address, length, name, from)?
            }
        })
    }
}

impl Region {
    /// Allocates `length` bytes, zeroed.
    pub(crate) fn allocate(hub: &Hub, length: usize) -> Result<Region> {
        Self::of(hub, length, |length| hub.pages.map(length))
    }

    /// As [`Region::allocate`], in a file of its own.
    pub(crate) fn allocate_file(hub: &Hub, length: usize) -> Result<Region> {
        Self::of(hub, length, PageFile::alone)
    }

    /// As [`Region::allocate`], without a file.
    pub(crate) fn allocate_private(hub: &Hub, length: usize) -> Result<Region> {
        Self::of(hub, length, Pages::private)
    }

    fn of(
        hub: &Hub,
        length: usize,
        map: impl FnOnce(usize) -> io::Result<Pages>,
    ) -> Result<Region> {
        if length == 0 {
            return Err(Error::you(
                "a region of 0 bytes: give it at least one (an empty message is `send(region, ..0)`)",
            ));
        }
        let pages = map(length);
        let pages =
            pages.map_err(|error| Error::system(&format!("{length} bytes of memory"), &error))?;
        let mr = hub.pd.reg_sealed_mr(
            pages.address(),
            length,
            Access::LOCAL_WRITE | Access::MW_BIND,
        )?;
        Ok(Region {
            memory: Arc::new(Memory {
                mr,
                pd: Arc::clone(&hub.pd),
                landings: Arc::clone(&hub.landings),
                pages,
            }),
            start: 0,
            length,
        })
    }

    /// Splits it at `at`. The memory is freed when both parts are dropped.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): `at` exceeds its length; the region is in the error.
    pub fn split_at(self, at: usize) -> Result<(Region, Region)> {
        if at > self.length {
            let message = format!("a cut at {at}, but the region has {} bytes", self.length);
            return Err(Error::you(message).with(self));
        }
        let rest = Region {
            memory: Arc::clone(&self.memory),
            start: self.start + at,
            length: self.length - at,
        };
        let first = Region { length: at, ..self };
        Ok((first, rest))
    }

    /// Shares it with peers, each of which needs its own key: see [`Shared::remote`], and
    /// [`Shared::remote_for_records`] for sources of records.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the region is empty, or not at a multiple of 8 and
    /// `rights` has [`Rights::ATOMIC`]. The region is in the error.
    pub fn share(self, rights: Rights) -> Result<Shared> {
        if self.length == 0 {
            return Err(Error::you("an empty region cannot be shared").with(self));
        }
        if rights.contains(Rights::ATOMIC) && !self.start.is_multiple_of(8) {
            return Err(
                Error::you("atomics need words at multiples of 8: cut the region there").with(self),
            );
        }
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, rights.contains(Rights::READ));
        access.set(Access::REMOTE_WRITE, rights.contains(Rights::WRITE));
        access.set(Access::REMOTE_ATOMIC, rights.contains(Rights::ATOMIC));
        let records = rights
            .intersects(Rights::RECORD | Rights::RECORD_READ)
            .then(|| RecordKeys::new(&self));
        Ok(Shared {
            openings: Mutex::default(),
            access,
            records,
            rights,
            region: self,
        })
    }

    /// The memory file of the region, and the region's offset in it.
    ///
    /// Only regions of [`Device::allocate_file`](crate::Device::allocate_file) have one. Another
    /// process that gets the file can read and write everything in it, but cannot shrink it.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let file = self.memory.pages.file()?;
        Some((file, self.start as u64))
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn is_of(&self, pd: &Pd) -> bool {
        self.memory.mr.is_of(pd)
    }

    /// The scatter/gather element for `range` of it.
    pub(crate) fn element(&self, range: &Range<usize>) -> Sge {
        Sge {
            addr: self.address() + range.start as u64,
            length: range.len() as u32,
            lkey: self.memory.mr.lkey().0,
        }
    }

    /// Checks a caller's range.
    pub(crate) fn part(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        part_of(self.length, range)
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.pages.address() + self.start as u64
    }

    fn pointer(&self) -> *mut u8 {
        // SAFETY: within the pages.
        unsafe { self.memory.pages.start().add(self.start) }
    }
}

/// Checks a caller's `range` of something that is `length` long.
pub(crate) fn part_of(length: usize, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    if start <= end && end <= length {
        Ok(start..end)
    } else {
        Err(Error::you(format!(
            "bytes {start}..{end} of a region of {length} bytes: stay within it"
        )))
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped as long as `memory` lives. Not written meanwhile: the caller holds the
        // region, so no operation does, and regions do not overlap.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.length) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and not read meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.length) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.length)
    }
}

impl Shared {
    /// The key and address for the peer of an endpoint: send it [`Remote::to_bytes`].
    ///
    /// It is valid for that peer on that connection only; other peers that learn it gain nothing.
    /// Each call returns the same.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the endpoint is another device's.
    /// [`Blame::System`](crate::Blame::System): no keys are left.
    pub fn remote(&self, to: &Endpoint) -> Result<Remote> {
        if self.records.is_some() && self.access.is_empty() {
            return Err(Error::you(
                "the region is shared with datagrams alone: their keys are those of `remote_for_records` and `remote_for_reads`",
            ));
        }
        let connection = to.connection();
        let mut openings = lock(&self.openings);
        let known = |opening: &&Opening| opening.to.as_ptr() == Arc::as_ptr(connection);
        let key = match openings.iter().find(known) {
            Some(opening) => opening.key,
            None => {
                openings.retain(|opening| opening.to.strong_count() > 0);
                let opening = self.open_to(connection)?;
                let key = opening.key;
                openings.push(opening);
                key
            }
        };
        let region = &self.region;
        Ok(Remote::new(region.address(), key, region.length))
    }

    /// The key and address for sources of records ([`DatagramEndpoint::write_record`]): for all
    /// hosts, or for the one at `from` alone.
    ///
    /// A source also needs the address of the endpoint ([`DatagramEndpoint::address`]). Each call
    /// returns the same for the same hosts.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the region is shared without [`Rights::RECORD`].
    /// [`Blame::System`](crate::Blame::System): no keys are left.
    ///
    /// [`DatagramEndpoint::write_record`]: crate::DatagramEndpoint::write_record
    /// [`DatagramEndpoint::address`]: crate::DatagramEndpoint::address
    pub fn remote_for_records(&self, from: Option<IpAddr>) -> Result<Remote> {
        self.keys(Rights::RECORD)?
            .remote(Purpose::Write, from, None)
    }

    /// The key and addresses for records to a multicast group, which reach the region at an
    /// endpoint that is a member ([`Device::group_endpoint`](crate::Device::group_endpoint)): of
    /// all hosts, or of the one at `from` alone.
    ///
    /// The first member draws the key, and sends the result to the source and to the other members,
    /// which give it as `agreed`. Each of them has a region of its own; addresses begin at 0 in
    /// all. Each call returns the same for the same arguments. *A member knows the key that writes
    /// to all the others*: name the source, or use a group on a network whose hosts are trusted.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the region is shared without [`Rights::RECORD`]; the
    /// address is not of a group. [`Blame::System`](crate::Blame::System): no keys are left, or
    /// another region of the device has the key of the group.
    pub fn remote_for_group(
        &self,
        group: &DatagramAddress,
        agreed: Option<&Remote>,
        from: Option<IpAddr>,
    ) -> Result<Remote> {
        let purpose = Purpose::WriteToGroup(group.ip());
        self.keys(Rights::RECORD)?
            .remote(purpose, from, agreed.map(Remote::key))
    }

    /// The key and address for reads by datagrams ([`DatagramEndpoint::read_record`]): of all
    /// hosts, or of the one at `from` alone. A reader also needs the address of an endpoint of this
    /// device, which answers. Each call returns the same for the same hosts.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the region is shared without [`Rights::RECORD_READ`].
    /// [`Blame::System`](crate::Blame::System): no keys are left.
    ///
    /// [`DatagramEndpoint::read_record`]: crate::DatagramEndpoint::read_record
    pub fn remote_for_reads(&self, from: Option<IpAddr>) -> Result<Remote> {
        self.keys(Rights::RECORD_READ)?
            .remote(Purpose::Read, from, None)
    }

    /// Its keys for datagrams, if it is shared with this right.
    pub(crate) fn keys(&self, right: Rights) -> Result<&RecordKeys> {
        let keys = self.records.as_ref();
        keys.filter(|_| self.rights.contains(right)).ok_or_else(|| {
            Error::you(if right == Rights::RECORD {
                "the region is not shared for records: share it with `Rights::RECORD`"
            } else {
                "the region is not shared for reads by datagrams: share it with `Rights::RECORD_READ`"
            })
        })
    }

    /// Whether `record` is in this region.
    pub fn holds(&self, record: &Record) -> bool {
        let records = self.records.as_ref();
        records.is_some_and(|records| record.landed_in(records))
    }

    fn open_to(&self, connection: &Arc<Connection>) -> Result<Opening> {
        let region = &self.region;
        if !region.is_of(&connection.hub.pd) {
            return Err(Error::you(
                "an endpoint of another device: share a region of the device of this endpoint",
            ));
        }
        let (window, key) = Mw::open(
            &region.memory.pd,
            connection.queue_pair(),
            &region.memory.mr,
            (region.address(), region.length),
            self.access,
        )?;
        Ok(Opening {
            to: Arc::downgrade(connection),
            _window: window,
            key,
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.region.length
    }

    /// Always false: a shared region has bytes.
    pub fn is_empty(&self) -> bool {
        self.region.length == 0
    }

    /// Copies what is at `offset` now into `bytes`. A concurrent write of a peer may be there in
    /// part.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the range exceeds the region.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let part = self.bytes_at(offset, bytes.len())?;
        // SAFETY: within the region, as checked.
        unsafe { copy_from(part, bytes) };
        Ok(())
    }

    /// Copies `bytes` to `offset`. A concurrent read of a peer may get them in part.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the range exceeds the region.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let part = self.bytes_at(offset, bytes.len())?;
        let (head, words) = words_of(part, bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (middle, last) = rest.split_at(words * WORD);
        // SAFETY: as in `copy_out`.
        unsafe {
            for (index, &byte) in first.iter().enumerate() {
                part.add(index).write_volatile(byte);
            }
            let part = part.add(head);
            let (middle, _) = middle.as_chunks::<WORD>();
            for (index, word) in middle.iter().enumerate() {
                part.cast::<u64>()
                    .add(index)
                    .write_volatile(u64::from_ne_bytes(*word));
            }
            let part = part.add(words * WORD);
            for (index, &byte) in last.iter().enumerate() {
                part.add(index).write_volatile(byte);
            }
        }
        Ok(())
    }

    /// Reads the word at `offset`, a multiple of 8, atomically: for words that peers add to, or
    /// write.
    ///
    /// Where a peer's write ends with the word, the rest of the write is visible once the word is.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): `offset` is not a multiple of 8, or exceeds the region.
    pub fn word(&self, offset: usize) -> Result<u64> {
        let part = self.bytes_at(offset, 8)?.cast::<u64>();
        if !part.is_aligned() {
            return Err(Error::you(format!(
                "a word at offset {offset}: words are at multiples of 8"
            )));
        }
        // SAFETY: within the region, aligned, and mapped as long as the region lives.
        Ok(unsafe { AtomicU64::from_ptr(part) }.load(Ordering::Acquire))
    }

    /// Ends the sharing, and returns the region.
    ///
    /// When this returns, no peer accesses it any more: later attempts are refused, and end their
    /// connection.
    pub fn withdraw(self) -> Region {
        // Dropping them waits until the device has released the memory.
        drop(self.openings);
        drop(self.records);
        self.region
    }

    fn bytes_at(&self, offset: usize, length: usize) -> Result<*mut u8> {
        self.region
            .part(offset..offset.saturating_add(length))
            // SAFETY: within the region.
            .map(|part| unsafe { self.region.pointer().add(part.start) })
    }
}

const WORD: usize = size_of::<u64>();

/// Copies `bytes.len()` bytes from `part`, which peers may write meanwhile.
///
/// # Safety
/// The bytes at `part` are mapped, and part of no slice.
pub(crate) unsafe fn copy_from(part: *mut u8, bytes: &mut [u8]) {
    let (head, words) = words_of(part, bytes.len());
    let (first, rest) = bytes.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words * WORD);
    // SAFETY: the caller's promise, with words at their multiples; volatile, since peers write it.
    unsafe {
        for (index, byte) in first.iter_mut().enumerate() {
            *byte = part.add(index).read_volatile();
        }
        let part = part.add(head);
        let (middle, _) = middle.as_chunks_mut::<WORD>();
        for (index, word) in middle.iter_mut().enumerate() {
            let value = part.cast::<u64>().add(index).read_volatile();
            *word = value.to_ne_bytes();
        }
        let part = part.add(words * WORD);
        for (index, byte) in last.iter_mut().enumerate() {
            *byte = part.add(index).read_volatile();
        }
    }
}

/// Number of single bytes before the first whole word, and number of words that follow.
fn words_of(start: *mut u8, length: usize) -> (usize, usize) {
    let head = start.align_offset(WORD).min(length);
    (head, (length - head) / WORD)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes)", self.region.length)
    }
}
