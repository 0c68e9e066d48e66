//! Memory that a child of `fork(2)` does not inherit.

use std::ptr::{self, NonNull};

/// A page that is zero in each child, by whatever call it was made (`MADV_WIPEONFORK`, Linux 4.14),
/// and in no core dump. A child of `vfork(2)` shares it with its parent, as all memory.
pub struct WipedPage(NonNull<[u8; WipedPage::BYTES]>);

// SAFETY: the page belongs to this value alone.
unsafe impl Send for WipedPage {}
// SAFETY: as above; a shared reference gives no access to the page.
unsafe impl Sync for WipedPage {}

impl WipedPage {
    /// Length of the page: the smallest that a processor has.
    pub const BYTES: usize = 4096;
    /// Length of its mapping, of which the rest is never touched: it does not fit where a program
    /// has unmapped a few pages, which peers may still have a key to.
    const MAPPED: usize = 1 << 16;

    /// A page of zeros; `None` if the system has none to give.
    pub fn new() -> Option<WipedPage> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let page = unsafe { libc::mmap(ptr::null_mut(), Self::MAPPED, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        let this = WipedPage(NonNull::new(page.cast())?);
        // SAFETY: the mapping above, which nothing else uses.
        unsafe {
            // A kernel that dumps it all the same shows no more than the rest of the memory does.
            libc::madvise(page, Self::MAPPED, libc::MADV_DONTDUMP);
            (libc::madvise(page, Self::MAPPED, libc::MADV_WIPEONFORK) == 0).then_some(this)
        }
    }

    /// The bytes of the page.
    pub fn bytes(&mut self) -> &mut [u8; Self::BYTES] {
        // SAFETY: the mapping lives as long as this value, whose only reference this is; all bytes
        // are initialized, also after the kernel has wiped them.
        unsafe { self.0.as_mut() }
    }

    /// The page, which stays mapped until the process ends.
    pub(crate) fn leak(self) -> *mut u8 {
        let page = self.0.as_ptr().cast();
        std::mem::forget(self);
        page
    }
}

impl Drop for WipedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::MAPPED) };
    }
}
