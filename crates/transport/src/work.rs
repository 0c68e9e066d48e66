//! Work requests of the transport: what to do, without the bytes.

use airdma_wire::{Gid, Qkey, Qpn};

use crate::host::Slot;
use crate::operation::Operation;

/// Longest message: 2^31 - 1 bytes, the limit that `ibv_query_port` reports (IBTA 9.4.1 allows
/// 2^31).
pub const MESSAGE_LEN_MAX: u32 = (1 << 31) - 1;

/// Path of packets and their marking: the part of an address vector that RoCEv2 uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Destination GID: an IPv6 address or an IPv4-mapped one.
    pub gid: Gid,
    /// Index of the local GID, the source address.
    pub sgid_index: u8,
    /// IP traffic class (IPv4 TOS).
    pub traffic_class: u8,
    /// IP hop limit (IPv4 TTL); 0 lets the port choose.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Destination of one unreliable datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Path to the destination host.
    pub path: Path,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// Q_Key to send; if its highest bit is set, the queue pair's own is sent (IBTA 10.2.5).
    pub qkey: Qkey,
}

/// One posted send request. The bytes stay behind `slot`, with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The host's handle of the request, by which it finds the gather list.
    pub slot: Slot,
    /// The caller's identifier, returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// Bytes of the whole message; 8 for atomics.
    pub length: u32,
    /// Whether success is reported. Failure always is.
    pub signalled: bool,
    /// Whether the peer's completion counts as solicited.
    pub solicited: bool,
    /// Whether to wait for all earlier READs and atomics.
    pub fence: bool,
    /// Destination, for datagram queue pairs only.
    pub datagram: Option<Datagram>,
    /// Whether a datagram is repeated until its target has it, for queue pairs that do so only.
    pub reliable: bool,
    /// Number of the peer's shared receive queue, for extended connections only.
    pub srqn: u32,
}
