//! What the shim did, for the line at exit.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Connections that got a lane.
    Lanes,
    /// Peers that failed to prove that they hold the connection.
    Forged,
    /// Bytes sent by lanes.
    Sent,
    /// Bytes received by lanes.
    Received,
    /// Lanes that ended because the peer or the path was gone.
    Failed,
    /// Connections that were handed back to the kernel.
    HandedBack,
    /// Lanes of datagrams, at each end.
    DatagramLanes,
    /// Datagrams sent by lanes.
    DatagramsSent,
    /// Datagrams received by lanes.
    DatagramsReceived,
    /// Notes whose datagrams did not come.
    DatagramsLost,
}

static COUNTERS: [AtomicU64; 10] = [const { AtomicU64::new(0) }; 10];

/// Adds to a counter.
pub fn add(counter: Counter, count: u64) {
    COUNTERS[counter as usize].fetch_add(count, Ordering::Relaxed);
}

/// The value of a counter.
pub fn value(counter: Counter) -> u64 {
    COUNTERS[counter as usize].load(Ordering::Relaxed)
}

/// In a child after fork.
pub fn reset() {
    for counter in &COUNTERS {
        counter.store(0, Ordering::Relaxed);
    }
}
