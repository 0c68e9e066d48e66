//! Memory of files, which another program can truncate while it is registered: pages behind the new
//! end are gone, and a copy from there would end the program (`SIGBUS`). With a NIC, which has
//! pinned the pages, the program would go on.
//!
//! The kernel copies such memory, as for on-demand regions, and an access behind the end is an
//! error. It is detected at registration: by `PROCMAP_QUERY` (Linux 6.11), or else in the process's
//! list of mappings. Without either, memory counts as permanent.
//!
//! Memory that cannot be truncated is copied as usual: anonymous shared memory, System V's, device
//! memory, the program's own file; and huge pages, whose files do not change in practice.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

const PATH: &str = "/proc/thread-self/maps";

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::Ioctl = {
    let (read_write, bytes) = (3 << 30, (size_of::<Query>() as libc::Ioctl) << 16);
    read_write | bytes | (b'f' as libc::Ioctl) << 8 | 17
};
const COVERING_OR_NEXT: u64 = 0x10;
const OF_A_FILE: u64 = 0x20;
/// `PATH_MAX`.
const NAME_BYTES: usize = 4096;
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// A mapping of a file.
struct Mapping {
    start: u64,
    end: u64,
    inode: u64,
    is_huge: bool,
    name: Vec<u8>,
}

/// Whether some of these bytes are of a file that can be cut.
pub(crate) fn can_be_cut(address: u64, length: usize) -> bool {
    let Some(end) = address.checked_add(length as u64).filter(|_| length > 0) else {
        return false;
    };
    let Ok(maps) = File::open(PATH) else {
        return false;
    };
    let mut at = address;
    while at < end {
        match query(&maps, at) {
            Ok(Some(found)) if found.start < end => {
                if found.can_be_cut() {
                    return true;
                }
                at = found.end.max(at + 1);
            }
            Ok(_) => return false,
            // A kernel that cannot be asked.
            Err(()) => return is_listed(address, end),
        }
    }
    false
}

/// The mapping of a file that covers an address, or the next one behind it.
fn query(maps: &File, address: u64) -> Result<Option<Mapping>, ()> {
    let mut name = [0_u8; NAME_BYTES];
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT | OF_A_FILE,
        address,
        name_bytes: NAME_BYTES as u32,
        name: name.as_mut_ptr().expose_provenance() as u64,
        ..Query::default()
    };
    // SAFETY: a structure and a buffer of the sizes that it says, which outlive the call.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if answer == 0 {
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        return Ok(Some(Mapping {
            start: query.start,
            end: query.end,
            inode: query.inode,
            is_huge: query.page_bytes > PAGE_BYTES_MAX,
            name: name.to_vec(),
        }));
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOENT) => Ok(None),
        _ => Err(()),
    }
}

/// Whether some of these bytes are of a file that can be cut, by all lines of the list of mappings.
fn is_listed(start: u64, end: u64) -> bool {
    let list = std::fs::read(PATH).unwrap_or_default();
    list.split(|&byte| byte == b'\n')
        .filter_map(mapping)
        .any(|found| found.start < end && start < found.end && found.can_be_cut())
}

/// Parses a line like `7f00a000-7f00c000 rw-p 00000000 fe:01 42  /a name`; `None` if it is not the
/// mapping of a file.
fn mapping(line: &[u8]) -> Option<Mapping> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let inode = words.nth(3)?.parse().ok().filter(|inode| *inode != 0)?;
    let name = words.next().unwrap_or_default();
    Some(Mapping {
        start: number(start)?,
        end: number(end)?,
        inode,
        is_huge: name.starts_with("/dev/hugepages/"),
        name: name.into(),
    })
}

impl Mapping {
    fn can_be_cut(&self) -> bool {
        let name = &*self.name;
        // Devices, their memory (dmabuf), and memory that is shared with children alone.
        let is_device = name.starts_with(b"/dmabuf:")
            || name.starts_with(b"/dev/") && !name.starts_with(b"/dev/shm/");
        let is_nameless = name.starts_with(b"/SYSV") || name.starts_with(b"/anon_hugepage");
        let is_file = name.starts_with(b"/") && !is_device && !is_nameless;
        is_file && !self.is_huge && self.inode != of_the_program()
    }
}

/// The program's file, which the kernel protects from writes while it runs.
fn of_the_program() -> u64 {
    static INODE: OnceLock<u64> = OnceLock::new();
    *INODE.get_or_init(|| std::fs::metadata("/proc/self/exe").map_or(0, |found| found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};

    static OF_THE_PROGRAM: [u8; 64] = [7; 64];

    struct Mapped(*mut libc::c_void);

    const BYTES: usize = 3 * 4096;

    impl Mapped {
        fn new(how: libc::c_int, file: libc::c_int) -> Self {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping, where the kernel likes it.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, rights, how, file, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Self(at)
        }

        fn address(&self) -> u64 {
            self.0.expose_provenance() as u64
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: our own mapping, which is not used any more.
            unsafe { libc::munmap(self.0, BYTES) };
        }
    }

    #[test]
    fn memory_of_files_is_known_and_what_nobody_can_cut_is_not() {
        // SAFETY: a string with its end.
        let file = unsafe { libc::memfd_create(c"cut".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: a descriptor that was made just now.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        File::from(file.try_clone().unwrap())
            .set_len(BYTES as u64)
            .unwrap();
        let of_file = |how| Mapped::new(how, file.as_raw_fd());
        for how in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
            let mapped = of_file(how);
            for (offset, length) in [(0, 1), (0, BYTES), (4097, 10), (BYTES as u64 - 1, 4096)] {
                let at = mapped.address() + offset;
                assert!(can_be_cut(at, length), "{offset} {length}");
                assert!(is_listed(at, at + length as u64), "{offset} {length}");
            }
            assert!(!can_be_cut(mapped.address(), 0));
        }
        for how in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
            let nameless = Mapped::new(how | libc::MAP_ANONYMOUS, -1);
            assert!(!can_be_cut(nameless.address(), BYTES));
            assert!(!is_listed(
                nameless.address(),
                nameless.address() + BYTES as u64
            ));
        }
        let ours = OF_THE_PROGRAM.as_ptr().expose_provenance() as u64;
        assert!(!can_be_cut(ours, 64) && !is_listed(ours, ours + 64));
        let heap = Box::new([0_u8; 100]);
        assert!(!can_be_cut(heap.as_ptr().expose_provenance() as u64, 100));
    }

    #[test]
    fn lines_of_mappings_name_files() {
        let of_file = |line: &[u8]| mapping(line).is_some_and(|found| found.can_be_cut());
        assert!(of_file(
            b"7f00-8f00 r--p 00000000 fe:01 42  /srv/model file"
        ));
        assert!(of_file(b"7f00-8f00 rw-s 00000000 00:01 43  /dev/shm/ring"));
        assert!(of_file(
            b"7f00-8f00 rw-s 00000000 00:01 43  /memfd:ram (deleted)"
        ));
        for line in [
            &b"7f00-8f00 rw-p 00000000 00:00 0"[..],
            b"7f00-8f00 rw-p 00000000 00:00 0  [heap]",
            b"7f00-8f00 rw-s 00000000 00:01 44  /dev/zero (deleted)",
            b"7f00-8f00 rw-s 00000000 00:01 44  /SYSV00000000 (deleted)",
            b"7f00-8f00 rw-s 00000000 00:05 45  /dev/dri/card0",
            b"7f00-8f00 rw-s 00000000 00:12 46  /dev/hugepages/rte_0",
            b"",
        ] {
            assert!(!of_file(line), "{}", String::from_utf8_lossy(line));
        }
    }
}
