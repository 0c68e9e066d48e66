//! How busy a channel is (NL80211_CMD_NEW_SURVEY_RESULTS).

use crate::netlink::{attribute, long, number};

use super::byte;

/// What the driver counted on a channel. Times in milliseconds since it began to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Middle of the 20 MHz.
    pub frequency_mhz: u32,
    /// Whether the driver says that it is on this channel.
    pub in_use: bool,
    /// The noise floor.
    pub noise_dbm: Option<i8>,
    /// The radio was on this channel.
    pub active_ms: Option<u64>,
    /// Of which somebody sent, or the energy was too high.
    pub busy_ms: Option<u64>,
    /// Of which it received.
    pub receive_ms: Option<u64>,
    /// Of which it sent.
    pub transmit_ms: Option<u64>,
}

impl Survey {
    /// Of the time on the channel, the part that was busy since `earlier`, from 0 to 1. None if a counter is missing, began
    /// again, or did not move.
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

    /// Of two, the one that tells about the channel in use: what the driver calls so, or else the frequency.
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

/// NL80211_SURVEY_INFO_*.
const FREQUENCY: u16 = 1;
const NOISE: u16 = 2;
const IN_USE: u16 = 3;
const ACTIVE: u16 = 4;
const BUSY: u16 = 5;
const RECEIVE: u16 = 7;
const TRANSMIT: u16 = 8;
