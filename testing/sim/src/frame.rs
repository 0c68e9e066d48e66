//! A datagram as a host passes it to its IP layer or receives it, and the ICRC behind it.
//!
//! As with a UDP socket, the host neither sets nor sees the IP identification: it is 0, and DF is
//! set.

use std::net::IpAddr;

use airdma_transport::Arrival;
use airdma_wire::{Bth, Gid, ICRC_LEN, IpPseudo, Packet, ParseError, ROCE_PORT, icrc};

/// A UDP datagram of RoCEv2, to port 4791.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Sender.
    pub source: IpAddr,
    /// Receiver.
    pub destination: IpAddr,
    /// UDP source port, which the ICRC covers.
    pub source_port: u16,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: u32,
    /// BTH to ICRC.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// UDP source port of frames that [`Frame::seal`] makes: it only spreads load.
    pub const SOURCE_PORT: u16 = 0xc000;

    /// A frame around `transport` (BTH to padding), with its ICRC put behind it.
    pub fn seal(arrival: &Arrival, transport: &[u8]) -> Frame {
        let ends = [arrival.source, arrival.destination];
        let [source, destination] = ends.map(|end| Gid::from(end).to_ip());
        let pseudo = pseudo(source, destination);
        let sum = icrc(&pseudo, Frame::SOURCE_PORT, ROCE_PORT, transport);
        let mut bytes = Vec::with_capacity(transport.len() + ICRC_LEN);
        bytes.extend_from_slice(transport);
        bytes.extend_from_slice(&sum.to_le_bytes());
        Frame {
            source,
            destination,
            source_port: Frame::SOURCE_PORT,
            tos: arrival.tos,
            ttl: arrival.ttl,
            flow_label: arrival.flow_label,
            bytes,
        }
    }

    /// The bytes from the BTH to the padding, if their ICRC is right.
    pub fn open(&self) -> Option<&[u8]> {
        let (transport, sum) = self.bytes.split_last_chunk::<ICRC_LEN>()?;
        if transport.len() < Bth::LEN {
            return None;
        }
        let pseudo = pseudo(self.source, self.destination);
        let expected = icrc(&pseudo, self.source_port, ROCE_PORT, transport);
        (u32::from_le_bytes(*sum) == expected).then_some(transport)
    }

    /// Fields of the IP header for a queue pair.
    pub fn arrival(&self) -> Arrival {
        Arrival {
            source: self.source.into(),
            destination: self.destination.into(),
            tos: self.tos,
            ttl: self.ttl,
            flow_label: self.flow_label,
        }
    }
}

fn pseudo(source: IpAddr, destination: IpAddr) -> IpPseudo {
    match (source, destination) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => IpPseudo::V4 {
            src,
            dst,
            id: 0,
            dont_fragment: true,
        },
        (source, destination) => IpPseudo::V6 {
            src: Gid::from(source).0.into(),
            dst: Gid::from(destination).0.into(),
        },
    }
}

/// The packet in front of the ICRC, whether that is right or not.
pub(crate) fn parse(bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    Packet::parse(&bytes[..bytes.len().saturating_sub(ICRC_LEN)])
}
