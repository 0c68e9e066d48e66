//! Invariant CRC: detects what the path damaged (IBTA 7.8.1 and A17.3.3).
//!
//! ```text
//!  +----------------+-----------+------------+-----+----------------------------+------+
//!  | 8 bytes 0xff   | IP header | UDP header | BTH | extended headers .. pad    | ICRC |
//!  | (no LRH here)  |  masked   |  checksum  | byte 4                           |      |
//!  |                |           |   masked   | masked                           |      |
//!  +----------------+-----------+------------+-----+----------------------------+------+
//!  |<------------------------------ CRC-32 ------------------------------------>| little-endian
//! ```
//!
//! The CRC is the one of Ethernet: polynomial 0x04c11db7, reflected, preset to and finally inverted
//! by all ones. Masked means that the CRC sees all ones instead of a field that may change on the
//! way. The masked part is short and of known layout: it is built on the stack, and the CRC of the
//! rest is computed in place.

use crc32fast::Hasher;

use crate::ip::{IPV4_LEN, IPV6_LEN, IpPseudo, PROTOCOL_UDP};
use crate::udp::UDP_LEN;
use crate::{Bth, field};

/// Length of the ICRC in bytes.
pub const ICRC_LEN: usize = 4;

/// The ICRC of a packet that travels with these IP and UDP headers. Its little-endian bytes go
/// behind `transport`.
///
/// `transport` is everything from the BTH to the last pad byte. The lengths in the IP and UDP
/// headers follow from its length, modulo 2^16.
#[inline]
pub fn icrc(ip: &IpPseudo, src_port: u16, dst_port: u16, transport: &[u8]) -> u32 {
    let (bth, rest) = transport.split_at(transport.len().min(Bth::LEN));
    let udp_len = UDP_LEN + transport.len() + ICRC_LEN;
    match ip {
        IpPseudo::V4 {
            src,
            dst,
            id,
            dont_fragment,
        } => {
            let mut ip = [0xff; IPV4_LEN];
            field::set::<0, 1, _>(&mut ip, [0x45]);
            field::set::<2, 2, _>(&mut ip, length_field(IPV4_LEN + udp_len));
            field::set::<4, 2, _>(&mut ip, id.to_be_bytes());
            field::set::<6, 2, _>(&mut ip, [u8::from(*dont_fragment) << 6, 0]);
            field::set::<9, 1, _>(&mut ip, [PROTOCOL_UDP]);
            field::set::<12, 4, _>(&mut ip, src.octets());
            field::set::<16, 4, _>(&mut ip, dst.octets());
            let udp = masked_udp(src_port, dst_port, udp_len);
            sum::<PREFIX_V4>(&ip, &udp, bth, rest)
        }
        IpPseudo::V6 { src, dst } => {
            let mut ip = [0xff; IPV6_LEN];
            field::set::<0, 1, _>(&mut ip, [0x6f]);
            field::set::<4, 2, _>(&mut ip, length_field(udp_len));
            field::set::<6, 1, _>(&mut ip, [PROTOCOL_UDP]);
            field::set::<8, 16, _>(&mut ip, src.octets());
            field::set::<24, 16, _>(&mut ip, dst.octets());
            let udp = masked_udp(src_port, dst_port, udp_len);
            sum::<PREFIX_V6>(&ip, &udp, bth, rest)
        }
    }
}

/// The ICRC of a packet in a capture: all its bytes from the IP header on, without the ICRC itself.
///
/// `None` if the bytes are not a UDP packet with room for a BTH, or have IPv4 options or IPv6
/// extension headers. Nothing else is checked: lengths, ports and fragment bits enter the CRC as
/// they are.
pub fn icrc_of_ip_packet(ip_packet_without_icrc: &[u8]) -> Option<u32> {
    let bytes = ip_packet_without_icrc;
    match bytes.first()? >> 4 {
        4 => {
            let (ip, rest) = bytes.split_first_chunk::<IPV4_LEN>()?;
            let (udp, transport) = rest.split_first_chunk::<UDP_LEN>()?;
            let (bth, rest) = transport.split_at_checked(Bth::LEN)?;
            if ip[0] != 0x45 || ip[9] != PROTOCOL_UDP {
                return None;
            }
            let mut ip = *ip;
            field::set::<1, 1, _>(&mut ip, [0xff]);
            field::set::<8, 1, _>(&mut ip, [0xff]);
            field::set::<10, 2, _>(&mut ip, [0xff; 2]);
            Some(sum::<PREFIX_V4>(&ip, &without_checksum(udp), bth, rest))
        }
        6 => {
            let (ip, rest) = bytes.split_first_chunk::<IPV6_LEN>()?;
            let (udp, transport) = rest.split_first_chunk::<UDP_LEN>()?;
            let (bth, rest) = transport.split_at_checked(Bth::LEN)?;
            if ip[6] != PROTOCOL_UDP {
                return None;
            }
            let mut ip = *ip;
            field::set::<0, 4, _>(&mut ip, [0x6f, 0xff, 0xff, 0xff]);
            field::set::<7, 1, _>(&mut ip, [0xff]);
            Some(sum::<PREFIX_V6>(&ip, &without_checksum(udp), bth, rest))
        }
        _ => None,
    }
}

/// Ones in place of the local route header, which RoCEv2 does not have.
const LRH_LEN: usize = 8;

/// Everything up to the BTH: the part with masked fields.
const PREFIX_V4: usize = LRH_LEN + IPV4_LEN + UDP_LEN + Bth::LEN;
const PREFIX_V6: usize = LRH_LEN + IPV6_LEN + UDP_LEN + Bth::LEN;

/// Offset in the BTH of the byte with FECN and BECN.
const CONGESTION_AT: usize = 4;

fn length_field(len: usize) -> [u8; 2] {
    (len as u16).to_be_bytes()
}

fn masked_udp(src_port: u16, dst_port: u16, udp_len: usize) -> [u8; UDP_LEN] {
    let mut udp = [0xff; UDP_LEN];
    field::set::<0, 2, _>(&mut udp, src_port.to_be_bytes());
    field::set::<2, 2, _>(&mut udp, dst_port.to_be_bytes());
    field::set::<4, 2, _>(&mut udp, length_field(udp_len));
    udp
}

fn without_checksum(udp: &[u8; UDP_LEN]) -> [u8; UDP_LEN] {
    let mut udp = *udp;
    field::set::<6, 2, _>(&mut udp, [0xff; 2]);
    udp
}

/// `PREFIX` is the length of the four parts in front of `rest`; `bth` is shorter than a BTH only in
/// a packet that is none.
#[inline(always)]
fn sum<const PREFIX: usize>(ip: &[u8], udp: &[u8; UDP_LEN], bth: &[u8], rest: &[u8]) -> u32 {
    let mut prefix = [0xff; PREFIX];
    let bth_at = LRH_LEN + ip.len() + UDP_LEN;
    let end = bth_at + bth.len();
    prefix[LRH_LEN..LRH_LEN + ip.len()].copy_from_slice(ip);
    prefix[LRH_LEN + ip.len()..bth_at].copy_from_slice(udp);
    prefix[bth_at..end].copy_from_slice(bth);
    if bth.len() > CONGESTION_AT {
        prefix[bth_at + CONGESTION_AT] = 0xff;
    }

    let mut hasher = Hasher::new();
    hasher.update(&prefix[..end]);
    hasher.update(rest);
    hasher.finalize()
}

#[cfg(test)]
mod tests;
