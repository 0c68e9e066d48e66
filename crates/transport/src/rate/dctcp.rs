//! DCTCP (Alizadeh et al., SIGCOMM 2010; RFC 8257): a window that shrinks by the share of marked
//! bytes.
//!
//! | parameter | value | source |
//! |---|---|---|
//! | weight of a round trip in `alpha`, `g` | 1/16 | RFC 8257 4.2 |
//! | `alpha` at the start | 1 | RFC 8257 4.2 |
//! | window at the start | 64 KiB | one segmented send |
//! | growth | the acknowledged bytes until the first mark or loss, then one MTU per round trip | RFC 5681 3.1 |
//! | decrease | by `alpha / 2` if marked, by half if lost; once per round trip | RFC 8257 3.3, 3.5 |
//! | floor | two packets | acknowledgements keep coming |
//! | pacing | 5/4 of the window per smoothed RTT, twice until the first mark or loss | so that the window, not the pacer, is what limits |

use core::time::Duration;

use super::{Acknowledged, Feedback, Occupancy, Rate, RateController, Rtt};
use crate::Time;

/// Unit of `alpha`.
const ALPHA_ONE: u64 = 1 << 20;
/// `g` is one in this many.
const G_PART: u64 = 16;
const WINDOW_BYTES_START: u64 = 64 * 1024;

/// A sender whose window follows the share of congestion marks.
#[derive(Clone, Debug)]
pub struct Dctcp {
    mtu: u64,
    window: u64,
    window_min: u64,
    window_max: u64,
    is_slow_start: bool,
    alpha: u64,
    sent: u64,
    /// Bytes acknowledged, or given up as lost.
    settled: u64,
    /// Bytes sent when this round trip began: it ends when they are settled.
    round_ends: u64,
    round_acknowledged: u64,
    round_marked: u64,
    /// Most bytes in flight in this round trip.
    round_peak: u64,
    /// The window was reduced for all events before this is settled.
    decreased_until: u64,
    rtt: Rtt,
}

impl Dctcp {
    /// A sender of packets of `mtu` bytes with at most `window_max` bytes in flight.
    pub fn new(mtu: u32, window_max: u64) -> Self {
        let mtu = u64::from(mtu.max(1));
        let window_min = 2 * mtu;
        let window_max = window_max.max(window_min);
        Dctcp {
            mtu,
            window: WINDOW_BYTES_START.clamp(window_min, window_max),
            window_min,
            window_max,
            is_slow_start: true,
            alpha: ALPHA_ONE,
            sent: 0,
            settled: 0,
            round_ends: 0,
            round_acknowledged: 0,
            round_marked: 0,
            round_peak: 0,
            decreased_until: 0,
            rtt: Rtt::new(),
        }
    }

    fn settle(&mut self, bytes: u64) {
        self.settled = self.settled.saturating_add(bytes).min(self.sent);
        if self.settled >= self.round_ends {
            self.end_round();
        }
    }

    /// RFC 8257 3.3, steps 1 to 8.
    fn end_round(&mut self) {
        if self.round_acknowledged > 0 {
            let marked = u128::from(self.round_marked) * u128::from(ALPHA_ONE);
            let share = (marked / u128::from(self.round_acknowledged)) as u64;
            self.alpha = self.alpha - self.alpha.div_ceil(G_PART) + share / G_PART;
            if self.round_marked == 0 && !self.is_slow_start && self.is_window_used() {
                self.set_window(self.window.saturating_add(self.mtu));
            }
        }
        self.begin_round();
    }

    fn begin_round(&mut self) {
        self.round_ends = self.sent;
        self.round_acknowledged = 0;
        self.round_marked = 0;
        self.round_peak = self.sent - self.settled;
    }

    /// Whether the window is what limits the sender.
    fn is_window_used(&self) -> bool {
        self.round_peak >= self.window / 2
    }

    /// Reduces the window by `alpha / 2`, unless that was done in this round trip.
    fn decrease(&mut self, alpha: u64) {
        self.is_slow_start = false;
        if self.settled < self.decreased_until {
            return;
        }
        self.decreased_until = self.sent;
        let kept = u128::from(self.window) * u128::from(2 * ALPHA_ONE - alpha);
        let kept = kept / u128::from(2 * ALPHA_ONE);
        self.set_window(u64::try_from(kept).unwrap_or(u64::MAX));
    }

    fn set_window(&mut self, bytes: u64) {
        self.window = bytes.clamp(self.window_min, self.window_max);
    }
}

impl RateController for Dctcp {
    fn handle_sent(&mut self, _now: Time, bytes: u64) {
        let is_first = self.sent == self.settled;
        self.sent = self.sent.saturating_add(bytes);
        self.round_peak = self.round_peak.max(self.sent - self.settled);
        if is_first {
            self.begin_round();
        }
    }

    fn handle_acknowledged(&mut self, _now: Time, acknowledged: Acknowledged) {
        let bytes = acknowledged.bytes.min(self.sent - self.settled);
        let marked = acknowledged.marked_bytes.min(bytes);
        self.round_acknowledged = self.round_acknowledged.saturating_add(bytes);
        self.round_marked = self.round_marked.saturating_add(marked);
        if marked > 0 {
            self.decrease(self.alpha);
        } else if self.is_slow_start && self.is_window_used() {
            self.set_window(self.window.saturating_add(bytes));
        }
        self.settle(bytes);
    }

