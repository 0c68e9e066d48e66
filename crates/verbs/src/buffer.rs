//! Buffers that the device allocates (`ibv_alloc_buf(3)`): anonymous memory, since any memory of
//! the process will do.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::abi;
use crate::errno::Errno;
use crate::memory::Pd;
use crate::object::Object;

/// A buffer. C knows nothing of it but the pointer.
pub struct Buffer {
    addr: *mut c_void,
    size: usize,
    pd: *mut abi::ibv_pd,
}

// SAFETY: the C type has no fields.
unsafe impl Object for Buffer {
    type C = abi::ibv_buf;
}

impl Buffer {
    /// Whether it was allocated from this domain and `length` bytes at `addr` lie in it.
    pub fn contains(&self, pd: *mut abi::ibv_pd, addr: *mut c_void, length: usize) -> bool {
        let Some(offset) = (addr as usize).checked_sub(self.addr as usize) else {
            return false;
        };
        let end = offset.checked_add(length);
        pd == self.pd && end.is_some_and(|end| end <= self.size)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: what `alloc` mapped; the program has given it back.
        unsafe { libc::munmap(self.addr, self.size) };
    }
}

/// `ibv_alloc_buf(3)`.
pub unsafe fn alloc(
    pd: *mut abi::ibv_pd,
    size: usize,
    out: *mut *mut abi::ibv_buf,
) -> Result<*mut c_void, Errno> {
    // SAFETY: the caller's domain.
    unsafe { Pd::of(pd) }?;
    if out.is_null() || size == 0 {
        return Err(Errno::INVALID);
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel likes.
    let addr = unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) };
    if addr == libc::MAP_FAILED {
        return Err(Errno::current());
    }
    let buffer = Box::new(Buffer { addr, size, pd });
    // SAFETY: the caller's place.
    unsafe { out.write(buffer.into_raw()) };
    Ok(addr)
}

/// `ibv_free_buf(3)`.
pub unsafe fn free(raw: *mut abi::ibv_buf) {
    if !raw.is_null() {
        // SAFETY: the caller gives back what `alloc` returned.
        drop(unsafe { Buffer::take(raw) });
    }
}

/// `ibv_export_buf_dmabuf_fd(3)`: no buffer is one that other devices can be given.
pub unsafe fn export(raw: *mut abi::ibv_buf) -> Result<c_int, Errno> {
    // SAFETY: the caller's buffer.
    unsafe { Buffer::of(raw) }?;
    Err(Errno(libc::ENODATA))
}
