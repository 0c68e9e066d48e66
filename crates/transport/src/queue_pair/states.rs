//! Transitions between states, and the end of posted requests.

use super::{QueuePair, Service};
use crate::attributes::{AttrMask, InvalidAttribute, QpAttributes, QpState, QpType};
use crate::completion::{Completion, CompletionOpcode, Status};
use crate::host::{Host, QpEvent};

/// Most receives that are flushed at a time: more than a queue has.
const FLUSHED_MAX: usize = 1 << 16;

impl QueuePair {
    /// Changes attributes and state as `ibv_modify_qp(3)` allows; nothing changes on an error.
    ///
    /// In the transition to [`QpState::Reset`], posted requests are dropped without completions:
    /// the host empties its rings. In the one to [`QpState::Error`] they are flushed.
    pub fn modify<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        mask: AttrMask,
        host: &mut H,
    ) -> Result<(), InvalidAttribute> {
        let from = self.attributes.state;
        let to = self
            .attributes
            .check(self.config.qp_type, attributes, mask)?;
        self.attributes.apply(attributes, mask);
        self.attributes.state = to;
        self.attributes.cur_state = to;
        self.attributes.sq_draining = to == QpState::SendQueueDrain;
        if let Service::Connected { requester, .. } = &mut self.service
            && mask.intersects(AttrMask::RETRY_CNT | AttrMask::RNR_RETRY)
        {
            requester.refill_retries(&self.attributes);
        }
        if from != to {
            self.enter(from, to, host);
        }
        Ok(())
    }

    fn enter<H: Host>(&mut self, from: QpState, to: QpState, host: &mut H) {
        match to {
            QpState::Reset => {
                let fresh = QueuePair::new(self.config);
                let before = std::mem::replace(self, fresh);
                if let Service::Datagram(mut datagrams) = before.service {
                    datagrams.reset();
                    self.service = Service::Datagram(datagrams);
                }
            }
            QpState::Init | QpState::SendQueueError => {}
            QpState::ReadyToReceive => match &mut self.service {
                Service::Connected { responder, .. } => responder.start(&self.attributes),
                Service::Unreliable { responder, .. } => responder.start(&self.attributes),
                Service::Datagram(_) => {}
            },
            QpState::ReadyToSend => {
                if from == QpState::ReadyToReceive {
                    self.established = true;
                    match &mut self.service {
                        Service::Connected { requester, .. } => requester.start(&self.attributes),
                        Service::Unreliable { requester, .. } => requester.start(&self.attributes),
                        Service::Datagram(datagrams) => datagrams.start(&self.attributes),
                    }
                }
            }
            QpState::SendQueueDrain => {
                self.drain_reported = false;
                self.report_drain(host);
            }
            QpState::Error => {
                if let Service::Connected { responder, .. } = &mut self.service
                    // An ACK says what was done before, and may have waited for a reply.
                    && !responder.replies().is_acknowledgement()
                {
                    responder.replies().clear();
                }
                self.flush(None, host);
                self.report_last_receive(host);
            }
        }
    }

    pub(super) fn after_requester<H: Host>(&mut self, outcome: Result<(), Status>, host: &mut H) {
        match outcome {
            Ok(()) => self.report_drain(host),
            Err(status) => self.enter_error(Some(status), host),
        }
    }

    pub(super) fn enter_error<H: Host>(&mut self, failed: Option<Status>, host: &mut H) {
        let entered = self.attributes.state != QpState::Error;
        self.attributes.state = QpState::Error;
        self.attributes.cur_state = QpState::Error;
        self.attributes.sq_draining = false;
        self.flush(failed, host);
        if entered {
            self.report_last_receive(host);
        }
    }

    /// Stops the send queue of an unreliable service, and nothing else, after a request that cannot
    /// be sent (IBTA 10.3.1.7).
    pub(super) fn stop_sending<H: Host>(&mut self, failed: Status, host: &mut H) {
        self.flush_sends(Some(failed), host);
        self.attributes.state = QpState::SendQueueError;
        self.attributes.cur_state = QpState::SendQueueError;
        self.attributes.sq_draining = false;
    }

    /// Completes everything posted: the oldest send request with `failed`, if it failed.
    pub(super) fn flush<H: Host>(&mut self, failed: Option<Status>, host: &mut H) {
        self.flush_sends(failed, host);
        match &mut self.service {
            Service::Connected { responder, .. } => {
                responder.fail(Status::WrFlushError, self.config.qpn, host);
            }
            Service::Unreliable { responder, .. } => {
                responder.fail(Status::WrFlushError, self.config.qpn, host);
            }
            Service::Datagram(datagrams) => datagrams.flush_spare(self.config.qpn, host),
        }
        self.flush_receives(host);
    }

    pub(super) fn flush_sends<H: Host>(&mut self, failed: Option<Status>, host: &mut H) {
        match &mut self.service {
            Service::Connected { requester, .. } => requester.fail(failed, self.config.qpn, host),
            Service::Unreliable { requester, .. } => requester.fail(failed, self.config.qpn, host),
            Service::Datagram(datagrams) => datagrams.fail(failed, self.config.qpn, host),
        }
    }

    /// Flushes receives posted to a queue pair in the error state, unless they are in a shared
    /// queue.
    pub fn flush_receives<H: Host>(&mut self, host: &mut H) {
        if self.attributes.state != QpState::Error || self.shares_receives() {
            return;
        }
        // A program that posts without end does not keep its caller.
        for _ in 0..FLUSHED_MAX {
            let Some(receive) = host.take_receive() else {
                break;
            };
            let completion = Completion::with_status(
                receive.wr_id,
                CompletionOpcode::Receive,
                Status::WrFlushError,
                self.config.qpn,
            );
            host.complete_receive(receive.slot, completion);
        }
    }

    /// Reports that this queue pair holds no receive of its shared queue any more, in the error
    /// state.
    fn report_last_receive<H: Host>(&self, host: &mut H) {
        if self.shares_receives() {
            host.event(QpEvent::LastWqeReached);
        }
    }

    fn shares_receives(&self) -> bool {
        self.config.shared_receives || self.config.qp_type == QpType::XrcReceive
    }

    pub(super) fn report_drain<H: Host>(&mut self, host: &mut H) {
        if self.attributes.state != QpState::SendQueueDrain || self.drain_reported {
            return;
        }
        let drained = match &self.service {
            Service::Connected { requester, .. } => requester.is_drained(),
            Service::Unreliable { requester, .. } => requester.is_drained(),
            Service::Datagram(_) => true,
        };
        if drained {
            self.drain_reported = true;
            self.attributes.sq_draining = false;
            if self.attributes.en_sqd_async_notify {
                host.event(QpEvent::SendQueueDrained);
            }
        }
    }
}
