//! When the requester goes back, and how often: its timers and retry counts (IBTA 9.7.5.2.8 and 9.7.6.1).

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
        host: &mut H,
    ) -> Result<(), Status> {
        if self.not_ready_until.is_some_and(|until| until <= now) {
            self.not_ready_until = None;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            host.count(Counter::Timeouts);
            self.rewind(Some(Loss::Timeout));
            self.spend_retry()?;
        }
        if let Some(repair) = &mut self.repair
            && repair.take_probe(now)
            && repair.is_empty()
            && self.next > self.acked
        {
            // What the peer has executed, and everything before an answer that is here, lacks its answer only.
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
        if let Some(repair) = &mut self.repair {
            repair.clear(self.acked);
        }
    }

    pub(super) fn deadline_from(&self, now: Time, attributes: &QpAttributes) -> Option<Time> {
        let timeout = ack_timeout(attributes.timeout)?;
        let least = self.repair.as_ref().map(|repair| repair.timeout_min());
        Some(now + least.map_or(timeout, |least| timeout.max(least)))
    }

    /// Retries spent on the packet of this sequence number, which only the oldest one that is not acknowledged can have.
    pub(super) fn retries(&self, sequence: u64, attributes: &QpAttributes) -> u8 {
        if sequence == self.acked {
            attributes.retry_count.saturating_sub(self.retries_left)
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
    }
}

/// `rnr_retry` value that never runs out (IBTA 9.7.5.2.8).
const RNR_RETRY_FOR_EVER: u8 = 7;
