//! The physical layer: bits in a symbol, preambles, and the air time of a frame.
//!
//! Everything is computed from the tone plans and timings of IEEE 802.11-2020 (HT clause 19, VHT
//! clause 21), 802.11ax-2021 (clause 27) and 802.11be (clause 36): data subcarriers x coded bits x
//! code rate, per symbol. Times are nanoseconds.

/// Short interframe space of OFDM at 5 and 6 GHz (802.11-2020 table 17-21), in ns.
pub const SIFS_NS: u64 = 16_000;

/// One slot of contention (802.11-2020 table 17-21), in ns.
pub const SLOT_NS: u64 = 9_000;

/// Time after a frame until its exchange counts as failed without an answer: SIFS, one slot, and
/// the 20 us after which a receiver has seen a preamble (802.11-2020 10.3.2.11).
pub const ANSWER_TIMEOUT_NS: u64 = SIFS_NS + SLOT_NS + 20_000;

/// Longest PPDU (aPPDUMaxTime of VHT, HE and EHT), in ns.
pub const PPDU_NS_MAX: u64 = 5_484_000;

/// Longest MPDU that any standard allows, in bytes.
pub const MPDU_BYTES_MAX: u32 = 11_454;

/// Bytes that the MAC adds to an IP packet: LLC and SNAP 8, QoS header 26, CCMP header and MIC 16,
/// FCS 4.
pub const MPDU_OVERHEAD_BYTES: u32 = 8 + 26 + 16 + 4;

/// Delimiter in front of each MPDU of an A-MPDU, in bytes.
const DELIMITER_BYTES: u32 = 4;

/// SERVICE field in front of the data. LDPC has no tail bits.
const SERVICE_BITS: u64 = 16;

/// Training and signal fields that every receiver understands: 16 + 4 us.
const LEGACY_PREAMBLE_NS: u64 = 20_000;

/// A symbol of 802.11a, in ns.
const LEGACY_SYMBOL_NS: u64 = 4_000;

/// Bits per coded subcarrier and the code rate of each modulation and coding scheme.
const SCHEMES: [(u64, u64, u64); 14] = [
    (1, 1, 2),
    (2, 1, 2),
    (2, 3, 4),
    (4, 1, 2),
    (4, 3, 4),
    (6, 2, 3),
    (6, 3, 4),
    (6, 5, 6),
    (8, 3, 4),
    (8, 5, 6),
    (10, 3, 4),
    (10, 5, 6),
    (12, 3, 4),
    (12, 5, 6),
];

/// A generation of Wi-Fi.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standard {
    /// 802.11n, Wi-Fi 4. Schemes 0 to 7 count per stream here.
    Ht,
    /// 802.11ac, Wi-Fi 5.
    Vht,
    /// 802.11ax, Wi-Fi 6.
    He,
    /// 802.11be, Wi-Fi 7.
    Eht,
}

/// Parameters that two radios have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Phy {
    /// Generation.
    pub standard: Standard,
    /// Channel width: 20, 40, 80 and so on up to 40 (HT), 160 (VHT, HE), 320 MHz (EHT).
    pub width_mhz: u16,
    /// Spatial streams, 1 to 8 (HT: 4).
    pub streams: u8,
    /// Guard interval: 400 or 800 ns (HT, VHT), 800, 1600 or 3200 ns (HE, EHT).
    pub guard_ns: u64,
}

impl Phy {
    /// The fastest scheme of the standard.
    pub const fn mcs_max(&self) -> u8 {
        match self.standard {
            Standard::Ht => 7,
            Standard::Vht => 9,
            Standard::He => 11,
            Standard::Eht => 13,
        }
    }

    /// Subcarriers that carry data; 0 if the standard has no such width.
    pub const fn data_subcarriers(&self) -> u64 {
        match (self.standard, self.width_mhz) {
            (Standard::Ht | Standard::Vht, 20) => 52,
            (Standard::Ht | Standard::Vht, 40) => 108,
            (Standard::Vht, 80) => 234,
            (Standard::Vht, 160) => 468,
            (Standard::He | Standard::Eht, 20) => 234,
            (Standard::He | Standard::Eht, 40) => 468,
            (Standard::He | Standard::Eht, 80) => 980,
            (Standard::He | Standard::Eht, 160) => 1960,
            (Standard::Eht, 320) => 3920,
            (Standard::Ht | Standard::Vht | Standard::He | Standard::Eht, _) => 0,
        }
    }

    /// A symbol with its guard interval, in ns.
    pub const fn symbol_ns(&self) -> u64 {
        let body = match self.standard {
            Standard::Ht | Standard::Vht => 3_200,
            Standard::He | Standard::Eht => 12_800,
        };
        body + self.guard_ns
    }

