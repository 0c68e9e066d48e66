//! Ports in memory: a connected pair, or a single one whose packets the test carries. For tests of
//! the layers above, without sockets, privilege or a free UDP port.
//!
//! Packets are sealed and checked as on a network, so that a packet damaged by [`crate::impair`] is
//! found and counted here too. Nothing is ever cut, coalesced or refused, bundles are one frame; a
//! queue that is full drops, as a socket's does.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use airdma_wire::ROCE_PORT;
use airdma_wire::bundle::{Bundle, is_bundle};

use crate::icrc::{Checked, Flow, IcrcCache};
use crate::sharing::Sharing;
use crate::{
    Capabilities, Destination, Port, PortCounters, QueueFill, Received, SharedPort, TransmitBatch,
};

/// One end of a pair.
pub struct SimPort {
    addresses: Vec<IpAddr>,
    /// Reachable addresses; `None` if the carrier decides.
    peer_addresses: Option<Vec<IpAddr>>,
    inbox: Arc<Inbox>,
    peer_inbox: Arc<Inbox>,
    /// Frames taken out of the inbox by the current receive call, so that no lock is held while
    /// they are handled.
    taken: Vec<Frame>,
    icrcs: IcrcCache,
    counters: PortCounters,
}

/// Frames that wait at one end. More are dropped.
const FRAMES_MAX: usize = 4096;

/// Assumed size of the queue for its fill: the socket of an unprivileged process on Linux.
const SOCKET_BYTES: u64 = 425_984;

/// TTL of a packet whose destination leaves it to the kernel.
const DEFAULT_TTL: u8 = 64;

/// Makes a pair: the ports have the given addresses, indexed as their GIDs are.
///
/// # Errors
/// When the kernel has no event descriptor left.
pub fn pair(left: &[IpAddr], right: &[IpAddr]) -> io::Result<(SimPort, SimPort)> {
    let inboxes = (Arc::new(Inbox::new()?), Arc::new(Inbox::new()?));
    let port =
        |own: &[IpAddr], peer: &[IpAddr], inbox: &Arc<Inbox>, peer_inbox: &Arc<Inbox>| SimPort {
            addresses: own.to_vec(),
            peer_addresses: Some(peer.to_vec()),
            inbox: Arc::clone(inbox),
            peer_inbox: Arc::clone(peer_inbox),
            taken: Vec::with_capacity(FRAMES_MAX),
            icrcs: IcrcCache::new(usize::from(u16::MAX)),
            counters: PortCounters::default(),
        };
    Ok((
        port(left, right, &inboxes.0, &inboxes.1),
        port(right, left, &inboxes.1, &inboxes.0),
    ))
}

/// The carrier of a port's packets.
pub struct Carrier {
    outbox: Arc<Inbox>,
    inbox: Arc<Inbox>,
}

/// Most frames that wait for the carrier; then the port accepts no more.
const OUTBOX_MAX: usize = 64;

/// A port whose packets are carried by hand.
///
/// Unlike a pair's, it accepts no more than [`OUTBOX_MAX`] frames that are not taken: the rest
/// stays in the batch, as with a socket whose buffer is full.
///
/// # Errors
/// When the kernel has no event descriptor left.
pub fn carried(addresses: &[IpAddr]) -> io::Result<(SimPort, Carrier)> {
    let (inbox, outbox) = (Arc::new(Inbox::new()?), Arc::new(Inbox::new()?));
    let port = SimPort {
        addresses: addresses.to_vec(),
        peer_addresses: None,
        inbox: Arc::clone(&inbox),
        peer_inbox: Arc::clone(&outbox),
        taken: Vec::new(),
        icrcs: IcrcCache::new(usize::from(u16::MAX)),
        counters: PortCounters::default(),
    };
    Ok((port, Carrier { outbox, inbox }))
}

impl Carrier {
    /// The next frame that the port sends.
    pub fn take(&self) -> Option<Frame> {
        self.outbox.lock().frames.pop_front()
    }

    /// Gives the port a frame to receive, whatever its ICRC says.
    pub fn give(&self, frame: Frame) {
        self.inbox.lock().frames.push_back(frame);
    }

    /// Sets the fill of the queue in front of the line ([`Port::send_queue`]).
    pub fn set_send_queue(&self, fill: Option<QueueFill>) {
        self.outbox.lock().fill = fill;
    }
}

