//! The worker's side of completion queues: the producers of their rings.

use crate::counter_names::EngineCounter;
use crate::index::{CqHandle, CqIndex};
use crate::queues::async_event::EventOwner;
use crate::queues::cq_shared::CqShared;
use crate::tables::counters::Counters;
use crate::{AsyncEvent, Error, LIMITS};
use airdma_shm::{Cqe, RingProducer};
use airdma_transport::{Completion, GrhHeader, Status};
use airdma_wire::Qpn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct CqSlot {
    ring: RingProducer,
    shared: Arc<CqShared>,
}

/// The completion queues of one worker.
#[derive(Default)]
pub(crate) struct CqTable {
    slots: Vec<Option<CqSlot>>,
    free: Vec<CqIndex>,
    /// Queues that overflowed just now.
    overrun: Vec<Overrun>,
    /// Whether a completion raised an event just now.
    raised: bool,
}

/// A queue that overflowed, and whose completion was lost.
pub(crate) struct Overrun {
    pub(crate) cq: CqIndex,
    pub(crate) qpn: Qpn,
}

impl CqTable {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    pub(crate) fn insert(
        &mut self,
        ring: RingProducer,
        shared: Arc<CqShared>,
    ) -> Result<CqIndex, Error> {
        let slot = Some(CqSlot { ring, shared });
        if let Some(index) = self.free.pop() {
            self.slots[index.place()] = slot;
            return Ok(index);
        }
        if self.slots.len() >= LIMITS.max_cq as usize {
            return Err(Error::NoMemory(
                "no more completion queues: see max_cq of the device",
            ));
        }
        self.slots.push(slot);
        Ok(CqIndex::from_place(self.slots.len() - 1))
    }

    /// The place of the queue with that handle.
    ///
    /// # Errors
    /// `EINVAL` if it is gone.
    pub(crate) fn find(&self, cq: CqHandle) -> Result<CqIndex, Error> {
        let slot = self.slots.get(cq.index.place());
        let slot = slot.and_then(|slot| slot.as_ref());
        match slot.filter(|slot| slot.shared.id == cq.serial) {
            Some(_) => Ok(cq.index),
            None => Err(Error::Gone("the completion queue")),
        }
    }

    pub(crate) fn remove(&mut self, index: CqIndex) {
        if self.slots[index.place()].take().is_some() {
            self.free.push(index);
        }
    }

    /// Another ring takes the place of a queue's, and holds what it held.
    pub(crate) fn replace(&mut self, index: CqIndex, ring: RingProducer) {
        if let Some(Some(slot)) = self.slots.get_mut(index.place()) {
            slot.ring = ring;
        }
    }

    /// Puts completions back that were taken out of a queue.
    pub(crate) fn refill(&mut self, index: CqIndex, cqes: &[Cqe]) {
        let Some(Some(CqSlot { ring, .. })) = self.slots.get_mut(index.place()) else {
            return;
        };
        for cqe in cqes {
            if let Some(mut slot) = ring.slot(0) {
                slot.write_header(cqe);
                ring.publish(1);
            }
        }
    }

    /// Whether queues overflowed: their queue pairs must fail in this round.
    #[inline]
    pub(crate) fn has_overrun(&self) -> bool {
        !self.overrun.is_empty()
    }

    /// Whether completions have raised events since the last call.
    pub(crate) fn take_raised(&mut self) -> bool {
        std::mem::take(&mut self.raised)
    }

    pub(crate) fn take_overrun(&mut self) -> Option<Overrun> {
        self.overrun.pop()
    }

    /// The number of the next completion of a queue, if some before it wait to be taken.
    pub(crate) fn end_of_waiting(&mut self, index: CqIndex) -> Option<u32> {
        let ring = &mut self.slots.get_mut(index.place())?.as_mut()?.ring;
        (ring.used() > 0).then(|| ring.published())
    }

    /// Whether all completions before that number were taken, or the queue is gone.
    pub(crate) fn is_taken(&mut self, index: CqIndex, before: u32) -> bool {
        let Some(Some(CqSlot { ring, .. })) = self.slots.get_mut(index.place()) else {
            return true;
        };
        let since = ring.published().wrapping_sub(before);
        ring.used() <= since
    }

    /// Whether a queue has room for a completion beyond `others`, or is gone.
    pub(crate) fn has_room(&mut self, index: CqIndex, others: u32) -> bool {
        let Some(Some(CqSlot { ring, .. })) = self.slots.get_mut(index.place()) else {
            return true;
        };
        ring.slot(others).is_some()
    }

    /// Whether the owner of a queue does not care about completions that are lost.
    pub(crate) fn ignores_overrun(&self, index: CqIndex) -> bool {
        let slot = self.slots.get(index.place()).and_then(Option::as_ref);
        slot.is_some_and(|slot| slot.shared.options.ignore_overrun)
    }

    /// Raises the event of a queue that is armed, without a completion.
    #[cold]
    pub(crate) fn wake(&mut self, index: CqIndex) {
        if let Some(Some(slot)) = self.slots.get(index.place()) {
            self.raised |= slot.shared.notify(true);
        }
    }

    /// Adds a completion. When the ring is full it is lost, never an older one overwritten; unless
    /// its owner does not care, the queue is in error from now on: it takes none any more, an event
    /// is raised once (IBTA 11.6.3.1, `IBV_EVENT_CQ_ERR`), and its queue pairs fail.
    pub(crate) fn push(
        &mut self,
        index: CqIndex,
        completion: &Completion,
        counters: &mut Counters,
    ) {
        let Some(Some(CqSlot { ring, shared })) = self.slots.get_mut(index.place()) else {
            return;
        };
        // Nothing follows what was lost.
        let room = ring
            .slot(0)
            .filter(|_| !shared.overrun.load(Ordering::Relaxed));
        let Some(mut slot) = room else {
            counters.count(EngineCounter::CqOverruns);
            if !shared.options.ignore_overrun && !shared.overrun.swap(true, Ordering::Release) {
                let cookie = shared.cookie.load(Ordering::Relaxed);
                shared
                    .events
                    .push((EventOwner::Cq(shared.id), AsyncEvent::CqError { cookie }));
                let qpn = completion.qpn;
                self.overrun.push(Overrun { cq: index, qpn });
            }
            return;
        };
        let timestamp = if shared.options.timestamps {
            monotonic()
        } else {
            0
        };
        slot.write_header(&Cqe {
            timestamp,
            ..encode(completion)
        });
        ring.publish(1);
        self.raised |= shared.notify(completion.solicited || completion.status != Status::Success);
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the struct may be written; this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn encode(completion: &Completion) -> Cqe {
    let mut flags = 0;
    let mut imm_or_rkey = [0; 4];
    if let Some(rkey) = completion.invalidated {
        flags |= Cqe::INVALIDATED;
        imm_or_rkey = rkey.0.to_ne_bytes();
    }
    if let Some(imm) = completion.imm {
        flags |= Cqe::IMM;
        imm_or_rkey = imm;
    }
    match completion.grh {
        Some(GrhHeader::Ipv4) => flags |= Cqe::GRH | Cqe::IPV4,
        Some(GrhHeader::Ipv6) => flags |= Cqe::GRH,
        None => {}
    }
    if completion.solicited {
        flags |= Cqe::SOLICITED;
    }
    Cqe {
        wr_id: completion.wr_id,
        status: completion.status as u8,
        opcode: completion.opcode as u8,
        flags,
        byte_len: completion.byte_len,
        imm_or_rkey,
        qpn: completion.qpn.get(),
        src_qpn: completion.src_qpn.get(),
        ..Cqe::default()
    }
}
