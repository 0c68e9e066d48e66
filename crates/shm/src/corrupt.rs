//! Errors for what the other side of shared memory wrote against the protocol.

/// The other side wrote something that no correct program writes.
///
/// The other side is to blame, not the caller: the queue goes to its error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Corrupt {
    /// A ring index moved backwards, or further than the ring is long.
    #[error("the other side of a shared ring wrote an impossible index")]
    Index,
    /// A slot says it holds more than fits in it.
    #[error("a slot of a shared ring claims more entries or bytes than it has room for")]
    SlotBounds,
    /// The header of a ring does not describe a ring that fits its memory.
    #[error("the header of a shared ring does not fit the memory it lies in")]
    Geometry,
}
