//! The count of what a device holds.

/// What a device holds on to; all zero once everything that was created is destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Memory regions and windows.
    pub regions: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Shared receive queues.
    pub shared_queues: usize,
    /// Timers that are set.
    pub timers: usize,
    /// Queue pairs that wait for their turn to send.
    pub waiting: usize,
    /// Peers that a window is kept for.
    pub peers: usize,
    /// Processes of other hosts that are asked for more than RoCEv2 or agreed on it, and hosts with
    /// a rate.
    pub air_peers: usize,
    /// Bytes of shared memory that rings take.
    pub ring_bytes: usize,
}
