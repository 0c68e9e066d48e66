//! Unreliable datagrams (IBTA 9.8.3): one packet for each message, to any queue pair, without an
//! answer.
//!
//! Requests complete in the order in which they were posted. Where a caller chooses among them by
//! destination ([`Datagrams::next_at`]), they leave in another one: so a destination that takes no
//! more now holds back its own.

use std::collections::VecDeque;

use airdma_wire::{
    Bth, Deth, GRH_LEN, Gid, Headers, ICRC_LEN, Neighbour, Opcode, Packet, PathMtu, Psn, Qkey, Qpn,
    RECORD_TOKEN_LEN, RecordAck, grh_area,
};

use crate::attributes::{QpAttributes, QpType};
use crate::completion::{Completion, CompletionOpcode, GrhHeader, Status};
use crate::counter::Counter;
use crate::host::{Host, Receive};
use crate::operation::Operation;
use crate::queue_pair::{Arrival, Transmit};
use crate::record::{Answers, NextPart, ReadAsked, RecordForm, RecordRequester};
use crate::reliable::{InvalidReliableConfig, ReliableConfig, ReliableRequester, Repeat};
use crate::request_packet::{pad_of, request_bth};
use crate::time::Time;
use crate::work::{Datagram, Path, SendRequest};

/// Length of the header between IP header and BTH.
const UDP_HEADER_LEN: usize = 8;

/// Highest bit of a Q_Key in a work request: send the queue pair's own instead (IBTA 10.2.5).
const CONTROLLED_QKEY: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct Datagrams {
    port_mtu: PathMtu,
    /// Posted requests. The first one has not left entirely.
    queue: VecDeque<Posted>,
    /// Place of the first one: how many there were before it.
    first: u64,
    /// Write-Records among them.
    records_posted: usize,
    next_psn: Psn,
    /// A receive that was taken for a datagram that did not fit; the next datagram gets it.
    spare: Option<Receive>,
    records: RecordRequester,
    reliable: Option<Box<Reliable>>,
    /// What it answers.
    answers: Answers,
}

/// Reliable datagrams of a queue pair, and what they share with its other ones.
#[derive(Debug)]
struct Reliable {
    requester: ReliableRequester,
    /// They had the last turn to send.
    had_turn: bool,
}

/// A posted request.
#[derive(Clone, Copy, Debug)]
struct Posted {
    request: SendRequest,
    progress: Progress,
    /// Number of the message of a Write-Record.
    id: u32,
}

/// How much of a request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Nothing,
    /// Part of a Write-Record.
    Part {
        /// Bytes that were sent.
        sent: u32,
    },
    /// All of it. It completes after the requests before it.
    Done,
    /// It fails after the requests before it.
    Failed(Status),
}

impl Progress {
    /// Bytes of a Write-Record that were sent.
    fn sent(self) -> u32 {
        match self {
            Progress::Part { sent } => sent,
            Progress::Nothing | Progress::Done | Progress::Failed(_) => 0,
        }
    }

    /// When `sent` bytes of a Write-Record have left.
    fn after(sent: u32, request: &SendRequest) -> Self {
        if sent == request.length {
            Progress::Done
        } else {
            Progress::Part { sent }
        }
    }
}

/// A packet of a request that [`QueuePair::poll_datagram_at`](crate::QueuePair::poll_datagram_at)
/// has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentDatagram {
    /// The packet.
    pub transmit: Transmit,
    /// Message and offset of a packet of a Write-Record.
    pub part: Option<(u32, u32)>,
    /// The instance in such a packet.
    pub instance: Psn,
}

/// A datagram that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextDatagram {
    /// Its place: requests count in the order in which they were posted.
    pub place: u64,
    /// Where it goes, and to which queue pair.
    pub path: Path,
    /// The queue pair.
    pub qpn: Qpn,
    /// The Q_Key in it.
    pub qkey: Qkey,
    /// It begins a Write-Record.
    pub begins: bool,
}

