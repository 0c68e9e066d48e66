//! The child process of the self-test, and its report.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use super::loopback;
use super::raw::{RawSocket, Seen};
use crate::{BindError, Destination, Port, TransmitBatch, UdpConfig, UdpPort};

/// Everything the parent learns. Zero bytes mean that the child died before it could say anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) stage: Stage,
    /// Why it ended before [`Stage::Done`].
    pub(super) errno: i32,
    pub(super) isolated: bool,
    pub(super) segmentation: bool,
    pub(super) coalescing: bool,
    pub(super) plain: Outcome,
    pub(super) segments: Outcome,
    pub(super) coalesced: Outcome,
}

pub(super) const REPORT_LEN: usize = 32;

/// How far the child came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Stage {
    #[default]
    Panicked = 0,
    LoopbackUp,
    Bind,
    RawSocket,
    Transfer,
    SegmentationOff,
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    #[default]
    Untried,
    Confirmed,
    Refuted(Deviation),
}

/// The first wrong packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deviation {
    index: u8,
    id: u16,
    dont_fragment: bool,
    icrc_right: bool,
    /// Packets or buffers that came, where it is their number that is wrong.
    count: u8,
}

/// Both ends of the conversation, within 127.0.0.0/8.
const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

const PLAIN_PACKETS: usize = 3;
/// The last one is shorter than the others.
const SEGMENTS: usize = 5;

/// Bytes from BTH to pad.
const PACKET_LEN: usize = 256;
const LAST_PACKET_LEN: usize = 64;

/// Tries everything, and says how far it came.
pub(super) fn examine() -> Report {
    let mut report = Report {
        isolated: loopback::isolate(),
        ..Report::default()
    };
    if let Err((stage, error)) = conduct(&mut report) {
        report.stage = stage;
        report.errno = error.raw_os_error().unwrap_or(libc::EPROTO);
    } else {
        report.stage = Stage::Done;
    }
    report
}

fn conduct(report: &mut Report) -> Result<(), (Stage, io::Error)> {
    let at = |stage: Stage| move |error: io::Error| (stage, error);
    if report.isolated {
        loopback::up().map_err(at(Stage::LoopbackUp))?;
    }
    let (mut sender, mut receiver) = ports(report.isolated).map_err(|error| {
        let error = io::Error::from_raw_os_error(error.errno());
        (Stage::Bind, error)
    })?;
    report.segmentation = sender.granted().segmentation;
    report.coalescing = receiver.granted().coalescing;
    let mut raw = RawSocket::open(PEER, receiver.port()).map_err(at(Stage::RawSocket))?;

    let mut batch = TransmitBatch::with_capacity(4096, SEGMENTS);
    let mut seen = [Seen::default(); PLAIN_PACKETS];
    for slot in &mut seen {
        add_packet(&mut batch, PACKET_LEN);
        sender.transmit(&mut batch).map_err(at(Stage::Transfer))?;
        *slot = raw.next().map_err(at(Stage::Transfer))?;
    }
    report.plain = judge(&seen, |_| 0);
    if !report.segmentation {
        return Ok(());
    }

    receive_all(&mut receiver).map_err(at(Stage::Transfer))?;
    let before = receiver.counters();
    send_segments(&mut sender, &mut batch).map_err(at(Stage::Transfer))?;
    raw.next().map_err(at(Stage::Transfer))?;
    receive_all(&mut receiver).map_err(at(Stage::Transfer))?;
    let after = receiver.counters();
    report.segmentation = sender.granted().segmentation;
    if !report.segmentation {
        return Ok(());
    }
    if report.coalescing {
        let packets = after.rx_packets - before.rx_packets;
        let buffers = after.rx_buffers - before.rx_buffers;
        report.coalesced = if packets == SEGMENTS as u64 && buffers == 1 {
            Outcome::Confirmed
        } else {
            Outcome::Refuted(Deviation {
                count: buffers as u8,
                ..Deviation::NONE
            })
        };
    }

    if !report.isolated {
        return Ok(());
    }
    loopback::segmentation_off().map_err(at(Stage::SegmentationOff))?;
    raw.discard();
    send_segments(&mut sender, &mut batch).map_err(at(Stage::Transfer))?;
    let mut seen = [Seen::default(); SEGMENTS];
    for slot in &mut seen {
        *slot = raw.next().map_err(at(Stage::Transfer))?;
    }
    report.segments = judge(&seen, |index| index as u16);
    Ok(())
}

/// A port at each end. On a shared loopback a free UDP port is chosen.
fn ports(isolated: bool) -> Result<(UdpPort, UdpPort), BindError> {
    let bind = |address: Ipv4Addr, port: u16| {
        let config = UdpConfig {
            port,
            receive_buffer_bytes: 1 << 16,
            send_buffer_bytes: 1 << 16,
            ..UdpConfig::default()
        };
        UdpPort::bind(&[IpAddr::V4(address)], 0, config)
    };
    if isolated {
        let port = UdpConfig::default().port;
        return Ok((bind(OWN, port)?, bind(PEER, port)?));
    }
    let receiver = bind(PEER, 0)?;
    let sender = bind(OWN, receiver.port())?;
    Ok((sender, receiver))
}

fn add_packet(batch: &mut TransmitBatch, len: usize) {
    let destination = Destination {
        address: PEER.into(),
        source_index: 0,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    };
    if let Some(room) = batch.reserve(len) {
        room.fill(0x5a);
        batch.commit(len, destination);
    }
}

