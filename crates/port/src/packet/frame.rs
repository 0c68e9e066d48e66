//! The headers in front of a BTH: Ethernet, IPv4 or IPv6, UDP.
//!
//! ```text
//!  0           6           12    14              34 or 54  42 or 62
//!  | to        | from      | type| IPv4 or IPv6  | UDP     | BTH ...
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_wire::ROCE_PORT;

use crate::Destination;

pub(super) const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
pub(super) const HEADER_LEN_V4: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN;
pub(super) const HEADER_LEN_V6: usize = ETHERNET_LEN + IPV6_LEN + UDP_LEN;
/// Room in front of each packet.
pub(super) const HEADROOM: usize = HEADER_LEN_V6;

/// IP identification of all packets sent, as of a socket with DF set (RFC 6864, 4.1).
pub(super) const IDENTIFICATION: u16 = 0;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_FRAGMENT: u8 = 44;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// TTL or hop limit of packets whose destination sets none.
const DEFAULT_TTL: u8 = 64;

/// Between which hosts a frame goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) ethernet_source: [u8; 6],
    pub(super) ethernet_destination: [u8; 6],
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

/// A UDP datagram to the port of RoCEv2, as the headers of its frame describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub tos: u8,
    pub ttl: u8,
    pub flow_label: u32,
    /// 0 for IPv6.
    pub identification: u16,
    pub dont_fragment: bool,
    /// BTH to ICRC.
    pub payload: &'a [u8],
}

/// Why a frame is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// It is truncated, has a wrong checksum or lengths that do not fit each other, or has IP
    /// options.
    Bad,
    /// It holds a part of a datagram.
    Fragment,
}

/// Length of the headers of what an address sends.
pub(super) fn header_len(source: IpAddr) -> usize {
    match source {
        IpAddr::V4(_) => HEADER_LEN_V4,
        IpAddr::V6(_) => HEADER_LEN_V6,
    }
}

/// Writes the headers in front of `len` bytes of UDP payload. The UDP checksum is that of the
/// pseudo header alone, to be completed by the kernel.
pub(super) fn write_headers(out: &mut [u8], ends: &Ends, to: &Destination, len: usize) {
    let udp_len = (UDP_LEN + len) as u16;
    let ttl = match to.hop_limit {
        0 => DEFAULT_TTL,
        limit => limit,
    };
    let (ethernet, rest) = out.split_at_mut(ETHERNET_LEN);
    ethernet[..6].copy_from_slice(&ends.ethernet_destination);
    ethernet[6..12].copy_from_slice(&ends.ethernet_source);
    let (ip_len, ethertype) = match ends.source {
        IpAddr::V4(_) => (IPV4_LEN, ETHERTYPE_IPV4),
        IpAddr::V6(_) => (IPV6_LEN, ETHERTYPE_IPV6),
    };
    ethernet[12..].copy_from_slice(&ethertype.to_be_bytes());
    let (ip, udp) = rest.split_at_mut(ip_len);
    match (ends.source, ends.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ip[..2].copy_from_slice(&[0x45, to.tos]);
            ip[2..4].copy_from_slice(&(udp_len + IPV4_LEN as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&IDENTIFICATION.to_be_bytes());
            ip[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
            ip[8..12].copy_from_slice(&[ttl, PROTOCOL_UDP, 0, 0]);
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&destination.octets());
            let checksum = !fold(sum(ip));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (source, destination) => {
            let word = 6 << 28 | u32::from(to.tos) << 20 | to.flow_label & 0x000f_ffff;
            ip[..4].copy_from_slice(&word.to_be_bytes());
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6..8].copy_from_slice(&[PROTOCOL_UDP, ttl]);
            ip[8..24].copy_from_slice(&airdma_wire::Gid::from(source).0);
            ip[24..40].copy_from_slice(&airdma_wire::Gid::from(destination).0);
        }
    }
    let pseudo = fold(pseudo_sum(ends.source, ends.destination, udp_len));
    udp[..2].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    udp[6..8].copy_from_slice(&pseudo.to_be_bytes());
}