impl NextDatagram {
    /// One that begins no Write-Record of a posted request.
    pub fn part(path: Path, qpn: Qpn) -> NextDatagram {
        NextDatagram {
            place: 0,
            path,
            qpn,
            qkey: Qkey(0),
            begins: false,
        }
    }
}

impl Datagrams {
    pub(crate) fn new(port_mtu: PathMtu) -> Self {
        Datagrams {
            port_mtu,
            queue: VecDeque::new(),
            first: 0,
            records_posted: 0,
            next_psn: Psn::default(),
            spare: None,
            records: RecordRequester::default(),
            reliable: None,
            answers: Answers::default(),
        }
    }

    /// Starts at the send queue's PSN.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.next_psn = attributes.sq_psn;
    }

    /// PSN of the next packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// Requests that have not left completely.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// See [`QueuePair::set_record_requester`](crate::QueuePair::set_record_requester).
    pub(crate) fn set_record_requester(&mut self, instance: Psn, interface_mtu: u32) {
        self.records = RecordRequester::new(instance, interface_mtu);
        if let Some(reliable) = &mut self.reliable {
            reliable.requester.set_interface_mtu(interface_mtu);
        }
    }

    /// See [`QueuePair::enable_reliable`](crate::QueuePair::enable_reliable).
    pub(crate) fn enable_reliable(
        &mut self,
        config: ReliableConfig,
        key: [u64; 2],
    ) -> Result<(), InvalidReliableConfig> {
        let requester = ReliableRequester::new(config, key, self.records.interface_mtu())?;
        self.reliable = Some(Box::new(Reliable {
            requester,
            had_turn: false,
        }));
        Ok(())
    }

    /// The queue pair is in RESET: forgets all but that it repeats, and has memory for answers.
    pub(crate) fn reset(&mut self) {
        let fresh = Datagrams::new(self.port_mtu);
        let before = std::mem::replace(self, fresh);
        (self.reliable, self.answers) = (before.reliable, before.answers);
        self.answers.forget();
        if let Some(reliable) = &mut self.reliable {
            reliable.requester.reset();
        }
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.reliable.is_some()
    }

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    pub(crate) fn answers_mut(&mut self) -> &mut Answers {
        &mut self.answers
    }

    /// Most payload of a packet of a read on a path.
    pub(crate) fn read_payload(&self, path: &Path) -> u32 {
        let payload_max = self.records.payload_max(path) - RECORD_TOKEN_LEN as u32;
        payload_max & !3
    }

    /// Takes the request of a peer to read.
    pub(crate) fn handle_read<H: Host>(
        &mut self,
        now: Time,
        asked: &ReadAsked<'_>,
        qpn: Qpn,
        host: &mut H,
    ) {
        let payload_max = self.read_payload(&asked.path);
        self.answers.handle_read(now, asked, qpn, payload_max, host);
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
        let sent = self.answers.poll_read(place, asks, qpn, host, out);
        self.pass_turn();
        sent
    }

    /// What [`set_record_requester`](Self::set_record_requester) said.
    pub(crate) fn record_instance(&self) -> Psn {
        self.records.instance()
    }

    pub(crate) fn post<H: Host>(&mut self, request: SendRequest, host: &mut H) {
        let id = if is_plain_record(&request) {
            self.records_posted += 1;
            self.records.take_id()
        } else {
            0
        };
        self.queue.push_back(Posted {
            request,
            progress: Progress::Nothing,
            id,
        });
        if request.reliable {
            self.admit(host);
        }
    }

    /// Hands the reliable datagrams at the front of the queue over, as far as there is room.
    fn admit<H: Host>(&mut self, host: &mut H) {
        let Some(reliable) = &mut self.reliable else {
            return;
        };
        while let Some(Posted { request, .. }) = self.queue.front()
            && request.reliable
            && reliable.requester.post(request, host)
        {
            self.first += 1;
            self.queue.pop_front();
        }
    }

    pub(crate) fn wants_transmit(&self) -> bool {
        let repeats = |reliable: &Reliable| reliable.requester.wants_transmit();
        // A reliable one waits for room.
        let plain = (self.queue.front()).is_some_and(|next| self.is_plain(&next.request));
        plain || self.answers.wants_transmit() || self.reliable.as_deref().is_some_and(repeats)
    }

    /// Whether a request is sent once; that it is not, where none is repeated, is an error.
    fn is_plain(&self, request: &SendRequest) -> bool {
        !request.reliable || self.reliable.is_none()
    }

    /// Whether a Write-Record that is sent once is among the requests, or a read is answered.
    #[inline]
    pub(crate) fn has_records(&self) -> bool {
        self.records_posted > 0 || self.answers.reads() > 0
    }

    /// Destination of the next datagram.
    pub(crate) fn next(&mut self, now: Time) -> Option<(Path, Qpn)> {
        if let Some(next) = self.next_reliable(now) {
            return Some(next);
        }
        let front = &self.queue.front()?.request;
        let datagram = Some(front).filter(|next| self.is_plain(next))?.datagram?;
        Some((datagram.path, datagram.qpn))
    }

    /// As [`next`](Self::next), if that is an answer or part of a reliable datagram.
    pub(crate) fn next_reliable(&mut self, now: Time) -> Option<(Path, Qpn)> {
        if let Some(next) = self.answers.next() {
            return Some(next);
        }
        if self.reliable_goes_first()
            && let Some(reliable) = &mut self.reliable
            && let Some(next) = reliable.requester.next_datagram(now)
        {
            return Some(next);
        }
        None
    }

    /// Whether posted requests alone wait to be sent, none of which is repeated.
    pub(crate) fn has_only_posted(&self) -> bool {
        self.reliable.is_none() && !self.answers.wants_transmit()
    }

    /// It is the turn of reliable datagrams.
    pub(crate) fn pass_turn(&mut self) {
        if let Some(reliable) = &mut self.reliable {
            reliable.had_turn = false;
        }
    }

    /// Whether reliable datagrams have the next turn: they take turns with others.
    fn reliable_goes_first(&self) -> bool {
        let Some(reliable) = &self.reliable else {
            return false;
        };
        let others = self
            .queue
            .front()
            .is_some_and(|next| !next.request.reliable);
        reliable.requester.wants_transmit() && !(others && reliable.had_turn)
    }

    /// Writes an answer, or the next packet of a reliable datagram if it is their turn.
    #[inline(never)] // the paths of other services have no room for it on the stack
    pub(crate) fn poll_reliable<H: Host>(
        &mut self,
        repeat: &Repeat<'_>,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        if let Some(transmit) = self.answers.poll_transmit(host, out) {
            return Some(transmit);
        }
        let goes_first = self.reliable_goes_first();
        let reliable = self.reliable.as_deref_mut()?;
        reliable.had_turn = goes_first;
        if !goes_first {
            return None;
        }
        let transmit = reliable.requester.poll_transmit(repeat, host, out);
        self.admit(host);
        transmit
    }

    /// Takes an answer to a reliable datagram.
    pub(crate) fn handle_answer<H: Host>(
        &mut self,
        now: Time,
        source: Neighbour,
        answer: &RecordAck,
        qpn: Qpn,
        host: &mut H,
    ) {
        let Some(reliable) = &mut self.reliable else {
            return host.count(Counter::DropGhost);
        };
        reliable
            .requester
            .handle_answer(now, source, answer, qpn, host);
        self.admit(host);
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.reliable.as_ref()?.requester.poll_timeout()
    }

    pub(crate) fn handle_timeout<H: Host>(&mut self, now: Time, qpn: Qpn, host: &mut H) {
        if let Some(reliable) = &mut self.reliable {
            reliable.requester.handle_timeout(now, qpn, host);
            self.admit(host);
        }
    }

    /// See [`QueuePair::next_datagram_at`](crate::QueuePair::next_datagram_at).
    pub(crate) fn next_at(&self, place: u64, attributes: &QpAttributes) -> Option<NextDatagram> {
        let skipped = place.saturating_sub(self.first);
        let rest = self.queue.iter().enumerate().skip(skipped as usize);
        for (at, posted) in rest {
            match posted.progress {
                Progress::Done => {}
                // It waits for room.
                _ if !self.is_plain(&posted.request) => return None,
                // Nothing behind it leaves, as if it had been sent in order.
                Progress::Failed(_) if at > 0 => return None,
                Progress::Nothing | Progress::Part { .. } | Progress::Failed(_) => {
                    let datagram = &posted.request.datagram?;
                    let is_first = posted.progress == Progress::Nothing;
                    return Some(NextDatagram {
                        place: self.first + at as u64,
                        path: datagram.path,
                        qpn: datagram.qpn,
                        qkey: qkey_of(datagram, attributes),
                        begins: is_first && posted.request.operation.is_record(),
                    });
                }
            }
        }
        None
    }

    /// Sends the next datagram. An error is the status of the oldest request.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        qpn: Qpn,
        host: &mut H,
        out: &mut [u8],
    ) -> Result<Option<Transmit>, Status> {
        if self.reliable.is_some() || self.answers.next().is_some() {
            let repeat = Repeat {
                now,
                attributes,
                qpn,
            };
            if let Some(transmit) = self.poll_reliable(&repeat, host, out) {
                return Ok(Some(transmit));
            }
        }
        let Some(posted) = self.queue.front().copied() else {
            let sent = self.poll_read(0, false, qpn, host, out);
            return Ok(sent.map(|sent| sent.transmit));
        };
        if posted.request.reliable {
            // It waits for room, or for a queue pair that repeats.
            return match self.reliable {
                Some(_) => Ok(None),
                None => Err(Status::LocalQpOperationError),
            };
        }
        if posted.request.operation.is_record() {
            let form = RecordForm::default();
            let sent = self.poll_at(self.first, form, attributes, qpn, host, out)?;
            return Ok(sent.map(|sent| sent.transmit));
        }
        let transmit = self.send(&posted.request, attributes, qpn, host, out)?;
        self.queue.pop_front();
        self.first += 1;
        self.complete(&posted.request, qpn, host);
        self.complete_done(qpn, host);
        Ok(Some(transmit))
    }

    /// Sends the next packet of the request at `place`, which is done when the last one has left.
    /// An error is the status of the oldest request.
    #[inline(never)] // the paths of other services have no room for it on the stack
    pub(crate) fn poll_at<H: Host>(
        &mut self,
        place: u64,
        form: RecordForm,
        attributes: &QpAttributes,
        qpn: Qpn,
        host: &mut H,
        out: &mut [u8],
    ) -> Result<Option<SentDatagram>, Status> {
        let at = place.wrapping_sub(self.first) as usize;
        let Some(posted) = self.queue.get(at) else {
            return Ok(None);
        };
        let is_record = posted.request.operation.is_record();
        let sent = match posted.progress {
            Progress::Done => return Ok(None),
            Progress::Failed(status) => Err(status),
            // None is repeated here.
            _ if posted.request.reliable => Err(Status::LocalQpOperationError),
            Progress::Nothing | Progress::Part { .. } if is_record => {
                let next = NextPart {
                    id: posted.id,
                    offset: posted.progress.sent(),
                    form,
                };
                (self
                    .records
                    .send(&posted.request, next, attributes, qpn, host, out))
                .map(|sent| (sent.packet, Progress::after(sent.end, &posted.request)))
            }
            Progress::Nothing | Progress::Part { .. } => {
                let request = posted.request;
                let transmit = self.send(&request, attributes, qpn, host, out);
                transmit.map(|transmit| {
                    let sent = SentDatagram {
                        transmit,
                        part: None,
                        instance: Psn::default(),
                    };
                    (sent, Progress::Done)
                })
            }
        };
        let (sent, progress) = match sent {
            Ok(sent) => sent,
            Err(status) if at == 0 => return Err(status),
            Err(status) => {
                self.queue[at].progress = Progress::Failed(status);
                return Ok(None);
            }
        };
        self.queue[at].progress = progress;
        self.pass_turn();
        self.complete_done(qpn, host);
        Ok(Some(sent))
    }

    /// Completes the requests that have left, in the order in which they were posted.
    fn complete_done<H: Host>(&mut self, qpn: Qpn, host: &mut H) {
        while let Some(Progress::Done) = self.queue.front().map(|posted| posted.progress)
            && let Some(posted) = self.queue.pop_front()
        {
            self.first += 1;
            self.records_posted -= usize::from(is_plain_record(&posted.request));
            self.complete(&posted.request, qpn, host);
        }
        self.admit(host);
    }

    /// Writes a datagram.
    #[inline(always)] // in its two callers
    fn send<H: Host>(
        &mut self,
        request: &SendRequest,
        attributes: &QpAttributes,
        qpn: Qpn,
        host: &mut H,
        out: &mut [u8],
    ) -> Result<Transmit, Status> {
        let datagram = request.datagram.ok_or(Status::LocalQpOperationError)?;
        if request.length > self.port_mtu.bytes() {
            return Err(Status::LocalLengthError);
        }
        if !request.operation.is_of_service(QpType::Ud) {
            return Err(Status::LocalQpOperationError);
        }
        let (opcode, imm) = if let Operation::SendImm(imm) = request.operation {
            (Opcode::UdSendOnlyImm, Some(imm))
        } else {
            (Opcode::UdSendOnly, None)
        };
        let mut headers = Headers::new(Bth {
            opcode,
            solicited: request.solicited,
            pad: pad_of(request.length),
            dest_qpn: datagram.qpn,
            psn: self.next_psn,
            ..request_bth()
        });
        let qkey = qkey_of(&datagram, attributes);
        headers.deth = Some(Deth { qkey, src_qpn: qpn });
        headers.imm = imm;
        let start = headers.emit(out);
        let end = start + request.length as usize;
        if request.length > 0 {
            host.gather(request.slot, 0, &mut out[start..end])
                .map_err(|_| Status::LocalProtectionError)?;
        }
        let len = end + usize::from(headers.bth.pad);
        out[end..len].fill(0);
        self.next_psn = self.next_psn.add(1);
        Ok(Transmit {
            len,
            path: datagram.path,
        })
    }

    /// Completes a datagram, which is done when it has left.
    fn complete<H: Host>(&self, request: &SendRequest, qpn: Qpn, host: &mut H) {
        host.count(Counter::MessagesSent);
        let opcode = request.operation.completion_opcode();
        let completion = request.signalled.then(|| Completion {
            byte_len: request.length,
            ..Completion::with_status(request.wr_id, opcode, Status::Success, qpn)
        });
        host.complete_send(request.slot, completion);
    }

    /// Completes the oldest request with `failed`, if it failed, and flushes the others.
    pub(crate) fn fail<H: Host>(&mut self, failed: Option<Status>, qpn: Qpn, host: &mut H) {
        let mut status = failed.unwrap_or(Status::WrFlushError);
        self.answers.forget();
        if let Some(reliable) = &mut self.reliable {
            reliable.requester.fail(qpn, host);
        }
        self.records_posted = 0;
        while let Some(Posted {
            request, progress, ..
        }) = self.queue.pop_front()
        {
            self.first += 1;
            if progress == Progress::Done {
                self.complete(&request, qpn, host);
                continue;
            }
            let opcode = request.operation.completion_opcode();
            let completion = Completion::with_status(request.wr_id, opcode, status, qpn);
            host.complete_send(request.slot, Some(completion));
            status = Status::WrFlushError;
        }
    }

    /// Flushes the receive that was taken and not used.
    pub(crate) fn flush_spare<H: Host>(&mut self, qpn: Qpn, host: &mut H) {
        if let Some(receive) = self.spare.take() {
            let completion = Completion::with_status(
                receive.wr_id,
                CompletionOpcode::Receive,
                Status::WrFlushError,
                qpn,
            );
            host.complete_receive(receive.slot, completion);
        }
    }

    /// Delivers one datagram, or drops it with a reason. The receive begins with the GRH area.
    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        qpn: Qpn,
        arrival: &Arrival,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let headers = &packet.headers;
        let Some(deth) = headers.deth else {
            return host.count(Counter::DropMalformed);
        };
        if deth.qkey != attributes.qkey {
            return host.count(Counter::DropBadQkey);
        }
        let Ok(payload_len) = u32::try_from(packet.payload.len()) else {
            return host.count(Counter::DropMalformed);
        };
        if payload_len > self.port_mtu.bytes() {
            return host.count(Counter::DropMalformed);
        }
        let Some(receive) = self.spare.take().or_else(|| host.take_receive()) else {
            return host.count(Counter::DropNoReceive);
        };
        let length = payload_len + GRH_LEN as u32;
        if length > receive.length {
            self.spare = Some(receive);
            return host.count(Counter::DropTooLong);
        }
        let status = match place(receive, arrival, packet, host) {
            Ok(()) => Status::Success,
            Err(crate::host::LocalFault) => Status::LocalProtectionError,
        };
        host.count(Counter::MessagesReceived);
        let completion = Completion {
            byte_len: length,
            imm: headers.imm,
            solicited: headers.bth.solicited,
            grh: Some(grh_header(arrival)),
            src_qpn: deth.src_qpn,
            ..Completion::with_status(receive.wr_id, CompletionOpcode::Receive, status, qpn)
        };
        host.complete_receive(receive.slot, completion);
    }
}

