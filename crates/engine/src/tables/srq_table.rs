//! The worker's side of shared receive queues: the consumers of their rings.

use crate::index::{CqIndex, PdIndex, Serial, SrqHandle, SrqIndex};
use crate::queues::async_event::{AsyncEvents, EventOwner};
use crate::queues::sge_list::list_bytes;
use crate::queues::srq_shared::SrqShared;
use crate::{AsyncEvent, Error, LIMITS};
use airdma_shm::{RecvWqe, RingConsumer, Sge, SlotRef};
use airdma_transport::{Receive, Slot};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct SrqSlot {
    pub(crate) ring: RingConsumer,
    pub(crate) pd: PdIndex,
    /// For extended connections: their domain, and where completions go.
    pub(crate) extended: Option<Extended>,
    pub(crate) shared: Arc<SrqShared>,
    pub(crate) events: Arc<AsyncEvents>,
}

#[derive(Clone, Copy)]
pub(crate) struct Extended {
    pub(crate) domain: Serial,
    pub(crate) cq: CqIndex,
}

/// Numbers that were given back and are not used again yet, while there are fresh ones: a late
/// message of an extended connection must not fill the successor of the queue that it names.
const RESTING: usize = 1024;

/// The shared receive queues of one worker, by number.
#[derive(Default)]
pub(crate) struct SrqTable {
    slots: Vec<Option<SrqSlot>>,
    free: VecDeque<SrqIndex>,
}

impl SrqTable {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Enters a queue, which gets the number that is returned.
    pub(crate) fn insert(&mut self, slot: SrqSlot) -> Result<SrqIndex, Error> {
        if self.free.len() <= RESTING && self.slots.len() < LIMITS.max_srq as usize {
            self.slots.push(Some(slot));
            return Ok(SrqIndex::from_place(self.slots.len() - 1));
        }
        let number = self.free.pop_front().ok_or(Error::NoMemory(
            "no more shared receive queues: see max_srq of the device",
        ))?;
        self.slots[number.place()] = Some(slot);
        Ok(number)
    }

    pub(crate) fn remove(&mut self, number: SrqIndex) {
        if self.slots[number.place()].take().is_some() {
            self.free.push_back(number);
        }
    }

    pub(crate) fn slot(&mut self, number: SrqIndex) -> Option<&mut SrqSlot> {
        self.slots.get_mut(number.place())?.as_mut()
    }

    /// The number of the queue with that handle.
    ///
    /// # Errors
    /// `EINVAL` if it is gone.
    pub(crate) fn find(&mut self, srq: SrqHandle) -> Result<SrqIndex, Error> {
        match self.slot(srq.index) {
            Some(slot) if slot.shared.id == srq.serial => Ok(srq.index),
            Some(_) | None => Err(Error::Gone("the shared receive queue")),
        }
    }

    /// The protection domains of the queues of this domain of extended connections.
    pub(crate) fn domains(&self, domain: Serial) -> impl Iterator<Item = PdIndex> {
        let slots = self.slots.iter().flatten();
        slots
            .filter(move |slot| {
                slot.extended
                    .is_some_and(|extended| extended.domain == domain)
            })
            .map(|slot| slot.pd)
    }

    /// The queue with that number, if it is of this domain of extended connections.
    pub(crate) fn of_domain(&mut self, number: SrqIndex, domain: Serial) -> Option<&mut SrqSlot> {
        self.slot(number).filter(|slot| {
            slot.extended
                .is_some_and(|extended| extended.domain == domain)
        })
    }
}

impl SrqSlot {
    /// Takes the oldest receive out of the queue: from now on the taker holds it, in `held`.
    pub(crate) fn take(&mut self, held: &mut Held) -> Option<Receive> {
        let number = self.ring.take()?;
        let cq = self.extended.map(|extended| extended.cq);
        let from = (self.shared.id, self.pd, cq);
        let receive = held.hold(self.ring.slot(number), from);
        self.ring.release(1);
        self.watch_limit();
        Some(receive)
    }

    /// Raises the event when fewer receives are left than the application wants to hear of, once
    /// (IBTA 11.6.3.7).
    pub(crate) fn watch_limit(&mut self) {
        let limit = self.shared.limit.load(Ordering::Relaxed);
        if limit > 0 && self.ring.available() < limit {
            self.shared.limit.store(0, Ordering::Relaxed);
            let cookie = self.shared.cookie.load(Ordering::Relaxed);
            let owner = EventOwner::Srq(self.shared.id);
            self.events
                .push((owner, AsyncEvent::SrqLimitReached { cookie }));
        }
    }
}

/// Receives that a queue pair took and has not completed: a copy, since others, or other messages,
/// take the next ones and complete them earlier. A handful at most, so they are searched.
#[derive(Default)]
pub(crate) struct Held {
    receives: Vec<HeldReceive>,
    in_use: u32,
}

/// No shared queue has this id.
const NO_QUEUE: u64 = u64::MAX;

#[derive(Default)]
pub(crate) struct HeldReceive {
    in_use: bool,
    /// The queue that it comes from, as [`SrqShared::id`].
    srq: u64,
    pub(crate) sges: Vec<Sge>,
    pub(crate) pd: PdIndex,
    /// Where its completion goes, if not to the queue pair's own completion queue.
    pub(crate) cq: Option<CqIndex>,
}

impl Held {
    fn hold(&mut self, slot: SlotRef<'_>, from: (u64, PdIndex, Option<CqIndex>)) -> Receive {
        let index = match self.receives.iter().position(|receive| !receive.in_use) {
            Some(index) => index,
            None => {
                self.receives.push(HeldReceive::default());
                self.receives.len() - 1
            }
        };
        let header: RecvWqe = slot.read_header();
        // A count that is a lie leaves a receive of no bytes, which any message overflows.
        let length = list_bytes::<RecvWqe>(slot, header.sge_count).unwrap_or(0);
        let receive = &mut self.receives[index];
        receive.in_use = true;
        self.in_use += 1;
        (receive.srq, receive.pd, receive.cq) = from;
        receive.sges.clear();
        receive
            .sges
            .extend((0..header.sge_count).map_while(|n| slot.sge::<RecvWqe>(n).ok()));
        Receive {
            slot: Slot(index as u32),
            wr_id: header.wr_id,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        }
    }

    /// Holds a receive of the queue pair's own queue.
    pub(crate) fn hold_own(&mut self, slot: SlotRef<'_>, pd: PdIndex) -> Receive {
        self.hold(slot, (NO_QUEUE, pd, None))
    }

    /// A shared queue is gone: what was taken from it has no memory any more, and completes
    /// nowhere.
    pub(crate) fn forget(&mut self, srq: u64) {
        let held = self.receives.iter_mut();
        for receive in held.filter(|receive| receive.in_use && receive.srq == srq) {
            receive.sges.clear();
            receive.cq = Some(CqIndex::NONE);
        }
    }

    /// How many have not completed.
    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&HeldReceive> {
        self.receives
            .get(slot.0 as usize)
            .filter(|receive| receive.in_use)
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        let receive = self.receives.get_mut(slot.0 as usize);
        if let Some(receive) = receive.filter(|receive| receive.in_use) {
            receive.in_use = false;
            self.in_use -= 1;
        }
    }

    /// Forgets all: the queue pair goes back to the reset state.
    pub(crate) fn clear(&mut self) {
        for receive in &mut self.receives {
            receive.in_use = false;
        }
        self.in_use = 0;
    }
}
