//! Completion queues.

use crate::control::{Beside, Control, QueueControl};
use crate::index::{CqHandle, CqIndex};
use crate::queues::async_event::EventOwner;
use crate::queues::cq_shared::CqShared;
use crate::queues::use_count::UseCount;
use crate::worker::Work;
use crate::{Channel, Completion, CompletionOpcode, Device, Error, GrhHeader, Status};
use airdma_shm::{Cqe, RingConsumer};
use airdma_wire::{Qpn, Rkey};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Among the polls that find something, one in this many runs the worker all the same: a queue that
/// never runs empty must not keep others waiting.
const POLLS_PER_ROUND: u32 = 16;

/// A completion queue. Any thread may poll it; polling also runs the device's worker.
pub struct Cq {
    pub(crate) device: Arc<Device>,
    /// Its place in the worker's table.
    index: CqIndex,
    shared: Arc<CqShared>,
    consumer: Mutex<RingConsumer>,
    channel: Option<Arc<Channel>>,
    /// Queue pairs; one that uses the queue for both directions counts twice.
    pub(crate) users: UseCount,
    polls: AtomicU32,
}

impl Cq {
    pub(crate) fn new(
        device: Arc<Device>,
        index: CqIndex,
        shared: Arc<CqShared>,
        consumer: RingConsumer,
        channel: Option<Arc<Channel>>,
    ) -> Self {
        Cq {
            device,
            index,
            shared,
            consumer: Mutex::new(consumer),
            channel,
            users: UseCount::default(),
            polls: AtomicU32::new(0),
        }
    }

