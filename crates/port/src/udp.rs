//! RoCEv2 over plain UDP sockets: no privilege, any interface, any kernel since 4.18.
//!
//! One unconnected, non-blocking socket per local address and per multicast group, bound to port
//! 4791. Groups of equal-sized packets to one peer leave as one segmented send (UDP_SEGMENT),
//! several groups in one `sendmmsg`; received datagrams come coalesced (UDP_GRO), several buffers
//! in one `recvmmsg`. Where the kernel lacks either, plain datagrams do.
//!
//! # The hidden IP identification
//!
//! The ICRC covers the identification field of the IPv4 header, which a UDP socket can neither
//! choose nor read.
//!
//! Sending: an unconnected socket with DF set (`IP_PMTUDISC_PROBE`) sends identification 0, and the
//! segments of one segmented send get 0, 1, 2, ... when the kernel cuts them. [`crate::selftest`]
//! proves it where it runs. A connected socket would count on its own, unseen: never connect these.
//!
//! Receiving: the k-th segment of a coalesced buffer should have identification k; that is exact,
//! and is all an airdma peer needs. If it does not, the packet is accepted when *some*
//! identification explains its ICRC, because other peers (the kernel's rxe, hardware) count theirs.
//! The cost: 2^16 of the 2^32 values of an ICRC are then right, so heavy damage passes this check
//! with a chance of 2^-16 instead of 2^-32; a single flipped bit is always found. Trying the
//! predicted identification first saves time, not strength, since a damaged packet misses the
//! prediction as a packet of rxe does. In practice the same damage must also get past the frame
//! check sequence of its link (32 bits), and past the UDP checksum (16 bits), which airdma sends
//! and the kernel verifies; rxe sends none. IPv6 has no identification, so there the check has its
//! full strength. `rx_id_recovered` counts the packets accepted in this way. (Not done:
//! identifications that are not close to the peer's last could be refused, which would win most of
//! the strength back.)

pub(crate) mod address;
pub(crate) mod control;
mod receive;
mod socket;
mod transmit;

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use airdma_radio::{Backlog, Limit, LinkView, Queue};
use airdma_wire::{Neighbour, ROCE_PORT};

use crate::sharing::Sharing;
use crate::{Capabilities, Port, PortCounters, QueueFill, Received, SharedPort, TransmitBatch};
use receive::Receiver;
use socket::Socket;
use transmit::Sender;

pub use socket::BindError;

/// Configuration of a [`UdpPort`]. The defaults suit everything except tests and measurements.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// UDP port of both ends. RoCEv2 is 4791 and nothing else on a real network.
    pub port: u16,
    /// Use UDP_SEGMENT (GSO) if the kernel has it.
    pub segmentation: bool,
    /// Use UDP_GRO if the kernel has it.
    pub coalescing: bool,
    /// Kernel receive buffer per address, in bytes of payload and bookkeeping. Without privilege
    /// the kernel cuts it to
    /// `net.core.rmem_max`.
    pub receive_buffer_bytes: usize,
    /// Kernel send buffer per address, likewise; cut to `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
    /// Longest datagram, or coalesced run of datagrams, that can be received. Longer ones are cut
    /// by the kernel, counted (`rx_truncated`) and dropped.
    pub datagram_bytes_max: usize,
    /// Let other processes of this user bind the same addresses. Which of them gets a packet is
    /// then up to [`SharedPort::attach_steering`].
    pub share: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig {
            port: ROCE_PORT,
            segmentation: true,
            coalescing: true,
            receive_buffer_bytes: 8 << 20,
            send_buffer_bytes: 2 << 20,
            datagram_bytes_max: 1 << 16,
            share: false,
        }
    }
}

/// What the kernel granted a [`UdpPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Groups of packets leave as one segmented send. Turns false for good if the interface proves
    /// unable.
    pub segmentation: bool,
    /// Datagrams arrive coalesced.
    pub coalescing: bool,
    /// Kernel receive buffer of the first address, as the kernel counts it (twice what was asked
    /// for).
    pub receive_buffer_bytes: usize,
    /// Kernel send buffer of the first address, likewise.
    pub send_buffer_bytes: usize,
}

