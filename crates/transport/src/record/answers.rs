//! What a queue pair that takes records sends without a request of its application: answers to
//! packets of reliable datagrams, requests to read and the answers to those.

use std::collections::VecDeque;

use airdma_wire::{Qpn, RecordAck, RecordRead};

use super::server::{ReadAsked, ReadServer};
use crate::counter::Counter;
use crate::datagram::SentDatagram;
use crate::host::Host;
use crate::queue_pair::Transmit;
use crate::time::Time;
use crate::work::Path;

/// Answers that wait to be sent at most. Beyond, the packets are as good as lost.
const ANSWERS_MAX: usize = 64;

/// Packets that leave before all messages, and the reads of peers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// At most [`ANSWERS_MAX`].
    owed: VecDeque<(Owed, Path)>,
    /// Answers reads of peers.
    server: Option<Box<ReadServer>>,
    /// Reads of peers that are answered.
    reads: usize,
}

/// A packet that leaves before all messages.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "their memory is taken at the start"
)]
enum Owed {
    Ack(RecordAck),
    /// A request to read, or the answer to one that is no memory.
    Read(RecordRead),
}

impl Owed {
    fn dest_qpn(&self) -> Qpn {
        match self {
            Owed::Ack(answer) => answer.bth.dest_qpn,
            Owed::Read(packet) => packet.bth.dest_qpn,
        }
    }
}

impl Answers {
    /// Takes memory for them. `key` is secret.
    pub(crate) fn reserve(&mut self, key: [u64; 2]) {
        self.owed.reserve(ANSWERS_MAX);
        self.server = Some(Box::new(ReadServer::new(key)));
    }

    /// Drops all of them.
    pub(crate) fn forget(&mut self) {
        self.owed.clear();
        if let Some(server) = &mut self.server {
            server.clear();
        }
        self.reads = 0;
    }

    fn owe(&mut self, packet: Owed, path: Path) {
        if self.owed.len() < ANSWERS_MAX {
            self.owed.push_back((packet, path));
        }
    }

    /// Owes an answer to a packet of a reliable datagram.
    pub(crate) fn owe_ack(&mut self, answer: RecordAck, path: Path) {
        self.owe(Owed::Ack(answer), path);
    }

    /// Owes a request to read, or an answer to one.
    pub(crate) fn owe_read(&mut self, packet: RecordRead, path: Path) {
        self.owe(Owed::Read(packet), path);
    }

    pub(crate) fn wants_transmit(&self) -> bool {
        !self.owed.is_empty() || self.reads > 0
    }

    /// Destination of the next packet that leaves before all messages.
    pub(crate) fn next(&self) -> Option<(Path, Qpn)> {
        let (packet, path) = self.owed.front()?;
        Some((*path, packet.dest_qpn()))
    }

    /// Writes that packet.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let (packet, path) = self.owed.pop_front()?;
        let len = match packet {
            Owed::Ack(answer) => {
                host.count(Counter::AcksSent);
                answer.emit(out)
            }
            Owed::Read(packet) => packet.emit(out),
        };
        Some(Transmit { len, path })
    }

    /// Reads of peers that are answered.
    #[inline]
    pub(crate) fn reads(&self) -> usize {
        self.reads
    }

    /// Takes the request of a peer to read.
    pub(crate) fn handle_read<H: Host>(
        &mut self,
        now: Time,
        asked: &ReadAsked<'_>,
        qpn: Qpn,
        payload_max: u32,
        host: &mut H,
    ) {
        let Some(server) = &mut self.server else {
            return host.count(Counter::DropMalformed);
        };
        let answer = server.handle(now, asked, qpn, payload_max, host);
        self.reads = server.jobs();
        if let Some(answer) = answer {
            self.owe_read(answer, asked.path);
        }
    }

    /// See [`QueuePair::next_read`](crate::QueuePair::next_read).
    pub(crate) fn next_read(&self, place: usize) -> Option<(Path, Qpn)> {
        self.server.as_ref()?.next(place)
    }

    /// See [`QueuePair::poll_read`](crate::QueuePair::poll_read).
    pub(crate) fn poll_read<H: Host>(
        &mut self,
        place: usize,
        asks: bool,
        qpn: Qpn,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<SentDatagram> {
        let server = self.server.as_deref_mut()?;
        let sent = server.poll(place, asks, qpn, host, out);
        self.reads = server.jobs();
        sent
    }
}
