//! Rate to a peer: its rate controller, its pacer, and the turns of queue pairs.
//!
//! All queue pairs connected to the peer share them. One at a time has the turn: it sends what the
//! pacer admits, as much as its [`Weight`] permits, or waits for the pacer, and goes to the end of
//! the line. So all get bytes by their weights.

use super::application::Taken;
use crate::config::RateControl;
use crate::index::QpIndex;
use crate::limits::PACKET_LEN_MAX;
use airdma_port::QueueFill;
use airdma_transport::Time;
use airdma_transport::rate::{
    Acknowledged, Aim, BufferOrchestrator, Dcqcn, Dctcp, Feedback, Pacer, Permit, Rate,
    RateController,
};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of a packet's headers that the transport does not write: Ethernet, IPv4, UDP and ICRC.
/// Queues count them.
pub(crate) const OVERHEAD_BYTES: u64 = 14 + 20 + 8 + 4;

/// Bytes of a missing packet, since reports count packets; and the most at once, beyond which a
/// report is invalid.
const LOST_PACKET_BYTES: u64 = 1024;
pub(super) const MISSED_MAX: u32 = 1 << 16;
/// Capacity of an unprivileged process's largest receive socket, and of some network behind it.
const DCTCP_WINDOW_MAX: u64 = 8 << 20;

/// Most bytes out of turn: a packet.
const BESIDE_BYTES_MAX: u64 = PACKET_LEN_MAX as u64;

/// Codepoint of packets that the network may mark.
pub(super) const ECT_0: u8 = 0b10;
const ECN: u8 = 0b11;

/// Share of a queue pair in its turn if several want to send, in quarters of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight(u64);

impl Weight {
    /// Weight by the traffic class, whose upper three bits select the access category of Wi-Fi:
    /// background, best effort, video or voice.
    pub(crate) const fn of(traffic_class: u8) -> Self {
        match traffic_class >> 5 {
            1 => Weight(1),
            0 | 2 => Weight(4),
            3..=5 => Weight(8),
            _ => Weight(16),
        }
    }
}

/// Reason why the queue pair with the turn does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    No,
    /// The pacer admits it at this time.
    Until(Time),
    /// The rate is zero.
    ForRate,
}

/// A queue pair that has the turn, or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sender {
    queue_pair: QpIndex,
    /// Whether its small request may be sent out of turn.
    has_little: bool,
}

pub(crate) struct Pace {
    controller: Box<dyn RateController + Send>,
    /// ECN bits of the traffic class (RFC 3168).
    ecn: u8,
    pacer: Pacer,
    /// Pacer of all that leaves, in turn or not: as the pacer, except for the limit of the peer's
    /// program.
    beside: Pacer,
    /// Time at which that admits the first queue pair with little to send.
    beside_at: Option<Time>,
    /// Whether the queue pair admitted last sends out of turn.
    is_beside: bool,
    /// Queue pair with the turn.
    turn: Option<Sender>,
    /// Bytes left of its turn; 0 at its begin.
    turn_left: u64,
    waiting: Waiting,
    /// Queue pairs that wait for the turn.
    line: VecDeque<Sender>,
    /// Whether the last read of this host's queue succeeded.
    sees_queue: bool,
    /// Whether the controller uses the peer's reports of buffers and counts.
    hears_buffers: bool,
    /// Whether reports are rare while many packets come, since each costs an access to the air.
    rare_reports: bool,
    /// Clock of the peer in the last feedback.
    told_us: u64,
    received_bytes: u64,
    marked_bytes: u32,
    missed_packets: u32,
    /// Bytes taken out of the buffer of the peer's program, if that has one.
    taken: Option<Taken>,
}

/// Content of a report besides the buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) at_us: u32,
    pub(crate) received_bytes: u64,
    pub(crate) marked_bytes: u32,
    pub(crate) missed_packets: u32,
}

