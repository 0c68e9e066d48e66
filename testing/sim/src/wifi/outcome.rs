//! Results of packets.

use airdma_transport::Time;

use super::station::StationId;

/// Reason for giving up a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It reached the retry limit without an answer.
    Retries,
    /// It exceeded its lifetime.
    Lifetime,
}

/// Result of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The receiver's MAC passed it on, in order.
    Delivered,
    /// The sender gave it up, and the receiver does not have it.
    Lost(Cause),
}

/// Result of a packet: each accepted one has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The caller's token.
    pub token: u64,
    /// Its sender.
    pub from: StationId,
    /// Its receiver.
    pub to: StationId,
    /// Time at which it was passed on or given up.
    pub at: Time,
    /// The result.
    pub fate: Fate,
}

/// The sender's queue is full; the packet was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl core::fmt::Display for Overflow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the queue of the station is full")
    }
}

impl core::error::Error for Overflow {}
