//! Packets for processes of this host, which go to them through memory.
//!
//! [`LocalPort`] wraps sockets. A packet whose peer is a process of the same user on the same host
//! is copied into a ring that the peer has made ([`airdma_shm::packet_ring`]), and copied out
//! there: no system call, no ICRC. All other packets, and those of connection management, pass to
//! the sockets. What is above the port sees no difference: a full ring loses packets, as a full
//! socket does, and a ring whose process ends is abandoned for the network.
//!
//! How two ends find each other, and why neither can be misled: `docs/design/028-one-host.md`.
//!
//! | module | holds |
//! |---|---|
//! | `meeting` | sockets of processes in a directory, by address |
//! | `outlets` | the sending side: requests, probes, rings of others |
//! | `inlets` | the receiving side: probes, grants, rings of this process |
//! | [`bell`] | waking threads that sleep |
//! | [`messages`], `unix` | what travels over a Unix socket, and how |
//! | `source` | time and random numbers, the kernel's or a simulation's |

pub mod bell;
mod inlets;
mod meeting;
#[doc(hidden)] // for the crate `fuzz-bodies`
pub mod messages;
mod outlets;
mod source;
mod unix;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use airdma_shm::PacketTag;
use airdma_wire::{Neighbour, Qpn};

use crate::batch::recipient_range;
use crate::passing::pass_on;
use crate::sharing::Sharing;
use crate::{Destination, Port, PortCounters, Received, SharedPort, TransmitBatch};
pub use bell::Bell;
use inlets::Inlets;
pub use meeting::Meeting;
use outlets::{Fate, Outlets};
pub use source::Source;
pub use unix::peer_user;

/// Longest packet that goes through memory, BTH to pad.
const LOCAL_PACKET_MAX: usize = 1 << 16;
/// While there are rings and no thread sleeps, the sockets are looked at this often.
const SOCKET_INTERVAL: Duration = Duration::from_micros(20);
/// Hop limit of packets that leave it to the kernel.
const HOP_LIMIT_DEFAULT: u8 = 64;
/// Calls to the sockets before the first packets of a new ring, which were sent later.
const CATCH_UP_MAX: usize = 64;
/// Room for the probes of one batch.
const PROBES_MAX: usize = 64;
const PROBE_BYTES: usize = PROBES_MAX * 64;

/// A port whose packets to processes of this host go through memory. See the [module](self).
pub struct LocalPort<P> {
    inner: P,
    meeting: Meeting,
    bell: Arc<Bell>,
    /// By row of the GID table.
    addresses: Vec<Option<Neighbour>>,
    outlets: Outlets,
    inlets: Inlets,
    /// Probes that leave by the network.
    probes: TransmitBatch,
    /// The packet that is handled.
    buffer: Box<[u8]>,
    /// Routes with packets of the present batch.
    touched: Vec<usize>,
    /// When the sockets were looked at; `None`: they must be.
    looked: Option<Duration>,
    counters: LocalCounters,
    source: Source,
}

#[derive(Default)]
struct LocalCounters {
    sent: u64,
    sent_bytes: u64,
    lost: u64,
    received: u64,
    received_bytes: u64,
}

impl<P: SharedPort> LocalPort<P> {
    /// Wraps the port of these addresses, by row of the GID table.
    pub fn new(
        inner: P,
        addresses: &[Option<Neighbour>],
        meeting: Meeting,
        bell: Arc<Bell>,
    ) -> Self {
        Self::from_source(inner, addresses, meeting, bell, Source::Kernel)
    }

    /// As [`LocalPort::new`], with the time and the random numbers of a simulation.
    pub fn from_source(
        inner: P,
        addresses: &[Option<Neighbour>],
        mut meeting: Meeting,
        bell: Arc<Bell>,
        source: Source,
    ) -> Self {
        for (row, address) in addresses.iter().enumerate() {
            meeting.set_address(row, *address);
        }
        LocalPort {
            probes: inner.lend_batch(PROBE_BYTES, PROBES_MAX),
            inner,
            meeting,
            bell,
            addresses: addresses.to_vec(),
            outlets: Outlets::new(source.clone()),
            inlets: Inlets::default(),
            buffer: vec![0; LOCAL_PACKET_MAX].into_boxed_slice(),
            touched: Vec::new(),
            looked: None,
            counters: LocalCounters::default(),
            source,
        }
    }

    /// Writes an impossible index into each ring that this process writes to, as a process of the
    /// user can. For tests.
    #[doc(hidden)]
    pub fn damage_rings(&mut self, by: u32) {
        self.outlets.damage_rings(by);
    }

    /// Puts the packets that have a ring into it.
    fn divert(&mut self, batch: &mut TransmitBatch) {
        let now = self.source.coarse_now();
        self.outlets.prepare(now);
        let Self {
            outlets,
            meeting,
            addresses,
            touched,
            counters,
            ..
        } = self;
        let mut last: Option<(u32, Option<usize>)> = None;
        batch.take_out(|waiting| {
            let route = match last {
                Some((run, route)) if run == waiting.run => route,
                Some(_) | None => {
                    let to = waiting.destination;
                    let local = addresses.get(usize::from(to.source_index));
                    let route = local
                        .copied()
                        .flatten()
                        .filter(|_| !to.address.is_multicast())
                        .zip(recipient(waiting.bytes))
                        .and_then(|(local, to_whom)| {
                            outlets.route(to, to_whom, local, meeting, now)
                        });
                    last = Some((waiting.run, route));
                    touched.extend(route);
                    route
                }
            };
            let Some(route) = route.filter(|_| waiting.bytes.len() <= LOCAL_PACKET_MAX) else {
                return false;
            };
            if waiting.is_damaged {
                // The receiver's check of the ICRC would find it.
                return outlets.is_open(route);
            }
            match outlets.push(route, tag_of(waiting.destination), waiting.bytes) {
                Fate::Network => return false,
                Fate::Taken => {
                    counters.sent += 1;
                    counters.sent_bytes += waiting.bytes.len() as u64;
                }
                Fate::Lost => counters.lost += 1,
            }
            true
        });
        outlets.publish(touched);
        touched.clear();
    }

