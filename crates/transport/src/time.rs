//! Virtual or real time, in nanoseconds since a moment that the caller chose.

use core::ops::Add;
use core::time::Duration;

/// A moment. Simulations start at [`Time::ZERO`]; the engine counts from its own start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The first moment.
    pub const ZERO: Time = Time(0);

    /// After all others: the time of what does not come up. The earliest of several times is their
    /// least, whether they come up or not.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `nanos` nanoseconds after [`Time::ZERO`].
    pub const fn from_nanos(nanos: u64) -> Self {
        Time(nanos)
    }

    /// Nanoseconds since [`Time::ZERO`].
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub const fn duration_since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}
