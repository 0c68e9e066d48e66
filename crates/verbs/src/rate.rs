//! Conversions of static rates, and the link speed that an interface stands for.

use std::ffi::c_int;

use crate::abi;

/// One static rate: its enumerator, its multiple of 2.5 Gb/s if it has one, and its Mb/s.
struct Rate {
    rate: abi::ibv_rate,
    multiple: Option<c_int>,
    mbps: c_int,
}

const fn rate(rate: abi::ibv_rate, multiple: c_int, mbps: c_int) -> Rate {
    Rate {
        rate,
        multiple: Some(multiple),
        mbps,
    }
}

/// A rate that rdma-core's library does not give as a multiple.
const fn unmultiplied(rate: abi::ibv_rate, mbps: c_int) -> Rate {
    Rate {
        rate,
        multiple: None,
        mbps,
    }
}

const RATES: [Rate; 23] = [
    rate(abi::IBV_RATE_2_5_GBPS, 1, 2_500),
    rate(abi::IBV_RATE_5_GBPS, 2, 5_000),
    rate(abi::IBV_RATE_10_GBPS, 4, 10_000),
    rate(abi::IBV_RATE_20_GBPS, 8, 20_000),
    rate(abi::IBV_RATE_30_GBPS, 12, 30_000),
    rate(abi::IBV_RATE_40_GBPS, 16, 40_000),
    rate(abi::IBV_RATE_60_GBPS, 24, 60_000),
    rate(abi::IBV_RATE_80_GBPS, 32, 80_000),
    rate(abi::IBV_RATE_120_GBPS, 48, 120_000),
    unmultiplied(abi::IBV_RATE_14_GBPS, 14_062),
    unmultiplied(abi::IBV_RATE_56_GBPS, 56_250),
    unmultiplied(abi::IBV_RATE_112_GBPS, 112_500),
    unmultiplied(abi::IBV_RATE_168_GBPS, 168_750),
    unmultiplied(abi::IBV_RATE_25_GBPS, 25_781),
    unmultiplied(abi::IBV_RATE_100_GBPS, 103_125),
    unmultiplied(abi::IBV_RATE_200_GBPS, 206_250),
    unmultiplied(abi::IBV_RATE_300_GBPS, 309_375),
    rate(abi::IBV_RATE_28_GBPS, 11, 28_125),
    rate(abi::IBV_RATE_50_GBPS, 20, 53_125),
    rate(abi::IBV_RATE_400_GBPS, 160, 425_000),
    rate(abi::IBV_RATE_600_GBPS, 240, 637_500),
    rate(abi::IBV_RATE_800_GBPS, 320, 850_000),
    rate(abi::IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// `ibv_rate_to_mult(3)`: -1 for a rate without a multiple.
pub fn to_multiple(rate: abi::ibv_rate) -> c_int {
    RATES
        .iter()
        .find(|entry| entry.rate == rate)
        .and_then(|entry| entry.multiple)
        .unwrap_or(-1)
}

/// `mult_to_ibv_rate(3)`: the port's maximum for an unknown multiple.
pub fn from_multiple(multiple: c_int) -> abi::ibv_rate {
    RATES
        .iter()
        .find(|entry| entry.multiple == Some(multiple))
        .map_or(abi::IBV_RATE_MAX, |entry| entry.rate)
}

/// `ibv_rate_to_mbps(3)`: -1 for an unknown rate.
pub fn to_mbps(rate: abi::ibv_rate) -> c_int {
    RATES
        .iter()
        .find(|entry| entry.rate == rate)
        .map_or(-1, |entry| entry.mbps)
}

/// `mbps_to_ibv_rate(3)`: the port's maximum for an unknown speed.
pub fn from_mbps(mbps: c_int) -> abi::ibv_rate {
    RATES
        .iter()
        .find(|entry| entry.mbps == mbps)
        .map_or(abi::IBV_RATE_MAX, |entry| entry.rate)
}

/// The same link in sysfs' words: "25 Gb/sec (1X EDR)".
pub fn link_text(mbps: Option<u32>) -> String {
    let (width, speed) = link(mbps);
    let lanes = if width == 1 { 1 } else { 4 };
    // 0.1 Gb/s of one lane.
    let (lane, name) = match speed {
        2 => (50, "DDR"),
        8 => (100, "FDR10"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        _ => (25, "SDR"),
    };
    let rate = lane * lanes;
    let half = if rate % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X {name})", rate / 10)
}

/// The speed of a port whose interface reports none: one lane of the slowest link.
pub const MBPS_UNKNOWN: u32 = 2_500;

/// `active_width` and `active_speed` of a port (IBTA PortInfo codes) for an Ethernet link of
/// `mbps`, paired the way RoCE devices report them: the smallest standard link that carries it.
pub fn link(mbps: Option<u32>) -> (u8, u8) {
    const WIDTH_1X: u8 = 1;
    const WIDTH_4X: u8 = 2;
    const SDR: u8 = 1;
    const DDR: u8 = 2;
    const FDR10: u8 = 8;
    const EDR: u8 = 32;
    const HDR: u8 = 64;
    match mbps.unwrap_or(0) {
        0..=1_000 => (WIDTH_1X, SDR),
        1_001..=10_000 => (WIDTH_1X, FDR10),
        10_001..=20_000 => (WIDTH_4X, DDR),
        20_001..=25_000 => (WIDTH_1X, EDR),
        25_001..=40_000 => (WIDTH_4X, FDR10),
        40_001..=50_000 => (WIDTH_1X, HDR),
        50_001..=100_000 => (WIDTH_4X, EDR),
        100_001.. => (WIDTH_4X, HDR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_inverse_where_both_exist() {
        for entry in &RATES {
            assert_eq!(from_mbps(to_mbps(entry.rate)), entry.rate);
            if let Some(multiple) = entry.multiple {
                assert_eq!(from_multiple(multiple), entry.rate);
            }
        }
    }

    #[test]
    fn unknown_rates_answer_as_the_man_page_says() {
        assert_eq!(to_mbps(abi::IBV_RATE_MAX), -1);
        assert_eq!(to_multiple(abi::IBV_RATE_100_GBPS), -1);
        assert_eq!(from_mbps(1), abi::IBV_RATE_MAX);
        assert_eq!(from_multiple(-1), abi::IBV_RATE_MAX);
    }

    #[test]
    fn a_link_of_unknown_speed_counts_as_the_slowest() {
        assert_eq!(link(None), (1, 1));
        assert_eq!(link(Some(10_000)), (1, 8));
        assert_eq!(link(Some(400_000)), (2, 64));
    }

    #[test]
    fn a_link_is_told_as_sysfs_does() {
        assert_eq!(link_text(None), "2.5 Gb/sec (1X SDR)");
        assert_eq!(link_text(Some(10_000)), "10 Gb/sec (1X FDR10)");
        assert_eq!(link_text(Some(100_000)), "100 Gb/sec (4X EDR)");
    }
}