/// Whether a request is a Write-Record that is sent once.
fn is_plain_record(request: &SendRequest) -> bool {
    request.operation.is_record() && !request.reliable
}

/// The Q_Key that a request wants sent.
pub(crate) fn qkey_of(datagram: &Datagram, attributes: &QpAttributes) -> Qkey {
    if datagram.qkey.0 & CONTROLLED_QKEY != 0 {
        attributes.qkey
    } else {
        datagram.qkey
    }
}

/// The header that [`grh`] writes: that of IPv4 if both addresses are.
pub(crate) fn grh_header(arrival: &Arrival) -> GrhHeader {
    let is_ipv4 = |end: Neighbour| Gid::from(end).to_ip().is_ipv4();
    if is_ipv4(arrival.source) && is_ipv4(arrival.destination) {
        GrhHeader::Ipv4
    } else {
        GrhHeader::Ipv6
    }
}

/// The GRH area for a packet of `len` bytes, from the BTH to the pad.
pub(crate) fn grh(arrival: &Arrival, len: usize) -> [u8; GRH_LEN] {
    grh_area(
        Gid::from(arrival.source).to_ip(),
        Gid::from(arrival.destination).to_ip(),
        arrival.tos,
        arrival.ttl,
        arrival.flow_label,
        u16::try_from(UDP_HEADER_LEN + len + ICRC_LEN).unwrap_or(u16::MAX),
    )
}

fn place<H: Host>(
    receive: Receive,
    arrival: &Arrival,
    packet: &Packet<'_>,
    host: &mut H,
) -> Result<(), crate::host::LocalFault> {
    let headers_len = packet.headers.len();
    let padded = packet.payload.len() + usize::from(packet.headers.bth.pad);
    let area = grh(arrival, headers_len + padded);
    host.scatter_receive(receive.slot, 0, &area)?;
    if !packet.payload.is_empty() {
        host.scatter_receive(receive.slot, GRH_LEN as u32, packet.payload)?;
    }
    Ok(())
}
