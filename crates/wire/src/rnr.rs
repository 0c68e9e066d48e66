//! Times that packets and queue pairs carry as codes.

use std::time::Duration;

/// How long a requester waits after an RNR NAK with that timer code (IBTA table 45). The low five
/// bits count.
pub const fn rnr_timer(code: u8) -> Duration {
    Duration::from_micros(RNR_TIMER_US[(code & 0x1f) as usize] as u64)
}

/// The local ACK timeout of an attribute code, 4.096 us * 2^code (IBTA 9.9.2.1.1).
///
/// The low five bits count; `None`, for code 0, means to wait for ever.
pub const fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        exponent => Some(Duration::from_nanos(4096 << exponent)),
    }
}

/// Microseconds by timer code. Code 0 is the longest time.
const RNR_TIMER_US: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_timer_codes_grow_except_for_the_longest_at_zero() {
        assert_eq!(rnr_timer(0), Duration::from_micros(655_360));
        assert_eq!(rnr_timer(1), Duration::from_micros(10));
        assert_eq!(rnr_timer(12), Duration::from_micros(640));
        assert_eq!(rnr_timer(20), Duration::from_micros(10_240));
        assert_eq!(rnr_timer(31), Duration::from_micros(491_520));
        assert!((1..31).all(|code| rnr_timer(code) < rnr_timer(code + 1)));
        // From code 2 on, each time is twice the time two codes before: .02 .03 .04 .06 .08 .12 ...
        assert!((4..32).all(|code| rnr_timer(code) == 2 * rnr_timer(code - 2)));
        assert_eq!(rnr_timer(0), 2 * rnr_timer(30));
        assert_eq!(rnr_timer(32 + 12), rnr_timer(12));
    }

    #[test]
    fn the_ack_timeout_doubles_with_each_code() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8_192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
        assert_eq!(ack_timeout(32), None);
    }
}
