//! A queue pair: its state, its attributes, and the service that it runs.

mod ack_delay;
mod activity;
mod datagrams;
mod selective;
mod states;

pub use activity::Activity;
use airdma_wire::{Bth, Neighbour, Opcode, Packet, PathMtu, Psn, Qpn, RecordAck, Transport};

use crate::ack_delay::AckDelay;
use crate::attributes::{QpAttributes, QpState, QpType};
use crate::counter::Counter;
use crate::datagram::Datagrams;
use crate::host::{Host, QpEvent};
use crate::replies::Peer;
use crate::request_packet::DEFAULT_PKEY;
use crate::requester::{Loss, Requester, Turn};
use crate::responder::{Responder, ends};
use crate::run::{Run, RunLimits};
use crate::tag::Tagging;
use crate::time::Time;
use crate::unreliable_requester::UnreliableRequester;
use crate::unreliable_responder::UnreliableResponder;
use crate::work::{Path, SendRequest};

/// Partition number in a P_Key; the highest bit is full membership.
const PARTITION_MASK: u16 = 0x7fff;

/// Fixed properties of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Transport service.
    pub qp_type: QpType,
    /// Its number.
    pub qpn: Qpn,
    /// Longest datagram payload: the port's active MTU.
    pub port_mtu: PathMtu,
    /// Whether its receives come from a shared receive queue.
    ///
    /// In the error state they are left there for others (IBTA 10.2.9.3), and
    /// [`QpEvent::LastWqeReached`] reports that it takes no more.
    pub shared_receives: bool,
}

/// Fields of a packet's IP header, as known to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Sender.
    pub source: Neighbour,
    /// Local address that it was sent to.
    pub destination: Neighbour,
    /// IPv4 TOS or IPv6 traffic class, ECN bits included.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv6 flow label.
    pub flow_label: u32,
}

/// A packet that was written to the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes from the BTH to the padding; the ICRC is the port's.
    pub len: usize,
    /// Its path.
    pub path: Path,
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

/// See [`QueuePair::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    expected: Psn,
    acked: u64,
}

/// The answer to a packet of a Write-Record or of a reliable datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordAnswerOwed {
    /// An acknowledgement of a message that is repeated, for
    /// [`owe_answer`](QueuePair::owe_answer).
    Ack(RecordAck),
    /// That it arrived, as [`RecordEcho`](airdma_wire::RecordEcho).
    Echo,
}

/// A queue pair as a state machine without I/O.
///
/// Order of calls: any number of [`post_send`](Self::post_send),
/// [`handle_packet`](Self::handle_packet) and [`handle_timeout`](Self::handle_timeout), then
/// [`poll_transmit`](Self::poll_transmit) until it returns `None`, then
/// [`poll_timeout`](Self::poll_timeout). Each call does a bounded amount of work: one packet, or
/// the flush of posted requests.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    /// The opcode class of its type.
    transport: Transport,
    attributes: QpAttributes,
    service: Service,
    /// Tags, which tell packets of the peer from forged ones.
    tagging: Tagging,
    /// Whether the first packet was seen, or the transition to ready-to-send made.
    established: bool,
    drain_reported: bool,
    ack_delay: AckDelay,
    /// Whether its program is gone.
    is_orphan: bool,
}