/// RoCEv2 over UDP sockets, one per local address of one interface. See the [module](self).
pub struct UdpPort {
    /// By GID index.
    sockets: Vec<Option<Socket>>,
    /// One for each multicast group that was joined.
    groups: Vec<Socket>,
    /// Index of the address whose send buffer was full.
    stopped_at: Option<u8>,
    /// With the port number that all sockets have.
    config: UdpConfig,
    interface_index: u32,
    /// Packets that the kernel dropped at sockets that are closed.
    past_drops: u64,
    sender: Sender,
    receiver: Receiver,
    granted: Granted,
    /// The next receive call skips no socket.
    everywhere: bool,
    /// See [`SKIPPED_MAX`].
    skipped_max: Duration,
    /// Socket to which something came last.
    heard_last: usize,
    /// Socket to look at first, so that a busy address cannot starve the others.
    next: usize,
    counters: PortCounters,
    /// Opened at first use.
    view: Option<LinkView>,
}

/// An unused address is looked at in one of this many receive calls that get to it.
const IDLE_POLL_INTERVAL: u32 = 64;

/// One that nothing came to in this many receive calls is quiet, unless it was the last that
/// something came to: each look is a system call.
const QUIET_AFTER: u32 = 1024;

/// A quiet address is looked at in one of this many.
const QUIET_POLL_INTERVAL: u32 = 16;

/// Longest time for which a quiet address is skipped.
///
/// A program that polls seldom need not wait for many polls.
const SKIPPED_MAX: Duration = Duration::from_millis(1);

/// Most bytes of an IPv4 datagram, which is fragmented if the interface's MTU is smaller.
const DATAGRAM_BYTES_MAX: usize = 65_507;

/// `Destination::source_index` is a byte.
const ADDRESSES_MAX: usize = 256;

impl UdpPort {
    /// Binds one socket to each of `addresses`, which all belong to the interface
    /// `interface_index`; the index into `addresses` is the GID index. The interface gives IPv6
    /// link-local addresses their scope, and is not used otherwise: the kernel's routes decide
    /// where packets leave.
    ///
    /// # Errors
    /// [`BindError`] says which address failed, why, and what to do. Nothing stays bound.
    pub fn bind(
        addresses: &[IpAddr],
        interface_index: u32,
        config: UdpConfig,
    ) -> Result<Self, BindError> {
        let table: Vec<_> = addresses.iter().copied().map(Some).collect();
        Self::bind_table(&table, interface_index, config)
    }

