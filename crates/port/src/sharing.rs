//! Messages between the processes of one user that share an address: packets that reached the wrong
//! process, and probes that tell a process the index of its socket at the address.
//!
//! Messages travel as UDP datagrams from the host to itself. Their second byte, where a BTH has its
//! version, tells them from packets; the steering program ([`crate::SharedPort::attach_steering`])
//! sends them to the place that they name.
//!
//! ```text
//! 0      2      3      4       6      8        16
//! | ffff | kind | how  | place | 0    | secret | probe: epoch (8)
//!                                              | packet: source (16), source port (2), tos, ttl,
//!                                                        flow label (4), BTH to pad
//! ```
//! *How* is 1 for a packet from a bundle, which its process may not accept from that peer. Numbers
//! are in network byte order. Messages without the secret are ignored. So that no other host learns
//! it, a message is sent *from* the address that it is sent to: the kernel refuses that if the
//! address is not (or no longer) the host's.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use airdma_wire::Gid;

use crate::udp::address::SocketAddress;
use crate::udp::control::{ControlBuffer, ControlWriter};
use crate::{Received, descriptors};

/// What a port asks of a process that shares its addresses with others.
pub trait Sharing: Send + Sync {
    /// The secret of the processes at these addresses, which their messages carry.
    fn secret(&self) -> u64;

    /// Handles a probe with this epoch, which was sent to `place` at the address `local` and
    /// arrived here.
    fn probed(&self, local: IpAddr, place: u16, epoch: u64);
}

/// Where a message has its mark, and a packet its version (in the low four bits, and it is 0).
pub const MARK_AT: usize = 1;
/// Mask of the version's bits.
pub const VERSION_MASK: u8 = 0x0f;
/// Where a message names its place, 16 bits.
pub const PLACE_AT: usize = 4;

const MARK: [u8; 2] = [0xff; 2];
const KIND_AT: usize = 2;
const KIND_PROBE: u8 = 1;
const KIND_PACKET: u8 = 2;
/// Offset of how a message's packet came.
const HOW_AT: usize = 3;
const HOW_BUNDLED: u8 = 1;
const PROBE_LEN: usize = 24;
const HEADER_LEN: usize = 40;
/// Bytes of a BTH.
const PACKET_LEN_MIN: usize = 12;

/// A message.
pub(crate) enum Message<'a> {
    Probe { place: u16, epoch: u64 },
    Packet(Received<'a>),
}

/// Whether a datagram may be a message rather than a packet.
#[inline]
pub(crate) fn is_message(datagram: &[u8]) -> bool {
    datagram
        .get(MARK_AT)
        .is_some_and(|byte| byte & VERSION_MASK == VERSION_MASK)
}

