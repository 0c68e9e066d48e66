//! Computing and checking ICRCs while the kernel handles the IP header.
//!
//! A CRC is affine: for packets of one length between the same two ends,
//!
//! ```text
//!   ICRC(packet) = CRC-32(packet) ^ constant ^ image(congestion byte) ^ image(identification)
//! ```
//!
//! The constant covers the IP and UDP headers and the masked byte of the BTH. It is computed for
//! the first such packet and kept, so that the others cost one CRC over their own contiguous bytes.
//! The images are those of [`airdma_wire::IdSpace`]. The congestion byte has a part of the tag
//! between airdma hosts, so it changes from queue pair to queue pair.

mod sum;

use std::net::{IpAddr, Ipv6Addr};

use airdma_wire::sealed::is_sealed;
use airdma_wire::{Bth, ICRC_LEN, IdSpaces, IpPseudo};
pub use sum::CopySum;
use sum::Sum;

/// Shortest RoCEv2 datagram: a BTH and an ICRC.
pub(crate) const DATAGRAM_LEN_MIN: usize = Bth::LEN + ICRC_LEN;

/// Two ends: the part of the IP and UDP headers that the ICRC covers and that does not change from
/// packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// With identification 0.
    ip: IpPseudo,
    source_port: u16,
    destination_port: u16,
}

impl Flow {
    /// `None` when the addresses are of different families.
    pub fn new(
        source: IpAddr,
        destination: IpAddr,
        source_port: u16,
        destination_port: u16,
    ) -> Option<Self> {
        let ip = match (source, destination) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IpPseudo::V4 {
                src,
                dst,
                id: 0,
                dont_fragment: true,
            },
            (IpAddr::V6(src), IpAddr::V6(dst)) => IpPseudo::V6 { src, dst },
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        };
        Some(Flow {
            ip,
            source_port,
            destination_port,
        })
    }

    /// As [`Flow::new`], for packets with or without the don't-fragment flag, which IPv6 lacks.
    pub(crate) fn with_dont_fragment(mut self, set: bool) -> Self {
        if let IpPseudo::V4 { dont_fragment, .. } = &mut self.ip {
            *dont_fragment = set;
        }
        self
    }

    fn has_identification(&self) -> bool {
        match self.ip {
            IpPseudo::V4 { .. } => true,
            IpPseudo::V6 { .. } => false,
        }
    }

    /// ICRC of the packet `bytes` (BTH to pad) sent with identification 0, the slow way.
    fn icrc(&self, bytes: &[u8]) -> u32 {
        airdma_wire::icrc(&self.ip, self.source_port, self.destination_port, bytes)
    }

    /// A number that tells the flows of one port apart well enough to spread them over the cache.
    fn hash(&self) -> usize {
        let (src, dst) = match self.ip {
            IpPseudo::V4 { src, dst, .. } => (src.octets()[3], dst.octets()[3]),
            IpPseudo::V6 { src, dst } => (src.octets()[15], dst.octets()[15]),
        };
        usize::from(src) ^ usize::from(dst).rotate_left(2) ^ usize::from(self.source_port)
    }
}

/// Computes and checks ICRCs. Remembers the constants of recent flows and lengths, and the images
/// of identifications by length; the latter are allocated when a length first occurs.
pub struct IcrcCache {
    /// What was used last.
    last: Last,
    lines: [Option<Line>; LINES],
    spaces: IdSpaces,
    sum: Sum,
}

#[derive(Clone, Copy)]
struct Line {
    flow: Flow,
    len: usize,
    /// For packets whose congestion byte is 0.
    constant: u32,
}

/// A line with a congestion byte.
struct Last {
    line: Line,
    congestion: u8,
    /// The constant of the line and the image of the byte.
    constant: u32,
}

/// Some peers times the few lengths that RDMA traffic has: first, middle, acknowledgement. A power
/// of two.
const LINES: usize = 64;

/// Byte of the BTH that the ICRC sees as all ones: FECN, BECN, reserved.
pub(crate) const CONGESTION_AT: usize = 4;

impl IcrcCache {
    /// For packets of at most `len_max` bytes, BTH to pad.
    pub fn new(len_max: usize) -> Self {
        let unspecified = IpPseudo::V6 {
            src: Ipv6Addr::UNSPECIFIED,
            dst: Ipv6Addr::UNSPECIFIED,
        };
        IcrcCache {
            last: Last {
                // No packet has that length.
                line: Line {
                    flow: Flow {
                        ip: unspecified,
                        source_port: 0,
                        destination_port: 0,
                    },
                    len: 0,
                    constant: 0,
                },
                congestion: 0,
                constant: 0,
            },
            lines: [None; LINES],
            spaces: IdSpaces::new(len_max),
            sum: Sum::new(),
        }
    }

    /// ICRC of the packet `bytes` (BTH to pad) sent with IP identification `id`, which IPv6 does
    /// not have.
    #[inline(always)]
    pub fn icrc(&mut self, flow: &Flow, id: u16, bytes: &[u8]) -> u32 {
        self.icrc_without_id(flow, bytes) ^ self.image(flow, id, bytes.len())
    }

