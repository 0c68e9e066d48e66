//! What a queue pair may touch during one call: its rings, the memory of its protection domain, its
//! completion queues.

use crate::index::{CqIndex, PdIndex, Serial, SrqIndex};
use crate::memory::{MemoryTable, OURSELVES, Place, RunSums};
use crate::queues::async_event::{AsyncEvents, EventOwner};
use crate::queues::attached_counters::AttachedCounters;
use crate::queues::qp_shared::QpShared;
use crate::queues::sge_list::list_bytes;
use crate::tables::counters::Counters;
use crate::tables::device_tables::DeviceTables;
use crate::tables::srq_table::Held;
use crate::{Access, AsyncEvent, LIMITS};
use airdma_shm::{Corrupt, HeldSlots, RecvWqe, RingConsumer, SendWqe, Sge, SlotRef, Wqe};
use airdma_transport::{
    AtomicOperation, Bind, Completion, CompletionOpcode, Counter, Host, LocalFault, QpEvent,
    Receive, RecordHost, RecordOrigin, RemoteAccess, RemoteFault, Slot, Spread, Status,
};
use airdma_wire::{GRH_LEN, Neighbour, Rkey};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The worker's side of a queue pair, beside the protocol's state.
pub(crate) struct QpSide {
    pub(crate) send: RingConsumer,
    pub(crate) recv: RingConsumer,
    pub(crate) receives: Receives,
    /// Receives taken from a shared queue, or for SENDs over reliable datagrams.
    pub(crate) held: Held,
    /// Reliable datagrams that were posted and have not completed.
    pub(crate) held_sends: Option<Box<HeldSlots>>,
    /// Its protection domain. For the target of an extended connection that of the shared receive
    /// queue which the packet in hand names (IBTA A14.2.4).
    pub(crate) pd: PdIndex,
    /// Unlike that of any other queue pair that the device ever had; queue pair numbers are reused.
    pub(crate) serial: Serial,
    pub(crate) send_cq: CqIndex,
    pub(crate) recv_cq: CqIndex,
    pub(crate) shared: Arc<QpShared>,
    pub(crate) events: Arc<AsyncEvents>,
    /// Counters that the program attached, which few queue pairs have.
    pub(crate) completion_counters: Option<Box<AttachedCounters>>,
}

/// Where a queue pair's receives come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    /// The queue pair's own receive queue.
    Own,
    /// The shared queue with this number.
    Shared(SrqIndex),
    /// The shared queue that each message names, in this domain of extended connections.
    Domain(Serial),
}

/// A [`Host`] for one call of one queue pair.
pub(crate) struct QpHost<'a> {
    pub(crate) side: &'a mut QpSide,
    pub(crate) device: &'a mut DeviceTables,
    pub(crate) counters: &'a mut Counters,
    pub(crate) sums: RunSums,
}

impl QpHost<'_> {
    #[inline(always)]
    fn finish_send(&mut self, completion: Option<Completion>) {
        // The slot first: a thread that sees the completion may post at once.
        self.side.send.release(1);
        if let Some(completion) = completion {
            self.device
                .cqs
                .push(self.side.send_cq, &completion, self.counters);
        }
    }

    #[inline(always)]
    fn finish_receive(&mut self, slot: Slot, completion: Completion) {
        let mut cq = self.side.recv_cq;
        if self.side.receives == Receives::Own {
            self.side.recv.release(1);
        } else {
            let named = self.side.held.get(slot).and_then(|held| held.cq);
            cq = named.unwrap_or(cq);
            self.side.held.release(slot);
        }
        self.device.cqs.push(cq, &completion, self.counters);
    }

    /// As [`finish_send`](Self::finish_send), for a queue pair with counters. Not inlined: others
    /// save no registers for it.
    #[cold]
    #[inline(never)]
    fn complete_counted_send(&mut self, slot: Slot, completion: Option<Completion>) {
        if let Some(counters) = &self.side.completion_counters {
            let status = completion.map_or(Status::Success, |completion| completion.status);
            counters.count_send(self.side.send.slot(slot.0), status);
        }
        self.finish_send(completion);
    }

    #[cold]
    #[inline(never)]
    fn complete_counted_receive(&mut self, slot: Slot, completion: Completion) {
        if let Some(counters) = &self.side.completion_counters {
            counters.count_receive(completion.status, completion.byte_len);
        }
        self.finish_receive(slot, completion);
    }

    fn place(&self, rkey: Rkey, va: u64) -> Place {
        Place {
            pd: self.side.pd,
            key: rkey.0,
            va,
            qp: self.side.serial,
        }
    }

    /// Where the list of a send request leads.
    fn spans(&self, slot: Slot) -> Result<Spans, LocalFault> {
        let slot = self.side.send.slot(slot.0);
        let header: SendWqe = slot.read_header();
        let mut spans = Spans::default();
        for index in 0..u32::from(header.sge_count) {
            let sge = slot.sge::<SendWqe>(index);
            let sge = sge.map_err(|_: Corrupt| LocalFault)?;
            if let Some(span) = self.device.memory.span(self.side.pd, &sge)? {
                let free = spans.list.get_mut(spans.count).ok_or(LocalFault)?;
                *free = span;
                spans.count += 1;
            }
        }
        Ok(spans)
    }
}

