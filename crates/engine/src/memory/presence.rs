//! Whether memory is there before it is registered.
//!
//! A NIC's driver pins pages, so registration fails with `EFAULT` for memory that is not mapped, or not writable where
//! writing was asked for, and programs rely on that. We ask the kernel to populate the pages (`MADV_POPULATE_READ` and
//! `_WRITE`, Linux 5.14), which fails for the same reasons: `ENOMEM` where nothing is mapped, `EINVAL` where the mapping
//! does not permit it. `EINVAL` is also what a kernel or a mapping says that does not know the advice; those, which
//! refuse to be read just the same, are given the benefit of the doubt.
//!
//! Nothing is pinned: memory that is unmapped while it is registered is a program's mistake that ends in a fault, as
//! any use of it would.

use crate::{Access, Error};
use std::io;

const PAGE: u64 = 4096;

/// # Errors
/// `EFAULT` for memory that cannot be read, or not written though `access` asks for it.
pub(crate) fn check(addr: u64, length: usize, access: Access) -> Result<(), Error> {
    let Some((start, bytes)) = pages(addr, length) else {
        return Ok(()); // the table refuses it, with its own words
    };
    let present = match populate(start, bytes, libc::MADV_POPULATE_READ) {
        Err(libc::EINVAL) => Ok(()),
        Ok(()) if access.contains(Access::LOCAL_WRITE) => {
            populate(start, bytes, libc::MADV_POPULATE_WRITE)
        }
        other => other,
    };
    present.map_err(|_| Error::System {
        message: "the memory to register is not mapped, or not writable: local write access needs writable memory"
            .to_owned(),
        errno: libc::EFAULT,
    })
}

/// Whether we may touch memory ourselves, now, without ending in a fault. The benefit of the doubt goes to a kernel that does
/// not know the advice at all, and to nothing else.
pub(super) fn is_touchable(addr: u64, length: usize, access: Access) -> bool {
    static PAGE_OF_OURS: u8 = 0;
    let Some((start, bytes)) = pages(addr, length) else {
        return false;
    };
    let of_ours = (&raw const PAGE_OF_OURS).addr() as u64 & !(PAGE - 1);
    let read = populate(start, bytes, libc::MADV_POPULATE_READ);
    if read == Err(libc::EINVAL) {
        return populate(of_ours, 1, libc::MADV_POPULATE_READ) == read;
    }
    read.is_ok()
        && (!access.contains(Access::LOCAL_WRITE)
            || populate(start, bytes, libc::MADV_POPULATE_WRITE).is_ok())
}

/// Where the pages of some bytes begin, and how many bytes there are from there on; `None` if there are no such bytes.
fn pages(addr: u64, length: usize) -> Option<(u64, usize)> {
    let start = addr & !(PAGE - 1);
    let end = addr.checked_add(length as u64).filter(|_| length > 0)?;
    Some((start, usize::try_from(end - start).unwrap_or(usize::MAX)))
}

fn populate(start: u64, bytes: usize, advice: libc::c_int) -> Result<(), i32> {
    // SAFETY: populating touches page tables only, never what the pages hold; a range that is not mapped is an error.
    if unsafe { libc::madvise(start as *mut libc::c_void, bytes, advice) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EFAULT))
}
