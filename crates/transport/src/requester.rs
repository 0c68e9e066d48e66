//! The requester of a reliable connection: turns posted requests into request packets, and goes
//! back when packets were lost (go-back-N, IBTA 9.7.2 and 9.7.5.1).
//!
//! Packets are numbered by a 64-bit sequence that starts at zero with the first PSN, so that no
//! comparison here has to think of the 24-bit wrap-around:
//!
//! ```text
//!        acked            next              sent_max          posted
//!  done    | in flight      | to be sent again  | never sent     |
//!  --------+----------------+-------------------+----------------+--> sequence
//! ```
//!
//! A rewind sets `next` back to `acked`. Responses are handled in `requester/completer.rs`. Local
//! requests stand in the same queue, take no sequence numbers and are done when the cursor comes to
//! them, once: a rewind goes past them.

mod completer;
mod entry;
mod retry;
mod run;
mod selective;

use std::collections::VecDeque;
use std::time::Duration;

use airdma_wire::padded::pad_packet;
use airdma_wire::{Headers, Lreth, NakCode, Psn, Qpn, Reth, Transport, XrcEth};

pub(crate) use self::entry::Entry;
use self::entry::Local;
use crate::attributes::QpAttributes;
use crate::completion::{Completion, Status};
use crate::counter::Counter;
use crate::host::{Host, LocalFault};
use crate::local;
use crate::operation::{Operation, WORD_LEN};
use crate::request_packet::RequestPacket;
use crate::selective::Repair;
use crate::time::Time;
use crate::work::SendRequest;

/// An acknowledgement is requested at least once in this many bytes.
const ACK_INTERVAL_BYTES: u32 = 32 * 1024;

/// Most unacknowledged packets of one queue pair.
///
/// The shared window of the path is normally smaller; this bounds what a duplicate or a stale PSN
/// can be confused with.
const IN_FLIGHT_PACKETS_MAX: u64 = 8192;

/// Packets of a reply behind which an ACK may leave: they and the ACK are one segmented send.
const FEW_PACKETS: u64 = 8;

/// How a requester noticed a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A response showed it: the peer is alive.
    Gap,
    /// No response came in time: the peer may be gone.
    Timeout,
}

/// Conditions for sending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) now: Time,
    pub(crate) qpn: Qpn,
    /// RC, or XRC.
    pub(crate) transport: Transport,
    /// Whether to finish requests in progress without starting new ones.
    pub(crate) draining: bool,
    /// Bytes that the window of the path still allows.
    pub(crate) credit: u32,
    /// Tag of the packets of a run; others are tagged when they are written.
    pub(crate) tag: u16,
}

#[derive(Debug)]
pub(crate) struct Requester {
    /// Requests posted and not yet completed, oldest first; the first holds `acked`.
    queue: VecDeque<Entry>,
    /// Index in `queue` of the entry that holds `next`, or of a local request that is due before
    /// it.
    cursor: usize,
    /// Number of local requests in `queue`.
    locals: u32,
    first_psn: Psn,
    posted: u64,
    acked: u64,
    next: u64,
    sent_max: u64,
    /// End sequences of the READ pieces and atomics that await their responses.
    answers_due: VecDeque<u64>,
    bytes_since_ack_request: u32,
    deadline: Option<Time>,
    not_ready_until: Option<Time>,
    retries_left: u8,
    not_ready_retries_left: u8,
    /// Number of retransmissions of what is not acknowledged since the last progress.
    repeats: u8,
    /// Number of timers that expired late since then.
    late_timers: u8,
    /// How long the peer has been silent since the last retry was spent.
    silence: Duration,
    /// Whether the silence until the next timer spends nothing
    /// ([`excuse_silence`](Self::excuse_silence)).
    excused: bool,
    /// Silence since the last progress that spent nothing for that reason.
    excused_for: Duration,
    /// The sequence of the last rewind, without any progress since.
    ///
    /// Further hints at the same gap are ignored, the timer is not (one retransmission per gap).
    rewound_at: Option<u64>,
    loss: Option<Loss>,
    /// Failure of the request at `cursor`, which cannot be sent. It takes effect when those before
    /// it are answered.
    failure: Option<Status>,
    /// Selective repeat, with a peer that supports it.
    repair: Option<Box<Repair>>,
    /// Largest payload that the peer accepts; [`Requester::long_payload`] tells whether it is used.
    long_payload: u32,
    /// Whether the peer answers READs with such payloads if asked (LRETH).
    long_reads: bool,
    /// Whether the peer accepts long messages in packets of one length.
    equal_lengths: bool,
    /// Whether the peer reports its progress on its own, so that it is asked rarely.
    is_reported: bool,
}