    /// Data bits that a symbol of scheme `mcs` carries over all streams.
    ///
    /// # Panics
    ///
    /// If the standard has no such scheme.
    pub const fn bits_per_symbol(&self, mcs: u8) -> u64 {
        assert!(mcs <= self.mcs_max(), "no such scheme in this standard");
        let (bits, numerator, denominator) = SCHEMES[mcs as usize];
        self.data_subcarriers() * self.streams as u64 * bits * numerator / denominator
    }

    /// Bits per second while data symbols are sent.
    pub const fn bits_per_s(&self, mcs: u8) -> u64 {
        self.bits_per_symbol(mcs) * 1_000_000_000 / self.symbol_ns()
    }

    /// Everything in front of the data symbols, in ns.
    pub const fn preamble_ns(&self) -> u64 {
        let training = self.training_symbols();
        match self.standard {
            // HT-SIG 8, STF 4, an LTF of 4 each.
            Standard::Ht => LEGACY_PREAMBLE_NS + 8_000 + 4_000 + 4_000 * training,
            // SIG-A 8, STF 4, an LTF of 4 each, SIG-B 4.
            Standard::Vht => LEGACY_PREAMBLE_NS + 8_000 + 4_000 + 4_000 * training + 4_000,
            // RL-SIG 4, SIG-A 8, STF 4, an LTF of 8 each.
            Standard::He => LEGACY_PREAMBLE_NS + 4_000 + 8_000 + 4_000 + 8_000 * training,
            // RL-SIG 4, U-SIG 8, EHT-SIG 8, STF 4, an LTF of 8 each.
            Standard::Eht => LEGACY_PREAMBLE_NS + 4_000 + 8_000 + 8_000 + 4_000 + 8_000 * training,
        }
    }

    /// Long training symbols: one per stream, but no odd number above one.
    const fn training_symbols(&self) -> u64 {
        match self.streams {
            0 | 1 => 1,
            streams => (streams as u64).next_multiple_of(2),
        }
    }

    /// Air time of a PPDU with this many bytes, in ns.
    pub const fn ppdu_ns(&self, mcs: u8, bytes: u64) -> u64 {
        let bits = bytes * 8 + SERVICE_BITS;
        let symbols = bits.div_ceil(self.bits_per_symbol(mcs));
        self.preamble_ns() + symbols * self.symbol_ns()
    }

    /// The most bytes that a PPDU of at most `ns` can carry.
    pub const fn bytes_within(&self, mcs: u8, ns: u64) -> u64 {
        let symbols = ns.saturating_sub(self.preamble_ns()) / self.symbol_ns();
        (symbols * self.bits_per_symbol(mcs)).saturating_sub(SERVICE_BITS) / 8
    }
}

/// Length of the MPDU that carries an IP packet of `bytes`.
pub const fn mpdu_bytes(bytes: u32) -> u32 {
    bytes + MPDU_OVERHEAD_BYTES
}

/// Bytes of an MPDU of this length in an A-MPDU: delimiter, MPDU, padding to four bytes.
pub const fn subframe_bytes(mpdu_bytes: u32) -> u32 {
    (DELIMITER_BYTES + mpdu_bytes).next_multiple_of(4)
}

/// Air time of an 802.11a frame, such as a control frame, at 6, 12 or 24 Mb/s, in ns.
pub const fn legacy_ns(mbit: u64, bytes: u64) -> u64 {
    const TAIL_BITS: u64 = 6;
    let bits = SERVICE_BITS + bytes * 8 + TAIL_BITS;
    let bits_per_symbol = mbit * LEGACY_SYMBOL_NS / 1_000;
    LEGACY_PREAMBLE_NS + bits.div_ceil(bits_per_symbol) * LEGACY_SYMBOL_NS
}

/// The rate at which a frame of scheme `mcs` is answered, in Mb/s: the fastest basic rate (6, 12,
/// 24) that is no faster than the 802.11a rate of the same modulation (802.11-2020 10.6.6.5).
pub const fn answer_mbit(mcs: u8) -> u64 {
    match mcs {
        0 => 6,
        1 | 2 => 12,
        _ => 24,
    }
}

/// Scheme with the errors of an answer to a frame of scheme `mcs`: that of [`answer_mbit`].
pub const fn answer_mcs(mcs: u8) -> u8 {
    match mcs {
        0 => 0,
        1 | 2 => 1,
        _ => 3,
    }
}

/// Length of an Ack or CTS in bytes.
pub const ACK_BYTES: u64 = 14;

/// Length of an RTS in bytes.
pub const RTS_BYTES: u64 = 20;

/// Length of a block-ack request in bytes.
pub const BLOCK_ACK_REQUEST_BYTES: u64 = 24;

