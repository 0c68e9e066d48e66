//! The buffer orchestrator (SMUFF, NSDI 2024, 3.3 and 3.4): the sending rate follows how full the
//! buffers of the path are.
//!
//! On a path of one hop both ends see every buffer. So the sender does not probe for losses: it
//! keeps in the bottleneck's buffer what that needs to stay busy, however its rate changes, and no
//! more anywhere. [`buffer`](super::buffer) has the equations for one buffer; the rate is what the
//! strictest allows, `v_0 = max(min_i(v_i + (X_target_i - X_i) / d_i), 0)`.
//!
//! | buffer | emptied by | seen | `d_i` |
//! |---|---|---|---|
//! | send queue of this host | the line | here, at each tick | 4 ms (SMUFF 3.4) |
//! | instead of it, where the kernel does not show it: the path | the line | as `v` times the wait in queues, from round trips | as below |
//! | receiver's socket | its transport | by feedback | smoothed RTT, and the mean time between feedbacks |
//! | receiver's application | program or disk | by feedback | the same |
//!
//! Several senders at one send queue, programs or peers of one, each see all of it, and keep it at
//! the target of the line together: each takes its share of `v_0`, which is its part of what came
//! into the queue, and claims a sixteenth of what is the others'. The queue gets a little longer by
//! that, and all take it back by their shares: so shares become equal, as by any additive increase
//! and multiplicative decrease (Chiu and Jain, 1989). It needs the kernel's count of what left.
//!
//! There is no slow start: a first burst, one segmented send, shows the rates, and the first
//! feedback sets `v_0` by them. Until then no more is in flight.
//!
//! Silence: the rate is held for 4 RTT, 100 ms at least, then halved with each RTT, 25 ms at least,
//! down to 64 KiB/s: a packet every 60 ms probes for the peer, and the first answer restores the
//! rate. If the receiver *says* that it is full, nothing is sent, as long as it keeps saying so.
//!
//! Losses do not change the rate: on radio they do not show a full queue, which the readings show.
//! Nor do congestion marks.

use core::time::Duration;

use super::buffer::{Aim, Buffer, Kind, Verdict, WHOLE};
use super::{
    Acknowledged, BURST_BYTES_MAX, Feedback, Occupancy, Rate, RateController, Reading, Rtt,
};
use crate::Time;

/// Control latency of a buffer on this host, and interval between two readings of it.
const TICK: Duration = Duration::from_millis(4);
/// A later tick counts as one at this time.
const TICK_MAX: Duration = Duration::from_millis(100);
/// Least control latency of a remote buffer: feedback over less than a millisecond says little.
const REMOTE_MIN: Duration = Duration::from_millis(1);
/// Longest expected interval of feedback: a longer pause was a pause of the traffic.
const GAP_MAX: Duration = Duration::from_millis(100);
/// Assumed round trip before the first measurement.
const RTT_UNKNOWN: Duration = Duration::from_millis(10);

/// Bytes that are sent before anything is known.
const FIRST_BYTES: u64 = BURST_BYTES_MAX;
const FIRST_TIME: Duration = Duration::from_millis(1);

