//! How many objects were made from an object, so that it is not destroyed under them.

use crate::Error;
use crate::sync::{AtomicU32, Ordering};

const DESTROYED: u32 = 1 << 31;

/// Users of an object, and whether it was destroyed.
pub(crate) struct UseCount(AtomicU32);

impl Default for UseCount {
    fn default() -> Self {
        UseCount(AtomicU32::new(0))
    }
}

impl UseCount {
    /// Counts one more user.
    ///
    /// # Errors
    /// `EINVAL` when the object was destroyed.
    pub(crate) fn acquire(&self, object: &'static str) -> Result<(), Error> {
        let more = |count| (count & DESTROYED == 0).then_some(count + 1);
        match self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Gone(object)),
        }
    }

    pub(crate) fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Marks the object as destroyed; false when it was before.
    ///
    /// # Errors
    /// `EBUSY` while it has users.
    pub(crate) fn destroy(&self, object: &'static str) -> Result<bool, Error> {
        match self
            .0
            .compare_exchange(0, DESTROYED, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(true),
            Err(DESTROYED) => Ok(false),
            Err(_) => Err(Error::Busy(object)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_object_in_use_is_busy_and_a_destroyed_one_gets_no_users() {
        let count = UseCount::default();
        count.acquire("it").unwrap();
        assert_eq!(count.destroy("it").unwrap_err().errno(), libc::EBUSY);
        count.release();
        assert!(count.destroy("it").unwrap());
        assert!(!count.destroy("it").unwrap());
        assert_eq!(count.acquire("it").unwrap_err().errno(), libc::EINVAL);
    }
}