/// Addresses in the application's address space.
#[derive(Default)]
struct Spans {
    list: [(u64, u64); LIMITS.max_sge as usize],
    count: usize,
}

impl Spans {
    fn overlap(&self, other: &Spans) -> bool {
        let [ours, theirs] = [self, other].map(|spans| &spans.list[..spans.count]);
        ours.iter().any(|&(start, end)| {
            let meets = |&(other, other_end): &(u64, u64)| start < other_end && other < end;
            theirs.iter().any(meets)
        })
    }
}

impl Host for QpHost<'_> {
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        let slot = self.side.send.slot(slot.0);
        gather(&self.device.memory, self.side.pd, slot, offset, out)
    }

    fn gather_run(
        &mut self,
        slot: Slot,
        offset: u32,
        out: &mut [u8],
        spread: Spread,
    ) -> Result<(), LocalFault> {
        let ring = self.side.send.slot(slot.0);
        let header: SendWqe = ring.read_header();
        if header.flags & SendWqe::INLINE == 0 {
            let list = InSlot::<SendWqe>::new(ring);
            let count = u32::from(header.sge_count);
            let mut pieces = Pieces::new(list, count, offset, spread.bytes());
            if let Some(Ok(piece)) = pieces.next()
                && piece.range.len() == spread.bytes()
            {
                let (place, _) = piece.at(self.side.pd);
                let (memory, sums) = (&self.device.memory, &mut self.sums);
                return Ok(memory.read_run(place, Access::empty(), out, spread, sums)?);
            }
        }
        spread.fill(out, |before, part| {
            self.gather(slot, offset + before as u32, part)
        })
    }

    fn scatter(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let slot = self.side.send.slot(slot.0);
        let header: SendWqe = slot.read_header();
        if header.flags & SendWqe::INLINE != 0 {
            return Err(LocalFault);
        }
        let list = InSlot::<SendWqe>::new(slot);
        let pieces = Pieces::new(list, u32::from(header.sge_count), offset, data.len());
        scatter(&self.device.memory, self.side.pd, pieces, data)
    }

    /// Memory that the application has mapped at two addresses counts as two.
    fn share_memory(&mut self, one: Slot, other: Slot) -> bool {
        match [one, other].map(|slot| self.spans(slot)) {
            [Ok(one), Ok(other)] => one.overlap(&other),
            // An invalid list or memory that is gone may overlap with anything.
            [Err(LocalFault), _] | [_, Err(LocalFault)] => true,
        }
    }

    fn take_receive(&mut self) -> Option<Receive> {
        match self.side.receives {
            Receives::Own => {}
            Receives::Shared(number) => {
                return self.device.srqs.slot(number)?.take(&mut self.side.held);
            }
            Receives::Domain(_) => return None,
        }
        let number = self.side.recv.take()?;
        let slot = self.side.recv.slot(number);
        let header: RecvWqe = slot.read_header();
        // A count that is a lie leaves a receive of no bytes, which any message overflows.
        let length = list_bytes::<RecvWqe>(slot, header.sge_count).unwrap_or(0);
        Some(Receive {
            slot: Slot(number),
            wr_id: header.wr_id,
            length: u32::try_from(length).unwrap_or(u32::MAX),
        })
    }

    fn take_shared_receive(&mut self, srqn: u32) -> Result<Option<Receive>, RemoteFault> {
        let Receives::Domain(domain) = self.side.receives else {
            return Err(RemoteFault::Access);
        };
        let slot = self.device.srqs.of_domain(SrqIndex::new(srqn), domain);
        let slot = slot.ok_or(RemoteFault::Access)?;
        Ok(slot.take(&mut self.side.held))
    }

    fn scatter_receive(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        if self.side.receives != Receives::Own {
            let held = self.side.held.get(slot).ok_or(LocalFault)?;
            let pieces = Pieces::new(&held.sges[..], held.sges.len() as u32, offset, data.len());
            return scatter(&self.device.memory, held.pd, pieces, data);
        }
        let slot = self.side.recv.slot(slot.0);
        let header: RecvWqe = slot.read_header();
        let list = InSlot::<RecvWqe>::new(slot);
        let pieces = Pieces::new(list, header.sge_count, offset, data.len());
        scatter(&self.device.memory, self.side.pd, pieces, data)
    }

    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault> {
        self.device
            .memory
            .check(self.place(rkey, va), length, access)
    }

    /// The answer to a READ of an extended connection may be read while another packet, which names
    /// another queue, was in hand last. The peer could have named any queue of the domain, so the
    /// domains of all of them are tried.
    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        let place = self.place(rkey, va);
        let read = self.device.memory.read(place, Access::REMOTE_READ, out);
        let Receives::Domain(domain) = self.side.receives else {
            return Ok(read?);
        };
        if read.is_ok() {
            return Ok(());
        }
        let mut others = self
            .device
            .srqs
            .domains(domain)
            .map(|pd| Place { pd, ..place });
        let read = others.any(|place| {
            self.device
                .memory
                .read(place, Access::REMOTE_READ, out)
                .is_ok()
        });
        if read {
            Ok(())
        } else {
            Err(RemoteFault::Access)
        }
    }

    fn read_remote_run(
        &mut self,
        rkey: Rkey,
        va: u64,
        out: &mut [u8],
        spread: Spread,
    ) -> Result<(), RemoteFault> {
        let place = self.place(rkey, va);
        let (memory, sums) = (&self.device.memory, &mut self.sums);
        Ok(memory.read_run(place, Access::REMOTE_READ, out, spread, sums)?)
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        Ok(self
            .device
            .memory
            .write(self.place(rkey, va), Access::REMOTE_WRITE, data)?)
    }

    fn write_remote_last(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        let place = self.place(rkey, va);
        Ok((self.device.memory).write_last(place, Access::REMOTE_WRITE, data)?)
    }

    fn wrote(&mut self) {
        if self.side.shared.writes.count() {
            self.device.cqs.wake(self.side.recv_cq);
        }
    }

    fn atomic(
        &mut self,
        rkey: Rkey,
        va: u64,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault> {
        self.device.memory.atomic(self.place(rkey, va), operation)
    }

    fn write_atomic(&mut self, rkey: Rkey, va: u64, data: [u8; 8]) -> Result<(), RemoteFault> {
        self.device.memory.write_atomic(self.place(rkey, va), data)
    }

    fn invalidate_local(&mut self, rkey: Rkey) -> Result<(), LocalFault> {
        let qp = self.side.serial;
        Ok(self.device.memory.invalidate(self.side.pd, qp, rkey.0)?)
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), LocalFault> {
        let qp = self.side.serial;
        Ok(self.device.memory.bind(self.side.pd, qp, bind)?)
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteFault> {
        let qp = self.side.serial;
        Ok(self.device.memory.invalidate(self.side.pd, qp, rkey.0)?)
    }

    fn complete_send(&mut self, slot: Slot, completion: Option<Completion>) {
        if self.side.completion_counters.is_some() {
            return self.complete_counted_send(slot, completion);
        }
        self.finish_send(completion);
    }

    fn hold_send(&mut self, slot: Slot) -> Option<Slot> {
        let held = self.side.held_sends.as_mut()?;
        let index = held.hold(self.side.send.slot(slot.0))?;
        self.side.send.release(1);
        Some(Slot(index))
    }

    fn gather_held(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        let held = self.side.held_sends.as_ref().ok_or(LocalFault)?;
        let (memory, pd) = (&self.device.memory, self.side.pd);
        gather(memory, pd, held.slot(slot.0), offset, out)
    }

    fn complete_held_send(&mut self, slot: Slot, completion: Option<Completion>) {
        if let Some(held) = &mut self.side.held_sends {
            if let Some(counters) = &self.side.completion_counters {
                let status = completion.map_or(Status::Success, |completion| completion.status);
                counters.count_send(held.slot(slot.0), status);
            }
            held.release(slot.0);
        }
        if let Some(completion) = completion {
            let cq = self.side.send_cq;
            self.device.cqs.push(cq, &completion, self.counters);
        }
    }

    fn complete_receive(&mut self, slot: Slot, completion: Completion) {
        if self.side.completion_counters.is_some() {
            return self.complete_counted_receive(slot, completion);
        }
        self.finish_receive(slot, completion);
    }

    fn event(&mut self, event: QpEvent) {
        let number = self.side.shared.number;
        let cookie = self.side.shared.cookie.load(Ordering::Relaxed);
        self.side.events.push((
            EventOwner::Qp(number),
            AsyncEvent::Qp {
                number,
                cookie,
                event,
            },
        ));
    }

    fn check_read(
        &mut self,
        source: Neighbour,
        rkey: Rkey,
        va: u64,
        length: u32,
    ) -> Result<(), RemoteFault> {
        let place = self.place(rkey, va);
        Ok((self.device.memory).check_record_read(source, place, length)?)
    }

    fn read_for(
        &mut self,
        source: Neighbour,
        rkey: Rkey,
        va: u64,
        out: &mut [u8],
    ) -> Result<(), RemoteFault> {
        let place = self.place(rkey, va);
        Ok(self.device.memory.read_record(source, place, out)?)
    }

    fn count(&mut self, counter: Counter) {
        self.counters.count_transport(counter);
    }
}

impl RecordHost for QpHost<'_> {
    fn check_record(
        &mut self,
        origin: RecordOrigin,
        rkey: Rkey,
        va: u64,
        length: u32,
    ) -> Result<(), RemoteFault> {
        let place = self.place(rkey, va);
        Ok(self.device.memory.check_record(origin, place, length)?)
    }

    fn write_record(
        &mut self,
        origin: RecordOrigin,
        rkey: Rkey,
        va: u64,
        data: &[u8],
    ) -> Result<(), RemoteFault> {
        let place = self.place(rkey, va);
        Ok(self.device.memory.write_record(origin, place, data)?)
    }

    fn write_read(&mut self, lkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        let place = Place {
            qp: OURSELVES,
            ..self.place(lkey, va)
        };
        let memory = &self.device.memory;
        Ok(memory.write(place, Access::LOCAL_WRITE, data)?)
    }

    fn count_record(&mut self, counter: Counter) {
        self.counters.count_transport(counter);
    }

    fn take_message(&mut self) -> Option<Receive> {
        // Its sender is told that it arrived, so its completion must not be lost. Without room it
        // waits, as without a receive.
        let (cq, others) = (self.side.recv_cq, self.side.held.in_use());
        let cqs = &mut self.device.cqs;
        if !cqs.has_room(cq, others) && !cqs.ignores_overrun(cq) {
            return None;
        }
        match self.side.receives {
            Receives::Own => {
                let number = self.side.recv.take()?;
                let slot = self.side.recv.slot(number);
                let receive = self.side.held.hold_own(slot, self.side.pd);
                self.side.recv.release(1);
                Some(receive)
            }
            Receives::Shared(number) => self.device.srqs.slot(number)?.take(&mut self.side.held),
            Receives::Domain(_) => None,
        }
    }

    fn place_header(&mut self, receive: Slot, header: &[u8]) {
        self.place_held(receive, 0, header);
    }

    fn place_message(&mut self, receive: Slot, offset: u32, data: &[u8]) -> bool {
        match offset.checked_add(GRH_LEN as u32) {
            Some(offset) => self.place_held(receive, offset, data),
            None => false,
        }
    }

    fn complete_message(&mut self, receive: Slot, completion: Completion) {
        if let Some(counters) = &self.side.completion_counters {
            counters.count_receive(completion.status, completion.byte_len);
        }
        let named = self.side.held.get(receive).and_then(|held| held.cq);
        let cq = named.unwrap_or(self.side.recv_cq);
        self.side.held.release(receive);
        self.device.cqs.push(cq, &completion, self.counters);
    }

    fn flush_message(&mut self, receive: Receive) {
        let completion = Completion::with_status(
            receive.wr_id,
            CompletionOpcode::Receive,
            Status::WrFlushError,
            self.side.shared.number,
        );
        self.complete_message(receive.slot, completion);
    }
}

