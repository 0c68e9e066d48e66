//! Calls that must not be cancelled (`pthread_cancel(3)`).

use libc::c_int;

/// While it lives the calling thread is not cancelled. Costs two atomic operations.
///
/// A cancellation unwinds the stack from inside a function of the C library (`pthreads(7)` lists
/// them: `sendmsg`, `read`, `open`), and ends the process where it meets a Rust function, which
/// does not expect it.
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// Defers cancellations from now on.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: the integer may be written.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Uncancelled { before }
    }
}

impl Default for Uncancelled {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the state that the thread had before; NULL asks for no answer.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}
