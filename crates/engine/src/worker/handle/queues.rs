//! Requests about completion queues and shared receive queues.

use crate::control::{
    Beside, NewCompletionQueue, NewSharedReceiveQueue, QueueControl, Reply, WRONG_BESIDE,
};
use crate::index::{CqHandle, PdIndex, Serial, SrqHandle};
use crate::queues::cq_shared::CqShared;
use crate::queues::srq_shared::SrqShared;
use crate::tables::srq_table::{Extended, SrqSlot};
use crate::worker::Worker;
use crate::{CqOptions, Error, Qpn};
use airdma_shm::{Cqe, RecvWqe, RingConsumer, RingProducer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

impl Worker {
    pub(super) fn handle_queue(
        &mut self,
        call: QueueControl,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        match call {
            QueueControl::CreateCompletions {
                serial,
                cookie,
                options,
            } => {
                let Beside::CompletionQueue(new) = beside else {
                    return Err(WRONG_BESIDE);
                };
                self.create_completions(serial, cookie, options, new)
            }
            QueueControl::ResizeCompletions { cq } => {
                let Beside::ResizedCompletions(from, to) = beside else {
                    return Err(WRONG_BESIDE);
                };
                self.resize_completions(cq, from, to)
            }
            QueueControl::PurgeCompletions { cq, of } => {
                let Beside::Completions(completions) = beside else {
                    return Err(WRONG_BESIDE);
                };
                self.purge_completions(cq, of, completions)
            }
            QueueControl::DestroyCompletions { cq } => {
                let cqs = &mut self.state.device.cqs;
                let index = cqs.find(cq)?;
                cqs.remove(index);
                Ok(Reply::Done)
            }
            QueueControl::CreateReceives {
                serial,
                pd,
                extended,
            } => {
                let Beside::SharedReceiveQueue(new) = beside else {
                    return Err(WRONG_BESIDE);
                };
                self.create_receives(serial, pd, extended, new)
            }
            QueueControl::LimitReceives { srq, limit } => self.limit_receives(srq, limit),
            QueueControl::ResizeReceives { srq } => {
                let Beside::ResizedReceives(to, from_now_on) = beside else {
                    return Err(WRONG_BESIDE);
                };
                self.resize_receives(srq, to, from_now_on)
            }
            QueueControl::DestroyReceives { srq } => {
                let number = self.state.device.srqs.find(srq)?;
                self.state.remove_srq(number);
                Ok(Reply::Done)
            }
        }
    }

    fn create_completions(
        &mut self,
        serial: Serial,
        cookie: u64,
        options: CqOptions,
        new: NewCompletionQueue<'_>,
    ) -> Result<Reply, Error> {
        let channel = new.channel.map(|channel| (channel, cookie));
        let shared = Arc::new(CqShared::new(serial, channel, new.events, options));
        let index = (self.state.device.cqs).insert(new.ring, Arc::clone(&shared))?;
        *new.made = Some(shared);
        Ok(Reply::CompletionQueue { index })
    }

    /// Moves the completions of a queue to the ring that replaces its own, in their order.
    fn resize_completions(
        &mut self,
        cq: CqHandle,
        from: &mut RingConsumer,
        mut to: RingProducer,
    ) -> Result<Reply, Error> {
        let index = self.state.device.cqs.find(cq)?;
        if from.available() > to.capacity() {
            return Err(Error::Invalid(
                "the completion queue holds more completions than would fit",
            ));
        }
        while let Some(number) = from.take() {
            let cqe: Cqe = from.slot(number).read_header();
            if let Some(mut slot) = to.slot(0) {
                slot.write_header(&cqe);
                to.publish(1);
            }
        }
        self.state.device.cqs.replace(index, to);
        Ok(Reply::Done)
    }

    fn purge_completions(
        &mut self,
        cq: CqHandle,
        of: Qpn,
        completions: &mut RingConsumer,
    ) -> Result<Reply, Error> {
        let index = self.state.device.cqs.find(cq)?;
        let mut kept = Vec::new();
        // No more than there were: another process may add to them all the time.
        for _ in 0..completions.available() {
            let Some(number) = completions.take() else {
                break;
            };
            let cqe: Cqe = completions.slot(number).read_header();
            completions.release(1);
            if cqe.qpn != of.get() {
                kept.push(cqe);
            }
        }
        self.state.device.cqs.refill(index, &kept);
        Ok(Reply::Done)
    }

    fn create_receives(
        &mut self,
        serial: Serial,
        pd: PdIndex,
        extended: Option<(Serial, CqHandle)>,
        new: NewSharedReceiveQueue<'_>,
    ) -> Result<Reply, Error> {
        let device = &mut self.state.device;
        let extended = match extended {
            Some((domain, cq)) => Some(Extended {
                domain,
                cq: device.cqs.find(cq)?,
            }),
            None => None,
        };
        let shared = Arc::new(SrqShared {
            id: serial,
            cookie: AtomicU64::new(0),
            limit: AtomicU32::new(0),
        });
        let number = device.srqs.insert(SrqSlot {
            ring: new.ring,
            pd,
            extended,
            shared: Arc::clone(&shared),
            events: new.events,
        })?;
        *new.made = Some(shared);
        Ok(Reply::SharedReceiveQueue { number })
    }

    fn limit_receives(&mut self, srq: SrqHandle, limit: u32) -> Result<Reply, Error> {
        let srqs = &mut self.state.device.srqs;
        let number = srqs.find(srq)?;
        if let Some(slot) = srqs.slot(number) {
            slot.shared.limit.store(limit, Ordering::Relaxed);
            slot.watch_limit();
        }
        Ok(Reply::Done)
    }

    /// Moves the receives of a queue to the ring that replaces its own, in their order.
    fn resize_receives(
        &mut self,
        srq: SrqHandle,
        to: &mut RingProducer,
        from_now_on: RingConsumer,
    ) -> Result<Reply, Error> {
        let srqs = &mut self.state.device.srqs;
        let number = srqs.find(srq)?;
        let Some(slot) = srqs.slot(number) else {
            return Err(Error::Gone("the shared receive queue"));
        };
        if slot.ring.available() > to.capacity() {
            return Err(Error::Invalid("more receives are posted than would fit"));
        }
        while let Some(number) = slot.ring.take() {
            let from = slot.ring.slot(number);
            let header: RecvWqe = from.read_header();
            let Some(mut into) = to.slot(0) else { break };
            into.write_header(&header);
            for index in 0..header.sge_count {
                if let Ok(sge) = from.sge::<RecvWqe>(index) {
                    into.write_sge::<RecvWqe>(index, &sge);
                }
            }
            to.publish(1);
        }
        slot.ring = from_now_on;
        Ok(Reply::Done)
    }
}
