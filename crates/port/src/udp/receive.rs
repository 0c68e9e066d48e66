//! Receiving: takes buffers from the kernel, splits them into packets, checks and delivers those.

use std::io;
use std::net::IpAddr;
use std::ptr;
use std::sync::Arc;

use airdma_wire::Neighbour;
use airdma_wire::bundle::{Bundle, is_bundle};

use super::address::{ADDRESS_ROOM, SocketAddress};
use super::control::{Arrival, CONTROL_ROOM, ControlBuffer, EMPTY_HEADER};
use super::socket::Socket;
use crate::icrc::{Checked, DATAGRAM_LEN_MIN, Flow, IcrcCache};
use crate::sharing::{Message, Sharing, is_message};
use crate::{Following, PortCounters, Received};

/// Empties sockets. Its buffers are shared by all sockets of a port, and allocated once.
pub(super) struct Receiver {
    /// `SLOTS` buffers, one behind the other.
    buffers: Box<[u8]>,
    buffer_len: usize,
    slots: Box<[Slot]>,
    headers: Box<[libc::mmsghdr]>,
    icrcs: IcrcCache,
    sharing: Option<Arc<dyn Sharing>>,
}

// SAFETY: the raw pointers in `headers` and `slots` are written and used within one call of
// `Receiver::fetch` and are never read after it; nothing in here is tied to a thread.
unsafe impl Send for Receiver {}

/// What the header of one received message points at, its bytes aside.
#[derive(Clone, Copy)]
struct Slot {
    name: SocketAddress,
    bytes: libc::iovec,
    control: ControlBuffer,
}

/// Buffers offered to the kernel at once: few, so that they stay in the cache while it fills them
/// with up to 64 KiB each. More would save calls when nothing is coalesced, but bring nothing
/// measurable: the kernel's work per datagram is many times that of a call.
const SLOTS: usize = 4;