impl Requester {
    pub(crate) fn new() -> Self {
        Requester {
            queue: VecDeque::new(),
            cursor: 0,
            locals: 0,
            first_psn: Psn::default(),
            posted: 0,
            acked: 0,
            next: 0,
            sent_max: 0,
            answers_due: VecDeque::new(),
            bytes_since_ack_request: 0,
            deadline: None,
            not_ready_until: None,
            retries_left: 0,
            not_ready_retries_left: 0,
            repeats: 0,
            late_timers: 0,
            silence: Duration::ZERO,
            excused: false,
            excused_for: Duration::ZERO,
            rewound_at: None,
            loss: None,
            failure: None,
            repair: None,
            long_payload: 0,
            long_reads: false,
            equal_lengths: false,
            is_reported: false,
        }
    }

    /// Starts at the send queue's PSN.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        let memory = self.repair.take().map(|repair| repair.into_memory());
        let is_reported = self.is_reported;
        *self = Requester {
            long_payload: self.long_payload,
            long_reads: self.long_reads,
            equal_lengths: self.equal_lengths,
            ..Requester::new()
        };
        self.set_selective(memory.as_ref());
        self.is_reported = is_reported;
        self.first_psn = attributes.sq_psn;
        self.refill_retries(attributes);
    }

    pub(crate) fn post(&mut self, request: SendRequest, attributes: &QpAttributes) {
        let entry = self.entry(request, self.posted, attributes);
        self.posted = entry.end();
        self.locals += u32::from(entry.packets == 0);
        self.queue.push_back(entry);
    }

    fn entry(&self, request: SendRequest, first: u64, attributes: &QpAttributes) -> Entry {
        let path_mtu = attributes.path_mtu.bytes();
        match self.long_payload(attributes) {
            Some(payload) if self.may_be_long(&request.operation) => {
                if self.equal_lengths {
                    Entry::equal(request, first, payload, path_mtu)
                } else {
                    Entry::long(request, first, payload)
                }
            }
            Some(_) | None => Entry::new(request, first, path_mtu),
        }
    }

    /// The peer cuts the responses to a READ, and may know no size but the path MTU.
    fn may_be_long(&self, operation: &Operation) -> bool {
        let is_read = matches!(operation, Operation::Read { .. });
        !operation.is_read_or_atomic() || is_read && self.long_reads
    }

    /// Payload of packets, if even the first one of a WRITE has more room than a path MTU.
    pub(crate) fn long_payload(&self, attributes: &QpAttributes) -> Option<u32> {
        let least = attributes.path_mtu.bytes() + Reth::LEN as u32;
        (self.long_payload > least).then_some(self.long_payload)
    }

    /// Sets the payload of packets of new SENDs and WRITEs, and of READ responses (`reads`).
    ///
    /// It is used if even the first packet has more room than a path MTU. Requests in progress go
    /// on as before: the PSNs of what follows depend on that.
    pub(crate) fn set_long_payload(
        &mut self,
        payload: u32,
        reads: bool,
        attributes: &QpAttributes,
    ) {
        if (self.long_payload, self.long_reads) == (payload, reads) {
            return;
        }
        self.long_payload = payload;
        self.long_reads = reads;
        self.divide_again(attributes);
    }

    /// Sets whether new messages that are long are divided into packets of one length.
    pub(crate) fn set_equal_lengths(&mut self, equal: bool, attributes: &QpAttributes) {
        if std::mem::replace(&mut self.equal_lengths, equal) != equal {
            self.divide_again(attributes);
        }
    }

    /// Divides the requests that have not begun into packets, as new ones.
    fn divide_again(&mut self, attributes: &QpAttributes) {
        let begun = self
            .queue
            .partition_point(|entry| entry.first < self.sent_max);
        for index in begun..self.queue.len() {
            let Entry {
                request,
                first,
                local,
                ..
            } = self.queue[index];
            let first = if index == begun { first } else { self.posted };
            let entry = Entry {
                local,
                ..self.entry(request, first, attributes)
            };
            self.posted = entry.end();
            self.queue[index] = entry;
        }
    }

    /// Sequence of the oldest packet that is not acknowledged.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// Packets that were sent at least once.
    pub(crate) fn sent_packets(&self) -> u64 {
        self.sent_max
    }

    /// Requests that are not completed.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether the peer had no receive, and is not asked again yet.
    pub(crate) fn waits_for_receiver(&self) -> bool {
        self.not_ready_until.is_some()
    }

    /// Bytes in flight, requested READ data included.
    pub(crate) fn in_flight_bytes(&self, attributes: &QpAttributes) -> u32 {
        let path_mtu = attributes.path_mtu.bytes();
        let payload = self.queue.front().map_or(path_mtu, |entry| entry.payload);
        let bytes = (self.next - self.acked) * u64::from(payload);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Notes that the peer reported missing packets.
    pub(crate) fn note_loss(&mut self) {
        self.loss = Some(Loss::Gap);
    }

    pub(crate) fn take_loss(&mut self) -> Option<Loss> {
        self.loss.take()
    }

    /// Whether all requests in progress are done; others may wait.
    pub(crate) fn is_drained(&self) -> bool {
        let front_begins = self
            .queue
            .front()
            .is_none_or(|entry| entry.first == self.acked);
        self.acked == self.sent_max && front_begins
    }

    /// Whether there are requests whose responses are likely to come.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.queue.is_empty()
            && self.not_ready_until.is_none()
            && self.repeats_of(self.acked) <= REPEATS_OF_THE_LIVING
    }

    /// The entry to send from, unless something other than the window prevents it.
    pub(crate) fn sendable(&self, attributes: &QpAttributes, draining: bool) -> Option<&Entry> {
        if self.not_ready_until.is_some() || self.next == self.posted || self.failure.is_some() {
            return None;
        }
        if self.next - self.acked >= IN_FLIGHT_PACKETS_MAX {
            return None;
        }
        let entry = self.queue.get(self.cursor)?;
        if entry.packets == 0 {
            return None;
        }
        let begins = self.next == entry.first;
        if begins && draining && self.next >= self.sent_max {
            return None;
        }
        if begins && self.is_fenced(entry) {
            return None;
        }
        let answers_max = usize::from(attributes.max_rd_atomic).max(1);
        if entry.request.operation.is_read_or_atomic() && self.answers_due.len() >= answers_max {
            return None;
        }
        Some(entry)
    }

    fn is_fenced(&self, entry: &Entry) -> bool {
        entry.request.fence && !self.answers_due.is_empty()
    }

    /// The local request at the cursor, unless something prevents it. One that was executed before
    /// a rewind may always be skipped.
    fn local_due(&self, draining: bool) -> Option<&Entry> {
        if self.locals == 0 || self.failure.is_some() {
            return None;
        }
        let entry = self.queue.get(self.cursor)?;
        let held_back = entry.local == Local::Waiting && (draining || self.is_fenced(entry));
        (entry.packets == 0 && !held_back).then_some(entry)
    }

    /// Executes the local requests at the cursor. A failure takes effect in its turn, as for a
    /// request that cannot be sent.
    #[cold]
    fn run_locals<H: Host>(&mut self, turn: &Turn, host: &mut H) {
        while let Some(entry) = self.local_due(turn.draining) {
            let outcome = match entry.local {
                Local::Waiting => local::execute(&entry.request.operation, host),
                Local::Done => Ok(()),
                Local::Failed => Err(Status::MwBindError),
            };
            self.failure = outcome.err();
            let local = match outcome {
                Ok(()) => Local::Done,
                Err(_) => Local::Failed,
            };
            self.queue[self.cursor].local = local;
            self.cursor += usize::from(local == Local::Done);
        }
        self.retire_locals(turn.qpn, host);
    }

    /// Whether the next packet was sent before.
    pub(crate) fn repeats(&self) -> bool {
        let misses = self
            .repair
            .as_deref()
            .is_some_and(|repair| !repair.is_empty());
        misses || self.next < self.sent_max
    }

    /// Whether everything that was posted was sent, and nothing else is left to do: the state in
    /// which most requesters are most of the time.
    #[inline]
    pub(crate) fn has_sent_all(&self) -> bool {
        self.next == self.posted
            && self.locals == 0
            && self.repair.as_deref().is_none_or(Repair::is_empty)
            && self.failure.is_none()
    }

    #[inline]
    pub(crate) fn wants_transmit(&self, attributes: &QpAttributes, draining: bool) -> bool {
        (draining || !self.has_sent_all()) && self.may_transmit(attributes, draining)
    }

    fn may_transmit(&self, attributes: &QpAttributes, draining: bool) -> bool {
        self.sendable(attributes, draining).is_some()
            || self.wants_repair()
            || self.local_due(draining).is_some()
            || ((draining || self.failure.is_some()) && self.is_unasked())
    }

    /// Whether there are few packets to send, all of them new.
    pub(crate) fn sends_few(&self) -> bool {
        let packets = self.posted - self.next;
        (1..=FEW_PACKETS).contains(&packets) && self.next == self.sent_max
    }

    /// Whether the last packet did not ask for an acknowledgement.
    fn is_unasked(&self) -> bool {
        self.bytes_since_ack_request > 0
            && !self.is_watched()
            && self.next == self.sent_max
            && self.next > self.acked
            && self.not_ready_until.is_none()
    }

    /// Whether a probe will ask in time: not for what was sent before the peer's selective repeat
    /// was known.
    fn is_watched(&self) -> bool {
        self.repair
            .as_ref()
            .is_some_and(|repair| repair.probe_at().is_some())
    }

    /// Goes back by the last packet, to send it again with a request for an acknowledgement.
    ///
    /// Nothing more may be sent (a drain, or a window that shrank), and without an acknowledgement
    /// that would not change. The packet takes one PSN: READs and atomics always ask.
    fn step_back(&mut self) {
        self.next -= 1;
        let is_ahead = |entry: Option<&Entry>| entry.is_none_or(|entry| self.next < entry.first);
        while is_ahead(self.queue.get(self.cursor)) {
            self.cursor -= 1;
        }
    }

    /// Writes the next request packet into `out` and returns its length without ICRC.
    ///
    /// If it cannot be sent there is none, and [`due_failure`](Self::due_failure) reports that in
    /// its turn.
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        turn: &Turn,
        attributes: &QpAttributes,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<usize> {
        if self.locals > 0 {
            self.run_locals(turn, host);
        }
        let Turn {
            now,
            draining,
            credit,
            ..
        } = *turn;
        // What was missing may have come since.
        if self.wants_repair()
            && let Some(sequence) = self.next_repair()
        {
            return self.poll_repair(sequence, turn, attributes, host, out);
        }
        let is_sendable = self.sendable(attributes, draining).is_some();
        let held_back = if is_sendable {
            credit == 0
        } else {
            draining || self.failure.is_some()
        };
        let asks_again = held_back && self.is_unasked();
        if asks_again {
            self.step_back();
        } else if !is_sendable || credit == 0 {
            return None;
        }
        let entry = self.queue.get(self.cursor)?;
        if entry.request.operation.is_read_or_atomic()
            && let Err(status) = check_answered(&entry.request, attributes)
        {
            return self.give_up(status, turn, attributes, host, out);
        }
        let index = u32::try_from(self.next - entry.first).expect("an entry has < 2^32 packets");
        let mut packet = RequestPacket::new(entry, index, self.repeats_of(self.next));
        let credit_left = credit.saturating_sub(entry.payload);
        packet.headers.bth.ack_request =
            asks_again || self.asks_for_ack(entry, &packet, credit_left);
        packet.headers.bth.psn = self.psn_of(self.next);
        let Ok(end) = write(entry, &mut packet, turn, attributes, host, out) else {
            return self.give_up(Status::LocalProtectionError, turn, attributes, host, out);
        };
        self.sent(now, attributes, &packet, host);
        Some(end)
    }

    /// Handles a request at the cursor that cannot be sent: asks for an acknowledgement of what was
    /// sent before.
    ///
    /// Without a packet, the caller assumes that the path has no room.
    #[cold]
    fn give_up<H: Host>(
        &mut self,
        status: Status,
        turn: &Turn,
        attributes: &QpAttributes,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<usize> {
        self.failure = Some(status);
        if self.is_unasked() {
            return self.poll_transmit(turn, attributes, host, out);
        }
        None
    }

    /// Whether a packet asks for an acknowledgement: at the end of a message that is waited for,
    /// and when much is unacknowledged.
    ///
    /// "Much" is at most a quarter of what the window of the path still allows, because other queue
    /// pairs share it, and because the sender must never wait for an acknowledgement that it did
    /// not ask for.
    ///
    /// A peer that reports does so on its own, but not often: it is asked when nothing more can be
    /// sent until it answers.
    ///
    /// `credit_left` is what the window allows after this packet, which counts as a full one
    /// whatever its size.
    fn asks_for_ack(&self, entry: &Entry, packet: &RequestPacket, credit_left: u32) -> bool {
        let end = self.next + u64::from(packet.packets);
        let waited_for = entry.request.signalled && !self.is_reported
            || end == self.posted
            || self.next < self.sent_max;
        (packet.ends_message && waited_for)
            || packet.answer_len > 0
            || self.much_is_unanswered(end, credit_left, entry.payload)
    }

    fn much_is_unanswered(&self, end: u64, credit_left: u32, payload: u32) -> bool {
        let unasked = self.bytes_since_ack_request + payload;
        (unasked >= ACK_INTERVAL_BYTES.min(credit_left / 4)
            && (!self.is_reported || credit_left == 0))
            || end - self.acked >= IN_FLIGHT_PACKETS_MAX
    }

    /// Number of further packets that may become unacknowledged.
    pub(crate) fn packets_in_flight_left(&self) -> u64 {
        IN_FLIGHT_PACKETS_MAX.saturating_sub(self.next - self.acked)
    }

    /// Accounts for one new packet in the middle of a message; returns whether it asks for an
    /// acknowledgement.
    #[inline]
    pub(crate) fn sent_middle(&mut self, credit: u32, payload: u32) -> bool {
        let end = self.next + 1;
        let asks = self.much_is_unanswered(end, credit.saturating_sub(payload), payload);
        self.next = end;
        self.sent_max = end;
        self.note_asked(asks, payload);
        asks
    }

    fn note_asked(&mut self, asked: bool, payload: u32) {
        self.bytes_since_ack_request = if asked {
            0
        } else {
            self.bytes_since_ack_request + payload
        };
    }

    /// Accounts for a packet of the request at the cursor.
    fn sent<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        packet: &RequestPacket,
        host: &mut H,
    ) {
        let entry = &self.queue[self.cursor];
        let payload = entry.payload;
        let is_new = self.next == self.sent_max;
        let is_first = self.next == self.acked;
        if !is_new {
            host.count(Counter::Retransmits);
        }
        self.next += u64::from(packet.packets);
        self.sent_max = self.sent_max.max(self.next);
        if entry.request.operation.is_read_or_atomic() {
            self.answers_due.push_back(self.next);
        }
        if self.next == entry.end() {
            self.cursor += 1;
        }
        self.note_asked(packet.headers.bth.ack_request, payload);
        if self.deadline.is_none() {
            self.deadline = self.deadline_from(now, attributes);
        }
        let asks = packet.headers.bth.ack_request;
        if let Some(repair) = &mut self.repair {
            if is_new && is_first {
                repair.note_progress(now);
            }
            if is_new && asks {
                repair.time(self.next, now);
            }
            if asks || repair.probe_at().is_none() {
                repair.put_off_probe(now, asks, self.acked);
            }
        }
    }

    /// Completes the request that failed with `status` and flushes the rest.
    pub(crate) fn fail<H: Host>(&mut self, failed: Option<Status>, qp: Qpn, host: &mut H) {
        let mut status = failed.unwrap_or(Status::WrFlushError);
        while let Some(entry) = self.queue.pop_front() {
            let completion = Completion::with_status(
                entry.request.wr_id,
                entry.request.operation.completion_opcode(),
                status,
                qp,
            );
            host.complete_send(entry.request.slot, Some(completion));
            status = Status::WrFlushError;
        }
        let psn = self.first_psn;
        *self = Requester::new();
        self.first_psn = psn;
    }

    /// The failure of a request that could not be sent, once all before it are answered.
    ///
    /// Those complete normally, and only what follows is flushed (IBTA 10.8.3.1).
    pub(crate) fn due_failure(&self) -> Result<(), Status> {
        match self.failure {
            Some(status) if self.cursor == 0 => Err(status),
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) fn psn_of(&self, sequence: u64) -> Psn {
        self.first_psn.add((sequence & 0x00ff_ffff) as u32)
    }

    /// The sequence of `psn`, unless it is before the oldest unacknowledged packet.
    pub(crate) fn sequence_of(&self, psn: Psn) -> Option<u64> {
        let distance = psn.distance_from(self.psn_of(self.acked));
        u64::try_from(distance).ok().map(|ahead| self.acked + ahead)
    }
}

