//! Moving RoCEv2 packets: one trait, one folder or file per backend, batches in and batches out.
//!
//! A [`Port`] knows addresses, datagrams and the invariant CRC that closes every RoCEv2 packet. It
//! does not know what a queue pair is. The engine writes packets in place into a [`TransmitBatch`];
//! the port seals each with its ICRC and hands the batch to the kernel in as few calls as it can.
//! Received packets arrive through a callback, checked, with the ICRC cut off.
//!
//! Backends: [`udp`] (plain sockets, no privilege), [`packet`] (whole Ethernet frames, with
//! CAP_NET_RAW), [`sim`] (an in-memory pair for tests). [`local`] wraps sockets, and gives packets
//! for processes of this host to them through memory. [`tap`] wraps any of them, and copies their
//! packets for a reader. [`impair`] wraps any of them and loses, repeats, reorders or damages
//! packets on purpose; [`selftest`] proves on loopback that the IP identification the ICRC depends
//! on is what the UDP backend assumes.
//!
//! Nothing is allocated per packet (`tests/no_allocation.rs` proves it), and nothing is locked, but
//! for the queues that the two ends of a [`sim`] pair share.
//!
//! With `--cfg loom` there is no such crate, as there is no shared memory for [`local`].
#![cfg(not(loom))]

pub mod descriptors;
#[doc(hidden)] // for the crate `fuzz-bodies`
pub mod icrc;
pub mod impair;
pub mod local;
pub mod own_link;
pub mod packet;
pub mod selftest;
pub mod sharing;
pub mod sim;
pub mod tap;
pub mod udp;

mod batch;
mod capabilities;
mod counters;
mod following;
mod passing;
mod raw;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use airdma_wire::Neighbour;
pub use batch::{Destination, GROUP_BYTES_MAX, TransmitBatch};
pub use capabilities::Capabilities;
pub use counters::PortCounters;
pub use following::Following;
pub use icrc::CopySum;
pub use packet::PacketPort;
pub use raw::RawSocket;
use sharing::Sharing;
use tap::Tap;
pub use udp::{BindError, Granted, UdpConfig, UdpPort};

/// A packet as a port delivers it: ICRC already checked and cut off.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The host that the packet came from.
    pub source: Neighbour,
    /// UDP source port: entropy of the sender, which ports do not check; a connection may be held
    /// to one (but CNPs come from port 0).
    pub source_port: u16,
    /// The local address, or the group, that it came to.
    pub destination: Neighbour,
    /// IPv4 TOS or IPv6 traffic class: DSCP and, in the low two bits, ECN.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit, as it arrived.
    pub ttl: u8,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: u32,
    /// Whether it was forwarded by another process that shares the address (see [`sharing`]).
    pub forwarded: bool,
    /// Whether it came in a bundle ([`airdma_wire::bundle`]), which only peers that have agreed on
    /// it may send.
    pub bundled: bool,
    /// BTH to pad, without the ICRC. At least the 12 bytes of a BTH.
    pub bytes: &'a [u8],
    /// Packets behind it that may be taken with it.
    pub following: Option<&'a Following<'a>>,
}

/// Fill of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueFill {
    /// Bytes in it.
    pub bytes: u64,
    /// Its capacity in bytes, if known.
    pub capacity: Option<u64>,
    /// Bytes that have left it so far, from all senders. `None` if unknown, or if there are no
    /// other senders.
    pub left_bytes: Option<u64>,
}

/// Packet I/O: takes batches, gives batches, and says what to wait for.
///
/// One owner at a time: a worker holds its port exclusively, so there is nothing to lock.
///
/// Order of calls: any. [`Port::transmit`] and [`Port::receive`] never block; to sleep, wait for
/// one of [`Port::wait_descriptors`] to become readable (or writable, when a batch could not be
/// emptied).
pub trait Port: Send {
    /// Capabilities of the port.
    fn capabilities(&self) -> Capabilities;

    /// Lends a batch for packets of `bytes` bytes together, laid out so that each is written where
    /// it leaves from.
    fn lend_batch(&self, bytes: usize, packets_max: usize) -> TransmitBatch {
        TransmitBatch::for_port(bytes, packets_max, self.capabilities())
    }

    /// Seals the ICRC of each packet in `batch`, which this port has lent, and sends them in order.
    ///
    /// What the kernel does not take now stays in the batch and is counted (`tx_again`); call again
    /// later, with more packets appended if need be. A packet that the kernel refuses for good (too
    /// big, filtered, no route) is counted by reason and dropped: the transport above recovers, as
    /// from any loss.
    ///
    /// # Errors
    /// Only when the port itself is broken (its descriptor is no longer a socket).
    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()>;

    /// Lends what has arrived to `handle`, oldest first, until nothing is left or about `budget`
    /// packets were looked at (a coalesced buffer is always finished, so it may be some dozens
    /// more). Returns how many were delivered. Never blocks.
    ///
    /// # Errors
    /// Only when the port itself is broken.
    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Received<'_>))
    -> io::Result<usize>;

    /// Appends the descriptors that are readable when [`Port::receive`] would deliver something,
    /// and writable when a batch that stayed non-empty may be tried again. They stay the same until
    /// an address or a group comes or goes.
    fn wait_descriptors(&self, out: &mut Vec<RawFd>);

