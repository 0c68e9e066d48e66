//! Address handles.

use crate::{Error, Path, Pd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A checked path to a destination, for datagrams.
pub struct Ah {
    pd: Arc<Pd>,
    path: Path,
    destroyed: AtomicBool,
}

impl Ah {
    pub(crate) fn new(pd: Arc<Pd>, path: Path) -> Self {
        Ah {
            pd,
            path,
            destroyed: AtomicBool::new(false),
        }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the handle back. Work requests posted with its path are not affected.
    ///
    /// # Errors
    /// None so far; a second call does nothing.
    pub fn destroy(&self) -> Result<(), Error> {
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.pd.users.release();
            self.pd.device.give_back_ah();
        }
        Ok(())
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        self.destroy().ok();
    }
}
