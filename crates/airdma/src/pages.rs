//! Pages of memory: in the device's memory file, in a file of their own that may be shared, or in
//! no file.

use crate::hub::lock;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// A memory file that only grows: offsets in it are used once, and freed ranges cost nothing.
pub(crate) struct PageFile {
    file: OwnedFd,
    end: Mutex<u64>,
    /// The process that created it. A child after fork has the same file.
    process: u32,
}

/// Mapped pages.
pub(crate) struct Pages {
    /// Their file and offset, if they are in a file.
    of: Option<(Arc<PageFile>, u64)>,
    /// Whether nothing else is in that file.
    is_alone: bool,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to no thread; `Region` and `Shared` control access to their bytes.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

/// Alignment of offsets in a file: the largest base page.
const PLACE: u64 = 64 * 1024;
/// Size of huge pages on most machines; on others the alignment does no harm.
const HUGE: usize = 2 << 20;

impl PageFile {
    pub(crate) fn new() -> io::Result<Arc<PageFile>> {
        let file = airdma_engine::memory_file(c"airdma")?;
        // A process that gets the file must not truncate what is mapped here (SIGBUS), nor seal it
        // against growing.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: our own memory file, and plain integers.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(PageFile {
            file,
            end: Mutex::new(0),
            process: std::process::id(),
        }))
    }

    /// Maps `length` new bytes, zeroed, in a file of their own.
    pub(crate) fn alone(length: usize) -> io::Result<Pages> {
        let mut pages = PageFile::new()?.map(length)?;
        pages.is_alone = true;
        Ok(pages)
    }

    /// Maps `length` new bytes, zeroed.
    pub(crate) fn map(self: &Arc<Self>, length: usize) -> io::Result<Pages> {
        let at = self.grow(length)?;
        let no_room = || io::Error::from_raw_os_error(libc::ENOMEM);
        let offset = libc::off_t::try_from(at).map_err(|_| no_room())?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.file.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Pages {
            of: Some((Arc::clone(self), at)),
            is_alone: false,
            start: NonNull::new(start.cast()).ok_or_else(no_room)?,
            length,
        })
    }

    /// Grows the file to at least `bytes`. If another process made it longer already, that
    /// suffices: it cannot shrink.
    fn lengthen(&self, bytes: u64) -> io::Result<()> {
        let size = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: our own memory file.
        if unsafe { libc::ftruncate(self.file.as_raw_fd(), size) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        let found = File::from(self.file.try_clone()?).metadata()?.len();
        if found >= bytes { Ok(()) } else { Err(error) }
    }

    fn grow(&self, length: usize) -> io::Result<u64> {
        let no_room = || io::Error::from_raw_os_error(libc::ENOMEM);
        let mut end = lock(&self.end);
        let places = (length as u64).checked_next_multiple_of(PLACE);
        let grown = places.and_then(|places| end.checked_add(places));
        let grown = grown.ok_or_else(no_room)?;
        self.lengthen(grown)?;
        Ok(std::mem::replace(&mut *end, grown))
    }
}

impl Pages {
    /// Maps `length` new bytes, zeroed, for this process alone.
    ///
    /// Such pages are ready sooner than those of a file. Huge pages are used where they fit and
    /// exist, which saves page faults and most TLB misses.
    pub(crate) fn private(length: usize) -> io::Result<Pages> {
        if length < HUGE {
            return Self::anonymous(length);
        }
        let whole = length.checked_next_multiple_of(HUGE);
        let with_spare = whole.and_then(|whole| Some((whole, whole.checked_add(HUGE)?)));
        let (length, mapped) = with_spare.ok_or(io::ErrorKind::OutOfMemory)?;
        let pages = ManuallyDrop::new(Self::anonymous(mapped)?);
        let before = pages.start.align_offset(HUGE);
        // SAFETY: parts of the new mapping. If the kernel has no huge pages, or may not use any,
        // base pages remain.
        let start = unsafe {
            let start = pages.start.add(before);
            for (spare, bytes) in [(pages.start, before), (start.add(length), HUGE - before)] {
                if bytes > 0 {
                    libc::munmap(spare.as_ptr().cast(), bytes);
                }
            }
            libc::madvise(start.as_ptr().cast(), length, libc::MADV_HUGEPAGE);
            start
        };
        Ok(Pages {
            of: None,
            is_alone: false,
            start,
            length,
        })
    }

    fn anonymous(length: usize) -> io::Result<Pages> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages {
            of: None,
            is_alone: false,
            start,
            length,
        })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// The file, if nothing else is in it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        let (of, _) = self.of.as_ref().filter(|_| self.is_alone)?;
        Some(of.file.as_fd())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; all regions in it are gone, and the device has released it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        let Some((of, at)) = &self.of else {
            return;
        };
        if of.process != std::process::id() {
            return;
        }
        let free = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (at, length) = (*at as libc::off_t, self.length as libc::off_t);
        // SAFETY: a part of our file that is no longer used. If this fails, the pages are freed
        // with the file.
        unsafe { libc::fallocate(of.file.as_raw_fd(), free, at, length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_private_pages_begin_where_a_huge_page_does() {
        for length in [HUGE, HUGE + 1, 5 * HUGE - 1] {
            let pages = Pages::private(length).unwrap();
            assert!(pages.address().is_multiple_of(HUGE as u64));
            // SAFETY: the first and the last requested byte.
            unsafe {
                pages.start().write(7);
                pages.start().add(length - 1).write(7);
            }
        }
        Pages::private(1).unwrap();
        for too_long in [usize::MAX, usize::MAX - HUGE] {
            assert!(Pages::private(too_long).is_err());
        }
    }

    fn refused(result: libc::c_int) -> bool {
        result != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }

    #[test]
    fn a_process_that_was_handed_the_file_cannot_cut_pages_off() {
        let pages = PageFile::alone(4096).unwrap();
        // A copy of the descriptor, as another process has it.
        let theirs = pages.file().unwrap().try_clone_to_owned().unwrap();
        let fd = theirs.as_raw_fd();
        // SAFETY: our own descriptor, and plain integers.
        unsafe {
            assert!(refused(libc::ftruncate(fd, 0)), "pages are cut off");
            for more in [libc::F_SEAL_GROW, libc::F_SEAL_FUTURE_WRITE] {
                assert!(refused(libc::fcntl(fd, libc::F_ADD_SEALS, more)), "{more}");
            }
            pages.start().write(7);
        }
    }

    #[test]
    fn a_file_that_another_process_made_longer_still_grows() {
        let file = PageFile::new().unwrap();
        let first = file.map(4096).unwrap();
        let fd = file.file.as_raw_fd();
        // SAFETY: our own descriptor, and a plain integer.
        assert_eq!(unsafe { libc::ftruncate(fd, 1 << 30) }, 0);
        let second = file.map(4096).unwrap();
        assert_eq!(second.of.as_ref().unwrap().1, PLACE);
        drop(first);
        // SAFETY: the first byte of new pages.
        unsafe { second.start().write(7) };
    }
}
