//! A destination of reliable datagrams: its window, its timer, and the messages for it.

use core::time::Duration;

use airdma_wire::{Neighbour, Psn, Qkey, Qpn};

use super::ACTIVE_MAX;
use crate::rate::Rtt;
use crate::record::index::NONE;
use crate::time::Time;

const WINDOW_FIRST: u32 = 16;
const WINDOW_MIN: u32 = 2;
const WINDOW_MAX: u32 = 128;
const TIMEOUT_FIRST: Duration = Duration::from_millis(50);
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_millis(500);
/// Doublings of the timer, after which it is at its maximum anyway.
const BACKOFF_MAX: u32 = 6;

/// A queue pair that messages go to, by one Q_Key: a wrong one is not answered, and no other
/// message waits for that.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) address: Neighbour,
    pub(super) qpn: Qpn,
    /// That of the requests, before the own one takes its place (IBTA 10.2.5).
    pub(super) qkey: Qkey,
    /// Tells the numbers of its messages from those of others.
    pub(super) instance: Psn,
    pub(super) next_id: u32,
    /// Messages that are sent, the one that began first at the front.
    active: [u32; ACTIVE_MAX],
    active_count: usize,
    /// The first and last of those that wait to be sent.
    pub(super) first_waiting: u32,
    pub(super) last_waiting: u32,
    /// Messages in all.
    pub(super) messages: u32,
    /// Packets that may be in flight.
    window: u32,
    threshold: u32,
    /// Arrived packets that count towards the next increase of the window.
    credit: u32,
    pub(super) in_flight: u32,
    rtt: Rtt,
    backoff: u32,
    /// When the first packet left since the last answer.
    pub(super) silent_since: Option<Time>,
    /// The window shrinks once for the packets that left before this time.
    shrunk_until: Time,
    /// A packet that asked for an answer: message, round and time.
    pub(super) sample: Option<(u32, u8, Time)>,
}

impl Destination {
    pub(super) fn new(address: Neighbour, (qpn, qkey): (Qpn, Qkey), instance: Psn) -> Self {
        Destination {
            address,
            qpn,
            qkey,
            instance,
            next_id: 0,
            active: [NONE; ACTIVE_MAX],
            active_count: 0,
            first_waiting: NONE,
            last_waiting: NONE,
            messages: 0,
            window: WINDOW_FIRST,
            threshold: WINDOW_MAX,
            credit: 0,
            in_flight: 0,
            rtt: Rtt::new(),
            backoff: 0,
            silent_since: None,
            shrunk_until: Time::ZERO,
            sample: None,
        }
    }

    pub(super) fn active(&self) -> &[u32] {
        &self.active[..self.active_count]
    }

    pub(super) fn has_room(&self) -> bool {
        self.active_count < ACTIVE_MAX
    }

    pub(super) fn activate(&mut self, message: u32) {
        self.active[self.active_count] = message;
        self.active_count += 1;
    }

    /// Removes a message that is active; false if it is not.
    pub(super) fn deactivate(&mut self, message: u32) -> bool {
        let Some(at) = self.active().iter().position(|&active| active == message) else {
            return false;
        };
        self.active.copy_within(at + 1..self.active_count, at);
        self.active_count -= 1;
        if self.sample.is_some_and(|(of, ..)| of == message) {
            self.sample = None;
        }
        true
    }

    /// Packets that may leave.
    pub(super) fn room(&self) -> u32 {
        self.window.saturating_sub(self.in_flight)
    }

    /// How long a packet that asks waits for its answer.
    pub(super) fn timer(&self) -> Duration {
        let measured = self.rtt.smoothed();
        let plain = measured.map_or(TIMEOUT_FIRST, |mean| mean + 4 * self.rtt.deviation());
        (plain.max(TIMEOUT_MIN) * (1 << self.backoff)).min(TIMEOUT_MAX)
    }

    pub(super) fn note_sent(&mut self, now: Time) {
        self.in_flight += 1;
        self.silent_since.get_or_insert(now);
    }

    /// The destination answered.
    pub(super) fn note_answer(&mut self, now: Time, message: u32, round: u8) {
        if let Some((of, asked, at)) = self.sample
            && (of, asked) == (message, round)
        {
            self.rtt.handle_sample(now, now.duration_since(at));
            self.sample = None;
        }
        self.backoff = 0;
    }

    /// After what an answer said: the silence begins anew, if anything is in flight.
    pub(super) fn restart_silence(&mut self, now: Time) {
        self.silent_since = (self.in_flight > 0).then_some(now);
    }

    /// Packets arrived.
    pub(super) fn grow(&mut self, packets: u32) {
        if self.window < self.threshold {
            self.window = (self.window + packets).min(WINDOW_MAX);
            return;
        }
        self.credit += packets;
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window = (self.window + 1).min(WINDOW_MAX);
        }
    }

    /// Packets are missing: once for all that were in flight together.
    pub(super) fn shrink(&mut self, now: Time) {
        if now < self.shrunk_until {
            return;
        }
        let mean = self.rtt.smoothed().unwrap_or(TIMEOUT_FIRST);
        self.shrunk_until = now + mean;
        self.threshold = (self.window / 2).max(WINDOW_MIN);
        self.window = self.threshold;
    }

    /// What was in flight of a message was not answered.
    pub(super) fn handle_timeout(&mut self) {
        self.threshold = (self.window / 2).max(WINDOW_MIN);
        self.window = WINDOW_MIN;
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        self.sample = None;
    }
}
