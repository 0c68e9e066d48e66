//! Shared receive queues as the caller holds them.

use crate::control::{Beside, Control, NewSharedReceiveQueue, QueueControl, Reply, WRONG_REPLY};
use crate::index::{SrqHandle, SrqIndex};
use crate::objects::post::write_receive;
use crate::queues::async_event::EventOwner;
use crate::queues::srq_shared::SrqShared;
use crate::queues::use_count::UseCount;
use crate::{Cq, Error, LIMITS, Pd, RecvWr, Xrcd};
use airdma_shm::{RecvWqe, RingConsumer, RingProducer, ring};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes of a shared receive queue, and its alarm (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Work requests outstanding.
    pub max_wr: u32,
    /// Scatter/gather elements per work request.
    pub max_sge: u32,
    /// An event is raised when fewer receives are left; 0 for none.
    pub limit: u32,
}

/// What makes a queue one of extended connections.
pub struct SrqExtension {
    /// The domain whose target queue pairs may take receives from the queue.
    pub domain: Arc<Xrcd>,
    /// Where its completions go.
    pub cq: Arc<Cq>,
}

/// A shared receive queue. Any thread may post to it.
pub struct Srq {
    pub(crate) pd: Arc<Pd>,
    number: SrqIndex,
    extension: Option<SrqExtension>,
    shared: Arc<SrqShared>,
    producer: Mutex<RingProducer>,
    max_sge: u32,
    pub(crate) users: UseCount,
    destroyed: AtomicBool,
}

impl Srq {
    pub(crate) fn create(
        pd: &Arc<Pd>,
        attributes: SrqAttributes,
        extension: Option<SrqExtension>,
    ) -> Result<Arc<Srq>, Error> {
        let device = &pd.device;
        let core = device.core();
        core.check_process()?;
        check_size(attributes.max_wr)?;
        if attributes.max_sge > LIMITS.max_sge {
            return Err(Error::Invalid(
                "more elements than max_srq_sge of the device",
            ));
        }
        if let Some(SrqExtension { domain, cq }) = &extension
            && !(device.is_same_worker(&domain.device) && device.is_same_worker(&cq.device))
        {
            return Err(Error::Invalid(
                "the domain and the completion queue belong to another device",
            ));
        }
        let max_sge = attributes.max_sge.max(1);
        let (producer, consumer) = memory(pd, attributes.max_wr, max_sge)?;
        acquire(pd, extension.as_ref())?;
        let mut made = None;
        let call = QueueControl::CreateReceives {
            serial: core.next_serial(),
            pd: pd.id,
            extended: (extension.as_ref())
                .map(|extension| (extension.domain.id, extension.cq.handle())),
        };
        let beside = Beside::SharedReceiveQueue(NewSharedReceiveQueue {
            ring: consumer,
            events: Arc::clone(&device.events),
            made: &mut made,
        });
        let reply = core.ask_with(Control::Queue { call }, beside);
        match (reply, made) {
            (Ok(Reply::SharedReceiveQueue { number }), Some(shared)) => Ok(Arc::new(Srq {
                pd: Arc::clone(pd),
                number,
                extension,
                shared,
                producer: Mutex::new(producer),
                max_sge,
                users: UseCount::default(),
                destroyed: AtomicBool::new(false),
            })),
            (reply, _) => {
                release(pd, extension.as_ref());
                Err(reply.err().unwrap_or(WRONG_REPLY))
            }
        }
    }

    /// Its name in requests to the worker.
    pub(crate) fn handle(&self) -> SrqHandle {
        SrqHandle {
            index: self.number,
            serial: self.shared.id,
        }
    }

    /// The number by which messages of extended connections name it.
    pub fn number(&self) -> u32 {
        self.number.get()
    }

    /// Whether it is one of extended connections.
    pub(crate) fn is_extended(&self) -> bool {
        self.extension.is_some()
    }

    /// The number that asynchronous events of this queue carry from now on.
    pub fn set_cookie(&self, cookie: u64) {
        self.shared.cookie.store(cookie, Ordering::Relaxed);
    }

    /// The granted sizes, and the alarm: 0 once it was raised.
    pub fn query(&self) -> SrqAttributes {
        SrqAttributes {
            max_wr: self.lock().capacity(),
            max_sge: self.max_sge,
            limit: self.shared.limit.load(Ordering::Relaxed),
        }
    }

