//! Copies of the packets of a port, for a reader beside it.
//!
//! A tap is put in front of a port while packets are captured, and taken away afterwards: a port
//! without one pays nothing. Each reader has a [`Sink`]: a bounded queue of records, which the
//! thread that runs the port fills and the reader empties. A full queue loses packets, and counts
//! them; the port never waits.
//!
//! A socket shows no IP header. That of a copy is made of what the port knows: addresses, ports,
//! traffic class, hop limit. Its identification and its checksums are 0, and the ICRC is computed
//! over that header: readers find it right, but where the kernel numbers packets it is not the one
//! of the wire.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use airdma_wire::{ICRC_LEN, Neighbour, ROCE_PORT, icrc_of_ip_packet};

use crate::passing::pass_on;
use crate::{Capabilities, Destination, Port, PortCounters, Received, TransmitBatch};

/// Bytes of a record before its packet.
pub const RECORD_HEADER_LEN: usize = 24;
/// Longest packet of a record, IP header included.
pub const SNAP_MAX: usize = 1 << 16;
/// Queue pair numbers of a filter.
pub const NUMBERS_MAX: usize = 64;
/// Sinks of one port.
pub const SINKS_MAX: usize = 4;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// Where a hop limit is not known: the kernel's usual one.
const HOP_LIMIT: u8 = 64;

/// What a record says of its packet.
///
/// ```text
/// 0           4           8          16      20          21      24
/// | captured  | original  | time     | lost  | direction | 0 0 0 | packet ...   (little endian)
/// ```
///
/// Both lengths are those of the IP packet, whose ICRC is not captured ([`complete`]); `time` is in
/// nanoseconds since 1970; `lost` counts the packets that found the queue full since the record
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes that follow.
    pub captured: u32,
    /// Bytes that the packet had.
    pub original: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Packets lost before it.
    pub lost: u32,
    /// Whether this host sent it.
    pub is_sent: bool,
}

impl RecordHeader {
    fn to_bytes(self) -> [u8; RECORD_HEADER_LEN] {
        let mut bytes = [0; RECORD_HEADER_LEN];
        bytes[..4].copy_from_slice(&self.captured.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.original.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.lost.to_le_bytes());
        bytes[20] = u8::from(self.is_sent);
        bytes
    }

    /// Reads one; `None` if its lengths contradict each other.
    pub fn parse(bytes: &[u8; RECORD_HEADER_LEN]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let header = RecordHeader {
            captured: word(0),
            original: word(4),
            time_ns: u64::from(word(8)) | u64::from(word(12)) << 32,
            lost: word(16),
            is_sent: bytes[20] != 0,
        };
        let fits = header.captured <= header.original && header.captured as usize <= SNAP_MAX;
        fits.then_some(header)
    }
}

/// Which packets a reader wants; an empty list admits all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Address of the other end.
    pub peers: Vec<IpAddr>,
    /// Queue pair number that the packet is for.
    pub numbers: Vec<u32>,
}

impl Filter {
    fn admits(&self, peer: IpAddr, packet: &[u8]) -> bool {
        let number = match packet.get(5..8) {
            Some(&[high, middle, low]) => u32::from_be_bytes([0, high, middle, low]),
            Some(_) | None => return false,
        };
        (self.peers.is_empty() || self.peers.contains(&peer))
            && (self.numbers.is_empty() || self.numbers.contains(&number))
    }
}

/// The queue of one reader.
pub struct Sink {
    filter: Filter,
    snap: usize,
    bytes_max: usize,
    queue: Mutex<Queue>,
}

struct Queue {
    /// With room for as many as the queue may hold.
    records: Vec<u8>,
    lost: u32,
}

/// A packet and its ends.
struct Copied<'a> {
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    tos: u8,
    hop_limit: u8,
    flow_label: u32,
    /// BTH to pad.
    bytes: &'a [u8],
}

impl Sink {
    /// Takes the first `snap` bytes of each packet, and holds `bytes_max` of records.
    pub fn new(filter: Filter, snap: usize, bytes_max: usize) -> Self {
        let queue = Queue {
            // The thread that runs the port must not allocate.
            records: Vec::with_capacity(bytes_max + RECORD_HEADER_LEN),
            lost: 0,
        };
        Sink {
            filter,
            snap: snap.min(SNAP_MAX),
            bytes_max,
            queue: Mutex::new(queue),
        }
    }

