//! Classification of frames.

use airdma_wire::ROCE_PORT;
use airdma_wire::ip::{IPV6_LEN, PROTOCOL_UDP};

/// Length of a VLAN tag.
pub const TAG_LEN: usize = 4;

const ETHERTYPE_AT: usize = 12;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// EtherTypes of VLAN tags: 802.1Q and 802.1ad.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Most tags on one frame.
const TAGS_MAX: usize = 2;

/// What the box does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// RoCEv2: waits in the queue.
    Roce,
    /// Anything else: precedes the queue.
    Other,
    /// For the link partner only (IEEE 802.1Q 8.6.3), such as pause frames: not forwarded.
    OfTheCable,
}

impl Class {
    /// Classifies a frame, from its destination address on. A frame that is too short is
    /// [`Class::Other`].
    pub fn of(frame: &[u8]) -> Class {
        if let [0x01, 0x80, 0xc2, 0, 0, last, ..] = frame
            && *last < 0x10
        {
            return Class::OfTheCable;
        }
        match udp_destination(frame) {
            Some(ROCE_PORT) => Class::Roce,
            _ => Class::Other,
        }
    }
}

/// Destination port of a UDP packet; `None` for a fragment.
fn udp_destination(frame: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let mut at = ETHERTYPE_AT;
    for _ in 0..TAGS_MAX {
        if TAGS.contains(&word(at)?) {
            at += TAG_LEN;
        }
    }
    let kind = word(at)?;
    let ip = frame.get(at + 2..)?;
    let header_len = match (kind, *ip.first()?) {
        (IPV4, first) if first >> 4 == 4 => {
            const MORE_FRAGMENTS_AND_OFFSET: u8 = 0x3f;
            let is_whole = ip.get(6)? & MORE_FRAGMENTS_AND_OFFSET == 0 && *ip.get(7)? == 0;
            let is_udp = *ip.get(9)? == PROTOCOL_UDP;
            (is_whole && is_udp).then_some(usize::from(first & 0xf) * 4)?
        }
        (IPV6, first) if first >> 4 == 6 => (*ip.get(6)? == PROTOCOL_UDP).then_some(IPV6_LEN)?,
        _ => return None,
    };
    word(at + 2 + header_len + 2)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

    fn frame(tags: &[[u8; 4]], ip: &[u8]) -> Vec<u8> {
        let kind = if ip[0] >> 4 == 4 { IPV4 } else { IPV6 };
        [&ADDRESSES[..], tags.as_flattened(), &kind.to_be_bytes(), ip].concat()
    }

    fn ipv4(options: usize, protocol: u8, port: u16) -> Vec<u8> {
        let mut ip = vec![0; 20 + 4 * options];
        ip[0] = 0x45 + options as u8;
        ip[6] = 0x40;
        ip[9] = protocol;
        ip.extend([0xc0, 0]);
        ip.extend(port.to_be_bytes());
        ip.extend([0; 4]);
        ip
    }

    fn ipv6(next: u8, port: u16) -> Vec<u8> {
        let mut ip = vec![0; 40];
        (ip[0], ip[6]) = (0x60, next);
        ip.extend([0xc0, 0]);
        ip.extend(port.to_be_bytes());
        ip.extend([0; 4]);
        ip
    }

    #[test]
    fn roce_is_known_on_both_families_with_tags_and_options() {
        let vlan = [0x81, 0, 0x60, 5];
        let outer = [0x88, 0xa8, 0, 7];
        let all = [
            frame(&[], &ipv4(0, 17, 4791)),
            frame(&[], &ipv4(3, 17, 4791)),
            frame(&[vlan], &ipv4(0, 17, 4791)),
            frame(&[outer, vlan], &ipv6(17, 4791)),
            frame(&[], &ipv6(17, 4791)),
        ];
        for frame in all {
            assert_eq!(Class::of(&frame), Class::Roce, "{frame:02x?}");
            for len in 0..frame.len() - 4 {
                let class = Class::of(&frame[..len]);
                assert_eq!(class, Class::Other, "{len} bytes of {frame:02x?}");
            }
        }
    }

    #[test]
    fn all_else_goes_first() {
        let mut fragment = ipv4(0, 17, 4791);
        fragment[7] = 1;
        let mut first_fragment = ipv4(0, 17, 4791);
        first_fragment[6] = 0x20;
        let others = [
            ipv4(0, 17, 4792),
            ipv4(0, 6, 4791),
            ipv6(6, 4791),
            ipv6(17, 53),
            fragment,
            first_fragment,
        ];
        for ip in others {
            assert_eq!(Class::of(&frame(&[], &ip)), Class::Other, "{ip:02x?}");
        }
        let arp = [&[0xff; 6][..], &ADDRESSES[6..], &[0x08, 0x06], &[0; 28]].concat();
        assert_eq!(Class::of(&arp), Class::Other);
    }

    #[test]
    fn what_is_for_the_cable_goes_no_further() {
        let all = [
            (0x00, Class::OfTheCable),
            (0x01, Class::OfTheCable),
            (0x0e, Class::OfTheCable),
            (0x10, Class::Roce),
        ];
        for (last, class) in all {
            let mut frame = frame(&[], &ipv4(0, 17, 4791));
            frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, last]);
            assert_eq!(Class::of(&frame), class, "{last:#x}");
        }
    }
}
