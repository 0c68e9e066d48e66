//! `dlopen(3)` with `RTLD_DEEPBIND`, which puts a library's own dependencies before all others, a
//! preload included. Valkey opens its modules so.
//!
//! A library that is linked with one that is replaced is opened without that flag. For every other
//! library the flag stays: it keeps names apart that the program and the library both have.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::AtomicPtr;

use crate::look_up::{LookUps, set_next};
use crate::{contained, errno};

/// The address to which `dlopen` of [`look_ups!`](crate::look_ups) jumps, once [`exchange_flags`]
/// has run.
#[doc(hidden)]
pub static NEXT_OPEN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Largest table of a file that is read: program headers, dynamic section, its strings.
const TABLE_BYTES_MAX: u64 = 1 << 24;
/// `EI_MAG0` to `EI_DATA` of a file with 64 bits, least significant byte first.
const IDENTITY: [u8; 6] = *b"\x7fELF\x02\x01";
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: usize = 56;
const ENTRY_BYTES: usize = 16;
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The flags with which the library is opened. Afterwards [`NEXT_OPEN`] is set.
#[doc(hidden)]
pub unsafe extern "C" fn exchange_flags<L: LookUps>(path: *const c_char, flags: c_int) -> c_int {
    let nothing: Open = no_open;
    set_next(&NEXT_OPEN, c"dlopen", nothing as *mut c_void);
    if flags & libc::RTLD_DEEPBIND == 0 || path.is_null() {
        return flags;
    }
    let errno = errno::current();
    // SAFETY: the caller's string, which the C library is about to read too.
    let path = unsafe { CStr::from_ptr(path) };
    let is_replaced = |name: &CStr| L::replaces(name, Some(name));
    let is_linked = contained(|| needs(path, is_replaced).unwrap_or(false), || false);
    errno::set(errno);
    if is_linked {
        flags & !libc::RTLD_DEEPBIND
    } else {
        flags
    }
}

/// Whether the file at a path is linked with a library of such a name; `None` if it cannot be read.
/// A name without a slash is searched for by the loader, and is not found here.
fn needs(path: &CStr, is_such: impl Fn(&CStr) -> bool) -> Option<bool> {
    if !path.to_bytes().contains(&b'/') {
        return None;
    }
    let file = File::open(OsStr::from_bytes(path.to_bytes())).ok()?;
    let header = table(&file, 0, HEADER_BYTES)?;
    if !header.starts_with(&IDENTITY) {
        return None;
    }
    let count = number(&header, 56, 2)?;
    let segments = table(&file, number(&header, 32, 8)?, count * SEGMENT_BYTES as u64)?;
    let segments: Vec<Segment> = segments
        .chunks_exact(SEGMENT_BYTES)
        .filter_map(Segment::of)
        .collect();
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let dynamic = table(&file, dynamic.offset, dynamic.bytes)?;
    let entries = || {
        dynamic
            .chunks_exact(ENTRY_BYTES)
            .filter_map(|entry| Some((number(entry, 0, 8)?, number(entry, 8, 8)?)))
    };
    let value = |tag| entries().find_map(|entry| (entry.0 == tag).then_some(entry.1));
    let strings = value(DT_STRTAB)?;
    let strings = segments
        .iter()
        .find_map(|segment| segment.offset_of(strings))?;
    let strings = table(&file, strings, value(DT_STRSZ)?)?;
    let mut names = entries()
        .filter(|(tag, _)| *tag == DT_NEEDED)
        .filter_map(|(_, at)| strings.get(usize::try_from(at).ok()?..))
        .filter_map(|rest| CStr::from_bytes_until_nul(rest).ok());
    Some(names.any(is_such))
}

/// A program header.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl Segment {
    fn of(header: &[u8]) -> Option<Segment> {
        Some(Segment {
            kind: number(header, 0, 4)?,
            offset: number(header, 8, 8)?,
            address: number(header, 16, 8)?,
            bytes: number(header, 32, 8)?,
        })
    }

    /// Where in the file an address of the library lies, if it does in this part.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let inside = address.checked_sub(self.address)?;
        (self.kind == PT_LOAD && inside < self.bytes).then(|| self.offset.checked_add(inside))?
    }
}

fn table(file: &File, offset: u64, bytes: u64) -> Option<Vec<u8>> {
    if bytes > TABLE_BYTES_MAX {
        return None;
    }
    let mut table = vec![0; usize::try_from(bytes).ok()?];
    file.read_exact_at(&mut table, offset).ok()?;
    Some(table)
}

/// A number of some bytes at an offset.
fn number(from: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let mut number = [0; 8];
    number
        .get_mut(..bytes)?
        .copy_from_slice(from.get(at..)?.get(..bytes)?);
    Some(u64::from_le_bytes(number))
}

/// Takes the place of a function that the C library does not have.
unsafe extern "C" fn no_open(_path: *const c_char, _flags: c_int) -> *mut c_void {
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(name: &CStr) -> Option<bool> {
        needs(c"/proc/self/exe", |needed| needed == name)
    }

    #[test]
    fn the_libraries_that_a_file_is_linked_with() {
        assert_eq!(own(c"libc.so.6"), Some(true));
        assert_eq!(own(c"libibverbs.so.1"), Some(false));
    }

    #[test]
    fn other_files_are_linked_with_none() {
        for path in [c"/proc/self/maps", c"/nonexistent", c"/", c"libc.so.6", c""] {
            assert_eq!(needs(path, |_| true), None, "{path:?}");
        }
    }

    #[test]
    fn a_file_that_is_cut_or_changed_anywhere_is_no_danger() {
        let whole = std::fs::read("/proc/self/exe").expect("the test's own file");
        let path = std::env::temp_dir().join(format!("airdma-opening-{}", std::process::id()));
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("a file");
            needs(&name, |needed| needed == c"libc.so.6")
        };
        for length in [0, 1, 63, 64, 100, 400] {
            assert_eq!(of(&whole[..length]), None, "{length}");
        }
        let start = &whole[..whole.len().min(1 << 16)];
        for at in 16..HEADER_BYTES as usize {
            let mut changed = start.to_vec();
            changed[at] = 0xff;
            of(&changed);
        }
        std::fs::remove_file(&path).expect("the file");
    }
}
