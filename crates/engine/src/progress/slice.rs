//! Short scheduling slices for threads that run the worker.
//!
//! A thread with shorter slices gets its turn sooner (EEVDF, Linux 6.12), and no larger share of
//! the processor: beside busy threads it waits for milliseconds, where one of low weight otherwise
//! waits for hundreds.

use std::cell::Cell;
use std::mem::size_of;

/// Shortest slice that the kernel accepts.
const SLICE_NS: u64 = 100_000;

/// `struct sched_attr` of `sched_setattr(2)`.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

/// Gives the calling thread short slices, if the kernel knows them and the thread has the default
/// policy. Threads and processes that it makes later inherit them, as they inherit its `nice`
/// value.
pub(crate) fn shorten() {
    thread_local! {
        static SHORT: Cell<bool> = const { Cell::new(false) };
    }
    // A thread that ends, and waits in a destructor of another thread-local value, keeps its
    // slices.
    if SHORT.try_with(|short| short.replace(true)).unwrap_or(true) {
        return;
    }
    let Some(mut attr) = attributes() else {
        return;
    };
    let is_ordinary = matches!(
        i32::try_from(attr.policy),
        Ok(libc::SCHED_OTHER | libc::SCHED_BATCH)
    );
    if !is_ordinary || attr.runtime <= SLICE_NS {
        return;
    }
    attr.size = size_of::<SchedAttr>() as u32;
    attr.runtime = SLICE_NS;
    // SAFETY: `attr` is one sched_attr of `size` bytes. If this is forbidden, nothing changes.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// Whether the kernel gives a thread of the default policy the slices that it requests.
pub fn offered() -> bool {
    // Kernels before 6.12 have no slices to request, and return 0.
    attributes().is_some_and(|attr| attr.runtime != 0)
}

/// The scheduling attributes of the calling thread.
fn attributes() -> Option<SchedAttr> {
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>() as u32;
    // SAFETY: the kernel fills in at most `size` bytes of `attr`, of the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    (got == 0).then_some(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> u64 {
        attributes().unwrap().runtime
    }

    #[test]
    fn a_thread_has_short_slices_where_the_kernel_has_them() {
        std::thread::spawn(|| {
            let before = runtime();
            shorten();
            let expected = if before == 0 { 0 } else { SLICE_NS };
            assert_eq!(runtime(), expected);
        })
        .join()
        .unwrap();
    }
}