impl Pace {
    /// A pace by the peer's reports, for packets with this `payload`. `None` if only the window
    /// limits the rate.
    pub(crate) fn new(control: RateControl, payload: u32, now: Time) -> Option<Self> {
        let controller: Box<dyn RateController + Send> = match control {
            RateControl::Buffers => Box::new(BufferOrchestrator::new(Aim::Throughput)),
            RateControl::Latency => Box::new(BufferOrchestrator::new(Aim::Latency)),
            RateControl::Dctcp => Box::new(Dctcp::new(payload, DCTCP_WINDOW_MAX)),
            RateControl::Dcqcn | RateControl::Window => return None,
        };
        let ecn = if control == RateControl::Dctcp {
            ECT_0
        } else {
            0
        };
        Some(Pace {
            hears_buffers: true,
            rare_reports: control != RateControl::Dctcp,
            ..Pace::with(controller, ecn, now)
        })
    }

    /// A pace by CNPs, through an interface of this rate.
    pub(crate) fn dcqcn(line_rate: Rate, now: Time) -> Self {
        Pace::with(Box::new(Dcqcn::new(line_rate)), ECT_0, now)
    }

    fn with(controller: Box<dyn RateController + Send>, ecn: u8, now: Time) -> Self {
        Pace {
            controller,
            ecn,
            pacer: Pacer::new(now),
            beside: Pacer::new(now),
            beside_at: None,
            is_beside: false,
            turn: None,
            turn_left: 0,
            waiting: Waiting::No,
            line: VecDeque::new(),
            sees_queue: false,
            hears_buffers: false,
            rare_reports: false,
            told_us: 0,
            received_bytes: 0,
            marked_bytes: 0,
            missed_packets: 0,
            taken: None,
        }
    }

    pub(crate) fn hears_buffers(&self) -> bool {
        self.hears_buffers
    }

    /// Whether the buffer of the peer's program limits the rate.
    pub(crate) fn is_limited_by_program(&self) -> bool {
        self.controller.rate_beside_program().is_some()
    }

    pub(crate) fn has_rare_reports(&self) -> bool {
        self.rare_reports
    }

    /// Bytes that a queue pair of this `weight` may send now, of those it wants; `None`: not now,
    /// and if it `waits`, it is in the line and will be called.
    pub(crate) fn admit(
        &mut self,
        (queue_pair, weight): (QpIndex, Weight),
        wanted: u64,
        waits: &mut bool,
        now: Time,
    ) -> Option<u64> {
        let has_little = wanted <= BESIDE_BYTES_MAX;
        let has_turn = self.has_turn(queue_pair);
        if let Some(turn) = self.turn.as_mut().filter(|_| has_turn) {
            turn.has_little = has_little;
        }
        self.is_beside = has_little && self.passes_program(queue_pair, wanted, now);
        if self.is_beside {
            if has_turn {
                self.waiting = Waiting::No;
            }
            if std::mem::take(waits) {
                self.line.retain(|other| other.queue_pair != queue_pair);
            }
            return Some(wanted);
        }
        let asks = Sender {
            queue_pair,
            has_little,
        };
        let is_free = self.turn.is_none() && self.line.is_empty();
        if !is_free && !has_turn {
            if !std::mem::replace(waits, true) {
                self.line.push_back(asks);
            }
            return None;
        }
        self.turn = Some(asks);
        let rate = self.controller.rate();
        self.waiting = match self.pacer.poll(now, rate, wanted) {
            Permit::Now(bytes) => {
                self.waiting = Waiting::No;
                if self.turn_left == 0 {
                    self.turn_left = (bytes * weight.0 / 4).max(1);
                }
                let share = if self.line.is_empty() {
                    bytes
                } else {
                    bytes.min(self.turn_left)
                };
                return Some(share);
            }
            Permit::At(at) => Waiting::Until(at),
            Permit::Never => Waiting::ForRate,
        };
        None
    }

    fn has_turn(&self, queue_pair: QpIndex) -> bool {
        self.turn.is_some_and(|turn| turn.queue_pair == queue_pair)
    }

    /// Whether a queue pair may send `wanted` bytes out of turn: a packet, if only the buffer of
    /// the peer's program delays the others. A queue pair with more to send probably fills that
    /// buffer; one with less may be the one that empties it.
    fn passes_program(&mut self, queue_pair: QpIndex, wanted: u64, now: Time) -> bool {
        let Some(rate) = self.controller.rate_beside_program() else {
            return false;
        };
        if self
            .first_with_little()
            .is_some_and(|first| first != queue_pair)
        {
            return false;
        }
        match self.beside.poll(now, rate, wanted) {
            Permit::Now(_) => true,
            Permit::At(at) => {
                self.beside_at = Some(at);
                false
            }
            Permit::Never => false,
        }
    }

