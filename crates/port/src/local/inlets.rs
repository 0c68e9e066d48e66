//! The receiving side: rings that other processes of the host write packets to.
//!
//! A ring is made for a process that asked for it over the socket of this one, when the probe with
//! the token of its request has arrived over the network. The connection stays; when either end
//! closes it, the ring is done.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use airdma_shm::{PacketConsumer, packet_ring};
use airdma_wire::Neighbour;
use airdma_wire::local_probe::LocalProbe;

use super::bell::{Bell, RingId};
use super::meeting::Meeting;
use super::messages::{Grant, ROOM, Request, Secret};
use super::unix::{self, Message};
use crate::Received;

/// Rings that other processes may write to at once, of half a mebibyte each.
const INLETS_MAX: usize = 128;
/// Requests that wait for their probe. The oldest gives way.
const REQUESTS_MAX: usize = 32;
/// Probes that one call to receive takes.
const PROBES_MAX: usize = 8;
/// Time between two searches for rings whose producers are gone, and for connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// A ring, and how its packets would have arrived over the network.
struct Inlet {
    id: RingId,
    consumer: PacketConsumer,
    connection: OwnedFd,
    source: Neighbour,
    source_port: u16,
    destination: Neighbour,
    /// Nothing was taken yet: what was sent before the ring was there may still be in a socket.
    is_new: bool,
}

/// A probe that has arrived.
struct Arrived {
    probe: LocalProbe,
    source: Neighbour,
    source_port: u16,
    destination: Neighbour,
}

/// The rings of a port.
#[derive(Default)]
pub(super) struct Inlets {
    inlets: Vec<Inlet>,
    requests: Vec<(Secret, OwnedFd)>,
    probes: Vec<Arrived>,
    next_id: RingId,
    /// Probes that no process has asked for.
    pub(super) unasked: u64,
    /// The ring to look at first, so that a busy one cannot starve the others.
    next: usize,
    swept: Duration,
}

impl Inlets {
    pub(super) fn is_empty(&self) -> bool {
        self.inlets.is_empty()
    }

