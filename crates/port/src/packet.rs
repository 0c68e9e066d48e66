//! RoCEv2 in whole Ethernet frames, by `packet(7)`: needs CAP_NET_RAW in the network namespace.
//!
//! The port writes the Ethernet, IP and UDP headers in front of each packet of a batch, where the
//! batch has left room, and reads them of each frame that arrives. So it sees the IP
//! identification, and checks the ICRC exactly.
//!
//! | what | how |
//! |---|---|
//! | the kernel's own UDP, which sees the same datagrams | a bound UDP socket for each address whose filter drops all: it keeps the UDP port, and no ICMP "port unreachable" is sent |
//! | the peer's Ethernet address | a [`Resolver`], whose answers are kept for [`RESOLVED_FOR`] |
//! | datagrams that the sender's kernel has not segmented (veth) | `PACKET_VNET_HDR` gives the length of a segment; kernels before 6.2 drop such frames |
//! | the UDP checksum | filled in by the kernel or the NIC; checked here unless the kernel vouches for it |
//!
//! It neither sends nor takes IP fragments, shares its addresses with no process, joins no
//! multicast groups, and does not reach the host itself. What arrives for another link or address,
//! or from an address that no other host can have, is dropped and counted.

#[doc(hidden)] // for the crate `fuzz-bodies`
pub mod frame;
mod socket;

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use airdma_radio::{LinkView, Queue, SocketMemory};
use airdma_wire::{Neighbour, ROCE_PORT};

use crate::icrc::{Checked, Flow, IcrcCache};
use crate::udp::fill_of;
use crate::{
    BindError, Capabilities, Destination, Port, PortCounters, QueueFill, Received, TransmitBatch,
};
use frame::{Ends, HEADROOM, Reject};
use socket::{FRAME_LEN_MAX, FrameSocket, Sent, reserve};

/// Knows the Ethernet addresses behind IP addresses.
pub trait Resolver: Send {
    /// The Ethernet address of the next hop from `source` to `destination`, or `None` while no host
    /// has answered for it; then it is asked for. Never waits.
    ///
    /// # Errors
    /// Why no packet can go there.
    fn next_hop(&mut self, source: IpAddr, destination: IpAddr) -> io::Result<Option<[u8; 6]>>;
}

/// RoCEv2 in Ethernet frames of one interface. See the [module](self).
pub struct PacketPort {
    /// By GID index.
    rows: Vec<Option<Row>>,
    /// One for IPv4 and one for IPv6, opened with the first address of the family.
    sockets: [Option<FrameSocket>; 2],
    interface_index: u32,
    /// Longest IP packet of the interface when the port was made.
    mtu: usize,
    hops: Hops,
    stopped_at: Option<RawFd>,
    icrcs: IcrcCache,
    counters: PortCounters,
    view: Option<LinkView>,
}

/// A local address.
struct Row {
    address: IpAddr,
    /// Keeps its UDP port.
    _reservation: OwnedFd,
}

impl PacketPort {
    /// Takes the UDP port of RoCEv2 at each of `addresses`, which all belong to the interface; the
    /// index into `addresses` is the GID index.
    ///
    /// # Errors
    /// [`BindError`] says which address failed, why, and what to do.
    pub fn bind(
        addresses: &[Option<IpAddr>],
        interface_index: u32,
        resolver: Box<dyn Resolver>,
    ) -> Result<Self, BindError> {
        let mut port = PacketPort {
            rows: Vec::new(),
            sockets: [None, None],
            interface_index,
            mtu: 0,
            hops: Hops::new(resolver),
            stopped_at: None,
            icrcs: IcrcCache::new(FRAME_LEN_MAX),
            counters: PortCounters::default(),
            view: None,
        };
        for (index, address) in addresses.iter().enumerate() {
            if let Some(address) = address {
                port.open(index, *address)?;
            }
        }
        Ok(port)
    }

    fn open(&mut self, index: usize, address: IpAddr) -> Result<(), BindError> {
        let socket = &mut self.sockets[family(address)];
        if socket.is_none() {
            let opened = FrameSocket::open(address, self.interface_index)?;
            self.mtu = opened.mtu;
            *socket = Some(opened);
        }
        let reservation = reserve(address, self.interface_index)?;
        if self.rows.len() <= index {
            self.rows.resize_with(index + 1, || None);
        }
        self.rows[index] = Some(Row {
            address,
            _reservation: reservation,
        });
        Ok(())
    }

