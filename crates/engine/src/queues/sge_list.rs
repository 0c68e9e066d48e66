//! Scatter/gather lists in the slots of rings.

use airdma_shm::{Corrupt, SlotRef, Wqe};

/// Bytes that a list of `count` elements holds.
pub(crate) fn list_bytes<H: Wqe>(slot: SlotRef<'_>, count: u32) -> Result<u64, Corrupt> {
    (0..count).try_fold(0, |sum, index| {
        Ok(sum + u64::from(slot.sge::<H>(index)?.length))
    })
}