impl SimPort {
    /// The ends of a packet, if the port has the one and reaches the other.
    fn way(&self, to: &Destination) -> Option<((IpAddr, IpAddr), Flow)> {
        let source = *self.addresses.get(usize::from(to.source_index))?;
        let target = to.address.ip()?;
        let peers = self.peer_addresses.as_ref();
        if peers.is_some_and(|peers| !peers.contains(&target)) {
            return None;
        }
        let flow = Flow::new(source, target, ROCE_PORT, ROCE_PORT)?;
        Some(((source, target), flow))
    }
}

impl Port for SimPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            datagram_bytes_max: usize::from(u16::MAX),
            equal_lengths: true,
            headroom: 0,
            sees_identification: true,
            sees_hop_limit: true,
            icrc_in_hardware: false,
            references_payload: false,
        }
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut queue = self.peer_inbox.lock();
        let was_empty = queue.frames.is_empty();
        // Mostly those of the packet before.
        let (mut known, mut way) = (None, None);
        while let Some(destination) = batch.next_destination() {
            if self.peer_addresses.is_none() && queue.frames.len() >= OUTBOX_MAX {
                self.counters.tx_again += 1;
                break;
            }
            if known != Some(destination) {
                way = self.way(&destination);
                known = Some(destination);
            }
            let Some((ends, flow)) = &way else {
                self.counters.tx_errors += 1;
                self.counters.tx_unreachable += 1;
                batch.advance(1);
                continue;
            };
            if destination.bundles
                && send_bundle(
                    batch,
                    &mut queue,
                    (*ends, flow),
                    &mut self.icrcs,
                    &mut self.counters,
                )
            {
                continue;
            }
            batch.seal(0, flow, 0, &mut self.icrcs);
            let bytes = batch.wire_bytes(0, 1);
            self.counters.tx_packets += 1;
            self.counters.tx_sends += 1;
            self.counters.tx_bytes += bytes.len() as u64;
            queue.push(bytes, |frame| frame.address(*ends, &destination));
            batch.advance(1);
        }
        if was_empty && !queue.frames.is_empty() && self.peer_addresses.is_some() {
            self.peer_inbox.raise()?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let before = self.counters.rx_packets;
        {
            let mut queue = self.inbox.lock();
            let count = queue.frames.len().min(budget);
            for _ in 0..count {
                self.taken.extend(queue.frames.pop_front());
            }
            if count > 0 && queue.frames.is_empty() && self.peer_addresses.is_some() {
                self.inbox.lower()?;
            }
        }
        if self.taken.is_empty() {
            return Ok(0);
        }
        self.counters.rx_batches += 1;
        for frame in &self.taken {
            frame.deliver(&mut self.icrcs, &mut self.counters, handle);
        }
        self.inbox.lock().spare.append(&mut self.taken);
        Ok((self.counters.rx_packets - before) as usize)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.inbox.event.as_raw_fd());
    }

    fn send_queue(&mut self) -> Option<QueueFill> {
        self.peer_inbox.lock().fill
    }

    fn receive_queue(&mut self, _source_index: u8) -> Option<QueueFill> {
        let queue = self.inbox.lock();
        let bytes = queue.frames.iter().map(|frame| frame.bytes.len() as u64);
        Some(QueueFill {
            bytes: bytes.sum(),
            capacity: Some(SOCKET_BYTES),
            left_bytes: None,
        })
    }

    fn counters(&self) -> PortCounters {
        PortCounters {
            rx_overflow: self.inbox.lock().dropped,
            ..self.counters
        }
    }
}

/// No other process has its addresses. It is one all the same, so that a port over sockets can be
/// one over memory ([`crate::local`]).
impl SharedPort for SimPort {
    fn has_company(&self, _source_index: u8) -> bool {
        false
    }

    fn attach_steering(
        &mut self,
        _source_index: u8,
        _program: &[libc::sock_filter],
    ) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn set_sharing(&mut self, _sharing: Arc<dyn Sharing>) {}

    fn look_everywhere(&mut self) {}
}

/// Sends the next packets as a bundle, if several can leave together.
#[cold]
fn send_bundle(
    batch: &mut TransmitBatch,
    queue: &mut Queue,
    (ends, flow): ((IpAddr, IpAddr), &Flow),
    icrcs: &mut IcrcCache,
    counters: &mut PortCounters,
) -> bool {
    let count = batch.group_len(0);
    let Some(destination) = batch.next_destination().filter(|_| count > 1) else {
        return false;
    };
    for index in 0..count {
        batch.seal(index, flow, index as u16, icrcs);
    }
    let packets = batch.wire_bytes(0, count);
    counters.tx_packets += count as u64;
    counters.tx_sends += 1;
    counters.tx_bundles += 1;
    counters.tx_bytes += packets.len() as u64;
    let head = batch.bundle_header(0, count);
    queue.push(packets, |frame| {
        frame.bytes.splice(..0, head);
        frame.address(ends, &destination);
    });
    batch.advance(count);
    true
}