impl Receiver {
    pub(super) fn new(datagram_bytes_max: usize) -> Self {
        let buffer_len = datagram_bytes_max.max(DATAGRAM_LEN_MIN);
        let slot = Slot {
            name: SocketAddress::zeroed(),
            bytes: libc::iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            },
            control: ControlBuffer::zeroed(),
        };
        Receiver {
            buffers: vec![0; SLOTS * buffer_len].into_boxed_slice(),
            buffer_len,
            slots: vec![slot; SLOTS].into_boxed_slice(),
            headers: vec![EMPTY_HEADER; SLOTS].into_boxed_slice(),
            icrcs: IcrcCache::new(buffer_len),
            sharing: None,
        }
    }

    pub(super) fn set_sharing(&mut self, sharing: Arc<dyn Sharing>) {
        self.sharing = Some(sharing);
    }

    /// Delivers what waits at `socket`, until it is empty or `budget` packets were examined, good
    /// or bad: a flood of bad ones must not delay the caller either. Returns the number examined.
    pub(super) fn drain(
        &mut self,
        socket: &Socket,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
        counters: &mut PortCounters,
    ) -> io::Result<usize> {
        let mut examined = 0;
        while examined < budget {
            let filled = match self.fetch(socket) {
                Ok(filled) => filled,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => break,
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(error),
                    // An ICMP error about an earlier send, reported once: what waits behind it is
                    // looked at next time.
                    _ => {
                        counters.rx_errors += 1;
                        break;
                    }
                },
            };
            if filled == 0 {
                break;
            }
            counters.rx_batches += 1;
            for index in 0..filled {
                examined += self.deliver(index, socket, handle, counters);
            }
            if filled < SLOTS {
                break;
            }
        }
        Ok(examined)
    }

    /// Lets the kernel fill buffers; returns how many it did.
    fn fetch(&mut self, socket: &Socket) -> io::Result<usize> {
        let buffers = self.buffers.chunks_exact_mut(self.buffer_len);
        let slots = self.headers.iter_mut().zip(self.slots.iter_mut());
        for ((header, slot), buffer) in slots.zip(buffers) {
            slot.bytes = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            };
            let header = &mut header.msg_hdr;
            header.msg_name = (&raw mut slot.name).cast();
            header.msg_namelen = ADDRESS_ROOM;
            header.msg_iov = &raw mut slot.bytes;
            header.msg_iovlen = 1;
            header.msg_control = slot.control.as_mut_ptr();
            header.msg_controllen = CONTROL_ROOM;
            header.msg_flags = 0;
        }
        // SAFETY: the `SLOTS` headers were pointed just now at `self.slots` and `self.buffers`,
        // with their true lengths; neither is moved or used before the call returns.
        let filled = unsafe {
            libc::recvmmsg(
                socket.descriptor(),
                self.headers.as_mut_ptr(),
                SLOTS as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        usize::try_from(filled).map_err(|_| io::Error::last_os_error())
    }

    /// Splits the buffer `index` into packets and hands on the good ones. Returns how many it held.
    fn deliver(
        &mut self,
        index: usize,
        socket: &Socket,
        handle: &mut dyn FnMut(Received<'_>),
        counters: &mut PortCounters,
    ) -> usize {
        counters.rx_buffers += 1;
        let header = &self.headers[index];
        let slot = &self.slots[index];
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            counters.rx_truncated += 1;
            return 1;
        }
        let start = index * self.buffer_len;
        let len = (header.msg_len as usize).min(self.buffer_len);
        let arrival = Arrival::parse(&slot.control, header.msg_hdr.msg_controllen);
        let source = slot.name.get().and_then(|(address, port)| {
            let flow = Flow::new(address, socket.address, port, socket.port)?;
            Some(Origin {
                address: address.into(),
                port,
                destination: socket.address.into(),
                flow,
                arrival,
                bundled: false,
            })
        });
        let (Some(origin), true) = (source, len > 0) else {
            counters.rx_short += 1;
            return 1;
        };
        let bytes = &self.buffers[start..start + len];
        // A message comes alone: one that seems to be at the head of a coalesced buffer is forged,
        // and packets are behind it.
        let is_said = origin.arrival.segment == 0 && is_message(bytes);
        if let Some(sharing) = self.sharing.as_ref().filter(|_| is_said) {
            let message = Message::parse(bytes, sharing.secret());
            take_message(message, socket.address, &**sharing, handle, counters);
            return 1;
        }
        take_buffer(bytes, origin, &mut self.icrcs, handle, counters)
    }
}

