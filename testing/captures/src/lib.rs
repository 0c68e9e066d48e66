//! Packets of other implementations, and the requests of their programs: parses the files of
//! `vectors` for tests, with as little help from the crates under test as possible. See
//! `vectors/README.md`.
//!
//! All functions panic on an invalid file.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // for tests alone

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use airdma_wire::{IpPseudo, ROCE_PORT};
use serde_json::Value;

/// Every capture, and the number of RoCEv2 packets in it. An independent decoder counted the same.
pub const CAPTURES: [(&str, usize); 35] = [
    ("rxe-6.1/cm_cmtime", 10),
    ("rxe-6.1/cm_reject", 2),
    ("rxe-6.1/cm_rping", 29),
    ("rxe-6.1/cm_rping_v6", 29),
    ("rxe-6.1/cm_ucmatose", 26),
    ("rxe-6.1/cm_udaddy", 6),
    ("rxe-6.1/rc_atomic", 8),
    ("rxe-6.1/rc_bidir", 24),
    ("rxe-6.1/rc_dscp", 4),
    ("rxe-6.1/rc_ecn", 12),
    ("rxe-6.1/rc_ipv6", 18),
    ("rxe-6.1/rc_loss", 54),
    ("rxe-6.1/rc_mtu256", 15),
    ("rxe-6.1/rc_mtu4096", 10),
    ("rxe-6.1/rc_nak_access_read", 2),
    ("rxe-6.1/rc_nak_access_write", 2),
    ("rxe-6.1/rc_nak_recv_too_short", 2),
    ("rxe-6.1/rc_pipeline", 60),
    ("rxe-6.1/rc_read", 18),
    ("rxe-6.1/rc_rnr", 6),
    ("rxe-6.1/rc_rnr_exceeded", 6),
    ("rxe-6.1/rc_send", 23),
    ("rxe-6.1/rc_send_imm", 10),
    ("rxe-6.1/rc_write", 12),
    ("rxe-6.1/rc_write_imm", 10),
    ("rxe-6.1/uc", 12),
    ("rxe-6.1/ud", 4),
    ("rxe-6.1/ud_ipv6", 4),
    ("tap-cmreq", 3),
    ("tap-rc-connected", 30),
    ("tap-rc-df", 215),
    ("tap-rc-plain", 30),
    ("tap-rc-v6", 80),
    ("tap-rc-wrongid", 30),
    ("two-vm-rping", 82),
];

/// Captures with packets whose ICRC does not fit the IP header they travelled with.
pub const NEGATIVE: [&str; 3] = ["tap-rc-connected", "tap-rc-plain", "tap-rc-wrongid"];

/// Sender of exactly the packets with a wrong ICRC in the [`NEGATIVE`] captures.
pub const NEGATIVE_SENDER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

/// A captured RoCEv2 packet.
pub struct Captured {
    /// Time since the first frame of the capture.
    pub at: Duration,
    /// From the IP header to the last pad byte.
    pub ip_packet: Vec<u8>,
    /// Offset of the BTH.
    pub transport_at: usize,
    /// Fields of the IP header that the ICRC covers.
    pub ip: IpPseudo,
    /// UDP source port.
    pub source_port: u16,
    /// Its last four bytes.
    pub icrc: u32,
}

impl Captured {
    /// BTH to pad.
    pub fn transport(&self) -> &[u8] {
        &self.ip_packet[self.transport_at..]
    }

    /// Sender's address.
    pub fn source(&self) -> IpAddr {
        match self.ip {
            IpPseudo::V4 { src, .. } => src.into(),
            IpPseudo::V6 { src, .. } => src.into(),
        }
    }

    /// Receiver's address.
    pub fn destination(&self) -> IpAddr {
        match self.ip {
            IpPseudo::V4 { dst, .. } => dst.into(),
            IpPseudo::V6 { dst, .. } => dst.into(),
        }
    }

