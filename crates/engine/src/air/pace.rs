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
mod tests {
    use super::*;

    fn qp(place: u32) -> QpIndex {
        QpIndex::new(place)
    }
    use airdma_port::GROUP_BYTES_MAX;
    use airdma_transport::rate::{BURST_BYTES_MAX, Occupancy, Reading};
    use airdma_wire::{Bth, ICRC_LEN, PathMtu, long_payload};

    const USUAL: Weight = Weight::of(0);
    const NOW: Time = Time::from_nanos(1_000_000);

    fn pace() -> Pace {
        Pace::new(RateControl::Buffers, 1024, NOW).unwrap()
    }

    #[test]
    fn a_burst_leaves_in_one_segmented_send() {
        for payload in [
            PathMtu::M1024.bytes(),
            long_payload(1500, [192, 0, 2, 1].into()),
        ] {
            let packet = Bth::LEN + payload as usize;
            // The last packet may exceed the limit.
            let packets = (BURST_BYTES_MAX as usize).div_ceil(packet);
            let bytes = packets * (packet + ICRC_LEN);
            assert!(bytes <= GROUP_BYTES_MAX, "{packets} of {payload}: {bytes}");
        }
    }

    #[test]
    fn each_has_a_turn_in_the_order_in_which_they_came() {
        let mut pace = pace();
        let mut waits = [false; 3];
        assert!(
            pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], NOW)
                .is_some()
        );
        for queue_pair in [1, 2, 1].map(qp) {
            let place = &mut waits[queue_pair.place()];
            assert_eq!(pace.admit((queue_pair, USUAL), u64::MAX, place, NOW), None);
        }
        assert_eq!(waits, [false, true, true]);
        assert_eq!(pace.sent(qp(0), NOW, (64, 1), false), Some(qp(1)));
        waits[1] = false;
        // It has more: behind the others.
        assert_eq!(
            pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], NOW),
            None
        );
        let later = NOW + Duration::from_millis(2);
        assert!(
            pace.admit((qp(1), USUAL), u64::MAX, &mut waits[1], later)
                .is_some()
        );
        assert_eq!(pace.sent(qp(1), later, (64, 1), false), Some(qp(2)));
        assert_eq!(pace.sent(qp(2), NOW, (0, 0), false), Some(qp(0)));
        assert_eq!(pace.sent(qp(0), NOW, (0, 0), false), None);
    }

    #[test]
    fn who_has_more_weight_sends_more_in_its_turn() {
        let mut pace = pace();
        let weights = [0x20, 0x00, 0xa0, 0xe0].map(Weight::of);
        let mut waits = [false; 4];
        let mut sent = [0; 4];
        let mut now = NOW;
        let mut active: VecDeque<QpIndex> = (0..4).map(qp).collect();
        while let Some(queue_pair) = active.pop_front()
            && now < NOW + Duration::from_secs(20)
        {
            let place = queue_pair.place();
            let asks = (queue_pair, weights[place]);
            match pace.admit(asks, u64::MAX, &mut waits[place], now) {
                Some(bytes) => {
                    // Not always all of it in one go.
                    let bytes = bytes.min(40_000);
                    sent[place] += bytes;
                    let next = pace.sent(queue_pair, now, (bytes, 1), true);
                    active.push_back(queue_pair);
                    if let Some(next) = next {
                        waits[next.place()] = false;
                        active.push_back(next);
                    }
                }
                None if waits[place] => {}
                None => {
                    now = now + Duration::from_millis(1);
                    active.push_back(queue_pair);
                }
            }
        }
        let quarter = sent.iter().sum::<u64>() / (1 + 4 + 8 + 16);
        for (bytes, quarters) in sent.iter().zip([1, 4, 8, 16]) {
            let fair = quarters * quarter;
            assert!(bytes.abs_diff(fair) < fair / 20, "{sent:?}");
        }
    }

    #[test]
    fn who_has_sent_a_burst_waits_for_the_pacer_and_is_called_then() {
        let mut pace = pace();
        let mut waits = false;
        let bytes = pace
            .admit((qp(7), USUAL), u64::MAX, &mut waits, NOW)
            .unwrap();
        assert_eq!(pace.sent(qp(7), NOW, (bytes, 1), true), None);
        assert_eq!(pace.admit((qp(7), USUAL), u64::MAX, &mut waits, NOW), None);
        assert!(!waits, "it has the turn");
        let due = pace.due().unwrap();
        assert!(due > NOW && due <= NOW + Duration::from_millis(2));
        assert_eq!(pace.released(NOW), None);
        assert_eq!(pace.released(due), Some(qp(7)));
        assert!(
            pace.admit((qp(7), USUAL), u64::MAX, &mut waits, due)
                .is_some()
        );
    }

    #[test]
    fn who_leaves_holds_nobody_up() {
        let mut pace = pace();
        let mut waits = [false; 3];
        for (queue_pair, waits) in (0..).map(qp).zip(&mut waits) {
            pace.admit((queue_pair, USUAL), u64::MAX, waits, NOW);
        }
        assert_eq!(pace.leave(qp(1)), None);
        assert_eq!(pace.leave(qp(0)), Some(qp(2)));
        assert_eq!(pace.leave(qp(2)), None);
        assert!(
            pace.admit((qp(5), USUAL), u64::MAX, &mut false, NOW)
                .is_some()
        );
    }

    /// Reports of a peer that received at 50 MB/s until its program stopped 4 ms ago.
    fn stopped(pace: &mut Pace) {
        received(pace, 50_000, 600_000);
    }

    /// Reports of a peer that receives at 50 MB/s, of which `stay` bytes a ms stay in its program's
    /// buffer of `capacity`.
    fn received(pace: &mut Pace, stay: u64, capacity: u64) {
        pace.admit((qp(0), USUAL), u64::MAX, &mut false, NOW);
        pace.sent(qp(0), NOW, (60_000, 60), false);
        for ms in [0, 4, 8, 12, 16] {
            let told = Told {
                at_us: ms * 1_000,
                received_bytes: 10_000 + u64::from(ms.min(12)) * 50_000,
                marked_bytes: 0,
                missed_packets: 0,
            };
            let occupancy = Occupancy {
                bytes: (told.received_bytes - 10_000) / 50_000 * stay,
                capacity: Some(capacity),
            };
            let feedback = Feedback {
                socket: Reading {
                    drained_bytes: told.received_bytes,
                    ..Reading::default()
                },
                application: Some(Reading {
                    occupancy,
                    drained_bytes: 0,
                }),
                ..Feedback::default()
            };
            let now = NOW + Duration::from_millis(ms.into());
            pace.tick(now, Some(QueueFill::default()));
            pace.take_feedback(now, told, feedback);
        }
    }

    #[test]
    fn a_stopped_program_delays_only_queue_pairs_with_much_to_send() {
        let mut pace = pace();
        let now = NOW + Duration::from_millis(17);
        let packet = PACKET_LEN_MAX as u64;
        stopped(&mut pace);
        assert_eq!(pace.controller.rate(), Rate::ZERO);
        let mut waits = [false; 3];
        assert_eq!(
            pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], now),
            None
        );
        assert_eq!(pace.waiting, Waiting::ForRate);
        for _ in 0..4 {
            let admitted = pace.admit((qp(1), USUAL), packet, &mut waits[1], now);
            assert_eq!(admitted, Some(packet));
            assert_eq!(pace.sent(qp(1), now, (200, 1), false), None);
        }
        assert_eq!(pace.called(), Some(qp(0)), "it is as it was");
        assert_eq!(pace.waiting, Waiting::ForRate);
        // That queue pair has more than a packet.
        assert_eq!(
            pace.admit((qp(2), USUAL), packet, &mut waits[2], now),
            Some(packet)
        );
        assert_eq!(pace.sent(qp(2), now, (packet, 1), true), None);
        assert_eq!(
            pace.admit((qp(2), USUAL), u64::MAX, &mut waits[2], now),
            None
        );
        assert_eq!(waits, [false, false, true]);
        // Nor faster than the line and the socket accept.
        let passed = (0..1_000).take_while(|_| {
            let admitted = pace.admit((qp(1), USUAL), packet, &mut waits[1], now);
            admitted.is_some() && pace.sent(qp(1), now, (packet, 1), false).is_none()
        });
        assert!((1..50).contains(&passed.count()));
    }

    #[test]
    fn in_and_out_of_turn_bytes_share_the_rate_of_the_path() {
        let mut pace = pace();
        received(&mut pace, 10_000, 1_200_000);
        let [slow, fast] = [
            pace.controller.rate(),
            pace.controller.rate_beside_program().unwrap(),
        ];
        let share = slow.bytes_per_s() as f64 / fast.bytes_per_s() as f64;
        assert!((0.2..0.9).contains(&share), "{slow:?} of {fast:?}");
        let time = Duration::from_millis(200);
        let mut sent = [0; 2];
        let mut waits = [false; 2];
        for us in (0..time.as_micros() as u64).step_by(100) {
            let now = NOW + Duration::from_micros(17_000 + us);
            for (queue_pair, wanted) in [(0, u64::MAX), (1, 1_000), (1, 1_000), (1, 1_000)] {
                let queue_pair = qp(queue_pair);
                let place = queue_pair.place();
                let asks = (queue_pair, USUAL);
                if let Some(bytes) = pace.admit(asks, wanted, &mut waits[place], now) {
                    let bytes = bytes.min(wanted);
                    sent[place] += bytes;
                    if let Some(next) = pace.sent(queue_pair, now, (bytes, 1), false) {
                        waits[next.place()] = false;
                    }
                }
            }
        }
        let all = fast.bytes_in(time + Duration::from_millis(4));
        assert!(
            sent[1] > 0 && sent.iter().sum::<u64>() <= all,
            "{sent:?} of {all}"
        );
    }

    #[test]
    fn small_senders_leave_the_line_in_order_when_a_program_stops() {
        let mut pace = pace();
        let now = NOW + Duration::from_millis(17);
        let packet = PACKET_LEN_MAX as u64;
        let mut waits = [false; 5];
        pace.admit((qp(0), USUAL), u64::MAX, &mut waits[0], NOW);
        for (queue_pair, wanted) in [(1, packet), (2, u64::MAX), (3, packet), (4, packet)] {
            let place = &mut waits[queue_pair as usize];
            assert_eq!(
                pace.admit((qp(queue_pair), USUAL), wanted, place, NOW),
                None
            );
        }
        assert_eq!(pace.ask_beside(), None, "it is the line that sets the rate");
        stopped(&mut pace);
        assert_eq!(pace.called(), Some(qp(1)), "the first one is done");
        assert_eq!(pace.controller.rate(), Rate::ZERO);
        waits[1] = false;
        assert_eq!(
            pace.admit((qp(1), USUAL), u64::MAX, &mut waits[1], now),
            None
        );
        assert_eq!(pace.waiting, Waiting::ForRate);

        assert_eq!(pace.ask_beside(), Some(qp(3)));
        let not_the_first = pace.admit((qp(4), USUAL), packet, &mut waits[4], now);
        assert_eq!(not_the_first, None);
        let admitted = pace.admit((qp(3), USUAL), packet, &mut waits[3], now);
        assert_eq!(admitted, Some(packet));
        assert_eq!(pace.sent(qp(3), now, (200_000, 1), false), None);
        // So much that the others wait for the pacer, and are called in time.
        assert_eq!(pace.next_beside(), Some(qp(4)));
        assert_eq!(pace.admit((qp(4), USUAL), packet, &mut waits[4], now), None);
        assert_eq!(waits, [false, false, true, false, true]);
        let due = pace.beside_at.unwrap();
        assert!(due > now && pace.due().unwrap() <= due);
        assert_eq!(pace.ask_beside(), Some(qp(4)));
        let admitted = pace.admit((qp(4), USUAL), packet, &mut waits[4], due);
        assert_eq!(admitted, Some(packet));
        assert_eq!(pace.sent(qp(4), due, (64, 1), false), None);
        assert_eq!(pace.next_beside(), None);
        assert_eq!((pace.waiting(), pace.called()), (2, Some(qp(1))));
    }

    #[test]
    fn a_peer_whose_clock_went_back_began_anew() {
        let mut pace = pace();
        let mut told = |at_us, received_bytes| {
            let told = Told {
                at_us,
                received_bytes,
                marked_bytes: 0,
                missed_packets: 0,
            };
            pace.take_feedback(NOW, told, Feedback::default());
            pace.told_us
        };
        assert_eq!(told(60_000_000, 10_000), 60_000_000);
        assert_eq!(told(60_006_000, 10_000), 60_006_000);
        // More bytes than before, by a clock that shows less.
        assert_eq!(told(2_000, 64_000), 2_000);
        assert_eq!(told(8_000, 500_000), 8_000);
        // It wraps after 71 minutes.
        assert_eq!(told(u32::MAX / 2, 600_000), u64::from(u32::MAX / 2));
        assert_eq!(told(u32::MAX - 10, 700_000), u64::from(u32::MAX - 10));
        assert_eq!(told(20, 700_000), u64::from(u32::MAX) + 21);
    }

    #[test]
    fn what_is_missed_is_lost_for_who_counts_losses() {
        let window_after = |missed_packets| {
            let mut pace = Pace::new(RateControl::Dctcp, 1024, NOW).unwrap();
            pace.admit((qp(0), USUAL), u64::MAX, &mut false, NOW);
            pace.sent(qp(0), NOW, (60_000, 60), false);
            let told = Told {
                at_us: 1_000,
                received_bytes: 30_000,
                marked_bytes: 0,
                missed_packets,
            };
            pace.take_feedback(NOW + Duration::from_millis(5), told, Feedback::default());
            pace.window()
        };
        assert!(window_after(10) < window_after(0));
    }
}
