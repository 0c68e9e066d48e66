//! Memory that a device sends from and receives into.

use crate::connection::Connection;
use crate::hub::{Hub, lock};
use crate::pages::{PageFile, Pages};
use crate::{Endpoint, Error, Remote, Result};
use airdma_engine::{Access, Mr, Mw, Pd, Rkey, Sge};
use bitflags::bitflags;
use std::fmt;
use std::io;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

/// A piece of registered memory, yours alone: read and write it as a slice of bytes.
///
/// An operation takes the region and gives it back when the device is done with it, so memory in flight can neither be
/// changed nor freed. It is dropped as any other memory: what is still in flight then is kept until it has landed.
pub struct Region {
    memory: Arc<Memory>,
    start: usize,
    length: usize,
}

bitflags! {
    /// What peers may do with a region that is shared with them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// Read it.
        const READ = 1;
        /// Write it.
        const WRITE = 1 << 1;
        /// Add to its words, and compare and swap them.
        const ATOMIC = 1 << 2;
    }
}

/// A region that those peers reach that are told of it ([`Shared::remote`]), while you do something else. It is no slice of bytes, since its bytes may change at any time: they
/// are copied out and in. [`Shared::withdraw`] makes it yours alone again.
pub struct Shared {
    // Go first: peers reach the pages by them as long as they are there.
    openings: Mutex<Vec<Opening>>,
    access: Access,
    region: Region,
}

/// A region as the peer of one endpoint reaches it.
struct Opening {
    to: Weak<Connection>,
    /// Closes it, going.
    _window: Arc<Mw>,
    key: Rkey,
}

/// Registered pages.
struct Memory {
    // Goes first: then the device does not touch the pages any more.
    mr: Arc<Mr>,
    pd: Arc<Pd>,
    pages: Pages,
}

impl Region {
    /// `length` bytes, zeroed.
    pub(crate) fn allocate(hub: &Hub, length: usize) -> Result<Region> {
        Self::of(hub, length, |length| hub.pages.map(length))
    }

    /// The same, in a file of its own.
    pub(crate) fn allocate_file(hub: &Hub, length: usize) -> Result<Region> {
        Self::of(hub, length, PageFile::alone)
    }

    /// The same, in no file.
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
                pages,
            }),
            start: 0,
            length,
        })
    }

    /// Cuts it in two: what lies before `at`, and the rest. The memory goes when both are gone.
    ///
    /// # Errors
    /// Yours, where `at` lies beyond its end; the region is in the error.
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

    /// Lets peers reach it, each by a key of its own: see [`Shared::remote`].
    ///
    /// # Errors
    /// Yours, for an empty region or one that is not at a multiple of 8 and is to take atomics. The region is in the error.
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
        Ok(Shared {
            openings: Mutex::default(),
            access,
            region: self,
        })
    }

    /// The memory file that holds it and nothing else, and where in it the region begins: to map it elsewhere, or to hand it to another
    /// process, which reads and writes all that [`Device::allocate_file`](crate::Device::allocate_file) gave, and cannot cut it
    /// off. No other region has one.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let file = self.memory.pages.file()?;
        Some((file, self.start as u64))
    }

    pub(crate) fn is_of(&self, pd: &Pd) -> bool {
        self.memory.mr.is_of(pd)
    }

    /// The element of a work request for `range` of it.
    pub(crate) fn element(&self, range: &Range<usize>) -> Sge {
        Sge {
            addr: self.address() + range.start as u64,
            length: range.len() as u32,
            lkey: self.memory.mr.lkey().0,
        }
    }

    /// The part that a caller names, checked.
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

/// `range` of something that is `length` long, checked.
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
        // SAFETY: mapped as long as `memory` lives. Nobody writes it: the region is held by the caller and by no operation, and
        // no two regions overlap.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.length) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody reads it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.length) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.length)
    }
}

impl Shared {
    /// What the peer of an endpoint must know of it: send it [`Remote::to_bytes`]. It opens the region to that peer on that
    /// connection: to others, that hear of it somehow, it opens nothing. It is the same each time.
    ///
    /// # Errors
    /// Yours, for an endpoint of another device; the system's (no keys left).
    pub fn remote(&self, to: &Endpoint) -> Result<Remote> {
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

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region.length
    }

    /// Never: a shared region has bytes.
    pub fn is_empty(&self) -> bool {
        self.region.length == 0
    }

    /// Copies what is at `offset` now into `bytes`. What a peer writes meanwhile is there in part, or not.
    ///
    /// # Errors
    /// Yours, beyond its end.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let part = self.bytes_at(offset, bytes.len())?;
        let (head, words) = words_of(part, bytes.len());
        let (first, rest) = bytes.split_at_mut(head);
        let (middle, last) = rest.split_at_mut(words * WORD);
        // SAFETY: all of it within the region, as was checked, and words at their multiples; volatile, since peers write it.
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
        Ok(())
    }

    /// Copies `bytes` to `offset`. A peer that reads meanwhile gets a part of them, or nothing.
    ///
    /// # Errors
    /// Yours, beyond its end.
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

    /// The word at `offset`, a multiple of 8, all of it at once: what peers add to.
    ///
    /// # Errors
    /// Yours, beyond its end or for another offset.
    pub fn word(&self, offset: usize) -> Result<u64> {
        let part = self.bytes_at(offset, 8)?.cast::<u64>();
        if !part.is_aligned() {
            return Err(Error::you(format!(
                "a word at offset {offset}: words are at multiples of 8"
            )));
        }
        // SAFETY: within the region and aligned; volatile, since peers write it.
        Ok(unsafe { part.read_volatile() })
    }

    /// Closes it to peers. When this returns, none of them touches it any more: later attempts are refused, and end their
    /// connection.
    pub fn withdraw(self) -> Region {
        // Going, they wait until the device has let go of the memory.
        drop(self.openings);
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

/// How many single bytes come before the first whole word, and how many words follow.
fn words_of(start: *mut u8, length: usize) -> (usize, usize) {
    let head = start.align_offset(WORD).min(length);
    (head, (length - head) / WORD)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} bytes)", self.region.length)
    }
}
