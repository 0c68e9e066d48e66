//! The shim's own descriptors: those that its threads, and the program's inside the shim, open.
//!
//! They get numbers that programs seldom reach, so that the program's are the lowest free ones as
//! without the shim. A program that closes all descriptors does not close these.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use airdma_preload::errno;

use crate::inside::is_inside;
use crate::next;

/// Numbers at the end of those that the process may have.
const ROOM: libc::rlim_t = 256;
/// Limit of the process from which on they are at the end of that many: the kernel's table of
/// descriptors is as long as the highest number.
const ENOUGH: libc::rlim_t = 4096;
/// Lowest number under a small limit.
const FROM: libc::rlim_t = 200;
const DESCRIPTORS: usize = 1 << 16;

/// A set of descriptors.
struct Set([AtomicU64; DESCRIPTORS / 64]);

/// Descriptors of the shim, and those of them that hold connections which the program has closed.
static OWN: Set = Set::new();
static LEFT: Set = Set::new();
/// Epoll sets of the program: those that it made, duplicates of them, and those whose members it
/// changed, which it may have from another process.
static EPOLL_SETS: Set = Set::new();

impl Set {
    const fn new() -> Set {
        Set([const { AtomicU64::new(0) }; DESCRIPTORS / 64])
    }

    fn bit(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    #[inline]
    fn has(&self, fd: c_int) -> bool {
        self.bit(fd)
            .is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn add(&self, fd: c_int) {
        if let Some((word, bit)) = self.bit(fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn remove(&self, fd: c_int) {
        if let Some((word, bit)) = self.bit(fd) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn each(&self, mut of: impl FnMut(c_int)) {
        for (index, word) in self.0.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                of((index * 64) as c_int + bits.trailing_zeros() as c_int);
                bits &= bits - 1;
            }
        }
    }
}

/// Whether the descriptor is the shim's.
#[inline]
pub fn is_own(fd: c_int) -> bool {
    OWN.has(fd)
}

/// Marks a descriptor that the shim has opened.
pub fn mark(fd: c_int) -> c_int {
    OWN.add(fd);
    fd
}

/// A descriptor that the shim closes is no longer its own.
pub fn unmark(fd: c_int) {
    OWN.remove(fd);
}

/// A descriptor of the shim for the connection of `fd`, which the program closes; `None` if there
/// is none left.
pub fn leave(fd: c_int) -> Option<c_int> {
    // Where the numbers at the end are used up, others far from those of the program.
    let another = |least| {
        // SAFETY: plain integers.
        unsafe { next::fcntl(fd, libc::F_DUPFD_CLOEXEC, least) }
    };
    let mut least = [lowest(), lowest() / 2].into_iter();
    let left = least.find_map(|least| Some(another(least)).filter(|left| *left >= 0))?;
    LEFT.add(mark(left));
    Some(left)
}

/// Closes a descriptor of [`leave`].
pub fn close_left(left: c_int) {
    unmark(left);
    // SAFETY: a descriptor of the shim, which has no other use.
    unsafe { next::close(left) };
    LEFT.remove(left);
}

/// Devices that are being opened: descriptors of the shim have low numbers for moments.
static OPENING: AtomicU32 = AtomicU32::new(0);
/// How long a call of the program waits for that.
const OPENED_WITHIN: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(100);

/// Opens a device.
pub fn opening<T>(open: impl FnOnce() -> T) -> T {
    OPENING.fetch_add(1, Ordering::SeqCst);
    let opened = open();
    OPENING.fetch_sub(1, Ordering::SeqCst);
    opened
}

/// Before a call of the program opens a descriptor: its number is the lowest that is free without
/// the shim.
#[inline]
pub fn settle() {
    if OPENING.load(Ordering::SeqCst) > 0 && !is_inside() {
        let start = Instant::now();
        while OPENING.load(Ordering::SeqCst) > 0 && start.elapsed() < OPENED_WITHIN {
            std::thread::sleep(PAUSE);
        }
    }
}

/// In a child after fork: the thread that opened a device is not there. Connections that the
/// program has closed end with the parent's descriptors.
pub fn in_child() {
    OPENING.store(0, Ordering::SeqCst);
    LEFT.each(close_left);
}

/// The program has an epoll set of that number.
#[inline]
pub fn note_epoll_set(set: c_int) {
    if !EPOLL_SETS.has(set) {
        EPOLL_SETS.add(set);
    }
}

/// After the program made `to` from `fd`.
pub fn duplicate_epoll_set(fd: c_int, to: c_int) {
    if EPOLL_SETS.has(fd) {
        EPOLL_SETS.add(to);
    } else {
        EPOLL_SETS.remove(to);
    }
}

/// The number is no longer that of an epoll set.
#[inline]
pub fn forget_epoll_set(fd: c_int) {
    if EPOLL_SETS.has(fd) {
        EPOLL_SETS.remove(fd);
    }
}

/// Takes a descriptor out of all epoll sets of the program. One that was closed unseen is found out
/// by the kernel.
pub fn leave_epoll_sets(fd: c_int) {
    EPOLL_SETS.each(|set| {
        // SAFETY: plain integers.
        let left = unsafe { next::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) };
        if left != 0 && matches!(errno::current(), libc::EBADF | libc::EINVAL) {
            EPOLL_SETS.remove(set);
        }
    });
}

/// The lowest number that a descriptor of the shim should have.
pub fn lowest() -> libc::c_ulong {
    limit().min(ENOUGH).saturating_sub(ROOM).max(FROM)
}

/// How many descriptors the process may have.
pub fn limit() -> libc::rlim_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure of the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Moves a descriptor that the shim has opened, and marks it.
pub fn take(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: a descriptor that was just opened.
    let moved = unsafe { next::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest()) };
    if moved < 0 {
        return mark(fd);
    }
    // SAFETY: as above.
    unsafe { next::close(fd) };
    mark(moved)
}

/// The parts of a range of descriptors without the shim's own.
pub fn without_own(first: u32, last: u32, mut each: impl FnMut(u32, u32)) {
    let mut start = first;
    let end = last.min(DESCRIPTORS as u32 - 1);
    for fd in first..=end {
        if is_own(fd as c_int) {
            if start < fd {
                each(start, fd - 1);
            }
            start = fd + 1;
        }
    }
    if start <= last {
        each(start, last);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_range_leaves_out_what_is_the_shims() {
        let parts = |first, last| {
            let mut parts = Vec::new();
            without_own(first, last, |first, last| parts.push((first, last)));
            parts
        };
        assert_eq!(parts(60_000, u32::MAX), [(60_000, u32::MAX)]);
        mark(60_003);
        mark(60_004);
        assert_eq!(
            parts(60_000, u32::MAX),
            [(60_000, 60_002), (60_005, u32::MAX)]
        );
        assert_eq!(parts(60_003, 60_004), []);
        unmark(60_003);
        assert_eq!(parts(60_003, 60_004), [(60_003, 60_003)]);
        unmark(60_004);
    }

    #[test]
    fn epoll_sets_alone_are_taken_for_such() {
        let (read, _write) = std::io::pipe().unwrap();
        // SAFETY: the test's own descriptors.
        unsafe {
            let set = libc::epoll_create1(0);
            let copy = libc::dup(set);
            let of_pipe = libc::dup(read.as_raw_fd());
            let is = [set, copy, of_pipe].map(|fd| EPOLL_SETS.has(fd));
            assert_eq!(
                is,
                [true, true, false],
                "by its making, a duplicate, a pipe"
            );
            assert_eq!(libc::dup2(of_pipe, set), set);
            assert_eq!(libc::close(copy), 0);
            let is = [set, copy].map(|fd| EPOLL_SETS.has(fd));
            assert_eq!(is, [false, false], "replaced, closed");
            assert_eq!(
                libc::epoll_ctl(of_pipe, libc::EPOLL_CTL_DEL, set, ptr::null_mut()),
                -1
            );
            assert!(!EPOLL_SETS.has(of_pipe), "refused");
            // A number that was closed unseen.
            EPOLL_SETS.add(of_pipe);
            leave_epoll_sets(set);
            assert!(!EPOLL_SETS.has(of_pipe));
            libc::close(of_pipe);
            libc::close(set);
        }
    }
}
