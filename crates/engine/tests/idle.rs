//! A device that has nothing to do costs nothing, whatever happened before.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::time::Duration;

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