/// Least time for which the rate is held without feedback.
const HOLD_MIN: Duration = Duration::from_millis(100);
const HALVING_MIN: Duration = Duration::from_millis(25);
const HALVINGS_MAX: u32 = 40;
/// Most doublings of the tick while the peer is silent.
const TICK_DOUBLINGS_MAX: u32 = 4;
/// Rate of probes to a silent peer.
const PROBE_RATE: Rate = Rate::from_bytes_per_s(64 * 1024);
/// The weight of a new share is one in this many.
const SHARE_WEIGHT: u64 = 4;
/// Age after which measurements are dropped.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Rate control by the occupancy of buffers. `docs/design/018-rate-control.md` has the comparisons.
#[derive(Clone, Debug)]
pub struct BufferOrchestrator {
    aim: Aim,
    rtt: Rtt,
    send_queue: Buffer,
    /// Stands in for the send queue if that is not visible.
    path: Buffer,
    socket: Buffer,
    application: Buffer,
    is_send_queue_seen: bool,
    /// When the first byte was sent since the controller was new, or had been idle.
    began: Option<Time>,
    active_at: Time,
    /// Bytes sent since the last tick.
    sent: u64,
    /// Bytes that the line took out of the send queue since it began.
    drained: u64,
    /// Bytes that have left the send queue, from all senders: as reported since the last tick, and
    /// at that.
    left: [Option<u64>; 2],
    /// This sender's part of what came into the send queue, of [`WHOLE`].
    ///
    /// The others are other programs, and other peers of this one.
    share: u64,
    ticked_at: Time,
    /// Length of the last tick.
    tick: Duration,
    tick_at: Option<Time>,
    feedback_at: Option<Time>,
    /// Mean interval between two feedbacks.
    feedback_gap: Duration,
    /// Since when something sent has not been answered by feedback.
    silent_since: Option<Time>,
    halvings: u32,
    v0: Rate,
    /// The rate without the receiver's application.
    v0_beside: Rate,
    absurd: u64,
}

impl BufferOrchestrator {
    /// A controller for a peer of which nothing is known.
    pub fn new(aim: Aim) -> Self {
        BufferOrchestrator {
            aim,
            rtt: Rtt::new(),
            send_queue: Buffer::new(Kind::Network, aim),
            // The time that packets take varies by more than a shorter queue would add.
            path: Buffer::new(Kind::Network, Aim::Throughput),
            socket: Buffer::new(Kind::Processor, aim),
            application: Buffer::of_program(aim),
            is_send_queue_seen: false,
            began: None,
            active_at: Time::ZERO,
            sent: 0,
            drained: 0,
            left: [None; 2],
            share: WHOLE,
            ticked_at: Time::ZERO,
            tick: TICK,
            tick_at: None,
            feedback_at: None,
            feedback_gap: Duration::ZERO,
            silent_since: None,
            halvings: 0,
            v0: Rate::of(FIRST_BYTES, FIRST_TIME),
            v0_beside: Rate::of(FIRST_BYTES, FIRST_TIME),
            absurd: 0,
        }
    }

    /// Impossible readings and round trips, which were bounded or ignored.
    pub fn absurd(&self) -> u64 {
        self.absurd.saturating_add(self.rtt.absurd())
    }

    /// Control latency of remote buffers: a change of the rate shows in the next feedback made
    /// after it got there.
    fn d_remote(&self) -> Duration {
        (self.round_trip() + self.feedback_gap).max(REMOTE_MIN)
    }

    fn round_trip(&self) -> Duration {
        self.rtt.smoothed().unwrap_or(RTT_UNKNOWN)
    }

    /// Starts again with the first byte after a time in which everything may have changed.
    fn begin(&mut self, now: Time) {
        let rtt = self.rtt;
        let absurd = self.absurd;
        *self = BufferOrchestrator::new(self.aim);
        self.rtt = rtt;
        self.absurd = absurd;
        self.began = Some(now);
    }

    fn note(&mut self, verdict: Verdict) {
        self.absurd = self
            .absurd
            .saturating_add(u64::from(verdict == Verdict::Absurd));
    }

    fn observe_send_queue(&mut self, now: Time, occupancy: Occupancy) {
        let was = self.send_queue.x();
        let [told, before] = self.left;
        self.left = [None, told];
        let left = told
            .zip(before)
            .and_then(|(told, before)| told.checked_sub(before));
        // If less came than was sent, the rest went another way, or was dropped.
        let left =
            left.filter(|left| came(*left, was, occupancy.bytes) >= self.sent - self.sent / 16);
        match left {
            Some(left) => self.note_share(came(left, was, occupancy.bytes)),
            None if told.is_none() => self.share = WHOLE,
            None => {}
        }
        // Without that, the others' input counts as not having left.
        let own = || {
            was.saturating_add(self.sent)
                .saturating_sub(occupancy.bytes)
        };
        self.drained = self.drained.saturating_add(left.unwrap_or_else(own));
        let began = self.began.unwrap_or(now);
        let at = Time::ZERO + now.duration_since(began);
        let reading = Reading {
            occupancy,
            drained_bytes: self.drained,
        };
        let verdict = self.send_queue.observe(at, &reading, self.tick);
        self.note(verdict);
    }

