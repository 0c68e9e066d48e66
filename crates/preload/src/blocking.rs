//! Calls that block, in threads that may be cancelled while they sleep (`pthread_cancel(3)`).
//!
//! The C library acts upon a cancellation in `ppoll(2)`, and unwinds the stack from there: no Rust
//! value may live on it. So the C function sleeps by itself ([`Sleep::until_ready`]), between
//! attempts ([`attempt`]) that return what they wait for. The state between attempts is a value of
//! the thread, which the C library drops when the thread ends, cancelled or not.

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::thread::LocalKey;

// The C library's, which may unwind: libc declares it as if it could not.
unsafe extern "C-unwind" {
    fn ppoll(
        descriptors: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
}

/// The arguments of `ppoll(2)`. They stay what they are until the thread's next attempt.
#[derive(Clone, Copy)]
pub struct Sleep {
    /// The descriptors to wait for.
    pub descriptors: *mut libc::pollfd,
    /// Their number.
    pub count: libc::nfds_t,
    /// The longest that the sleep lasts; no limit if `None`.
    pub timeout: Option<libc::timespec>,
}

impl Sleep {
    /// Sleeps, and returns what `ppoll(2)` returned. A cancellation point: the caller's stack holds
    /// no value that is dropped.
    ///
    /// # Safety
    /// The attempt that returned this was the calling thread's last.
    #[inline]
    pub unsafe fn until_ready(&self) -> c_int {
        let timeout = self.timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the attempt's arguments, good until the next one.
        unsafe { ppoll(self.descriptors, self.count, timeout, ptr::null()) }
    }
}

/// The outcome of an attempt.
#[derive(Clone, Copy)]
pub enum Attempt<A> {
    /// The call's answer.
    Done(A),
    /// There is nothing yet.
    Sleep(Sleep),
}

/// One attempt of a call that blocks. `slept` is what `ppoll(2)` returned, and `None` at first:
/// then `new` makes the state that the thread keeps in `place`. `step` gets the state and the
/// outcome of the sleep; `None` ends the call.
///
/// # Errors
/// Those of `new` and `step`, after which the thread keeps no state. `EINVAL` for a call inside of
/// `step`; `EIO` where the thread has ended already and a destructor calls.
pub fn attempt<W, E: From<io::Error>>(
    place: &'static LocalKey<RefCell<Option<W>>>,
    slept: Option<c_int>,
    new: impl FnOnce() -> Result<W, E>,
    step: impl FnOnce(&mut W, Option<io::Result<usize>>) -> Result<Option<Sleep>, E>,
) -> Result<Option<Sleep>, E> {
    // Before anything else changes it.
    let errno = io::Error::last_os_error();
    let invalid = || E::from(io::Error::from_raw_os_error(libc::EINVAL));
    let attempted = place.try_with(|place| {
        let mut state = place.try_borrow_mut().map_err(|_| invalid())?;
        if slept.is_none() {
            // The state that a cancelled call left is dropped first.
            *state = None;
            *state = Some(new()?);
        }
        let ready = slept.map(|ready| usize::try_from(ready).map_err(|_| errno));
        step(state.as_mut().ok_or_else(invalid)?, ready)
    });
    let attempted =
        attempted.unwrap_or_else(|_| Err(E::from(io::Error::from_raw_os_error(libc::EIO))));
    if !matches!(attempted, Ok(Some(_))) {
        forget(place);
    }
    attempted
}

/// Drops the state of the thread's call.
pub fn forget<W>(place: &'static LocalKey<RefCell<Option<W>>>) {
    // Dropped outside of the borrow: it wakes others.
    let state = place.try_with(|place| {
        place
            .try_borrow_mut()
            .ok()
            .and_then(|mut state| state.take())
    });
    drop(state);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;

    thread_local! {
        static STATE: RefCell<Option<Arc<()>>> = const { RefCell::new(None) };
    }

    fn a_sleep() -> Sleep {
        Sleep {
            descriptors: ptr::null_mut(),
            count: 0,
            timeout: Some(libc::timespec {
                tv_sec: 0,
                tv_nsec: 1,
            }),
        }
    }

    #[test]
    fn the_state_lasts_from_the_first_attempt_to_the_last() {
        let state = Arc::new(());
        let kept = Arc::clone(&state);
        let again = attempt(
            &STATE,
            None,
            || Ok(kept),
            |_, ready| {
                assert!(ready.is_none());
                Ok::<_, io::Error>(Some(a_sleep()))
            },
        );
        // SAFETY: the thread's last attempt.
        let slept = unsafe { again.unwrap().unwrap().until_ready() };
        assert_eq!((slept, Arc::strong_count(&state)), (0, 2));
        let done = attempt(
            &STATE,
            Some(slept),
            || unreachable!(),
            |_, ready| {
                assert_eq!(ready.unwrap().unwrap(), 0);
                Ok::<_, io::Error>(None)
            },
        );
        assert!(done.unwrap().is_none());
        assert_eq!(Arc::strong_count(&state), 1);
    }

    #[test]
    fn the_state_of_a_thread_that_ends_is_dropped() {
        let state = Arc::new(());
        let kept = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let sleeps = attempt(
                &STATE,
                None,
                || Ok(kept),
                |_, _| Ok::<_, io::Error>(Some(a_sleep())),
            );
            assert!(sleeps.unwrap().is_some());
        });
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&state), 1);
    }

    #[test]
    fn a_failed_attempt_keeps_no_state_and_a_nested_one_is_invalid() {
        let state = Arc::new(());
        let kept = Arc::clone(&state);
        let failed = attempt(
            &STATE,
            None,
            || Ok(kept),
            |_, _| {
                let nested = attempt(&STATE, None, || unreachable!(), |_, _| Ok(None));
                nested.map(|_: Option<Sleep>| None)
            },
        );
        let failed: Result<Option<Sleep>, io::Error> = failed;
        assert_eq!(failed.err().unwrap().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(Arc::strong_count(&state), 1);
    }
}
