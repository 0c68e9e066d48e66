//! The IP packet around a frame: how it is built, what a router may change in it, and what the IP
//! layer of the receiving host (Linux: `ip_rcv`, `ip6_rcv`, `udp_rcv`) accepts.
//!
//! The link layer says whether it carries IPv4 or IPv6, and to which host: no damage of the packet
//! changes that. IPv4 options and IPv6 extension headers are not sent; a packet that damage gave
//! some is dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_wire::{ROCE_PORT, grh_area};

use crate::frame::Frame;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;

/// Congestion experienced (RFC 3168).
const CE: u8 = 0b11;

/// Reason for which the IP layer of a host dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpDrop {
    /// Shorter than its headers, or than the lengths in them.
    Truncated,
    /// Version or header length are not those of the link layer's type.
    Version,
    /// The checksum of the IPv4 header is wrong.
    HeaderChecksum,
    /// More fragments or a fragment offset.
    Fragment,
    /// Not UDP, or with extension headers.
    Protocol,
    /// The address is another host's, or no host's.
    Address,
    /// Impossible length of the UDP datagram.
    UdpLength,
    /// Wrong UDP checksum.
    UdpChecksum,
    /// No socket is bound to the UDP port.
    Port,
}

/// The whole IP packet of a frame. Without a UDP checksum, as RoCEv2 allows, unless one is wanted.
pub(crate) fn packet(frame: &Frame, udp_checksum: bool) -> Vec<u8> {
    let udp_len = UDP_LEN + frame.bytes.len();
    assert!(IPV4_LEN + udp_len <= 0xffff, "a frame fits into a packet");
    let udp_len = udp_len as u16;
    let area = grh_area(
        frame.source,
        frame.destination,
        frame.tos,
        frame.ttl,
        frame.flow_label,
        udp_len,
    );
    let header: &[u8] = if is_v6(frame) { &area } else { &area[20..] };
    let mut packet = Vec::with_capacity(header.len() + UDP_LEN + frame.bytes.len());
    packet.extend_from_slice(header);
    for field in [frame.source_port, ROCE_PORT, udp_len, 0] {
        packet.extend_from_slice(&field.to_be_bytes());
    }
    packet.extend_from_slice(&frame.bytes);
    if udp_checksum {
        let at = packet.len() - usize::from(udp_len);
        let sum = match udp_sum(&packet, at, usize::from(udp_len)) {
            0xffff => 0xffff,
            sum => !sum,
        };
        packet[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

pub(crate) fn is_v6(frame: &Frame) -> bool {
    let is_v4 = |address: IpAddr| address.to_canonical().is_ipv4();
    !(is_v4(frame.source) && is_v4(frame.destination))
}

/// Bytes from BTH to ICRC of a packet as it was built.
pub(crate) fn transport(packet: &[u8]) -> &[u8] {
    packet.get(transport_at(packet)..).unwrap_or(&[])
}

/// Offset of the BTH in a packet as it was built.
pub(crate) fn transport_at(packet: &[u8]) -> usize {
    match packet.first() {
        Some(first) if first >> 4 == 6 => IPV6_LEN + UDP_LEN,
        _ => IPV4_LEN + UDP_LEN,
    }
}

/// Sets the lengths in the headers to those of a packet that was cut behind its headers, as the
/// sender of a shorter packet does.
pub(crate) fn set_lengths(packet: &mut [u8]) {
    let udp_at = transport_at(packet) - UDP_LEN;
    let udp_len = (packet.len() - udp_at) as u16;
    packet[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len.to_be_bytes());
    if udp_at == IPV6_LEN {
        packet[4..6].copy_from_slice(&udp_len.to_be_bytes());
    } else {
        let total_len = packet.len() as u16;
        set_word_v4(packet, 2, total_len);
    }
}

/// Whether routers may mark the packet instead of dropping it.
pub(crate) fn is_ecn_capable(packet: &[u8]) -> bool {
    tos(packet) & CE != 0
}

/// Marks a packet that passed a congested queue.
pub(crate) fn mark_congestion(packet: &mut [u8]) {
    match packet {
        [first, second, ..] if *first >> 4 == 6 => *second |= CE << 4,
        [first, second, ..] => {
            let word = u16::from_be_bytes([*first, *second | CE]);
            if packet.len() >= IPV4_LEN {
                set_word_v4(packet, 0, word);
            }
        }
        _ => {}
    }
}

fn tos(packet: &[u8]) -> u8 {
    match packet {
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        [_, second, ..] => *second,
        _ => 0,
    }
}

/// Changes a word of an IPv4 header and its checksum by the difference (RFC 1624, eqn. 3): a
/// checksum that was wrong stays wrong.
fn set_word_v4(packet: &mut [u8], at: usize, word: u16) {
    let old = word_at(packet, at);
    let sum = !word_at(packet, 10);
    let sum = fold(u32::from(sum) + u32::from(!old) + u32::from(word));
    packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
    packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
}

/// Frame that the host at `here` accepts from a packet. The link layer tells whether it is IPv6 and
/// whether it is for a group. The host is in all groups.
pub(crate) fn receive(packet: &[u8], v6: bool, group: bool, here: IpAddr) -> Result<Frame, IpDrop> {
    let (header, udp_at, end) = if v6 {
        receive_v6(packet)?
    } else {
        receive_v4(packet)?
    };
    let is_ours = if group {
        header.destination.is_multicast()
    } else {
        header.destination == here.to_canonical()
    };
    if !is_ours {
        return Err(IpDrop::Address);
    }
    let datagram = &packet[..end];
    let udp = datagram.get(udp_at..udp_at + UDP_LEN);
    let udp = udp.ok_or(IpDrop::Truncated)?;
    let udp_len = match usize::from(word_at(udp, 4)) {
        // The length field of a jumbogram is 0 (RFC 2675), and Linux accepts that of any packet.
        0 if v6 => end - udp_at,
        len => len,
    };
    if udp_len < UDP_LEN || udp_at + udp_len > end {
        return Err(IpDrop::UdpLength);
    }
    if word_at(udp, 6) != 0 && udp_sum(packet, udp_at, udp_len) != 0xffff {
        return Err(IpDrop::UdpChecksum);
    }
    if word_at(udp, 2) != ROCE_PORT {
        return Err(IpDrop::Port);
    }
    Ok(Frame {
        source_port: word_at(udp, 0),
        bytes: packet[udp_at + UDP_LEN..udp_at + udp_len].to_vec(),
        ..header
    })
}

/// The frame, and the offsets of UDP and of the packet's end.
fn receive_v4(packet: &[u8]) -> Result<(Frame, usize, usize), IpDrop> {
    let header = packet.get(..IPV4_LEN).ok_or(IpDrop::Truncated)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || header_len < IPV4_LEN {
        return Err(IpDrop::Version);
    }
    let header = packet.get(..header_len).ok_or(IpDrop::Truncated)?;
    if sum(header) != 0xffff {
        return Err(IpDrop::HeaderChecksum);
    }
    let total_len = usize::from(word_at(header, 2));
    if total_len < header_len || total_len > packet.len() {
        return Err(IpDrop::Truncated);
    }
    if header_len != IPV4_LEN || header[9] != PROTOCOL_UDP {
        return Err(IpDrop::Protocol);
    }
    let source = Ipv4Addr::from([header[12], header[13], header[14], header[15]]);
    let destination = Ipv4Addr::from([header[16], header[17], header[18], header[19]]);
    // More fragments, or an offset.
    if word_at(header, 6) & 0x3fff != 0 {
        return Err(IpDrop::Fragment);
    }
    if source.is_multicast() || source.is_broadcast() {
        return Err(IpDrop::Address);
    }
    let frame = Frame {
        source: source.into(),
        destination: destination.into(),
        source_port: 0,
        tos: header[1],
        ttl: header[8],
        flow_label: 0,
        bytes: Vec::new(),
    };
    Ok((frame, header_len, total_len))
}

fn receive_v6(packet: &[u8]) -> Result<(Frame, usize, usize), IpDrop> {
    let header = packet.first_chunk::<IPV6_LEN>().ok_or(IpDrop::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(IpDrop::Version);
    }
    let end = IPV6_LEN + usize::from(word_at(header, 4));
    if end > packet.len() {
        return Err(IpDrop::Truncated);
    }
    if header[6] != PROTOCOL_UDP {
        return Err(IpDrop::Protocol);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        IpAddr::from(Ipv6Addr::from(octets)).to_canonical()
    };
    let source = address(8);
    if source.is_multicast() {
        return Err(IpDrop::Address);
    }
    let first_word = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let frame = Frame {
        source,
        destination: address(24),
        source_port: 0,
        tos: tos(packet),
        ttl: header[7],
        flow_label: first_word & 0x000f_ffff,
        bytes: Vec::new(),
    };
    Ok((frame, IPV6_LEN, end))
}

fn word_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Sum of 16-bit words with end-around carry (RFC 1071), of at most a packet.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let words = words.map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| b.into()));
    fold(words.sum())
}

fn fold(mut total: u32) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The sum over pseudo-header and datagram (RFC 768, RFC 8200 8.1); all ones if its checksum is
/// right.
fn udp_sum(packet: &[u8], udp_at: usize, udp_len: usize) -> u16 {
    let addresses = if packet[0] >> 4 == 6 {
        &packet[8..IPV6_LEN]
    } else {
        &packet[12..IPV4_LEN]
    };
    let parts = [
        sum(addresses),
        PROTOCOL_UDP.into(),
        udp_len as u16,
        sum(&packet[udp_at..udp_at + udp_len]),
    ];
    fold(parts.map(u32::from).iter().sum())
}

#[cfg(test)]
mod tests;
