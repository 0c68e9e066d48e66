//! The two functions that the counter knows by name.
//!
//! `valgrind --tool=callgrind --toggle-collect=airdma_near --toggle-collect=airdma_far` counts what
//! runs inside them, and nothing of what is around: preparation, warm-up, and moving the clock. A
//! side is a name, so that one run tells what the end that asks pays, and what the end that serves
//! it pays.

use std::cell::Cell;

thread_local! {
    /// Warm-up is over.
    static COUNTING: Cell<bool> = const { Cell::new(false) };
}

/// From now on it counts.
pub fn begin() {
    COUNTING.set(true);
}

/// From now on it does not.
pub fn end() {
    COUNTING.set(false);
}

/// Runs something of the end that asks.
pub fn near(mut call: impl FnMut()) {
    if COUNTING.get() {
        airdma_near(&mut call);
    } else {
        call();
    }
}

/// Runs something of the end that is asked.
pub fn far(mut call: impl FnMut()) {
    if COUNTING.get() {
        airdma_far(&mut call);
    } else {
        call();
    }
}

// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
fn airdma_near(call: &mut dyn FnMut()) {
    call();
}

// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
fn airdma_far(call: &mut dyn FnMut()) {
    call();
    // Unlike the other, lest the two become one.
    std::hint::black_box(0);
}