impl<'a> Message<'a> {
    /// Reads one; the destination of a packet is left to the caller.
    pub(crate) fn parse(datagram: &'a [u8], secret: u64) -> Option<Self> {
        let (head, _) = datagram.split_at_checked(PROBE_LEN)?;
        if head[..2] != MARK || word(head, 8)? != secret {
            return None;
        }
        match head[KIND_AT] {
            KIND_PROBE => Some(Message::Probe {
                place: u16::from_be_bytes([head[PLACE_AT], head[PLACE_AT + 1]]),
                epoch: word(head, 16)?,
            }),
            KIND_PACKET => {
                let (head, bytes) = datagram.split_at_checked(HEADER_LEN)?;
                let source = Ipv6Addr::from(<[u8; 16]>::try_from(&head[16..32]).ok()?);
                (bytes.len() >= PACKET_LEN_MIN).then(|| {
                    Message::Packet(Received {
                        source: source.into(),
                        source_port: u16::from_be_bytes([head[32], head[33]]),
                        destination: Ipv6Addr::UNSPECIFIED.into(),
                        tos: head[34],
                        ttl: head[35],
                        flow_label: u32::from_be_bytes([head[36], head[37], head[38], head[39]]),
                        forwarded: true,
                        bundled: head[HOW_AT] & HOW_BUNDLED != 0,
                        bytes,
                        following: None,
                    })
                })
            }
            _ => None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn head(kind: u8, place: u16, secret: u64) -> [u8; HEADER_LEN] {
    let mut head = [0; HEADER_LEN];
    head[..2].copy_from_slice(&MARK);
    head[KIND_AT] = kind;
    head[PLACE_AT..PLACE_AT + 2].copy_from_slice(&place.to_be_bytes());
    head[8..16].copy_from_slice(&secret.to_be_bytes());
    head
}

/// Sockets that send messages; one pair suffices for all interfaces of a network namespace.
pub struct MessengerSockets {
    v4: OwnedFd,
    /// None where there is no IPv6.
    v6: Option<OwnedFd>,
}

impl MessengerSockets {
    /// # Errors
    /// Those of the system (descriptors).
    pub fn open() -> io::Result<Self> {
        Ok(MessengerSockets {
            v4: socket(libc::AF_INET)?,
            v6: socket(libc::AF_INET6).ok(),
        })
    }
}

/// Sends messages.
pub struct Messenger {
    sockets: Arc<MessengerSockets>,
    interface_index: u32,
    port: u16,
}

impl Messenger {
    /// For the addresses of an interface, at which the processes have UDP port `port`.
    pub fn new(sockets: Arc<MessengerSockets>, interface_index: u32, port: u16) -> Self {
        Messenger {
            sockets,
            interface_index,
            port,
        }
    }

    /// Sends a probe to a place at the address `local`. What the kernel does not take is lost.
    pub fn probe(&self, local: IpAddr, place: u16, epoch: u64, secret: u64) {
        let mut head = head(KIND_PROBE, place, secret);
        head[16..24].copy_from_slice(&epoch.to_be_bytes());
        self.send(local, &head[..PROBE_LEN], &[]);
    }

    /// Hands a packet on to a place at the address it came to. What the kernel does not take is
    /// lost.
    pub fn forward(&self, packet: &Received<'_>, place: u16, secret: u64) {
        let mut head = head(KIND_PACKET, place, secret);
        if packet.bundled {
            head[HOW_AT] |= HOW_BUNDLED;
        }
        head[16..32].copy_from_slice(&Gid::from(packet.source).0);
        head[32..34].copy_from_slice(&packet.source_port.to_be_bytes());
        head[34] = packet.tos;
        head[35] = packet.ttl;
        head[36..40].copy_from_slice(&packet.flow_label.to_be_bytes());
        if let Some(destination) = packet.destination.ip() {
            self.send(destination, &head, packet.bytes);
        }
    }

    fn send(&self, to: IpAddr, head: &[u8], bytes: &[u8]) {
        let fd = match (to, &self.sockets.v6) {
            (IpAddr::V4(_), _) => &self.sockets.v4,
            (IpAddr::V6(_), Some(fd)) => fd,
            (IpAddr::V6(_), None) => return,
        };
        let mut name = SocketAddress::new(to, self.port, self.interface_index);
        let mut parts = [head, bytes].map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        let mut control = ControlBuffer::zeroed();
        let control_len = send_from(&mut control, to);
        // SAFETY: all zero is a value of this struct of pointers and integers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr();
        message.msg_controllen = control_len;
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = name.len();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        // SAFETY: the name, the parts and the control messages live until the call returns, and the
        // kernel only reads them.
        unsafe {
            libc::sendmsg(
                fd.as_raw_fd(),
                &raw const message,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
    }
}

/// Writes the control message by which a datagram leaves from an address of this host, or not at
/// all: `struct in_pktinfo` of ip(7), `in6_pktinfo` of RFC 3542. Returns its length.
fn send_from(control: &mut ControlBuffer, address: IpAddr) -> usize {
    let mut writer = ControlWriter::new(control);
    match address {
        IpAddr::V4(ip) => {
            // Interface, the address, one that only matters when received.
            let mut value = [0; 12];
            value[4..8].copy_from_slice(&ip.octets());
            writer.push(libc::IPPROTO_IP, libc::IP_PKTINFO, value);
        }
        IpAddr::V6(ip) => {
            // The address, interface.
            let mut value = [0; 20];
            value[..16].copy_from_slice(&ip.octets());
            writer.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, value);
        }
    }
    writer.len()
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain integers.
    descriptors::open(|| unsafe { libc::socket(family, kind, 0) })
}

#[cfg(test)]
mod tests;
