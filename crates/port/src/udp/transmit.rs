//! Sending a batch: which packets leave together, and what to do with refusals.

use std::io;
use std::net::IpAddr;
use std::ptr;

use airdma_wire::bundle::BUNDLE_HEADER_LEN;

use super::address::SocketAddress;
use super::control::{ControlBuffer, ControlWriter, EMPTY_HEADER};
use super::socket::Socket;
use crate::batch::GROUP_BYTES_MAX;
use crate::icrc::{Flow, IcrcCache};
use crate::{Destination, PortCounters, TransmitBatch};

/// Sends batches. Everything the kernel needs to be pointed at lives here, allocated once.
pub(super) struct Sender {
    segmentation: bool,
    messages: Box<[Message]>,
    headers: Box<[libc::mmsghdr]>,
    /// Packets in each planned message.
    groups: [u16; MESSAGES_MAX],
    /// The planned messages may leave in fragments: bundles, and packets too big for the interface.
    fragmenting: bool,
    icrcs: IcrcCache,
    /// The kernel's answer that a test sets.
    #[cfg(test)]
    pub(super) refuse: Option<fn(Attempt) -> Option<i32>>,
}

/// A send that a test may refuse.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    /// Packets of the first message.
    pub(super) packets: usize,
    /// Messages.
    pub(super) messages: usize,
    /// The first is a bundle.
    pub(super) is_bundle: bool,
    /// Source address.
    pub(super) source: IpAddr,
}

// SAFETY: the raw pointers in `headers` and `messages` are written and used within one call of
// `Sender::send` and are never read after it; nothing in here is tied to a thread.
unsafe impl Send for Sender {}

/// One message of a `sendmmsg`: what its header points at.
#[derive(Clone, Copy)]
struct Message {
    name: SocketAddress,
    /// In front of the packets, in a bundle.
    head: [u8; BUNDLE_HEADER_LEN],
    /// The head, and the packets.
    parts: [libc::iovec; 2],
    is_bundle: bool,
    control: ControlBuffer,
    control_len: usize,
}

/// Messages per `sendmmsg`.
const MESSAGES_MAX: usize = 64;

