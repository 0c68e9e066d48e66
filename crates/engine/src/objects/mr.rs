//! Memory regions as the caller holds them.

use crate::control::{Control, MemoryControl};
use crate::memory::{RegionChange, faults, files, populate};
use crate::{Access, Dm, Error, Lkey, Pd, Rkey};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A registered memory region.
pub struct Mr {
    key: u32,
    /// The key by which peers name it.
    rkey: u32,
    state: Mutex<State>,
    /// Memory of the device that it opens, which counts it as a user.
    dm: Option<Arc<Dm>>,
}

struct State {
    /// A rereg call may change it.
    pd: Arc<Pd>,
    access: Access,
    range: (u64, usize),
    deregistered: bool,
}

impl Mr {
    /// `pd` counts the region as a user already.
    pub(crate) fn new(
        pd: Arc<Pd>,
        key: u32,
        range: (u64, usize),
        access: Access,
        dm: Option<Arc<Dm>>,
    ) -> Self {
        Mr {
            key,
            rkey: key,
            state: Mutex::new(State {
                pd,
                access,
                range,
                deregistered: false,
            }),
            dm,
        }
    }

    /// The local key.
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    /// The remote key.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.rkey)
    }

    /// The region that a multicast group names by another key.
    pub(crate) fn named(mut self, rkey: Rkey) -> Self {
        self.rkey = rkey.0;
        self
    }

    /// Whether it is a region of this domain.
    pub fn is_of(&self, pd: &Pd) -> bool {
        let of = &self.lock().pd;
        of.id == pd.id && of.device.is_same_worker(&pd.device)
    }

    /// Changes the memory, the domain or the rights of the region; the keys stay. The application
    /// must not have outstanding work requests that use it (`ibv_rereg_mr(3)`); such requests may
    /// fail, but touch no other memory.
    ///
    /// # Errors
    /// `EBUSY` while memory windows are bound in it, `EINVAL` for domains of two devices or a
    /// region of device memory; otherwise as [`Pd::reg_mr`]. Nothing is changed on error.
    pub fn reregister(&self, pd: Option<&Arc<Pd>>, change: &RegionChange) -> Result<(), Error> {
        let mut state = self.lock();
        let core = Arc::clone(state.pd.device.core());
        core.check_process()?;
        if state.deregistered {
            return Err(Error::Gone("the memory region"));
        }
        if self.dm.is_some() {
            return Err(Error::Invalid("a region of device memory stays as it is"));
        }
        let to = pd.unwrap_or(&state.pd);
        if !to.device.is_same_worker(&state.pd.device) {
            return Err(Error::Invalid(
                "the protection domain belongs to another device",
            ));
        }
        let access = change.access.unwrap_or(state.access);
        let range = change.translation.unwrap_or(state.range);
        if !access.contains(Access::ON_DEMAND) {
            faults::catch();
            populate::check(range.0, range.1, access)?;
        }
        to.users.acquire("the protection domain")?;
        let can_be_cut = !access.contains(Access::ON_DEMAND) && files::can_be_cut(range.0, range.1);
        let changed = core.ask(Control::Memory {
            call: MemoryControl::Reregister {
                key: self.key,
                pd: to.id,
                change: *change,
                can_be_cut,
            },
        });
        if let Err(error) = changed {
            to.users.release();
            return Err(error);
        }
        let to = Arc::clone(to);
        state.pd.users.release();
        state.pd = to;
        state.access = access;
        state.range = range;
        Ok(())
    }

    /// Takes the region out of use. When it returns, no byte of the memory is touched any more,
    /// whatever packets are still in flight: later ones get an access error.
    ///
    /// # Errors
    /// `EBUSY` while memory windows are bound in it; `ENODEV` in a child after fork, where the
    /// region is the parent's; a second call does nothing.
    pub fn deregister(&self) -> Result<(), Error> {
        let mut state = self.lock();
        let core = state.pd.device.core();
        core.check_process()?;
        if state.deregistered {
            return Ok(());
        }
        core.ask(Control::Memory {
            call: MemoryControl::Deregister { key: self.key },
        })?;
        state.deregistered = true;
        state.pd.users.release();
        if let Some(dm) = &self.dm {
            dm.users.release();
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // The region can no longer be deregistered by the application, and its memory may be
        // unmapped at once: windows must not keep it open.
        let is_bound = |error: Error| error.errno() == libc::EBUSY;
        if self.deregister().is_err_and(is_bound) {
            let core = Arc::clone(self.lock().pd.device.core());
            let call = MemoryControl::CloseWindows { key: self.key };
            core.ask(Control::Memory { call }).ok();
            self.deregister().ok();
        }
    }
}
