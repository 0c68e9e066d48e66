//! Memory of other devices, by the descriptor of a dmabuf (`ibv_reg_dmabuf_mr(3)`).
//!
//! A soft device copies with the CPU, so it maps the dmabuf for as long as the region is
//! registered. Exporters of main memory permit that (`/dev/udmabuf`, `/dev/dma_heap`, most display
//! and video devices); those of a graphics card's memory mostly do not.
//!
//! Accesses are not surrounded by `DMA_BUF_IOCTL_SYNC`: it does nothing where devices see the CPU's
//! caches, as on x86. Elsewhere a program calls it before the exporting device reads what has
//! arrived, and before it sends what that device has written, as for its own mapping.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use airdma_engine::Access;

use crate::errno::Errno;

/// Magic number of the file system of dmabufs (`linux/magic.h`).
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// Mapped memory of a dmabuf, which it keeps.
pub struct Mapping {
    /// The page of the first byte.
    pages: *mut c_void,
    bytes: usize,
    /// Where the first byte is in its page.
    within: usize,
}

impl Mapping {
    /// Maps `length` bytes of a dmabuf from `offset` on, for regions with this access at `iova`.
    ///
    /// `EINVAL` for another kind of file, bytes outside, or an `iova` at another place in its page;
    /// `EOPNOTSUPP` for a dmabuf that cannot be mapped.
    pub fn new(
        fd: c_int,
        offset: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self, Errno> {
        let size = size_of_dmabuf(fd)?;
        let end = offset.checked_add(length as u64);
        let page = page();
        if length == 0 || end.is_none_or(|end| end > size) || !(offset ^ iova).is_multiple_of(page)
        {
            return Err(Errno::INVALID);
        }
        let within = (offset % page) as usize;
        let bytes = length.checked_add(within).ok_or(Errno::INVALID)?;
        let at = libc::off_t::try_from(offset - within as u64).map_err(|_| Errno::INVALID)?;
        let rights = match access.contains(Access::LOCAL_WRITE) {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pages = unsafe { libc::mmap(ptr::null_mut(), bytes, rights, libc::MAP_SHARED, fd, at) };
        if pages == libc::MAP_FAILED {
            return Err(match Errno::current() {
                // The descriptor does not permit it, or the process.
                refused @ Errno(libc::EACCES | libc::EPERM | libc::ENOMEM) => refused,
                _ => Errno::UNSUPPORTED,
            });
        }
        Ok(Self {
            pages,
            bytes,
            within,
        })
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        (self.pages.expose_provenance() + self.within) as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped; the region is deregistered.
        unsafe { libc::munmap(self.pages, self.bytes) };
    }
}

/// Bytes of a dmabuf; `EBADF` without a file, and `EINVAL` for one of another kind.
fn size_of_dmabuf(fd: c_int) -> Result<u64, Errno> {
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: room for what the call writes.
    if unsafe { libc::fstatfs(fd, system.as_mut_ptr()) } != 0 {
        return Err(Errno::current());
    }
    // SAFETY: written by the call that succeeded.
    let system = unsafe { system.assume_init() };
    if system.f_type as u64 != DMA_BUF_MAGIC {
        return Err(Errno::INVALID);
    }
    // SAFETY: no memory is passed. A dmabuf has no position that this would move.
    let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    u64::try_from(size).map_err(|_| Errno::current())
}

fn page() -> u64 {
    // SAFETY: no arguments but a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