impl QpHost<'_> {
    /// Places data in a held receive; false if its memory is gone.
    fn place_held(&self, receive: Slot, offset: u32, data: &[u8]) -> bool {
        let Some(held) = self.side.held.get(receive) else {
            return false;
        };
        let pieces = Pieces::new(&held.sges[..], held.sges.len() as u32, offset, data.len());
        data.is_empty() || scatter(&self.device.memory, held.pd, pieces, data).is_ok()
    }
}

/// Copies part of the message of the send request in `slot`.
#[inline(always)] // as before there was another kind of slot
fn gather(
    memory: &MemoryTable,
    pd: PdIndex,
    slot: SlotRef<'_>,
    offset: u32,
    out: &mut [u8],
) -> Result<(), LocalFault> {
    let header: SendWqe = slot.read_header();
    if header.flags & SendWqe::INLINE != 0 {
        return slot
            .copy_inline::<SendWqe>(offset, out)
            .map_err(|_: Corrupt| LocalFault);
    }
    let list = InSlot::<SendWqe>::new(slot);
    let pieces = Pieces::new(list, u32::from(header.sge_count), offset, out.len());
    for piece in pieces {
        let (place, range) = piece?.at(pd);
        memory.read(place, Access::empty(), &mut out[range])?;
    }
    Ok(())
}

