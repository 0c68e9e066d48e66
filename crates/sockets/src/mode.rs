//! Whether calls on a descriptor block, as the kernel said.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is known of the mode in the low bits, and above them how often that was forgotten: an
/// answer of the kernel from before is not kept.
#[derive(Default)]
pub struct Mode(AtomicU64);

const UNKNOWN: u64 = 0;
const BLOCKING: u64 = 1;
const NONBLOCKING: u64 = 2;
const KNOWN: u64 = 3;
const TIMES: u64 = KNOWN + 1;

impl Mode {
    /// Whether calls do not block. The kernel is asked, `ask`, if that is not known.
    pub fn is_nonblocking(&self, ask: impl FnOnce() -> bool) -> bool {
        let before = self.0.load(Ordering::Acquire);
        if before & KNOWN != UNKNOWN {
            return before & KNOWN == NONBLOCKING;
        }
        let is_nonblocking = ask();
        let known = if is_nonblocking {
            NONBLOCKING
        } else {
            BLOCKING
        };
        // Another thread has forgotten it, or knows it.
        let _ =
            self.0
                .compare_exchange(before, before | known, Ordering::AcqRel, Ordering::Relaxed);
        is_nonblocking
    }

    /// Whether it is known that calls do not block.
    #[inline]
    pub fn is_known_nonblocking(&self) -> bool {
        self.0.load(Ordering::Relaxed) & KNOWN == NONBLOCKING
    }

    /// The mode may have changed.
    pub fn forget(&self) {
        let forgotten = |known: u64| Some((known & !KNOWN).wrapping_add(TIMES));
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_once() {
        let mode = Mode::default();
        assert!(mode.is_nonblocking(|| true));
        assert!(mode.is_known_nonblocking());
        assert!(mode.is_nonblocking(|| panic!("asked again")));
        mode.forget();
        assert!(!mode.is_known_nonblocking());
        assert!(!mode.is_nonblocking(|| false));
        assert!(!mode.is_nonblocking(|| panic!("asked again")));
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let mode = Mode::default();
        // Another thread sets O_NONBLOCK after the kernel has answered.
        let before = mode.is_nonblocking(|| {
            mode.forget();
            false
        });
        assert!(!before);
        assert!(mode.is_nonblocking(|| true));
        mode.forget();
        // Another thread has asked since.
        mode.is_nonblocking(|| {
            mode.forget();
            mode.is_nonblocking(|| true);
            false
        });
        assert!(mode.is_known_nonblocking());
    }
}
