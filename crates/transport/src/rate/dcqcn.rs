//! DCQCN (Zhu et al., SIGCOMM 2015): the reaction point, which slows down by congestion
//! notification packets (CNPs), and the notification point, which sends them.
//!
//! | parameter | value | source |
//! |---|---|---|
//! | weight of a CNP in `alpha`, `g` | 1/256 | the paper, 5.2 |
//! | `alpha` decays after, without CNP, `K` | 55 us | the paper, 5.2 |
//! | rate increase timer, `T` | 55 us | the paper, 5.2 |
//! | byte counter, `B` | 10 MB | the paper, 5.2 |
//! | fast recovery lasts, `F` | 5 steps | the paper, 3.1 |
//! | additive increase, `R_AI` | 40 Mb/s | the paper, 5.2 |
//! | hyper increase, `R_HAI` | 400 Mb/s | ten times `R_AI`, as IEEE 802.1Qau has it; the paper gives none |
//! | `alpha` at the first CNP | 1 | the paper, 3.1 |
//! | smallest rate | 1 Mb/s | what hardware has (`rpg_min_rate`) |
//! | CNPs of a flow are apart by | 50 us | the paper, 3.1 |

use core::time::Duration;

use super::{Acknowledged, Feedback, Occupancy, Rate, RateController, Rtt};
use crate::Time;

/// Unit of `alpha`.
const ALPHA_ONE: u64 = 1 << 20;
/// `g` is one in this many.
const G_PART: u64 = 256;
const ALPHA_PERIOD: Duration = Duration::from_micros(55);
const INCREASE_PERIOD: Duration = Duration::from_micros(55);
const INCREASE_BYTES: u64 = 10_000_000;
const FAST_RECOVERY_STEPS: u32 = 5;
const ADDITIVE: Rate = Rate::from_bits_per_s(40_000_000);
const HYPER: Rate = Rate::from_bits_per_s(400_000_000);
const RATE_MIN: Rate = Rate::from_bits_per_s(1_000_000);
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Most periods that one call catches up on: more than it takes to forget a CNP.
const PERIODS_MAX: u32 = 4096;

/// The reaction point: a sender that starts at line rate and slows down at CNPs.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    line_rate: Rate,
    /// `R_C`.
    current: Rate,
    /// `R_T`.
    target: Rate,
    alpha: u64,
    /// When the timers expire; `None` while the rate is that of the line.
    timers: Option<Timers>,
    /// Bytes until the byte counter expires.
    bytes_left: u64,
    timer_steps: u32,
    byte_steps: u32,
    hyper_steps: u32,
    /// The last CNP that counted.
    cnp_at: Option<Time>,
    rtt: Rtt,
}

#[derive(Clone, Copy, Debug)]
struct Timers {
    alpha_at: Time,
    increase_at: Time,
}

impl Dcqcn {
    /// A sender with a line of this rate.
    pub fn new(line_rate: Rate) -> Self {
        let line_rate = line_rate.max(RATE_MIN);
        Dcqcn {
            line_rate,
            current: line_rate,
            target: line_rate,
            alpha: ALPHA_ONE,
            timers: None,
            bytes_left: INCREASE_BYTES,
            timer_steps: 0,
            byte_steps: 0,
            hyper_steps: 0,
            cnp_at: None,
            rtt: Rtt::new(),
        }
    }

    /// The timer or the byte counter has expired: figure 7 of the paper.
    fn increase(&mut self) {
        let (fewest, most) = (
            self.timer_steps.min(self.byte_steps),
            self.timer_steps.max(self.byte_steps),
        );
        if fewest > FAST_RECOVERY_STEPS {
            self.hyper_steps = self.hyper_steps.saturating_add(1);
            let step = HYPER.times(u64::from(self.hyper_steps), 1);
            self.target = self.target.plus(step);
        } else if most >= FAST_RECOVERY_STEPS {
            self.target = self.target.plus(ADDITIVE);
        }
        self.target = self.target.min(self.line_rate);
        self.current = self.current.smoothed(self.target, 2);
        // The mean of both approaches it without reaching it.
        if self.current >= self.line_rate.times(1023, 1024) {
            self.current = self.line_rate;
            self.target = self.line_rate;
            self.timers = None;
        }
    }

    fn reset_increase(&mut self) {
        self.bytes_left = INCREASE_BYTES;
        self.timer_steps = 0;
        self.byte_steps = 0;
        self.hyper_steps = 0;
    }
}