impl Sender {
    pub(super) fn new(segmentation: bool) -> Self {
        let message = Message {
            name: SocketAddress::zeroed(),
            head: [0; BUNDLE_HEADER_LEN],
            parts: [libc::iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            }; 2],
            is_bundle: false,
            control: ControlBuffer::zeroed(),
            control_len: 0,
        };
        Sender {
            segmentation,
            messages: vec![message; MESSAGES_MAX].into_boxed_slice(),
            headers: vec![EMPTY_HEADER; MESSAGES_MAX].into_boxed_slice(),
            groups: [0; MESSAGES_MAX],
            fragmenting: false,
            icrcs: IcrcCache::new(GROUP_BYTES_MAX),
            #[cfg(test)]
            refuse: None,
        }
    }

    pub(super) fn segmentation(&self) -> bool {
        self.segmentation
    }

    /// Sends what the kernel takes, drops what it refuses. Returns false if it takes no more now:
    /// what is left waits for room at the address of the first packet of the batch.
    pub(super) fn transmit(
        &mut self,
        sockets: &mut [Option<Socket>],
        batch: &mut TransmitBatch,
        counters: &mut PortCounters,
    ) -> io::Result<bool> {
        match self.empty(sockets, batch, counters) {
            Ok(()) => Ok(true),
            Err(Stop::Busy) => {
                counters.tx_again += 1;
                Ok(false)
            }
            Err(Stop::Broken(error)) => Err(error),
        }
    }

    /// Each round sends or drops at least one packet, or finds the first to be too big (once), or
    /// ends: no error can repeat for ever.
    fn empty(
        &mut self,
        sockets: &mut [Option<Socket>],
        batch: &mut TransmitBatch,
        counters: &mut PortCounters,
    ) -> Result<(), Stop> {
        while let Some(next) = batch.next_destination() {
            let socket = sockets.get_mut(usize::from(next.source_index));
            let Some(socket) = socket.and_then(Option::as_mut) else {
                drop_packets(batch, 1, counters);
                continue;
            };
            let planned = self.plan(socket, batch);
            if planned == 0 {
                drop_packets(batch, 1, counters);
                continue;
            }
            match self.send(socket, batch, planned)? {
                Sent::Messages(sent) => self.account(socket, batch, sent, counters),
                Sent::Refused(refusal) => self.refused(socket, batch, refusal, counters)?,
            }
        }
        Ok(())
    }

    /// Groups the packets at the front of the batch that leave through `socket` into messages, and
    /// seals them. Returns the number of messages; 0 if the first packet can never leave. Packets
    /// that must be cut on the IP layer and those that must not have to leave in different calls,
    /// since DF is an option of the socket.
    fn plan(&mut self, socket: &Socket, batch: &mut TransmitBatch) -> usize {
        let Some(source_index) = batch.next_destination().map(|next| next.source_index) else {
            return 0;
        };
        let mut first = 0;
        let mut planned = 0;
        while let Some(entry) = batch.waiting().get(first)
            && planned < MESSAGES_MAX
        {
            let destination = batch.destination(entry);
            let bundles = destination.bundles && socket.bundles;
            let group = if self.segmentation || bundles {
                batch.group_len(first)
            } else {
                1
            };
            let fragmenting = bundles && group > 1 || socket.must_fragment(entry.wire_len());
            if first > 0 && fragmenting != self.fragmenting {
                break;
            }
            self.fragmenting = fragmenting;
            let flow = destination
                .address
                .ip()
                .and_then(|address| Flow::new(socket.address, address, socket.port, socket.port));
            let (Some(flow), true) = (flow, destination.source_index == source_index) else {
                break;
            };
            let count = if fragmenting && !bundles { 1 } else { group };
            for index in 0..count {
                batch.seal(first + index, &flow, index as u16, &mut self.icrcs);
            }
            self.groups[planned] = count as u16;
            first += count;
            planned += 1;
        }
        planned
    }

    /// Passes the first `planned` messages to the kernel; returns how many it accepted, or that it
    /// refuses the first.
    fn send(
        &mut self,
        socket: &mut Socket,
        batch: &TransmitBatch,
        planned: usize,
    ) -> Result<Sent, Stop> {
        #[cfg(test)]
        if let Some(errno) = self.refuse.and_then(|refuse| {
            refuse(Attempt {
                packets: usize::from(self.groups[0]),
                messages: planned,
                is_bundle: self.fragmenting && self.groups[0] > 1,
                source: socket.address,
            })
        }) {
            return Sent::error(io::Error::from_raw_os_error(errno));
        }
        if let Err(error) = socket.set_fragmenting(self.fragmenting) {
            return Sent::error(error);
        }
        let mut first = 0;
        let slots = self.headers.iter_mut().zip(self.messages.iter_mut());
        for ((header, message), &count) in slots.zip(&self.groups[..planned]) {
            let count = usize::from(count);
            message.is_bundle = self.fragmenting && count > 1;
            message.fill(socket, batch, first, count);
            message.point(header);
            first += count;
        }
        // SAFETY: the first `planned` headers were pointed just now at `self.messages` and at the
        // batch, with their true lengths; neither is moved or written before the call returns.
        let sent = unsafe {
            libc::sendmmsg(
                socket.descriptor(),
                self.headers.as_mut_ptr(),
                planned as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        match usize::try_from(sent) {
            // Not in the manual; taken as "not now", so that no loop can spin on it.
            Ok(0) => Err(Stop::Busy),
            Ok(sent) => Ok(Sent::Messages(sent)),
            Err(_) => Sent::error(io::Error::last_os_error()),
        }
    }

    /// The kernel took the first `sent` messages.
    fn account(
        &self,
        socket: &mut Socket,
        batch: &mut TransmitBatch,
        sent: usize,
        counters: &mut PortCounters,
    ) {
        let (mut packets, mut several) = (0, 0);
        for &count in &self.groups[..sent] {
            packets += usize::from(count);
            several += usize::from(count > 1);
        }
        if self.fragmenting {
            let alone = sent - several;
            socket.note_fragmented(alone);
            counters.tx_fragmented += alone as u64;
            counters.tx_bundles += several as u64;
        } else {
            counters.tx_segmented_sends += several as u64;
        }
        counters.tx_sends += sent as u64;
        counters.tx_packets += packets as u64;
        counters.tx_bytes += batch.wire_bytes(0, packets).len() as u64;
        batch.advance(packets);
    }

    /// The kernel refused the first message. A segmented one may have been refused for being
    /// segmented (EIO: the interface cannot checksum; EINVAL: too many segments for this kernel, or
    /// bigger than the MTU before 6.14), so its first packet is tried alone: if that works,
    /// segmentation is at fault and stays off; if not, the packets are. A packet too big for the
    /// interface is left for another round, in which it may be cut. A bundle that is too big, or
    /// that the kernel cannot send for another reason, is the last from this address: its packets
    /// leave in another round.
    fn refused(
        &mut self,
        socket: &mut Socket,
        batch: &mut TransmitBatch,
        mut refusal: Refusal,
        counters: &mut PortCounters,
    ) -> Result<(), Stop> {
        let group = usize::from(self.groups[0]);
        let is_bundle = self.fragmenting && group > 1;
        if is_bundle && matches!(refusal, Refusal::TooBig | Refusal::Unsuitable) {
            socket.bundles = false;
            counters.tx_bundles_refused += 1;
            return Ok(());
        }
        if group > 1 && refusal == Refusal::Unsuitable {
            self.segmentation = false;
            self.plan(socket, batch);
            let alone = self.send(socket, batch, 1);
            self.segmentation = true;
            match alone? {
                Sent::Messages(sent) => {
                    self.segmentation = false;
                    counters.tx_segmentation_refused += 1;
                    self.account(socket, batch, sent, counters);
                    return Ok(());
                }
                Sent::Refused(reason) => refusal = reason,
            }
        }
        if refusal == Refusal::TooBig
            && !self.fragmenting
            && let Some(first) = batch.waiting().first()
        {
            socket.note_too_big(first.wire_len());
            return Ok(());
        }
        count_refusal(refusal, group, counters);
        drop_packets(batch, group, counters);
        Ok(())
    }
}

impl Message {
    /// Makes this the message of `count` packets of the batch, from the `first` waiting one on.
    fn fill(&mut self, socket: &mut Socket, batch: &TransmitBatch, first: usize, count: usize) {
        let entry = &batch.waiting()[first];
        let destination = batch.destination(entry);
        let bytes = batch.wire_bytes(first, count);
        let address = destination.address.ip();
        let address = address.expect("a flow was made of it when it was planned");
        self.name = SocketAddress::new(address, socket.port, socket.interface_index)
            .with_flow_label(destination.flow_label);
        self.parts[1] = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        if self.is_bundle {
            self.head = batch.bundle_header(first, count);
        }
        let mut control = ControlWriter::new(&mut self.control);
        write_header_fields(destination, address, &mut control);
        if let Some(own_link) = &mut socket.own_link
            && own_link.leads_to(address)
        {
            let index = own_link.interface_index();
            leave_by(index, socket.address, &mut control);
        }
        if count > 1 && !self.is_bundle {
            // `group_len` keeps the sum below 65,000, so one segment fits.
            let segment = entry.wire_len() as u16;
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment.to_ne_bytes());
        }
        self.control_len = control.len();
    }

    fn point(&mut self, header: &mut libc::mmsghdr) {
        let header = &mut header.msg_hdr;
        header.msg_name = (&raw mut self.name).cast();
        header.msg_namelen = self.name.len();
        if self.is_bundle {
            self.parts[0] = libc::iovec {
                iov_base: (&raw mut self.head).cast(),
                iov_len: BUNDLE_HEADER_LEN,
            };
            header.msg_iov = self.parts.as_mut_ptr();
            header.msg_iovlen = 2;
        } else {
            header.msg_iov = &raw mut self.parts[1];
            header.msg_iovlen = 1;
        }
        header.msg_control = self.control.as_mut_ptr();
        header.msg_controllen = self.control_len;
    }
}

