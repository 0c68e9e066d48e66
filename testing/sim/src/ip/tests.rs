#![allow(clippy::unwrap_used)]

use airdma_transport::Arrival;
use airdma_wire::icrc_of_ip_packet;

use super::*;
use crate::random::Random;

fn sealed(ipv6: bool) -> Frame {
    let [source, destination] = if ipv6 {
        ["fd05::1", "fd05::2"]
    } else {
        ["10.5.0.1", "10.5.0.2"]
    };
    let arrival = Arrival {
        source: source.parse::<std::net::IpAddr>().unwrap().into(),
        destination: destination.parse::<std::net::IpAddr>().unwrap().into(),
        tos: 0x62,
        ttl: 64,
        flow_label: if ipv6 { 0x1_2345 } else { 0 },
    };
    Frame::seal(&arrival, &Random::new(1).bytes(60))
}

#[test]
fn what_is_built_is_received() {
    for ipv6 in [false, true] {
        for checksum in [false, true] {
            let frame = sealed(ipv6);
            let packet = packet(&frame, checksum);
            assert_eq!(is_v6(&frame), ipv6);
            assert_eq!(transport(&packet), frame.bytes);
            let (covered, icrc) = packet.split_last_chunk::<4>().unwrap();
            assert_eq!(icrc_of_ip_packet(covered), Some(u32::from_le_bytes(*icrc)));
            let received = receive(&packet, ipv6, false, frame.destination);
            assert_eq!(received.as_ref(), Ok(&frame));
            // Padding of the link layer is ignored.
            let mut padded = packet.clone();
            padded.extend_from_slice(&[0xee; 9]);
            assert_eq!(receive(&padded, ipv6, false, frame.destination), received);
            let elsewhere = frame.source;
            let refused = receive(&packet, ipv6, false, elsewhere);
            assert_eq!(refused, Err(IpDrop::Address));
        }
    }
}

/// Every single bit, one by one. What passes the IP layer either fails the ICRC or differs only in
/// what the ICRC masks.
#[test]
fn every_bit_is_guarded_but_those_that_may_change() {
    for ipv6 in [false, true] {
        let frame = sealed(ipv6);
        let packet = packet(&frame, false);
        let (mut refused, mut found, mut passed) = (0, 0, Vec::new());
        for bit in 0..packet.len() * 8 {
            let mut packet = packet.clone();
            packet[bit / 8] ^= 0x80 >> (bit % 8);
            let Ok(received) = receive(&packet, ipv6, false, frame.destination) else {
                refused += 1;
                continue;
            };
            if received.open().is_none() {
                found += 1;
                continue;
            }
            passed.push(bit);
            let mut same = received.clone();
            (same.tos, same.ttl, same.flow_label) = (frame.tos, frame.ttl, frame.flow_label);
            same.bytes[4] = frame.bytes[4];
            assert_eq!(same, frame, "bit {bit}");
            assert_ne!(received, frame, "bit {bit}");
        }
        let bth = if ipv6 { 48 } else { 28 };
        let congestion = (bth + 4) * 8..(bth + 5) * 8;
        // IPv4: its header checksum covers all of the header. IPv6: traffic class and flow label,
        // and the hop limit. Both: byte 4 of the BTH.
        let expected: Vec<_> = if ipv6 {
            (4..32).chain(56..64).chain(congestion).collect()
        } else {
            congestion.collect()
        };
        assert_eq!(passed, expected);
        let in_headers = bth * 8;
        assert!(refused > in_headers / 2 && found > (packet.len() - bth) * 8 - 9);
        assert_eq!(refused + found + passed.len(), packet.len() * 8);
    }
}

#[test]
fn a_udp_checksum_that_is_there_guards_all_that_udp_sees() {
    for ipv6 in [false, true] {
        let frame = sealed(ipv6);
        let packet = packet(&frame, true);
        for bit in 0..packet.len() * 8 {
            let mut packet = packet.clone();
            packet[bit / 8] ^= 0x80 >> (bit % 8);
            if let Ok(received) = receive(&packet, ipv6, false, frame.destination) {
                assert!(ipv6 && ((4..32).contains(&bit) || (56..64).contains(&bit)));
                assert_eq!(received.bytes, frame.bytes);
            }
        }
    }
}

