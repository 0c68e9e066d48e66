//! Events by time.

use core::cmp::Ordering;

use airdma_transport::Time;

use crate::link::Carried;

/// A packet that reaches a place at a time.
pub(super) struct Event {
    pub(super) at: Time,
    pub(super) order: u64,
    pub(super) place: Place,
    pub(super) carried: Carried,
}

/// Place of a packet.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// In front of a stage of the link of a wire.
    Stage { wire: usize, stage: usize },
    /// End of a wire.
    End { wire: usize },
    /// At a host, past all wires.
    Host(usize),
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The earliest event is the greatest, for the heap.
impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
