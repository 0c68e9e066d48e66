//! Spreads what may be sent over time: a token bucket that fills at the rate.
//!
//! | parameter | value | why |
//! |---|---|---|
//! | burst | what the rate gives in 1 ms | a queue on the way gets no more than 1 ms longer by it |
//! | at most | 63,500 B | one segmented send: the packet that goes beyond it still fits, of 1,024 bytes as of 1,452 |
//! | at least | 4,200 B | a packet of the largest path MTU with its headers |
//! | made up for | 1 ms more | a sender that is woken late still gets its rate |

use core::time::Duration;

use super::Rate;
use crate::Time;

/// One segmented send (`UDP_SEGMENT`): more does not make it cheaper.
pub const BURST_BYTES_MAX: u64 = 63_500;
const BURST_BYTES_MIN: u64 = 4_200;
const BURST_TIME: Duration = Duration::from_millis(1);
const LATENESS: Duration = Duration::from_millis(1);

/// A token bucket, which fills at the rate given to each call.
///
/// The sender takes out what it sent, and may overdraw the bucket by the end of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    filled_at: Time,
    tokens: i64,
    /// Remainder of rounding to whole bytes, in bytes times nanoseconds per second.
    rest: u64,
}

/// Answer of a [`Pacer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// This many bytes may leave now.
    Now(u64),
    /// Ask again at this time: the wanted bytes may leave then if the rate stays the same.
    At(Time),
    /// The rate is zero: ask again when it has changed.
    Never,
}

impl Pacer {
    /// A pacer that lets a first burst through at once.
    pub const fn new(now: Time) -> Self {
        Pacer {
            filled_at: now,
            tokens: BURST_BYTES_MAX as i64,
            rest: 0,
        }
    }

    /// Whether `wanted` bytes, or a whole burst if that is less, may leave now.
    ///
    /// A sender with much data waits for a whole burst, so that it leaves in one segmented send and
    /// not in many small ones.
    pub fn poll(&mut self, now: Time, rate: Rate, wanted: u64) -> Permit {
        self.poll_in_bursts(now, rate, wanted, burst_bytes(rate))
    }

    /// As [`poll`](Self::poll), in bursts of `burst` bytes in place of those of the table above.
    ///
    /// What a late call makes up for leaves as several bursts, one after the other.
    pub fn poll_in_bursts(&mut self, now: Time, rate: Rate, wanted: u64, burst: u64) -> Permit {
        self.fill(now, rate, burst);
        let needed = wanted.min(burst).max(1) as i64;
        if rate == Rate::ZERO {
            return Permit::Never;
        }
        if self.tokens >= needed {
            return Permit::Now((self.tokens as u64).min(burst));
        }
        let missing = needed.saturating_sub(self.tokens) as u64;
        let wait = rate.time_for(missing).unwrap_or(Duration::MAX);
        Permit::At(now + wait)
    }

    /// Takes out bytes that left.
    pub fn spend(&mut self, bytes: u64) {
        // A debt of a second at the largest rate is as good as any larger one.
        let debt_max = -(Rate::MAX.bytes_per_s() as i64);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_sub(bytes).max(debt_max);
    }

    fn fill(&mut self, now: Time, rate: Rate, burst: u64) {
        let elapsed = now.duration_since(self.filled_at).as_nanos();
        self.filled_at = self.filled_at.max(now);
        let earned = u128::from(rate.bytes_per_s())
            .saturating_mul(elapsed)
            .saturating_add(u128::from(self.rest));
        self.rest = (earned % super::NANOS_PER_S) as u64;
        let bytes = i64::try_from(earned / super::NANOS_PER_S).unwrap_or(i64::MAX);
        let depth = burst + rate.bytes_in(LATENESS);
        self.tokens = self.tokens.saturating_add(bytes).min(depth as i64);
    }
}

