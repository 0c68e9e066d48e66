//! Rate control: algorithms behind one trait, and the pacer that spreads packets over time.
//!
//! All queue pairs to one host share a path, its queues and the receive socket at its end. So each
//! host has one [`RateController`] and one [`Pacer`] for all queue pairs.
//!
//! | controller | listens to | for |
//! |---|---|---|
//! | [`BufferOrchestrator`] | how full the buffers of the path are | Wi-Fi and other links of one hop, between two airdma hosts |
//! | [`Dcqcn`] | congestion notification packets | Ethernet with marking switches; the other end may be a NIC |
//! | [`Dctcp`] | the share of marked bytes | Ethernet with marking switches |
//!
//! Order of calls: [`handle_sent`](RateController::handle_sent) for what was sent, the other
//! `handle_*` for what came in, and [`handle_timeout`](RateController::handle_timeout) at
//! [`poll_timeout`](RateController::poll_timeout). After each of them
//! [`rate`](RateController::rate) and [`window`](RateController::window) may be new. Each does a
//! bounded amount of work; nothing allocates, and the peer's claims are bounded: rates are
//! integers, and no sum overflows.

use core::time::Duration;

use crate::Time;

mod buffer;
mod dcqcn;
mod dctcp;
mod orchestrator;
mod pacer;
mod rtt;

pub use buffer::Aim;
pub use dcqcn::{Dcqcn, NotificationPoint};
pub use dctcp::Dctcp;
pub use orchestrator::BufferOrchestrator;
pub use pacer::{BURST_BYTES_MAX, Pacer, Permit, burst_bytes};
pub use rtt::Rtt;

/// Decides how fast packets may be sent to a host.
pub trait RateController {
    /// Notes that `bytes` left for the peer, retransmissions included.
    fn handle_sent(&mut self, now: Time, bytes: u64);

    /// Notes that the peer acknowledged bytes.
    fn handle_acknowledged(&mut self, now: Time, acknowledged: Acknowledged);

    /// Notes that `bytes` count as lost.
    fn handle_lost(&mut self, now: Time, bytes: u64);

    /// Handles a congestion notification packet (RoCEv2 annex A17.9.3).
    fn handle_cnp(&mut self, now: Time);

    /// Handles a round-trip sample, from a PING or from feedback that names what it answers.
    fn handle_rtt(&mut self, now: Time, sample: Duration);

    /// Handles a report of the receiver's buffers.
    fn handle_feedback(&mut self, now: Time, feedback: &Feedback);

    /// Sets the number of bytes that have left the send queue so far, from all senders.
    ///
    /// Called just before [`handle_timeout`](RateController::handle_timeout), if known; without it,
    /// the whole queue counts as this sender's.
    fn handle_left(&mut self, _bytes: u64) {}

    /// Handles the time of [`poll_timeout`](RateController::poll_timeout); an early call does no
    /// harm.
    ///
    /// `send_queue` is what waits on this host for the line: the queueing discipline, or what the
    /// socket has accepted and the driver not yet sent; `None` if the kernel does not report it.
    fn handle_timeout(&mut self, now: Time, send_queue: Option<Occupancy>);

    /// When [`handle_timeout`](RateController::handle_timeout) must be called next.
    ///
    /// `None`: not before something is sent or received.
    fn poll_timeout(&self) -> Option<Time>;

    /// The rate for the [`Pacer`]. Zero: nothing may be sent now.
    fn rate(&self) -> Rate;

    /// The rate for data that does not go into the buffer of the receiver's program, if that buffer
    /// limits [`rate`](RateController::rate).
    fn rate_beside_program(&self) -> Option<Rate> {
        None
    }

    /// Most bytes in flight, unacknowledged.
    fn window(&self) -> u64;

    /// The round-trip estimate.
    fn rtt(&self) -> &Rtt;
}

/// Bytes that the peer acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// All of them.
    pub bytes: u64,
    /// Bytes of these that arrived with a congestion mark (CE, RFC 3168).
    pub marked_bytes: u64,
}

/// Fill of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Bytes in it.
    pub bytes: u64,
    /// Its capacity in bytes, if known.
    pub capacity: Option<u64>,
}

/// A reading of a receiver's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Its fill.
    pub occupancy: Occupancy,
    /// Bytes taken out of it since the first packet of this sender. A total, so that feedback may
    /// get lost.
    pub drained_bytes: u64,
}

/// A receiver's report on its buffers.
///
/// It should be taken right after emptying the socket: packets that have only just arrived are not
/// backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// When it was taken, by the receiver's clock, which started with the first packet of this
    /// sender.
    pub at: Time,
    /// Its socket's receive buffer.
    pub socket: Reading,
    /// The buffer between the transport and the program or the disk, if there is one.
    pub application: Option<Reading>,
}