    /// Rings, and requests that wait.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.inlets.len(), self.requests.len())
    }

    /// Whether a ring holds its first packets.
    pub(super) fn has_new(&mut self) -> bool {
        self.inlets
            .iter_mut()
            .any(|inlet| inlet.is_new && inlet.consumer.has_packets())
    }

    /// Delivers up to `budget` packets. Returns how many, and their bytes.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        buffer: &mut [u8],
        bell: &Bell,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        let rings = self.inlets.len();
        let mut has_corrupt = false;
        for step in 0..rings {
            let index = (self.next + step) % rings;
            let inlet = &mut self.inlets[index];
            while count < budget {
                let Some((tag, packet)) = inlet.consumer.pop(buffer) else {
                    has_corrupt |= inlet.consumer.check().is_err();
                    break;
                };
                inlet.is_new = false;
                // Each counts, or a process that writes them faster than this loop would hold it.
                count += 1;
                bytes += packet.len() as u64;
                if packet.len() < PACKET_LEN_MIN {
                    continue;
                }
                let [tos, ttl, ..] = tag.0;
                handle(Received {
                    source: inlet.source,
                    source_port: inlet.source_port,
                    destination: inlet.destination,
                    tos,
                    ttl,
                    flow_label: 0,
                    forwarded: false,
                    bundled: false,
                    bytes: packet,
                    following: None,
                });
            }
            inlet.consumer.release();
            if count >= budget {
                self.next = (index + 1) % rings;
                bell.leave_work();
                break;
            }
        }
        if has_corrupt {
            self.keep(bell, |inlet| inlet.consumer.check().is_ok());
        }
        (count, bytes)
    }

    /// Takes a packet that may be a probe. Returns whether it is one.
    pub(super) fn take_probe(&mut self, received: &Received<'_>) -> bool {
        let Some(probe) = LocalProbe::parse(received.bytes) else {
            return false;
        };
        if self.probes.len() < PROBES_MAX && !received.destination.is_multicast() {
            self.probes.push(Arrived {
                probe,
                source: received.source,
                source_port: received.source_port,
                destination: received.destination,
            });
        }
        true
    }

    /// Makes the rings whose probes have arrived.
    pub(super) fn answer_probes(&mut self, meeting: &Meeting, bell: &Bell) {
        let mut is_current = false;
        for arrived in std::mem::take(&mut self.probes) {
            let token = arrived.probe.token;
            let mut asked = self.find_request(token);
            if asked.is_none() && !std::mem::replace(&mut is_current, true) {
                // A request is sent before its probe.
                self.take_requests(meeting);
                asked = self.find_request(token);
            }
            let Some(asked) = asked else {
                self.unasked += 1;
                continue;
            };
            let (_, connection) = self.requests.swap_remove(asked);
            self.open(&arrived, connection, bell);
        }
    }

    fn find_request(&self, token: Secret) -> Option<usize> {
        self.requests.iter().position(|(other, _)| *other == token)
    }

    /// Accepts connections, and reads their requests.
    fn take_requests(&mut self, meeting: &Meeting) {
        self.requests
            .retain(|(_, connection)| !unix::is_closed(connection));
        for _ in 0..REQUESTS_MAX {
            let Some(connection) = meeting.accept() else {
                return;
            };
            let mut bytes = [0; ROOM];
            // It is sent at once; a process that does not is no airdma process.
            let Message::Whole(len, _) = unix::receive(&connection, &mut bytes) else {
                continue;
            };
            let Some(request) = Request::parse(&bytes[..len]) else {
                continue;
            };
            if self.requests.len() == REQUESTS_MAX {
                self.requests.remove(0);
            }
            self.requests.push((request.token, connection));
        }
    }

    fn open(&mut self, arrived: &Arrived, connection: OwnedFd, bell: &Bell) {
        if self.inlets.len() >= INLETS_MAX {
            self.sweep(bell);
        }
        if self.inlets.len() >= INLETS_MAX {
            return;
        }
        let Ok((consumer, block)) = packet_ring() else {
            return;
        };
        let grant = Grant {
            nonce: arrived.probe.nonce,
            source: arrived.source.into(),
            destination: arrived.destination.into(),
            offset: block.offset(),
        };
        let descriptors = [block.fd().as_raw_fd(), bell.fd()];
        let id = self.next_id;
        self.next_id += 1;
        // Before the peer can write: it finds the flag of a sleeping thread set.
        bell.add(id, consumer.watch());
        if unix::send(&connection, &grant.to_bytes(), &descriptors).is_err() {
            return bell.remove(id);
        }
        self.inlets.push(Inlet {
            id,
            consumer,
            connection,
            source: arrived.source,
            source_port: arrived.source_port,
            destination: arrived.destination,
            is_new: true,
        });
    }

    /// Gives up rings whose producers are gone, from time to time, and accepts connections: those
    /// of processes whose probes never come here would fill the listener's queue, and no other
    /// process could ask.
    pub(super) fn sweep_sometimes(&mut self, now: Duration, meeting: &Meeting, bell: &Bell) {
        if now.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.sweep(bell);
            self.take_requests(meeting);
        }
    }

    fn sweep(&mut self, bell: &Bell) {
        self.keep(bell, |inlet| {
            inlet.consumer.has_packets() || !unix::is_closed(&inlet.connection)
        });
    }

    /// Gives up the rings to a local address that this host has no more.
    pub(super) fn close_to(&mut self, destination: Neighbour, bell: &Bell) {
        self.keep(bell, |inlet| inlet.destination != destination);
    }

    fn keep(&mut self, bell: &Bell, keep: impl Fn(&mut Inlet) -> bool) {
        self.inlets.retain_mut(|inlet| {
            let kept = keep(inlet);
            if !kept {
                bell.remove(inlet.id);
            }
            kept
        });
    }

    /// Descriptors by which producers know that this process lives.
    pub(super) fn lifelines(&self, out: &mut Vec<RawFd>) {
        let requests = self.requests.iter().map(|(_, connection)| connection);
        let inlets = self.inlets.iter().map(|inlet| &inlet.connection);
        out.extend(requests.chain(inlets).map(AsRawFd::as_raw_fd));
    }
}

/// Bytes of a BTH.
const PACKET_LEN_MIN: usize = 12;