    /// Moves all records to `out`, which is cleared, and whose room is that of the next records. At
    /// the end of a burst of losses, one without a packet tells their count.
    pub fn take(&self, out: &mut Vec<u8>) {
        out.clear();
        // One more tells of losses.
        out.reserve_exact(self.bytes_max + RECORD_HEADER_LEN);
        let mut queue = self.queue();
        std::mem::swap(&mut queue.records, out);
        let lost = std::mem::take(&mut queue.lost);
        drop(queue);
        if lost > 0 {
            let header = RecordHeader {
                captured: 0,
                original: 0,
                time_ns: now_ns(),
                lost,
                is_sent: false,
            };
            out.extend_from_slice(&header.to_bytes());
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds packets of one batch, for which the queue is locked once.
    fn put<'a>(&self, time_ns: u64, is_sent: bool, packets: impl Iterator<Item = Copied<'a>>) {
        let mut queue = self.queue();
        for packet in packets {
            let peer = if is_sent {
                packet.destination
            } else {
                packet.source
            };
            if self.filter.admits(peer, packet.bytes) {
                queue.put(time_ns, is_sent, &packet, self.snap, self.bytes_max);
            }
        }
    }
}

impl Queue {
    fn put(&mut self, time_ns: u64, is_sent: bool, packet: &Copied<'_>, snap: usize, most: usize) {
        let headers = headers_len(packet);
        let whole = headers + packet.bytes.len();
        let captured = whole.min(snap);
        if self.records.len() + RECORD_HEADER_LEN + captured > most {
            self.lost = self.lost.saturating_add(1);
            return;
        }
        let header = RecordHeader {
            captured: captured as u32,
            original: (whole + ICRC_LEN) as u32,
            time_ns,
            lost: std::mem::take(&mut self.lost),
            is_sent,
        };
        self.records.extend_from_slice(&header.to_bytes());
        let start = self.records.len();
        write_headers(&mut self.records, packet);
        // What is cut off is not copied.
        let kept = captured.saturating_sub(headers);
        self.records.extend_from_slice(&packet.bytes[..kept]);
        self.records.truncate(start + captured);
    }
}

/// Appends the ICRC to a captured packet that is whole, up to `snap` bytes of the packet: its
/// record comes without, because the program that sends pays for the record.
pub fn complete(header: &mut RecordHeader, packet: &mut Vec<u8>, snap: usize) {
    if packet.len() + ICRC_LEN != header.original as usize {
        return;
    }
    let icrc = icrc_of_ip_packet(packet).unwrap_or_default();
    packet.extend_from_slice(&icrc.to_le_bytes());
    packet.truncate(snap);
    header.captured = packet.len() as u32;
}

fn headers_len(packet: &Copied<'_>) -> usize {
    let ip = match packet.source {
        IpAddr::V4(_) => IPV4_LEN,
        IpAddr::V6(_) => IPV6_LEN,
    };
    ip + UDP_LEN
}

/// Writes the IP and the UDP header. Both addresses are of one family.
fn write_headers(out: &mut Vec<u8>, packet: &Copied<'_>) {
    let udp_len = (UDP_LEN + packet.bytes.len() + ICRC_LEN) as u16;
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [high, low] = (IPV4_LEN as u16).wrapping_add(udp_len).to_be_bytes();
            out.extend_from_slice(&[0x45, packet.tos, high, low, 0, 0, 0x40, 0]);
            out.extend_from_slice(&[packet.hop_limit, PROTOCOL_UDP, 0, 0]);
            out.extend_from_slice(&source.octets());
            out.extend_from_slice(&destination.octets());
        }
        (source, destination) => {
            let word = 6 << 28 | u32::from(packet.tos) << 20 | packet.flow_label & 0x000f_ffff;
            out.extend_from_slice(&word.to_be_bytes());
            out.extend_from_slice(&udp_len.to_be_bytes());
            out.extend_from_slice(&[PROTOCOL_UDP, packet.hop_limit]);
            out.extend_from_slice(&v6(source).octets());
            out.extend_from_slice(&v6(destination).octets());
        }
    }
    out.extend_from_slice(&packet.source_port.to_be_bytes());
    out.extend_from_slice(&ROCE_PORT.to_be_bytes());
    out.extend_from_slice(&udp_len.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// An address of the family of `other`, where it is not known: of a packet that another process
/// forwarded.
fn of_family(address: IpAddr, other: IpAddr) -> IpAddr {
    match (address, other) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => address,
        (IpAddr::V6(_), IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        (IpAddr::V4(_), IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// A port whose packets are copied.
pub struct Tap {
    inner: Box<dyn Port>,
    sinks: Vec<Arc<Sink>>,
    /// The local addresses, by their index.
    addresses: Vec<Option<Neighbour>>,
    /// Packets at the front of the batch that were copied when they did not leave.
    unsent: usize,
}

/// Adds a sink to a port. False if it has [`SINKS_MAX`].
pub fn add(port: &mut Box<dyn Port>, addresses: &[Option<Neighbour>], sink: Arc<Sink>) -> bool {
    if port.tap().is_none() {
        let inner = std::mem::replace(port, Box::new(NoPort));
        *port = Box::new(Tap {
            inner,
            sinks: Vec::new(),
            addresses: addresses.to_vec(),
            unsent: 0,
        });
    }
    match port.tap() {
        Some(tap) if tap.sinks.len() < SINKS_MAX => {
            tap.sinks.push(sink);
            true
        }
        Some(_) | None => false,
    }
}

/// Removes a sink from a port, and the tap with the last one.
pub fn remove(port: &mut Box<dyn Port>, sink: &Arc<Sink>) {
    let Some(tap) = port.tap() else { return };
    tap.sinks.retain(|other| !Arc::ptr_eq(other, sink));
    if tap.sinks.is_empty() {
        *port = std::mem::replace(&mut tap.inner, Box::new(NoPort));
    }
}

impl Tap {
    fn copy_sent(&self, batch: &TransmitBatch) {
        let time = now_ns();
        for sink in &self.sinks {
            let packets = batch.packets().skip(self.unsent.min(batch.len()));
            let copied = packets.filter_map(|(bytes, to)| self.copied(bytes, to));
            sink.put(time, true, copied);
        }
    }

    fn copied<'a>(&self, bytes: &'a [u8], to: &Destination) -> Option<Copied<'a>> {
        let (source, destination) = self.ends_of(to)?;
        let hop_limit = if to.hop_limit == 0 {
            HOP_LIMIT
        } else {
            to.hop_limit
        };
        Some(Copied {
            source,
            destination,
            source_port: ROCE_PORT,
            tos: to.tos,
            hop_limit,
            flow_label: to.flow_label,
            bytes,
        })
    }

    fn ends_of(&self, to: &Destination) -> Option<(IpAddr, IpAddr)> {
        let row = self.addresses.get(usize::from(to.source_index));
        let source = row.copied().flatten().and_then(Neighbour::ip)?;
        let destination = to.address.ip()?;
        Some((of_family(source, destination), destination))
    }
}

/// Copies a received packet, and those that were taken with it since `before`.
fn copy_received(sinks: &[Arc<Sink>], time: u64, received: &Received<'_>, before: usize) {
    let (Some(source), Some(destination)) = (received.source.ip(), received.destination.ip())
    else {
        return;
    };
    for sink in sinks {
        let following = received.following.into_iter();
        let following = following.flat_map(|following| following.taken_since(before));
        let packets = std::iter::once(received.bytes).chain(following);
        let copied = packets.map(|bytes| Copied {
            source,
            destination: of_family(destination, source),
            source_port: received.source_port,
            tos: received.tos,
            hop_limit: received.ttl,
            flow_label: received.flow_label,
            bytes,
        });
        sink.put(time, false, copied);
    }
}

/// Calls `receive` with a function that copies what it hands on to `handle`.
fn tapped(
    sinks: &[Arc<Sink>],
    handle: &mut dyn FnMut(Received<'_>),
    receive: impl FnOnce(&mut dyn FnMut(Received<'_>)) -> io::Result<usize>,
) -> io::Result<usize> {
    receive(&mut |received| {
        let time = now_ns();
        let before = received.following.map_or(0, |following| following.taken());
        handle(received);
        copy_received(sinks, time, &received, before);
    })
}

impl Port for Tap {
    // `shared` without the tap: packets that arrive while processes settle which of them gets
    // which are not copied.
    pass_on!(
        inner:
        capabilities, lend_batch, wait_descriptors, stopped_at, counters, look_for_drops,
        send_queue, receive_queue, join, leave, set_active, withdraw, lifelines, shared
    );

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        self.copy_sent(batch);
        let result = self.inner.transmit(batch);
        self.unsent = batch.len();
        result
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let inner = &mut self.inner;
        tapped(&self.sinks, handle, |handle| inner.receive(budget, handle))
    }

    fn set_address(&mut self, source_index: u8, address: Option<Neighbour>) -> io::Result<()> {
        let index = usize::from(source_index);
        if self.addresses.len() <= index {
            self.addresses.resize(index + 1, None);
        }
        self.addresses[index] = address;
        self.inner.set_address(source_index, address)
    }

    fn tap(&mut self) -> Option<&mut Tap> {
        Some(self)
    }
}

/// Stands in for a port while it is moved.
struct NoPort;

impl Port for NoPort {
    fn capabilities(&self) -> Capabilities {
        unreachable!("no port is asked while it is moved")
    }

    fn transmit(&mut self, _: &mut TransmitBatch) -> io::Result<()> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn wait_descriptors(&self, _: &mut Vec<RawFd>) {}

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

#[cfg(test)]
mod tests;
