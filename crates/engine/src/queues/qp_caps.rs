//! The sizes of a queue pair's queues.

use crate::error::Error;
use crate::limits::LIMITS;
use airdma_shm::{RingProducer, SendWqe};

/// Sizes of a queue pair's queues (`ibv_qp_cap`). What is granted may be more than what was asked
/// for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// Send work requests outstanding.
    pub max_send_wr: u32,
    /// Receive work requests outstanding.
    pub max_recv_wr: u32,
    /// Scatter/gather elements per send work request.
    pub max_send_sge: u32,
    /// Scatter/gather elements per receive work request.
    pub max_recv_sge: u32,
    /// Inline bytes per send work request.
    pub max_inline: u32,
}

impl QpCaps {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let within = self.max_send_wr <= LIMITS.max_qp_wr
            && self.max_recv_wr <= LIMITS.max_qp_wr
            && self.max_send_sge <= LIMITS.max_sge
            && self.max_recv_sge <= LIMITS.max_sge
            && self.max_inline <= LIMITS.max_inline;
        if within {
            Ok(())
        } else {
            Err(Error::Invalid(
                "a queue pair capability is above the device's limit",
            ))
        }
    }

    /// What rings for these sizes hold: a power of two of requests, and inline data where elements
    /// would fit.
    pub(crate) fn granted(self, send: &RingProducer, recv: &RingProducer) -> QpCaps {
        let requests =
            |asked: u32, ring: &RingProducer| if asked == 0 { 0 } else { ring.capacity() };
        let room = SendWqe::stride(self.max_send_sge, self.max_inline) - SendWqe::stride(0, 0);
        QpCaps {
            max_send_wr: requests(self.max_send_wr, send),
            max_recv_wr: requests(self.max_recv_wr, recv),
            max_inline: room.min(LIMITS.max_inline),
            ..self
        }
    }
}
