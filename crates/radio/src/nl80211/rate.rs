//! A bit rate (NL80211_RATE_INFO_*).

use std::fmt;

use crate::netlink::{attribute, number, short};

use super::byte;

/// Rate and modulation of the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bitrate {
    /// Rate on the air: programs get 60 to 80 % of it at best.
    pub kbps: u32,
    /// Generation of the modulation.
    pub standard: Standard,
    /// Index of the modulation and coding scheme.
    ///
    /// 802.11n counts from 0 to 31 over all streams, later standards from 0 for each number of
    /// streams.
    pub mcs: Option<u8>,
    /// Spatial streams.
    pub streams: Option<u8>,
    /// Width of the channel that the frame used.
    pub width_mhz: u16,
    /// Guard interval between symbols.
    pub guard_interval_ns: Option<u16>,
}

impl fmt::Display for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standard = match self.standard {
            Standard::Legacy => "",
            Standard::Ht => " HT",
            Standard::Vht => " VHT",
            Standard::He => " HE",
            Standard::Eht => " EHT",
        };
        write!(f, "{:.1} Mb/s{standard}", f64::from(self.kbps) / 1000.0)?;
        if let Some(mcs) = self.mcs {
            write!(f, " MCS {mcs}")?;
        }
        if let Some(streams) = self.streams {
            write!(f, " NSS {streams}")?;
        }
        write!(f, " {} MHz", self.width_mhz)
    }
}

/// Standard of a modulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// 802.11a, b or g.
    Legacy,
    /// 802.11n (Wi-Fi 4).
    Ht,
    /// 802.11ac (Wi-Fi 5).
    Vht,
    /// 802.11ax (Wi-Fi 6).
    He,
    /// 802.11be (Wi-Fi 7).
    Eht,
}

impl Bitrate {
    pub(super) fn parse(attributes: &[u8]) -> Option<Bitrate> {
        let has = |kind| attribute(attributes, kind).is_some();
        let value = |kind| attribute(attributes, kind).and_then(byte);
        let hundreds = attribute(attributes, RATE_32).and_then(number);
        // The 16-bit attribute cannot hold more than 6.5 Gb/s.
        let old = || {
            attribute(attributes, RATE_16)
                .and_then(short)
                .map(u32::from)
        };
        let (standard, mcs, streams) = modulation(value);
        let guard_interval_ns = match standard {
            Standard::Legacy => None,
            Standard::Ht | Standard::Vht => Some(if has(SHORT_GUARD) { 400 } else { 800 }),
            Standard::He => value(HE_GUARD).and_then(guard_ns),
            Standard::Eht => value(EHT_GUARD).and_then(guard_ns),
        };
        let width = WIDTHS.iter().find(|(kind, _)| has(*kind));
        Some(Bitrate {
            kbps: hundreds.or_else(old)?.saturating_mul(100),
            standard,
            mcs,
            streams,
            width_mhz: width.map_or(20, |(_, mhz)| *mhz),
            guard_interval_ns,
        })
    }
}

/// Standard, MCS and streams: the attribute that is present tells the standard.
fn modulation(value: impl Fn(u16) -> Option<u8>) -> (Standard, Option<u8>, Option<u8>) {
    let later = [
        (Standard::Eht, EHT_MCS, EHT_STREAMS),
        (Standard::He, HE_MCS, HE_STREAMS),
        (Standard::Vht, VHT_MCS, VHT_STREAMS),
    ];
    for (standard, mcs, streams) in later {
        if let Some(mcs) = value(mcs) {
            return (standard, Some(mcs), value(streams));
        }
    }
    match value(HT_MCS) {
        Some(mcs) => (Standard::Ht, Some(mcs), Some(mcs / 8 + 1)),
        None => (Standard::Legacy, None, None),
    }
}

/// Guard interval by `enum nl80211_he_gi`, and that of EHT.
fn guard_ns(number: u8) -> Option<u16> {
    [800, 1600, 3200].get(usize::from(number)).copied()
}

const RATE_16: u16 = 1;
const HT_MCS: u16 = 2;
const SHORT_GUARD: u16 = 4;
const RATE_32: u16 = 5;
const VHT_MCS: u16 = 6;
const VHT_STREAMS: u16 = 7;
const HE_MCS: u16 = 13;
const HE_STREAMS: u16 = 14;
const HE_GUARD: u16 = 15;
const EHT_MCS: u16 = 19;
const EHT_STREAMS: u16 = 20;
const EHT_GUARD: u16 = 21;
/// Flag attributes and their width in MHz; without any, 20 MHz.
const WIDTHS: [(u16, u16); 7] = [
    (3, 40),
    (8, 80),
    (9, 160),
    (10, 160),
    (11, 10),
    (12, 5),
    (18, 320),
];
