//! Parameters of a cell: radio, MAC limits, queues; and named profiles.

use core::time::Duration;

use super::fading::Fading;
use super::interference::Interference;
use super::phy::{
    PPDU_NS_MAX, Phy, SIFS_NS, SLOT_NS, Standard, answer_mbit, block_ack_bytes, legacy_ns,
    mpdu_bytes, subframe_bytes,
};
use super::traffic::{HEADERS_BYTES, PACKET_BYTES};

/// Contention parameters of a station (EDCA, 802.11-2020 10.23.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Slots that the medium must be idle after SIFS before a backoff counts down.
    pub aifsn: u8,
    /// Largest first backoff, in slots.
    pub cw_min: u16,
    /// Largest backoff after failures, in slots.
    pub cw_max: u16,
    /// Longest time that a station may use the air after it won; zero: one PPDU with its answer.
    pub txop: Duration,
}

impl Access {
    /// Best effort, as drivers set it (802.11-2020 table 9-155 allows a TXOP of 2,528 us, which
    /// access points may announce; most, and ns-3, say 0).
    pub const BEST_EFFORT: Access = Access {
        aifsn: 3,
        cw_min: 15,
        cw_max: 1023,
        txop: Duration::ZERO,
    };

    /// The idle time in front of the countdown: 43 us for best effort.
    pub const fn aifs_ns(&self) -> u64 {
        SIFS_NS + self.aifsn as u64 * SLOT_NS
    }
}

/// Parameters common to all stations of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// The radio.
    pub phy: Phy,
    /// Window of a block-ack agreement in MPDUs, and most MPDUs in a PPDU: 64 (HT, VHT), 256
    /// (HE), 1024 (EHT) at most.
    pub window: u16,
    /// Longest A-MPDU in bytes: 65,535 (HT), 1,048,575 (VHT), 6,500,631 (HE), 15,523,200 (EHT) at
    /// most.
    pub ampdu_bytes_max: u32,
    /// Longest PPDU in ns, 5,484,000 at most.
    pub ppdu_ns_max: u64,
    /// Contention parameters of its stations.
    pub access: Access,
    /// Transmissions of an MPDU before it is given up (dot11ShortRetryLimit: the retry counter
    /// counts failures, and the seventh is the last).
    pub attempts_max: u8,
    /// Longest time of a packet at its sender before it is given up.
    pub lifetime: Duration,
    /// Packets that a station holds, those on the air included. Named profiles have 25 ms at the
    /// ideal goodput, to which SMUFF (NSDI 2024, figure 8) saw the delay grow.
    pub queue_packets_max: usize,
    /// A PPDU with more bytes is announced by RTS and CTS, so that a collision is short.
    pub rts_above_bytes: Option<u32>,
    /// Whether an aggregate holds the packets present when its contention began (hardware that gets
    /// whole aggregates, as ath9k's) rather than when it is sent (firmware that builds them).
    pub aggregates_early: bool,
    /// Fading of its channels.
    pub fading: Fading,
    /// Noise that carrier sense does not detect; none in the named profiles.
    pub interference: Option<Interference>,
}

impl Profile {
    /// 802.11n, 40 MHz, 2 streams, short guard interval: 300 Mb/s.
    pub const N_40: Profile = Profile {
        name: "n-40",
        phy: Phy {
            standard: Standard::Ht,
            width_mhz: 40,
            streams: 2,
            guard_ns: 400,
        },
        window: 64,
        ampdu_bytes_max: 65_535,
        ppdu_ns_max: PPDU_NS_MAX,
        access: Access::BEST_EFFORT,
        attempts_max: 7,
        lifetime: Duration::from_millis(512),
        queue_packets_max: 500,
        rts_above_bytes: None,
        aggregates_early: true,
        fading: Fading::INDOOR,
        interference: None,
    };

    /// 802.11ac, 80 MHz, 2 streams, short guard interval: 867 Mb/s.
    pub const AC_80: Profile = Profile {
        name: "ac-80",
        phy: Phy {
            standard: Standard::Vht,
            width_mhz: 80,
            streams: 2,
            guard_ns: 400,
        },
        ampdu_bytes_max: 1_048_575,
        queue_packets_max: 1_400,
        ..Profile::N_40
    };

    /// 802.11ac, 160 MHz, 2 streams, short guard interval: 1,733 Mb/s.
    pub const AC_160: Profile = Profile {
        name: "ac-160",
        phy: Phy {
            width_mhz: 160,
            ..Profile::AC_80.phy
        },
        queue_packets_max: 2_400,
        ..Profile::AC_80
    };