    /// Checks the ICRC at the end of `datagram`, and cuts it off.
    ///
    /// `id` is the IP identification the packet should have had. If the ICRC is wrong for it, any
    /// other that makes it right will do (IPv4; see [`crate::udp`]). That of a sealed packet is not
    /// checked: its tag is, by the queue pair that has the key.
    pub fn check<'a>(&mut self, flow: &Flow, id: u16, datagram: &'a [u8]) -> Checked<'a> {
        if datagram.len() < DATAGRAM_LEN_MIN {
            return Checked::Short;
        }
        let Some((bytes, trailer)) = datagram.split_last_chunk::<ICRC_LEN>() else {
            return Checked::Short;
        };
        if is_sealed(bytes) {
            return Checked::Good(bytes);
        }
        let difference = u32::from_le_bytes(*trailer) ^ self.icrc_without_id(flow, bytes);
        if difference == self.image(flow, id, bytes.len()) {
            return Checked::Good(bytes);
        }
        let explained =
            flow.has_identification() && self.spaces.recover(bytes.len(), difference).is_some();
        if explained {
            Checked::Recovered(bytes)
        } else {
            Checked::Bad
        }
    }

    /// As [`icrc`](Self::icrc), of a packet whose sum is known.
    #[inline(always)]
    pub(crate) fn icrc_summed(&mut self, flow: &Flow, id: u16, bytes: &[u8], sum: u32) -> u32 {
        self.summed_without_id(flow, bytes, sum) ^ self.image(flow, id, bytes.len())
    }

    #[inline(always)] // a call for each packet is 3 % of its instructions
    fn icrc_without_id(&mut self, flow: &Flow, bytes: &[u8]) -> u32 {
        let sum = self.sum.of(bytes);
        self.summed_without_id(flow, bytes, sum)
    }

    #[inline(always)] // as above
    fn summed_without_id(&mut self, flow: &Flow, bytes: &[u8], sum: u32) -> u32 {
        let Some(&congestion) = bytes.get(CONGESTION_AT) else {
            return flow.icrc(bytes);
        };
        // Usually the same as for the packet before.
        if self.last.line.len != bytes.len()
            || self.last.congestion != congestion
            || self.last.line.flow != *flow
        {
            let Some(last) = self.find(flow, congestion, bytes, sum) else {
                return flow.icrc(bytes);
            };
            self.last = last;
        }
        sum ^ self.last.constant
    }

    /// The constant for packets such as `bytes`, whose sum is known. `None` for a length that no
    /// packet has.
    #[inline(always)]
    fn find(&mut self, flow: &Flow, congestion: u8, bytes: &[u8], sum: u32) -> Option<Last> {
        let len = bytes.len();
        let space = self.spaces.for_transport_len(len)?;
        let image = space.congestion_image(congestion);
        let line = &mut self.lines[(len / 4 + flow.hash()) % LINES];
        let line = match line {
            Some(line) if line.len == len && line.flow == *flow => *line,
            Some(_) | None => *line.insert(Line {
                flow: *flow,
                len,
                constant: flow.icrc(bytes) ^ sum ^ image,
            }),
        };
        Some(Last {
            line,
            congestion,
            constant: line.constant ^ image,
        })
    }

    /// How identification `id` changes the ICRC of a packet of `len` bytes.
    #[inline(always)] // as above
    fn image(&mut self, flow: &Flow, id: u16, len: usize) -> u32 {
        if id == 0 || !flow.has_identification() {
            return 0;
        }
        // A length without a space is no multiple of 4, and no length of a RoCEv2 packet: whatever
        // its ICRC is, it counts as damaged.
        match self.spaces.for_transport_len(len) {
            Some(space) => space.image(id),
            None => 0,
        }
    }
}

