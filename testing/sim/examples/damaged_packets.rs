//! Packets with random damage, one a line, and what the IP layer of a simulated host accepts of
//! them, for a comparison with a kernel (`tests/system/ip_layer.py`).
//!
//! `damaged_packets SOURCE DESTINATION COUNT` prints lines of the whole IP packet in hex and, if it
//! was not refused, source address, source port and payload. The first packet is not damaged.

use std::io::{self, Write};
use std::net::IpAddr;

use airdma_sim::{Frame, Link, Network, Random};
use airdma_transport::{Arrival, Time};

/// Bytes from BTH to padding. With 52, a single flip makes the UDP length zero.
const LENS: [usize; 4] = [52, 52, 20, 116];

/// The header of a capture file, and the one of each packet in it.
const CAPTURE_HEADERS: [usize; 2] = [24, 16];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, destination, count] = arguments.as_slice() else {
        return Err(invalid("damaged_packets SOURCE DESTINATION COUNT"));
    };
    let addresses = [address(source)?, address(destination)?];
    let count = count.parse().map_err(|_| invalid("COUNT is a number"))?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    print(&mut out, addresses, 1, Link::new(), false)?;
    for checksums in [false, true] {
        let bad = Link::new().corrupt_any(0.97).truncate(0.05);
        print(&mut out, addresses, count, bad, checksums)?;
    }
    out.flush()
}

fn print(
    out: &mut impl Write,
    addresses: [IpAddr; 2],
    count: u64,
    link: Link,
    checksums: bool,
) -> io::Result<()> {
    let mut network = Network::pair(5, link, Link::new()).with_addresses(addresses.to_vec());
    if checksums {
        network = network.with_udp_checksums();
    }
    network.capture_at(1);
    let mut random = Random::new(count);
    let mut end = CAPTURE_HEADERS[0];
    for number in 0..count {
        let arrival = Arrival {
            source: addresses[0].into(),
            destination: addresses[1].into(),
            tos: 2,
            ttl: 64,
            flow_label: 0,
        };
        let transport = random.bytes(random.clone().pick(&LENS));
        network.send(
            Time::from_nanos(number),
            0,
            Frame::seal(&arrival, &transport),
        );
        let mut received = None;
        network.deliver(Time::from_nanos(number), &mut |delivery| {
            received = Some(delivery.frame);
        });
        let capture = network.captured_at(1);
        let packet = &capture[end + CAPTURE_HEADERS[1]..];
        end = capture.len();
        // A packet of nothing cannot be sent.
        if packet.is_empty() {
            continue;
        }
        match received {
            None => writeln!(out, "{}", hex(packet))?,
            Some(frame) => writeln!(
                out,
                "{} {} {} {}",
                hex(packet),
                frame.source,
                frame.source_port,
                hex(&frame.bytes)
            )?,
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn address(text: &str) -> io::Result<IpAddr> {
    text.parse()
        .map_err(|_| invalid("SOURCE and DESTINATION are IP addresses"))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