/// Most bytes that may leave at once at this rate.
pub fn burst_bytes(rate: Rate) -> u64 {
    rate.bytes_in(BURST_TIME)
        .clamp(BURST_BYTES_MIN, BURST_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u64 = 1_500;

    fn rate_mbit(mbit: u64) -> Rate {
        Rate::from_bits_per_s(mbit * 1_000_000)
    }

    /// Sends all that the pacer allows in a second, in pieces of `wanted`. Returns the numbers of
    /// bytes and sends.
    fn one_second(rate: Rate, wanted: u64) -> (u64, u64) {
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spend(BURST_BYTES_MAX);
        let (mut now, mut bytes, mut sends) = (Time::ZERO, 0, 0);
        while now < Time::from_nanos(1_000_000_000) {
            match pacer.poll(now, rate, wanted) {
                Permit::Now(most) => {
                    let sent = wanted.min(most);
                    pacer.spend(sent);
                    bytes += sent;
                    sends += 1;
                }
                Permit::At(then) => {
                    assert!(then > now, "waiting must get on");
                    now = then;
                }
                Permit::Never => panic!("the rate is not zero"),
            }
        }
        (bytes, sends)
    }

    #[test]
    fn in_the_long_run_it_lets_through_exactly_the_rate() {
        let cases = [
            (1, 100),
            (7, MTU),
            (100, MTU),
            (650, BURST_BYTES_MAX),
            (400_000, BURST_BYTES_MAX),
        ];
        for (mbit, wanted) in cases {
            let (bytes, _) = one_second(rate_mbit(mbit), wanted);
            let off = bytes.abs_diff(mbit * 125_000);
            assert!(off <= BURST_BYTES_MAX, "{mbit} Mb/s of {wanted}: {bytes}");
        }
    }

    #[test]
    fn who_wants_much_waits_for_a_whole_segmented_send() {
        let (bytes, sends) = one_second(rate_mbit(10_000), BURST_BYTES_MAX);
        assert!(bytes / sends >= BURST_BYTES_MAX * 99 / 100);
    }

    #[test]
    fn a_burst_is_a_millisecond_of_the_rate() {
        let rate = rate_mbit(100);
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spend(BURST_BYTES_MAX);
        let later = Time::ZERO + Duration::from_secs(10);
        for left in [12_500, 12_500] {
            let permit = pacer.poll(later, rate, BURST_BYTES_MAX);
            assert_eq!(permit, Permit::Now(left));
            pacer.spend(left);
        }
        let permit = pacer.poll(later, rate, BURST_BYTES_MAX);
        assert_eq!(permit, Permit::At(later + BURST_TIME));
    }

    #[test]
    fn a_burst_can_be_smaller_than_a_millisecond_of_the_rate() {
        let rate = rate_mbit(800);
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spend(BURST_BYTES_MAX);
        let mut poll = |nanos, spent| {
            pacer.spend(spent);
            pacer.poll_in_bursts(Time::from_nanos(nanos), rate, u64::MAX, MTU)
        };
        // 1,500 bytes take 15 us.
        assert_eq!(poll(0, 0), Permit::At(Time::from_nanos(15_000)));
        assert_eq!(poll(15_000, 0), Permit::Now(MTU));
        assert_eq!(poll(15_000, MTU), Permit::At(Time::from_nanos(30_000)));
        // A call that is 15 us late finds two bursts.
        assert_eq!(poll(45_000, 0), Permit::Now(MTU));
        assert_eq!(poll(45_000, MTU), Permit::Now(MTU));
        assert_eq!(poll(45_000, MTU), Permit::At(Time::from_nanos(60_000)));
    }

    #[test]
    fn a_slow_rate_still_sends_whole_packets() {
        let rate = rate_mbit(1);
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spend(BURST_BYTES_MAX);
        let wait = rate.time_for(4_200).unwrap();
        let permit = pacer.poll(Time::ZERO, rate, BURST_BYTES_MAX);
        assert_eq!(permit, Permit::At(Time::ZERO + wait));
        let permit = pacer.poll(Time::ZERO + wait, rate, BURST_BYTES_MAX);
        assert_eq!(permit, Permit::Now(4_200));
    }

    #[test]
    fn a_sender_that_is_woken_late_still_gets_its_rate() {
        let rate = rate_mbit(1_000);
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spend(BURST_BYTES_MAX);
        let (mut now, mut bytes) = (Time::ZERO, 0);
        while now < Time::from_nanos(1_000_000_000) {
            match pacer.poll(now, rate, BURST_BYTES_MAX) {
                Permit::Now(most) => {
                    pacer.spend(most);
                    bytes += most;
                }
                Permit::At(at) => now = at + Duration::from_micros(900),
                Permit::Never => panic!("the rate is not zero"),
            }
        }
        let expected = rate.bytes_in(now.duration_since(Time::ZERO));
        assert!(bytes.abs_diff(expected) <= 4 * BURST_BYTES_MAX, "{bytes}");
    }

    #[test]
    fn what_was_overdrawn_is_waited_for() {
        let rate = rate_mbit(8);
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spend(BURST_BYTES_MAX + 1_000);
        let permit = pacer.poll(Time::ZERO, rate, 500);
        assert_eq!(permit, Permit::At(Time::from_nanos(1_500_000)));
    }

    #[test]
    fn at_rate_zero_nothing_leaves_and_then_at_most_a_burst() {
        let mut pacer = Pacer::new(Time::ZERO);
        assert_eq!(pacer.poll(Time::ZERO, Rate::ZERO, MTU), Permit::Never);
        let later = Time::ZERO + Duration::from_secs(3_600);
        assert_eq!(pacer.poll(later, Rate::ZERO, MTU), Permit::Never);
        let permit = pacer.poll(later, rate_mbit(8), 1);
        assert_eq!(permit, Permit::Now(4_200));
        pacer.spend(BURST_BYTES_MAX);
        assert!(matches!(pacer.poll(later, rate_mbit(8), 1), Permit::At(_)));
    }

    #[test]
    fn what_is_asked_often_earns_as_much_as_what_is_asked_rarely() {
        // An eighth of a byte in each microsecond.
        let rate = rate_mbit(1);
        let mut pacer = Pacer::new(Time::ZERO);
        pacer.spend(BURST_BYTES_MAX);
        for micros in 0..8_000 {
            let permit = pacer.poll(Time::from_nanos(micros * 1_000), rate, 1_000);
            assert!(matches!(permit, Permit::At(_)));
        }
        let permit = pacer.poll(Time::from_nanos(8_000_000), rate, 1_000);
        assert_eq!(permit, Permit::Now(1_000));
    }

    #[test]
    fn time_that_stands_still_or_goes_back_earns_nothing() {
        let mut pacer = Pacer::new(Time::from_nanos(5_000));
        pacer.spend(BURST_BYTES_MAX);
        let permit = pacer.poll(Time::ZERO, Rate::MAX, MTU);
        assert!(matches!(permit, Permit::At(_)));
        let permit = pacer.poll(Time::from_nanos(5_000), Rate::MAX, MTU);
        assert!(matches!(permit, Permit::At(_)));
        pacer.spend(u64::MAX);
        let permit = pacer.poll(Time::from_nanos(u64::MAX), Rate::MAX, u64::MAX);
        assert_eq!(permit, Permit::Now(BURST_BYTES_MAX));
    }
}