/// Result of checking an ICRC; the bytes are BTH to pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked<'a> {
    /// Right for the expected IP identification.
    Good(&'a [u8]),
    /// Right for another identification.
    Recovered(&'a [u8]),
    /// Wrong for all identifications.
    Bad,
    /// Too short to be a packet.
    Short,
}

#[cfg(test)]
mod tests {
    use airdma_wire::IdSpace;
    use airdma_wire::sealed::SEALED_OPCODE;

    use super::*;

    fn flow(source: &str, destination: &str, source_port: u16) -> Flow {
        let parse = |text: &str| text.parse().expect("an address");
        Flow::new(parse(source), parse(destination), source_port, 4791).expect("one family")
    }

    fn packet(len: usize, congestion: u8, seed: u8) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len)
            .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
            .collect();
        bytes[CONGESTION_AT] = congestion;
        bytes
    }

    /// What `wire` says of the packet, with the identification in the header.
    fn reference(flow: &Flow, id: u16, bytes: &[u8]) -> u32 {
        let mut ip = flow.ip;
        if let IpPseudo::V4 { id: field, .. } = &mut ip {
            *field = id;
        }
        airdma_wire::icrc(&ip, flow.source_port, flow.destination_port, bytes)
    }

    #[test]
    fn the_short_cut_gives_what_the_definition_gives() {
        // Some share a cache line, and drive each other out of it.
        let flows = [
            flow("10.0.0.1", "10.0.0.2", 4791),
            flow("10.9.0.1", "10.8.0.2", 4791),
            flow("10.0.0.2", "10.0.0.1", 4791),
            flow("10.0.0.1", "10.0.0.2", 0xc123),
            flow("fe80::1", "fe80::2", 4791),
        ];
        let lens = [12, 16, 28, 1036, 1052, 4108];
        let ids = [0, 1, 63, 0x718c, 0xffff];
        let congestions = [0x00, 0x40, 0x2b, 0xff];
        let mut cache = IcrcCache::new(65_536);
        let mut state = 1_u32;
        let mut throw = |sides: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % sides
        };
        for round in 0..5_000 {
            let flow = flows[throw(flows.len())];
            let id = ids[throw(ids.len())];
            let congestion = congestions[throw(congestions.len())];
            let bytes = packet(lens[throw(lens.len())], congestion, throw(256) as u8);
            assert_eq!(
                cache.icrc(&flow, id, &bytes),
                reference(&flow, id, &bytes),
                "round {round}: {flow:?}, identification {id}, {} bytes",
                bytes.len()
            );
        }
    }

    #[test]
    fn packets_of_other_queue_pairs_cost_no_second_sum() {
        let flow = flow("10.0.0.1", "10.0.0.2", 4791);
        let mut cache = IcrcCache::new(65_536);
        cache.icrc(&flow, 0, &packet(1036, 0, 1));
        // What is computed from it shows.
        for line in cache.lines.iter_mut().flatten() {
            line.constant ^= 5;
        }
        for congestion in 1..=u8::MAX {
            let bytes = packet(1036, congestion, 1);
            assert_eq!(
                cache.icrc(&flow, 0, &bytes),
                reference(&flow, 0, &bytes) ^ 5
            );
        }
    }

    #[test]
    fn another_identification_is_recovered() {
        let flow = flow("10.0.0.1", "10.0.0.2", 4791);
        let mut cache = IcrcCache::new(65_536);
        let bytes = packet(1036, 0, 1);
        let mut datagram = bytes.clone();
        datagram.extend(reference(&flow, 0x718c, &bytes).to_le_bytes());
        assert_eq!(
            cache.check(&flow, 0x718c, &datagram),
            Checked::Good(&bytes[..])
        );
        assert_eq!(
            cache.check(&flow, 5, &datagram),
            Checked::Recovered(&bytes[..])
        );
    }

    #[test]
    fn the_icrc_of_a_sealed_packet_is_not_looked_at() {
        let flow = flow("10.0.0.1", "10.0.0.2", 4791);
        let mut cache = IcrcCache::new(65_536);
        let mut bytes = packet(1036, 0, 1);
        for (opcode, sealed) in [(SEALED_OPCODE, true), (SEALED_OPCODE ^ 1, false)] {
            bytes[0] = opcode;
            for icrc in [[0; ICRC_LEN], [7; ICRC_LEN]] {
                let datagram = [&bytes[..], &icrc].concat();
                let checked = cache.check(&flow, 0, &datagram);
                assert_eq!(checked == Checked::Good(&bytes[..]), sealed);
            }
        }
        let short = [SEALED_OPCODE; DATAGRAM_LEN_MIN - 1];
        assert_eq!(cache.check(&flow, 0, &short), Checked::Short);
    }

    #[test]
    fn no_identification_excuses_a_wrong_icrc_over_ipv6() {
        let flow = flow("fe80::1", "fe80::2", 4791);
        let mut cache = IcrcCache::new(65_536);
        let bytes = packet(1036, 0, 1);
        let image = IdSpace::for_transport_len(1036).image(5);
        let mut datagram = bytes.clone();
        datagram.extend((reference(&flow, 0, &bytes) ^ image).to_le_bytes());
        assert_eq!(cache.check(&flow, 5, &datagram), Checked::Bad);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        for flow in [
            flow("10.0.0.1", "10.0.0.2", 4791),
            flow("fe80::1", "fe80::2", 4791),
        ] {
            let mut cache = IcrcCache::new(65_536);
            let bytes = packet(60, 0, 1);
            let mut datagram = bytes.clone();
            datagram.extend(reference(&flow, 3, &bytes).to_le_bytes());
            for bit in 0..datagram.len() * 8 {
                datagram[bit / 8] ^= 1 << (bit % 8);
                let expected = if bit / 8 == CONGESTION_AT {
                    // Routers may change it: not covered.
                    Checked::Good(&datagram[..60])
                } else {
                    Checked::Bad
                };
                assert_eq!(cache.check(&flow, 3, &datagram), expected, "bit {bit}");
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_datagram_too_short_for_a_packet_or_of_odd_length_is_none() {
        let flow = flow("10.0.0.1", "10.0.0.2", 4791);
        let mut cache = IcrcCache::new(65_536);
        for len in 0..64 {
            let expected = if len < 16 {
                Checked::Short
            } else {
                Checked::Bad
            };
            assert_eq!(cache.check(&flow, 0, &vec![0x3c; len]), expected, "{len}");
        }
    }
}