impl Feedback {
    /// Interval between two reports of a receiver under load.
    ///
    /// SMUFF has four in a round trip; on Wi-Fi each report takes an access to the air as data
    /// does, and a queue of a few milliseconds makes round trips short.
    pub const INTERVAL: Duration = Duration::from_millis(40);
}

/// Bytes per second, at most [`Rate::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

const NANOS_PER_S: u128 = 1_000_000_000;

impl Rate {
    /// Nothing.
    pub const ZERO: Rate = Rate(0);
    /// 1 Tb/s.
    pub const MAX: Rate = Rate(125_000_000_000);

    /// A rate of this many bytes per second.
    pub const fn from_bytes_per_s(bytes: u64) -> Self {
        if bytes < Self::MAX.0 {
            Rate(bytes)
        } else {
            Self::MAX
        }
    }

    /// A rate of this many bits per second.
    pub const fn from_bits_per_s(bits: u64) -> Self {
        Rate::from_bytes_per_s(bits / 8)
    }

    /// The rate of `bytes` in `duration`. For no time it is [`Rate::MAX`], unless `bytes` is 0.
    pub fn of(bytes: u64, duration: Duration) -> Self {
        let per_s = u128::from(bytes) * NANOS_PER_S;
        let bytes_per_s = match per_s.checked_div(duration.as_nanos()) {
            Some(rate) => u64::try_from(rate).unwrap_or(u64::MAX),
            None if bytes == 0 => 0,
            None => u64::MAX,
        };
        Rate::from_bytes_per_s(bytes_per_s)
    }

    /// Bytes in a second.
    pub const fn bytes_per_s(self) -> u64 {
        self.0
    }

    /// Bits in a second.
    pub const fn bits_per_s(self) -> u64 {
        self.0 * 8
    }

    /// Bytes in `duration`, rounded down.
    pub fn bytes_in(self, duration: Duration) -> u64 {
        let bytes = u128::from(self.0).saturating_mul(duration.as_nanos()) / NANOS_PER_S;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// How long `bytes` take, rounded up; never at rate zero.
    pub fn time_for(self, bytes: u64) -> Option<Duration> {
        let nanos = (u128::from(bytes) * NANOS_PER_S).div_ceil(u128::from(self.0.max(1)));
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        (self.0 > 0).then_some(Duration::from_nanos(nanos))
    }

    /// `numerator / denominator` of it.
    ///
    /// # Panics
    ///
    /// If the denominator is 0.
    pub fn times(self, numerator: u64, denominator: u64) -> Self {
        let rate = u128::from(self.0) * u128::from(numerator) / u128::from(denominator);
        Rate::from_bytes_per_s(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Rate) -> Self {
        Rate::from_bytes_per_s(self.0 + other.0)
    }

    /// The difference, zero at least.
    #[must_use]
    pub const fn minus(self, other: Rate) -> Self {
        Rate(self.0.saturating_sub(other.0))
    }

    /// The exponentially weighted mean after one more `sample` of weight `1 / weight`.
    #[must_use]
    fn smoothed(self, sample: Rate, weight: u64) -> Self {
        self.times(weight - 1, weight).plus(sample.times(1, weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bytes_over_time_and_back() {
        let rate = Rate::from_bits_per_s(8_000_000);
        assert_eq!(rate, Rate::of(4_000, Duration::from_millis(4)));
        assert_eq!(rate.bytes_in(Duration::from_micros(1_500)), 1_500);
        assert_eq!(rate.time_for(1_500), Some(Duration::from_micros(1_500)));
        assert_eq!(rate.times(3, 2).bytes_per_s(), 1_500_000);
        assert_eq!(rate.smoothed(Rate::ZERO, 4).bytes_per_s(), 750_000);
    }

    #[test]
    fn no_rate_is_beyond_the_largest_and_none_below_zero() {
        let second = Duration::from_secs(1);
        assert_eq!(Rate::of(u64::MAX, Duration::ZERO), Rate::MAX);
        assert_eq!(Rate::of(u64::MAX, Duration::from_nanos(1)), Rate::MAX);
        assert_eq!(Rate::of(0, Duration::ZERO), Rate::ZERO);
        assert_eq!(Rate::from_bits_per_s(u64::MAX), Rate::MAX);
        assert_eq!(Rate::MAX.plus(Rate::MAX), Rate::MAX);
        assert_eq!(Rate::MAX.times(u64::MAX, 1), Rate::MAX);
        assert_eq!(Rate::ZERO.minus(Rate::MAX), Rate::ZERO);
        assert_eq!(Rate::MAX.bytes_in(Duration::MAX), u64::MAX);
        assert_eq!(Rate::ZERO.time_for(1), None);
        assert_eq!(
            Rate::from_bytes_per_s(1).time_for(u64::MAX),
            Some(Duration::from_nanos(u64::MAX))
        );
        assert_eq!(Rate::of(1, second).bytes_in(second), 1);
    }
}
