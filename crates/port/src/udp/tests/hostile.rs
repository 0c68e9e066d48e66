//! What arrives from elsewhere: damaged, foreign, or from other implementations.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::*;

#[test]
fn a_damaged_packet_is_counted_and_not_delivered() {
    for mut way in Way::of_each_family() {
        let mut clean = batch();
        for number in 0..5 {
            add(&mut clean, &packet(1036, number), to(way.peer));
        }
        let mut damaged = batch();
        for index in 0..5 {
            // One bit of the payload, one of the ICRC itself.
            let damage = match index {
                1 => Some(4000),
                3 => Some(1036 * 8 + 5),
                _ => None,
            };
            assert!(clean.copy_packet(index, &mut damaged, damage));
        }
        way.left.transmit(&mut damaged).unwrap();
        let receiver = way.receiver();
        let arrived = receive(receiver, 3);
        assert_eq!(
            bytes_of(&arrived),
            [packet(1036, 0), packet(1036, 2), packet(1036, 4)]
        );
        assert_eq!(receiver.counters().rx_bad_icrc, 2);
        assert_eq!(receiver.counters().rx_packets, 3);
    }
}

#[test]
fn an_overlong_datagram_is_counted_and_not_delivered() {
    let (mut left, mut right) = pair_with(
        config(),
        UdpConfig {
            datagram_bytes_max: 512,
            ..config()
        },
    );
    let mut batch = batch();
    for len in [1036, 508, 512, 504] {
        add(&mut batch, &packet(len, len), to(RIGHT));
        left.transmit(&mut batch).unwrap();
    }
    // 508 and its ICRC just fit.
    let arrived = receive(&mut right, 2);
    assert_eq!(bytes_of(&arrived), [packet(508, 508), packet(504, 504)]);
    assert_eq!(right.counters().rx_truncated, 2);
}

#[test]
fn what_is_not_rocev2_is_counted_and_not_delivered() {
    let (_, mut right) = pair();
    let stranger = UdpSocket::bind((LEFT, 0)).unwrap();
    let target = (RIGHT, right.port());
    stranger.send_to(&[], target).unwrap();
    stranger.send_to(&[1, 2, 3], target).unwrap();
    stranger.send_to(&[7; 15], target).unwrap();
    stranger.send_to(&[7; 16], target).unwrap();
    stranger
        .send_to(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", target)
        .unwrap();
    let arrived = receive_until(&mut right, |_, counters| {
        counters.rx_short + counters.rx_bad_icrc >= 5
    });
    assert!(arrived.is_empty());
    let counters = right.counters();
    assert_eq!((counters.rx_short, counters.rx_bad_icrc), (3, 2));
    assert_eq!(counters.rx_packets, 0);
}

/// rxe and hardware choose the source port for entropy and count the identification, both unseen.
#[test]
fn a_packet_with_any_source_port_and_identification_is_accepted() {
    let (_, mut right) = pair();
    let stranger = UdpSocket::bind((LEFT, 0)).unwrap();
    let source_port = stranger.local_addr().unwrap().port();
    for (number, id) in [0x718c, 0, 0xffff].into_iter().enumerate() {
        let mut datagram = packet(1036, number);
        let ip = airdma_wire::IpPseudo::V4 {
            src: LEFT.parse().unwrap(),
            dst: RIGHT.parse().unwrap(),
            id,
            dont_fragment: true,
        };
        let icrc = airdma_wire::icrc(&ip, source_port, right.port(), &datagram);
        datagram.extend(icrc.to_le_bytes());
        stranger.send_to(&datagram, (RIGHT, right.port())).unwrap();
    }
    let arrived = receive(&mut right, 3);
    assert_eq!(
        bytes_of(&arrived),
        [packet(1036, 0), packet(1036, 1), packet(1036, 2)]
    );
    assert!(arrived.iter().all(|p| p.source_port == source_port));
    assert_eq!(right.counters().rx_id_recovered, 2);
}

/// rxe leaves the UDP checksum out, which the kernel accepts over IPv6 only with a socket option.
#[test]
fn a_packet_without_udp_checksum_is_accepted_over_ipv6() {
    let mut port = UdpPort::bind(&[address("::1")], 0, config()).unwrap();
    let stranger = UdpSocket::bind(("::1", 0)).unwrap();
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads one int.
    let result = unsafe {
        libc::setsockopt(
            stranger.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_NO_CHECK6_TX,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
    let localhost = std::net::Ipv6Addr::LOCALHOST;
    let ip = airdma_wire::IpPseudo::V6 {
        src: localhost,
        dst: localhost,
    };
    let source_port = stranger.local_addr().unwrap().port();
    let mut datagram = packet(1036, 1);
    let icrc = airdma_wire::icrc(&ip, source_port, port.port(), &datagram);
    datagram.extend(icrc.to_le_bytes());
    stranger.send_to(&datagram, ("::1", port.port())).unwrap();
    assert_eq!(bytes_of(&receive(&mut port, 1)), [packet(1036, 1)]);
}

#[test]
fn the_budget_bounds_a_receive_call_of_bad_packets() {
    let (_, mut right) = pair();
    let stranger = UdpSocket::bind((LEFT, 0)).unwrap();
    for _ in 0..200 {
        stranger.send_to(&[7; 64], (RIGHT, right.port())).unwrap();
    }
    let mut arrived = Vec::new();
    for round in 1..=4 {
        assert!(readable(&right, Duration::from_secs(60)));
        assert_eq!(take(&mut right, 1, &mut arrived), 0);
        let looked_at = right.counters().rx_bad_icrc;
        assert!(
            (round..=4 * round).contains(&looked_at),
            "{looked_at} after {round} calls"
        );
    }
    assert_eq!(take(&mut right, 0, &mut arrived), 0);
}
