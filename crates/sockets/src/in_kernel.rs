//! Threads in calls of the kernel that move data of a socket.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many there are, and above that a number of the connection: a call of an earlier one, which
/// had the same memory, is not counted, and its end is not taken for that of another call.
#[derive(Default)]
pub struct Calls(AtomicU64);

/// Bits of the count.
const COUNT_BITS: u32 = 32;

impl Calls {
    /// Begins a call.
    #[inline]
    pub fn begin(&self) -> InKernel<'_> {
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        InKernel {
            calls: self,
            connection: before >> COUNT_BITS,
        }
    }

    /// Whether there is none.
    pub fn is_quiet(&self) -> bool {
        self.0.load(Ordering::SeqCst) as u32 == 0
    }

    /// The memory gets another connection, which has no call. A call that was left by `siglongjmp`
    /// never ends.
    pub fn renew(&self) {
        let next = |now: u64| Some(((now >> COUNT_BITS) + 1) << COUNT_BITS);
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }
}

/// A call of the kernel, until it is dropped.
pub struct InKernel<'a> {
    calls: &'a Calls,
    connection: u64,
}

impl Drop for InKernel<'_> {
    fn drop(&mut self) {
        let connection = self.connection;
        let less = |now: u64| (now >> COUNT_BITS == connection).then(|| now - 1);
        let _ = self
            .calls
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_for_its_own_connection_alone() {
        let calls = Calls::default();
        let of_first = calls.begin();
        calls.renew();
        assert!(calls.is_quiet(), "calls of the connection before");
        let of_second = calls.begin();
        drop(of_first);
        assert!(!calls.is_quiet(), "one of this connection runs");
        drop(of_second);
        assert!(calls.is_quiet());
    }

    #[test]
    fn a_call_that_never_ends_holds_no_later_connection_up() {
        let calls = Calls::default();
        std::mem::forget(calls.begin());
        assert!(!calls.is_quiet());
        calls.renew();
        drop(calls.begin());
        assert!(calls.is_quiet());
    }
}