    /// Updates this sender's share, after `came` bytes came into the send queue since the last
    /// tick.
    ///
    /// A sender with less to send than it might keeps its share.
    fn note_share(&mut self, came: u64) {
        let might = self.rate().bytes_in(self.tick);
        if self.sent == 0 || self.sent < might / 2 {
            return;
        }
        let part = u128::from(self.sent.min(came)) * u128::from(WHOLE);
        let Some(part) = part.checked_div(came.into()) else {
            return;
        };
        // It is no more than the whole.
        let part = u64::try_from(part).unwrap_or(WHOLE);
        self.share = (self.share * (SHARE_WEIGHT - 1) + part).div_ceil(SHARE_WEIGHT);
    }

    /// Reads the path: what the receiver got by now left it, and the wait of packets tells what is
    /// in it.
    fn observe_path(&mut self, feedback: &Feedback) {
        let socket = &feedback.socket;
        let x = self.path.v().bytes_in(self.rtt.queueing());
        let reading = Reading {
            occupancy: Occupancy {
                bytes: x,
                capacity: None,
            },
            drained_bytes: socket.drained_bytes.saturating_add(socket.occupancy.bytes),
        };
        let _ = self.path.observe(feedback.at, &reading, self.d_path());
    }

    /// SMUFF equation 8.
    fn update(&mut self, now: Time) {
        let d = self.d_remote();
        let of = |buffer: &Buffer, d| {
            let v0 = || buffer.v0(buffer.x_target(d), d);
            buffer.is_observed().then(v0)
        };
        let line = if self.is_send_queue_seen {
            let (queue, tick) = (&self.send_queue, self.tick);
            let v0 = || queue.v0_of(self.share, queue.x_target(tick), tick);
            queue.is_observed().then(v0)
        } else {
            self.path_v0(now)
        };
        let socket = of(&self.socket, d);
        let application = of(&self.application, d);
        let beside = [line, socket].into_iter().flatten().min();
        self.v0 = beside
            .into_iter()
            .chain(application)
            .min()
            .unwrap_or(self.v0);
        self.v0_beside = beside.unwrap_or(self.v0);
    }

    fn path_v0(&self, now: Time) -> Option<Rate> {
        let x_target = if self.rtt.is_shortest_old(now) {
            // It can only be measured with an empty path.
            0
        } else {
            self.path.x_target(self.d_path())
        };
        let v0 = || self.path.v0(x_target, self.d_remote()).max(PROBE_RATE);
        self.path.is_observed().then(v0)
    }

    /// Control latency of the path without its queue, which would otherwise raise the target
    /// because the queue is long.
    fn d_path(&self) -> Duration {
        self.rtt.shortest().max(TICK)
    }

    /// How long the peer has owed an answer, as a number of halvings of the rate.
    fn note_silence(&mut self, now: Time) {
        let Some(since) = self.silent_since else {
            self.halvings = 0;
            return;
        };
        let rtt = self.round_trip();
        let hold = (rtt * 4).max(HOLD_MIN);
        let silent = now.duration_since(since);
        self.halvings = match silent.checked_sub(hold) {
            None => 0,
            Some(over) => {
                let steps = over.as_nanos() / rtt.max(HALVING_MIN).as_nanos();
                u32::try_from(steps).map_or(HALVINGS_MAX, |steps| (steps + 1).min(HALVINGS_MAX))
            }
        };
    }

    /// The rest of a rate while the peer owes an answer.
    fn in_silence(&self, rate: Rate) -> Rate {
        if self.halvings == 0 {
            return rate;
        }
        rate.times(1, 1 << self.halvings).max(PROBE_RATE)
    }

