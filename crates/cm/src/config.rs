//! What a manager is told when it is made.

use airdma_wire::PathMtu;
use std::time::Duration;

/// Bounds and times of a [`Manager`](crate::Manager).
#[derive(Clone, Debug)]
pub struct Config {
    /// Start of everything that is left to chance: communication ids. Must differ between processes.
    pub seed: u64,
    /// Top byte of all communication ids, where several managers share a queue pair 1: it says to which of them a message goes.
    pub id_tag: Option<u8>,
    /// GUID that requests and replies name as ours.
    pub ca_guid: u64,
    /// The port's: a request for more is refused, since no queue pair could have it.
    pub path_mtu_max: PathMtu,
    /// A message is repeated when no answer came within 4.096 us * 2^code.
    pub response_timeout: u8,
    /// How often a message is repeated before the other side counts as gone; at most 15.
    pub retries_max: u8,
    /// Connections in any state, active and passive; [`connect`](crate::Manager::connect) fails beyond.
    pub connections_max: usize,
    /// Passive connections that are not established yet, over all listeners; the oldest gives way to one more.
    pub half_open_max: usize,
    /// Ended connections and answered exchanges that are remembered; the oldest go first.
    pub resting_max: usize,
    /// Datagrams that wait for [`poll_transmit`](crate::Manager::poll_transmit); those beyond are dropped.
    pub transmits_max: usize,
}

impl Config {
    /// The times of the Linux kernel (4.3 s, 15 retries), and room for 65,536 connections.
    pub fn new(seed: u64, ca_guid: u64) -> Self {
        Self {
            seed,
            id_tag: None,
            ca_guid,
            path_mtu_max: PathMtu::M4096,
            response_timeout: 20,
            retries_max: 15,
            connections_max: 65_536,
            half_open_max: 8_192,
            resting_max: 4_096,
            transmits_max: 8_192,
        }
    }
}

/// 4.096 us * 2^code, with the code held between 12 (17 ms) and 24 (69 s): what a peer asks for
/// keeps us neither busy nor waiting for hours.
pub(crate) fn duration_of(code: u8) -> Duration {
    Duration::from_nanos(4_096 << code.clamp(12, 24))
}

/// Code of the time that an MRA asks for: the Linux kernel's.
pub(crate) const SERVICE_TIMEOUT: u8 = 24;

/// A reply is repeated after this while nothing shows that its peer is there: no answer of a host whose address was forged comes,
/// and what its request said of times is not heeded.
pub(crate) const REP_INTERVAL: Duration = Duration::from_millis(500);

/// How often: what came is answered with four times as much at most. With [`REP_INTERVAL`] the peer has two seconds.
pub(crate) const REP_REPEATS_MAX: u8 = 3;

/// One source may have a quarter of a listener's places, but not less than this.
pub(crate) const SOURCE_SHARE_MIN: usize = 64;

/// Longest timewait: 4.096 us * 2^21, 8.6 s.
pub(crate) const TIMEWAIT_CODE_MAX: u8 = 21;

/// Longest time that an answer is kept for repetitions of what it answered.
pub(crate) const MEMORY_MAX: Duration = Duration::from_secs(120);

/// We acknowledge packets within 4.096 us * 2^15, as the Linux kernel says of rxe.
pub(crate) const TARGET_ACK_DELAY: u8 = 15;
