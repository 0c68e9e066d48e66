//! Memory windows as the caller holds them.

use crate::control::{Control, MemoryControl};
use crate::{Access, Error, Mr, Pd, Qp, Rkey};
use airdma_transport::Bind;
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

    /// Opens `length` bytes of a region from address `va` on to the peer of one queue pair, and to
    /// no other's: a window of type 2 that is bound at once, without a work request. The queue pair
    /// and the region are of domain `pd`, and the region was registered with [`Access::MW_BIND`].
    ///
    /// # Errors
    /// `EINVAL` where they are not, beyond the end of the region, for no bytes, or for a right to
    /// write where it has none; `ENOMEM` at [`crate::Limits::max_mr`]; `ENODEV` in a child after
    /// fork.
    pub fn open(
        pd: &Arc<Pd>,
        qp: &Qp,
        mr: &Mr,
        (va, length): (u64, usize),
        access: Access,
    ) -> Result<(Arc<Mw>, Rkey), Error> {
        if !qp.device().is_same_worker(&pd.device) || !mr.is_of(pd) {
            return Err(Error::Invalid(
                "the queue pair or the region belongs to another protection domain",
            ));
        }
        let window = pd.alloc_mw(MwType::Two)?;
        let first = window.first_rkey();
        let bind = Bind {
            window: first,
            new_key: Rkey(first.0 & !0xff | first.0.wrapping_add(1) & 0xff),
            region: mr.lkey(),
            va,
            length: length as u64,
            access,
        };
        let call = MemoryControl::OpenWindow {
            qp: qp.handle(),
            pd: pd.id,
            bind,
        };
        pd.device.core().ask(Control::Memory { call })?;
        Ok((window, bind.new_key))
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
            let call = MemoryControl::FreeWindow { key: self.key };
            core.ask(Control::Memory { call })?;
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
