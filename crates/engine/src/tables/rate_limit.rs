//! The rate limit of a queue pair (`ibv_modify_qp_rate_limit(3)`): a token bucket.

use airdma_transport::Time;
use airdma_transport::rate::{BURST_BYTES_MAX, Pacer, Permit, Rate, burst_bytes};

/// The rate limit of one queue pair, and what it has left of it.
#[derive(Debug)]
pub(crate) struct RateLimit {
    rate: Rate,
    /// Most bytes that leave at once.
    burst: u64,
    pacer: Pacer,
    /// Whether the queue pair was held back: then it waits for a whole burst.
    is_held: bool,
}

impl RateLimit {
    /// A limit of `kbps` kilobits per second, in bursts of at most `burst_max` bytes (0: what the
    /// rate gives in a millisecond). `None` for a limit of 0, which is none.
    pub(crate) fn new(kbps: u32, burst_max: u32, now: Time) -> Option<Box<Self>> {
        let (rate, burst) = rate_and_burst(kbps, burst_max)?;
        let mut pacer = Pacer::new(now);
        pacer.spend(BURST_BYTES_MAX - burst);
        Some(Box::new(RateLimit {
            rate,
            burst,
            pacer,
            is_held: false,
        }))
    }

    /// The limit that takes the place of this one: another rate permits no other burst.
    pub(crate) fn changed(
        mut self: Box<Self>,
        kbps: u32,
        burst_max: u32,
        now: Time,
    ) -> Option<Box<Self>> {
        let (rate, burst) = rate_and_burst(kbps, burst_max)?;
        // Until now it filled at the former rate.
        self.pacer.poll_in_bursts(now, self.rate, 1, self.burst);
        (self.rate, self.burst) = (rate, burst);
        Some(self)
    }

    /// Bytes that may leave now: 0, or at least one packet of any length.
    pub(crate) fn permit(&mut self, now: Time) -> u64 {
        let wanted = if self.is_held { self.burst } else { 1 };
        match self
            .pacer
            .poll_in_bursts(now, self.rate, wanted, self.burst)
        {
            Permit::Now(bytes) => {
                self.is_held = false;
                bytes
            }
            Permit::At(_) | Permit::Never => 0,
        }
    }

    /// When a whole burst may leave; `None` if it may now.
    pub(crate) fn hold(&mut self, now: Time) -> Option<Time> {
        self.is_held = true;
        match self
            .pacer
            .poll_in_bursts(now, self.rate, self.burst, self.burst)
        {
            Permit::Now(_) | Permit::Never => None,
            Permit::At(at) => Some(at),
        }
    }

    /// Whether the queue pair was held back, and nothing has left since.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Charges request packets that left.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.pacer.spend(bytes);
    }
}

/// The rate, and the most bytes at once; `None` for no limit.
fn rate_and_burst(kbps: u32, burst_max: u32) -> Option<(Rate, u64)> {
    if kbps == 0 {
        return None;
    }
    let rate = Rate::from_bits_per_s(u64::from(kbps) * 1000);
    let mut burst = burst_bytes(rate);
    if burst_max > 0 {
        burst = burst.min(burst_max.into());
    }
    Some((rate, burst))
}
