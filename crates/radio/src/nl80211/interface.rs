//! A wireless interface and its channel (NL80211_CMD_NEW_INTERFACE).

use std::fmt;

use crate::netlink::{attribute, number};

use super::byte;

/// What nl80211 says of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WirelessInterface {
    /// Its part in the network.
    pub kind: InterfaceKind,
    /// Where it is; none while it is not connected.
    pub channel: Option<Channel>,
    /// In 1/100 dBm.
    pub transmit_power_mbm: Option<u32>,
    /// Whether it sends frames of other hosts in their name (`iw dev INTERFACE set 4addr on`): a station without must not.
    pub four_addresses: bool,
}

/// The part of an interface in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// Of an ad-hoc network (IBSS).
    AdHoc,
    /// Of an access point's network, or on its way into one.
    Station,
    /// An access point.
    AccessPoint,
    /// Sees all, and has no network.
    Monitor,
    /// Of a mesh.
    MeshPoint,
    /// Wi-Fi Direct, in another's group.
    P2pClient,
    /// Wi-Fi Direct, owner of a group.
    P2pGroupOwner,
    /// Another number of `enum nl80211_iftype`.
    Other(u32),
}

/// A channel: where its parts of 20 MHz lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Middle of the primary 20 MHz.
    pub frequency_mhz: u32,
    /// Of the whole channel.
    pub width_mhz: u16,
    /// Middle of the whole; of 80+80 MHz that of the first half.
    pub center_mhz: Option<u32>,
}

impl Channel {
    /// The number that people know, of the primary 20 MHz: 1 to 14, 36 to 177, in the 6 GHz band 1 to 233.
    pub fn number(&self) -> Option<u32> {
        match self.frequency_mhz {
            2484 => Some(14),
            mhz @ 2412..=2472 => Some((mhz - 2407) / 5),
            mhz @ 5005..=5900 => Some((mhz - 5000) / 5),
            mhz @ 5955..=7115 => Some((mhz - 5950) / 5),
            _ => None,
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Channel {
            frequency_mhz,
            width_mhz,
            ..
        } = self;
        match self.number() {
            Some(number) => write!(f, "{number} ({frequency_mhz} MHz), {width_mhz} MHz wide"),
            None => write!(f, "{frequency_mhz} MHz, {width_mhz} MHz wide"),
        }
    }
}

impl WirelessInterface {
    pub(super) fn parse(attributes: &[u8]) -> Option<WirelessInterface> {
        let value = |kind| attribute(attributes, kind).and_then(number);
        let channel = value(FREQUENCY).map(|frequency_mhz| Channel {
            frequency_mhz,
            width_mhz: value(WIDTH).and_then(width_mhz).unwrap_or(20),
            center_mhz: value(CENTER),
        });
        Some(WirelessInterface {
            kind: kind(value(KIND)?),
            channel,
            transmit_power_mbm: value(TRANSMIT_POWER),
            four_addresses: attribute(attributes, FOUR_ADDRESSES).and_then(byte) == Some(1),
        })
    }
}

fn kind(number: u32) -> InterfaceKind {
    match number {
        1 => InterfaceKind::AdHoc,
        2 => InterfaceKind::Station,
        3 | 4 => InterfaceKind::AccessPoint,
        6 => InterfaceKind::Monitor,
        7 => InterfaceKind::MeshPoint,
        8 => InterfaceKind::P2pClient,
        9 => InterfaceKind::P2pGroupOwner,
        other => InterfaceKind::Other(other),
    }
}

/// `enum nl80211_chan_width`.
fn width_mhz(number: u32) -> Option<u16> {
    let widths = [20, 20, 40, 80, 160, 160, 5, 10, 1, 2, 4, 8, 16, 320];
    widths.get(usize::try_from(number).ok()?).copied()
}

const KIND: u16 = 5;
const FREQUENCY: u16 = 38;
const FOUR_ADDRESSES: u16 = 83;
const TRANSMIT_POWER: u16 = 98;
const WIDTH: u16 = 159;
const CENTER: u16 = 160;
