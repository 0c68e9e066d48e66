//! Load of a channel (NL80211_CMD_NEW_SURVEY_RESULTS).

use crate::netlink::{attribute, long, number};

use super::byte;

/// A driver's counters of a channel, in milliseconds since it began to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Centre of the primary 20 MHz.
    pub frequency_mhz: u32,
    /// Whether the driver marks this channel as the one in use.
    pub in_use: bool,
    /// Noise floor.
    pub noise_dbm: Option<i8>,
    /// Time that the radio was on this channel.
    pub active_ms: Option<u64>,
    /// Part of it in which the channel was occupied.
    pub busy_ms: Option<u64>,
    /// Part of it in which the radio received.
    pub receive_ms: Option<u64>,
    /// Part of it in which the radio sent.
    pub transmit_ms: Option<u64>,
}

impl Survey {
    /// Busy share of the time on the channel since `earlier`, from 0 to 1.
    ///
    /// `None` if a counter is missing, was reset, or did not advance.
    pub fn busy_share_since(&self, earlier: &Survey) -> Option<f64> {
        let active = self.active_ms?.checked_sub(earlier.active_ms?)?;
        let busy = self.busy_ms?.checked_sub(earlier.busy_ms?)?;
        (active > 0).then(|| (busy as f64 / active as f64).min(1.0))
    }

    pub(super) fn parse(body: &[u8]) -> Option<Survey> {
        let info = attribute(body, SURVEY_INFO)?;
        let time = |kind| attribute(info, kind).and_then(long);
        Some(Survey {
            frequency_mhz: attribute(info, FREQUENCY).and_then(number)?,
            in_use: attribute(info, IN_USE).is_some(),
            noise_dbm: attribute(info, NOISE).and_then(byte).map(|dbm| dbm as i8),
            active_ms: time(ACTIVE),
            busy_ms: time(BUSY),
            receive_ms: time(RECEIVE),
            transmit_ms: time(TRANSMIT),
        })
    }

    /// The one of two surveys for the channel in use: marked by the driver, or else at the
    /// frequency.
    pub(super) fn better(
        so_far: Option<Survey>,
        next: Option<Survey>,
        frequency_mhz: Option<u32>,
    ) -> Option<Survey> {
        let Some(next) = next else { return so_far };
        let has_frequency = Some(next.frequency_mhz) == frequency_mhz;
        match so_far {
            _ if next.in_use => Some(next),
            None if has_frequency => Some(next),
            other => other,
        }
    }
}

const SURVEY_INFO: u16 = 84;

/// Values of NL80211_SURVEY_INFO_*.
const FREQUENCY: u16 = 1;
const NOISE: u16 = 2;
const IN_USE: u16 = 3;
const ACTIVE: u16 = 4;
const BUSY: u16 = 5;
const RECEIVE: u16 = 7;
const TRANSMIT: u16 = 8;
