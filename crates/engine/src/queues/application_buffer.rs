//! Fill of the buffer that a program fills from a queue pair, as the program states it: the worker
//! reports it to the peer, which sends no faster than the buffer empties
//! (`docs/design/018-rate-control.md`).

use crate::sync::{AtomicU64, Ordering, fence};

/// The peer gets a further report once the fill has fallen by this share of the capacity since the
/// last one, or to zero.
const NEWS_SHARE: u64 = 32;
/// The worker is writing a report, which may hold the fill of a moment ago.
const BEING_TOLD: u64 = u64::MAX;

/// The application's buffer of one queue pair: set by the program, reported by the worker.
pub(crate) struct ApplicationBuffer {
    /// Capacity in the upper half, bytes in the buffer in the lower.
    fill: AtomicU64,
    /// Fill by the last report to the peer.
    told: AtomicU64,
}

/// What a program said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) bytes: u32,
    /// None is known of where this is 0.
    pub(crate) capacity: u32,
}

impl ApplicationBuffer {
    pub(crate) fn new() -> Self {
        ApplicationBuffer {
            fill: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }

    /// Sets the fill, as the program states it. Returns whether the peer needs a report although it
    /// sends nothing: it may have stopped because the buffer was full.
    pub(crate) fn set(&self, fill: Fill) -> bool {
        let Fill { bytes, capacity } = fill;
        let word = u64::from(capacity) << 32 | u64::from(bytes.min(capacity));
        self.fill.store(word, Ordering::Relaxed);
        // Pairs with the fence in `tell`: either this thread sees the report, or that one the fill.
        fence(Ordering::SeqCst);
        let told = self.told.load(Ordering::Relaxed);
        let bytes = u64::from(bytes);
        let fell = told.saturating_sub(bytes);
        fell > 0 && (bytes == 0 || fell >= u64::from(capacity) / NEWS_SHARE)
    }

    /// The fill that the worker reports to the peer now.
    pub(crate) fn tell(&self) -> Fill {
        if self.fill.load(Ordering::Relaxed) == 0 {
            // Most queue pairs have no buffer. One that is set a moment later is in the next
            // report: without one the peer sends.
            self.told.store(0, Ordering::Relaxed);
            return Fill::default();
        }
        self.told.store(BEING_TOLD, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let word = self.fill.load(Ordering::Relaxed);
        let fill = Fill {
            bytes: word as u32,
            capacity: (word >> 32) as u32,
        };
        self.told.store(fill.bytes.into(), Ordering::Relaxed);
        fill
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    fn fill(bytes: u32) -> Fill {
        Fill {
            bytes,
            capacity: 32 * MIB,
        }
    }

    #[test]
    fn a_peer_that_was_told_nothing_is_told_nothing_new() {
        let buffer = ApplicationBuffer::new();
        assert!(![8, 20, 0, 3, 0].iter().any(|n| buffer.set(fill(n * MIB))));
    }

    #[test]
    fn a_peer_hears_when_the_buffer_empties_and_not_when_it_fills() {
        let buffer = ApplicationBuffer::new();
        buffer.set(fill(8 * MIB));
        assert_eq!(buffer.tell(), fill(8 * MIB));
        assert!(!buffer.set(fill(20 * MIB)), "packets bring that");
        assert!(!buffer.set(fill(7 * MIB + 1)), "hardly less");
        assert!(buffer.set(fill(7 * MIB)));
        assert_eq!(buffer.tell(), fill(7 * MIB));
        assert!(!buffer.set(fill(7 * MIB)), "it knows");
        buffer.set(fill(5));
        buffer.tell();
        assert!(buffer.set(fill(0)), "however little it was");
        assert_eq!(buffer.tell(), fill(0));
        assert!(!buffer.set(fill(0)));
    }

    #[test]
    fn a_buffer_that_is_taken_back_is_told_if_anything_was_in_it() {
        let buffer = ApplicationBuffer::new();
        buffer.set(fill(8 * MIB));
        buffer.tell();
        assert!(buffer.set(Fill::default()));
        assert_eq!(buffer.tell(), Fill::default());
    }

    #[test]
    fn no_buffer_holds_more_than_fits() {
        let buffer = ApplicationBuffer::new();
        buffer.set(fill(40 * MIB));
        assert_eq!(buffer.tell(), fill(32 * MIB));
    }
}