/// Hands on the packets of a buffer that is not empty.
#[inline]
fn take_buffer(
    bytes: &[u8],
    origin: Origin,
    icrcs: &mut IcrcCache,
    handle: &mut dyn FnMut(Received<'_>),
    counters: &mut PortCounters,
) -> usize {
    let segment = match origin.arrival.segment {
        0 => bytes.len(),
        segment => segment,
    };
    // Only the last of coalesced datagrams is shorter than the others, and so can be something
    // else.
    let last = (bytes.len() - 1) / segment * segment;
    if is_bundle(bytes) || is_bundle(&bytes[last..]) {
        return unbundle(bytes, segment, origin, icrcs, handle, counters);
    }
    split(bytes, segment, 0, origin, icrcs, handle, counters)
}

/// Handles a message of another process that shares the address.
#[cold]
fn take_message(
    message: Option<Message<'_>>,
    destination: IpAddr,
    sharing: &dyn Sharing,
    handle: &mut dyn FnMut(Received<'_>),
    counters: &mut PortCounters,
) {
    match message {
        Some(Message::Probe { place, epoch }) => sharing.probed(destination, place, epoch),
        Some(Message::Packet(packet)) => {
            counters.rx_packets += 1;
            counters.rx_bytes += packet.bytes.len() as u64;
            counters.rx_forwarded += 1;
            handle(Received {
                destination: destination.into(),
                forwarded: true,
                ..packet
            });
        }
        None => counters.rx_bad_icrc += 1,
    }
}

/// Where a buffer came from, and how.
#[derive(Clone, Copy)]
struct Origin {
    address: Neighbour,
    port: u16,
    destination: Neighbour,
    flow: Flow,
    arrival: Arrival,
    bundled: bool,
}

/// Hands on the packets of a buffer with bundles in it: one, or several short ones that the kernel
/// has coalesced, with each other or with packets that came by themselves.
#[cold]
fn unbundle(
    buffer: &[u8],
    segment: usize,
    origin: Origin,
    icrcs: &mut IcrcCache,
    handle: &mut dyn FnMut(Received<'_>),
    counters: &mut PortCounters,
) -> usize {
    let (mut examined, mut alone) = (0, 0);
    for datagram in buffer.chunks(segment) {
        if !is_bundle(datagram) {
            examined += split(datagram, segment, alone, origin, icrcs, handle, counters);
            alone += 1;
            continue;
        }
        let Some(bundle) = Bundle::parse(datagram) else {
            counters.rx_bad_bundle += 1;
            examined += 1;
            continue;
        };
        let (packets, segment) = bundle.segments();
        let origin = Origin {
            bundled: true,
            ..origin
        };
        examined += split(packets, segment, 0, origin, icrcs, handle, counters);
    }
    examined
}

/// Delivers the packets of one buffer, each of `segment` bytes except the last.
///
/// The k-th is expected to have IP identification `first` + k: a segmented send that was not cut on
/// its way (veth, loopback), or was cut and coalesced again, is in one buffer, as is a bundle.
fn split(
    buffer: &[u8],
    segment: usize,
    first: u16,
    origin: Origin,
    icrcs: &mut IcrcCache,
    handle: &mut dyn FnMut(Received<'_>),
    counters: &mut PortCounters,
) -> usize {
    let mut examined = 0;
    for group in buffer.chunks(segment * TOGETHER_MAX) {
        let mut start = 0;
        let mut end = 0;
        for datagram in group.chunks(segment) {
            let id = first.wrapping_add(examined as u16);
            let checked = icrcs.check(&origin.flow, id, datagram);
            examined += 1;
            let is_good = match checked {
                Checked::Good(_) => true,
                Checked::Recovered(_) => {
                    counters.rx_id_recovered += 1;
                    true
                }
                Checked::Bad => {
                    counters.rx_bad_icrc += 1;
                    false
                }
                Checked::Short => {
                    counters.rx_short += 1;
                    false
                }
            };
            if is_good {
                counters.rx_packets += 1;
                counters.rx_bytes += datagram.len() as u64;
            } else {
                hand_on(&group[start..end], segment, &origin, handle);
                start = end + datagram.len();
            }
            end += datagram.len();
        }
        hand_on(&group[start..], segment, &origin, handle);
    }
    examined
}

/// Hands on packets that are good, each of `segment` bytes except the last.
fn hand_on(packets: &[u8], segment: usize, origin: &Origin, handle: &mut dyn FnMut(Received<'_>)) {
    let following = Following::new(packets, segment);
    while let Some(bytes) = following.pop() {
        handle(Received {
            forwarded: false,
            bundled: origin.bundled,
            source: origin.address,
            source_port: origin.port,
            destination: origin.destination,
            tos: origin.arrival.tos,
            ttl: origin.arrival.ttl,
            flow_label: origin.arrival.flow_label,
            bytes,
            following: Some(&following),
        });
    }
}

/// Packets that are checked before the first of them is handed on. Few enough to stay in the first
/// level of a CPU's cache until then.
const TOGETHER_MAX: usize = 16;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use airdma_wire::Qpn;
    use airdma_wire::bundle::bundle_header;

    use super::super::control::ControlBuffer;
    use super::*;

    const HERE: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

    fn origin(segment: usize) -> Origin {
        let arrival = Arrival {
            segment,
            ..Arrival::parse(&ControlBuffer::zeroed(), 0)
        };
        Origin {
            address: HERE.into(),
            port: 4791,
            destination: HERE.into(),
            flow: Flow::new(HERE, HERE, 4791, 4791).unwrap(),
            arrival,
            bundled: false,
        }
    }

    /// A packet of `len` bytes, BTH to ICRC.
    fn packet(len: usize, number: u8, icrcs: &mut IcrcCache) -> Vec<u8> {
        let mut bytes = vec![number; len - 4];
        bytes[0] = 4;
        let icrc = icrcs.icrc(&origin(0).flow, 0, &bytes);
        bytes.extend(icrc.to_le_bytes());
        bytes
    }

    fn bundle(packets: &[Vec<u8>]) -> Vec<u8> {
        let header = bundle_header(packets[0].len() as u16, packets.len(), Qpn::new(5));
        [&header[..], &packets.concat()].concat()
    }

    #[test]
    fn the_kernel_may_coalesce_a_bundle_with_a_single_packet() {
        let mut icrcs = IcrcCache::new(2048);
        let short = [1, 2].map(|number| packet(40, number, &mut icrcs));
        let (long, last) = (packet(88, 3, &mut icrcs), packet(60, 4, &mut icrcs));
        // Equal datagrams, and a shorter one behind them.
        for (datagrams, expected) in [
            (
                vec![bundle(&short), long.clone(), last.clone()],
                [1, 2, 3, 4],
            ),
            (
                vec![packet(96, 3, &mut icrcs), bundle(&short)],
                [3, 1, 2, 0],
            ),
        ] {
            let mut counters = PortCounters::default();
            let mut found = [0; 4];
            let mut count = 0;
            let mut note = |packet: Received<'_>| {
                let number = packet.bytes[1];
                assert_eq!(packet.bundled, number < 3);
                found[count] = number;
                count += 1;
            };
            let origin = origin(datagrams[0].len());
            let buffer = datagrams.concat();
            take_buffer(&buffer, origin, &mut icrcs, &mut note, &mut counters);
            assert_eq!(found, expected, "{counters:?}");
            assert_eq!((counters.rx_bad_icrc, counters.rx_bad_bundle), (0, 0));
        }
    }

    #[test]
    fn each_good_packet_is_handed_on_once_and_in_order() {
        let mut icrcs = IcrcCache::new(2048);
        let packets: u8 = 40;
        let mut datagrams: Vec<_> = (0..packets)
            .map(|number| packet(60, number, &mut icrcs))
            .collect();
        let bad = [0, 5, 6, 20];
        for number in bad {
            datagrams[number][30] ^= 1;
        }
        datagrams.push(packet(40, packets, &mut icrcs));
        let buffer = datagrams.concat();
        let expected: Vec<_> = (0..=packets)
            .filter(|number| !bad.contains(&usize::from(*number)))
            .collect();
        for most in [0, 1, 3, usize::MAX] {
            let mut counters = PortCounters::default();
            let mut found = Vec::new();
            let mut calls = 0;
            let mut note = |packet: Received<'_>| {
                calls += 1;
                found.push(packet.bytes[1]);
                let following = packet.following.unwrap();
                let mut taken = 0;
                while let Some(bytes) = following.peek().filter(|_| taken < most) {
                    assert_eq!(bytes.len(), packet.bytes.len());
                    found.push(bytes[1]);
                    following.take();
                    taken += 1;
                }
            };
            take_buffer(&buffer, origin(60), &mut icrcs, &mut note, &mut counters);
            assert_eq!(found, expected, "{most}");
            assert_eq!(calls < expected.len(), most > 0);
            assert_eq!(counters.rx_packets as usize, expected.len());
            assert_eq!(counters.rx_bad_icrc as usize, bad.len());
        }
    }
}