    /// As [`UdpPort::bind`], for a table with empty entries.
    ///
    /// # Errors
    /// As [`UdpPort::bind`].
    pub fn bind_table(
        addresses: &[Option<IpAddr>],
        interface_index: u32,
        mut config: UdpConfig,
    ) -> Result<Self, BindError> {
        if addresses.is_empty() || addresses.len() > ADDRESSES_MAX {
            return Err(BindError::AddressCount {
                count: addresses.len(),
            });
        }
        let mut sockets = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let Some(address) = address else {
                sockets.push(None);
                continue;
            };
            sockets.push(Some(Socket::open(address, interface_index, &config)?));
        }
        let bound = || sockets.iter().flatten();
        let first = bound().next();
        let segmentation = config.segmentation && bound().all(Socket::can_segment);
        let size = |which| first.map_or(0, |first| first.buffer_bytes(which));
        let granted = Granted {
            segmentation,
            coalescing: bound().all(|socket| socket.coalescing),
            receive_buffer_bytes: size(libc::SO_RCVBUF),
            send_buffer_bytes: size(libc::SO_SNDBUF),
        };
        config.port = first.map_or(config.port, |first| first.port);
        Ok(UdpPort {
            sockets,
            groups: Vec::new(),
            stopped_at: None,
            interface_index,
            past_drops: 0,
            sender: Sender::new(segmentation),
            receiver: Receiver::new(config.datagram_bytes_max),
            config,
            granted,
            next: 0,
            everywhere: false,
            skipped_max: SKIPPED_MAX,
            heard_last: 0,
            counters: PortCounters::default(),
            view: None,
        })
    }

    /// The UDP port of all addresses: the one asked for, or, if that was 0, the one the kernel
    /// chose for the first.
    pub fn port(&self) -> u16 {
        self.config.port
    }

    /// What the kernel granted.
    pub fn granted(&self) -> Granted {
        Granted {
            segmentation: self.sender.segmentation(),
            ..self.granted
        }
    }

    /// Bytes that wait for the line.
    ///
    /// Without a queue in front of a wireless interface, the sockets are charged for what its
    /// driver holds. Others without a queue, such as a veth, are not the line, which is somewhere
    /// behind.
    fn unsent(&mut self) -> Option<QueueFill> {
        let view = self.view.as_mut()?;
        if view.read_interface(Instant::now()).value.is_err() {
            return None;
        }
        let memory = self.sockets.iter().flatten().filter_map(Socket::memory);
        let bytes = memory.map(|memory| u64::from(memory.send_bytes)).sum();
        Some(QueueFill {
            bytes,
            capacity: None,
            left_bytes: None,
        })
    }

    fn close(&mut self, socket: &Socket) {
        self.past_drops += socket.drops();
    }
}

/// Fill of the queue in front of an interface. A limit in packets counts in packets of the present
/// average size.
pub(crate) fn fill_of(backlog: &Backlog) -> QueueFill {
    let bytes = u64::from(backlog.bytes);
    let capacity = match backlog.limit {
        Some(Limit::Bytes(most)) => Some(u64::from(most)),
        Some(Limit::Packets(most)) if backlog.packets > 0 => {
            Some(bytes / u64::from(backlog.packets) * u64::from(most))
        }
        Some(Limit::Packets(_)) | None => None,
    };
    QueueFill {
        bytes,
        capacity,
        left_bytes: Some(backlog.sent_bytes),
    }
}

/// What a socket can be bound to.
fn ip_of(address: Neighbour) -> io::Result<IpAddr> {
    let refused = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
    address.ip().ok_or_else(refused)
}