    /// Where a packet comes from and goes to, as its headers say; `None` for one that can never
    /// leave.
    fn ends(&mut self, to: &Destination, now: Instant) -> Hop {
        let row = self.rows.get(usize::from(to.source_index));
        let source = row.and_then(Option::as_ref).map(|row| row.address);
        let (Some(source), Some(destination)) = (source, to.address.ip()) else {
            return Hop::None;
        };
        let Some(socket) = &self.sockets[family(source)] else {
            return Hop::None;
        };
        if family(source) != family(destination) {
            return Hop::None;
        }
        match self.hops.find(source, destination, now) {
            Found::Hop(hop) => Hop::Known(Ends {
                ethernet_source: socket.ethernet,
                ethernet_destination: hop,
                source,
                destination,
            }),
            Found::Asked => Hop::Asked,
            Found::None => Hop::None,
        }
    }

    /// Writes the headers of the next packets of one family, and their ICRCs, and plans them.
    /// Returns whether the packet behind them waits for the Ethernet address of its next hop.
    fn plan(&mut self, batch: &mut TransmitBatch, now: Instant) -> (usize, Hop) {
        let mut last: Option<(Destination, Ends, Flow)> = None;
        let mut planned = 0;
        while planned < batch.len().min(socket::MESSAGES_MAX) {
            let entry = &batch.waiting()[planned];
            let len = entry.wire_len();
            let destination = *batch.destination(entry);
            let (ends, flow) = match last {
                Some((known, ends, flow)) if known == destination => (ends, flow),
                previous => {
                    let ends = match self.ends(&destination, now) {
                        Hop::Known(ends) => ends,
                        other @ (Hop::Asked | Hop::None) => return (planned, other),
                    };
                    let other_family =
                        |(_, before, _): (_, Ends, _)| family(before.source) != family(ends.source);
                    if previous.is_some_and(other_family) {
                        return (planned, Hop::Known(ends));
                    }
                    let flow = Flow::new(ends.source, ends.destination, ROCE_PORT, ROCE_PORT);
                    let Some(flow) = flow else {
                        return (planned, Hop::None);
                    };
                    last = Some((destination, ends, flow));
                    (ends, flow)
                }
            };
            batch.seal(planned, &flow, frame::IDENTIFICATION, &mut self.icrcs);
            let header_len = frame::header_len(ends.source);
            let headers = batch.headers(planned, header_len);
            frame::write_headers(headers, &ends, &destination, len);
            planned += 1;
        }
        (planned, Hop::None)
    }

    /// Drops the first packets of the batch.
    fn refuse(&mut self, batch: &mut TransmitBatch, count: usize, errno: i32) {
        let counters = &mut self.counters;
        counters.tx_errors += count as u64;
        match errno {
            libc::EMSGSIZE => counters.tx_too_big += count as u64,
            libc::EPERM | libc::EACCES => counters.tx_filtered += count as u64,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ENXIO => {
                counters.tx_unreachable += count as u64;
            }
            _ => {}
        }
        batch.advance(count);
    }
}