/// What a queue pair lends its halves while they handle a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) attributes: &'a QpAttributes,
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
            tagging: Tagging::default(),
            is_orphan: false,
            established: false,
            drain_reported: false,
            ack_delay: AckDelay::default(),
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

    /// Accepts a posted request. In the error state it is flushed at once.
    pub fn post_send<H: Host>(&mut self, request: SendRequest, host: &mut H) {
        match &mut self.service {
            Service::Connected { requester, .. } => requester.post(request, &self.attributes),
            Service::Unreliable { requester, .. } => requester.post(request, &self.attributes),
            Service::Datagram(datagrams) => datagrams.post(request, host),
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

    /// Handles one packet that the port has verified.
    pub fn handle_packet<H: Host>(
        &mut self,
        now: Time,
        arrival: &Arrival,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let bth = &packet.headers.bth;
        if !self.attributes.state.receives() {
            return self.handle_in_vain(bth, host);
        }
        if bth.pkey & PARTITION_MASK != DEFAULT_PKEY & PARTITION_MASK {
            return host.count(Counter::DropBadPkey);
        }
        if self.tagging.is_on() && self.handle_tagged(now, packet, host) {
            return;
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

    /// Drops a packet in a state that takes none. A request to an orphan is refused.
    #[cold]
    fn handle_in_vain<H: Host>(&mut self, bth: &Bth, host: &mut H) {
        host.count(Counter::DropBadState);
        if let Service::Connected { responder, .. } = &mut self.service
            && self.is_orphan
            && bth.opcode.is_request()
        {
            responder.refuse_for_ever();
        }
    }

    /// The program is gone without a word, and what it had posted was flushed. From now on a
    /// request of the peer is answered by a NAK (remote operational error), so that the peer need
    /// not wait for its own retries. Call it in the error state.
    pub fn orphan(&mut self) {
        self.is_orphan = true;
    }

    /// Progress of a reliable connection, which only valid packets change; `None` for other
    /// services.
    pub fn progress(&self) -> Option<Progress> {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => Some(Progress {
                expected: responder.expected(),
                acked: requester.acked(),
            }),
            Service::Unreliable { .. } | Service::Datagram(_) => None,
        }
    }

    /// Handles a packet from the middle of a SEND, a WRITE or a READ response, if it is the
    /// expected one.
    ///
    /// `bth` is its only header, `payload` what follows. If false, nothing was done, and the caller
    /// must call [`handle_packet`](Self::handle_packet).
    #[inline(always)] // into both paths, of packets in the clear and of sealed ones
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
        let expected = self.transport == Transport::Rc
            && partition
            && bth.pad == 0
            && self.tagging.takes_middle(bth);
        if !expected || !self.attributes.state.receives() {
            return false;
        }
        // In the middle of a message nothing completes: no failure is due, and no drain ends.
        if bth.opcode == Opcode::RcReadResponseMiddle {
            return requester.take_middle(now, &self.attributes, bth, payload, host);
        }
        responder.take_middle(bth, payload, host)
    }

    /// An extended connection is one half of a reliable one, with the same packets.
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
        let view = View {
            qpn: self.config.qpn,
            attributes: &self.attributes,
        };
        let bth = &packet.headers.bth;
        if bth.opcode.is_request() {
            if !self.established {
                self.established = true;
                host.event(QpEvent::CommunicationEstablished);
            }
            if bth.ack_request && ends(bth.opcode) {
                self.ack_delay.note_message(now);
            }
            let outcome = responder.handle_request(view, packet, host);
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
            .handle_response(now, view, packet, host)
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

    /// Whether [`poll_transmit`](Self::poll_transmit) may have a packet, given credit, or a local
    /// request to execute.
    pub fn wants_transmit(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => {
                !responder.owes_nothing()
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

    /// Whether [`poll_transmit`](Self::poll_transmit) would have nothing to do for a reliable
    /// connection: cheaper than a call, which may find the same.
    #[inline]
    pub fn has_sent_all(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => responder.owes_nothing() && requester.has_sent_all() && !self.is_draining(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    /// Whether a reliable connection next sends a new request packet, and no response.
    ///
    /// The peer notices the loss of such a packet without a timer of its own.
    pub fn sends_new(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => responder.owes_nothing() && !requester.repeats(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    /// Whether a reliable connection next sends an acknowledgement or another response.
    pub fn owes_responses(&self) -> bool {
        match &self.service {
            Service::Connected { responder, .. } => !responder.owes_nothing(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    /// Whether a reliable connection next sends a request packet again that the peer misses.
    pub fn repairs(&self) -> bool {
        match &self.service {
            Service::Connected {
                requester,
                responder,
            } => responder.owes_nothing() && requester.wants_repair(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    fn is_draining(&self) -> bool {
        self.attributes.state == QpState::SendQueueDrain
    }

    /// Writes the next packet into `out`, which must hold the largest headers, 4,096 bytes and the
    /// padding.
    ///
    /// Responses go first (but see [`may_delay_ack`](Self::may_delay_ack)) and do not count against
    /// `credit`, the bytes that the path's window still allows. Local requests that are due are
    /// executed on the way, regardless of credit.
    #[inline]
    pub fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        credit: u32,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let turn = self.turn(now, credit);
        let len = match &self.service {
            Service::Connected { .. }
                if self.ack_delay.expects_reply() && self.reply_goes_first() =>
            {
                self.poll_request(&turn, host, out)
                    .or_else(|| self.poll_reply(host, out))?
            }
            Service::Connected { .. } => self
                .poll_reply(host, out)
                .or_else(|| self.poll_request(&turn, host, out))?,
            Service::Unreliable { .. } => self.poll_unreliable(&turn, host, out)?,
            Service::Datagram(_) => return self.poll_datagram(now, host, out),
        };
        self.tagging.mark(out);
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
            tag: self.tagging.sent(),
        }
    }

    fn peer(&self) -> Peer {
        Peer {
            tag: self.tagging.sent(),
            qpn: self.attributes.dest_qpn,
            transport: self.transport,
        }
    }

    /// As [`poll_transmit`](Self::poll_transmit), for several consecutive packets in the middle of
    /// a message.
    ///
    /// Such packets follow one that carries a path MTU. They are written back to back, with room
    /// for the ICRC after each. `None` means only that there is no such run.
    pub fn poll_run<H: Host>(
        &mut self,
        now: Time,
        credit: u32,
        limits: RunLimits,
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
        if !responder.owes_nothing() {
            return responder.replies().poll_run(&peer, limits, host, out);
        }
        requester.poll_run(&turn, &self.attributes, limits, host, out)
    }

    #[inline]
    fn poll_reply<H: Host>(&mut self, host: &mut H, out: &mut [u8]) -> Option<usize> {
        let peer = self.peer();
        let Service::Connected { responder, .. } = &mut self.service else {
            return None;
        };
        if responder.owes_nothing() {
            return None;
        }
        if responder.is_selective()
            && let Some(len) = responder.poll_sack(&peer, host, out)
        {
            return Some(len);
        }
        let (len, outcome) = responder.replies().poll_transmit(&peer, host, out)?;
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
        } else {
            self.ack_delay.note_request(turn.now);
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

    /// Whether packets are taken in the state of the queue pair.
    pub fn is_receiving(&self) -> bool {
        self.attributes.state.receives()
    }

    /// Owes the peer the latest acknowledgement again, for a queue pair that is about to be
    /// destroyed.
    ///
    /// If the sent one is lost, the peer's retry would get no answer, and its finished request
    /// would seem to have failed.
    ///
    /// Call it in any state, before the last [`poll_transmit`](Self::poll_transmit). Nothing is
    /// owed if no message of the peer was completed, or if the service does not acknowledge.
    pub fn repeat_last_ack(&mut self) {
        if let Service::Connected { responder, .. } = &mut self.service {
            responder.repeat_last_ack();
        }
    }

    /// Whether posted requests will be answered soon by a living peer: it has not been silent
    /// repeatedly, and has receives posted.
    pub fn awaits_answers(&self) -> bool {
        match &self.service {
            Service::Connected { requester, .. } => requester.awaits_answers(),
            Service::Unreliable { .. } | Service::Datagram(_) => false,
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.service {
            Service::Connected { requester, .. } => requester.poll_timeout(),
            Service::Datagram(datagrams) => datagrams.poll_timeout(),
            Service::Unreliable { .. } => None,
        }
    }

    /// Handles timers that are due at `now`; an early call does nothing.
    pub fn handle_timeout<H: Host>(&mut self, now: Time, host: &mut H) {
        match &mut self.service {
            Service::Connected { requester, .. } => {
                let outcome = requester.handle_timeout(now, &self.attributes, host);
                self.after_requester(outcome, host);
            }
            Service::Datagram(datagrams) => datagrams.handle_timeout(now, self.config.qpn, host),
            Service::Unreliable { .. } => {}
        }
    }

    /// Number of timers of a reliable connection that expired in a row without progress; 0 for
    /// other services.
    pub fn silent_timers(&self) -> u8 {
        match &self.service {
            Service::Connected { requester, .. } => requester.silent_timers(),
            Service::Unreliable { .. } | Service::Datagram(_) => 0,
        }
    }

    /// Notes that the process at the other end exists, and does not run.
    ///
    /// The next timer then spends no retry. That holds for a minute of silence since the last
    /// progress. Other services do not change.
    pub fn excuse_silence(&mut self) {
        if let Service::Connected { requester, .. } = &mut self.service {
            requester.excuse_silence();
        }
    }

    /// Bytes sent or requested and not yet acknowledged, which count against the path's window.
    pub fn in_flight_bytes(&self) -> u32 {
        match &self.service {
            Service::Connected { requester, .. } => requester.in_flight_bytes(&self.attributes),
            Service::Unreliable { .. } | Service::Datagram(_) => 0,
        }
    }

    /// A loss since the last call, which makes the path's window shrink.
    pub fn take_loss(&mut self) -> Option<Loss> {
        match &mut self.service {
            Service::Connected { requester, .. } => requester.take_loss(),
            Service::Unreliable { .. } | Service::Datagram(_) => None,
        }
    }
}
