//! The sender of reliable datagrams.

use airdma_wire::siphash::siphash;
use airdma_wire::{
    Bth, Deth, Neighbour, Opcode, Psn, Qpn, RECORD_TOKEN_LEN, Rceth, RecordAck, RecordAnswer,
    RecordHeaders, Reth,
};

use super::destination::Destination;
use super::message::{Leaves, Message};
use super::{InvalidReliableConfig, ReliableConfig, SPAN_MAX};
use crate::attributes::QpAttributes;
use crate::completion::{Completion, Status};
use crate::counter::Counter;
use crate::datagram::qkey_of;
use crate::host::Host;
use crate::queue_pair::Transmit;
use crate::record::RECORD_PAYLOAD_MIN;
use crate::record::index::{Index, NONE};
use crate::record::list::List;
use crate::record::unit_of;
use crate::request_packet::{pad_of, request_bth};
use crate::time::Time;
use crate::work::{Datagram, Path, SendRequest};

/// Packets of a destination after which others have a turn: as many fill a segmented send.
const TURN_PACKETS: u32 = 16;

/// The reliable messages of one queue pair, as a state machine without I/O.
///
/// Order of calls: [`post`](Self::post), [`handle_answer`](Self::handle_answer) and
/// [`handle_timeout`](Self::handle_timeout), then [`poll_transmit`](Self::poll_transmit) until it
/// returns `None`, then [`poll_timeout`](Self::poll_timeout). A packet costs a constant amount of
/// work, a timeout a look at each destination. All memory is taken at the start.
#[derive(Debug)]
pub(crate) struct ReliableRequester {
    config: ReliableConfig,
    /// For tokens and instances.
    key: [u64; 2],
    instances: u64,
    messages: Vec<Message>,
    free: Vec<u32>,
    destinations: Vec<Destination>,
    by_name: Index,
    /// Destinations with something to send, in the order of their turns.
    ready: List,
    is_ready: Vec<bool>,
    /// Destinations with messages.
    busy: List,
    /// Destinations without messages, the one that was used longest ago first.
    unused: List,
    /// Packets of the first destination in its turn.
    turn: u32,
    /// No timer is due earlier.
    due: Option<Time>,
    /// Largest payload of a packet, by the MTU of the interface.
    interface_mtu: u32,
}

/// What a packet needs to know of its queue pair.
pub(crate) struct Repeat<'a> {
    pub(crate) now: Time,
    pub(crate) attributes: &'a QpAttributes,
    pub(crate) qpn: Qpn,
}

impl ReliableRequester {
    /// A requester without messages. `key` is secret and random.
    pub(crate) fn new(
        config: ReliableConfig,
        key: [u64; 2],
        interface_mtu: u32,
    ) -> Result<Self, InvalidReliableConfig> {
        config.check()?;
        let (messages, destinations) = (config.messages_max, config.destinations_max);
        Ok(ReliableRequester {
            config,
            key,
            instances: 0,
            messages: Vec::with_capacity(messages as usize),
            free: Vec::with_capacity(messages as usize),
            destinations: Vec::with_capacity(destinations as usize),
            by_name: Index::new(destinations, key),
            ready: List::new(destinations),
            is_ready: vec![false; destinations as usize],
            busy: List::new(destinations),
            unused: List::new(destinations),
            turn: 0,
            due: None,
            interface_mtu,
        })
    }

