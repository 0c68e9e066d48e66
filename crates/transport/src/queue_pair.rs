//! One queue pair: its state, its attributes, and the service that it runs.

use std::net::IpAddr;
use std::time::Duration;

use airdma_wire::{Bth, Opcode, Packet, PathMtu, Psn, Qpn, Transport};

use crate::attributes::{AttrMask, InvalidAttribute, QpAttributes, QpState, QpType};
use crate::completion::{Completion, CompletionOpcode, Status};
use crate::counter::Counter;
use crate::datagram::Datagrams;
use crate::host::{Host, QpEvent};
use crate::reorder::{PsnRange, ReorderMemory};
use crate::replies::Peer;
use crate::request_packet::DEFAULT_PKEY;
use crate::requester::{Loss, Requester, Turn};
use crate::responder::Responder;
use crate::run::Run;
use crate::time::Time;
use crate::unreliable_requester::UnreliableRequester;
use crate::unreliable_responder::UnreliableResponder;
use crate::work::{Path, SendRequest};

/// The partition part of a P_Key; the highest bit says full membership.
const PARTITION_MASK: u16 = 0x7fff;

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Transport service.
    pub qp_type: QpType,
    /// Its number.
    pub qpn: Qpn,
    /// Longest datagram payload: the port's active MTU.
    pub port_mtu: PathMtu,
    /// Its receives come from a shared receive queue: in the error state they are left there for others
    /// (IBTA 10.2.9.3), and [`QpEvent::LastWqeReached`] says that it takes no more.
    pub shared_receives: bool,
}

/// What the port knows of a packet from its IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Sender.
    pub source: IpAddr,
    /// Our address that it was sent to.
    pub destination: IpAddr,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
}

/// A packet that was written into the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes from the BTH to the padding; the ICRC is the port's.
    pub len: usize,
    /// Where it goes.
    pub path: Path,
}

/// What a peer that repeats selectively says of how far it is with our packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement<'a> {
    /// PSN of the first packet that it has not executed.
    pub expected: Psn,
    /// What is missing from there on, as far as it knows of later packets.
    pub missing: &'a [PsnRange],
    /// Round trip to it, smoothed.
    pub rtt: Duration,
    /// How long beyond that the peer may wait before it says something.
    pub told_within: Duration,
}

/// Whether a peer is to be told how far we are with its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owed {
    /// Some time: packets came.
    Soon,
    /// It waits for it.
    Asked,
    /// At once: packets are missing.
    Now,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most queue pairs are connected, and a box would cost each of their packets a step"
)]
enum Service {
    Connected {
        requester: Requester,
        responder: Responder,
    },
    Unreliable {
        requester: UnreliableRequester,
        responder: UnreliableResponder,
    },
    Datagram(Datagrams),
}

/// A queue pair as a state machine without I/O.
///
/// Order of calls: any number of [`post_send`](Self::post_send),
/// [`handle_packet`](Self::handle_packet) and [`handle_timeout`](Self::handle_timeout), then
/// [`poll_transmit`](Self::poll_transmit) until it returns `None`, then
/// [`poll_timeout`](Self::poll_timeout). Each call does a bounded amount of work: one packet, or
/// the flush of what is posted.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    /// The class of opcodes of its type.
    transport: Transport,
    attributes: QpAttributes,
    service: Service,
    /// The first packet was seen, or the move to ready-to-send made.
    established: bool,
    drain_reported: bool,
}

