//! Damaged packets: parsing never panics, and the ICRC notices.

use std::collections::BTreeSet;

use airdma_captures::{self as captures, Captured, NEGATIVE};
use airdma_wire::{Bth, HEADERS_LEN_MAX, IpPseudo, Packet, icrc_of_ip_packet};

/// The bits of a byte of the packet that the ICRC leaves out (IBTA A17.3.3).
fn uncovered_bits(captured: &Captured, at: usize) -> u8 {
    let udp_checksum = captured.transport_at - 2..captured.transport_at;
    if udp_checksum.contains(&at) || at == captured.transport_at + 4 {
        return 0xff;
    }
    match (captured.ip, at) {
        // TOS, TTL, header checksum.
        (IpPseudo::V4 { .. }, 1 | 8 | 10 | 11) => 0xff,
        // Traffic class, flow label, hop limit.
        (IpPseudo::V6 { .. }, 0) => 0x0f,
        (IpPseudo::V6 { .. }, 1..=3 | 7) => 0xff,
        (IpPseudo::V4 { .. } | IpPseudo::V6 { .. }, _) => 0,
    }
}

/// The effect of a flipped bit on a CRC depends only on its position and on the length of the
/// packet. So all bits are flipped in one packet of each length, and in the others only those of
/// the headers.
#[test]
fn every_flipped_bit_that_the_icrc_covers_is_detected() {
    let mut lengths = BTreeSet::new();
    let mut flips = 0_u64;
    for (name, captured) in captures::all_packets() {
        let negative = NEGATIVE.contains(&name);
        let whole = icrc_of_ip_packet(&captured.ip_packet);
        assert!(negative || whole == Some(captured.icrc));

        let mut bytes = captured.ip_packet.clone();
        let end = if lengths.insert((captured.transport_at, bytes.len())) {
            bytes.len()
        } else {
            bytes.len().min(captured.transport_at + HEADERS_LEN_MAX)
        };
        for at in 0..end {
            let uncovered = uncovered_bits(&captured, at);
            for bit in (0..8).map(|bit| 1_u8 << bit) {
                bytes[at] ^= bit;
                let unnoticed = icrc_of_ip_packet(&bytes) == whole;
                assert_eq!(
                    unnoticed,
                    uncovered & bit != 0,
                    "{name}: byte {at}, bit {bit:#04x}"
                );
                bytes[at] ^= bit;
                flips += 1;
            }
        }
    }
    assert_eq!(flips, 715_040);
}

/// A FLUSH of rxe of Linux 6.12 (10.77.0.2), from the IP header to the ICRC.
const FLUSH_OF_RXE: &str = "450000403960400040 11ecb0 0a4d0002 0a4d0001 c3fe12b7002c0000 \
                            1c00ffff 0050dca5 80000003 00000001 00007f8af738c000 ed304c77 00000000 \
                            95f4c76a";

/// rxe has no offset of a payload for this opcode, and takes all headers from the BTH on for
/// payload, too, unmasked. So it drops the FLUSH of a conforming peer, which drops that of rxe.
#[test]
fn rxe_covers_the_headers_of_a_flush_twice() {
    let digits: Vec<u8> = FLUSH_OF_RXE.bytes().filter(|&d| d != b' ').collect();
    let digit = |d: u8| char::from(d).to_digit(16).unwrap() as u8;
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect();
    let (packet, sent) = bytes.split_at(bytes.len() - 4);
    assert_ne!(icrc_of_ip_packet(packet).unwrap().to_le_bytes(), sent);

    let transport = &packet[28..];
    assert!(Packet::parse(transport).unwrap().headers.feth.is_some());
    // Lengths enter as the headers have them.
    let twice = [packet, transport].concat();
    assert_eq!(icrc_of_ip_packet(&twice).unwrap().to_le_bytes(), sent);
}

/// One packet of each opcode and length: parsing reads nothing else of the payload.
fn distinct_packets() -> Vec<Captured> {
    let mut seen = BTreeSet::new();
    let distinct: Vec<_> = captures::all_packets()
        .map(|(_, captured)| captured)
        .filter(|c| seen.insert((c.transport_at, c.transport().len(), c.transport()[0])))
        .collect();
    assert_eq!(distinct.len(), 102);
    distinct
}

#[test]
fn a_flipped_bit_never_makes_parsing_panic() {
    let (mut read, mut refused) = (0, 0);
    for captured in distinct_packets() {
        let mut bytes = captured.transport().to_vec();
        for i in 0..8 * bytes.len() {
            bytes[i / 8] ^= 1 << (i % 8);
            match Packet::parse(&bytes) {
                Ok(packet) => {
                    let headers = packet.headers;
                    let len = headers.len() + packet.payload.len() + usize::from(headers.bth.pad);
                    assert_eq!(len, bytes.len());
                    read += 1;
                }
                Err(_) => refused += 1,
            }
            bytes[i / 8] ^= 1 << (i % 8);
        }
    }
    assert!(read > 0 && refused > 0);
}

#[test]
fn a_cut_packet_never_makes_anything_panic() {
    for captured in distinct_packets() {
        let bth_end = captured.transport_at + Bth::LEN;
        for len in 0..captured.ip_packet.len() {
            let cut = &captured.ip_packet[..len];
            assert_eq!(icrc_of_ip_packet(cut).is_some(), len >= bth_end);
            if let Some(transport) = cut.get(captured.transport_at..) {
                assert_ne!(
                    Packet::parse(transport),
                    Packet::parse(captured.transport())
                );
            }
        }
    }
}