    /// The first queue pair that sends out of turn before all others.
    fn first_with_little(&self) -> Option<QpIndex> {
        let mut all = self.turn.iter().chain(&self.line);
        let first = all.find(|sender| sender.has_little)?;
        Some(first.queue_pair)
    }

    /// The first waiting queue pair with little to send, if only the buffer of the peer's program
    /// delays it.
    pub(crate) fn ask_beside(&mut self) -> Option<QpIndex> {
        self.beside_at = None;
        self.controller.rate_beside_program()?;
        self.first_with_little()
    }

    /// The next queue pair after one that sent out of turn.
    pub(crate) fn next_beside(&mut self) -> Option<QpIndex> {
        if std::mem::take(&mut self.is_beside) {
            self.ask_beside()
        } else {
            None
        }
    }

    /// The traffic class of a packet that would have `wanted`.
    pub(crate) fn traffic_class(&self, wanted: u8) -> u8 {
        if self.ecn == 0 {
            wanted
        } else {
            wanted & !ECN | self.ecn
        }
    }

    /// An admitted queue pair has sent `bytes` in `packets`, and may have more. Returns the next in
    /// turn, if its turn is over.
    pub(crate) fn sent(
        &mut self,
        queue_pair: QpIndex,
        now: Time,
        (bytes, packets): (u64, u64),
        has_more: bool,
    ) -> Option<QpIndex> {
        let has_turn = self.has_turn(queue_pair);
        if packets > 0 {
            let bytes = bytes + packets * OVERHEAD_BYTES;
            self.spend(bytes, now);
            self.controller.handle_sent(now, bytes);
        }
        if !has_turn {
            return None;
        }
        self.turn_left = self.turn_left.saturating_sub(bytes);
        if has_more && bytes > 0 && self.turn_left > 0 {
            if let Some(turn) = &mut self.turn {
                turn.has_little = false;
            }
            return None;
        }
        self.next()
    }

    /// Charges bytes to the rate of the path, which in-turn and out-of-turn bytes share.
    fn spend(&mut self, bytes: u64, now: Time) {
        if !self.is_beside {
            self.pacer.spend(bytes);
        }
        match self.controller.rate_beside_program() {
            Some(rate) => {
                // Filled at the present rate: a debt made at another one would take long to pay.
                self.beside.poll(now, rate, bytes);
                self.beside.spend(bytes);
            }
            None => self.beside = self.pacer,
        }
    }

    /// A queue pair sends without being admitted, whether it `waited` or had the turn. Returns the
    /// next in turn, if it had it.
    pub(crate) fn pass(&mut self, queue_pair: QpIndex, waited: bool) -> Option<QpIndex> {
        if waited || self.has_turn(queue_pair) {
            self.leave(queue_pair)
        } else {
            None
        }
    }

    /// Removes a queue pair. Returns the next in turn, if it had the turn.
    pub(crate) fn leave(&mut self, queue_pair: QpIndex) -> Option<QpIndex> {
        self.line.retain(|other| other.queue_pair != queue_pair);
        if self.has_turn(queue_pair) {
            self.next()
        } else {
            None
        }
    }

    fn next(&mut self) -> Option<QpIndex> {
        self.waiting = Waiting::No;
        self.turn_left = 0;
        self.turn = self.line.pop_front();
        self.called()
    }

    fn called(&self) -> Option<QpIndex> {
        self.turn.map(|turn| turn.queue_pair)
    }

    /// Number of waiting queue pairs.
    pub(crate) fn waiting(&self) -> usize {
        usize::from(self.waiting != Waiting::No) + self.line.len()
    }

    /// All waiting queue pairs, which are no longer limited.
    pub(crate) fn disband(self) -> impl Iterator<Item = QpIndex> {
        let all = self.turn.into_iter().chain(self.line);
        all.map(|sender| sender.queue_pair)
    }

