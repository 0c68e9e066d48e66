//! Configuration of a manager.

use airdma_wire::PathMtu;
use std::time::Duration;

/// Bounds and times of a [`Manager`](crate::Manager).
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of the communication ids. Must differ between processes.
    pub seed: u64,
    /// Top byte of all communication ids, if several managers share a queue pair 1.
    ///
    /// It selects the manager that a message goes to.
    pub id_tag: Option<u8>,
    /// GUID of this side in requests and replies.
    pub ca_guid: u64,
    /// Path MTU of the port: a request for more is refused, since no queue pair could have it.
    pub path_mtu_max: PathMtu,
    /// Time without an answer after which a message is repeated: 4.096 us * 2^code.
    pub response_timeout: u8,
    /// Number of repetitions before the other side counts as unreachable; at most 15.
    pub retries_max: u8,
    /// Most connections in any state, active and passive; [`connect`](crate::Manager::connect)
    /// fails beyond.
    pub connections_max: usize,
    /// Most passive connections that are not established, over all listeners; the oldest is evicted
    /// for one more, and counts until the caller has [decided](crate::Manager::poll_evicted) on it.
    pub half_open_max: usize,
    /// Most ended connections and answered exchanges that are kept; the oldest is evicted first.
    pub resting_max: usize,
    /// Most datagrams that wait for [`poll_transmit`](crate::Manager::poll_transmit); those beyond
    /// are dropped.
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

/// 4.096 us * 2^code, with the code clamped to between 12 (17 ms) and 24 (69 s).
///
/// A peer's value can so keep this side neither busy nor waiting for hours.
pub(crate) fn duration_of(code: u8) -> Duration {
    Duration::from_nanos(4_096 << code.clamp(12, 24))
}

/// Code of the time that an MRA asks for; the Linux kernel's value.
pub(crate) const SERVICE_TIMEOUT: u8 = 24;

/// Time after which a reply is repeated while its peer is unproven.
///
/// No answer comes from a host whose address was forged, so the times in its request are ignored.
pub(crate) const REP_INTERVAL: Duration = Duration::from_millis(500);

/// Number of repetitions of a reply while its peer is unproven.
///
/// A request causes at most four times its bytes in replies. With [`REP_INTERVAL`] the peer has two
/// seconds.
pub(crate) const REP_REPEATS_MAX: u8 = 3;

/// Least number of places of a source at a listener; otherwise a quarter of the listener's.
pub(crate) const SOURCE_SHARE_MIN: usize = 64;

/// Longest timewait: 4.096 us * 2^21, 8.6 s.
pub(crate) const TIMEWAIT_CODE_MAX: u8 = 21;

/// Longest time that an answer is kept for repetitions of its request.
pub(crate) const MEMORY_MAX: Duration = Duration::from_secs(120);

/// Packets are acknowledged within 4.096 us * 2^15: the value that the Linux kernel announces for
/// rxe.
pub(crate) const TARGET_ACK_DELAY: u8 = 15;
