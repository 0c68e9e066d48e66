//! What time it is for a device.

use airdma_transport::Time;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The time of a device, from when it was opened.
pub(crate) enum Clock {
    /// The monotonic clock of the system.
    Running(Instant),
    /// A simulation moves it, in nanoseconds.
    Moved(AtomicU64),
}

impl Clock {
    pub(crate) fn running() -> Self {
        Clock::Running(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(match self {
            Clock::Running(since) => u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Clock::Moved(nanos) => nanos.load(Ordering::Relaxed),
        })
    }

    /// Whether a simulation moves it: then only the simulation makes the device progress.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(self, Clock::Moved(_))
    }

    /// Moves it on, if it is a simulated one.
    pub(crate) fn move_to(&self, now: Time) {
        if let Clock::Moved(nanos) = self {
            nanos.fetch_max(now.as_nanos(), Ordering::Relaxed);
        }
    }
}