impl Port for PacketPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            datagram_bytes_max: self
                .mtu
                .saturating_sub(frame::HEADER_LEN_V6 - frame::ETHERNET_LEN),
            equal_lengths: false,
            headroom: HEADROOM,
            sees_identification: true,
            sees_hop_limit: true,
            icrc_in_hardware: false,
            references_payload: false,
        }
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        self.stopped_at = None;
        let now = Instant::now();
        // Each round sends or drops a packet, or ends.
        while let Some(next) = batch.next_destination() {
            let (planned, hop) = self.plan(batch, now);
            if planned == 0 {
                match hop {
                    Hop::Asked => {
                        self.counters.tx_again += 1;
                        return Ok(());
                    }
                    Hop::Known(_) | Hop::None => self.refuse(batch, 1, libc::EHOSTUNREACH),
                }
                continue;
            }
            let row = self.rows.get(usize::from(next.source_index));
            let source = row.and_then(Option::as_ref).map(|row| row.address);
            let header_len = source.map_or(0, frame::header_len);
            let socket = source.and_then(|source| self.sockets[family(source)].as_mut());
            let Some(socket) = socket else {
                self.refuse(batch, 1, libc::EHOSTUNREACH);
                continue;
            };
            match socket.send(batch, planned, header_len)? {
                Sent::Frames(sent) => {
                    let bytes = batch.waiting()[..sent].iter();
                    let bytes: usize = bytes.map(|entry| entry.wire_len()).sum();
                    self.counters.tx_packets += sent as u64;
                    self.counters.tx_sends += sent as u64;
                    self.counters.tx_bytes += bytes as u64;
                    batch.advance(sent);
                }
                Sent::Busy => {
                    self.stopped_at = Some(socket.descriptor());
                    self.counters.tx_again += 1;
                    return Ok(());
                }
                Sent::Refused(errno) => self.refuse(batch, 1, errno),
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let before = self.counters.rx_packets;
        let mut examined = 0;
        for socket in self.sockets.iter_mut().flatten() {
            while examined < budget {
                let filled = socket.fetch(&mut self.counters)?;
                self.counters.rx_batches += u64::from(filled > 0);
                for index in 0..filled {
                    let mut reader = Reader {
                        rows: &self.rows,
                        icrcs: &mut self.icrcs,
                        counters: &mut self.counters,
                    };
                    examined += reader.take(socket.frame(index), self.interface_index, handle);
                }
                if filled < socket::SLOTS {
                    break;
                }
            }
        }
        Ok((self.counters.rx_packets - before) as usize)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.sockets.iter().flatten().map(FrameSocket::descriptor));
    }

    fn stopped_at(&self) -> Option<RawFd> {
        self.stopped_at
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn look_for_drops(&mut self) {
        let sockets = self.sockets.iter_mut().flatten();
        self.counters.rx_overflow += sockets.map(FrameSocket::take_drops).sum::<u64>();
    }

    fn send_queue(&mut self) -> Option<QueueFill> {
        let index = self.interface_index;
        let view = self.view.get_or_insert_with(|| LinkView::open(index));
        match &view.read_queue(Instant::now()).value {
            Ok(Queue::Backlog(backlog)) => Some(fill_of(backlog)),
            Ok(Queue::NoQueue) | Err(_) => None,
        }
    }

    fn receive_queue(&mut self, source_index: u8) -> Option<QueueFill> {
        let row = self.rows.get(usize::from(source_index))?.as_ref()?;
        let socket = self.sockets[family(row.address)].as_ref()?;
        let memory = SocketMemory::of(socket.as_fd()).ok()?;
        Some(QueueFill {
            bytes: memory.receive_bytes.into(),
            capacity: Some(memory.receive_limit_bytes.into()),
            left_bytes: None,
        })
    }

    fn set_address(&mut self, source_index: u8, address: Option<Neighbour>) -> io::Result<()> {
        let index = usize::from(source_index);
        if let Some(row) = self.rows.get_mut(index) {
            *row = None;
        }
        self.hops.forget();
        let Some(address) = address else {
            return Ok(());
        };
        let refused = |errno| io::Error::from_raw_os_error(errno);
        let address = address.ip().ok_or_else(|| refused(libc::EAFNOSUPPORT))?;
        self.open(index, address)
            .map_err(|error| refused(error.errno()))
    }
}

/// Index of the socket for a family.
fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

/// Next hop of a packet.
#[derive(Clone, Copy)]
enum Hop {
    Known(Ends),
    /// The next hop's Ethernet address was requested.
    Asked,
    /// No frame to it can ever leave.
    None,
}

/// What takes frames apart.
struct Reader<'a> {
    rows: &'a [Option<Row>],
    icrcs: &'a mut IcrcCache,
    counters: &'a mut PortCounters,
}

impl Reader<'_> {
    /// Hands on the packets of a frame; returns how many datagrams it held, at least one.
    fn take(
        &mut self,
        frame: socket::Frame<'_>,
        interface_index: u32,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        self.counters.rx_buffers += 1;
        if frame.truncated {
            self.counters.rx_truncated += 1;
            return 1;
        }
        if frame.interface_index != interface_index || !frame.is_for_us {
            self.counters.rx_stray_frames += 1;
            return 1;
        }
        let datagram = match frame::read(frame.bytes, frame.checksum_known) {
            Ok(datagram) => datagram,
            Err(Reject::Bad) => {
                self.counters.rx_bad_frames += 1;
                return 1;
            }
            Err(Reject::Fragment) => {
                self.counters.rx_fragments += 1;
                return 1;
            }
        };
        let ends = (datagram.source, datagram.destination);
        let is_local = |address| (self.rows.iter().flatten()).any(|row| row.address == address);
        let is_for_us = is_local(ends.1) && is_host(ends.0) && !is_local(ends.0);
        let flow = Flow::new(ends.0, ends.1, datagram.source_port, ROCE_PORT).filter(|_| is_for_us);
        let Some(flow) = flow else {
            self.counters.rx_stray_frames += 1;
            return 1;
        };
        let flow = flow.with_dont_fragment(datagram.dont_fragment);
        let segment = match frame.segment {
            0 => datagram.payload.len().max(1),
            segment => segment,
        };
        let mut count: usize = 0;
        for bytes in datagram.payload.chunks(segment) {
            let id = datagram.identification.wrapping_add(count as u16);
            count += 1;
            match self.icrcs.check(&flow, id, bytes) {
                Checked::Good(packet) => {
                    self.counters.rx_packets += 1;
                    self.counters.rx_bytes += bytes.len() as u64;
                    handle(Received {
                        source: datagram.source.into(),
                        source_port: datagram.source_port,
                        destination: datagram.destination.into(),
                        tos: datagram.tos,
                        ttl: datagram.ttl,
                        flow_label: datagram.flow_label,
                        forwarded: false,
                        bundled: false,
                        bytes: packet,
                        following: None,
                    });
                }
                // The identification is known: a packet that needs another one is damaged.
                Checked::Recovered(_) | Checked::Bad => self.counters.rx_bad_icrc += 1,
                Checked::Short => self.counters.rx_short += 1,
            }
        }
        self.counters.rx_short += u64::from(count == 0);
        count.max(1)
    }
}

