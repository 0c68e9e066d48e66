//! The ICRC: three ways to compute it and two to check it agree with a slow one that is all its
//! own; every covered bit counts, no masked bit does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_port::icrc::{Checked, Flow, IcrcCache};
use airdma_wire::sealed::is_sealed;
use airdma_wire::{IdSpace, IdSpaces, IpPseudo, icrc, icrc_of_ip_packet};

use crate::input::Input;

/// Longest packet here: a path MTU and headers.
const TRANSPORT_LEN_MAX: usize = 4096 + 56;

/// Checks several packets with one cache, as they arrive at one port.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut cache = IcrcCache::new(TRANSPORT_LEN_MAX);
    let mut spaces = IdSpaces::new(TRANSPORT_LEN_MAX);
    for _ in 0..8 {
        let packet = IpPacket::decode(&mut input);
        packet.check_definition(&mut input);
        packet.check_identification(&mut spaces, input.u16());
        packet.check_port(&mut cache, &mut input);
        if input.is_empty() {
            break;
        }
    }
    // Whatever bytes a capture holds.
    let _ = icrc_of_ip_packet(input.rest());
    let _ = icrc_of_ip_packet(data);
}

struct IpPacket {
    ip: IpPseudo,
    source_port: u16,
    destination_port: u16,
    /// From the IP header to the last pad byte.
    bytes: Vec<u8>,
    transport_at: usize,
}