    /// The memory of its ring.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> Arc<airdma_shm::Block> {
        Arc::clone(self.consumer.lock().expect("no test panicked").block())
    }

    /// Its name in requests to the worker.
    pub(crate) fn handle(&self) -> CqHandle {
        CqHandle {
            index: self.index,
            serial: self.shared.id,
        }
    }

    /// Takes up to `max` completions, oldest first, and hands each to `sink`; returns how many.
    /// When there are none it runs the worker once and looks again. `sink` must not use this queue.
    ///
    /// # Errors
    /// [`Error::CqOverrun`] once the queue overflowed and what it still held has been taken;
    /// `ENODEV` in a child after fork.
    pub fn poll(&self, max: usize, mut sink: impl FnMut(Completion)) -> Result<usize, Error> {
        self.poll_stamped(max, |completion, _| sink(completion))
    }

    /// As [`Cq::poll`], and hands out when the completion was made, in nanoseconds of
    /// `CLOCK_MONOTONIC`; 0 unless the queue was created with
    /// [`CqOptions::timestamps`](crate::CqOptions::timestamps).
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn poll_stamped(
        &self,
        max: usize,
        mut sink: impl FnMut(Completion, u64),
    ) -> Result<usize, Error> {
        let core = self.device.core();
        if !core.seems_ours() {
            return Err(Error::Forked);
        }
        core.note_poll();
        self.shared.alarm.note_poll();
        let mut count = self.take(max, &mut sink);
        // A count lost between two threads does no harm.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if count == 0 || polls.is_multiple_of(POLLS_PER_ROUND) {
            core.try_progress(Work::All);
            count += self.take(max - count, &mut sink);
        }
        if count == 0 && max > 0 && self.shared.overrun.load(Ordering::Acquire) {
            return Err(Error::CqOverrun);
        }
        Ok(count)
    }

    fn take(&self, max: usize, sink: &mut impl FnMut(Completion, u64)) -> usize {
        let mut consumer = self.lock();
        let mut count = 0;
        while count < max {
            let Some(number) = consumer.take() else {
                break;
            };
            let cqe: Cqe = consumer.slot(number).read_header();
            consumer.release(1);
            // What the worker did not write is no completion.
            if let Some(completion) = decode(&cqe) {
                sink(completion, cqe.timestamp);
                count += 1;
            }
        }
        count
    }

    fn lock(&self) -> MutexGuard<'_, RingConsumer> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for one event at the next completion that is added (with `solicited_only`: the next one
    /// that is solicited or unsuccessful). A queue without a channel raises no events, as in the
    /// kernel.
    ///
    /// Completions already in the queue raise one if the program has polled since it fetched the
    /// last event.
    ///
    /// # Errors
    /// `ENODEV` in a child after fork.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        if !self.device.core().seems_ours() {
            return Err(Error::Forked);
        }
        if self.shared.watch.is_some() {
            // What is there already raises no event that was asked for later: see `Alarm`.
            self.shared.look();
        }
        let holds_any = || self.channel.is_some() && self.holds_any(solicited_only);
        if self.shared.alarm.arm(solicited_only, holds_any) {
            self.shared.raise();
        }
        if let Some(watch) = &self.shared.watch {
            watch.note_armed();
            self.shared.look();
        }
        Ok(())
    }

    /// Whether an event was asked for, and did not come yet.
    pub(crate) fn is_armed(&self) -> bool {
        self.shared.alarm.is_armed()
    }

    /// Is there a completion to take, or one that is solicited or unsuccessful?
    fn holds_any(&self, solicited_only: bool) -> bool {
        let mut consumer = self.lock();
        let all = consumer.available();
        let wanted = |n| {
            let cqe: Option<Cqe> = consumer.ahead(n).map(|slot| slot.read_header());
            cqe.is_some_and(|cqe| {
                cqe.flags & Cqe::SOLICITED != 0 || cqe.status != Status::Success as u8
            })
        };
        if solicited_only {
            (0..all).any(wanted)
        } else {
            all > 0
        }
    }

    /// Arms the queue as [`Cq::arm`] does, and polls it as [`Cq::poll`] does. Completions that are
    /// taken raise no event, and the queue need not be armed then: call it again, until there is
    /// none.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn arm_and_poll(
        &self,
        solicited_only: bool,
        max: usize,
        sink: impl FnMut(Completion),
    ) -> Result<usize, Error> {
        self.armed(solicited_only, || self.poll(max, sink))
    }

    /// As [`Cq::arm_and_poll`], without running the worker.
    ///
    /// # Errors
    /// `ENODEV` in a child after fork.
    pub fn arm_and_take(
        &self,
        solicited_only: bool,
        max: usize,
        mut sink: impl FnMut(Completion),
    ) -> Result<usize, Error> {
        self.armed(solicited_only, || {
            Ok(self.take(max, &mut |completion, _| sink(completion)))
        })
    }

    fn armed(
        &self,
        solicited_only: bool,
        take: impl FnOnce() -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        let Some(channel) = &self.channel else {
            return take();
        };
        // The thread takes what it finds: no other is told.
        let expected = channel.events.expect();
        self.arm(solicited_only)?;
        let taken = take();
        if matches!(taken, Ok(1..)) {
            channel.events.retain(|cq| !Arc::ptr_eq(cq, &self.shared));
            self.shared.fetched();
        }
        drop(expected);
        taken
    }

    /// How many completions fit.
    pub fn capacity(&self) -> u32 {
        self.lock().capacity()
    }

    /// Changes how many completions fit; those in the queue stay, in their order.
    ///
    /// # Errors
    /// `EINVAL` for zero, more than the device allows, or less than the queue holds now; `ENOMEM`;
    /// `ENODEV` in a child after fork.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        let core = self.device.core();
        core.check_process()?;
        let (to, from_now_on) = self.device.cq_memory(entries)?;
        // What was posted completes first, and counts.
        core.ask(Control::Flush)?;
        // This lock before the worker's, as nowhere else: a thread that holds the worker does not
        // wait for a queue.
        let mut consumer = self.lock();
        let cq = self.handle();
        let call = QueueControl::ResizeCompletions { cq };
        let beside = Beside::ResizedCompletions(&mut consumer, to);
        core.ask_with(Control::Queue { call }, beside)?;
        *consumer = from_now_on;
        Ok(())
    }

    /// Takes out the completions of a queue pair that goes back to RESET.
    pub(crate) fn purge(&self, of: Qpn) {
        let core = self.device.core();
        let mut consumer = self.lock();
        let cq = self.handle();
        let call = QueueControl::PurgeCompletions { cq, of };
        let beside = Beside::Completions(&mut consumer);
        // A queue that is gone holds none.
        core.ask_with(Control::Queue { call }, beside).ok();
        if self.shared.watch.is_some()
            && let Ok(after) = RingConsumer::attach(Arc::clone(consumer.block()))
        {
            // The daemon has taken and released completions.
            *consumer = after;
        }
    }

    /// The number that channel events and asynchronous events of this queue carry from now on.
    pub fn set_cookie(&self, cookie: u64) {
        self.shared.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Destroys the queue; events of it not yet fetched vanish.
    ///
    /// # Errors
    /// `EBUSY` while a queue pair uses it; `ENODEV` in a child after fork.
    pub fn destroy(&self) -> Result<(), Error> {
        let core = self.device.core();
        core.check_process()?;
        if !self.users.destroy("the completion queue")? {
            return Ok(());
        }
        let cq = self.handle();
        let call = QueueControl::DestroyCompletions { cq };
        core.ask(Control::Queue { call })?;
        let id = self.shared.id;
        self.device
            .events
            .retain(|&(owner, _)| owner != EventOwner::Cq(id));
        if let Some(channel) = &self.channel {
            channel.events.retain(|cq| cq.id != id);
            channel.users.release();
        }
        Ok(())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Its users hold it, so it has none.
        self.destroy().ok();
    }
}

fn decode(cqe: &Cqe) -> Option<Completion> {
    let has = |flag| cqe.flags & flag != 0;
    Some(Completion {
        wr_id: cqe.wr_id,
        status: Status::from_number(cqe.status)?,
        opcode: CompletionOpcode::from_number(cqe.opcode)?,
        byte_len: cqe.byte_len,
        imm: has(Cqe::IMM).then_some(cqe.imm_or_rkey),
        invalidated: has(Cqe::INVALIDATED).then(|| Rkey(u32::from_ne_bytes(cqe.imm_or_rkey))),
        solicited: has(Cqe::SOLICITED),
        grh: has(Cqe::GRH).then(|| match has(Cqe::IPV4) {
            true => GrhHeader::Ipv4,
            false => GrhHeader::Ipv6,
        }),
        src_qpn: Qpn::new(cqe.src_qpn),
        qpn: Qpn::new(cqe.qpn),
    })
}
