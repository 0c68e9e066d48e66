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
    let start = addr & !(PAGE - 1);
    let Some(end) = addr.checked_add(length as u64).filter(|_| length > 0) else {
        return Ok(()); // the table refuses it, with its own words
    };
    let bytes = usize::try_from(end - start).unwrap_or(usize::MAX);
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

fn populate(start: u64, bytes: usize, advice: libc::c_int) -> Result<(), i32> {
    // SAFETY: populating touches page tables only, never what the pages hold; a range that is not mapped is an error.
    if unsafe { libc::madvise(start as *mut libc::c_void, bytes, advice) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EFAULT))
}
