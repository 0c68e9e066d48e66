//! Completion counters (`ibv_create_comp_cntr(3)`): how many requests of the queue pairs that one
//! is attached to were completed, or how many bytes those moved, whether or not they leave a
//! completion; and how many failed.

use crate::queues::attached_counters::CountsCompletions;
use crate::queues::use_count::UseCount;
use crate::{Device, Error};
use airdma_transport::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
}

impl CountsCompletions for CompletionCounter {
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

    fn acquire(&self) -> Result<(), Error> {
        self.queue_pairs.acquire("the completion counter")
    }

    fn release(&self) {
        self.queue_pairs.release();
    }
}

impl Drop for CompletionCounter {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}