#[test]
fn each_reason_to_refuse() {
    let refused = |ipv6: bool, change: &dyn Fn(&mut Vec<u8>)| {
        let frame = sealed(ipv6);
        let mut packet = packet(&frame, false);
        change(&mut packet);
        if !ipv6 && packet.len() >= 20 {
            // As if sent so on purpose.
            packet[10..12].fill(0);
            let sum = !sum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        receive(&packet, ipv6, false, frame.destination).unwrap_err()
    };
    for ipv6 in [false, true] {
        let ip_len = if ipv6 { 40 } else { 20 };
        for len in [0, 1, ip_len - 1, ip_len, ip_len + 8, ip_len + 20] {
            assert_eq!(
                refused(ipv6, &|packet| packet.truncate(len)),
                IpDrop::Truncated
            );
        }
        let other = if ipv6 { 0x45 } else { 0x65 };
        assert_eq!(refused(ipv6, &|packet| packet[0] = other), IpDrop::Version);
        let protocol_at = if ipv6 { 6 } else { 9 };
        assert_eq!(
            refused(ipv6, &|packet| packet[protocol_at] = 6),
            IpDrop::Protocol
        );
        assert_eq!(
            refused(ipv6, &|packet| packet[ip_len + 3] ^= 1),
            IpDrop::Port
        );
        assert_eq!(
            refused(ipv6, &|packet| packet[ip_len + 7] = 1),
            IpDrop::UdpChecksum
        );
        for udp_len in [1, 7, 73, 0xffff_u16] {
            assert_eq!(
                refused(ipv6, &|packet| packet[ip_len + 4..ip_len + 6]
                    .copy_from_slice(&udp_len.to_be_bytes())),
                IpDrop::UdpLength
            );
        }
        let source_at = if ipv6 { 8 } else { 12 };
        let group = if ipv6 { 0xff } else { 239 };
        assert_eq!(
            refused(ipv6, &|packet| packet[source_at] = group),
            IpDrop::Address
        );
    }
    // More fragments follow; not the first fragment; options.
    assert_eq!(refused(false, &|packet| packet[6] = 0x20), IpDrop::Fragment);
    assert_eq!(refused(false, &|packet| packet[7] = 1), IpDrop::Fragment);
    let frame = sealed(false);
    let mut wrong = packet(&frame, false);
    wrong[11] ^= 1;
    let refusal = receive(&wrong, false, false, frame.destination);
    assert_eq!(refusal, Err(IpDrop::HeaderChecksum));
}

/// A jumbogram's length of 0, which Linux accepts of any packet.
#[test]
fn a_udp_length_of_zero_is_all_that_is_there_with_ipv6_only() {
    for ipv6 in [false, true] {
        let frame = sealed(ipv6);
        let mut packet = packet(&frame, false);
        let at = transport_at(&packet) - UDP_LEN;
        packet[at + 4..at + 6].fill(0);
        let received = receive(&packet, ipv6, false, frame.destination);
        let expected = ipv6.then_some(frame).ok_or(IpDrop::UdpLength);
        assert_eq!(received, expected);
    }
}

#[test]
fn a_packet_for_a_group_is_one_and_another_is_not() {
    for ipv6 in [false, true] {
        let mut frame = sealed(ipv6);
        let here = frame.destination;
        let group = if ipv6 { "ff15::1" } else { "239.1.1.1" };
        let unicast = packet(&frame, false);
        frame.destination = group.parse().unwrap();
        let to_group = packet(&frame, false);
        let address = Err(IpDrop::Address);
        assert_eq!(receive(&unicast, ipv6, true, here), address);
        assert_eq!(receive(&to_group, ipv6, false, here), address);
        assert_eq!(receive(&to_group, ipv6, true, here), Ok(frame));
    }
}

#[test]
fn a_mark_keeps_a_right_checksum_right_and_a_wrong_one_wrong() {
    for tos in [1, 2, 0xfd] {
        let mut frame = sealed(false);
        frame.tos = tos;
        let mut marked = packet(&frame, false);
        assert!(is_ecn_capable(&marked));
        mark_congestion(&mut marked);
        let received = receive(&marked, false, false, frame.destination).unwrap();
        assert_eq!(received.tos, tos | CE);
        assert_eq!(received.open(), frame.open());
        let mut wrong = packet(&frame, false);
        wrong[10] ^= 4;
        mark_congestion(&mut wrong);
        let refusal = receive(&wrong, false, false, frame.destination);
        assert_eq!(refusal, Err(IpDrop::HeaderChecksum));
    }
    let mut frame = sealed(true);
    let mut marked = packet(&frame, false);
    mark_congestion(&mut marked);
    frame.tos |= CE;
    assert_eq!(receive(&marked, true, false, frame.destination), Ok(frame));
    for ipv6 in [false, true] {
        let mut frame = sealed(ipv6);
        frame.tos = 0xfc;
        assert!(!is_ecn_capable(&packet(&frame, false)));
    }
}
