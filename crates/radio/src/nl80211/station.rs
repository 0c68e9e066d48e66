//! A peer of a wireless interface (NL80211_CMD_NEW_STATION).

use std::time::Duration;

use crate::netlink::{attribute, attributes, long, number};

use super::byte;
use super::rate::Bitrate;

/// The driver's state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// MAC address of the peer.
    pub mac: [u8; 6],
    /// Signal of the last frame from it.
    pub signal_dbm: Option<i8>,
    /// Average signal of the last frames from it.
    pub signal_average_dbm: Option<i8>,
    /// Rate of the last frame to it.
    pub transmit: Option<Bitrate>,
    /// Rate of the last frame from it.
    pub receive: Option<Bitrate>,
    /// Frames sent to it.
    pub transmit_packets: Option<u32>,
    /// Retransmitted frames. Wraps, like the other counters.
    pub transmit_retries: Option<u32>,
    /// Frames that were dropped after all retries.
    pub transmit_failed: Option<u32>,
    /// Time since the last frame from it.
    pub inactive: Option<Duration>,
    /// Throughput that rate control expects for a program.
    pub expected_kbps: Option<u32>,
    /// Air time of frames to it.
    pub transmit_time: Option<Duration>,
    /// Its queue in mac80211, which `noqueue` hides.
    ///
    /// `None` if driver or kernel do not report it.
    pub queue: Option<TxQueue>,
}

/// What waits for a station in mac80211's queues, over all priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxQueue {
    /// Bytes that wait now.
    pub bytes: u64,
    /// Packets that wait now.
    pub packets: u64,
    /// Packets dropped by CoDel or for lack of space.
    pub dropped: u64,
}

impl Station {
    pub(super) fn parse(body: &[u8]) -> Option<Station> {
        let info = attribute(body, STATION_INFO)?;
        let value = |kind| attribute(info, kind).and_then(number);
        let signal = |kind| Some(attribute(info, kind).and_then(byte)? as i8);
        let rate = |kind| attribute(info, kind).and_then(Bitrate::parse);
        Some(Station {
            mac: *attribute(body, MAC)?.first_chunk()?,
            signal_dbm: signal(SIGNAL),
            signal_average_dbm: signal(SIGNAL_AVERAGE),
            transmit: rate(TRANSMIT_RATE),
            receive: rate(RECEIVE_RATE),
            transmit_packets: value(TRANSMIT_PACKETS),
            transmit_retries: value(TRANSMIT_RETRIES),
            transmit_failed: value(TRANSMIT_FAILED),
            inactive: value(INACTIVE_MS).map(|ms| Duration::from_millis(ms.into())),
            expected_kbps: value(EXPECTED_KBPS),
            transmit_time: attribute(info, TRANSMIT_US)
                .and_then(long)
                .map(Duration::from_micros),
            queue: attribute(info, PER_PRIORITY).and_then(TxQueue::sum),
        })
    }
}

impl TxQueue {
    /// Sum over the priorities that the kernel reports.
    fn sum(priorities: &[u8]) -> Option<TxQueue> {
        let queues = attributes(priorities)
            .filter_map(|(_, priority)| attribute(priority, PRIORITY_QUEUE))
            .filter_map(TxQueue::parse);
        queues.reduce(|sum, queue| TxQueue {
            bytes: sum.bytes.saturating_add(queue.bytes),
            packets: sum.packets.saturating_add(queue.packets),
            dropped: sum.dropped.saturating_add(queue.dropped),
        })
    }

    fn parse(queue: &[u8]) -> Option<TxQueue> {
        let value = |kind| attribute(queue, kind).and_then(number).map(u64::from);
        let dropped = [QUEUE_DROPS, QUEUE_OVER_LIMIT].map(|kind| value(kind).unwrap_or(0));
        Some(TxQueue {
            bytes: value(QUEUE_BYTES)?,
            packets: value(QUEUE_PACKETS)?,
            dropped: dropped.iter().sum(),
        })
    }
}

const MAC: u16 = 6;
const STATION_INFO: u16 = 21;

/// Values of NL80211_STA_INFO_*.
const INACTIVE_MS: u16 = 1;
const SIGNAL: u16 = 7;
const TRANSMIT_RATE: u16 = 8;
const TRANSMIT_PACKETS: u16 = 10;
const TRANSMIT_RETRIES: u16 = 11;
const TRANSMIT_FAILED: u16 = 12;
const SIGNAL_AVERAGE: u16 = 13;
const RECEIVE_RATE: u16 = 14;
const EXPECTED_KBPS: u16 = 27;
const PER_PRIORITY: u16 = 31;
const TRANSMIT_US: u16 = 39;

/// Value of NL80211_TID_STATS_TXQ_STATS.
const PRIORITY_QUEUE: u16 = 6;
/// Values of NL80211_TXQ_STATS_*.
const QUEUE_BYTES: u16 = 1;
const QUEUE_PACKETS: u16 = 2;
const QUEUE_DROPS: u16 = 4;
const QUEUE_OVER_LIMIT: u16 = 6;