    /// The queue pair that waits for the pacer, if it is time to ask it again.
    pub(crate) fn released(&mut self, now: Time) -> Option<QpIndex> {
        match self.waiting {
            Waiting::Until(at) if at <= now => {
                self.waiting = Waiting::No;
                self.called()
            }
            Waiting::No | Waiting::Until(_) | Waiting::ForRate => None,
        }
    }

    /// The waiting queue pair, after the rate has changed.
    pub(crate) fn ask_again(&mut self) -> Option<QpIndex> {
        let waited = std::mem::replace(&mut self.waiting, Waiting::No);
        self.called().filter(|_| waited != Waiting::No)
    }

    /// Time of the next call of [`Pace::released`], [`Pace::ask_beside`] or [`Pace::tick`].
    pub(crate) fn due(&self) -> Option<Time> {
        let release = match self.waiting {
            Waiting::Until(at) => Some(at),
            Waiting::No | Waiting::ForRate => None,
        };
        release
            .into_iter()
            .chain(self.beside_at)
            .chain(self.controller.poll_timeout())
            .min()
    }

    /// Whether the controller needs the length of this host's queue.
    pub(crate) fn is_tick_due(&self, now: Time) -> bool {
        self.controller.poll_timeout().is_some_and(|at| at <= now)
    }

    pub(crate) fn tick(&mut self, now: Time, send_queue: Option<QueueFill>) {
        self.sees_queue = send_queue.is_some();
        if let Some(bytes) = send_queue.and_then(|fill| fill.left_bytes) {
            self.controller.handle_left(bytes);
        }
        let controller = &mut self.controller;
        controller.handle_timeout(now, send_queue.map(super::occupancy));
    }

    pub(crate) fn sees_queue(&self) -> bool {
        self.sees_queue
    }

    pub(crate) fn take_cnp(&mut self, now: Time) {
        self.controller.handle_cnp(now);
    }

    /// A ping was answered after `sample`, of which the peer `held` it for a part.
    pub(crate) fn take_rtt(&mut self, now: Time, sample: Duration, held: Duration) {
        // A window is spread over the time that its acknowledgement takes.
        let held = if self.rare_reports {
            held
        } else {
            Duration::ZERO
        };
        self.controller.handle_rtt(now, sample.saturating_sub(held));
    }

    pub(crate) fn take_feedback(&mut self, now: Time, told: Told, mut feedback: Feedback) {
        if told.received_bytes == 0 {
            // Nothing shows the throughput yet.
            return;
        }
        let came = told.received_bytes.checked_sub(self.received_bytes);
        let later = told.at_us.wrapping_sub(self.told_us as u32);
        match came {
            // Reports come in order: a clock that went back was restarted.
            Some(bytes) if later.cast_signed() >= 0 => {
                self.told_us += u64::from(later);
                let marked = told.marked_bytes.wrapping_sub(self.marked_bytes);
                let acknowledged = Acknowledged {
                    bytes,
                    marked_bytes: u64::from(marked).min(bytes),
                };
                self.controller.handle_acknowledged(now, acknowledged);
                let missed = told.missed_packets.wrapping_sub(self.missed_packets);
                let lost = u64::from(missed.min(MISSED_MAX)) * LOST_PACKET_BYTES;
                if lost > 0 {
                    self.controller.handle_lost(now, lost);
                }
            }
            // It was restarted after a pause.
            Some(_) | None => {
                self.told_us = told.at_us.into();
                self.taken = None;
            }
        }
        self.missed_packets = told.missed_packets;
        self.received_bytes = told.received_bytes;
        self.marked_bytes = told.marked_bytes;
        feedback.at = Time::ZERO + Duration::from_micros(self.told_us);
        match &mut feedback.application {
            Some(reading) => {
                let (received, left) = (told.received_bytes, reading.occupancy.bytes);
                let taken = self.taken.get_or_insert(Taken::new(received, left));
                reading.drained_bytes = taken.total(received, left);
            }
            None => self.taken = None,
        }
        self.controller.handle_feedback(now, &feedback);
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.controller.window()
    }
}

#[cfg(test)]
mod tests;
