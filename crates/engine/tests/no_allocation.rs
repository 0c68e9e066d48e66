//! After warm-up nothing on the way of a message allocates.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn sends_writes_reads_and_atomics_do_not_allocate_after_warm_up() {
    let (left, right) = sockets("127.0.0.27", "127.0.0.28");
    let (left, right) = pair_on(&left, &right, 1 << 16);
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    let operations = [
        (Operation::Send, 3000),
        (Operation::Write { va, rkey }, 1 << 16),
        (Operation::Read { va, rkey }, 1 << 16),
        (Operation::FetchAdd { va, rkey, add: 1 }, 8),
    ];
    let round = || {
        for (operation, length) in operations {
            let sges = [left.memory.sge(0, length)];
            let flags = SendFlags::SIGNALLED;
            let wr = SendWr {
                wr_id: 1,
                operation,
                sges: &sges,
                flags,
                datagram: None,
                srqn: 0,
            };
            if matches!(operation, Operation::Send) {
                right.recv(1, 0, length);
            }
            let mut post = left.qp.begin_post_send();
            post.push(&wr).unwrap();
            if !matches!(operation, Operation::Send) {
                post.push(&wr).unwrap();
            }
            drop(post);
            let mut batch = left.qp.begin_batch();
            batch.begin(1, Operation::Write { va, rkey }, SendFlags::empty());
            batch.set_sges(&sges);
            batch.begin(1, Operation::Write { va, rkey }, SendFlags::empty());
            batch.set_inline([&[1; 8][..], &[2; 8][..]]);
            batch.commit().unwrap();
            left.ok();
            if matches!(operation, Operation::Send) {
                right.ok();
            } else {
                left.ok();
            }
        }
    };
    // Each length of a packet costs memory once, when it is first not the head of a burst (`IdSpaces`). A write behind two atomics
    // comes to be in their burst only when both lists go out at once, so that is done here on purpose.
    let mut batch = left.qp.begin_batch();
    for add in [1, 2] {
        batch.begin(
            1,
            Operation::FetchAdd { va, rkey, add },
            SendFlags::SIGNALLED,
        );
        batch.set_sges(&[left.memory.sge(0, 8)]);
    }
    batch.begin(1, Operation::Write { va, rkey }, SendFlags::empty());
    batch.set_sges(&[left.memory.sge(0, 8)]);
    batch.commit().unwrap();
    left.ok();
    left.ok();
    for _ in 0..100 {
        round();
    }
    // The helper threads are counted too, whatever they do meanwhile.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..200 {
        round();
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(allocations, 0, "in 200 rounds of about 260 packets");
}