/// Where one end's packets wait.
struct Inbox {
    queue: Mutex<Queue>,
    /// Event counter that is above zero, hence readable, while the queue holds something.
    event: File,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    /// Used frames, kept for their memory.
    spare: Vec<Frame>,
    dropped: u64,
    /// Fill of the queue behind this one, as set by the carrier.
    fill: Option<QueueFill>,
}

/// A packet in flight.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// UDP source port.
    pub source_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: u32,
    /// BTH to ICRC, or a bundle.
    pub bytes: Vec<u8>,
}

impl Inbox {
    fn new() -> io::Result<Self> {
        // SAFETY: plain integers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `eventfd` just returned it, and nothing else owns it.
        let event = unsafe { File::from_raw_fd(fd) };
        Ok(Inbox {
            queue: Mutex::default(),
            event,
        })
    }

    /// A panic of the other end cannot leave the queue half changed.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raise(&self) -> io::Result<()> {
        (&self.event).write_all(&1_u64.to_ne_bytes())
    }

    fn lower(&self) -> io::Result<()> {
        let mut count = [0; 8];
        (&self.event).read_exact(&mut count)
    }
}

impl Queue {
    fn push(&mut self, bytes: &[u8], fill: impl FnOnce(&mut Frame)) {
        if self.frames.len() >= FRAMES_MAX {
            self.dropped += 1;
            return;
        }
        let mut frame = self.spare.pop().unwrap_or_else(Frame::empty);
        frame.bytes.clear();
        frame.bytes.extend_from_slice(bytes);
        fill(&mut frame);
        self.frames.push_back(frame);
    }
}

impl Frame {
    #[inline(always)]
    fn address(&mut self, (source, to): (IpAddr, IpAddr), destination: &Destination) {
        self.source = source;
        self.destination = to;
        self.source_port = ROCE_PORT;
        self.tos = destination.tos;
        self.flow_label = if source.is_ipv6() {
            destination.flow_label
        } else {
            0
        };
        self.ttl = match destination.hop_limit {
            0 => DEFAULT_TTL,
            limit => limit,
        };
    }

    fn empty() -> Self {
        let nowhere = IpAddr::from([0, 0, 0, 0]);
        Frame {
            source: nowhere,
            destination: nowhere,
            source_port: ROCE_PORT,
            tos: 0,
            ttl: 0,
            flow_label: 0,
            bytes: Vec::new(),
        }
    }

    fn deliver(
        &self,
        icrcs: &mut IcrcCache,
        counters: &mut PortCounters,
        handle: &mut dyn FnMut(Received<'_>),
    ) {
        counters.rx_buffers += 1;
        if !is_bundle(&self.bytes) {
            return self.deliver_packet((0, &self.bytes), false, icrcs, counters, handle);
        }
        self.deliver_bundle(icrcs, counters, handle);
    }

    #[cold]
    fn deliver_bundle(
        &self,
        icrcs: &mut IcrcCache,
        counters: &mut PortCounters,
        handle: &mut dyn FnMut(Received<'_>),
    ) {
        let Some(bundle) = Bundle::parse(&self.bytes) else {
            counters.rx_bad_bundle += 1;
            return;
        };
        for packet in (0..).zip(bundle.packets()) {
            self.deliver_packet(packet, true, icrcs, counters, handle);
        }
    }

    /// One packet, with the identification that it should have had.
    #[inline(always)]
    fn deliver_packet(
        &self,
        (id, datagram): (u16, &[u8]),
        bundled: bool,
        icrcs: &mut IcrcCache,
        counters: &mut PortCounters,
        handle: &mut dyn FnMut(Received<'_>),
    ) {
        let checked = Flow::new(self.source, self.destination, self.source_port, ROCE_PORT)
            .map_or(Checked::Bad, |flow| icrcs.check(&flow, id, datagram));
        match checked {
            Checked::Good(bytes) => {
                counters.rx_packets += 1;
                counters.rx_bytes += datagram.len() as u64;
                handle(Received {
                    forwarded: false,
                    bundled,
                    source: self.source.into(),
                    source_port: self.source_port,
                    destination: self.destination.into(),
                    tos: self.tos,
                    ttl: self.ttl,
                    flow_label: self.flow_label,
                    bytes,
                    following: None,
                });
            }
            // The identification is known here: a packet that needs another one is a damaged one.
            Checked::Recovered(_) | Checked::Bad => counters.rx_bad_icrc += 1,
            Checked::Short => counters.rx_short += 1,
        }
    }
}

#[cfg(test)]
mod tests;
