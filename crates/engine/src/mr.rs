//! Memory regions as the caller holds them.

use crate::{Error, Lkey, Pd, Rkey};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A registered memory region.
pub struct Mr {
    pd: Arc<Pd>,
    key: u32,
    destroyed: AtomicBool,
}

impl Mr {
    pub(crate) fn new(pd: Arc<Pd>, key: u32) -> Self {
        Mr {
            pd,
            key,
            destroyed: AtomicBool::new(false),
        }
    }

    /// The local key.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    /// The remote key.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// Takes the region out of use. When it returns, no byte of the memory is touched any more, whatever packets
    /// are still in flight: later ones get an access error.
    ///
    /// # Errors
    /// `ENODEV` in a child after fork, where the region is the parent's; a second call does nothing.
    pub fn deregister(&self) -> Result<(), Error> {
        let core = self.pd.device.core();
        core.check_process()?;
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            core.control(|worker, _| worker.tables.memory.deregister(self.key));
            self.pd.users.release();
        }
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.deregister().ok();
    }
}
