//! What the shim did: for the line at exit, and, of all processes together, for
//! `airdma devices -v`.

use std::sync::atomic::{AtomicU64, Ordering};

pub use airdma::SocketCounter as Counter;
use airdma::{Device, Endpoint};

use crate::hand_back::Need;

const COUNTERS: usize = Counter::DatagramsLost as usize + 1;
static HERE: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];

/// Connections that were handed back, by reason.
const BACK: [(Counter, &str); 6] = [
    (Counter::BackForPeer, "for the peer"),
    (Counter::BackForFork, "for a fork"),
    (Counter::BackForClose, "to close"),
    (Counter::BackForShutdown, "to shut"),
    (Counter::BackForExit, "at the end"),
    (
        Counter::BackForKernel,
        "for a call that lanes do not support",
    ),
];

/// What counts for all processes.
pub trait Counting {
    /// Adds to a counter of the device.
    fn count(&self, counter: Counter, amount: u64);
}

impl Counting for Device {
    fn count(&self, counter: Counter, amount: u64) {
        self.count_sockets(counter, amount);
    }
}

impl Counting for Endpoint {
    fn count(&self, counter: Counter, amount: u64) {
        self.count_sockets(counter, amount);
    }
}

/// Adds to a counter of a device and of this process.
pub fn add(of: &impl Counting, counter: Counter, amount: u64) {
    of.count(counter, amount);
    add_here(counter, amount);
}

/// Adds to a counter of this process alone: it has no device.
pub fn add_here(counter: Counter, amount: u64) {
    HERE[counter as usize].fetch_add(amount, Ordering::Relaxed);
}

/// The value of a counter of this process.
pub fn value(counter: Counter) -> u64 {
    HERE[counter as usize].load(Ordering::Relaxed)
}

/// The counter of connections that are handed back for a need of this end, or of the peer.
pub fn of_need(need: Option<Need>) -> Counter {
    match need {
        None => Counter::BackForPeer,
        Some(Need::Fork) => Counter::BackForFork,
        Some(Need::End) => Counter::BackForClose,
        Some(Need::Shutdown) => Counter::BackForShutdown,
        Some(Need::Exit) => Counter::BackForExit,
        Some(Need::All) => Counter::BackForKernel,
    }
}

/// How many connections of this process were handed back, and why: "3 (2 for the peer, 1 to
/// close)".
pub fn handed_back() -> String {
    let reasons = BACK.map(|(counter, why)| (value(counter), why));
    let all: u64 = reasons.iter().map(|(count, _)| count).sum();
    let some = reasons.iter().filter(|(count, _)| *count > 0);
    let each: Vec<String> = some.map(|(count, why)| format!("{count} {why}")).collect();
    if each.is_empty() {
        return all.to_string();
    }
    format!("{all} ({})", each.join(", "))
}

/// In a child after fork.
pub fn reset() {
    for counter in &HERE {
        counter.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_were_handed_back_are_told_by_reason() {
        assert_eq!(handed_back(), "0");
        for (need, times) in [(None, 2), (Some(Need::End), 1)] {
            add_here(of_need(need), times);
        }
        assert_eq!(handed_back(), "3 (2 for the peer, 1 to close)");
        reset();
        assert_eq!(handed_back(), "0");
    }
}