impl RateController for Dcqcn {
    fn handle_sent(&mut self, _now: Time, bytes: u64) {
        let mut bytes = bytes;
        while self.timers.is_some() && bytes >= self.bytes_left {
            bytes -= self.bytes_left;
            self.bytes_left = INCREASE_BYTES;
            self.increase();
            self.byte_steps = self.byte_steps.saturating_add(1);
        }
        if self.timers.is_some() {
            self.bytes_left -= bytes;
        }
    }

    fn handle_acknowledged(&mut self, _now: Time, _acknowledged: Acknowledged) {}

    fn handle_lost(&mut self, _now: Time, _bytes: u64) {}

    /// Equation 1 of the paper.
    ///
    /// A receiver sends a CNP in each interval to each queue pair of a sender; one in each interval
    /// counts, since all queue pairs have one rate.
    fn handle_cnp(&mut self, now: Time) {
        let is_early = |at| now.duration_since(at) < CNP_INTERVAL;
        if self.cnp_at.is_some_and(is_early) {
            return;
        }
        self.cnp_at = Some(now);
        if self.timers.is_none() {
            self.alpha = ALPHA_ONE;
        }
        self.target = self.current;
        let kept = self
            .current
            .times(2 * ALPHA_ONE - self.alpha, 2 * ALPHA_ONE);
        self.current = kept.max(RATE_MIN);
        self.alpha = self.alpha - self.alpha / G_PART + ALPHA_ONE / G_PART;
        self.reset_increase();
        self.timers = Some(Timers {
            alpha_at: now + ALPHA_PERIOD,
            increase_at: now + INCREASE_PERIOD,
        });
    }

    fn handle_rtt(&mut self, now: Time, sample: Duration) {
        self.rtt.handle_sample(now, sample);
    }

    fn handle_feedback(&mut self, _now: Time, _feedback: &Feedback) {}

    fn handle_timeout(&mut self, now: Time, _send_queue: Option<Occupancy>) {
        for _ in 0..PERIODS_MAX {
            let Some(timers) = &mut self.timers else {
                return;
            };
            if timers.alpha_at <= now {
                timers.alpha_at = timers.alpha_at + ALPHA_PERIOD;
                self.alpha -= self.alpha.div_ceil(G_PART);
            } else if timers.increase_at <= now {
                timers.increase_at = timers.increase_at + INCREASE_PERIOD;
                self.increase();
                self.timer_steps = self.timer_steps.saturating_add(1);
            } else {
                return;
            }
        }
        self.timers = Some(Timers {
            alpha_at: now + ALPHA_PERIOD,
            increase_at: now + INCREASE_PERIOD,
        });
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.timers
            .map(|timers| timers.alpha_at.min(timers.increase_at))
    }

    fn rate(&self) -> Rate {
        self.current
    }

    /// DCQCN has none.
    fn window(&self) -> u64 {
        u64::MAX
    }

    fn rtt(&self) -> &Rtt {
        &self.rtt
    }
}

/// The notification point: when the receiver of marked packets of one flow sends a CNP.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    sent_at: Option<Time>,
}

impl NotificationPoint {
    /// Starts without any CNP sent.
    pub const fn new() -> Self {
        NotificationPoint { sent_at: None }
    }