/// A system error, for failures while the port runs.
fn system_error(error: &BindError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

impl Port for UdpPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            datagram_bytes_max: DATAGRAM_BYTES_MAX,
            equal_lengths: true,
            headroom: 0,
            sees_identification: false,
            sees_hop_limit: true,
            icrc_in_hardware: false,
            references_payload: false,
        }
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        let done = self
            .sender
            .transmit(&mut self.sockets, batch, &mut self.counters)?;
        let stopped_at = batch.next_destination().filter(|_| !done);
        self.stopped_at = stopped_at.map(|next| next.source_index);
        Ok(())
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let before = self.counters.rx_packets;
        let mut examined = 0;
        let mut now = None;
        let everywhere = std::mem::take(&mut self.everywhere);
        let addresses = self.sockets.len();
        let count = addresses + self.groups.len();
        for step in 0..count {
            if examined >= budget {
                break;
            }
            let index = (self.next + step) % count;
            let socket = match self.sockets.get_mut(index) {
                Some(socket) => socket.as_mut(),
                None => self.groups.get_mut(index - addresses),
            };
            let Some(socket) = socket else {
                continue;
            };
            let interval = match socket.silent {
                _ if !socket.active => IDLE_POLL_INTERVAL,
                QUIET_AFTER.. if index != self.heard_last => QUIET_POLL_INTERVAL,
                _ => 1,
            };
            if interval > 1 && !everywhere {
                let now = *now.get_or_insert_with(Instant::now);
                if socket.is_skipped(interval, self.skipped_max, now) {
                    continue;
                }
            }
            let left = budget - examined;
            let found = self
                .receiver
                .drain(socket, left, handle, &mut self.counters)?;
            if found > 0 {
                socket.silent = 0;
                self.heard_last = index;
            } else {
                socket.silent = socket.silent.saturating_add(1);
            }
            examined += found;
            if examined >= budget {
                self.next = (index + 1) % count;
            }
        }
        Ok((self.counters.rx_packets - before) as usize)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.sockets.iter().flatten().map(Socket::descriptor));
        out.extend(self.groups.iter().map(Socket::descriptor));
    }

    fn stopped_at(&self) -> Option<RawFd> {
        let socket = self.sockets.get(usize::from(self.stopped_at?))?.as_ref()?;
        Some(socket.descriptor())
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn look_for_drops(&mut self) {
        let sockets = self.sockets.iter().flatten().chain(&self.groups);
        self.counters.rx_overflow = self.past_drops + sockets.map(Socket::drops).sum::<u64>();
    }

    fn send_queue(&mut self) -> Option<QueueFill> {
        let index = self.interface_index;
        let view = self.view.get_or_insert_with(|| LinkView::open(index));
        let queue = &view.read_queue(Instant::now()).value;
        match queue {
            Ok(Queue::Backlog(backlog)) => Some(fill_of(backlog)),
            Ok(Queue::NoQueue) => self.unsent(),
            Err(_) => None,
        }
    }

    fn receive_queue(&mut self, source_index: u8) -> Option<QueueFill> {
        let socket = self.sockets.get(usize::from(source_index))?.as_ref()?;
        let memory = socket.memory()?;
        Some(QueueFill {
            bytes: memory.receive_bytes.into(),
            capacity: Some(memory.receive_limit_bytes.into()),
            left_bytes: None,
        })
    }

    fn set_address(&mut self, source_index: u8, address: Option<Neighbour>) -> io::Result<()> {
        let index = usize::from(source_index);
        if let Some(old) = self.sockets.get_mut(index).and_then(Option::take) {
            self.close(&old);
        }
        let Some(address) = address else {
            return Ok(());
        };
        let socket = Socket::open(ip_of(address)?, self.interface_index, &self.config)
            .map_err(|error| system_error(&error))?;
        while self.sockets.len() <= index {
            self.sockets.push(None);
        }
        self.sockets[index] = Some(socket);
        Ok(())
    }

    fn join(&mut self, group: Neighbour) -> io::Result<()> {
        let group = ip_of(group)?;
        if self.groups.iter().any(|socket| socket.address == group) {
            return Ok(());
        }
        let socket = Socket::open_group(group, self.interface_index, &self.config)
            .map_err(|error| system_error(&error))?;
        self.groups.push(socket);
        Ok(())
    }

    fn leave(&mut self, group: Neighbour) {
        let of_group = |socket: &Socket| group.ip() == Some(socket.address);
        if let Some(index) = self.groups.iter().position(of_group) {
            let socket = self.groups.swap_remove(index);
            self.close(&socket);
        }
    }

    fn set_active(&mut self, source_index: u8, active: bool) {
        let socket = self.sockets.get_mut(usize::from(source_index));
        if let Some(socket) = socket.and_then(Option::as_mut) {
            socket.active = active;
            socket.silent = 0;
        }
    }

    fn shared(&mut self) -> Option<&mut dyn SharedPort> {
        Some(self)
    }
}

impl SharedPort for UdpPort {
    fn has_company(&self, source_index: u8) -> bool {
        let socket = self.sockets.get(usize::from(source_index));
        socket
            .and_then(Option::as_ref)
            .is_some_and(|socket| socket.joined)
    }

    fn attach_steering(
        &mut self,
        source_index: u8,
        program: &[libc::sock_filter],
    ) -> io::Result<()> {
        let socket = self.sockets.get(usize::from(source_index));
        let socket = socket.and_then(Option::as_ref);
        socket.map_or(Ok(()), |socket| socket.attach_steering(program))
    }

    fn set_sharing(&mut self, sharing: Arc<dyn Sharing>) {
        self.receiver.set_sharing(sharing);
    }

    fn look_everywhere(&mut self) {
        self.everywhere = true;
    }
}