    fn handle_lost(&mut self, _now: Time, bytes: u64) {
        self.decrease(ALPHA_ONE);
        self.settle(bytes);
    }

    fn handle_cnp(&mut self, _now: Time) {}

    fn handle_rtt(&mut self, now: Time, sample: Duration) {
        self.rtt.handle_sample(now, sample);
    }

    fn handle_feedback(&mut self, _now: Time, _feedback: &Feedback) {}

    fn handle_timeout(&mut self, _now: Time, _send_queue: Option<Occupancy>) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn rate(&self) -> Rate {
        let ahead = if self.is_slow_start { 8 } else { 5 };
        match self.rtt.smoothed() {
            Some(rtt) => Rate::of(self.window, rtt).times(ahead, 4),
            None => Rate::MAX,
        }
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn rtt(&self) -> &Rtt {
        &self.rtt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 1_000;

    impl Dctcp {
        /// A round trip with a full window, `marked` bytes of which are marked, with one
        /// acknowledgement for each packet.
        fn round(&mut self, marked: u64) {
            let packets = self.window / self.mtu;
            self.handle_sent(Time::ZERO, packets * self.mtu);
            for n in 0..packets {
                let acknowledged = Acknowledged {
                    bytes: self.mtu,
                    marked_bytes: if n < marked { self.mtu } else { 0 },
                };
                self.handle_acknowledged(Time::ZERO, acknowledged);
            }
        }
    }

    /// A sender past slow start, with a window of 100 packets and this `alpha`.
    fn steady(alpha: u64) -> Dctcp {
        let mut controller = Dctcp::new(MTU, 1 << 30);
        controller.round(1);
        controller.window = 100_000;
        controller.alpha = alpha;
        controller
    }

    #[test]
    fn the_window_doubles_each_round_until_the_first_mark() {
        let mut controller = Dctcp::new(MTU, 1 << 30);
        let start = controller.window();
        controller.round(0);
        let after = controller.window();
        assert!(after.abs_diff(2 * start) < 40_000, "{after}");
        controller.round(1);
        let marked = controller.window();
        controller.round(0);
        assert_eq!(controller.window(), marked + u64::from(MTU));
    }

    #[test]
    fn without_marks_it_grows_by_a_packet_per_round_trip() {
        let mut controller = steady(0);
        controller.round(0);
        assert_eq!(controller.window(), 101_000);
        controller.round(0);
        assert_eq!(controller.window(), 102_000);
    }

    #[test]
    fn a_marked_round_costs_half_of_alpha_once() {
        let mut controller = steady(ALPHA_ONE / 4);
        controller.round(50);
        assert_eq!(controller.window(), 87_500);
    }

    #[test]
    fn alpha_follows_the_share_of_marks_by_a_sixteenth() {
        let mut controller = steady(0);
        controller.round(50);
        assert!(controller.alpha.abs_diff(ALPHA_ONE / 32) <= 1);
        for _ in 0..200 {
            controller.window = 100_000;
            controller.round(25);
        }
        assert!(controller.alpha.abs_diff(ALPHA_ONE / 4) < ALPHA_ONE / 500);
    }

    #[test]
    fn losses_of_a_round_trip_halve_it_once_and_there_is_a_floor() {
        let mut controller = steady(0);
        controller.handle_sent(Time::ZERO, 100_000);
        for _ in 0..10 {
            controller.handle_lost(Time::ZERO, 1_000);
        }
        assert_eq!(controller.window(), 50_000);
        for _ in 0..100 {
            controller.handle_sent(Time::ZERO, 200_000);
            controller.handle_lost(Time::ZERO, 200_000);
        }
        assert_eq!(controller.window(), 2_000);
    }

    #[test]
    fn who_does_not_fill_the_window_does_not_get_a_larger_one() {
        let mut controller = steady(0);
        for _ in 0..10 {
            controller.handle_sent(Time::ZERO, 1_000);
            let bytes = 1_000;
            let acknowledged = Acknowledged {
                bytes,
                marked_bytes: 0,
            };
            controller.handle_acknowledged(Time::ZERO, acknowledged);
        }
        assert_eq!(controller.window(), 100_000);
    }

    #[test]
    fn counts_that_cannot_be_true_are_bounded() {
        let mut controller = Dctcp::new(0, 0);
        for bytes in [0, 1, u64::MAX] {
            controller.handle_acknowledged(
                Time::ZERO,
                Acknowledged {
                    bytes,
                    marked_bytes: u64::MAX,
                },
            );
            controller.handle_lost(Time::ZERO, bytes);
            controller.handle_sent(Time::ZERO, bytes);
            assert!(controller.alpha <= ALPHA_ONE && controller.window() == 2);
        }
    }

    #[test]
    fn the_pacer_leaves_it_to_the_window() {
        let mut controller = steady(0);
        assert_eq!(controller.rate(), Rate::MAX);
        controller.handle_rtt(Time::ZERO, Duration::from_millis(1));
        assert_eq!(controller.rate(), Rate::from_bytes_per_s(125_000_000));
    }
}
