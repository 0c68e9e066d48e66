//! A wireless interface and its channel (NL80211_CMD_NEW_INTERFACE).

use std::fmt;

use crate::netlink::{attribute, number};

use super::byte;

/// A wireless interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WirelessInterface {
    /// Role of the interface in its network.
    pub kind: InterfaceKind,
    /// Its channel; `None` while it is not connected.
    pub channel: Option<Channel>,
    /// Transmit power in 1/100 dBm.
    pub transmit_power_mbm: Option<u32>,
    /// Whether it sends frames with the addresses of other hosts (`iw dev INTERFACE set 4addr on`).
    ///
    /// A station cannot do so otherwise.
    pub four_addresses: bool,
}

/// Role of an interface in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// Member of an ad-hoc network (IBSS).
    AdHoc,
    /// Client of an access point, or about to be one.
    Station,
    /// An access point.
    AccessPoint,
    /// Receives all frames, and belongs to no network.
    Monitor,
    /// Member of a mesh.
    MeshPoint,
    /// Wi-Fi Direct: member of a group.
    P2pClient,
    /// Wi-Fi Direct: owner of a group.
    P2pGroupOwner,
    /// Another number of `enum nl80211_iftype`.
    Other(u32),
}

/// A channel, as the position of its 20 MHz parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Centre of the primary 20 MHz.
    pub frequency_mhz: u32,
    /// Width of the whole channel.
    pub width_mhz: u16,
    /// Centre of the whole channel; for 80+80 MHz, that of the first half.
    pub center_mhz: Option<u32>,
}

impl Channel {
    /// Channel number of the primary 20 MHz: 1 to 14, 36 to 177, in the 6 GHz band 1 to 233.
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

/// Width by `enum nl80211_chan_width`.
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