    /// Sets the next tick, if there is anything to observe.
    fn arm(&mut self, now: Time) {
        let is_asking = self.halvings > 0 && self.rate() <= PROBE_RATE;
        let is_waiting = self.silent_since.is_some() && !is_asking;
        let is_filled = self.is_send_queue_seen && self.send_queue.x() > 0;
        let is_busy = self.sent > 0 || is_filled || is_waiting;
        let doublings = self.halvings.min(TICK_DOUBLINGS_MAX);
        self.tick_at = is_busy.then(|| now + TICK * (1 << doublings));
    }
}

/// Bytes that came into a buffer that held `was` and now holds `is`, while `left` left.
fn came(left: u64, was: u64, is: u64) -> u64 {
    left.saturating_add(is).saturating_sub(was)
}

impl RateController for BufferOrchestrator {
    fn handle_sent(&mut self, now: Time, bytes: u64) {
        if self.began.is_none() || now.duration_since(self.active_at) > IDLE_MAX {
            self.begin(now);
        }
        self.active_at = now;
        self.sent = self.sent.saturating_add(bytes);
        self.silent_since = self.silent_since.or(Some(now));
        if self.tick_at.is_none() {
            self.ticked_at = now;
            self.tick_at = Some(now + TICK);
            // What left during a pause says nothing about now.
            self.left = [None; 2];
        }
    }

    fn handle_acknowledged(&mut self, _now: Time, _acknowledged: Acknowledged) {}

    fn handle_lost(&mut self, _now: Time, _bytes: u64) {}

    fn handle_cnp(&mut self, _now: Time) {}

    fn handle_rtt(&mut self, now: Time, sample: Duration) {
        self.rtt.handle_sample(now, sample);
    }

    fn handle_feedback(&mut self, now: Time, feedback: &Feedback) {
        if let Some(before) = self.feedback_at {
            let gap = now.duration_since(before).min(GAP_MAX);
            self.feedback_gap = (self.feedback_gap * 3 + gap) / 4;
        }
        let d = self.d_remote();
        let verdict = self.socket.observe(feedback.at, &feedback.socket, d);
        self.note(verdict);
        match &feedback.application {
            Some(reading) => {
                let verdict = self.application.observe(feedback.at, reading, d);
                self.note(verdict);
            }
            // It has none, or no longer: then there is nothing to wait for.
            None => self.application = Buffer::of_program(self.aim),
        }
        self.observe_path(feedback);
        self.active_at = now;
        self.feedback_at = Some(now);
        self.silent_since = None;
        self.halvings = 0;
        self.update(now);
        if self.v0 < PROBE_RATE {
            // Nothing will be sent that could be answered: if the receiver does not report on its
            // own, it is probed.
            self.silent_since = Some(now);
            self.tick_at = self.tick_at.or(Some(now + TICK));
        }
    }

    fn handle_left(&mut self, bytes: u64) {
        self.left[0] = Some(bytes);
    }

    fn handle_timeout(&mut self, now: Time, send_queue: Option<Occupancy>) {
        self.tick = now.duration_since(self.ticked_at).clamp(TICK, TICK_MAX);
        self.is_send_queue_seen = send_queue.is_some();
        if let Some(occupancy) = send_queue {
            self.observe_send_queue(now, occupancy);
        }
        self.note_silence(now);
        self.update(now);
        self.arm(now);
        self.ticked_at = now;
        self.sent = 0;
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.tick_at
    }

    fn rate(&self) -> Rate {
        self.in_silence(self.v0)
    }

    fn rate_beside_program(&self) -> Option<Rate> {
        let is_held = self.v0 < self.v0_beside;
        is_held.then(|| self.in_silence(self.v0_beside))
    }

    /// Twice the rate's bytes in a round trip, so that the rate is what limits the sender, unless
    /// no answers come.
    fn window(&self) -> u64 {
        if self.feedback_at.is_none() {
            return FIRST_BYTES;
        }
        let round = self.d_remote() + self.tick;
        let bytes = self.rate().bytes_in(round).saturating_mul(2);
        bytes.max(FIRST_BYTES)
    }

    fn rtt(&self) -> &Rtt {
        &self.rtt
    }
}

#[cfg(test)]
mod tests;
