//! Takes completions from a queue, in batches.

use airdma_engine::{Completion, Cq, Error};

/// Completions taken at a time.
pub(crate) const BATCH: usize = 16;

/// Takes what the queue holds; runs the device if that is nothing. Returns whether there was
/// anything.
pub(crate) fn take(
    cq: &Cq,
    batch: &mut Vec<Completion>,
    mut enter: impl FnMut(&[Completion]),
) -> bool {
    let mut any = false;
    loop {
        let taken = next(batch, &mut enter, |sink| cq.poll(BATCH, sink));
        any |= taken > 0;
        // Polling an empty queue again would run the device again.
        if taken < BATCH {
            return any;
        }
    }
}

/// Takes what the queue holds, and arms it for later completions, or only those that are solicited
/// or unsuccessful; `runs` the device once before. Returns whether there was anything.
pub(crate) fn take_and_arm(
    cq: &Cq,
    runs: bool,
    solicited_only: bool,
    batch: &mut Vec<Completion>,
    mut enter: impl FnMut(&[Completion]),
) -> bool {
    let mut any = runs
        && next(batch, &mut enter, |sink| {
            cq.arm_and_poll(solicited_only, BATCH, sink)
        }) > 0;
    while next(batch, &mut enter, |sink| {
        cq.arm_and_take(solicited_only, BATCH, sink)
    }) > 0
    {
        any = true;
    }
    any
}

fn next(
    batch: &mut Vec<Completion>,
    enter: &mut impl FnMut(&[Completion]),
    poll: impl FnOnce(&mut dyn FnMut(Completion)) -> Result<usize, Error>,
) -> usize {
    batch.clear();
    // Fails only in a child after fork, where nothing completes.
    let taken = poll(&mut |completion| batch.push(completion)).unwrap_or(0);
    if taken > 0 {
        enter(batch);
    }
    taken
}