    /// Sends the probes of new routes.
    fn send_probes(&mut self) -> io::Result<()> {
        for to_send in self.outlets.probes.drain(..) {
            let bytes = to_send.probe.to_bytes();
            // One that finds no room is a request without an answer.
            if let Some(room) = self.probes.reserve(bytes.len()) {
                room.copy_from_slice(&bytes);
                self.probes.commit(bytes.len(), to_send.to);
            }
        }
        if self.probes.is_empty() {
            return Ok(());
        }
        let sent = self.inner.transmit(&mut self.probes);
        // What the kernel does not take now would come too late.
        self.probes.clear();
        sent
    }

    /// Delivers what has come to the sockets; probes stay here.
    fn receive_from_sockets(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let inlets = &mut self.inlets;
        let received = self.inner.receive(budget, &mut |received| {
            if !inlets.take_probe(&received) {
                handle(received);
            }
        })?;
        self.inlets.answer_probes(&self.meeting, &self.bell);
        Ok(received)
    }
}

/// The range and the number of the queue pair that a packet is for; `None` for queue pair 1, whose
/// process is selected by other things.
fn recipient(packet: &[u8]) -> Option<(u8, Qpn)> {
    let range = recipient_range(packet)?;
    let number = packet.get(5..8)?;
    let number = u32::from_be_bytes([0, number[0], number[1], number[2]]);
    Some((range, Qpn::new(number)))
}

fn tag_of(to: &Destination) -> PacketTag {
    let hop_limit = match to.hop_limit {
        0 => HOP_LIMIT_DEFAULT,
        limit => limit,
    };
    PacketTag([to.tos, hop_limit, 0, 0])
}

impl<P: SharedPort> Port for LocalPort<P> {
    pass_on!(
        inner:
        capabilities, lend_batch, stopped_at, look_for_drops, send_queue, receive_queue,
        join, leave, set_active
    );

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        self.divert(batch);
        if !self.outlets.probes.is_empty() {
            self.send_probes()?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.inner.transmit(batch)
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let slept = self.bell.answer();
        self.inlets
            .sweep_sometimes(self.source.coarse_now(), &self.meeting, &self.bell);
        if self.inlets.is_empty() {
            return self.receive_from_sockets(budget, handle);
        }
        let mut count = 0;
        if self.inlets.has_new() {
            for _ in 0..CATCH_UP_MAX {
                match self.receive_from_sockets(budget, handle)? {
                    0 => break,
                    more => count += more,
                }
            }
        }
        let (packets, bytes) = self
            .inlets
            .receive(budget, &mut self.buffer, &self.bell, handle);
        self.counters.received += packets as u64;
        self.counters.received_bytes += bytes;
        count += packets;
        let now = self.source.now();
        let looked = self.looked.filter(|_| !slept);
        if looked.is_none_or(|looked| now.saturating_sub(looked) >= SOCKET_INTERVAL) {
            self.looked = Some(now);
            let left = budget.saturating_sub(count).max(1);
            count += self.receive_from_sockets(left, handle)?;
        }
        Ok(count)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.wait_descriptors(out);
        out.push(self.bell.fd());
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.inner.counters();
        counters.tx_packets += self.counters.sent;
        counters.tx_bytes += self.counters.sent_bytes;
        counters.tx_local += self.counters.sent;
        counters.tx_local_full += self.counters.lost;
        counters.rx_packets += self.counters.received;
        counters.rx_bytes += self.counters.received_bytes;
        counters.rx_local += self.counters.received;
        counters.rx_unasked_probes += self.inlets.unasked;
        counters
    }

    fn set_address(&mut self, source_index: u8, address: Option<Neighbour>) -> io::Result<()> {
        let row = usize::from(source_index);
        if self.addresses.len() <= row {
            self.addresses.resize(row + 1, None);
        }
        if let Some(former) = self.addresses[row].take() {
            self.inlets.close_to(former, &self.bell);
        }
        self.outlets.forget_from(source_index);
        self.meeting.set_address(row, None);
        self.inner.set_address(source_index, address)?;
        self.addresses[row] = address;
        self.meeting.set_address(row, address);
        Ok(())
    }

    fn withdraw(&mut self) {
        self.meeting.close();
        self.inner.withdraw();
    }

    fn lifelines(&self, out: &mut Vec<RawFd>) {
        out.push(self.meeting.listener().as_raw_fd());
        self.outlets.lifelines(out);
        self.inlets.lifelines(out);
        self.inner.lifelines(out);
    }

    fn shared(&mut self) -> Option<&mut dyn SharedPort> {
        self.inner.shared()?;
        Some(self)
    }
}

impl<P: SharedPort> SharedPort for LocalPort<P> {
    fn has_company(&self, source_index: u8) -> bool {
        self.inner.has_company(source_index)
    }

    fn attach_steering(
        &mut self,
        source_index: u8,
        program: &[libc::sock_filter],
    ) -> io::Result<()> {
        self.inner.attach_steering(source_index, program)
    }

    fn set_sharing(&mut self, sharing: Arc<dyn Sharing>) {
        self.inner.set_sharing(sharing);
    }

    fn look_everywhere(&mut self) {
        self.inner.look_everywhere();
        self.looked = None;
    }
}