    /// The IPv4 identification on the wire.
    pub fn id(&self) -> Option<u16> {
        match self.ip {
            IpPseudo::V4 { id, .. } => Some(id),
            IpPseudo::V6 { .. } => None,
        }
    }

    /// The IP fields for a receiver that does not know the identification.
    pub fn ip_with_id_0(&self) -> IpPseudo {
        match self.ip {
            IpPseudo::V4 {
                src,
                dst,
                id: _,
                dont_fragment,
            } => IpPseudo::V4 {
                src,
                dst,
                id: 0,
                dont_fragment,
            },
            v6 @ IpPseudo::V6 { .. } => v6,
        }
    }
}

/// The folder of the files.
pub fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// Requests of a capture's programs, and their completions: the file beside it.
pub fn record(name: &str) -> Value {
    let file = fs::read_to_string(vectors().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&file).unwrap()
}

/// The RoCEv2 packets of a capture, in order. Panics if their number is not the expected one.
pub fn packets(name: &str) -> Vec<Captured> {
    let (_, expected) = CAPTURES.iter().find(|(listed, _)| *listed == name).unwrap();
    let file = fs::read(vectors().join(format!("{name}.pcap"))).unwrap();
    let packets: Vec<_> = frames(&file)
        .iter()
        .filter_map(|(at, frame)| roce(*at, frame))
        .collect();
    assert_eq!(packets.len(), *expected, "RoCEv2 packets in {name}");
    packets
}

/// All packets of all captures with the name of their capture.
pub fn all_packets() -> impl Iterator<Item = (&'static str, Captured)> {
    CAPTURES
        .into_iter()
        .flat_map(|(name, _)| packets(name).into_iter().map(move |packet| (name, packet)))
}

/// The Ethernet frames of a pcap file with little-endian headers, with their times since the first.
fn frames(file: &[u8]) -> Vec<(Duration, &[u8])> {
    const LINK_TYPE_ETHERNET: u32 = 1;
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "pcap with microseconds");
    assert_eq!(word(20), LINK_TYPE_ETHERNET);

    let moment = |at: usize| {
        Duration::from_secs(word(at).into()) + Duration::from_micros(word(at + 4).into())
    };

    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let (captured_len, wire_len) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured_len, wire_len, "no frame is cut");
        let since_first = moment(at) - moment(24);
        frames.push((since_first, &file[at + 16..at + 16 + captured_len]));
        at += 16 + captured_len;
    }
    assert_eq!(at, file.len());
    frames
}

/// The RoCEv2 packet in a frame, if there is one.
fn roce(at: Duration, frame: &[u8]) -> Option<Captured> {
    let be16 = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let bytes = &frame[14..];
    let (udp_at, len, protocol, ip) = match be16(frame, 12) {
        0x0800 => {
            let address =
                |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap());
            let ip = IpPseudo::V4 {
                src: address(12),
                dst: address(16),
                id: be16(bytes, 4),
                dont_fragment: bytes[6] & 0x40 != 0,
            };
            (20, usize::from(be16(bytes, 2)), bytes[9], ip)
        }
        0x86dd => {
            let address =
                |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap());
            let ip = IpPseudo::V6 {
                src: address(8),
                dst: address(24),
            };
            (40, 40 + usize::from(be16(bytes, 4)), bytes[6], ip)
        }
        _ => return None,
    };
    if protocol != 17 || be16(bytes, udp_at + 2) != ROCE_PORT {
        return None;
    }
    assert_eq!(usize::from(be16(bytes, udp_at + 4)), len - udp_at);
    let (ip_packet, icrc) = bytes[..len].split_last_chunk().unwrap();
    Some(Captured {
        at,
        ip_packet: ip_packet.to_vec(),
        transport_at: udp_at + 8,
        ip,
        source_port: be16(bytes, udp_at),
        icrc: u32::from_le_bytes(*icrc),
    })
}