/// Reads the headers of a frame. `checksum_known`: the kernel vouches for the UDP checksum, or has
/// not filled it in yet.
pub fn read(frame: &[u8], checksum_known: bool) -> Result<Datagram<'_>, Reject> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET_LEN).ok_or(Reject::Bad)?;
    let (mut datagram, udp) = match u16_at(ethernet, 12) {
        ETHERTYPE_IPV4 => read_ipv4(packet)?,
        ETHERTYPE_IPV6 => read_ipv6(packet)?,
        _ => return Err(Reject::Bad),
    };
    let (header, payload) = udp.split_at_checked(UDP_LEN).ok_or(Reject::Bad)?;
    if usize::from(u16_at(header, 4)) != udp.len() || u16_at(header, 2) != ROCE_PORT {
        return Err(Reject::Bad);
    }
    if !checksum_known && u16_at(header, 6) != 0 {
        let (source, destination) = (datagram.source, datagram.destination);
        let all = pseudo_sum(source, destination, udp.len() as u16) + sum(udp);
        if fold(all) != u16::MAX {
            return Err(Reject::Bad);
        }
    }
    datagram.source_port = u16_at(header, 0);
    datagram.payload = payload;
    Ok(datagram)
}

/// The datagram but for what is in its UDP header, and the bytes from there on.
fn read_ipv4(packet: &[u8]) -> Result<(Datagram<'_>, &[u8]), Reject> {
    let header = packet.first_chunk::<IPV4_LEN>().ok_or(Reject::Bad)?;
    let total = usize::from(u16_at(header, 2));
    let udp = packet.get(IPV4_LEN..total).ok_or(Reject::Bad)?;
    if header[0] != 0x45 || header[9] != PROTOCOL_UDP || fold(sum(header)) != u16::MAX {
        return Err(Reject::Bad);
    }
    let fragment = u16_at(header, 6);
    if fragment & (MORE_FRAGMENTS | OFFSET) != 0 {
        return Err(Reject::Fragment);
    }
    let address = |at: usize| {
        let octets = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        IpAddr::V4(Ipv4Addr::from(octets))
    };
    let datagram = Datagram {
        source: address(12),
        destination: address(16),
        source_port: 0,
        tos: header[1],
        ttl: header[8],
        flow_label: 0,
        identification: u16_at(header, 4),
        dont_fragment: fragment & DONT_FRAGMENT != 0,
        payload: &[],
    };
    Ok((datagram, udp))
}