fn scatter<L: List>(
    memory: &MemoryTable,
    pd: PdIndex,
    pieces: Pieces<L>,
    data: &[u8],
) -> Result<(), LocalFault> {
    for piece in pieces {
        let (place, range) = piece?.at(pd);
        memory.write(place, Access::LOCAL_WRITE, &data[range])?;
    }
    Ok(())
}

/// A scatter/gather list: in the slot of a ring, or a copy of one.
trait List {
    fn element(&self, index: u32) -> Result<Sge, LocalFault>;
}

/// The list behind header `H`.
struct InSlot<'a, H> {
    slot: SlotRef<'a>,
    header: std::marker::PhantomData<H>,
}

impl<'a, H> InSlot<'a, H> {
    fn new(slot: SlotRef<'a>) -> Self {
        InSlot {
            slot,
            header: std::marker::PhantomData,
        }
    }
}

impl<H: Wqe> List for InSlot<'_, H> {
    #[inline]
    fn element(&self, index: u32) -> Result<Sge, LocalFault> {
        self.slot.sge::<H>(index).map_err(|_: Corrupt| LocalFault)
    }
}

impl List for &[Sge] {
    fn element(&self, index: u32) -> Result<Sge, LocalFault> {
        self.get(index as usize).copied().ok_or(LocalFault)
    }
}