impl QueuePair {
    /// A queue pair in the reset state.
    pub fn new(config: QpConfig) -> Self {
        let service = match config.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcReceive => Service::Connected {
                requester: Requester::new(),
                responder: Responder::default(),
            },
            QpType::Uc => Service::Unreliable {
                requester: UnreliableRequester::default(),
                responder: UnreliableResponder::default(),
            },
            QpType::Ud | QpType::RawPacket => Service::Datagram(Datagrams::new(config.port_mtu)),
        };
        QueuePair {
            config,
            transport: config.qp_type.transport(),
            attributes: QpAttributes::default(),
            service,
            established: false,
            drain_reported: false,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// Its transport service.
    pub fn qp_type(&self) -> QpType {
        self.config.qp_type
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.attributes.state
    }

    /// Its attributes as last set.
    pub fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// Changes attributes and state as `ibv_modify_qp(3)` allows; nothing is changed on error.
    ///
    /// On the way to [`QpState::Reset`] posted requests are forgotten without completions: the
    /// host empties its rings. On the way to [`QpState::Error`] they are flushed.
    pub fn modify<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        mask: AttrMask,
        host: &mut H,
    ) -> Result<(), InvalidAttribute> {
        let from = self.attributes.state;
        let to = self
            .attributes
            .check(self.config.qp_type, attributes, mask)?;
        self.attributes.apply(attributes, mask);
        self.attributes.state = to;
        self.attributes.cur_state = to;
        self.attributes.sq_draining = to == QpState::SendQueueDrain;
        if let Service::Connected { requester, .. } = &mut self.service
            && mask.intersects(AttrMask::RETRY_CNT | AttrMask::RNR_RETRY)
        {
            requester.refill_retries(&self.attributes);
        }
        if from != to {
            self.enter(from, to, host);
        }
        Ok(())
    }

    fn enter<H: Host>(&mut self, from: QpState, to: QpState, host: &mut H) {
        match to {
            QpState::Reset => *self = QueuePair::new(self.config),
            QpState::Init | QpState::SendQueueError => {}
            QpState::ReadyToReceive => match &mut self.service {
                Service::Connected { responder, .. } => responder.start(&self.attributes),
                Service::Unreliable { responder, .. } => responder.start(&self.attributes),
                Service::Datagram(_) => {}
            },
            QpState::ReadyToSend => {
                if from == QpState::ReadyToReceive {
                    self.established = true;
                    match &mut self.service {
                        Service::Connected { requester, .. } => requester.start(&self.attributes),
                        Service::Unreliable { requester, .. } => requester.start(&self.attributes),
                        Service::Datagram(datagrams) => datagrams.start(&self.attributes),
                    }
                }
            }
            QpState::SendQueueDrain => {
                self.drain_reported = false;
                self.report_drain(host);
            }
            QpState::Error => {
                if let Service::Connected { responder, .. } = &mut self.service {
                    responder.replies.clear();
                }
                self.flush(None, host);
                self.report_last_receive(host);
            }
        }
    }

    /// In the error state the receives of a shared queue stay there for others; whoever counts them is told that this
    /// queue pair holds none any more.
    fn report_last_receive<H: Host>(&self, host: &mut H) {
        if self.shares_receives() {
            host.event(QpEvent::LastWqeReached);
        }
    }

    fn shares_receives(&self) -> bool {
        self.config.shared_receives || self.config.qp_type == QpType::XrcReceive
    }

    /// Takes a request that was posted. In the error state it is flushed at once.
    pub fn post_send<H: Host>(&mut self, request: SendRequest, host: &mut H) {
        match &mut self.service {
            Service::Connected { requester, .. } => requester.post(request, &self.attributes),
            Service::Unreliable { requester, .. } => requester.post(request, &self.attributes),
            Service::Datagram(datagrams) => datagrams.post(request),
        }
        match self.attributes.state {
            QpState::Error => self.flush(None, host),
            QpState::SendQueueError => self.flush_sends(None, host),
            QpState::Reset
            | QpState::Init
            | QpState::ReadyToReceive
            | QpState::ReadyToSend
            | QpState::SendQueueDrain => {}
        }
    }

    /// Flushes receives that were posted to a queue pair in the error state, unless they stand in a shared queue.
    pub fn flush_receives<H: Host>(&mut self, host: &mut H) {
        if self.attributes.state != QpState::Error || self.shares_receives() {
            return;
        }
        while let Some(receive) = host.take_receive() {
            let completion = Completion::with_status(
                receive.wr_id,
                CompletionOpcode::Receive,
                Status::WrFlushError,
                self.config.qpn,
            );
            host.complete_receive(receive.slot, completion);
        }
    }

