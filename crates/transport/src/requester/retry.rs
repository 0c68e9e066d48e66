//! When the requester goes back, and how often: its timers and retry counts (IBTA 9.7.5.2.8 and
//! 9.7.6.1).

use std::time::Duration;

use airdma_wire::{ack_timeout, rnr_timer};

use super::{Loss, Requester};
use crate::attributes::QpAttributes;
use crate::completion::Status;
use crate::counter::Counter;
use crate::host::Host;
use crate::time::Time;

impl Requester {
    /// While the peer is not ready nothing is under way, so that only one of the two timers runs.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        debug_assert!(self.deadline.is_none() || self.not_ready_until.is_none());
        let probe = self.repair.as_ref().and_then(|repair| repair.probe_at());
        let timer = self.deadline.or(self.not_ready_until);
        probe.into_iter().chain(timer).min()
    }

    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        now: Time,
        attributes: &QpAttributes,
        host: &mut H,
    ) -> Result<(), Status> {
        if self.not_ready_until.is_some_and(|until| until <= now) {
            self.not_ready_until = None;
        }
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline <= now) {
            host.count(Counter::Timeouts);
            self.rewind(Some(Loss::Timeout));
            self.note_silence(now.duration_since(deadline), attributes)?;
        }
        if let Some(repair) = &mut self.repair
            && repair.take_probe(now)
            && repair.is_empty()
            && self.next > self.acked
        {
            // What the peer has executed, and everything before an answer that is here, lacks its
            // answer only.
            if repair.answers_wait() || repair.told() > self.acked {
                repair.note_missing_answer(self.acked, self.acked, now);
            } else {
                repair.note_missing(self.next - 1, self.acked, now);
            }
        }
        Ok(())
    }

    /// Goes back to the oldest unacknowledged packet.
    pub(super) fn rewind(&mut self, loss: Option<Loss>) {
        self.next = self.acked;
        self.cursor = 0;
        self.answers_due.clear();
        self.bytes_since_ack_request = 0;
        self.deadline = None;
        self.rewound_at = Some(self.acked);
        self.failure = None; // found again when its turn comes
        self.loss = loss;
        self.repeats = self.repeats.saturating_add(u8::from(loss.is_some()));
        if let Some(repair) = &mut self.repair {
            repair.clear(self.acked);
        }
    }

    pub(super) fn deadline_from(&self, now: Time, attributes: &QpAttributes) -> Option<Time> {
        Some(now + self.timer(attributes)?)
    }

    /// After so long without progress everything is sent again.
    fn timer(&self, attributes: &QpAttributes) -> Option<Duration> {
        let timeout = ack_timeout(attributes.timeout)?;
        let least = self.repair.as_ref().map(|repair| repair.timeout_min());
        Some(least.map_or(timeout, |least| timeout.max(least)))
    }

    /// A timer ran out, so much later than it should have. Silence spends a retry each time that it
    /// has lasted for [`patience`]; what this host slept through itself is no silence of the peer.
    fn note_silence(&mut self, late: Duration, attributes: &QpAttributes) -> Result<(), Status> {
        let Some(timer) = self.timer(attributes) else {
            return Ok(());
        };
        if late >= LATE && self.late_timers < LATE_TIMERS_MAX {
            self.late_timers += 1;
            return Ok(());
        }
        let patience = patience(timer, attributes.retry_count);
        self.silence += timer;
        if self.silence < patience {
            return Ok(());
        }
        self.silence -= patience;
        self.spend_retry()
    }

    /// How often the packet of this sequence number was sent again, which only the oldest one that
    /// is not acknowledged is known to be.
    pub(super) fn repeats_of(&self, sequence: u64) -> u8 {
        if sequence == self.acked {
            self.repeats
        } else {
            0
        }
    }

    fn spend_retry(&mut self) -> Result<(), Status> {
        self.retries_left = self
            .retries_left
            .checked_sub(1)
            .ok_or(Status::RetryExceeded)?;
        Ok(())
    }

    /// A response showed that something before it was lost: go back once per gap.
    pub(crate) fn gap_seen(&mut self) -> Result<(), Status> {
        if self.rewound_at == Some(self.acked) {
            return Ok(());
        }
        self.rewind(Some(Loss::Gap));
        self.spend_retry()
    }

    /// The peer had no receive: go back and wait as long as its NAK says (IBTA 9.7.5.2.8).
    pub(crate) fn not_ready(&mut self, now: Time, timer: u8) -> Result<(), Status> {
        if self.not_ready_until.is_some() {
            return Ok(());
        }
        if self.not_ready_retries_left != RNR_RETRY_FOR_EVER {
            self.not_ready_retries_left = self
                .not_ready_retries_left
                .checked_sub(1)
                .ok_or(Status::RnrRetryExceeded)?;
        }
        self.rewind(None);
        self.not_ready_until = Some(now + rnr_timer(timer));
        Ok(())
    }

    /// Restarts the timer and the retry counts after the peer acknowledged something new.
    #[inline]
    pub(crate) fn progressed(&mut self, now: Time, attributes: &QpAttributes) {
        self.rewound_at = None;
        self.refill_retries(attributes);
        while self
            .answers_due
            .front()
            .is_some_and(|end| *end <= self.acked)
        {
            self.answers_due.pop_front();
        }
        if self.next < self.acked {
            self.next = self.acked;
            self.cursor = 0;
            // What could not be sent again need not be.
            self.failure = None;
        }
        let under_way = self.next > self.acked;
        let is_all_sent = self.next == self.posted;
        self.deadline = if under_way {
            self.deadline_from(now, attributes)
        } else {
            None
        };
        match &mut self.repair {
            Some(repair) if under_way => repair.restart_probe(now, is_all_sent),
            Some(repair) => repair.stop_probe(),
            None => {}
        }
    }

    /// All that the attributes allow, from now on.
    pub(crate) fn refill_retries(&mut self, attributes: &QpAttributes) {
        self.retries_left = attributes.retry_count;
        self.not_ready_retries_left = attributes.rnr_retry;
        self.repeats = 0;
        self.late_timers = 0;
        self.silence = Duration::ZERO;
    }
}

/// How long a peer may be silent for each retry. IBTA 9.7.6.1.3 lets an implementation take from
/// one to [`TIMERS_MAX`] times the timer, and only the shortest tells a busy host from a dead one
/// no better than this: so it is the longest, unless all retries together would take longer than
/// [`GIVEN_UP_AFTER`].
fn patience(timer: Duration, retry_count: u8) -> Duration {
    let share = GIVEN_UP_AFTER / (u32::from(retry_count) + 1);
    share.clamp(timer, timer * TIMERS_MAX)
}

/// Timers that one retry may take.
const TIMERS_MAX: u32 = 4;

/// A peer that is silent for so long is given up, if the shortest and the longest time that the
/// attributes stand for have it in between.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(2500);

/// A timer that comes so late says that this host did not run, and nothing of the peer.
const LATE: Duration = Duration::from_millis(10);

/// Such timers between two answers. A host on which all of them are late gives a dead peer up none
/// the less.
const LATE_TIMERS_MAX: u8 = 32;

/// `rnr_retry` value that never runs out (IBTA 9.7.5.2.8).
const RNR_RETRY_FOR_EVER: u8 = 7;
