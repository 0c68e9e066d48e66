#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::ROCE_PORT;

/// CRC-32 bit by bit, after the wording of the Ethernet specification.
fn reference_crc(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let carry = (crc ^ u32::from(byte >> bit)) & 1 != 0;
            crc = crc >> 1 ^ if carry { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<char> = digits.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// A UC send over IPv4 that a software tool published with its ICRC.
#[test]
fn the_icrc_of_a_published_send_only() {
    let mut transport = vec![0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211];
    transport.extend(13_571_856_u32.to_be_bytes());
    transport.extend(hex(
        "46 30 81 8b e2 89 35 d9 0e 9a 95 50 54 01 be 88 5e 50 00 00",
    ));
    let address = Ipv4Addr::new(192, 168, 0, 7);
    let ip = IpPseudo::V4 {
        src: address,
        dst: address,
        id: 1144,
        dont_fragment: true,
    };
    let sum = icrc(&ip, 49152, ROCE_PORT, &transport);
    assert_eq!(sum.to_le_bytes(), [0x78, 0xf3, 0x53, 0xf3]);

    let packet = crate::Packet::parse(&transport).unwrap();
    assert_eq!(packet.headers.bth.opcode, crate::Opcode::UcSendOnly);
    assert_eq!(packet.payload.len(), 18);
}

/// A CNP that a ConnectX-4 Lx sent.
#[test]
fn the_icrc_of_a_captured_cnp() {
    let mut bytes = hex(
        "45c2003c 718c4000 40119161 0a00 1101 0a00 1201 0000 12b7 0028 0000 8100ffff 40000118 00000000",
    );
    bytes.extend([0; 16]);
    let expected = [0x82, 0xfd, 0x00, 0x2a];
    assert_eq!(icrc_of_ip_packet(&bytes).unwrap().to_le_bytes(), expected);

    let ip = |id| IpPseudo::V4 {
        src: Ipv4Addr::new(10, 0, 17, 1),
        dst: Ipv4Addr::new(10, 0, 18, 1),
        id,
        dont_fragment: true,
    };
    assert_eq!(
        icrc(&ip(0x718c), 0, ROCE_PORT, &bytes[28..]).to_le_bytes(),
        expected
    );

    let difference = u32::from_le_bytes(expected) ^ icrc(&ip(0), 0, ROCE_PORT, &bytes[28..]);
    let space = crate::IdSpace::for_transport_len(bytes.len() - 28);
    assert_eq!(space.recover(difference), Some(0x718c));
}

fn pseudo() -> impl Strategy<Value = IpPseudo> {
    let v4 = any::<([u8; 4], [u8; 4], u16, bool)>().prop_map(|(src, dst, id, dont_fragment)| {
        IpPseudo::V4 {
            src: src.into(),
            dst: dst.into(),
            id,
            dont_fragment,
        }
    });
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| IpPseudo::V6 {
        src: src.into(),
        dst: dst.into(),
    });
    prop_oneof![v4, v6]
}

/// The bytes of a packet from the IP header on; `noise` fills what the ICRC does not cover.
fn ip_packet(ip: &IpPseudo, ports: (u16, u16), transport: &[u8], noise: [u8; 8]) -> Vec<u8> {
    let [
        tos,
        ttl,
        sum_high,
        sum_low,
        udp_high,
        udp_low,
        label_high,
        label_low,
    ] = noise;
    let udp_len = (transport.len() + 12) as u16;
    let mut bytes = Vec::new();
    match ip {
        IpPseudo::V4 {
            src,
            dst,
            id,
            dont_fragment,
        } => {
            bytes.extend([0x45, tos]);
            bytes.extend((udp_len + 20).to_be_bytes());
            bytes.extend(id.to_be_bytes());
            bytes.extend([
                if *dont_fragment { 0x40 } else { 0 },
                0,
                ttl,
                17,
                sum_high,
                sum_low,
            ]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        IpPseudo::V6 { src, dst } => {
            bytes.extend([
                0x60 | tos >> 4,
                tos << 4 | label_high & 0xf,
                label_low,
                sum_low,
            ]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, ttl]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
    }
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([udp_high, udp_low]);
    bytes.extend(transport);
    bytes
}

proptest! {
    #[test]
    fn both_computations_agree_with_the_reference(
        ip in pseudo(),
        ports in any::<(u16, u16)>(),
        transport in prop::collection::vec(any::<u8>(), Bth::LEN..400),
        noise in any::<[u8; 8]>(),
    ) {
        let sum = icrc(&ip, ports.0, ports.1, &transport);
        let bytes = ip_packet(&ip, ports, &transport, noise);
        prop_assert_eq!(icrc_of_ip_packet(&bytes), Some(sum));

        // With ones in place of the noise, the packet is what the CRC covers.
        let mut masked_transport = transport.clone();
        masked_transport[4] = 0xff;
        let masked = ip_packet(&ip, ports, &masked_transport, [0xff; 8]);
        prop_assert_eq!(reference_crc([0xff; 8].into_iter().chain(masked)), sum);
    }

    #[test]
    fn arbitrary_bytes_have_a_sum_or_none(
        version in prop::sample::select(&[0x45u8, 0x46, 0x60, 0x6f, 0x00][..]),
        mut bytes in prop::collection::vec(any::<u8>(), 0..90),
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        let sum = icrc_of_ip_packet(&bytes);
        if bytes.len() < 40 || matches!(version, 0x46 | 0x00) {
            prop_assert_eq!(sum, None);
        }
    }
}

#[test]
fn transport_bytes_of_any_length_have_a_sum() {
    let v6 = IpPseudo::V6 {
        src: Ipv6Addr::LOCALHOST,
        dst: Ipv6Addr::LOCALHOST,
    };
    let v4 = IpPseudo::V4 {
        src: Ipv4Addr::LOCALHOST,
        dst: Ipv4Addr::LOCALHOST,
        id: 7,
        dont_fragment: false,
    };
    let bytes = [0x5a; 70_000];
    for ip in [v4, v6] {
        for len in (0..20).chain([65_000, 66_000, 70_000]) {
            let mut masked = bytes[..len].to_vec();
            if let Some(congestion) = masked.get_mut(4) {
                *congestion = 0xff;
            }
            let sum = icrc(&ip, 1, 2, &bytes[..len]);
            if len <= 65_000 {
                let packet = ip_packet(&ip, (1, 2), &masked, [0xff; 8]);
                assert_eq!(
                    sum,
                    reference_crc([0xff; 8].into_iter().chain(packet)),
                    "{len}"
                );
            }
        }
    }
}

#[test]
fn only_udp_without_options_has_a_sum() {
    let ip = IpPseudo::V4 {
        src: Ipv4Addr::LOCALHOST,
        dst: Ipv4Addr::LOCALHOST,
        id: 0,
        dont_fragment: true,
    };
    let packet = ip_packet(&ip, (1, ROCE_PORT), &[0; 12], [0; 8]);
    assert!(icrc_of_ip_packet(&packet).is_some());
    assert_eq!(icrc_of_ip_packet(&packet[..39]), None);

    let changed = |at: usize, value: u8| {
        let mut bytes = packet.clone();
        bytes[at] = value;
        icrc_of_ip_packet(&bytes)
    };
    assert_eq!(changed(0, 0x46), None);
    assert_eq!(changed(0, 0x55), None);
    assert_eq!(changed(9, 6), None);
}
