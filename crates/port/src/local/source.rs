//! Time and random numbers of a port: the kernel's, or those of a simulation, which are the same
//! whenever it is repeated.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::meeting::random;
use super::messages::Secret;

/// Where a port gets the time and its random numbers.
#[derive(Clone, Debug)]
pub enum Source {
    /// The kernel.
    Kernel,
    /// A simulation.
    Simulation {
        /// Nanoseconds since its start.
        now: Arc<AtomicU64>,
        /// State of a generator, different for each port.
        seed: u64,
    },
}

impl Source {
    /// Time since some start, as of the last tick of the kernel: no system call.
    #[inline]
    pub(super) fn coarse_now(&self) -> Duration {
        self.time(libc::CLOCK_MONOTONIC_COARSE)
    }

    /// Time since the same start.
    #[inline]
    pub(super) fn now(&self) -> Duration {
        self.time(libc::CLOCK_MONOTONIC)
    }

    #[inline]
    fn time(&self, clock: libc::clockid_t) -> Duration {
        if let Source::Simulation { now, .. } = self {
            return Duration::from_nanos(now.load(Ordering::Relaxed));
        }
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: room for the time.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        Duration::new(
            time.tv_sec.unsigned_abs(),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    }

    /// Random bytes.
    pub(super) fn secret(&mut self) -> io::Result<Secret> {
        let Source::Simulation { seed, .. } = self else {
            return random();
        };
        Ok(std::array::from_fn(|_| {
            *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (*seed >> 56) as u8
        }))
    }
}
