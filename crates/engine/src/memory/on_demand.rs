//! Memory that may come and go while it is registered (on-demand paging, IBTA annex "ODP";
//! `ibv_reg_mr(3)`).
//!
//! The kernel copies (`process_vm_readv(2)`): it brings pages in as a page fault would, and returns
//! `EFAULT` where no memory is mapped, where a copy by this thread would end the program. The calls
//! name the calling thread: a process has no memory under its own number once `main`'s thread ended
//! with `pthread_exit`. They cost about half a microsecond per packet. Where a sandbox forbids
//! them, the pages are requested first (`MADV_POPULATE_*`) and then copied by this thread; the
//! handler of faults finds those that a program unmaps at that very moment ([`super::faults`]).

use super::{Refused, populate};
use crate::Access;
use std::io;

/// Copies out of the application's memory.
#[cold]
#[inline(never)]
pub(super) fn read(from: *mut u8, out: &mut [u8]) -> Result<(), Refused> {
    let local = vector(out.as_mut_ptr(), out.len());
    let remote = vector(from, out.len());
    // SAFETY: one vector each; the kernel checks the remote range, and `out` is a buffer of ours of
    // that length.
    let copied = unsafe {
        libc::process_vm_readv(libc::gettid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    if is_forbidden(copied) {
        bring_for(from, out.len(), Access::empty())?;
        // SAFETY: the pages were there a moment ago, which is as much as can be known here.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), out.as_mut_ptr(), out.len()) };
        return Ok(());
    }
    whole(copied, out.len())
}

/// Copies into the application's memory.
#[cold]
#[inline(never)]
pub(super) fn write(to: *mut u8, data: &[u8]) -> Result<(), Refused> {
    let local = vector(data.as_ptr().cast_mut(), data.len());
    let remote = vector(to, data.len());
    // SAFETY: as in `read`; the local vector is only read.
    let copied = unsafe {
        libc::process_vm_writev(libc::gettid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    if is_forbidden(copied) {
        bring(to, data.len())?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        return Ok(());
    }
    whole(copied, data.len())
}

/// Brings writable pages in.
#[cold]
#[inline(never)]
pub(super) fn bring(at: *mut u8, length: usize) -> Result<(), Refused> {
    bring_for(at, length, Access::LOCAL_WRITE)
}

fn bring_for(at: *mut u8, length: usize, access: Access) -> Result<(), Refused> {
    if populate::is_touchable(at.expose_provenance() as u64, length, access) {
        Ok(())
    } else {
        Err(Refused)
    }
}

fn vector(base: *mut u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    }
}

/// A short copy is a hole as well.
fn whole(copied: isize, wanted: usize) -> Result<(), Refused> {
    if usize::try_from(copied) == Ok(wanted) {
        Ok(())
    } else {
        Err(Refused)
    }
}

fn is_forbidden(copied: isize) -> bool {
    copied < 0
        && matches!(
            io::Error::last_os_error().raw_os_error(),
            Some(libc::EPERM | libc::ENOSYS)
        )
}