/// Usual number of retransmissions of a packet to a living peer.
const REPEATS_OF_THE_LIVING: u8 = 2;

/// The request of a sequence number, which is not before the oldest one.
pub(crate) fn entry_at(queue: &VecDeque<Entry>, sequence: u64) -> Option<Entry> {
    let after = queue.partition_point(|entry| entry.first <= sequence);
    let entry = queue.range(..after).rfind(|entry| entry.packets > 0);
    entry.copied()
}

/// Writes a request packet into `out`, and returns its length without ICRC.
#[inline]
fn write<H: Host>(
    entry: &Entry,
    packet: &mut RequestPacket,
    turn: &Turn,
    attributes: &QpAttributes,
    host: &mut H,
    out: &mut [u8],
) -> Result<usize, LocalFault> {
    packet.headers.bth.dest_qpn = attributes.dest_qpn;
    let headers_len = match turn.transport {
        Transport::Xrc => emit_extended(packet.headers, entry.request.srqn, out),
        Transport::Rc | Transport::Uc | Transport::Ud | Transport::Cnp => packet.headers.emit(out),
    };
    let mut payload_end = headers_len + packet.payload_len as usize;
    let path_mtu = attributes.path_mtu.bytes();
    if packet.payload_len > 0 {
        let target = &mut out[headers_len..payload_end];
        host.gather(entry.request.slot, packet.offset, target)?;
    } else if entry.payload != path_mtu && packet.answer_len > path_mtu.min(entry.payload) {
        // A smaller response is a single packet anyway.
        let lreth = Lreth {
            payload: entry.payload as u16,
            is_equal: entry.is_equal,
        };
        payload_end += Lreth::LEN;
        out[headers_len..payload_end].copy_from_slice(&lreth.to_bytes());
    }
    if packet.padding > 0 {
        let end = payload_end + usize::from(packet.padding);
        pad_packet(&mut out[..end], packet.padding);
        return Ok(end);
    }
    let end = payload_end + usize::from(packet.headers.bth.pad);
    out[payload_end..end].fill(0);
    Ok(end)
}

