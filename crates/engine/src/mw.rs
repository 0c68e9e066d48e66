//! Memory windows as the caller holds them.

use crate::{Error, Pd, Rkey};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Types of memory windows (IBTA 10.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Bound by a call, for every queue pair of the domain.
    One,
    /// Bound by a work request, for the queue pair that it is posted to (type 2B).
    Two,
}

/// A memory window.
pub struct Mw {
    pd: Arc<Pd>,
    mw_type: MwType,
    /// Its first key; the others differ in the low 8 bits only.
    key: u32,
    destroyed: AtomicBool,
}

impl Mw {
    /// `pd` counts the window as a user already.
    pub(crate) fn new(pd: Arc<Pd>, mw_type: MwType, key: u32) -> Self {
        Mw {
            pd,
            mw_type,
            key,
            destroyed: AtomicBool::new(false),
        }
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The key that it was allocated with.
    pub fn first_rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    /// Gives the window back, bound or not; its keys open nothing any more.
    ///
    /// # Errors
    /// `ENODEV` in a child after fork; a second call does nothing.
    pub fn destroy(&self) -> Result<(), Error> {
        let core = self.pd.device.core();
        core.check_process()?;
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            core.control(|worker, _| worker.tables.memory.free_window(self.key));
            self.pd.users.release();
        }
        Ok(())
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.destroy().ok();
    }
}
