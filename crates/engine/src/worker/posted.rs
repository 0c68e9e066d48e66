//! Work requests that programs posted.

use super::state::WorkerState;
use crate::index::{Doorbell, QpIndex};
use crate::queues::send_wqe;
use crate::tables::qp_host::QpHost;
use crate::{AttrMask, QpAttributes, QpState, QpType};
use airdma_transport::{
    Completion, CompletionOpcode, Host, QpEvent, QueuePair, Slot, Status, Time,
};

impl WorkerState {
    /// A doorbell rang: takes what was posted to the queue pairs that share it.
    pub(crate) fn answer(&mut self, doorbell: Doorbell, now: Time) {
        let end = self.qps.end();
        if doorbell.get() >= end.get() {
            return self.forward(doorbell);
        }
        for index in doorbell.sharers(end) {
            self.take_work(index, now);
        }
    }

    /// A doorbell of a queue pair that a daemon runs.
    #[cold]
    fn forward(&mut self, doorbell: Doorbell) {
        if let Some(remote) = &self.remote {
            remote.forward(doorbell);
        }
    }

    /// Takes what was posted to a queue pair.
    pub(crate) fn take_work(&mut self, index: QpIndex, now: Time) {
        self.take_posted(index, now);
        // What a request of a connection changes is noted when its turn ends.
        if self
            .qps
            .slot(index)
            .is_some_and(|slot| slot.is_sending_by_connection())
        {
            self.line_up(index, now);
        } else {
            self.settle(index, now);
        }
    }

    pub(super) fn take_posted(&mut self, index: QpIndex, now: Time) {
        let Some(slot) = self.qps.slot(index) else {
            return;
        };
        match slot.qp.state() {
            QpState::Reset | QpState::Init | QpState::ReadyToReceive => {
                // Posted while another thread took the queue pair back: forgotten, as by the change
                // itself.
                slot.side.send.discard();
            }
            QpState::ReadyToSend
            | QpState::SendQueueDrain
            | QpState::SendQueueError
            | QpState::Error => {
                let is_limited = slot.limit.is_some();
                // No more than there were: a process that posts without end, to a queue pair that
                // completes at once, does not keep the worker. What it posts later has a doorbell.
                let mut left = slot.side.send.available();
                while left > 0
                    && (!is_limited || self.permits_raw(index, now))
                    && self.take_request(index)
                {
                    left -= 1;
                }
                self.with(index, |qp, host| qp.flush_receives(host));
            }
        }
    }

    /// Takes one posted request; false when there is none.
    fn take_request(&mut self, index: QpIndex) -> bool {
        let Some(slot) = self.qps.slot(index) else {
            return false;
        };
        let Some(number) = slot.side.send.take() else {
            return false;
        };
        let is_datagram = slot.qp.qp_type() == QpType::Ud;
        let request = send_wqe::decode(
            slot.side.send.slot(number),
            number,
            is_datagram,
            slot.side.shared.signal_all,
        );
        let is_raw = slot.qp.qp_type() == QpType::RawPacket;
        if is_raw
            && slot.qp.state() == QpState::ReadyToSend
            && let Ok(request) = request
        {
            self.send_frame(index, &request);
            self.charge_frame(index, &request);
            return true;
        }
        self.with(index, |qp, host| match request {
            Ok(request) => qp.post_send(request, host),
            Err(_) => refuse_request(qp, number, host),
        });
        true
    }
}

/// Puts the queue pair in ERROR: the ring holds a request that no poster of this crate writes.
fn refuse_request(qp: &mut QueuePair, number: u32, host: &mut QpHost<'_>) {
    let error = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    qp.modify(&error, AttrMask::STATE, host).ok();
    let status = Status::LocalQpOperationError;
    let completion = Completion::with_status(0, CompletionOpcode::Send, status, qp.qpn());
    host.complete_send(Slot(number), Some(completion));
    host.event(QpEvent::Fatal);
}