    /// Takes one packet that the port has verified.
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Time,
        arrival: &Arrival,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = &packet.headers.bth;
        if !self.attributes.state.receives() {
            return host.count(Counter::DropBadState);
        }
        if bth.pkey & PARTITION_MASK != DEFAULT_PKEY & PARTITION_MASK {
            return host.count(Counter::DropBadPkey);
        }
        if bth.opcode == Opcode::Cnp {
            return host.count(Counter::CnpsReceived);
        }
        let transport = bth.opcode.transport();
        if transport != self.transport {
            return host.count(Counter::DropMalformed);
        }
        match &mut self.service {
            Service::Connected { .. } if transport == Transport::Rc => {
                self.handle_connected(now, packet, host);
            }
            Service::Connected { .. } => self.handle_extended(now, packet, host),
            Service::Unreliable { .. } => self.handle_unreliable(packet, host),
            Service::Datagram(datagrams) => {
                datagrams.handle_packet(&self.attributes, self.config.qpn, arrival, packet, host);
            }
        }
    }

    /// Takes a packet from the middle of a SEND, a WRITE or a READ response, if it is the one that comes next: `bth` its only header,
    /// `payload` what follows. False: nothing was done, and [`handle_packet`](Self::handle_packet) is to see it.
    pub fn take_middle<H: Host>(
        &mut self,
        now: Time,
        bth: &Bth,
        payload: &[u8],
        host: &mut H,
    ) -> bool {
        let Service::Connected {
            requester,
            responder,
        } = &mut self.service
        else {
            return false;
        };
        let partition = bth.pkey & PARTITION_MASK == DEFAULT_PKEY & PARTITION_MASK;
        let expected = self.transport == Transport::Rc && partition && bth.pad == 0;
        if !expected || !self.attributes.state.receives() {
            return false;
        }
        // In the middle of a message nothing completes: no failure has its turn, and no drain ends.
        if bth.opcode == Opcode::RcReadResponseMiddle {
            return requester.take_middle(now, &self.attributes, bth, payload, host);
        }
        responder.take_middle(bth, payload, host)
    }

    /// An extended connection is one half of a reliable one, and its packets say the same.
    #[cold]
    fn handle_extended<H: Host>(&mut self, now: Time, packet: &Packet<'_>, host: &mut H) {
        let opcode = packet.headers.bth.opcode;
        let receives = self.config.qp_type == QpType::XrcReceive;
        match opcode.on(Transport::Rc) {
            Some(plain) if opcode.is_request() == receives => {
                let mut packet = *packet;
                packet.headers.bth.opcode = plain;
                self.handle_connected(now, &packet, host);
            }
            Some(_) | None => host.count(Counter::DropMalformed),
        }
    }

    #[inline(always)] // into the path of RC; that of XRC is cold
    fn handle_connected<H: Host>(&mut self, now: Time, packet: &Packet<'_>, host: &mut H) {
        let Service::Connected {
            requester,
            responder,
        } = &mut self.service
        else {
            return;
        };
        if packet.headers.bth.opcode.is_request() {
            if !self.established {
                self.established = true;
                host.event(QpEvent::CommunicationEstablished);
            }
            let outcome = responder.handle_request(&self.attributes, self.config.qpn, packet, host);
            if let Err(refusal) = outcome {
                self.enter_error(None, host);
                host.event(refusal.event);
            }
            return;
        }
        if !self.attributes.state.sends() {
            return host.count(Counter::DropBadState);
        }
        let outcome = requester
            .handle_response(now, &self.attributes, self.config.qpn, packet, host)
            .and_then(|()| requester.due_failure());
        self.after_requester(outcome, host);
    }

    fn handle_unreliable<H: Host>(&mut self, packet: &Packet<'_>, host: &mut H) {
        let Service::Unreliable { responder, .. } = &mut self.service else {
            return;
        };
        if !self.established {
            self.established = true;
            host.event(QpEvent::CommunicationEstablished);
        }
        let outcome = responder.handle_request(&self.attributes, self.config.qpn, packet, host);
        if outcome.is_err() {
            self.enter_error(None, host);
        }
    }

    fn after_requester<H: Host>(&mut self, outcome: Result<(), Status>, host: &mut H) {
        match outcome {
            Ok(()) => self.report_drain(host),
            Err(status) => self.enter_error(Some(status), host),
        }
    }

    fn enter_error<H: Host>(&mut self, failed: Option<Status>, host: &mut H) {
        let entered = self.attributes.state != QpState::Error;
        self.attributes.state = QpState::Error;
        self.attributes.cur_state = QpState::Error;
        self.attributes.sq_draining = false;
        self.flush(failed, host);
        if entered {
            self.report_last_receive(host);
        }
    }

    /// Completes everything that is posted: the oldest send request with `failed`, if one failed.
    fn flush<H: Host>(&mut self, failed: Option<Status>, host: &mut H) {
        self.flush_sends(failed, host);
        match &mut self.service {
            Service::Connected { responder, .. } => {
                responder.fail(Status::WrFlushError, self.config.qpn, host);
            }
            Service::Unreliable { responder, .. } => {
                responder.fail(Status::WrFlushError, self.config.qpn, host);
            }
            Service::Datagram(datagrams) => datagrams.flush_spare(self.config.qpn, host),
        }
        self.flush_receives(host);
    }

    fn flush_sends<H: Host>(&mut self, failed: Option<Status>, host: &mut H) {
        match &mut self.service {
            Service::Connected { requester, .. } => requester.fail(failed, self.config.qpn, host),
            Service::Unreliable { requester, .. } => requester.fail(failed, self.config.qpn, host),
            Service::Datagram(datagrams) => datagrams.fail(failed, self.config.qpn, host),
        }
    }

    fn report_drain<H: Host>(&mut self, host: &mut H) {
        if self.attributes.state != QpState::SendQueueDrain || self.drain_reported {
            return;
        }
        let drained = match &self.service {
            Service::Connected { requester, .. } => requester.is_drained(),
            Service::Unreliable { requester, .. } => requester.is_drained(),
            Service::Datagram(_) => true,
        };
        if drained {
            self.drain_reported = true;
            self.attributes.sq_draining = false;
            if self.attributes.en_sqd_async_notify {
                host.event(QpEvent::SendQueueDrained);
            }
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) might have a packet, given credit, or a local request to do.
    pub fn wants_transmit(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => {
                !responder.replies.is_empty()
                    || (self.attributes.state.sends()
                        && requester.wants_transmit(&self.attributes, self.is_draining()))
            }
            Service::Unreliable { requester, .. } => {
                self.attributes.state.sends() && requester.wants_transmit(self.is_draining())
            }
            Service::Datagram(datagrams) => {
                self.attributes.state == QpState::ReadyToSend && datagrams.wants_transmit()
            }
        }
    }

    /// Whether a reliable connection sends next what it never sent before, and no answers: whose loss shows at the peer without the
    /// peer's timer.
    pub fn sends_new(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => responder.replies.is_empty() && !requester.repeats(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    fn is_draining(&self) -> bool {
        self.attributes.state == QpState::SendQueueDrain
    }

    /// Writes the next packet into `out`, which holds the largest headers, 4,096 bytes and the
    /// padding. Answers go first and are not counted against `credit`, the bytes that the window
    /// of the path still takes. Local requests whose turn has come are done on the way, credit or not.
    pub fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        credit: u32,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let turn = self.turn(now, credit);
        let len = match &self.service {
            Service::Connected { .. } => self
                .poll_reply(host, out)
                .or_else(|| self.poll_request(&turn, host, out))?,
            Service::Unreliable { .. } => self.poll_unreliable(&turn, host, out)?,
            Service::Datagram(_) => return self.poll_datagram(host, out),
        };
        Some(Transmit {
            len,
            path: self.attributes.path,
        })
    }

    fn turn(&self, now: Time, credit: u32) -> Turn {
        Turn {
            now,
            qpn: self.config.qpn,
            transport: self.transport,
            draining: self.is_draining(),
            credit,
        }
    }

    fn peer(&self) -> Peer {
        Peer {
            qpn: self.attributes.dest_qpn,
            transport: self.transport,
        }
    }

    /// As [`poll_transmit`](Self::poll_transmit), for up to `packets_max` packets at once where they follow in the middle of a message,
    /// as they do after one that carries a path MTU. They are written one behind the other, with room for the ICRC after each. `None`
    /// says that there is no such run, and nothing else.
    pub fn poll_run<H: Host>(
        &mut self,
        now: Time,
        credit: u32,
        packets_max: usize,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Run> {
        if self.transport != Transport::Rc {
            return None;
        }
        let (turn, peer) = (self.turn(now, credit), self.peer());
        let Service::Connected {
            requester,
            responder,
        } = &mut self.service
        else {
            return None;
        };
        if !responder.replies.is_empty() {
            return responder.replies.poll_run(&peer, packets_max, host, out);
        }
        requester.poll_run(&turn, &self.attributes, packets_max, host, out)
    }

    fn poll_reply<H: Host>(&mut self, host: &mut H, out: &mut [u8]) -> Option<usize> {
        let peer = self.peer();
        let Service::Connected { responder, .. } = &mut self.service else {
            return None;
        };
        if responder.replies.is_empty() {
            return None;
        }
        if responder.reorder.is_some()
            && let Some(len) = responder.poll_sack(&peer, host, out)
        {
            return Some(len);
        }
        let (len, outcome) = responder.replies.poll_transmit(&peer, host, out)?;
        if outcome.is_err() {
            host.count(Counter::RemoteAccessErrors);
            self.enter_error(None, host);
            host.event(QpEvent::AccessError);
        }
        Some(len)
    }

    fn poll_request<H: Host>(
        &mut self,
        turn: &Turn,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<usize> {
        if !self.attributes.state.sends() {
            return None;
        }
        let Service::Connected { requester, .. } = &mut self.service else {
            return None;
        };
        let len = requester.poll_transmit(turn, &self.attributes, host, out);
        if len.is_none() {
            let outcome = requester.due_failure();
            self.after_requester(outcome, host);
        }
        len
    }

    fn poll_unreliable<H: Host>(
        &mut self,
        turn: &Turn,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<usize> {
        if !self.attributes.state.sends() {
            return None;
        }
        let Service::Unreliable { requester, .. } = &mut self.service else {
            return None;
        };
        match requester.poll_transmit(turn, &self.attributes, host, out) {
            Ok(len) => {
                self.report_drain(host);
                len
            }
            Err(status) => {
                self.stop_sending(status, host);
                None
            }
        }
    }

    fn poll_datagram<H: Host>(&mut self, host: &mut H, out: &mut [u8]) -> Option<Transmit> {
        if self.attributes.state != QpState::ReadyToSend {
            return None;
        }
        let Service::Datagram(datagrams) = &mut self.service else {
            return None;
        };
        match datagrams.poll_transmit(&self.attributes, self.config.qpn, host, out) {
            Ok(transmit) => transmit,
            Err(status) => {
                self.stop_sending(status, host);
                None
            }
        }
    }

    /// What an unreliable service cannot send stops its send queue alone (IBTA 10.3.1.7).
    fn stop_sending<H: Host>(&mut self, failed: Status, host: &mut H) {
        self.flush_sends(Some(failed), host);
        self.attributes.state = QpState::SendQueueError;
        self.attributes.cur_state = QpState::SendQueueError;
        self.attributes.sq_draining = false;
    }

    /// Owes the peer the latest acknowledgement once more, for a queue pair that is about to go: if the one that was
    /// sent is lost, nobody would answer the peer's question for it, and it would take its finished request for failed.
    ///
    /// To be called in any state, before the last [`poll_transmit`](Self::poll_transmit). Nothing is owed if no message
    /// of the peer was completed, or if the service does not acknowledge.
    pub fn farewell(&mut self) {
        if let Service::Connected { responder, .. } = &mut self.service {
            responder.farewell();
        }
    }

    /// The peer repeats selectively (`memory`: for what comes before its turn), or does so no more. Both ends must have agreed on it.
    /// A reliable connection then keeps what comes after a gap, sends again what its peer says is missing, and nothing else, and
    /// acknowledges by [`acknowledge`](Self::acknowledge) in place of ACK packets. To be said again after each move to
    /// ready-to-receive; other services do not change.
    pub fn set_selective(&mut self, memory: Option<&ReorderMemory>) {
        if let Service::Connected {
            requester,
            responder,
        } = &mut self.service
            && self.transport == Transport::Rc
        {
            requester.set_selective(memory.is_some());
            responder.set_selective(memory);
        }
    }

    /// Packets may carry more than the path MTU: those of the peer up to `taken` bytes (what it was told once it may go by as long as the connection lasts), and those of requests that
    /// have not begun `sent` bytes, which the peer must have said that it takes. READs that have not begun ask for answers of `sent` bytes, too,
    /// if the peer said that it `answers` so; those of the peer are answered as they ask, up to `taken` bytes.
    /// To be said again after each move to ready-to-receive; other services do not change.
    pub fn set_long_payloads(&mut self, taken: u32, sent: u32, answers: bool) {
        if let Service::Connected {
            requester,
            responder,
        } = &mut self.service
            && self.transport == Transport::Rc
        {
            responder.long_payload_max = responder.long_payload_max.max(taken);
            requester.set_long_payload(sent, answers, &self.attributes);
        }
    }

    /// The most that a packet of the next run may carry.
    pub fn payload_max(&self) -> u32 {
        let path_mtu = self.attributes.path_mtu.bytes();
        match &self.service {
            Service::Connected { requester, .. } => {
                requester.long_payload(&self.attributes).unwrap_or(path_mtu)
            }
            Service::Unreliable { .. } | Service::Datagram(_) => path_mtu,
        }
    }

    /// The peer, which repeats selectively, hears what is missing by ACK packets with a SETH, and nothing is to be told by
    /// [`acknowledge`](Self::acknowledge); or not. To be said after [`set_selective`](Self::set_selective).
    pub fn tell_by_acks(&mut self, by_acks: bool) {
        if let Service::Connected { responder, .. } = &mut self.service
            && let Some(reorder) = &mut responder.reorder
        {
            reorder.tell_by_acks(by_acks);
        }
    }

    /// Whether the peer is to be told how far we are.
    pub fn owes_acknowledgement(&self) -> Option<Owed> {
        let Service::Connected { responder, .. } = &self.service else {
            return None;
        };
        let reorder = responder.reorder.as_ref()?;
        reorder.owed().filter(|_| !reorder.tells_by_acks())
    }

    /// Packets that were missing when later ones came, since this was asked last.
    pub fn take_missed(&mut self) -> u32 {
        match &mut self.service {
            Service::Connected { responder, .. } => {
                let reorder = responder.reorder.as_mut();
                reorder.map_or(0, |reorder| reorder.take_missed())
            }
            Service::Unreliable { .. } | Service::Datagram(_) => 0,
        }
    }

    /// The peer is told: PSN of the first packet that was not executed, and in `missing` the first ranges of what is missing from there
    /// on. Returns how many ranges there are, too.
    pub fn acknowledge(&mut self, missing: &mut [PsnRange]) -> Option<(Psn, usize)> {
        let Service::Connected { responder, .. } = &mut self.service else {
            return None;
        };
        let reorder = responder.reorder.as_mut()?;
        let mut count = 0;
        let ranges = reorder.missing(responder.expected, responder.gap_reported);
        for (range, place) in ranges.zip(missing) {
            *place = range;
            count += 1;
        }
        reorder.told();
        Some((responder.expected, count))
    }

    /// Takes what the peer says of how far it is.
    pub fn handle_acknowledgement<H: Host>(
        &mut self,
        now: Time,
        told: &Acknowledgement<'_>,
        host: &mut H,
    ) {
        if !self.attributes.state.sends() {
            return host.count(Counter::DropBadState);
        }
        if let Service::Connected { requester, .. } = &mut self.service {
            requester.handle_acknowledgement(now, &self.attributes, self.config.qpn, told, host);
            let outcome = requester.due_failure();
            self.after_requester(outcome, host);
        }
    }

    /// The moment at which [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.service {
            Service::Connected { requester, .. } => requester.poll_timeout(),
            Service::Unreliable { .. } | Service::Datagram(_) => None,
        }
    }

    /// Acts on timers that are due at `now`; calling it early does nothing.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        if let Service::Connected { requester, .. } = &mut self.service {
            let outcome = requester.handle_timeout(now, host);
            self.after_requester(outcome, host);
        }
    }

    /// Bytes sent or asked for and not yet acknowledged: what counts against the window of the
    /// path.
    pub fn in_flight_bytes(&self) -> u32 {
        match &self.service {
            Service::Connected { requester, .. } => requester.in_flight_bytes(&self.attributes),
            Service::Unreliable { .. } | Service::Datagram(_) => 0,
        }
    }

    /// What was lost since this was last asked: the window of the path backs off.
    pub fn take_loss(&mut self) -> Option<Loss> {
        match &mut self.service {
            Service::Connected { requester, .. } => requester.take_loss(),
            Service::Unreliable { .. } | Service::Datagram(_) => None,
        }
    }
}