    /// Handles a packet with a CE mark; returns whether a CNP must be sent for it.
    pub fn handle_marked(&mut self, now: Time) -> bool {
        let is_early = |at| now.duration_since(at) < CNP_INTERVAL;
        if self.sent_at.is_some_and(is_early) {
            return false;
        }
        self.sent_at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Rate = Rate::from_bits_per_s(40_000_000_000);

    fn us(n: u64) -> Time {
        Time::from_nanos(n * 1_000)
    }

    fn gbit(rate: Rate) -> f64 {
        rate.bits_per_s() as f64 / 1e9
    }

    /// Lets the timers expire up to `now`.
    fn pass(controller: &mut Dcqcn, now: Time) {
        while let Some(at) = controller.poll_timeout().filter(|&at| at <= now) {
            controller.handle_timeout(at, None);
        }
    }

    #[test]
    fn it_starts_at_line_rate_and_the_first_cnp_halves_it() {
        let mut controller = Dcqcn::new(LINE);
        assert_eq!((controller.rate(), controller.poll_timeout()), (LINE, None));
        controller.handle_cnp(us(0));
        assert_eq!(controller.rate(), LINE.times(1, 2));
        assert_eq!(controller.poll_timeout(), Some(us(55)));
    }

    #[test]
    fn five_recovery_steps_each_halve_the_distance_to_the_rate() {
        let mut controller = Dcqcn::new(LINE);
        controller.handle_cnp(us(0));
        controller.handle_cnp(us(50));
        // 10 of 20 Gb/s: 15, 17.5, 18.75, 19.375.
        let expected = [15.0, 17.5, 18.75, 19.375, 19.6875];
        for (step, expected) in (1..).zip(expected) {
            pass(&mut controller, us(50 + 55 * step));
            assert!((gbit(controller.rate()) - expected).abs() < 0.001, "{step}");
        }
    }

    #[test]
    fn after_fast_recovery_the_target_rises_by_40_mbit_a_step() {
        let mut controller = Dcqcn::new(LINE);
        controller.handle_cnp(us(0));
        controller.handle_cnp(us(50));
        let target = controller.target;
        pass(&mut controller, us(50 + 55 * 5));
        assert_eq!(controller.target, target);
        pass(&mut controller, us(50 + 55 * 15));
        assert_eq!(controller.target, target.plus(ADDITIVE.times(10, 1)));
    }

    #[test]
    fn with_timer_and_byte_counter_both_past_it_growth_is_hyper() {
        let mut controller = Dcqcn::new(LINE);
        for n in 0..4 {
            controller.handle_cnp(us(50 * n));
        }
        pass(&mut controller, us(150 + 55 * 6));
        for _ in 0..6 {
            controller.handle_sent(us(330), INCREASE_BYTES);
        }
        let target = controller.target;
        controller.handle_sent(us(330), INCREASE_BYTES);
        assert_eq!(controller.target, target.plus(HYPER));
        controller.handle_sent(us(330), INCREASE_BYTES);
        assert_eq!(controller.target, target.plus(HYPER.times(3, 1)));
    }

    #[test]
    fn bytes_that_were_sent_count_as_steps_wherever_they_are_cut() {
        let mut whole = Dcqcn::new(LINE);
        whole.handle_cnp(us(0));
        let mut pieces = whole.clone();
        whole.handle_sent(us(1), 3 * INCREASE_BYTES);
        for _ in 0..30_000 {
            pieces.handle_sent(us(1), INCREASE_BYTES / 10_000);
        }
        assert_eq!((whole.rate(), whole.byte_steps), (pieces.rate(), 3));
    }

    #[test]
    fn alpha_decays_without_cnps_so_a_rare_one_costs_little() {
        let mut controller = Dcqcn::new(LINE);
        controller.handle_cnp(us(0));
        controller.handle_cnp(us(50));
        pass(&mut controller, us(20_000));
        // (1 - 1/256)^363 = 0.242
        let before = controller.rate();
        controller.handle_cnp(us(20_000));
        let kept = gbit(controller.rate()) / gbit(before);
        assert!((kept - (1.0 - 0.242 / 2.0)).abs() < 0.005, "{kept}");
    }

    #[test]
    fn without_cnps_it_is_at_line_rate_again_and_its_timers_rest() {
        let mut controller = Dcqcn::new(LINE);
        for n in 0..20 {
            controller.handle_cnp(us(50 * n));
        }
        pass(&mut controller, us(3_000_000));
        assert_eq!((controller.rate(), controller.poll_timeout()), (LINE, None));
    }

    #[test]
    fn no_number_of_cnps_stops_it_and_no_pause_makes_it_work_long() {
        let mut controller = Dcqcn::new(LINE);
        for n in 0..10_000 {
            controller.handle_cnp(us(50 * n));
        }
        assert_eq!(controller.rate(), RATE_MIN);
        controller.handle_timeout(Time::from_nanos(u64::MAX / 2), None);
        assert!(
            controller
                .poll_timeout()
                .is_none_or(|at| at > Time::from_nanos(u64::MAX / 2))
        );
        controller.handle_sent(us(0), u64::MAX);
        assert!(controller.rate() <= LINE);
    }

    #[test]
    fn of_cnps_that_come_together_one_counts() {
        let mut controller = Dcqcn::new(LINE);
        for n in 0..50 {
            controller.handle_cnp(us(n));
        }
        assert_eq!(controller.rate(), LINE.times(1, 2));
        controller.handle_cnp(us(50));
        assert_eq!(controller.rate(), LINE.times(1, 4));
    }

    #[test]
    fn marks_of_one_flow_make_a_cnp_every_50_us() {
        let mut point = NotificationPoint::new();
        let sent: Vec<u64> = (0..200).filter(|&n| point.handle_marked(us(n))).collect();
        assert_eq!(sent, [0, 50, 100, 150]);
    }
}
