//! Completion counters (`ibv_create_comp_cntr(3)`): how many requests of the queue pairs that one is attached to were completed, or how
//! many bytes those moved, whether or not they leave a completion; and how many failed.

use crate::objects::use_count::UseCount;
use crate::worker::qp_host::list_bytes;
use crate::{Device, Error};
use airdma_shm::{SendWqe, SlotRef, WorkOperation};
use airdma_transport::Status;
use bitflags::bitflags;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// What a success adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUnit {
    /// One.
    Requests,
    /// The length of the message.
    Bytes,
}

/// A counter of successes and one of failures. Both wrap around.
pub struct CompletionCounter {
    device: Arc<Device>,
    unit: CounterUnit,
    successes: AtomicU64,
    failures: AtomicU64,
    queue_pairs: UseCount,
}

impl CompletionCounter {
    /// `device` counts it already.
    pub(crate) fn new(device: Arc<Device>, unit: CounterUnit) -> Self {
        CompletionCounter {
            device,
            unit,
            successes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            queue_pairs: UseCount::default(),
        }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What successes have added. The program may write it.
    pub fn successes(&self) -> &AtomicU64 {
        &self.successes
    }

    /// How many requests have failed. The program may write it.
    pub fn failures(&self) -> &AtomicU64 {
        &self.failures
    }

    /// Gives the counter back.
    ///
    /// # Errors
    /// `EBUSY` while it is attached to a queue pair.
    pub fn destroy(&self) -> Result<(), Error> {
        if self.queue_pairs.destroy("the completion counter")? {
            self.device.give_back_completion_counter();
        }
        Ok(())
    }

    fn count(&self, status: Status, bytes: u64) {
        if status != Status::Success {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let more = match self.unit {
            CounterUnit::Requests => 1,
            CounterUnit::Bytes => bytes,
        };
        // What the counted request wrote is seen by a thread that sees the count.
        self.successes.fetch_add(more, Ordering::Release);
    }
}

impl Drop for CompletionCounter {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

/// The counters of a queue pair: each operation has one at most.
#[derive(Default)]
pub(crate) struct AttachedCounters(Vec<(CountedOperations, Arc<CompletionCounter>)>);

impl AttachedCounters {
    /// Attaches one more.
    ///
    /// # Errors
    /// `EBUSY` if one of the operations has a counter, `EINVAL` for a counter that was destroyed.
    pub(crate) fn attach(
        &mut self,
        operations: CountedOperations,
        counter: &Arc<CompletionCounter>,
    ) -> Result<(), Error> {
        if self
            .0
            .iter()
            .any(|(others, _)| others.intersects(operations))
        {
            return Err(Error::Busy("the completion counter of an operation"));
        }
        counter.queue_pairs.acquire("the completion counter")?;
        self.0.push((operations, Arc::clone(counter)));
        Ok(())
    }

    /// The request in `slot` is done.
    pub(crate) fn count_send(&self, slot: SlotRef<'_>, status: Status) {
        let request: SendWqe = slot.read_header();
        let operation = match WorkOperation::try_from(request.operation) {
            Ok(WorkOperation::Send | WorkOperation::SendImm | WorkOperation::SendInvalidate) => {
                CountedOperations::SEND
            }
            Ok(WorkOperation::Write | WorkOperation::WriteImm) => CountedOperations::WRITE,
            Ok(WorkOperation::Read) => CountedOperations::READ,
            Ok(
                WorkOperation::CompareSwap
                | WorkOperation::FetchAdd
                | WorkOperation::AtomicWrite
                | WorkOperation::LocalInvalidate
                | WorkOperation::BindWindow,
            )
            | Err(_) => return,
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
            counter.queue_pairs.release();
        }
    }
}
