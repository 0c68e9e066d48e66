//! Selective repeat: what was lost is sent again, and nothing else, where both ends have agreed on
//! it.
//!
//! | file | what |
//! | --- | --- |
//! | `responder.rs` | [`Reorder`]: packets that came before their turn, and what is missing |
//! | `requester.rs` | [`Repair`]: what the peer or a later answer says is missing, when it is sent again, probes |
//! | `sack.rs` | ACK packets that say what is missing ([`Seth`](airdma_wire::Seth)), where no reports do |
//! | `memory.rs` | the memory for what is kept, which the queue pairs of a device share |
//!
//! Neither half knows the queues of its end: `requester/selective.rs` and `responder/selective.rs`
//! ask them, and act.

mod memory;
mod requester;
mod responder;
pub(crate) mod sack;

use std::time::Duration;

use airdma_wire::Psn;

pub use self::memory::ReorderMemory;
pub(crate) use self::requester::{Flight, Repair};
pub(crate) use self::responder::{Next, Reorder};

/// How far ahead of the expected packet one may be. A requester has no more under way.
pub(crate) const AHEAD_MAX: u32 = 8192;

/// Packets that have not come, although later ones have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsnRange {
    /// PSN of the first.
    pub first: Psn,
    /// How many.
    pub packets: u32,
}

/// What a peer that repeats selectively says of how far it is with our packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement<'a> {
    /// PSN of the first packet that it has not executed.
    pub expected: Psn,
    /// What is missing from there on, as far as it knows of later packets.
    pub missing: &'a [PsnRange],
    /// Round trip to it, smoothed.
    pub rtt: Duration,
    /// How long beyond that the peer may wait before it says something.
    pub told_within: Duration,
}

/// A peer is to be told how far we are with its packets: some time, or for these reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// It waits for it.
    pub is_asked: bool,
    /// Packets are missing that it may not know of.
    pub has_gap: bool,
}