/// TOS and TTL differ per destination, so they travel with the send instead of being set on the
/// socket.
fn write_header_fields(
    destination: &Destination,
    address: IpAddr,
    control: &mut ControlWriter<'_>,
) {
    let (level, tos, ttl) = match address {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    if destination.tos != 0 {
        control.push(level, tos, i32::from(destination.tos).to_ne_bytes());
    }
    if destination.hop_limit != 0 {
        control.push(level, ttl, i32::from(destination.hop_limit).to_ne_bytes());
    }
}

/// The interface by which a datagram leaves, and its address there: `struct in_pktinfo` of ip(7),
/// `in6_pktinfo` of RFC 3542.
fn leave_by(interface_index: u32, source: IpAddr, control: &mut ControlWriter<'_>) {
    match source {
        IpAddr::V4(ip) => {
            let mut value = [0; 12];
            value[..4].copy_from_slice(&interface_index.to_ne_bytes());
            value[4..8].copy_from_slice(&ip.octets());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, value);
        }
        IpAddr::V6(ip) => {
            let mut value = [0; 20];
            value[..16].copy_from_slice(&ip.octets());
            value[16..].copy_from_slice(&interface_index.to_ne_bytes());
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, value);
        }
    }
}

fn drop_packets(batch: &mut TransmitBatch, count: usize, counters: &mut PortCounters) {
    counters.tx_errors += count as u64;
    batch.advance(count);
}

fn count_refusal(refusal: Refusal, packets: usize, counters: &mut PortCounters) {
    let packets = packets as u64;
    match refusal {
        Refusal::TooBig => counters.tx_too_big += packets,
        Refusal::Filtered => counters.tx_filtered += packets,
        Refusal::Unreachable => counters.tx_unreachable += packets,
        Refusal::Unsuitable | Refusal::Other => {}
    }
}

/// Result of a send.
enum Sent {
    /// The kernel accepted this many messages.
    Messages(usize),
    /// The kernel will never accept the first.
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    TooBig,
    Filtered,
    Unreachable,
    /// The kernel cannot do it this way (EIO, EINVAL).
    Unsuitable,
    /// ENOBUFS (a queue dropped it), ENOMEM, ECONNREFUSED (an ICMP message about an earlier
    /// packet), and the like.
    Other,
}

/// Why nothing more can be sent in this call.
enum Stop {
    /// The send buffer is full, or a signal came: try again later.
    Busy,
    /// The descriptor or the memory is no longer valid.
    Broken(io::Error),
}

impl Sent {
    fn error(error: io::Error) -> Result<Self, Stop> {
        let refusal = match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => return Err(Stop::Busy),
            Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(Stop::Broken(error)),
            Some(libc::EMSGSIZE) => Refusal::TooBig,
            Some(libc::EPERM | libc::EACCES) => Refusal::Filtered,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN) => Refusal::Unreachable,
            Some(libc::EIO | libc::EINVAL) => Refusal::Unsuitable,
            _ => Refusal::Other,
        };
        Ok(Sent::Refused(refusal))
    }
}
