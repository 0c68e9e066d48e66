//! The state of a device that belongs to no single queue pair, apart from the worker's own.

use crate::memory::MemoryTable;
use crate::random::Random;
use crate::seal::Secret;
use crate::sharing::steering::Steering;
use crate::tables::cq_table::CqTable;
use crate::tables::srq_table::SrqTable;
use airdma_wire::Neighbour;
use std::sync::Arc;

/// Memory keys, completion queues, shared receive queues and addresses of a device, which all of
/// its queue pairs use.
pub(crate) struct DeviceTables {
    pub(crate) memory: MemoryTable,
    pub(crate) srqs: SrqTable,
    pub(crate) cqs: CqTable,
    /// The addresses of the GID table, as the port has them.
    pub(crate) rows: Vec<Option<Neighbour>>,
    /// Where other processes have the same addresses.
    pub(crate) steering: Option<Arc<Steering>>,
    /// All connections are sealed with this secret, and no others are made.
    pub(crate) secret: Option<Secret>,
}

impl DeviceTables {
    /// `random`: for memory keys.
    pub(crate) fn new(random: Random) -> Self {
        DeviceTables {
            memory: MemoryTable::new(random),
            srqs: SrqTable::default(),
            cqs: CqTable::default(),
            rows: Vec::new(),
            steering: None,
            secret: None,
        }
    }
}