/// As [`read_ipv4`].
fn read_ipv6(packet: &[u8]) -> Result<(Datagram<'_>, &[u8]), Reject> {
    let header = packet.first_chunk::<IPV6_LEN>().ok_or(Reject::Bad)?;
    let end = IPV6_LEN + usize::from(u16_at(header, 4));
    let udp = packet.get(IPV6_LEN..end).ok_or(Reject::Bad)?;
    if header[0] >> 4 != 6 {
        return Err(Reject::Bad);
    }
    match header[6] {
        PROTOCOL_UDP => {}
        PROTOCOL_FRAGMENT => return Err(Reject::Fragment),
        _ => return Err(Reject::Bad),
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let word = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let datagram = Datagram {
        source: address(8),
        destination: address(24),
        source_port: 0,
        tos: (word >> 20) as u8,
        ttl: header[7],
        flow_label: word & 0x000f_ffff,
        identification: 0,
        dont_fragment: true,
        payload: &[],
    };
    Ok((datagram, udp))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// One's complement sum of 16-bit words (RFC 1071), not yet folded.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    words.sum()
}

/// The sum of the pseudo header (RFC 768, RFC 8200 8.1).
fn pseudo_sum(source: IpAddr, destination: IpAddr, udp_len: u16) -> u32 {
    let of = |address: IpAddr| match address {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    };
    of(source) + of(destination) + u32::from(PROTOCOL_UDP) + u32::from(udp_len)
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ends(ipv6: bool) -> Ends {
        let text = if ipv6 {
            ["fd00::1", "fd00::2"]
        } else {
            ["192.0.2.1", "192.0.2.2"]
        };
        let [source, destination] = text.map(|text| text.parse().unwrap());
        Ends {
            ethernet_source: [2, 0, 0, 0, 0, 1],
            ethernet_destination: [2, 0, 0, 0, 0, 2],
            source,
            destination,
        }
    }

    /// A frame with its UDP checksum complete, as it is on a wire.
    fn frame(ipv6: bool, payload: &[u8]) -> Vec<u8> {
        let ends = ends(ipv6);
        let destination = Destination {
            address: ends.destination.into(),
            source_index: 0,
            tos: 0x6a,
            hop_limit: 9,
            flow_label: 0x1_2345,
            bundles: false,
        };
        let len = header_len(ends.source);
        let mut frame = vec![0; len];
        write_headers(&mut frame, &ends, &destination, payload.len());
        frame.extend_from_slice(payload);
        // The checksum field holds the sum of the pseudo header.
        let checksum = !fold(sum(&frame[len - UDP_LEN..]));
        frame[len - 2..len].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    #[test]
    fn what_is_written_is_read_back() {
        for ipv6 in [false, true] {
            let ends = ends(ipv6);
            let frame = frame(ipv6, &[7; 21]);
            let datagram = read(&frame, false).unwrap();
            let expected = Datagram {
                source: ends.source,
                destination: ends.destination,
                source_port: ROCE_PORT,
                tos: 0x6a,
                ttl: 9,
                flow_label: if ipv6 { 0x1_2345 } else { 0 },
                identification: 0,
                dont_fragment: true,
                payload: &[7; 21],
            };
            assert_eq!(datagram, expected);
            assert_eq!(&frame[..6], ends.ethernet_destination);
            // What an interface pads a short frame with is not payload.
            let padded = [&frame[..], &[0; 30]].concat();
            assert_eq!(read(&padded, false).unwrap(), expected);
        }
    }

    #[test]
    fn a_truncated_frame_is_bad_wherever_it_ends() {
        for ipv6 in [false, true] {
            let frame = frame(ipv6, &[7; 20]);
            for len in 0..frame.len() {
                assert_eq!(read(&frame[..len], true), Err(Reject::Bad), "{len}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_of_header_or_payload_fails_a_checksum() {
        for ipv6 in [false, true] {
            let good = frame(ipv6, &[7; 20]);
            // IPv6 has no sum of its header: traffic class, flow label and hop limit are not
            // covered.
            let start = if ipv6 { ETHERNET_LEN + 8 } else { ETHERNET_LEN };
            for bit in start * 8..good.len() * 8 {
                let mut frame = good.clone();
                frame[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&frame, false).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_sum_that_the_kernel_vouches_for_is_not_checked() {
        let mut frame = frame(false, &[7; 20]);
        frame[HEADER_LEN_V4 - 1] ^= 1;
        assert_eq!(read(&frame, false), Err(Reject::Bad));
        assert!(read(&frame, true).is_ok());
        // No checksum at all, as of rxe.
        frame[HEADER_LEN_V4 - 2..HEADER_LEN_V4].fill(0);
        assert!(read(&frame, false).is_ok());
    }

    #[test]
    fn fragments_and_other_contents_are_told_apart() {
        let good = frame(false, &[7; 20]);
        let changed = |at: usize, byte: u8| {
            let mut frame = good.clone();
            frame[at] = byte;
            frame[24..26].fill(0);
            let checksum = !fold(sum(&frame[ETHERNET_LEN..ETHERNET_LEN + IPV4_LEN]));
            frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            read(&frame, true).err()
        };
        assert_eq!(changed(20, 0x20), Some(Reject::Fragment), "first");
        assert_eq!(changed(21, 0x01), Some(Reject::Fragment), "last");
        assert_eq!(changed(20, 0x00), None, "DF is no must");
        assert_eq!(changed(14, 0x46), Some(Reject::Bad), "options");
        assert_eq!(changed(23, 6), Some(Reject::Bad), "TCP");
        assert_eq!(changed(17, 49), Some(Reject::Bad), "another length");
        assert_eq!(changed(12, 0x81), Some(Reject::Bad), "a VLAN tag");
        let mut frame = frame(true, &[7; 20]);
        frame[20] = PROTOCOL_FRAGMENT;
        assert_eq!(read(&frame, true), Err(Reject::Fragment));
    }
}
