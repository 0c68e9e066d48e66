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

/// Most packets that one may be ahead of the expected one, which a requester never exceeds.
pub(crate) const AHEAD_MAX: u32 = 8192;

/// A range of missing packets, behind which later ones have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsnRange {
    /// PSN of the first.
    pub first: Psn,
    /// Number of packets.
    pub packets: u32,
}

/// Report of a peer with selective repeat on its progress with our packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement<'a> {
    /// PSN of the first packet that it has not executed.
    pub expected: Psn,
    /// Missing packets from there on, as far as it knows of later ones.
    pub missing: &'a [PsnRange],
    /// Smoothed round trip to the peer.
    pub rtt: Duration,
    /// How long beyond that the peer may wait before it reports.
    pub told_within: Duration,
}

/// Our progress must be reported to a peer: at some time, or for these reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Whether the peer waits for the report.
    pub is_asked: bool,
    /// Whether packets are missing that the peer may not know of.
    pub has_gap: bool,
}