    /// 802.11ax, 80 MHz, 2 streams, guard interval 0.8 us: 1,201 Mb/s.
    pub const AX_80: Profile = Profile {
        name: "ax-80",
        phy: Phy {
            standard: Standard::He,
            width_mhz: 80,
            streams: 2,
            guard_ns: 800,
        },
        window: 256,
        ampdu_bytes_max: 6_500_631,
        queue_packets_max: 2_200,
        ..Profile::AC_80
    };

    /// 802.11ax, 160 MHz, 2 streams, guard interval 0.8 us: 2,402 Mb/s.
    pub const AX_160: Profile = Profile {
        name: "ax-160",
        phy: Phy {
            width_mhz: 160,
            ..Profile::AX_80.phy
        },
        queue_packets_max: 4_100,
        ..Profile::AX_80
    };

    /// 802.11be, 160 MHz, 2 streams, guard interval 0.8 us: 2,882 Mb/s.
    pub const BE_160: Profile = Profile {
        name: "be-160",
        phy: Phy {
            standard: Standard::Eht,
            ..Profile::AX_160.phy
        },
        window: 1024,
        ampdu_bytes_max: 15_523_200,
        queue_packets_max: 5_400,
        ..Profile::AX_160
    };

    /// 802.11be, 320 MHz, 2 streams, guard interval 0.8 us: 5,765 Mb/s.
    pub const BE_320: Profile = Profile {
        name: "be-320",
        phy: Phy {
            width_mhz: 320,
            ..Profile::BE_160.phy
        },
        queue_packets_max: 10_300,
        ..Profile::BE_160
    };

    /// All named profiles.
    pub const ALL: [Profile; 7] = [
        Profile::N_40,
        Profile::AC_80,
        Profile::AC_160,
        Profile::AX_80,
        Profile::AX_160,
        Profile::BE_160,
        Profile::BE_320,
    ];

    /// The profile of this name.
    pub fn named(name: &str) -> Option<Profile> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name == name)
    }

    /// Checks a profile written by a user.
    ///
    /// # Errors
    ///
    /// The first invalid part.
    pub fn check(&self) -> Result<(), BadProfile> {
        let (window_max, ampdu_bytes_max) = self.phy.standard.aggregate_max();
        let is_guard = match self.phy.standard {
            Standard::Ht | Standard::Vht => [400, 800].contains(&self.phy.guard_ns),
            Standard::He | Standard::Eht => [800, 1_600, 3_200].contains(&self.phy.guard_ns),
        };
        let Access {
            aifsn,
            cw_min,
            cw_max,
            ..
        } = self.access;
        let Fading {
            sigma_db,
            coherence,
        } = self.fading;
        let is_noise = self.interference.is_none_or(|noise| {
            noise.rise_db.is_finite() && !noise.on.is_zero() && !noise.off.is_zero()
        });
        let rules = [
            (self.phy.data_subcarriers() > 0, "no such channel width"),
            ((1..=16).contains(&self.phy.streams), "1 to 16 streams"),
            (is_guard, "no such guard interval"),
            ((1..=window_max).contains(&self.window), "window"),
            (
                (1..=ampdu_bytes_max).contains(&self.ampdu_bytes_max),
                "A-MPDU bytes",
            ),
            (
                (1..=PPDU_NS_MAX).contains(&self.ppdu_ns_max),
                "longest PPDU",
            ),
            (aifsn > 0 && cw_min <= cw_max, "access"),
            (self.attempts_max > 0, "at least one attempt"),
            (!self.lifetime.is_zero(), "lifetime"),
            (self.queue_packets_max > 0, "queue"),
            (sigma_db >= 0.0 && sigma_db.is_finite(), "fading"),
            (!coherence.is_zero(), "coherence time"),
            (is_noise, "interference"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(BadProfile(what)),
            None => Ok(()),
        }
    }

    /// UDP goodput of one saturated direction of packets of 1,500 bytes without loss, in Mb/s.
    ///
    /// A cycle is AIFS, mean backoff, PPDU, SIFS and block ack. The model is compared with this
    /// table.
    ///
    /// # Panics
    ///
    /// If the standard has no such scheme.
    pub fn ideal_goodput_mbit(&self, mcs: u8) -> f64 {
        assert!(mcs <= self.phy.mcs_max(), "no such scheme");
        let subframe = u64::from(subframe_bytes(mpdu_bytes(PACKET_BYTES)));
        let fitting = self.phy.bytes_within(mcs, self.ppdu_ns_max);
        let bytes_max = fitting.min(u64::from(self.ampdu_bytes_max));
        let mpdus = (bytes_max / subframe).clamp(1, u64::from(self.window));
        let backoff_ns = u64::from(self.access.cw_min) * SLOT_NS / 2;
        let answer_ns = legacy_ns(answer_mbit(mcs), block_ack_bytes(self.window));
        let ppdu_ns = self.phy.ppdu_ns(mcs, mpdus * subframe);
        let cycle_ns = self.access.aifs_ns() + backoff_ns + ppdu_ns + SIFS_NS + answer_ns;
        let payload_bits = 8 * mpdus * u64::from(PACKET_BYTES - HEADERS_BYTES);
        payload_bits as f64 * 1e3 / cycle_ns as f64
    }

    /// Removes fading.
    pub fn steady(mut self) -> Profile {
        self.fading = Fading::NONE;
        self
    }

    /// Noise of a receiver in this width, in dBm: thermal noise of -174 dBm/Hz and a noise figure
    /// of 7 dB. SNR = signal strength - noise.
    pub fn noise_dbm(&self) -> f64 {
        const NOISE_FIGURE_DB: f64 = 7.0;
        -174.0 + 10.0 * (f64::from(self.phy.width_mhz) * 1e6).log10() + NOISE_FIGURE_DB
    }
}