/// Whether a frame may have this source address (RFC 1122 3.2.1.3, RFC 4291 2.5 and 2.7). The
/// kernel drops datagrams with other ones before a UDP socket sees them; a packet socket sees them.
fn is_host(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_broadcast())
        }
        // An IPv4-mapped one would pass for the IPv4 host (RFC 4291 2.5.5.2).
        IpAddr::V6(ip) => {
            let is_mapped = ip.to_ipv4_mapped().is_some();
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_mapped)
        }
    }
}

/// The next hops that are known.
struct Hops {
    resolver: Box<dyn Resolver>,
    known: Vec<KnownHop>,
}

struct KnownHop {
    ends: (IpAddr, IpAddr),
    ethernet: Option<[u8; 6]>,
    /// When the resolver was last asked.
    asked_at: Instant,
    /// Since when it is asked in vain.
    vain_since: Instant,
}

enum Found {
    Hop([u8; 6]),
    Asked,
    None,
}

/// Next hops that are kept; beyond, the one that was asked for first makes room.
const HOPS_MAX: usize = 1024;
/// How long an answer of the resolver is used.
const RESOLVED_FOR: Duration = Duration::from_secs(1);
/// Interval of questions while there is no answer.
const ASK_AGAIN: Duration = Duration::from_micros(200);
/// How long packets wait for an answer. Then they are dropped until [`RESOLVED_FOR`] is over.
const PATIENCE: Duration = Duration::from_millis(50);

impl Hops {
    fn new(resolver: Box<dyn Resolver>) -> Self {
        Hops {
            resolver,
            known: Vec::new(),
        }
    }

    fn forget(&mut self) {
        self.known.clear();
    }

    fn find(&mut self, source: IpAddr, destination: IpAddr, now: Instant) -> Found {
        let ends = (source, destination);
        let index = self.known.iter().position(|hop| hop.ends == ends);
        let Some(index) = index else {
            if self.known.len() >= HOPS_MAX {
                self.known.remove(0);
            }
            self.known.push(KnownHop {
                ends,
                ethernet: None,
                asked_at: now,
                vain_since: now,
            });
            return self.ask(self.known.len() - 1, now);
        };
        let hop = &self.known[index];
        let since = now.duration_since(hop.asked_at);
        let waited = now.duration_since(hop.vain_since);
        match hop.ethernet {
            Some(ethernet) if since < RESOLVED_FOR => Found::Hop(ethernet),
            Some(_) => self.ask(index, now),
            None if waited >= RESOLVED_FOR => {
                self.known[index].vain_since = now;
                self.ask(index, now)
            }
            None if waited >= PATIENCE => Found::None,
            None if since < ASK_AGAIN => Found::Asked,
            None => self.ask(index, now),
        }
    }

    fn ask(&mut self, index: usize, now: Instant) -> Found {
        let hop = &mut self.known[index];
        hop.asked_at = now;
        match self.resolver.next_hop(hop.ends.0, hop.ends.1) {
            Ok(Some(ethernet)) => {
                hop.ethernet = Some(ethernet);
                hop.vain_since = now;
                Found::Hop(ethernet)
            }
            // The kernel drops entries that it does not use itself; it is resolving again.
            Ok(None) => hop.ethernet.map_or(Found::Asked, Found::Hop),
            Err(_) => {
                hop.ethernet = None;
                hop.vain_since = now.checked_sub(PATIENCE).unwrap_or(now);
                Found::None
            }
        }
    }
}
