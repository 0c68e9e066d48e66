//! The completion counters of a queue pair.

use crate::error::Error;
use crate::queues::sge_list::list_bytes;
use airdma_shm::{SendWqe, SlotRef};
use airdma_transport::{CompletionOpcode, Operation, PackedOperation, Status};
use bitflags::bitflags;
use std::sync::Arc;

bitflags! {
    /// What is counted; the values of `ibv_qp_attach_comp_cntr_op`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CountedOperations: u32 {
        /// SENDs of any kind.
        const SEND = 1;
        /// Receives.
        const RECV = 2;
        /// RDMA READs.
        const READ = 4;
        /// RDMA WRITEs of any kind but the atomic one.
        const WRITE = 16;
    }
}

/// What counts as which kind of send; other operations are not counted.
const COUNTED: [(CompletionOpcode, CountedOperations); 3] = [
    (CompletionOpcode::Send, CountedOperations::SEND),
    (CompletionOpcode::Write, CountedOperations::WRITE),
    (CompletionOpcode::Read, CountedOperations::READ),
];

/// A counter of completions that queue pairs feed.
pub(crate) trait CountsCompletions: Send + Sync {
    /// Counts one completion of `bytes`.
    fn count(&self, status: Status, bytes: u64);
    /// A queue pair feeds the counter from now on.
    ///
    /// # Errors
    /// `EINVAL` for a counter that was destroyed.
    fn acquire(&self) -> Result<(), Error>;
    /// A queue pair does not feed it any more.
    fn release(&self);
}

/// The counters of a queue pair: each operation has one at most.
#[derive(Default)]
pub(crate) struct AttachedCounters(Vec<(CountedOperations, Arc<dyn CountsCompletions>)>);

impl AttachedCounters {
    /// Attaches one more.
    ///
    /// # Errors
    /// `EBUSY` if one of the operations has a counter, `EINVAL` for a counter that was destroyed.
    pub(crate) fn attach(
        &mut self,
        operations: CountedOperations,
        counter: Arc<dyn CountsCompletions>,
    ) -> Result<(), Error> {
        if self
            .0
            .iter()
            .any(|(others, _)| others.intersects(operations))
        {
            return Err(Error::Busy("the completion counter of an operation"));
        }
        counter.acquire()?;
        self.0.push((operations, counter));
        Ok(())
    }

    /// The request in `slot` is done.
    pub(crate) fn count_send(&self, slot: SlotRef<'_>, status: Status) {
        let request: SendWqe = slot.read_header();
        // The code alone says which operation it is.
        let done = Operation::unpack(&PackedOperation {
            code: request.operation,
            ..PackedOperation::default()
        });
        let done = done.map(|operation| operation.completion_opcode());
        let counted = COUNTED.iter().find(|(opcode, _)| done == Some(*opcode));
        let Some(&(_, operation)) = counted else {
            return;
        };
        let bytes = if request.flags & SendWqe::INLINE != 0 {
            u64::from(request.length)
        } else {
            list_bytes::<SendWqe>(slot, request.sge_count.into()).unwrap_or(0)
        };
        self.count(operation, status, bytes);
    }

    /// A receive is done.
    pub(crate) fn count_receive(&self, status: Status, bytes: u32) {
        self.count(CountedOperations::RECV, status, bytes.into());
    }

    fn count(&self, operation: CountedOperations, status: Status, bytes: u64) {
        for (operations, counter) in &self.0 {
            if operations.contains(operation) {
                counter.count(status, bytes);
            }
        }
    }
}

impl Drop for AttachedCounters {
    fn drop(&mut self) {
        for (_, counter) in &self.0 {
            counter.release();
        }
    }
}
