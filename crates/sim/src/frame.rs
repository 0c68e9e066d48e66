//! What the port adds to a packet: the ICRC behind it, and in captures the IP and UDP headers in
//! front of it. As on a real port, nothing of the IP header but addresses and marks is known to
//! the protocol; its identification is 0 and DF is set.

use std::net::IpAddr;

use airdma_transport::Arrival;
use airdma_wire::{Bth, Gid, ICRC_LEN, IpPseudo, Packet, ParseError, ROCE_PORT, grh_area, icrc};

/// UDP source port of every packet: it only spreads load, and there is one path here.
const SOURCE_PORT: u16 = 0xc000;

/// Length of the UDP header in bytes.
const UDP_LEN: usize = 8;

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

/// The bytes from the BTH to the padding, with their ICRC behind them.
pub(crate) fn seal(source: IpAddr, destination: IpAddr, transport: &[u8]) -> Vec<u8> {
    let sum = icrc(
        &pseudo(source, destination),
        SOURCE_PORT,
        ROCE_PORT,
        transport,
    );
    let mut bytes = Vec::with_capacity(transport.len() + ICRC_LEN);
    bytes.extend_from_slice(transport);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// The bytes from the BTH to the padding, if their ICRC is right.
pub(crate) fn open<'a>(arrival: &Arrival, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (transport, sum) = bytes.split_last_chunk::<ICRC_LEN>()?;
    if transport.len() < Bth::LEN {
        return None;
    }
    let pseudo = pseudo(arrival.source, arrival.destination);
    let expected = icrc(&pseudo, SOURCE_PORT, ROCE_PORT, transport);
    (u32::from_le_bytes(*sum) == expected).then_some(transport)
}

/// The packet in front of the ICRC, whether that is right or not.
pub(crate) fn parse(bytes: &[u8]) -> Result<Packet<'_>, ParseError> {
    Packet::parse(&bytes[..bytes.len().saturating_sub(ICRC_LEN)])
}

/// The whole IP packet, for a capture.
pub(crate) fn ip_packet(arrival: &Arrival, bytes: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(UDP_LEN + bytes.len()).expect("a packet is shorter than 64 KiB");
    let area = grh_area(
        arrival.source,
        arrival.destination,
        arrival.tos,
        arrival.ttl,
        arrival.flow_label,
        udp_len,
    );
    let is_v4 = arrival.source.is_ipv4() && arrival.destination.is_ipv4();
    let mut packet = Vec::with_capacity(area.len() + UDP_LEN + bytes.len());
    packet.extend_from_slice(if is_v4 { &area[20..] } else { &area[..] });
    for field in [SOURCE_PORT, ROCE_PORT, udp_len, 0] {
        packet.extend_from_slice(&field.to_be_bytes());
    }
    packet.extend_from_slice(bytes);
    packet
}