/// Whether a READ or an atomic may be sent at all.
fn check_answered(request: &SendRequest, attributes: &QpAttributes) -> Result<(), Status> {
    if attributes.max_rd_atomic == 0 {
        return Err(Status::LocalQpOperationError);
    }
    let writes = matches!(request.operation, Operation::AtomicWrite { .. });
    if writes && request.length != WORD_LEN {
        return Err(Status::LocalLengthError);
    }
    Ok(())
}

/// Writes the headers of a request of an extended connection: every packet names its destination
/// (IBTA A14.3.2).
///
/// Separate, so that those of a reliable connection are written without a test.
#[cold]
fn emit_extended(mut headers: Headers, srqn: u32, out: &mut [u8]) -> usize {
    headers.bth.opcode = (headers.bth.opcode.on(Transport::Xrc))
        .expect("extended connections have every operation of reliable ones");
    headers.xrceth = Some(XrcEth { srqn });
    headers.emit(out)
}

/// The status with which a NAK ends the request that it names; `None` for a sequence error, which
/// ends nothing, and for codes without meaning on a reliable connection.
pub(crate) fn status_of(code: NakCode) -> Option<Status> {
    match code {
        NakCode::InvalidRequest => Some(Status::RemoteInvalidRequest),
        NakCode::RemoteAccessError => Some(Status::RemoteAccessError),
        NakCode::RemoteOperationalError => Some(Status::RemoteOperationError),
        NakCode::PsnSequenceError | NakCode::InvalidRdRequest | NakCode::Reserved(_) => None,
    }
}