impl Standard {
    /// The widest block-ack window, and the most bytes of an A-MPDU.
    pub const fn aggregate_max(self) -> (u16, u32) {
        match self {
            Standard::Ht => (64, 65_535),
            Standard::Vht => (64, 1_048_575),
            Standard::He => (256, 6_500_631),
            Standard::Eht => (1024, 15_523_200),
        }
    }
}

/// A profile that no cell can have, with its invalid part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadProfile(pub &'static str);

impl core::fmt::Display for BadProfile {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a cell cannot be like this: {}", self.0)
    }
}

impl core::error::Error for BadProfile {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_within_the_limits_of_their_standard() {
        for profile in Profile::ALL {
            let limits = (profile.window, profile.ampdu_bytes_max);
            assert_eq!(limits, profile.phy.standard.aggregate_max());
            assert_eq!(profile.check(), Ok(()));
            assert_eq!(profile.access.aifs_ns(), 43_000);
            assert!(profile.phy.data_subcarriers() > 0);
            assert_eq!(Profile::named(profile.name), Some(profile));
        }
        assert_eq!(Profile::named("ad"), None);
    }

    #[test]
    fn what_cannot_be_is_named() {
        type Change = fn(&mut Profile);
        let cases: [(&str, Change); 13] = [
            ("no such channel width", |p| p.phy.width_mhz = 320),
            ("1 to 16 streams", |p| p.phy.streams = 0),
            ("no such guard interval", |p| p.phy.guard_ns = 3_200),
            ("window", |p| p.window = 256),
            ("A-MPDU bytes", |p| p.ampdu_bytes_max = 1_048_576),
            ("longest PPDU", |p| p.ppdu_ns_max = 5_484_001),
            ("access", |p| p.access.cw_min = 2_000),
            ("at least one attempt", |p| p.attempts_max = 0),
            ("lifetime", |p| p.lifetime = Duration::ZERO),
            ("queue", |p| p.queue_packets_max = 0),
            ("fading", |p| p.fading.sigma_db = f64::NAN),
            ("coherence time", |p| p.fading.coherence = Duration::ZERO),
            ("interference", |p| {
                p.interference = Some(Interference {
                    rise_db: 10.0,
                    on: Duration::ZERO,
                    off: Duration::from_secs(1),
                });
            }),
        ];
        for (what, change) in cases {
            let mut profile = Profile::AC_80;
            change(&mut profile);
            assert_eq!(profile.check(), Err(BadProfile(what)));
        }
    }

    #[test]
    fn ideal_goodput_is_that_of_the_reference() {
        for row in crate::wifi::report::reference() {
            let found = row.profile.ideal_goodput_mbit(row.mcs);
            let deviation = found / row.goodput_mbit - 1.0;
            assert!(deviation.abs() < 0.005, "{}: {found}", row.profile.name);
        }
    }

    #[test]
    fn noise_grows_with_the_width() {
        assert!((Profile::AC_80.noise_dbm() + 88.0).abs() < 0.1);
        assert!((Profile::BE_320.noise_dbm() + 82.0).abs() < 0.1);
    }
}