    pub(crate) fn set_interface_mtu(&mut self, interface_mtu: u32) {
        self.interface_mtu = interface_mtu;
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have a packet.
    pub(crate) fn wants_transmit(&self) -> bool {
        self.ready.first().is_some()
    }

    /// Takes a request whose list the host holds, if there is room for it. False if not: it must
    /// wait.
    pub(crate) fn post<H: Host>(&mut self, request: &SendRequest, host: &mut H) -> bool {
        let Some(datagram) = request.datagram else {
            return false;
        };
        let has_room = self.messages.len() < self.config.messages_max as usize;
        if !has_room && self.free.is_empty() {
            return false;
        }
        let address = Neighbour::from(datagram.path.gid.to_ip());
        let Some(to) = self.destination(address, &datagram) else {
            return false;
        };
        if self.destinations[to as usize].messages >= self.config.share_max {
            return false;
        }
        let Some(slot) = host.hold_send(request.slot) else {
            return false;
        };
        let message = Message::new(SendRequest { slot, ..*request }, NONE);
        let index = match self.free.pop() {
            Some(index) => {
                self.messages[index as usize] = message;
                index
            }
            None => {
                self.messages.push(message);
                self.messages.len() as u32 - 1
            }
        };
        let destination = &mut self.destinations[to as usize];
        if destination.messages == 0 {
            self.unused.remove(to);
            self.busy.push(to);
        }
        destination.messages += 1;
        match destination.last_waiting {
            NONE => destination.first_waiting = index,
            last => self.messages[last as usize].behind = index,
        }
        destination.last_waiting = index;
        self.make_ready(to);
        true
    }

    /// The row of a destination, which may take that of another one without messages.
    fn destination(&mut self, address: Neighbour, datagram: &Datagram) -> Option<u32> {
        let &Datagram { qpn, qkey, .. } = datagram;
        let known = self.find(address, qpn, |destination| destination.qkey == qkey);
        if known.is_some() {
            return known;
        }
        self.instances += 1;
        let instance = Psn::new(siphash(self.key, &self.instances.to_le_bytes()) as u32);
        let fresh = Destination::new(address, (qpn, qkey), instance);
        let row = if self.destinations.len() < self.config.destinations_max as usize {
            self.destinations.push(fresh);
            self.destinations.len() as u32 - 1
        } else {
            let row = self.unused.first()?;
            self.unused.remove(row);
            self.by_name.remove(row);
            self.destinations[row as usize] = fresh;
            row
        };
        self.unused.push(row);
        let hash = self.by_name.hash(address, qpn.get(), 0);
        self.by_name.insert(hash, row);
        Some(row)
    }

    /// The row of a queue pair that `is_it`: it has one for each Q_Key.
    fn find(
        &self,
        address: Neighbour,
        qpn: Qpn,
        is_it: impl Fn(&Destination) -> bool,
    ) -> Option<u32> {
        let hash = self.by_name.hash(address, qpn.get(), 0);
        self.by_name.find(hash, |row| {
            let row = &self.destinations[row as usize];
            (row.address, row.qpn) == (address, qpn) && is_it(row)
        })
    }

    fn make_ready(&mut self, row: u32) {
        if !std::mem::replace(&mut self.is_ready[row as usize], true) {
            self.ready.push(row);
        }
    }

    fn end_turn(&mut self, row: u32) {
        self.ready.remove(row);
        self.is_ready[row as usize] = false;
        self.turn = 0;
    }

    /// Destination of the next packet.
    fn next(&mut self, now: Time) -> Option<u32> {
        loop {
            let row = self.ready.first()?;
            if self.turn >= TURN_PACKETS {
                self.turn = 0;
                self.ready.touch(row);
                continue;
            }
            if self.next_of(row, now).is_some() {
                return Some(row);
            }
            self.end_turn(row);
        }
    }

    /// Path and queue pair of the next packet.
    pub(crate) fn next_datagram(&mut self, now: Time) -> Option<(Path, Qpn)> {
        let row = self.next(now)?;
        let (index, _) = self.next_of(row, now)?;
        let datagram = self.messages[index as usize].request.datagram?;
        Some((datagram.path, datagram.qpn))
    }

    /// The message and unit that leave next to a destination.
    fn next_of(&mut self, row: u32, now: Time) -> Option<(u32, u32)> {
        let destination = &self.destinations[row as usize];
        if destination.room() == 0 {
            return None;
        }
        let active = destination.active().iter().find_map(|&index| {
            let unit = self.messages[index as usize].next_unit(now)?;
            Some((index, unit))
        });
        active.or_else(|| Some((self.start_next(row)?, 0)))
    }

    /// Begins to send the next message that waits.
    fn start_next(&mut self, row: u32) -> Option<u32> {
        let destination = &mut self.destinations[row as usize];
        let index = destination.first_waiting;
        if index == NONE || !destination.has_room() {
            return None;
        }
        let id = destination.next_id;
        if let Some(&oldest) = destination.active().first()
            && id.wrapping_sub(self.messages[oldest as usize].id) >= SPAN_MAX
        {
            return None;
        }
        let message = &mut self.messages[index as usize];
        destination.first_waiting = message.behind;
        if message.behind == NONE {
            destination.last_waiting = NONE;
        }
        message.behind = NONE;
        destination.next_id = id.wrapping_add(1);
        destination.activate(index);
        let mut name = [0; 16];
        name[..4].copy_from_slice(&row.to_le_bytes());
        name[4..8].copy_from_slice(&id.to_le_bytes());
        name[8..12].copy_from_slice(&destination.instance.get().to_le_bytes());
        // The last byte tells it from what instances are made of.
        name[15] = 1;
        let token = siphash(self.key, &name);
        let room = airdma_wire::record_payload(self.interface_mtu, destination.address);
        let payload = room
            .max(RECORD_PAYLOAD_MIN)
            .saturating_sub(RECORD_TOKEN_LEN as u32);
        message.start(id, token, unit_of(message.request.length, payload));
        Some(index)
    }

    /// Writes the next packet.
    #[inline(never)] // the paths of other services have no room for it on the stack
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        repeat: &Repeat<'_>,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        loop {
            let row = self.next(repeat.now)?;
            let (index, unit) = self.next_of(row, repeat.now)?;
            if let Some(transmit) = self.send(row, index, unit, repeat, host, out) {
                return Some(transmit);
            }
        }
    }

    fn send<H: Host>(
        &mut self,
        row: u32,
        index: u32,
        unit: u32,
        repeat: &Repeat<'_>,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<Transmit> {
        let destination = &mut self.destinations[row as usize];
        let message = &mut self.messages[index as usize];
        let request = message.request;
        let datagram = request.datagram?;
        let Leaves {
            round,
            asks,
            is_new,
        } = message.send(unit, destination.room() == 1);
        let offset = unit * message.unit;
        let payload_len = message.unit.min(request.length - offset);
        let headers = RecordHeaders {
            bth: Bth {
                solicited: request.solicited,
                ack_request: asks,
                pad: pad_of(payload_len),
                dest_qpn: datagram.qpn,
                psn: destination.instance,
                opcode: Opcode::UdSendOnly,
                ..request_bth()
            },
            deth: Deth {
                qkey: qkey_of(&datagram, repeat.attributes),
                src_qpn: repeat.qpn,
            },
            reth: Reth {
                va: message.va,
                rkey: message.rkey,
                length: request.length,
            },
            rceth: Rceth {
                id: message.id,
                offset,
                unit: message.unit as u16,
                round,
            },
            is_send: !request.operation.is_record(),
            token: Some(message.token),
            read: None,
            imm: message.imm,
        };
        destination.note_sent(repeat.now);
        message.deadline = Some(repeat.now + destination.timer());
        if asks && destination.sample.is_none() {
            destination.sample = Some((index, round, repeat.now));
        }
        self.turn += 1;
        let start = headers.emit(out);
        let end = start + payload_len as usize;
        if payload_len > 0
            && host
                .gather_held(request.slot, offset, &mut out[start..end])
                .is_err()
        {
            self.finish(row, index, Status::LocalProtectionError, repeat.qpn, host);
            return None;
        }
        if !is_new {
            host.count(Counter::Retransmits);
        }
        let len = end + usize::from(headers.bth.pad);
        out[end..len].fill(0);
        self.note_due(row, index);
        Some(Transmit {
            len,
            path: datagram.path,
        })
    }

    /// Takes an answer from `source`, which may be forged: it must have the token of a message.
    pub(crate) fn handle_answer<H: Host>(
        &mut self,
        now: Time,
        source: Neighbour,
        answer: &RecordAck,
        qpn: Qpn,
        host: &mut H,
    ) {
        let row = self.find(source, answer.deth.src_qpn, |destination| {
            destination.instance == answer.bth.psn
        });
        let found = row.and_then(|row| {
            let destination = &self.destinations[row as usize];
            let is_it = |&&index: &&u32| {
                let message = &self.messages[index as usize];
                (message.id, message.token) == (answer.id, answer.token)
            };
            let active = destination.active().iter().find(is_it);
            active.map(|&index| (row, index))
        });
        let Some((row, index)) = found else {
            return host.count(Counter::DropGhost);
        };
        let destination = &mut self.destinations[row as usize];
        destination.note_answer(now, index, answer.round);
        let message = &mut self.messages[index as usize];
        let before = message.in_flight();
        let mut ended = None;
        // A target that answers and takes nothing is as silent as one that is gone.
        let mut has_progress = true;
        match answer.answer {
            RecordAnswer::Whole => {
                host.count(Counter::AcksReceived);
                destination.grow(before);
                ended = Some(Status::Success);
            }
            RecordAnswer::Arrives => {
                host.count(Counter::AcksReceived);
                let told = message.handle_map(answer.base, answer.map, answer.round);
                let (gained, lost) = told.unwrap_or_default();
                has_progress = gained > 0;
                if has_progress {
                    message.note_ready();
                }
                destination.grow(gained);
                if lost {
                    destination.shrink(now);
                }
            }
            RecordAnswer::NotReady => {
                host.count(Counter::RnrNaksReceived);
                if !message.handle_not_ready(now, self.config.not_ready) {
                    ended = Some(Status::RnrRetryExceeded);
                }
            }
            RecordAnswer::Refused => ended = Some(Status::RemoteAccessError),
            RecordAnswer::TooLong => ended = Some(Status::RemoteInvalidRequest),
            RecordAnswer::Ended => ended = Some(Status::RemoteOperationError),
        }
        let after = message.in_flight();
        destination.in_flight = destination.in_flight + after - before;
        message.deadline = (after > 0).then(|| now + destination.timer());
        if let Some(status) = ended {
            if status != Status::Success {
                host.count(Counter::NaksReceived);
            }
            self.finish(row, index, status, qpn, host);
        }
        if has_progress {
            self.destinations[row as usize].restart_silence(now);
        }
        self.make_ready(row);
        self.note_due(row, index);
    }

    /// Completes a message.
    fn finish<H: Host>(&mut self, row: u32, index: u32, status: Status, qpn: Qpn, host: &mut H) {
        let destination = &mut self.destinations[row as usize];
        let message = &self.messages[index as usize];
        if destination.deactivate(index) {
            destination.in_flight -= message.in_flight();
        }
        destination.messages -= 1;
        if destination.messages == 0 {
            destination.silent_since = None;
            self.busy.remove(row);
            self.unused.push(row);
        }
        let request = message.request;
        self.free.push(index);
        let opcode = request.operation.completion_opcode();
        let is_success = status == Status::Success;
        if is_success {
            host.count(Counter::MessagesSent);
        }
        let completion = (request.signalled || !is_success).then(|| Completion {
            byte_len: if is_success { request.length } else { 0 },
            ..Completion::with_status(request.wr_id, opcode, status, qpn)
        });
        host.complete_held_send(request.slot, completion);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due at the earliest.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// The timers of a message, which may have ended, and of its destination may be due earlier.
    fn note_due(&mut self, row: u32, index: u32) {
        let message = &self.messages[index as usize];
        let dues = [message.deadline, message.waits_until, self.given_up_at(row)];
        self.due = self.due.into_iter().chain(dues.into_iter().flatten()).min();
    }

    fn given_up_at(&self, row: u32) -> Option<Time> {
        let since = self.destinations[row as usize].silent_since?;
        Some(since + self.config.silence)
    }

    fn due_of(&self, row: u32) -> Option<Time> {
        let active = self.destinations[row as usize].active().iter();
        let dues = active.flat_map(|&index| {
            let message = &self.messages[index as usize];
            [message.deadline, message.waits_until]
        });
        dues.chain([self.given_up_at(row)]).flatten().min()
    }

    /// Handles the timers that are due; an early call does nothing.
    pub(crate) fn handle_timeout<H: Host>(&mut self, now: Time, qpn: Qpn, host: &mut H) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let mut next = self.busy.first();
        let mut due: Option<Time> = None;
        while let Some(row) = next {
            next = self.busy.behind(row);
            self.expire(row, now, qpn, host);
            if let Some(of_row) = self.due_of(row) {
                due = Some(due.map_or(of_row, |before| before.min(of_row)));
            }
        }
        self.due = due;
    }

    fn expire<H: Host>(&mut self, row: u32, now: Time, qpn: Qpn, host: &mut H) {
        let destination = &mut self.destinations[row as usize];
        let silent = destination.silent_since;
        if silent.is_some_and(|since| since + self.config.silence <= now) {
            return self.give_up(row, Status::RetryExceeded, qpn, host);
        }
        let (mut wakes, mut timed_out) = (false, false);
        for at in 0..destination.active().len() {
            let message = &mut self.messages[destination.active()[at] as usize];
            wakes |= message.waits_until.take_if(|until| *until <= now).is_some();
            if message.deadline.is_some_and(|deadline| deadline <= now) {
                destination.in_flight -= message.in_flight();
                message.handle_silence();
                timed_out = true;
            }
        }
        if timed_out {
            host.count(Counter::Timeouts);
            destination.handle_timeout();
        }
        if wakes || timed_out {
            self.make_ready(row);
        }
    }

    /// Fails all messages of a destination, in the order in which they were posted.
    fn give_up<H: Host>(&mut self, row: u32, status: Status, qpn: Qpn, host: &mut H) {
        while let Some(&index) = self.destinations[row as usize].active().first() {
            self.finish(row, index, status, qpn, host);
        }
        loop {
            let destination = &mut self.destinations[row as usize];
            let index = destination.first_waiting;
            if index == NONE {
                break;
            }
            destination.first_waiting = self.messages[index as usize].behind;
            if destination.first_waiting == NONE {
                destination.last_waiting = NONE;
            }
            self.finish(row, index, status, qpn, host);
        }
        self.destinations[row as usize].silent_since = None;
    }

    /// Forgets all messages, without a word.
    pub(crate) fn reset(&mut self) {
        if let Ok(fresh) = Self::new(self.config, self.key, self.interface_mtu) {
            let instances = self.instances;
            *self = ReliableRequester { instances, ..fresh };
        }
    }

    /// Fails all messages: the queue pair sends no more.
    pub(crate) fn fail<H: Host>(&mut self, qpn: Qpn, host: &mut H) {
        while let Some(row) = self.busy.first() {
            self.give_up(row, Status::WrFlushError, qpn, host);
        }
        self.due = None;
    }
}
