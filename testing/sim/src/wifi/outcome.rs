//! What became of a packet.

use airdma_transport::Time;

use super::station::StationId;

/// Why a packet was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It was sent as often as allowed, and never answered.
    Retries,
    /// It became too old.
    Lifetime,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The receiver's MAC handed it on, in order.
    Delivered,
    /// The sender gave it up, and the receiver does not have it.
    Lost(Cause),
}

/// The end of a packet: each one that was accepted has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the caller gave.
    pub token: u64,
    /// Its sender.
    pub from: StationId,
    /// Its receiver.
    pub to: StationId,
    /// When it was handed on or given up.
    pub at: Time,
    /// How it ended.
    pub fate: Fate,
}

/// The sender's queue is full; the packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl core::fmt::Display for Overflow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the queue of the station is full")
    }
}

impl core::error::Error for Overflow {}