/// Length of a compressed block ack for a window of this many MPDUs, in bytes: 24 and the bitmap.
pub const fn block_ack_bytes(window: u16) -> u64 {
    24 + if window <= 64 { 8 } else { window as u64 / 8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wifi::Profile;

    /// Mb/s with one digit, as in published tables.
    fn mbit(phy: &Phy, mcs: u8) -> f64 {
        (phy.bits_per_s(mcs) as f64 / 1e5).round() / 10.0
    }

    #[test]
    fn rates_are_those_of_the_standard() {
        let table: [(Phy, &[f64]); 6] = [
            (
                Profile::AC_80.phy,
                &[
                    65.0, 130.0, 195.0, 260.0, 390.0, 520.0, 585.0, 650.0, 780.0, 866.7,
                ],
            ),
            (
                Profile::AC_160.phy,
                &[
                    130.0, 260.0, 390.0, 520.0, 780.0, 1040.0, 1170.0, 1300.0, 1560.0, 1733.3,
                ],
            ),
            (
                Profile::AX_80.phy,
                &[
                    72.1, 144.1, 216.2, 288.2, 432.4, 576.5, 648.5, 720.6, 864.7, 960.8, 1080.9,
                    1201.0,
                ],
            ),
            (
                Profile::AX_160.phy,
                &[
                    144.1, 288.2, 432.4, 576.5, 864.7, 1152.9, 1297.1, 1441.2, 1729.4, 1921.6,
                    2161.8, 2402.0,
                ],
            ),
            (
                Profile::BE_320.phy,
                &[
                    288.2, 576.5, 864.7, 1152.9, 1729.4, 2305.9, 2594.1, 2882.4, 3458.8, 3843.1,
                    4323.5, 4803.9, 5188.2, 5764.7,
                ],
            ),
            (
                Profile::N_40.phy,
                &[30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 270.0, 300.0],
            ),
        ];
        for (phy, rates) in table {
            assert_eq!(rates.len(), usize::from(phy.mcs_max()) + 1);
            for (mcs, &rate) in rates.iter().enumerate() {
                let computed = mbit(&phy, mcs as u8);
                assert!(
                    (computed - rate).abs() < 0.11,
                    "{phy:?} mcs {mcs}: {computed} and {rate}"
                );
            }
        }
        let eight_streams = Phy {
            streams: 8,
            ..Profile::BE_320.phy
        };
        assert_eq!(mbit(&eight_streams, 13), 23_058.8);
    }

    #[test]
    fn airtime_of_known_aggregates() {
        // PPDU and block ack in us, for UDP of 1472 bytes: the reference table.
        let cases = [
            (Profile::AC_80.phy, 9, 64, 969, 64, 32),
            (Profile::AC_160.phy, 9, 64, 508, 64, 32),
            (Profile::AX_80.phy, 11, 64, 718, 64, 32),
            (Profile::AX_80.phy, 11, 256, 2718, 256, 40),
            (Profile::AX_160.phy, 11, 256, 1385, 256, 40),
            (Profile::BE_160.phy, 13, 1024, 4507, 1024, 72),
            (Profile::BE_320.phy, 13, 256, 618, 256, 40),
            (Profile::BE_320.phy, 13, 1024, 2290, 1024, 72),
            (Profile::AX_80.phy, 7, 256, 4499, 256, 40),
            (Profile::AX_80.phy, 4, 188, 5492, 256, 40),
        ];
        let subframe = u64::from(subframe_bytes(mpdu_bytes(1500)));
        assert_eq!(subframe, 1560);
        for (phy, mcs, mpdus, ppdu_us, window, answer_us) in cases {
            let ppdu_ns = phy.ppdu_ns(mcs, mpdus * subframe);
            assert_eq!((ppdu_ns + 500) / 1000, ppdu_us, "{phy:?} mcs {mcs}");
            assert_eq!(
                legacy_ns(answer_mbit(mcs), block_ack_bytes(window)),
                answer_us * 1000
            );
        }
    }

    #[test]
    fn what_fits_into_a_time_takes_no_longer() {
        for phy in [
            Profile::N_40.phy,
            Profile::AC_80.phy,
            Profile::AX_80.phy,
            Profile::BE_320.phy,
        ] {
            for mcs in 0..=phy.mcs_max() {
                for ns in [100_000, 1_234_567, PPDU_NS_MAX] {
                    let bytes = phy.bytes_within(mcs, ns);
                    assert!(phy.ppdu_ns(mcs, bytes) <= ns);
                    assert!(phy.ppdu_ns(mcs, bytes + 1) > ns);
                }
            }
        }
    }

    #[test]
    fn control_frames() {
        assert_eq!(legacy_ns(24, ACK_BYTES), 28_000);
        assert_eq!(legacy_ns(24, RTS_BYTES), 28_000);
        assert_eq!(legacy_ns(6, ACK_BYTES), 44_000);
        assert_eq!(legacy_ns(24, BLOCK_ACK_REQUEST_BYTES), 32_000);
    }
}
