//! What datagram queue pairs do beyond SEND: Write-Records, reads and reliable datagrams, and which
//! datagram leaves next.

use airdma_wire::{
    Bth, Deth, Opcode, Psn, Qkey, Qpn, RecordAck, RecordAnswer, RecordPacket, RecordRead,
};

use super::{Arrival, PARTITION_MASK, QueuePair, RecordAnswerOwed, Service, Transmit};
use crate::attributes::{QpState, QpType};
use crate::counter::Counter;
use crate::datagram::{NextDatagram, SentDatagram};
use crate::host::Host;
use crate::record::{ReadAsked, Reader, RecordForm, RecordHost, RecordTarget};
use crate::reliable::{InvalidReliableConfig, ReliableConfig, Repeat};
use crate::request_packet::{DEFAULT_PKEY, request_bth};
use crate::time::Time;
use crate::work::Path;

impl QueuePair {
    /// Handles one packet of a Write-Record, or of a reliable datagram, to `records`, which are
    /// those of this queue pair. Returns the answer that its sender gets, if any.
    pub fn handle_record<H: RecordHost>(
        &self,
        now: Time,
        arrival: &Arrival,
        packet: &RecordPacket<'_>,
        records: &mut RecordTarget,
        host: &mut H,
    ) -> Option<RecordAnswerOwed> {
        let headers = &packet.headers;
        let reason = if !self.attributes.state.receives() {
            Counter::DropBadState
        } else if headers.bth.pkey & PARTITION_MASK != DEFAULT_PKEY & PARTITION_MASK {
            Counter::DropBadPkey
        } else if self.config.qp_type != QpType::Ud
            || headers.token.is_some() && arrival.destination.is_multicast()
            || headers.read.is_some() && (headers.token.is_some() || headers.is_send)
        {
            // A group would answer with many packets for one.
            Counter::DropMalformed
        } else if headers.deth.qkey != self.attributes.qkey {
            Counter::DropBadQkey
        } else {
            let reply = records.handle_packet(now, arrival, packet, host)?;
            let Some(token) = headers.token else {
                let is_refused = reply.answer == RecordAnswer::Refused;
                let is_answered = !is_refused && !arrival.destination.is_multicast();
                return is_answered.then_some(RecordAnswerOwed::Echo);
            };
            return Some(RecordAnswerOwed::Ack(RecordAck {
                bth: Bth {
                    opcode: Opcode::UdSendOnly,
                    dest_qpn: headers.deth.src_qpn,
                    psn: headers.bth.psn,
                    ..request_bth()
                },
                deth: Deth {
                    qkey: Qkey(0),
                    src_qpn: self.config.qpn,
                },
                id: headers.rceth.id,
                token,
                answer: reply.answer,
                round: headers.rceth.round,
                base: reply.base,
                map: reply.map,
            }));
        };
        host.count_record(reason);
        None
    }

    /// Takes memory for answers. A datagram queue pair owes none before. `key` is secret.
    pub fn reserve_answers(&mut self, key: [u64; 2]) {
        if let Service::Datagram(datagrams) = &mut self.service {
            datagrams.answers_mut().reserve(key);
        }
    }

    /// Takes the request of a peer to read memory by datagrams, which was for this queue pair
    /// alone.
    pub fn handle_read<H: Host>(&mut self, now: Time, asked: &ReadAsked<'_>, host: &mut H) {
        let headers = asked.packet;
        let (qpn, qkey) = (self.config.qpn, self.attributes.qkey);
        let sends = self.attributes.state == QpState::ReadyToSend;
        let reason = match &mut self.service {
            _ if headers.bth.pkey & PARTITION_MASK != DEFAULT_PKEY & PARTITION_MASK => {
                Counter::DropBadPkey
            }
            Service::Connected { .. } | Service::Unreliable { .. } => Counter::DropMalformed,
            Service::Datagram(_) if !sends => Counter::DropBadState,
            Service::Datagram(_) if headers.deth.qkey != qkey => Counter::DropBadQkey,
            Service::Datagram(datagrams) => return datagrams.handle_read(now, asked, qpn, host),
        };
        host.count(reason);
    }

    /// What this queue pair says of itself when it asks for memory on a path; `None` in a state in
    /// which nothing is sent.
    pub fn reader(&self, path: &Path) -> Option<Reader> {
        let Service::Datagram(datagrams) = &self.service else {
            return None;
        };
        (self.attributes.state == QpState::ReadyToSend).then(|| Reader {
            qpn: self.config.qpn,
            qkey: self.attributes.qkey,
            payload_max: datagrams.read_payload(path),
        })
    }