    /// Sets the alarm. If fewer receives are posted already, it is raised at once.
    ///
    /// # Errors
    /// `EINVAL` for more than the queue holds, `ENODEV` in a child after fork.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let core = self.pd.device.core();
        core.check_process()?;
        if limit > self.lock().capacity() {
            return Err(Error::Invalid(
                "the limit is above the size of the shared receive queue",
            ));
        }
        let srq = self.handle();
        let call = QueueControl::LimitReceives { srq, limit };
        core.ask(Control::Queue { call })?;
        Ok(())
    }

    /// Changes how many receives fit; those posted stay.
    ///
    /// # Errors
    /// `EINVAL` for less than what is posted or than the alarm's limit, or more than the device
    /// allows; `ENOMEM`; `ENODEV` in a child after fork.
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        let core = self.pd.device.core();
        core.check_process()?;
        check_size(max_wr)?;
        if max_wr < self.shared.limit.load(Ordering::Relaxed) {
            return Err(Error::Invalid("the queue would be shorter than its limit"));
        }
        let mut producer = self.lock();
        let (mut to, consumer) = memory(&self.pd, max_wr, self.max_sge)?;
        let srq = self.handle();
        let call = QueueControl::ResizeReceives { srq };
        let beside = Beside::ResizedReceives(&mut to, consumer);
        core.ask_with(Control::Queue { call }, beside)?;
        *producer = to;
        Ok(())
    }

    /// Starts a list of receive work requests; the queue is locked for other threads meanwhile.
    pub fn begin_post(&self) -> SrqPost<'_> {
        SrqPost {
            srq: self,
            ring: self.pd.device.core().seems_ours().then(|| self.lock()),
        }
    }

    /// Destroys the queue; what was posted vanishes, and so do its events that were not fetched.
    ///
    /// # Errors
    /// `EBUSY` while queue pairs use it; `ENODEV` in a child after fork; a second call does
    /// nothing.
    pub fn destroy(&self) -> Result<(), Error> {
        let core = self.pd.device.core();
        core.check_process()?;
        if !self.users.destroy("the shared receive queue")? {
            return Ok(());
        }
        self.destroyed.store(true, Ordering::Release);
        let srq = self.handle();
        let call = QueueControl::DestroyReceives { srq };
        core.ask(Control::Queue { call })?;
        let id = self.shared.id;
        self.pd
            .device
            .events
            .retain(|&(owner, _)| owner != EventOwner::Srq(id));
        release(&self.pd, self.extension.as_ref());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, RingProducer> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // Its users hold it, so it has none.
        self.destroy().ok();
    }
}

/// A list of receive work requests being posted to a shared queue.
pub struct SrqPost<'a> {
    srq: &'a Srq,
    /// `None` in a child after fork, where the lock may never be released.
    ring: Option<MutexGuard<'a, RingProducer>>,
}

impl SrqPost<'_> {
    /// Adds a work request. The worker is not woken: queue pairs take receives when packets come.
    ///
    /// # Errors
    /// `EINVAL`: too many elements, or the queue was destroyed; `ENOMEM`: the queue is full;
    /// `ENODEV` in a child after fork.
    pub fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.srq.destroyed.load(Ordering::Acquire) {
            return Err(Error::Gone("the shared receive queue"));
        }
        if wr.sges.len() > self.srq.max_sge as usize {
            return Err(Error::Invalid(
                "more elements than the shared receive queue's max_sge",
            ));
        }
        let ring = self.ring.as_mut().ok_or(Error::Forked)?;
        let Some(slot) = ring.slot(0) else {
            return Err(Error::NoMemory(
                "the shared receive queue is full: poll the completion queues",
            ));
        };
        write_receive(slot, wr);
        ring.publish(1);
        Ok(())
    }
}

fn check_size(max_wr: u32) -> Result<(), Error> {
    if (1..=LIMITS.max_srq_wr).contains(&max_wr) {
        Ok(())
    } else {
        Err(Error::Invalid(
            "a shared receive queue has 1 to max_srq_wr work requests",
        ))
    }
}

fn memory(pd: &Pd, slots: u32, max_sge: u32) -> Result<(RingProducer, RingConsumer), Error> {
    ring(&pd.device.core().arena, slots, RecvWqe::stride(max_sge))
        .map_err(|error| Error::system("memory for a shared receive queue", &error))
}

/// Keeps what the queue is made of from being destroyed.
fn acquire(pd: &Pd, extension: Option<&SrqExtension>) -> Result<(), Error> {
    pd.users.acquire("the protection domain")?;
    let Some(SrqExtension { domain, cq }) = extension else {
        return Ok(());
    };
    let acquired = cq.users.acquire("the completion queue").and_then(|()| {
        domain
            .users
            .acquire("the domain of extended connections")
            .inspect_err(|_| cq.users.release())
    });
    acquired.inspect_err(|_| pd.users.release())
}

fn release(pd: &Pd, extension: Option<&SrqExtension>) {
    if let Some(SrqExtension { domain, cq }) = extension {
        domain.users.release();
        cq.users.release();
    }
    pd.users.release();
}
