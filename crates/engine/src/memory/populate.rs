//! Whether memory is there before it is registered.
//!
//! A NIC's driver pins pages, so registration fails with `EFAULT` for memory that is not mapped, or
//! not readable, or not writable where writing was asked for, and programs rely on that. We ask the
//! kernel to populate the pages (`MADV_POPULATE_READ`, or `_WRITE`, Linux 5.14), as pinning would:
//! it takes as long as `mlock(2)` (but a multiple of that if fresh memory were populated for
//! reading first, then for writing), and what a program never touches of a region that it registers
//! is there afterwards, as on hardware. Memory that is to come and go is for
//! `IBV_ACCESS_ON_DEMAND`.
//!
//! `ENOMEM` says that nothing is mapped. `EINVAL` is what a mapping says that does not permit the
//! access, but also one of a device's memory, and a kernel that does not know the advice; then the
//! process's list of mappings tells which it is. Only where that cannot be read does a program have
//! the benefit of the doubt.
//!
//! Nothing is pinned: memory that is unmapped while it is registered swallows what is written there
//! ([`super::faults`]); memory that is protected meanwhile is a program's mistake that ends in a
//! fault, as any use of it would, unless the program handles it.

use crate::{Access, Error};
use std::sync::OnceLock;
use std::{fs, io, str};

/// # Errors
/// `EFAULT` for memory that cannot be read, or not written though `access` asks for it.
pub(crate) fn check(addr: u64, length: usize, access: Access) -> Result<(), Error> {
    let Some((start, bytes)) = pages(addr, length) else {
        return Ok(()); // the table refuses it, with its own words
    };
    if permits(start, bytes, access) == Some(false) {
        return Err(Error::System {
            message: "the memory to register is not mapped, or not readable, or not writable: local write access needs writable \
                      memory"
                .to_owned(),
            errno: libc::EFAULT,
        });
    }
    Ok(())
}

/// Whether we may touch memory ourselves, now, without ending in a fault. The benefit of the doubt
/// goes to a kernel that does not know the advice at all, and to nothing else: a device may take
/// its memory away.
pub(super) fn is_touchable(addr: u64, length: usize, access: Access) -> bool {
    static PAGE_OF_OURS: u8 = 0;
    let Some((start, bytes)) = pages(addr, length) else {
        return false;
    };
    let (advice, right) = needs(access);
    match populate(start, bytes, advice) {
        Ok(()) => true,
        Err(libc::EINVAL) => {
            let of_ours = (&raw const PAGE_OF_OURS).addr() as u64 & !(page() - 1);
            let is_unknown = populate(of_ours, 1, libc::MADV_POPULATE_READ) == Err(libc::EINVAL);
            is_unknown && maps_permit(start, bytes, right).unwrap_or(true)
        }
        Err(_) => false,
    }
}

/// Whether pages can be read, or written if `access` asks for it. They are there afterwards. `None`
/// if it cannot be found out.
fn permits(start: u64, bytes: usize, access: Access) -> Option<bool> {
    let (advice, right) = needs(access);
    match populate(start, bytes, advice) {
        Ok(()) => Some(true),
        Err(libc::EINVAL) => maps_permit(start, bytes, right),
        Err(_) => Some(false),
    }
}

/// What has to be asked for, and the right that a mapping must have. What can be written can be
/// read: processors that Linux runs on know no other memory.
fn needs(access: Access) -> (libc::c_int, u8) {
    if access.contains(Access::LOCAL_WRITE) {
        (libc::MADV_POPULATE_WRITE, b'w')
    } else {
        (libc::MADV_POPULATE_READ, b'r')
    }
}

/// What the list of mappings says; `None` if there is none.
fn maps_permit(start: u64, bytes: usize, right: u8) -> Option<bool> {
    // The process's own list is empty once `main`'s thread ended with `pthread_exit`.
    let mappings = fs::read("/proc/thread-self/maps").ok()?;
    (!mappings.is_empty()).then(|| is_mapped(&mappings, start, bytes, right))
}

/// Whether a list of mappings, as `proc_pid_maps(5)` has it, covers bytes with mappings of that
/// right.
fn is_mapped(mappings: &[u8], start: u64, bytes: usize, right: u8) -> bool {
    let end = start.saturating_add(bytes as u64);
    let mut covered = start;
    for line in mappings.split(|&byte| byte == b'\n') {
        let Some((from, to, rights)) = mapping(line) else {
            continue;
        };
        if to <= covered {
            continue;
        }
        if from > covered || !rights.contains(&right) {
            return false;
        }
        covered = to;
        if covered >= end {
            return true;
        }
    }
    false
}

/// `7f00a000-7f00c000 rw-p ...`: where a mapping begins and ends, and its rights.
fn mapping(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut words = line.split(|&byte| byte == b' ');
    let (from, to) = str::from_utf8(words.next()?).ok()?.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    Some((number(from)?, number(to)?, words.next()?))
}

/// Where the pages of some bytes begin, and how many bytes there are from there on; `None` if there
/// are no such bytes.
fn pages(addr: u64, length: usize) -> Option<(u64, usize)> {
    let start = addr & !(page() - 1);
    let end = addr.checked_add(length as u64).filter(|_| length > 0)?;
    Some((start, usize::try_from(end - start).unwrap_or(usize::MAX)))
}

fn page() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    // SAFETY: no arguments but a number.
    *BYTES
        .get_or_init(|| u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

fn populate(start: u64, bytes: usize, advice: libc::c_int) -> Result<(), i32> {
    // SAFETY: populating touches page tables only, never what the pages hold; a range that is not
    // mapped is an error.
    if unsafe { libc::madvise(start as *mut libc::c_void, bytes, advice) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EFAULT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_mappings_is_searched_for_all_of_the_bytes() {
        let list = b"1000-3000 r--p 00000000 fe:01 42  /usr/lib/a b\n3000-5000 rw-p 00000000 00:00 0\n\
                     7000-8000 -w-p 00000000 00:00 0 [heap-7]\n8000-9000 ---p 00000000 00:00 0\n\xff\n";
        let is_mapped = |start, bytes, right| is_mapped(list, start, bytes, right);
        for (start, bytes) in [(0x1000, 1), (0x1000, 0x4000), (0x2fff, 2), (0x4fff, 1)] {
            assert!(is_mapped(start, bytes, b'r'), "{start:x} {bytes:x}");
        }
        for (start, bytes) in [
            (0xfff, 1),
            (0xfff, 2),
            (0x1000, 0x4001),
            (0x5000, 1),
            (0x7000, 1),
            (0x8000, 1),
            (0x9000, 1),
            (u64::MAX, usize::MAX),
        ] {
            assert!(!is_mapped(start, bytes, b'r'), "{start:x} {bytes:x}");
        }
        assert!(is_mapped(0x3000, 0x2000, b'w') && is_mapped(0x7000, 0x1000, b'w'));
        assert!(!is_mapped(0x2fff, 2, b'w') && !is_mapped(0x7fff, 2, b'w'));
        // There is nothing between two mappings that would do.
        assert!(!is_mapped(0x3000, 0x4001, b'w'));
    }
}
