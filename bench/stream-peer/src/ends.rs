//! What a discipline offers to the measured programs.

use std::time::Instant;

use crate::load::Stamp;

/// The sending end.
pub trait Sending {
    /// Whether a frame of the device can leave now: it takes in what the peer has told, and asks
    /// it where the discipline asks.
    fn has_room(&mut self, device: u32) -> anyhow::Result<bool>;

    /// Sends a frame, after [`Sending::has_room`].
    fn send(&mut self, stamp: &Stamp) -> anyhow::Result<()>;

    /// Sleeps until the peer has told something, at most until then.
    fn wait(&mut self, until: Instant) -> anyhow::Result<()>;

    /// What the NIC has of this end.
    fn resources(&self) -> Resources;
}

/// The receiving end.
pub trait Receiving {
    /// A block that is not free.
    type Block;

    /// The next frame, and its block; waits for it, at most until then.
    fn next(&mut self, until: Instant) -> anyhow::Result<Option<(Stamp, Self::Block)>>;

    /// Says that a block will be kept.
    fn keep(&mut self, block: &Self::Block);

    /// Frees a block.
    fn free(&mut self, block: Self::Block) -> anyhow::Result<()>;

    /// What the NIC has of this end.
    fn resources(&self) -> Resources;
}

/// Queues of an end: what a NIC would hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Resources {
    pub queue_pairs: u32,
    /// Entries of all send queues together, and so on.
    pub sends: u32,
    pub receives: u32,
    pub completions: u32,
}