fn send_segments(sender: &mut UdpPort, batch: &mut TransmitBatch) -> io::Result<()> {
    for _ in 1..SEGMENTS {
        add_packet(batch, PACKET_LEN);
    }
    add_packet(batch, LAST_PACKET_LEN);
    sender.transmit(batch)
}

/// The raw socket saw what was sent last, so everything sent has arrived.
fn receive_all(receiver: &mut UdpPort) -> io::Result<()> {
    while receiver.receive(usize::MAX, &mut |_| {})? > 0 {}
    Ok(())
}

fn judge(seen: &[Seen], expected_id: impl Fn(usize) -> u16) -> Outcome {
    let wrong = seen.iter().enumerate().find(|(index, packet)| {
        packet.id != expected_id(*index) || !packet.dont_fragment || !packet.icrc_right
    });
    match wrong {
        None => Outcome::Confirmed,
        Some((index, packet)) => Outcome::Refuted(Deviation {
            index: index as u8,
            id: packet.id,
            dont_fragment: packet.dont_fragment,
            icrc_right: packet.icrc_right,
            count: 0,
        }),
    }
}

impl Deviation {
    const NONE: Deviation = Deviation {
        index: 0,
        id: 0,
        dont_fragment: true,
        icrc_right: true,
        count: 0,
    };
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count > 0 {
            return write!(f, "it arrived in {} buffers", self.count);
        }
        let df = if self.dont_fragment { "set" } else { "clear" };
        let icrc = if self.icrc_right { "right" } else { "wrong" };
        write!(
            f,
            "packet {} had identification {}, DF {df}, and an ICRC that is {icrc} for its header",
            self.index, self.id
        )
    }
}

impl Report {
    pub(super) fn to_bytes(self) -> [u8; REPORT_LEN] {
        let mut bytes = [0; REPORT_LEN];
        bytes[0] = self.stage as u8;
        bytes[1] = u8::from(self.isolated);
        bytes[2] = u8::from(self.segmentation);
        bytes[3] = u8::from(self.coalescing);
        bytes[4..8].copy_from_slice(&self.errno.to_ne_bytes());
        for (room, outcome) in
            bytes[8..]
                .as_chunks_mut()
                .0
                .iter_mut()
                .zip([self.plain, self.segments, self.coalesced])
        {
            *room = outcome.to_bytes();
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; REPORT_LEN]) -> Self {
        let outcomes = bytes[8..].as_chunks().0;
        Report {
            stage: Stage::from_byte(bytes[0]),
            isolated: bytes[1] != 0,
            segmentation: bytes[2] != 0,
            coalescing: bytes[3] != 0,
            errno: i32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            plain: Outcome::from_bytes(&outcomes[0]),
            segments: Outcome::from_bytes(&outcomes[1]),
            coalesced: Outcome::from_bytes(&outcomes[2]),
        }
    }
}

impl Stage {
    fn from_byte(byte: u8) -> Self {
        [
            Stage::LoopbackUp,
            Stage::Bind,
            Stage::RawSocket,
            Stage::Transfer,
            Stage::SegmentationOff,
            Stage::Done,
        ]
        .into_iter()
        .find(|&stage| stage as u8 == byte)
        .unwrap_or(Stage::Panicked)
    }
}

const OUTCOME_LEN: usize = 8;

impl Outcome {
    fn to_bytes(self) -> [u8; OUTCOME_LEN] {
        match self {
            Outcome::Untried => [0; OUTCOME_LEN],
            Outcome::Confirmed => [1, 0, 0, 0, 0, 0, 0, 0],
            Outcome::Refuted(seen) => {
                let id = seen.id.to_ne_bytes();
                let flags = u8::from(seen.dont_fragment) | u8::from(seen.icrc_right) << 1;
                [2, seen.index, id[0], id[1], flags, seen.count, 0, 0]
            }
        }
    }

    fn from_bytes(bytes: &[u8; OUTCOME_LEN]) -> Self {
        match bytes[0] {
            1 => Outcome::Confirmed,
            2 => Outcome::Refuted(Deviation {
                index: bytes[1],
                id: u16::from_ne_bytes([bytes[2], bytes[3]]),
                dont_fragment: bytes[4] & 1 != 0,
                icrc_right: bytes[4] & 2 != 0,
                count: bytes[5],
            }),
            _ => Outcome::Untried,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_pipe() {
        let report = Report {
            stage: Stage::SegmentationOff,
            errno: libc::EOPNOTSUPP,
            isolated: true,
            segmentation: true,
            coalescing: false,
            plain: Outcome::Confirmed,
            segments: Outcome::Refuted(Deviation {
                index: 3,
                id: 0x718c,
                dont_fragment: false,
                icrc_right: true,
                count: 0,
            }),
            coalesced: Outcome::Untried,
        };
        assert_eq!(Report::from_bytes(&report.to_bytes()), report);
        assert_eq!(Report::from_bytes(&[0; REPORT_LEN]).stage, Stage::Panicked);
    }

    #[test]
    fn a_deviation_is_named() {
        let packet = |id, dont_fragment, icrc_right| Seen {
            id,
            dont_fragment,
            icrc_right,
        };
        let good = packet(0, true, true);
        assert_eq!(judge(&[good, good], |_| 0), Outcome::Confirmed);
        for bad in [
            packet(9, true, true),
            packet(0, false, true),
            packet(0, true, false),
        ] {
            let Outcome::Refuted(deviation) = judge(&[good, bad], |_| 0) else {
                panic!("{bad:?} was not found");
            };
            assert_eq!((deviation.index, deviation.id), (1, bad.id));
        }
        assert_eq!(
            judge(&[good, packet(1, true, true)], |index| index as u16),
            Outcome::Confirmed
        );
    }
}
