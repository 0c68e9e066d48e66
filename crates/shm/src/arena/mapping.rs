//! One mapping of one memfd.

use crate::memory_file::memory_file;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

const NAME: &CStr = c"airdma-shm";

/// Shared memory of a sealed memfd, mapped readable and writable; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
    /// The process that made the mapping. A child of fork() sees it too, but it is its parent's.
    owner: libc::pid_t,
}

// SAFETY: a mapping is memory of the process, not of a thread; it is accessed through raw pointers
// and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above; the fields themselves never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a memfd of `len` zero bytes (whole pages).
    ///
    /// Its size is sealed: no process can cut it off under another (SIGBUS).
    pub(super) fn create(len: usize) -> io::Result<Self> {
        if cfg!(miri) {
            return Self::imitate(len);
        }
        let fd = memory_file(NAME)?;
        let size =
            libc::off_t::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: plain system call on a descriptor we own.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above; F_ADD_SEALS takes an int.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        Self::map(fd, 0, len)
    }

    /// Stands for a memfd in Miri, which has none: anonymous memory.
    fn imitate(len: usize) -> io::Result<Self> {
        // SAFETY: plain integers.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        // SAFETY: the call above just opened it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Self::map_with(fd, 0, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    /// Maps `len` bytes from `offset` on (whole pages) of a memfd that another process made.
    pub(super) fn open(fd: OwnedFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: plain system call on a descriptor we own.
        let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(invalid(
                "shared memory that is not sealed against shrinking",
            ));
        }
        let size = size_of_file(&fd)?;
        if u64::try_from(len)
            .ok()
            .and_then(|len| offset.checked_add(len))
            .is_none_or(|end| end > size)
        {
            return Err(invalid("shared memory that is smaller than was said"));
        }
        Self::map(fd, offset, len)
    }

    fn map(fd: OwnedFd, offset: u64, len: usize) -> io::Result<Self> {
        Self::map_with(fd, offset, len, libc::MAP_SHARED)
    }

    fn map_with(fd: OwnedFd, offset: u64, len: usize, flags: libc::c_int) -> io::Result<Self> {
        let is_anonymous = flags & libc::MAP_ANONYMOUS != 0;
        let offset =
            libc::off_t::try_from(offset).map_err(|_| invalid("offset beyond any file"))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                if is_anonymous { -1 } else { fd.as_raw_fd() },
                offset,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base =
            NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mmap at address zero"))?;
        Ok(Self {
            fd,
            base,
            len,
            owner: process_id(),
        })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether this process made the mapping, rather than a parent that forked it.
    pub(super) fn is_ours(&self) -> bool {
        self.owner == process_id()
    }

    /// Zeroes a range. Large ones give their pages back to the system.
    ///
    /// # Safety
    ///
    /// The range lies within the mapping, and this process has no reference into it and no other
    /// use of it.
    pub(super) unsafe fn zero(&self, offset: usize, len: usize) {
        let page = page_size();
        let start = offset.next_multiple_of(page);
        let end = (offset + len) / page * page;
        let punched =
            !cfg!(miri) && len >= PUNCH_MIN && start < end && self.punch(start, end - start);
        // Zeroes two ranges by hand, before and behind the hole; without a hole, all of it as the
        // first.
        let (first_end, second_start) = if punched {
            (start, end)
        } else {
            (offset + len, offset + len)
        };
        // SAFETY: both ranges lie within the caller's.
        unsafe {
            self.base.add(offset).write_bytes(0, first_end - offset);
            self.base
                .add(second_start)
                .write_bytes(0, offset + len - second_start);
        }
    }

    /// Makes a hole of whole pages; they read as zero afterwards. False when the system cannot.
    fn punch(&self, offset: usize, len: usize) -> bool {
        let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len))
        else {
            return false;
        };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call on a descriptor we own. Only mappings that start at offset 0 of
        // their file are zeroed, so offsets in the mapping are offsets in the file.
        unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, offset, len) == 0 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range has been ours since `map`, and each of its users held an `Arc` of this
        // mapping.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes from which a range is given back to the system instead of being overwritten with zeroes.
const PUNCH_MIN: usize = 64 << 10;

pub(super) fn page_size() -> usize {
    // SAFETY: no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("the page size is a positive number")
}

fn process_id() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

fn size_of_file(fd: &OwnedFd) -> io::Result<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is large enough and writable.
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded and has filled it.
    let stat = unsafe { stat.assume_init() };
    u64::try_from(stat.st_size).map_err(|_| invalid("shared memory of negative size"))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
