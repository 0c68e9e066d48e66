//! Rewinds of the requester: its timers and retry counts (IBTA 9.7.5.2.8 and 9.7.6.1).

use std::time::Duration;

use airdma_wire::{ack_timeout, rnr_timer};

use super::{Loss, Requester};
use crate::attributes::{QpAttributes, RETRY_FOR_EVER};
use crate::completion::Status;
use crate::counter::Counter;
use crate::host::Host;
use crate::time::Time;

impl Requester {
    /// While the peer is not ready nothing is in flight, so only one of the two timers runs.
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
            if self.note_silence(now.duration_since(deadline), attributes)? {
                host.count(Counter::SilenceExcused);
                if let Some(repair) = &mut self.repair {
                    repair.note_excuse(self.repeats, now);
                }
            }
        }
        if let Some(repair) = &mut self.repair
            && repair.take_probe(now)
            && repair.is_empty()
            && self.next > self.acked
        {
            // What the peer has executed, and everything before a response that is here, lacks only
            // its response.
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

    /// Time without progress after which everything is retransmitted.
    #[inline]
    fn timer(&self, attributes: &QpAttributes) -> Option<Duration> {
        let timeout = ack_timeout(attributes.timeout)?;
        let least = self.repair.as_ref().map(|repair| repair.timeout_min());
        let timer = least.map_or(timeout, |least| timeout.max(least));
        if attributes.retry_count == RETRY_FOR_EVER {
            return Some(self.lengthened(timer));
        }
        Some(timer)
    }

    /// A peer that may be silent for days is not sent the same four times a second, and one that
    /// goes on does not wait long.
    #[cold]
    fn lengthened(&self, timer: Duration) -> Duration {
        timer * (1 << self.repeats.min(DOUBLINGS_MAX))
    }

    /// Handles a timer that expired, `late` after its time.
    ///
    /// Each time that silence has lasted for [`patience`], it spends a retry; time for which this
    /// host did not run does not count, nor does [excused](Self::excuse_silence) silence. Returns
    /// whether this was excused.
    fn note_silence(&mut self, late: Duration, attributes: &QpAttributes) -> Result<bool, Status> {
        let Some(timer) = self.timer(attributes) else {
            return Ok(false);
        };
        if late >= LATE && self.late_timers < LATE_TIMERS_MAX {
            self.late_timers += 1;
            return Ok(false);
        }
        if std::mem::take(&mut self.excused) && self.excused_for < EXCUSED_MAX {
            self.excused_for += timer;
            return Ok(true);
        }
        let patience = self.patience(timer, attributes);
        self.silence += timer;
        if self.silence < patience {
            return Ok(false);
        }
        self.silence -= patience;
        self.spend_retry().map(|()| false)
    }

    /// Number of timers in a row that expired without progress.
    pub(crate) fn silent_timers(&self) -> u8 {
        self.repeats
    }

    /// The process at the other end exists, and does not run: silence until the next timer spends
    /// no retry, unless there was [`EXCUSED_MAX`] of it.
    pub(crate) fn excuse_silence(&mut self) {
        self.excused = true;
    }

    /// How long the peer may be silent for each retry.
    ///
    /// IBTA 9.7.6.1.3 allows from one to four times the timer, and the shortest tells a busy host
    /// from a dead one no better: so it is the longest, unless all retries together would exceed
    /// [`GIVEN_UP_AFTER`]. A peer with which selective repeat is agreed on is a process that shares
    /// its processors with others and may be stopped, and no adapter: it gets the longer times.
    fn patience(&self, timer: Duration, attributes: &QpAttributes) -> Duration {
        let timers_max = timer * TIMERS_MAX;
        let (all, longest) = match (&self.repair, ack_timeout(attributes.timeout)) {
            (Some(_), Some(timeout)) => (
                GIVEN_UP_AFTER_AGREED,
                timers_max.max(timeout * TIMERS_MAX_AGREED),
            ),
            _ => (GIVEN_UP_AFTER, timers_max),
        };
        let share = all / (u32::from(attributes.retry_count) + 1);
        share.clamp(timer, longest)
    }

    /// Number of retransmissions of the packet with this sequence, known only for the oldest
    /// unacknowledged one.
    pub(super) fn repeats_of(&self, sequence: u64) -> u8 {
        if sequence == self.acked {
            self.repeats
        } else {
            0
        }
    }

    fn spend_retry(&mut self) -> Result<(), Status> {
        if self.retries_left == RETRY_FOR_EVER {
            return Ok(());
        }
        self.retries_left = self
            .retries_left
            .checked_sub(1)
            .ok_or(Status::RetryExceeded)?;
        Ok(())
    }

    /// Handles a response that shows an earlier loss: rewinds once per gap.
    pub(crate) fn gap_seen(&mut self) -> Result<(), Status> {
        if self.rewound_at == Some(self.acked) {
            return Ok(());
        }
        self.rewind(Some(Loss::Gap));
        self.spend_retry()
    }

    /// Handles an RNR NAK: rewinds and waits as long as it says (IBTA 9.7.5.2.8).
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
            // A failed retransmission is no longer necessary.
            self.failure = None;
        }
        let under_way = self.next > self.acked;
        let is_all_sent = self.next == self.posted;
        self.deadline = if under_way {
            self.deadline_from(now, attributes)
        } else {
            None
        };
        if let Some(repair) = &mut self.repair {
            repair.note_progress(now);
            if under_way {
                repair.restart_probe(now, is_all_sent);
            } else {
                repair.stop_probe();
            }
        }
    }

    /// Allows all retries of the attributes from now on.
    pub(crate) fn refill_retries(&mut self, attributes: &QpAttributes) {
        self.retries_left = attributes.retry_count;
        self.not_ready_retries_left = attributes.rnr_retry;
        self.repeats = 0;
        self.late_timers = 0;
        self.silence = Duration::ZERO;
        self.excused = false;
        self.excused_for = Duration::ZERO;
    }
}

/// Most timers that one retry may take.
const TIMERS_MAX: u32 = 4;

/// The same for a peer with which selective repeat is agreed on, in timers of the attributes.
const TIMERS_MAX_AGREED: u32 = 16;

/// Most doublings of the timer of a requester that retries for ever.
const DOUBLINGS_MAX: u8 = 2;

/// Silence after which a peer counts as gone, if it lies between the shortest and the longest time
/// that the attributes allow.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(2500);

/// The same for a peer with which selective repeat is agreed on.
const GIVEN_UP_AFTER_AGREED: Duration = Duration::from_secs(6);

/// Longest silence of a process that is stopped or starved.
const EXCUSED_MAX: Duration = Duration::from_secs(60);

/// A timer this late shows that this host did not run, and says nothing about the peer.
const LATE: Duration = Duration::from_millis(10);

/// Most such timers between two responses. A host on which all of them are late still gives up a
/// dead peer.
const LATE_TIMERS_MAX: u8 = 32;

/// `rnr_retry` value that never runs out (IBTA 9.7.5.2.8).
const RNR_RETRY_FOR_EVER: u8 = 7;