impl IpPacket {
    fn decode(input: &mut Input<'_>) -> Self {
        let words = match input.below(8) {
            0..=4 => 3 + input.below(64),
            5 => 3 + input.below(16),
            6 => 3 + 256 + input.below(2),
            _ => TRANSPORT_LEN_MAX / 4,
        };
        let mut transport = input.take(words).to_vec();
        let fill = input.byte();
        transport.resize(4 * words, fill);
        let (source_port, destination_port) = (input.u16(), input.pick(&[4791u16, 0, 0xffff]));
        // Two peers, so that flows share what the cache remembers.
        let host = input.pick(&[1, 2]);
        // What changes on the way.
        let [traffic_class, ttl, check_a, check_b, flow_a, flow_b] = input.bytes();
        let udp_len = 8 + transport.len() + 4;
        let mut bytes = Vec::new();
        let ip = if input.one_in(3) {
            let (src, dst) = (Ipv6Addr::from(host), Ipv6Addr::from(0xfe80 << 112 | 5));
            bytes.extend([
                0x60 | traffic_class >> 4,
                traffic_class << 4 | flow_a >> 4,
                flow_a,
                flow_b,
            ]);
            bytes.extend(length_field(udp_len));
            bytes.extend([17, ttl]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            IpPseudo::V6 { src, dst }
        } else {
            let (src, dst) = (
                Ipv4Addr::from(0x0a00_0000 + host as u32),
                Ipv4Addr::new(10, 1, 0, 9),
            );
            let (id, dont_fragment) = (input.u16(), !input.one_in(4));
            bytes.extend([0x45, traffic_class]);
            bytes.extend(length_field(20 + udp_len));
            bytes.extend(id.to_be_bytes());
            bytes.extend([u8::from(dont_fragment) << 6, 0, ttl, 17, check_a, check_b]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            IpPseudo::V4 {
                src,
                dst,
                id,
                dont_fragment,
            }
        };
        bytes.extend(source_port.to_be_bytes());
        bytes.extend(destination_port.to_be_bytes());
        bytes.extend(length_field(udp_len));
        bytes.extend([check_b, check_a]);
        let transport_at = bytes.len();
        bytes.extend(transport);
        IpPacket {
            ip,
            source_port,
            destination_port,
            bytes,
            transport_at,
        }
    }

    fn transport(&self) -> &[u8] {
        &self.bytes[self.transport_at..]
    }

    fn icrc(&self, ip: &IpPseudo) -> u32 {
        icrc(
            ip,
            self.source_port,
            self.destination_port,
            self.transport(),
        )
    }

    /// `wire` against the definition, and what one flipped bit does to both.
    fn check_definition(&self, input: &mut Input<'_>) {
        let sum = reference(&self.bytes);
        assert_eq!(self.icrc(&self.ip), sum);
        assert_eq!(icrc_of_ip_packet(&self.bytes), Some(sum));

        let bit = usize::from(input.u16()) % (8 * self.bytes.len());
        let mut flipped = self.bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if is_masked(&self.bytes, bit) {
            assert_eq!(
                icrc_of_ip_packet(&flipped),
                Some(sum),
                "bit {bit} is masked"
            );
        } else {
            // Version, header length and protocol say what the header is at all.
            assert_ne!(
                icrc_of_ip_packet(&flipped),
                Some(sum),
                "bit {bit} is covered"
            );
        }
    }

    /// Checks the effect of the identification on the ICRC, and that it is found again.
    fn check_identification(&self, spaces: &mut IdSpaces, noise: u16) {
        let IpPseudo::V4 {
            src,
            dst,
            id,
            dont_fragment,
        } = self.ip
        else {
            return;
        };
        let len = self.transport().len();
        let zero = self.icrc(&IpPseudo::V4 {
            src,
            dst,
            id: 0,
            dont_fragment,
        });
        let difference = zero ^ self.icrc(&self.ip);
        let space = *spaces.for_transport_len(len).expect("a length of packets");
        assert_eq!(space.image(id), difference);
        assert_eq!(spaces.recover(len, difference), Some(id));
        let other = difference ^ u32::from(noise) << (noise % 17);
        if let Some(found) = spaces.recover(len, other) {
            assert_eq!(space.image(found), other);
        }
        // An identification two bytes further ahead is a polynomial of degree 16 to 31 here, even
        // one of a single bit.
        for id in [noise | 1, 1 << (noise % 16)] {
            let ahead = IdSpace::for_transport_len(len + 2).image(id);
            assert_eq!(spaces.recover(len, ahead), None);
        }
        assert!(spaces.for_transport_len(len + 1).is_none());
        assert!(spaces.for_transport_len(TRANSPORT_LEN_MAX + 4).is_none());
    }

    /// The port's short cut, and its check of what arrived.
    fn check_port(&self, cache: &mut IcrcCache, input: &mut Input<'_>) {
        let (source, destination): (IpAddr, IpAddr) = match self.ip {
            IpPseudo::V4 { src, dst, .. } => (src.into(), dst.into()),
            IpPseudo::V6 { src, dst } => (src.into(), dst.into()),
        };
        let flow = Flow::new(source, destination, self.source_port, self.destination_port);
        let flow = flow.expect("one family");
        // The port's packets all have DF set.
        let (id, ip) = match self.ip {
            IpPseudo::V4 { src, dst, id, .. } => (
                id,
                IpPseudo::V4 {
                    src,
                    dst,
                    id,
                    dont_fragment: true,
                },
            ),
            IpPseudo::V6 { .. } => (0, self.ip),
        };
        let sum = self.icrc(&ip);
        assert_eq!(cache.icrc(&flow, id, self.transport()), sum);

        let mut datagram = self.transport().to_vec();
        datagram.extend(sum.to_le_bytes());
        assert_eq!(
            cache.check(&flow, id, &datagram),
            Checked::Good(self.transport())
        );
        // The tag of a sealed packet covers what the ICRC does, so that is not looked at.
        let expected = if source.is_ipv4() && !is_sealed(self.transport()) {
            Checked::Recovered(self.transport())
        } else {
            Checked::Good(self.transport())
        };
        assert_eq!(cache.check(&flow, id ^ 0x0101, &datagram), expected);

        let bit = usize::from(input.u16()) % (8 * datagram.len());
        datagram[bit / 8] ^= 1 << (bit % 8);
        let found = cache.check(&flow, id, &datagram);
        if is_sealed(&datagram) || bit / 8 == 4 {
            assert_eq!(found, Checked::Good(&datagram[..datagram.len() - 4]));
        } else {
            assert_eq!(found, Checked::Bad, "bit {bit} was flipped");
        }
        // Cut anywhere, it is short or damaged, but nothing is read beyond it.
        datagram[bit / 8] ^= 1 << (bit % 8);
        datagram.truncate(usize::from(input.u16()) % datagram.len());
        let cut = cache.check(&flow, id, &datagram);
        assert_eq!(cut == Checked::Short, datagram.len() < 16);
    }
}

fn length_field(len: usize) -> [u8; 2] {
    u16::try_from(len)
        .expect("a packet is shorter than 64 KiB")
        .to_be_bytes()
}

/// Whether the ICRC sees all ones instead of this bit of an IP packet (IBTA 7.8.1 and A17.3.3).
fn is_masked(ip_packet: &[u8], bit: usize) -> bool {
    let (byte, high) = (bit / 8, bit % 8 >= 4);
    let v4 = ip_packet[0] >> 4 == 4;
    let udp = if v4 { 20 } else { 40 };
    let ip = match (v4, byte) {
        (true, 1 | 8 | 10 | 11) => true,
        (false, 0) => !high,
        (false, 1..=3 | 7) => true,
        (_, _) => false,
    };
    ip || (udp + 6..udp + 8).contains(&byte) || byte == udp + 8 + 4
}

/// The definition, bit by bit: CRC-32 over eight bytes of ones and the packet, masked bits replaced
/// by ones.
fn reference(ip_packet: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    let mut shift_in = |bit: bool| {
        let top = (crc & 1 != 0) != bit;
        crc = if top {
            crc >> 1 ^ 0xedb8_8320
        } else {
            crc >> 1
        };
    };
    for _ in 0..64 {
        shift_in(true);
    }
    for bit in 0..8 * ip_packet.len() {
        shift_in(is_masked(ip_packet, bit) || ip_packet[bit / 8] >> (bit % 8) & 1 != 0);
    }
    !crc
}
