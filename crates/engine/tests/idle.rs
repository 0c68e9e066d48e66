//! A device that has nothing to do costs nothing, whatever happened before.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One test at a time: they measure the process.
static ALONE: Mutex<()> = Mutex::new(());

/// Processor time of this process so far, all threads.
fn used() -> Duration {
    // SAFETY: zeroed is a valid rusage, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn helpers_sleep_after_polls_waits_and_one_sided_traffic() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (left, right) = sockets("127.0.0.29", "127.0.0.30");
    let (left, right) = pair_on(&left, &right, 4096);
    for round in 0..20 {
        // Polls, and a peer that does nothing.
        left.qp.post_send(&left.write(&right, 0, 4096)).unwrap();
        left.ok();
        // A thread that blocks, leaves, and does not come back.
        right.recv(round, 0, 8);
        right.cq.arm(false).unwrap();
        left.send(Operation::Send, 0, 8);
        assert_eq!(right.channel.wait_event().unwrap(), 42);
        right.ok();
        left.ok();
    }
    // Time for the back-off to end and for timers that are no longer needed.
    std::thread::sleep(Duration::from_millis(300));
    let before = used();
    let span = Duration::from_millis(500);
    std::thread::sleep(span);
    let used = used() - before;
    assert!(used < span / 20, "{used:?} of processor time in {span:?}");
}

/// Threads of this process that serve one device.
fn helpers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names = threads.filter_map(|thread| name(thread.ok()?).ok());
    names.filter(|name| name.trim() == "airdma-helper").count()
}

#[test]
fn an_idle_device_has_no_thread_and_serves_its_peers() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (left, right) = {
        let (left, right) = sockets("127.0.0.31", "127.0.0.32");
        pair_on(&left, &right, 4096)
    };
    for round in 0..2 {
        wait_until("both devices are idle", || helpers() == 0);
        // The right end makes no calls.
        left.memory.fill(0, &pattern(4096, round));
        left.qp.post_send(&left.write(&right, 0, 4096)).unwrap();
        left.ok();
        assert_eq!(right.memory.bytes(0, 4096), pattern(4096, round));
        assert!(helpers() > 0, "a busy device has one");
    }
    // What a thread waits for on a channel, too.
    wait_until("both devices are idle", || helpers() == 0);
    right.recv(1, 0, 8);
    right.cq.arm(false).unwrap();
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        left.send(Operation::Send, 0, 8);
        left.ok();
        left
    });
    assert_eq!(right.channel.wait_event().unwrap(), 42);
    right.ok();
    drop(sender.join().unwrap());
    drop(right);
    assert_eq!(helpers(), 0, "closed devices have none");
}
