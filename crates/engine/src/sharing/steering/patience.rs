//! How long a process waits for the lock of the registry.
//!
//! The lock is held for microseconds, but its holder may be starved of its processor for seconds,
//! and a hundred processes that start together wait for each other. Only a holder that is stopped
//! (SIGSTOP, a debugger) is not waited for.

use std::time::{Duration, Instant};

/// Time for which one process may hold the lock before it is asked whether it is stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(1);
/// Time for which one process may hold the lock at all.
const HELD_MAX: Duration = Duration::from_secs(5);
/// Time for which one process after the other may hold it.
const WAIT_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_micros(200);

/// A wait for the lock.
pub(super) struct Patience {
    began: Instant,
    longest: Duration,
    /// Process that changes the registry, and since when it is that one.
    holder: (u32, Instant),
}

impl Patience {
    pub(super) fn new() -> Self {
        Self::at_most(WAIT_MAX)
    }

    pub(super) fn at_most(longest: Duration) -> Self {
        let began = Instant::now();
        Patience {
            began,
            longest,
            holder: (0, began),
        }
    }

    /// Pauses before the next attempt, unless it has no prospect. `holder` is the process that
    /// changes the registry, 0 if unknown.
    pub(super) fn pauses(&mut self, holder: u32) -> bool {
        let now = Instant::now();
        if self.holder.0 != holder {
            self.holder = (holder, now);
        }
        let held = now - self.holder.1;
        if now - self.began >= self.longest
            || held >= HELD_MAX
            || held >= STOPPED_AFTER && holder != 0 && !runs(holder)
        {
            return false;
        }
        std::thread::sleep(PAUSE);
        true
    }
}

/// Whether the process is there and not stopped. One of another pid namespace is not there.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // "pid (name) state ...": the name may have parentheses of its own (proc(5)).
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'T' | 't' | 'Z' | 'X'))
}