    /// The one of them to wait for until a batch that stayed non-empty may be tried again; `None`:
    /// any.
    fn stopped_at(&self) -> Option<RawFd> {
        None
    }

    /// The counters; drops by the kernel as of the last [`Port::look_for_drops`].
    fn counters(&self) -> PortCounters;

    /// Reads the kernel's drops: a system call for each socket.
    fn look_for_drops(&mut self) {}

    /// What this host has sent and the line has not taken yet, other programs included; `None` if
    /// unknown.
    ///
    /// A few system calls at most, and none if it was asked within the last millisecond.
    fn send_queue(&mut self) -> Option<QueueFill> {
        None
    }

    /// What came to the local address `source_index` and waits for [`Port::receive`]; `None` if
    /// unknown.
    fn receive_queue(&mut self, source_index: u8) -> Option<QueueFill> {
        let _ = source_index;
        None
    }

    /// Gives the local address `source_index` another value, or (`None`) takes it away. What waits
    /// to be sent from an address that is gone is dropped and counted.
    ///
    /// # Errors
    /// Why the new address cannot be used; the old one is gone all the same. `EOPNOTSUPP` where
    /// addresses are fixed.
    fn set_address(&mut self, source_index: u8, address: Option<Neighbour>) -> io::Result<()> {
        let _ = (source_index, address);
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Begins to deliver what is sent to a multicast group, with the group as
    /// [`Received::destination`]. Packets that this host sends to the group come back to it as
    /// well.
    ///
    /// # Errors
    /// Those of the system (descriptors, memory); `EOPNOTSUPP` where there are no groups.
    fn join(&mut self, group: Neighbour) -> io::Result<()> {
        let _ = group;
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Ends the delivery of what is sent to a group. Unknown groups are ignored.
    fn leave(&mut self, group: Neighbour) {
        let _ = group;
    }

    /// Says whether the local address `source_index` has users. A port may look at unused addresses
    /// less often; their packets are still delivered. All addresses start active. Unknown indices
    /// are ignored.
    fn set_active(&mut self, source_index: u8, active: bool) {
        let _ = (source_index, active);
    }

    /// Ends what lets other processes find this port, before the program ends.
    fn withdraw(&mut self) {}

    /// Appends the descriptors by which other processes know that this one lives, beside the
    /// sockets: a child of fork closes them.
    fn lifelines(&self, out: &mut Vec<RawFd>) {
        let _ = out;
    }

    /// The same port, if other processes can have its addresses too.
    fn shared(&mut self) -> Option<&mut dyn SharedPort> {
        None
    }

    /// The tap in front of this port, if it is one.
    fn tap(&mut self) -> Option<&mut Tap> {
        None
    }
}

/// A port whose addresses other processes of the same user can have too: only sockets are.
pub trait SharedPort: Port {
    /// Whether other processes had the local address `source_index` when this port got it.
    fn has_company(&self, source_index: u8) -> bool;

    /// Gives all sockets at the local address `source_index` the classic BPF program that chooses
    /// which one gets a packet.
    ///
    /// It sees the UDP payload, and answers with the place of a socket in the order in which they
    /// were bound. When one is closed the last takes its place; an answer beyond the last leaves
    /// the choice to the kernel.
    ///
    /// # Errors
    /// Those of the system; `EINVAL` while there is no other socket.
    fn attach_steering(
        &mut self,
        source_index: u8,
        program: &[libc::sock_filter],
    ) -> io::Result<()>;

    /// From now on messages of the processes that share the addresses are taken, and given to
    /// `sharing`.
    fn set_sharing(&mut self, sharing: Arc<dyn Sharing>);

    /// The next [`Port::receive`] looks at all addresses.
    fn look_everywhere(&mut self);
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn lend_batch(&self, bytes: usize, packets_max: usize) -> TransmitBatch {
        (**self).lend_batch(bytes, packets_max)
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        (**self).transmit(batch)
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        (**self).receive(budget, handle)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        (**self).wait_descriptors(out);
    }

    fn stopped_at(&self) -> Option<RawFd> {
        (**self).stopped_at()
    }

    fn counters(&self) -> PortCounters {
        (**self).counters()
    }

    fn look_for_drops(&mut self) {
        (**self).look_for_drops();
    }

    fn send_queue(&mut self) -> Option<QueueFill> {
        (**self).send_queue()
    }

    fn receive_queue(&mut self, source_index: u8) -> Option<QueueFill> {
        (**self).receive_queue(source_index)
    }

    fn set_address(&mut self, source_index: u8, address: Option<Neighbour>) -> io::Result<()> {
        (**self).set_address(source_index, address)
    }

    fn join(&mut self, group: Neighbour) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&mut self, group: Neighbour) {
        (**self).leave(group);
    }

    fn set_active(&mut self, source_index: u8, active: bool) {
        (**self).set_active(source_index, active);
    }

    fn withdraw(&mut self) {
        (**self).withdraw();
    }

    fn lifelines(&self, out: &mut Vec<RawFd>) {
        (**self).lifelines(out);
    }

    fn shared(&mut self) -> Option<&mut dyn SharedPort> {
        (**self).shared()
    }

    fn tap(&mut self) -> Option<&mut Tap> {
        (**self).tap()
    }
}
