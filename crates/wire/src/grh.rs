//! The 40 bytes in front of a datagram in a receive buffer (IBTA 11.4.1.2 and A17.4.5).
//!
//! ```text
//!            0                  20                  40
//!  IPv4      +-------------------+-------------------+---------
//!            |    20 zero bytes  |    IPv4 header    | datagram
//!  IPv6      +-------------------+-------------------+---------
//!            |              IPv6 header              | datagram
//!            +---------------------------------------+---------
//! ```
//!
//! InfiniBand puts its global route header there. In RoCEv2 it is the IP header itself, as the
//! kernel's rxe delivers it: programs find the sender's address in it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ip::{IPV4_LEN, IPV6_LEN, PROTOCOL_UDP};
use crate::{Gid, field};

/// Length of the area in bytes.
pub const GRH_LEN: usize = 40;

/// The area of a datagram that came with this IP header.
///
/// `payload_len` is the number of bytes behind the IP header, from UDP header to ICRC. `flow_label`
/// is IPv6's, in its low 20 bits. Fields that a UDP socket does not report are filled in as RoCEv2
/// senders do: DF is set, and the identification, which is lost, is 0. If only one address is IPv4,
/// the header is an IPv6 one with that address mapped.
pub fn grh_area(
    src: IpAddr,
    dst: IpAddr,
    tos: u8,
    ttl: u8,
    flow_label: u32,
    payload_len: u16,
) -> [u8; GRH_LEN] {
    match (src.to_canonical(), dst.to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut area = [0; GRH_LEN];
            let header = ipv4_header(src, dst, tos, ttl, payload_len);
            field::set::<{ GRH_LEN - IPV4_LEN }, IPV4_LEN, _>(&mut area, header);
            area
        }
        (src, dst) => ipv6_header(
            Gid::from(src).0.into(),
            Gid::from(dst).0.into(),
            tos,
            ttl,
            flow_label,
            payload_len,
        ),
    }
}

fn ipv4_header(src: Ipv4Addr, dst: Ipv4Addr, tos: u8, ttl: u8, payload_len: u16) -> [u8; IPV4_LEN] {
    const DONT_FRAGMENT: u8 = 0x40;
    let total_len = payload_len.wrapping_add(IPV4_LEN as u16);

    let mut header = [0; IPV4_LEN];
    field::set::<0, 2, _>(&mut header, [0x45, tos]);
    field::set::<2, 2, _>(&mut header, total_len.to_be_bytes());
    field::set::<6, 1, _>(&mut header, [DONT_FRAGMENT]);
    field::set::<8, 2, _>(&mut header, [ttl, PROTOCOL_UDP]);
    field::set::<12, 4, _>(&mut header, src.octets());
    field::set::<16, 4, _>(&mut header, dst.octets());
    let checksum = !ones_complement_sum(&header);
    field::set::<10, 2, _>(&mut header, checksum.to_be_bytes());
    header
}

fn ipv6_header(
    src: Ipv6Addr,
    dst: Ipv6Addr,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    payload_len: u16,
) -> [u8; IPV6_LEN] {
    let first_word = 6 << 28 | u32::from(traffic_class) << 20 | (flow_label & 0x000f_ffff);

    let mut header = [0; IPV6_LEN];
    field::set::<0, 4, _>(&mut header, first_word.to_be_bytes());
    field::set::<4, 2, _>(&mut header, payload_len.to_be_bytes());
    field::set::<6, 2, _>(&mut header, [PROTOCOL_UDP, hop_limit]);
    field::set::<8, 16, _>(&mut header, src.octets());
    field::set::<24, 16, _>(&mut header, dst.octets());
    header
}

/// Sum of the header's 16-bit words with end-around carry (RFC 791); 0xffff for a header with a
/// valid checksum.
fn ones_complement_sum(header: &[u8; IPV4_LEN]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    // Ten words sum to less than 2^20, so two rounds take every carry in.
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_fills_the_last_twenty_bytes() {
        let (src, dst) = (Ipv4Addr::new(10, 0, 17, 1), Ipv4Addr::new(10, 0, 18, 1));
        let area = grh_area(src.into(), dst.into(), 0xc2, 64, 0xfffff, 40);
        assert_eq!(area[..20], [0; 20]);
        // A captured header whose checksum is 0x9161 with identification 0x718c.
        //
        // Without the identification, the checksum is 0x9161 + 0x718c with end-around carry:
        // 0x02ee.
        let header = [
            0x45, 0xc2, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x02, 0xee, 10, 0, 17, 1, 10, 0, 18, 1,
        ];
        assert_eq!(area[20..], header);
        assert_eq!(ones_complement_sum(&header), 0xffff);
    }

    #[test]
    fn an_ipv6_header_fills_the_area() {
        let (src, dst) = ("fd05::1".parse::<Ipv6Addr>(), "fd05::2".parse::<Ipv6Addr>());
        let (src, dst) = (src.expect("valid"), dst.expect("valid"));
        let area = grh_area(src.into(), dst.into(), 0x20, 7, 0xfff1_2345, 0x1234);
        assert_eq!(area[..8], [0x62, 0x01, 0x23, 0x45, 0x12, 0x34, 17, 7]);
        assert_eq!(area[8..24], src.octets());
        assert_eq!(area[24..], dst.octets());
    }

    #[test]
    fn mapped_addresses_count_as_ipv4() {
        let (src, dst) = (Ipv4Addr::new(10, 5, 0, 1), Ipv4Addr::new(10, 5, 0, 2));
        let plain = grh_area(src.into(), dst.into(), 0, 64, 0, 100);
        let mapped = src.to_ipv6_mapped().into();
        assert_eq!(grh_area(mapped, dst.into(), 0, 64, 0, 100), plain);

        let v6 = Ipv6Addr::LOCALHOST.into();
        let mixed = grh_area(src.into(), v6, 0, 64, 0, 100);
        assert_eq!((mixed[0], &mixed[8..24]), (0x60, &Gid::from(src).0[..]));
    }
}
