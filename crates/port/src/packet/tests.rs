#![allow(clippy::unwrap_used)]

use super::frame::{ETHERNET_LEN, HEADER_LEN_V4};
use super::*;
use crate::RawSocket;
use std::net::UdpSocket;

#[path = "../../../engine/tests/common/isolated.rs"]
mod isolated;
use isolated::isolated;

/// Two ends of a cable in one namespace, at which addresses are as on two hosts.
const SETUP: &str = "
    ip link add left index 70 address 02:00:00:00:00:01 mtu 1500 type veth \
        peer name right index 71 address 02:00:00:00:00:02 mtu 1500
    ip addr add 192.0.2.1/24 dev left
    ip addr add 192.0.2.2/32 dev right
    ip -6 addr add fd00::1/64 dev left nodad
    ip -6 addr add fd00::2/128 dev right nodad
    for interface in left right; do ip link set $interface up; done";
const LEFT: u32 = 70;
const RIGHT: u32 = 71;
/// A frame arrives within that time on a busy host, too.
const ARRIVAL_MAX: Duration = Duration::from_secs(10);
const ETHERNET_RIGHT: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Knows the two ends.
struct Table;

impl Resolver for Table {
    fn next_hop(&mut self, _: IpAddr, destination: IpAddr) -> io::Result<Option<[u8; 6]>> {
        match destination.to_string().as_str() {
            "192.0.2.1" | "fd00::1" => Ok(Some([2, 0, 0, 0, 0, 1])),
            "192.0.2.2" | "fd00::2" => Ok(Some(ETHERNET_RIGHT)),
            "192.0.2.77" => Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
            _ => Ok(None),
        }
    }
}

fn port(interface_index: u32, last: u8) -> PacketPort {
    let addresses = [format!("192.0.2.{last}"), format!("fd00::{last}")];
    let addresses = addresses.map(|text| Some(text.parse().unwrap()));
    PacketPort::bind(&addresses, interface_index, Box::new(Table)).unwrap()
}

fn add(batch: &mut TransmitBatch, target: &str, source_index: u8, len: usize) {
    let destination = Destination {
        address: target.parse::<IpAddr>().unwrap().into(),
        source_index,
        tos: 0x6a,
        hop_limit: 9,
        flow_label: 0x1_2345,
        bundles: false,
    };
    let packet = batch.reserve(len).unwrap();
    packet.fill(len as u8);
    batch.commit(len, destination);
}

/// The next `count` packets, and what came with them: on a busy host frames may need a while.
fn receive(port: &mut PacketPort, count: usize) -> Vec<(String, u8, u8, u32, usize)> {
    let mut found = Vec::new();
    let start = Instant::now();
    let mut is_last = false;
    while !is_last && start.elapsed() < ARRIVAL_MAX {
        is_last = found.len() >= count;
        let mut take = |packet: Received<'_>| {
            found.push((
                packet.source.to_string(),
                packet.tos,
                packet.ttl,
                packet.flow_label,
                packet.bytes.len(),
            ));
        };
        port.receive(64, &mut take).unwrap();
    }
    found
}

#[test]
fn packets_of_both_families_cross_as_frames() {
    let name = "packet::tests::packets_of_both_families_cross_as_frames";
    isolated(name, SETUP, || {
        let (mut left, mut right) = (port(LEFT, 1), port(RIGHT, 2));
        let mut batch = left.lend_batch(1 << 16, 64);
        assert!(!batch.takes_runs());
        for (source_index, target) in [(0, "192.0.2.2"), (1, "fd00::2")] {
            for len in [12, 64, 1036] {
                add(&mut batch, target, source_index, len);
            }
        }
        left.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
        let of = |source: &str, label| {
            [12, 64, 1036].map(|len| (source.to_owned(), 0x6a, 9, label, len))
        };
        let expected = [of("192.0.2.1", 0), of("fd00::1", 0x1_2345)].concat();
        assert_eq!(receive(&mut right, 6), expected, "{:?}", right.counters());
        let (sent, received) = (left.counters(), right.counters());
        assert_eq!((sent.tx_packets, received.rx_packets), (6, 6));
        assert_eq!(sent.tx_bytes, received.rx_bytes);
        assert_eq!(received.rx_id_recovered, 0);
    });
}

