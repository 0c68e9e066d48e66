//! Device memory: memory that a device lends to the application, here a mapping of ours in host
//! memory.

use crate::queues::use_count::UseCount;
use crate::{Device, Error, LIMITS};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Offsets and lengths of copies are multiples of this many bytes, as with the devices that have
/// such memory.
const ALIGNMENT: u64 = 4;

const PAGE: usize = 4096;

/// A piece of device memory.
pub struct Dm {
    device: Arc<Device>,
    base: NonNull<u8>,
    mapped: usize,
    length: usize,
    /// Regions registered in it.
    pub(crate) users: UseCount,
}

// SAFETY: the mapping belongs to this object, and is accessed through raw copies only.
unsafe impl Send for Dm {}
// SAFETY: as above; two copies at once mix their bytes as two writers of any memory do.
unsafe impl Sync for Dm {}

impl Dm {
    /// # Errors
    /// `EINVAL` for no bytes or an alignment above a page, `ENOMEM` above
    /// [`crate::Limits::max_dm_size`] or when memory runs out.
    pub(crate) fn alloc(device: &Arc<Device>, length: usize, align_log2: u32) -> Result<Dm, Error> {
        if length == 0 || align_log2 > PAGE.trailing_zeros() {
            return Err(Error::Invalid(
                "device memory has at least one byte, aligned to 4096 at most",
            ));
        }
        if length as u64 > LIMITS.max_dm_size {
            return Err(Error::NoMemory(
                "more device memory than max_dm_size of the device",
            ));
        }
        let mapped = length.next_multiple_of(PAGE);
        // SAFETY: a fresh mapping, at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED);
        let base = base
            .ok_or_else(|| Error::system("mapping device memory", &io::Error::last_os_error()))?;
        base.as_ptr().expose_provenance();
        Ok(Dm {
            device: Arc::clone(device),
            base,
            mapped,
            length,
            users: UseCount::default(),
        })
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: there is no device memory of no bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Gives the memory back. The mapping lives on until the last holder of this object lets it go.
    ///
    /// # Errors
    /// `EBUSY` while regions of it are registered.
    pub fn destroy(&self) -> Result<(), Error> {
        self.users.destroy("the device memory").map(|_| ())
    }

    /// Copies into it.
    ///
    /// # Errors
    /// `EINVAL` beyond its end, or at an offset or of a length that is no multiple of 4.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let to = self.at(offset, data.len())?;
        // SAFETY: `at` checked that this many bytes lie behind `to` in the mapping, which lives as
        // long as this object.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Copies out of it.
    ///
    /// # Errors
    /// As [`Dm::write`].
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let from = self.at(offset, out.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Error> {
        if !offset.is_multiple_of(ALIGNMENT) || !(length as u64).is_multiple_of(ALIGNMENT) {
            return Err(Error::Invalid(
                "device memory is copied at multiples of 4 bytes",
            ));
        }
        self.part(offset, length)
    }

    /// The first of `length` bytes at `offset`.
    pub(crate) fn part(&self, offset: u64, length: usize) -> Result<*mut u8, Error> {
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > self.length as u64) {
            return Err(Error::Invalid("beyond the end of the device memory"));
        }
        Ok(self.base.as_ptr().wrapping_add(offset as usize))
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and regions in it hold this object, so nothing refers to it
        // any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}
