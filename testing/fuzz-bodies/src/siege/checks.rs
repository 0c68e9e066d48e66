//! Invariants, at any time and at the end.

use std::time::Duration;

use airdma_transport::{AttrMask, QpAttributes, QpState, QueuePair};
use airdma_wire::Transport;

use super::{
    AHEAD_MAX, LATE_TIMERS_MAX, PROBES_MAX, REORDER_BYTES, Siege, TIMERS_MAX, TIMERS_MAX_AGREED,
};
use crate::input::Input;

impl Siege {
    /// Checks the invariants that hold at any time.
    pub fn check(&mut self) {
        if !self.queue_pair.wants_transmit() {
            assert!(self.poll_once(u32::MAX).is_none());
        }
        self.check_progress();
        let _ = self.queue_pair.take_loss();
        let state = self.queue_pair.state();
        if !state.sends() {
            assert_eq!(
                self.queue_pair.poll_timeout(),
                None,
                "a timer runs in {state:?}"
            );
        }
        if state == QpState::Error {
            assert_eq!(
                self.host.sends_outstanding(),
                0,
                "sends are left in the error state"
            );
            assert_eq!(
                self.host.receives_taken(),
                0,
                "a receive is kept in the error state"
            );
        }
        assert!(
            self.host.receives_taken() <= 1,
            "a responder has one message at a time"
        );
        if let Some(memory) = &self.reorder {
            assert!(
                memory.left() <= REORDER_BYTES,
                "gave back more than it took"
            );
        }
    }

    /// A requester with requests and nothing to send must have a timer, unless it may wait for
    /// ever.
    fn check_progress(&self) {
        let attributes = self.queue_pair.attributes();
        let waits = self.host.sends_outstanding() > 0 && !self.queue_pair.wants_transmit();
        if !waits || attributes.state != QpState::ReadyToSend {
            return;
        }
        let reliable = self.transport() == Transport::Rc || self.transport() == Transport::Xrc;
        assert!(reliable, "an unreliable service does not wait");
        let timer = self.queue_pair.poll_timeout().is_some();
        assert!(
            timer || attributes.timeout == 0,
            "a request that waits for nothing"
        );
    }

    /// The peer falls silent: what waits for it fails when the retries are used up.
    fn check_silence(&mut self) {
        let attributes = *self.queue_pair.attributes();
        if attributes.timeout == 0 || attributes.state != QpState::ReadyToSend {
            return;
        }
        // For each retry, and for the one that finds none left, as many timers as a retry stands
        // for; and one for a peer that was not ready.
        let (timers_max, others) = match self.reorder {
            Some(_) => (TIMERS_MAX_AGREED, PROBES_MAX + LATE_TIMERS_MAX),
            None => (TIMERS_MAX, 0),
        };
        let timeouts_max = timers_max * (usize::from(attributes.retry_count) + 1) + 1 + others;
        let mut timeouts = 0;
        self.poll(20, u32::MAX);
        while let Some(due) = self.queue_pair.poll_timeout() {
            self.now = self.now.max(due);
            if self.reorder.is_some() {
                // Probes come between. Time goes ever faster, so that there are not too many.
                let micros = 1 << timeouts.min(PROBES_MAX);
                self.now = self.now + Duration::from_micros(micros);
            }
            self.queue_pair.handle_timeout(self.now, &mut self.host);
            timeouts += 1;
            assert!(timeouts <= timeouts_max, "repeats itself for ever");
            self.poll(20, u32::MAX);
            self.check();
        }
    }

    /// Ends the siege: nothing grew, nothing was touched, and the move to error completes all that
    /// is left.
    pub fn finish(mut self, input: &mut Input<'_>) {
        self.check_size();
        self.check_silence();
        let to = |state| QpAttributes {
            state,
            ..QpAttributes::default()
        };
        let refused = self.queue_pair.state() == QpState::Error;
        self.modify(&to(QpState::Error), AttrMask::STATE)
            .expect("always allowed");
        self.check();
        let left = if self.config.shared_receives {
            self.host.receives_taken()
        } else {
            self.host.receives_outstanding()
        };
        assert_eq!(left, 0, "receives are left in the error state");
        self.post_send(input);
        self.poll(2, u32::MAX);
        // A responder that refused a request still answers those before it, then reports the
        // refusal; one that was stopped sends nothing.
        assert!(
            refused || !self.queue_pair.wants_transmit(),
            "still has to say something in the error state"
        );
        assert!(
            self.host.is_intact(),
            "memory that nobody was granted has changed"
        );
        self.modify(&to(QpState::Reset), AttrMask::STATE)
            .expect("always allowed");
        let fresh = format!("{:?}", QueuePair::new(self.config));
        assert_eq!(
            format!("{:?}", self.queue_pair),
            fresh,
            "something is left after reset"
        );
        if let Some(memory) = &self.reorder {
            assert_eq!(memory.left(), REORDER_BYTES, "kept packets are left");
        }
    }

    /// Checks the bytes that a queue pair keeps: posted requests, READs that it was asked for and
    /// answers to them, answers that it waits for, and little else.
    pub(super) fn check_size(&self) {
        let attributes = self.queue_pair.attributes();
        let asked = usize::from(attributes.max_dest_rd_atomic.max(1));
        let mut bound = 500 * self.host.sends_outstanding() + 600 * asked + 4000;
        if let Some(memory) = &self.reorder {
            // A word for each packet that may be ahead, one for each byte that is kept, and the
            // headers.
            bound += 16 * AHEAD_MAX as usize + 40 * (REORDER_BYTES - memory.left());
        }
        let size = format!("{:?}", self.queue_pair).len();
        assert!(
            size < bound,
            "{size} characters of state, not {bound}, for {asked} requests: {:?}",
            self.queue_pair
        );
    }
}