    /// Owes a request to read, which leaves on `path` before other datagrams. It is dropped as
    /// [answers](Self::owe_answer) are.
    pub fn owe_read(&mut self, request: RecordRead, path: Path) {
        let sends = self.attributes.state == QpState::ReadyToSend;
        if let Service::Datagram(datagrams) = &mut self.service
            && sends
        {
            datagrams.answers_mut().owe_read(request, path);
        }
    }

    /// Path and queue pair of the read at a place among those that are answered.
    pub fn next_read(&self, place: usize) -> Option<(Path, Qpn)> {
        match &self.service {
            Service::Datagram(datagrams) if self.attributes.state == QpState::ReadyToSend => {
                datagrams.answers().next_read(place)
            }
            Service::Datagram(_) | Service::Connected { .. } | Service::Unreliable { .. } => None,
        }
    }

    /// Writes the next packet of the read at a place, as [`next_read`](Self::next_read) said, into
    /// `out`; the read is then the last one, or done. `None`: its memory is gone, and so is it.
    pub fn poll_read<H: Host>(
        &mut self,
        place: usize,
        asks: bool,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<SentDatagram> {
        let qpn = self.config.qpn;
        match &mut self.service {
            Service::Datagram(datagrams) if self.attributes.state == QpState::ReadyToSend => {
                datagrams.poll_read(place, asks, qpn, host, out)
            }
            Service::Datagram(_) | Service::Connected { .. } | Service::Unreliable { .. } => None,
        }
    }

    /// Owes an answer, which leaves on `path` before other datagrams. It is dropped if too many
    /// are owed, or in a state in which nothing is sent.
    pub fn owe_answer(&mut self, answer: RecordAck, path: Path) {
        let sends = self.attributes.state == QpState::ReadyToSend;
        if let Service::Datagram(datagrams) = &mut self.service
            && sends
        {
            datagrams.answers_mut().owe_ack(answer, path);
        }
    }

    /// Sets what a datagram queue pair needs to send Write-Records, before it sends the first:
    /// `instance`, by which targets tell it from others that had its number, and the MTU of the
    /// interface, which its packets fill. Messages are numbered from 0 in the order of posting.
    pub fn set_record_requester(&mut self, instance: Psn, interface_mtu: u32) {
        if let Service::Datagram(datagrams) = &mut self.service {
            datagrams.set_record_requester(instance, interface_mtu);
        }
    }

    /// Lets a datagram queue pair repeat the requests that ask for it, from now on until it is in
    /// RESET. `key` is secret and random. Other types ignore it.
    ///
    /// # Errors
    /// If a value of `config` is not allowed.
    pub fn enable_reliable(
        &mut self,
        config: ReliableConfig,
        key: [u64; 2],
    ) -> Result<(), InvalidReliableConfig> {
        match &mut self.service {
            Service::Datagram(datagrams) => datagrams.enable_reliable(config, key),
            Service::Connected { .. } | Service::Unreliable { .. } => Ok(()),
        }
    }

    /// Whether [`enable_reliable`](Self::enable_reliable) was called.
    pub fn is_reliable(&self) -> bool {
        matches!(&self.service, Service::Datagram(datagrams) if datagrams.is_reliable())
    }

    /// Handles an answer to a packet of a reliable datagram.
    pub fn handle_answer<H: Host>(
        &mut self,
        now: Time,
        arrival: &Arrival,
        answer: &RecordAck,
        host: &mut H,
    ) {
        if !self.attributes.state.receives() {
            return host.count(Counter::DropBadState);
        }
        if answer.bth.pkey & PARTITION_MASK != DEFAULT_PKEY & PARTITION_MASK {
            return host.count(Counter::DropBadPkey);
        }
        let qpn = self.config.qpn;
        match &mut self.service {
            Service::Datagram(datagrams) => {
                datagrams.handle_answer(now, arrival.source, answer, qpn, host);
            }
            Service::Connected { .. } | Service::Unreliable { .. } => {
                host.count(Counter::DropMalformed);
            }
        }
    }

    /// Destination of the next datagram, if there is one: path and queue pair.
    pub fn next_datagram(&mut self, now: Time) -> Option<(Path, Qpn)> {
        match &mut self.service {
            Service::Datagram(datagrams) if self.attributes.state == QpState::ReadyToSend => {
                datagrams.next(now)
            }
            Service::Datagram(_) | Service::Connected { .. } | Service::Unreliable { .. } => None,
        }
    }

    /// Whether Write-Records of a datagram queue pair wait to be sent: they leave by
    /// [`poll_datagram_at`](Self::poll_datagram_at), if the caller limits what is in flight.
    #[inline]
    pub fn has_records(&self) -> bool {
        match &self.service {
            Service::Datagram(datagrams) => datagrams.has_records(),
            Service::Connected { .. } | Service::Unreliable { .. } => false,
        }
    }

    /// Whether the datagrams that wait to be sent are posted requests alone, none of which is
    /// repeated.
    pub fn has_only_posted_datagrams(&self) -> bool {
        match &self.service {
            Service::Datagram(datagrams) => datagrams.has_only_posted(),
            Service::Connected { .. } | Service::Unreliable { .. } => false,
        }
    }

    /// What tells the queue pair from others that had its number
    /// ([`set_record_requester`](Self::set_record_requester)).
    pub fn record_instance(&self) -> Option<Psn> {
        match &self.service {
            Service::Datagram(datagrams) => Some(datagrams.record_instance()),
            Service::Connected { .. } | Service::Unreliable { .. } => None,
        }
    }

    /// The first datagram that waits to be sent, of those from a `place` on. Places count all
    /// requests, in the order in which they were posted.
    pub fn next_datagram_at(&self, place: u64) -> Option<NextDatagram> {
        match &self.service {
            Service::Datagram(datagrams) if self.attributes.state == QpState::ReadyToSend => {
                datagrams.next_at(place, &self.attributes)
            }
            Service::Datagram(_) | Service::Connected { .. } | Service::Unreliable { .. } => None,
        }
    }

    /// Writes the next packet of the datagram at a `place`, as
    /// [`next_datagram_at`](Self::next_datagram_at) said, into `out`. A packet of a Write-Record
    /// has this `form`. Those of one destination must be taken in their order; requests complete in
    /// that of posting. `None`: it failed, and none behind it leaves.
    pub fn poll_datagram_at<H: Host>(
        &mut self,
        place: u64,
        form: RecordForm,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<SentDatagram> {
        if self.attributes.state != QpState::ReadyToSend {
            return None;
        }
        let Service::Datagram(datagrams) = &mut self.service else {
            return None;
        };
        let qpn = self.config.qpn;
        match datagrams.poll_at(place, form, &self.attributes, qpn, host, out) {
            Ok(sent) => sent,
            Err(status) => {
                self.stop_sending(status, host);
                None
            }
        }
    }

    /// As [`next_datagram`](Self::next_datagram), if that is an answer or part of a reliable
    /// datagram.
    pub fn next_reliable_datagram(&mut self, now: Time) -> Option<(Path, Qpn)> {
        match &mut self.service {
            Service::Datagram(datagrams) if self.attributes.state == QpState::ReadyToSend => {
                datagrams.next_reliable(now)
            }
            Service::Datagram(_) | Service::Connected { .. } | Service::Unreliable { .. } => None,
        }
    }

    /// Writes the packet that [`next_reliable_datagram`](Self::next_reliable_datagram) announced.
    pub fn poll_reliable_datagram<H: Host>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let repeat = Repeat {
            now,
            attributes: &self.attributes,
            qpn: self.config.qpn,
        };
        match &mut self.service {
            Service::Datagram(datagrams) if self.attributes.state == QpState::ReadyToSend => {
                datagrams.poll_reliable(&repeat, host, out)
            }
            Service::Datagram(_) | Service::Connected { .. } | Service::Unreliable { .. } => None,
        }
    }

    /// No datagram that is sent once may leave now: reliable ones have the turn.
    pub fn pass_turn(&mut self) {
        if let Service::Datagram(datagrams) = &mut self.service {
            datagrams.pass_turn();
        }
    }

    pub(super) fn poll_datagram<H: Host>(
        &mut self,
        now: Time,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if self.attributes.state != QpState::ReadyToSend {
            return None;
        }
        let Service::Datagram(datagrams) = &mut self.service else {
            return None;
        };
        match datagrams.poll_transmit(now, &self.attributes, self.config.qpn, host, out) {
            Ok(transmit) => transmit,
            Err(status) => {
                self.stop_sending(status, host);
                None
            }
        }
    }
}
