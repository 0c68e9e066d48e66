//! Capabilities of a port, which the code above reads once.

/// Capabilities of a port, which do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Longest datagram that the port sends: UDP payload with its ICRC, in bytes.
    pub datagram_bytes_max: usize,
    /// Consecutive packets of equal length to one peer cost less than others.
    pub equal_lengths: bool,
    /// Bytes in front of each packet that a batch leaves free for the headers of the port.
    pub headroom: usize,
    /// The IP identification of a received packet is known, so that its ICRC is checked exactly.
    pub sees_identification: bool,
    /// [`crate::Received::ttl`] is that of the packet.
    pub sees_hop_limit: bool,
    /// The device computes and checks the ICRC; otherwise the port does.
    pub icrc_in_hardware: bool,
    /// A packet may refer to payload in place of a copy in the batch.
    pub references_payload: bool,
}
