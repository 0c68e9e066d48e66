//! The rate limit of a queue pair (`ibv_modify_qp_rate_limit(3)`).
//!
//! The limit is that of the send queue, as on hardware: it counts the bytes of request packets, BTH
//! to padding, retransmissions included. Acknowledgements and responses to READs are never held
//! back by it. It comes before the pacer and the window of the peer: a queue pair that its own
//! limit holds back takes no turn there. A timer puts it in line again.
//!
//! A queue pair for raw packets sends what it takes from its ring: its requests wait there.

use super::state::WorkerState;
use crate::index::QpIndex;
use crate::tables::rate_limit::RateLimit;
use crate::{QpState, QpType};
use airdma_transport::{QueuePair, SendRequest, Time};

impl WorkerState {
    /// Sets the limit of a queue pair to what its attributes say.
    pub(super) fn follow_rate_limit(&mut self, index: QpIndex, burst_max: u32, now: Time) {
        if let Some(slot) = self.qps.slot(index) {
            let kbps = slot.qp.attributes().rate_limit_kbps;
            slot.limit = match slot.limit.take() {
                Some(limit) => limit.changed(kbps, burst_max, now),
                None => RateLimit::new(kbps, burst_max, now),
            };
        }
        // The requests that the former limit held back.
        self.take_posted(index, now);
    }

    /// Takes a queue pair that its limit holds back out of the line, until the limit permits a
    /// burst. It is the first in line.
    #[cold]
    pub(super) fn hold_back(&mut self, index: QpIndex, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return self.scheduler.line.leave(None);
        };
        self.scheduler.line.leave(Some(&mut slot.turn));
        let due = slot.limit.as_mut().and_then(|limit| limit.hold(now));
        self.note(index, now);
        match due {
            Some(due) => self.scheduler.wake_at(index, due),
            None => self.scheduler.join(&mut self.qps, index),
        }
    }

    /// Charges a frame that left.
    pub(super) fn charge_frame(&mut self, index: QpIndex, request: &SendRequest) {
        if let Some(slot) = self.qps.slot(index)
            && let Some(limit) = &mut slot.limit
        {
            limit.spend(request.length.into());
        }
    }

    /// Whether the next frame of a queue pair for raw packets may leave; if not, a timer is set.
    /// True for all other queue pairs, whose packets are held back instead of their requests.
    pub(super) fn permits_raw(&mut self, index: QpIndex, now: Time) -> bool {
        let Some(slot) = self.qps.slot(index) else {
            return true;
        };
        let Some(limit) = &mut slot.limit else {
            return true;
        };
        if !is_sending_raw(&slot.qp) || limit.permit(now) > 0 {
            return true;
        }
        if let Some(due) = limit.hold(now) {
            self.scheduler.wake_at(index, due);
        }
        false
    }
}

/// Whether it is a queue pair for raw packets, in the state in which it sends them.
pub(super) fn is_sending_raw(qp: &QueuePair) -> bool {
    qp.qp_type() == QpType::RawPacket && qp.state() == QpState::ReadyToSend
}
