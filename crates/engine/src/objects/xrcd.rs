//! Domains of extended reliable connections (IBTA annex A14): which target queue pairs may fill
//! which shared receive queues.

use crate::index::Serial;
use crate::queues::use_count::UseCount;
use crate::{Device, Error, Qp};
use std::sync::Arc;

/// A domain.
pub struct Xrcd {
    pub(crate) device: Arc<Device>,
    /// Never used for two domains of one device.
    pub(crate) id: Serial,
    pub(crate) users: UseCount,
}

impl Xrcd {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let id = device.core().next_serial();
        Xrcd {
            device,
            id,
            users: UseCount::default(),
        }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Creates a target queue pair, in state RESET.
    ///
    /// # Errors
    /// As [`crate::Pd::create_qp`].
    pub fn create_target_qp(self: &Arc<Self>) -> Result<Arc<Qp>, Error> {
        self.device.core().check_process()?;
        Qp::create_target(self)
    }

    /// Gives the domain back.
    ///
    /// # Errors
    /// `EBUSY` while shared receive queues or target queue pairs of it exist.
    pub fn destroy(&self) -> Result<(), Error> {
        self.users
            .destroy("the domain of extended connections")
            .map(|_| ())
    }
}
