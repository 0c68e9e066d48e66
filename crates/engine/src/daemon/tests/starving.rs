//! Processes that write to a ring while the worker takes from it: its loops end all the same.

use super::raw::{RELEASED, drain, fill, word};
use super::{Running, in_network};
use crate::common::{CAPS, End, Host, LEFT, host};
use crate::control::QueueControl;
use crate::worker::Work;
use crate::{AttrMask, QpAttributes, QpState, QpType, Qpn};
use airdma_shm::Block;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Calls `call` for a while, and a thread does `meanwhile` without end. Returns the most that was
/// released of a ring during one of the calls.
fn most_released(block: &Block, mut call: impl FnMut(), meanwhile: impl Fn() + Sync) -> u32 {
    let released = || word(block, RELEASED).load(Ordering::Acquire);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                meanwhile();
            }
        });
        let (start, mut most) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(100) {
            let before = released();
            call();
            most = most.max(released().wrapping_sub(before));
        }
        is_over.store(true, Ordering::Relaxed);
        most
    })
}

/// An overrun of a queue ends its part: there is another one each time.
const TRIES: usize = 10;

#[test]
fn a_round_takes_no_more_than_was_posted_before_it() {
    let host = host("posting", LEFT);
    let most = (0..TRIES).map(|_| most_of_a_round(&host)).max().unwrap();
    assert!((1..=CAPS.max_send_wr).contains(&most), "{most} in a round");
}

fn most_of_a_round(host: &Host) -> u32 {
    let end = End::new(host.device.device(), QpType::Rc, 4096);
    let error = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    end.qp.modify(&error, AttrMask::STATE).unwrap();
    let shared = &end.qp.shared;
    let sends = Arc::clone(shared.send.lock().unwrap().block());
    let completions = end.cq.memory();
    let core = end.device.core();
    let round = || {
        core.doorbells.ring(shared.doorbell().get());
        core.try_progress(Work::All);
    };
    most_released(&sends, round, || {
        fill(&sends, CAPS.max_send_wr);
        drain(&completions);
    })
}

#[test]
fn a_purge_ends_while_completions_come_without_end() {
    const SLOTS: u32 = 16;
    in_network(
        "starving::a_purge_ends_while_completions_come_without_end",
        || {
            let running = Running::start("purging");
            let raw = running.raw("veth1");
            let most_of_a_purge = |_| {
                let cq = raw.create_cq(&raw.arena, SLOTS).unwrap();
                let completions = cq.producer.block();
                let call = QueueControl::PurgeCompletions {
                    cq: cq.handle,
                    of: Qpn::new(0),
                };
                // Its end of the ring fails now and then: both indices were written meanwhile.
                let purge = || drop(raw.queue(call));
                most_released(completions, purge, || fill(completions, SLOTS))
            };
            let most = (0..TRIES).map(most_of_a_purge).max().unwrap();
            assert!((1..=SLOTS).contains(&most), "{most} in a queue of {SLOTS}");
        },
    );
}