/// The pieces of a scatter/gather list that bytes `offset..offset + len` of a message fall on.
struct Pieces<L> {
    list: L,
    next: u32,
    count: u32,
    /// Bytes of the message before what is wanted next.
    skip: u32,
    done: usize,
    len: usize,
}

/// One piece: which part of an element, and which part of the wanted bytes.
struct Piece {
    sge: Sge,
    skip: u32,
    range: Range<usize>,
}

impl<L: List> Pieces<L> {
    fn new(list: L, count: u32, offset: u32, len: usize) -> Self {
        Pieces {
            list,
            next: 0,
            count,
            skip: offset,
            done: 0,
            len,
        }
    }
}

impl<L: List> Iterator for Pieces<L> {
    type Item = Result<Piece, LocalFault>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.done < self.len {
            if self.next == self.count {
                // The list holds less than it did when the message's length was taken.
                self.done = self.len;
                return Some(Err(LocalFault));
            }
            let Ok(sge) = self.list.element(self.next) else {
                self.done = self.len;
                return Some(Err(LocalFault));
            };
            self.next += 1;
            if self.skip >= sge.length {
                self.skip -= sge.length;
                continue;
            }
            let skip = std::mem::take(&mut self.skip);
            let bytes = ((sge.length - skip) as usize).min(self.len - self.done);
            let range = self.done..self.done + bytes;
            self.done += bytes;
            return Some(Ok(Piece { sge, skip, range }));
        }
        None
    }
}

impl Piece {
    fn at(self, pd: PdIndex) -> (Place, Range<usize>) {
        // An address that wraps lies in no region, whose bounds were checked not to wrap.
        let va = self.sge.addr.wrapping_add(u64::from(self.skip));
        (
            Place {
                pd,
                key: self.sge.lkey,
                va,
                qp: OURSELVES,
            },
            self.range,
        )
    }
}