/// A frame from `192.0.2.9` to the right end, as it is on a wire, with this identification.
fn frame(id: u16, icrc_id: u16) -> Vec<u8> {
    let ends = Ends {
        ethernet_source: [2, 0, 0, 0, 0, 9],
        ethernet_destination: ETHERNET_RIGHT,
        source: [192, 0, 2, 9].into(),
        destination: [192, 0, 2, 2].into(),
    };
    let to = Destination {
        address: ends.destination.into(),
        source_index: 0,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    };
    let packet = [7; 60];
    let flow = Flow::new(ends.source, ends.destination, ROCE_PORT, ROCE_PORT).unwrap();
    let icrc = IcrcCache::new(2048).icrc(&flow, icrc_id, &packet);
    let mut frame = vec![0; HEADER_LEN_V4];
    frame::write_headers(&mut frame, &ends, &to, packet.len() + 4);
    frame.extend_from_slice(&packet);
    frame.extend_from_slice(&icrc.to_le_bytes());
    frame[18..20].copy_from_slice(&id.to_be_bytes());
    // No UDP checksum, as of rxe.
    frame[HEADER_LEN_V4 - 2..HEADER_LEN_V4].fill(0);
    close(&mut frame);
    frame
}

/// Makes the checksum of the IPv4 header right.
fn close(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let words = frame[ETHERNET_LEN..ETHERNET_LEN + 20].chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[test]
fn the_icrc_is_checked_for_the_identification_of_the_header() {
    let name = "packet::tests::the_icrc_is_checked_for_the_identification_of_the_header";
    isolated(name, SETUP, || {
        let mut right = port(RIGHT, 2);
        let wire = RawSocket::open(LEFT).unwrap();
        wire.send(&frame(0x718c, 0x718c)).unwrap();
        assert_eq!(receive(&mut right, 1).len(), 1, "{:?}", right.counters());
        // A socket, which does not see the field, takes this for a packet of identification 5.
        wire.send(&frame(0x718c, 5)).unwrap();
        wire.send(&frame(0x718c, 0x718c)).unwrap();
        assert_eq!(receive(&mut right, 1).len(), 1, "the good one");
        assert_eq!(right.counters().rx_bad_icrc, 1);
    });
}

#[test]
fn what_is_wrong_with_a_frame_is_counted_by_reason() {
    let name = "packet::tests::what_is_wrong_with_a_frame_is_counted_by_reason";
    isolated(name, SETUP, || {
        let mut right = port(RIGHT, 2);
        let wire = RawSocket::open(LEFT).unwrap();
        let good = frame(0, 0);
        let changed = |at: usize, bytes: &[u8]| {
            let mut frame = good.clone();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            close(&mut frame);
            frame
        };
        let mut wrong_sum = good.clone();
        wrong_sum[24] ^= 1;
        let tagged = [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat();
        let cases: [(&str, &str, Vec<u8>); 16] = [
            (
                "truncated",
                "rx_bad_frames",
                good[..good.len() - 8].to_vec(),
            ),
            (
                "longer than it is",
                "rx_bad_frames",
                changed(16, &[0xff, 0xff]),
            ),
            ("the sum of the IP header", "rx_bad_frames", wrong_sum),
            (
                "the sum of UDP",
                "rx_bad_frames",
                changed(40, &[0x12, 0x34]),
            ),
            (
                "the length of UDP",
                "rx_bad_frames",
                changed(38, &[0xff, 0xff]),
            ),
            ("a first fragment", "rx_fragments", changed(20, &[0x20, 0])),
            ("tagged for a VLAN", "rx_stray_frames", tagged),
            (
                "to another host",
                "rx_stray_frames",
                changed(0, &[2, 0, 0, 0, 0, 3]),
            ),
            (
                "to another address",
                "rx_stray_frames",
                changed(30, &[192, 0, 2, 3]),
            ),
            (
                "from the host itself",
                "rx_stray_frames",
                changed(26, &[192, 0, 2, 2]),
            ),
            (
                "from loopback",
                "rx_stray_frames",
                changed(26, &[127, 0, 0, 1]),
            ),
            (
                "from a group",
                "rx_stray_frames",
                changed(26, &[224, 0, 0, 1]),
            ),
            ("from everywhere", "rx_stray_frames", changed(26, &[255; 4])),
            ("from no address", "rx_stray_frames", changed(26, &[0; 4])),
            ("a damaged packet", "rx_bad_icrc", changed(60, &[8])),
            ("without an ICRC", "rx_short", {
                let mut frame = changed(16, &[0, 20 + 8 + 12]);
                frame.truncate(HEADER_LEN_V4 + 12);
                frame[38..40].copy_from_slice(&[0, 20]);
                frame
            }),
        ];
        for (what, counter, bad) in cases {
            let value = |port: &PacketPort| {
                let named: Vec<_> = port.counters().named().collect();
                named
                    .into_iter()
                    .find(|(name, _)| *name == counter)
                    .unwrap()
                    .1
            };
            let before = value(&right);
            wire.send(&bad).unwrap();
            wire.send(&good).unwrap();
            assert_eq!(receive(&mut right, 1).len(), 1, "{what}: the good one");
            assert_eq!(value(&right), before + 1, "{what}: {:?}", right.counters());
        }
        // The filter drops the rest of a fragmented datagram, and another port.
        let before = right.counters();
        wire.send(&changed(20, &[0, 1])).unwrap();
        wire.send(&changed(36, &[0x12, 0xb8])).unwrap();
        wire.send(&good).unwrap();
        assert_eq!(receive(&mut right, 1).len(), 1, "the good one");
        assert_eq!(right.counters().rx_buffers, before.rx_buffers + 1);
    });
}

#[test]
fn the_kernel_refuses_no_datagram_of_the_port() {
    let name = "packet::tests::the_kernel_refuses_no_datagram_of_the_port";
    isolated(name, SETUP, || {
        let refused = || {
            let table = std::fs::read_to_string("/proc/net/snmp").unwrap();
            let mut rows = table.lines().filter(|line| line.starts_with("Icmp:"));
            let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
            let at = names.split(' ').position(|name| name == "OutDestUnreachs");
            let value = values.split(' ').nth(at.unwrap()).unwrap();
            value.parse::<u32>().unwrap()
        };
        let wire = RawSocket::open(LEFT).unwrap();
        let before = refused();
        let mut right = port(RIGHT, 2);
        wire.send(&frame(0, 0)).unwrap();
        assert_eq!(receive(&mut right, 1).len(), 1);
        // The kernel handles frames in their order: it has handled that one once a later one, to a
        // socket, is there.
        let socket = UdpSocket::bind("192.0.2.2:4792").unwrap();
        let mut to_socket = frame(0, 0);
        to_socket[36..38].copy_from_slice(&4792_u16.to_be_bytes());
        wire.send(&to_socket).unwrap();
        socket.set_read_timeout(Some(ARRIVAL_MAX)).unwrap();
        socket.recv(&mut [0; 128]).unwrap();
        assert_eq!(refused(), before);
        drop(right);
        wire.send(&frame(0, 0)).unwrap();
        let start = Instant::now();
        while refused() == before && start.elapsed() < ARRIVAL_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(refused(), before + 1, "without the port it does");
    });
}

#[test]
fn packets_to_a_host_that_is_not_there_are_dropped_in_time() {
    let name = "packet::tests::packets_to_a_host_that_is_not_there_are_dropped_in_time";
    isolated(name, SETUP, || {
        let mut left = port(LEFT, 1);
        let mut batch = left.lend_batch(1 << 16, 64);
        add(&mut batch, "192.0.2.66", 0, 64);
        add(&mut batch, "192.0.2.77", 0, 64);
        add(&mut batch, "fd00::2", 0, 64);
        add(&mut batch, "192.0.2.2", 9, 64);
        let start = Instant::now();
        left.transmit(&mut batch).unwrap();
        let asked = Instant::now();
        while !batch.is_empty() {
            // A busy host may run this late: the first call after the time drops them, unless it is
            // so late that the neighbour is asked for again.
            let is_over = asked.elapsed() >= PATIENCE;
            left.transmit(&mut batch).unwrap();
            assert!(batch.is_empty() || !is_over || start.elapsed() >= RESOLVED_FOR);
        }
        assert!(start.elapsed() >= PATIENCE, "it is asked for");
        let counters = left.counters();
        assert_eq!((counters.tx_errors, counters.tx_unreachable), (4, 4));
        assert_eq!(counters.tx_packets, 0);
        // The next one is not waited for again.
        add(&mut batch, "192.0.2.66", 0, 64);
        left.transmit(&mut batch).unwrap();
        assert!(batch.is_empty());
    });
}

#[test]
fn a_frame_longer_than_the_interface_takes_is_counted() {
    let name = "packet::tests::a_frame_longer_than_the_interface_takes_is_counted";
    isolated(name, SETUP, || {
        let mut left = port(LEFT, 1);
        assert_eq!(left.capabilities().datagram_bytes_max, 1500 - 48);
        let mut batch = left.lend_batch(1 << 16, 64);
        add(&mut batch, "192.0.2.2", 0, 1600);
        add(&mut batch, "192.0.2.2", 0, 64);
        left.transmit(&mut batch).unwrap();
        let counters = left.counters();
        assert_eq!((counters.tx_too_big, counters.tx_packets), (1, 1));
    });
}

#[test]
fn an_address_belongs_to_one_port_and_may_change() {
    let name = "packet::tests::an_address_belongs_to_one_port_and_may_change";
    isolated(name, SETUP, || {
        let mut right = port(RIGHT, 2);
        let addresses = [Some("192.0.2.2".parse().unwrap())];
        let again = PacketPort::bind(&addresses, RIGHT, Box::new(Table));
        assert_eq!(again.err().unwrap().errno(), libc::EADDRINUSE);
        right.set_address(0, None).unwrap();
        let again = PacketPort::bind(&addresses, RIGHT, Box::new(Table)).unwrap();
        let taken = right.set_address(0, Some([192, 0, 2, 2].into()));
        assert_eq!(taken.unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        drop(again);
        right.set_address(0, Some([192, 0, 2, 2].into())).unwrap();
        let wire = RawSocket::open(LEFT).unwrap();
        wire.send(&frame(0, 0)).unwrap();
        assert_eq!(receive(&mut right, 1).len(), 1);
    });
}

#[test]
fn without_the_capability_the_error_names_it() {
    let name = "packet::tests::without_the_capability_the_error_names_it";
    isolated(name, SETUP, || {
        // linux/capability.h: version 3, this thread; no effective capabilities.
        let head = [0x2008_0522_u32, 0];
        let sets = [0_u32; 6];
        // SAFETY: the header and both sets of version 3, which the kernel reads.
        let result = unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), sets.as_ptr()) };
        assert_eq!(result, 0);
        let addresses = [Some("192.0.2.2".parse().unwrap())];
        let error = PacketPort::bind(&addresses, RIGHT, Box::new(Table));
        let error = error.err().unwrap();
        assert_eq!(error.errno(), libc::EPERM);
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
    });
}

#[test]
fn an_interface_without_ethernet_frames_is_refused() {
    let name = "packet::tests::an_interface_without_ethernet_frames_is_refused";
    isolated(name, SETUP, || {
        let addresses = [Some("127.0.0.1".parse().unwrap())];
        let error = PacketPort::bind(&addresses, 1, Box::new(Table))
            .err()
            .unwrap();
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
    });
}

#[test]
fn a_frame_comes_from_an_address_of_one_host() {
    for source in ["192.0.2.5", "fd00::5", "fe80::1"] {
        assert!(is_host(source.parse().unwrap()), "{source}");
    }
    for source in ["::", "::1", "ff02::1", "::ffff:192.0.2.5", "127.0.0.1"] {
        assert!(!is_host(source.parse().unwrap()), "{source}");
    }
}
