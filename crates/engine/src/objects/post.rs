//! Posting: work requests are checked, written into the ring, and announced.
//!
//! A thread that posts runs the worker itself when the queue pair has no packet in flight: the
//! request leaves at once. Otherwise the request waits in the ring, where others join it, for the
//! thread that receives the answer to what is in flight; so small messages are sent in batches. A
//! datagram is not answered: the first one after a poll leaves at once, and the others wait for the
//! next poll; if the application does not poll, each leaves at once. The same holds for requests of
//! several queue pairs with nothing in flight, unless their program asked for an event and is no
//! event loop ([`crate::queues::gathering`]): with thousands of queue pairs each request would
//! otherwise be a batch of its own.

use crate::objects::multicast::NO_SEALED_GROUP;
use crate::objects::pd::check_posted_path;
use crate::queues::send_wqe::encode;
use crate::queues::work_request::Payload;
use crate::worker::Work;
use crate::{
    Datagram, Error, LIMITS, Operation, Qp, QpState, QpType, RecvWr, SendFlags, SendWr, Sge,
};
use airdma_shm::{RecvWqe, RingProducer, SendWqe, SlotMut};
use airdma_transport::{Extent, WORD_LEN};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A list of send work requests being posted; the queue is locked for other threads meanwhile.
/// Dropping it hands the worker what was pushed, all at once.
pub struct SendPost<'a> {
    qp: &'a Qp,
    ring: Option<MutexGuard<'a, RingProducer>>,
    /// Requests written into the ring and not yet published.
    staged: u32,
}

impl<'a> SendPost<'a> {
    pub(crate) fn new(qp: &'a Qp) -> Self {
        SendPost {
            qp,
            // In a child after fork the lock may never be released.
            ring: qp.core().seems_ours().then(|| lock(&qp.shared.send)),
            staged: 0,
        }
    }

    /// Adds a work request.
    ///
    /// # Errors
    /// `EINVAL`: too many elements or inline bytes, an operation the transport does not have, a
    /// message above the limit, a destination that [`crate::Pd::create_ah`] would refuse, or a
    /// state in which nothing can be sent; `ENOMEM`: the queue is full; `ENODEV` in a child after
    /// fork. What was pushed before stays posted.
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), Error> {
        let payload = Payload::of(wr);
        check_request(self.qp, wr, &payload)?;
        let mut slot = self.slot()?;
        let mut header = SendWqe::default();
        encode(wr, &payload, &mut header);
        slot.write_header(&header);
        if payload.inline {
            let mut offset = 0;
            for sge in wr.sges {
                // SAFETY: `length` bytes at `addr` are readable: the caller of an inline send
                // vouches for its buffers as for any pointer it passes (`ibv_post_send(3)`), and a
                // length of zero is not looked at.
                let data = unsafe { bytes_of(sge) };
                slot.write_inline::<SendWqe>(offset, data);
                offset += sge.length;
            }
        } else {
            for (index, sge) in wr.sges.iter().enumerate() {
                slot.write_sge::<SendWqe>(index as u32, sge);
            }
        }
        self.staged += 1;
        Ok(())
    }

    /// The queue pair.
    pub(crate) fn qp(&self) -> &'a Qp {
        self.qp
    }

    /// The slot of the next request.
    pub(crate) fn slot(&mut self) -> Result<SlotMut<'_>, Error> {
        let staged = self.staged;
        let ring = self.ring.as_mut().ok_or(Error::Forked)?;
        ring.slot(staged).ok_or(Error::NoMemory(
            "the send queue is full: poll its completion queue",
        ))
    }

    /// Completes the request in that slot: its payload is there, this is the rest.
    pub(crate) fn finish(&mut self, wr: &SendWr<'_>, payload: &Payload) -> Result<(), Error> {
        check_request(self.qp, wr, payload)?;
        let mut header = SendWqe::default();
        encode(wr, payload, &mut header);
        self.slot()?.write_header(&header);
        self.staged += 1;
        Ok(())
    }

    /// Forgets what was pushed.
    pub(crate) fn abort(&mut self) {
        self.staged = 0;
    }
}

impl Drop for SendPost<'_> {
    fn drop(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.publish(self.staged);
        }
        // Unlocked before the worker runs: it may take long, and others may post meanwhile.
        self.ring = None;
        if self.staged == 0 {
            return;
        }
        let (core, shared) = (self.qp.core(), &self.qp.shared);
        core.doorbells.ring(shared.doorbell().get());
        let is_urgent = match shared.qp_type {
            QpType::Rc | QpType::XrcSend => {
                let awaits_event = self.qp.awaits_event();
                let comes_back = || core.gathering.keeps(|| core.now());
                let may_sleep = || core.has_sleepers() || awaits_event && !comes_back();
                let turns = core.gathering.turns(awaits_event, &core.polls);
                let is_urgent = shared.urgency.of_request(&core.posted_at, turns, may_sleep);
                if is_urgent {
                    core.gathering.note_leaving(|| core.now());
                }
                is_urgent
            }
            QpType::Ud | QpType::Uc | QpType::XrcReceive | QpType::RawPacket => shared
                .urgency
                .of_datagram(&core.polls, || core.has_sleepers()),
        };
        if is_urgent {
            core.try_progress(Work::Transmit);
        }
    }
}

/// A list of receive work requests being posted.
pub struct RecvPost<'a> {
    qp: &'a Qp,
    ring: Option<MutexGuard<'a, RingProducer>>,
    pushed: bool,
}

impl<'a> RecvPost<'a> {
    pub(crate) fn new(qp: &'a Qp) -> Self {
        RecvPost {
            qp,
            ring: qp.core().seems_ours().then(|| lock(&qp.shared.recv)),
            pushed: false,
        }
    }

    /// Adds a work request.
    ///
    /// # Errors
    /// `EINVAL`: too many elements, or state RESET; `ENOMEM`: the queue is full; `ENODEV` in a
    /// child after fork.
    pub fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        let shared = &self.qp.shared;
        if !self.qp.has_receive_queue() {
            return Err(Error::Invalid(
                "the queue pair has no receive queue of its own: receives are posted to the shared one",
            ));
        }
        match shared.state.get() {
            None | Some(QpState::Reset) => {
                return Err(Error::Invalid("receives are posted from state INIT on"));
            }
            Some(
                QpState::Init
                | QpState::ReadyToReceive
                | QpState::ReadyToSend
                | QpState::SendQueueDrain
                | QpState::SendQueueError
                | QpState::Error,
            ) => {}
        }
        if wr.sges.len() > shared.caps.max_recv_sge as usize {
            return Err(Error::Invalid(
                "more elements than the queue pair's max_recv_sge",
            ));
        }
        if shared.caps.max_recv_wr == 0 {
            return Err(Error::NoMemory(
                "the queue pair was created without a receive queue",
            ));
        }
        let ring = self.ring.as_mut().ok_or(Error::Forked)?;
        let Some(slot) = ring.slot(0) else {
            return Err(Error::NoMemory(
                "the receive queue is full: poll its completion queue",
            ));
        };
        write_receive(slot, wr);
        ring.publish(1);
        self.pushed = true;
        Ok(())
    }
}

impl Drop for RecvPost<'_> {
    fn drop(&mut self) {
        self.ring = None;
        if !self.pushed {
            return;
        }
        let shared = &self.qp.shared;
        if shared.is_at_daemon || shared.state.is_error_after_post() {
            let core = self.qp.core();
            core.doorbells.ring(shared.doorbell().get());
            core.try_progress(Work::Transmit);
        }
    }
}

/// Writes a receive, whose elements fit.
pub(crate) fn write_receive(mut slot: SlotMut<'_>, wr: &RecvWr<'_>) {
    slot.write_header(&RecvWqe {
        wr_id: wr.wr_id,
        sge_count: wr.sges.len() as u32,
        pad: 0,
    });
    for (index, sge) in wr.sges.iter().enumerate() {
        slot.write_sge::<RecvWqe>(index as u32, sge);
    }
}

fn lock(ring: &Mutex<RingProducer>) -> MutexGuard<'_, RingProducer> {
    // A slot that was being written when a thread panicked is not published.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_request(qp: &Qp, wr: &SendWr<'_>, payload: &Payload) -> Result<(), Error> {
    check_send_state(qp)?;
    check_operation(qp, wr)?;
    check_payload(qp, &wr.operation, payload)
}

/// `ibv_post_send` in RESET, INIT and RTR is an immediate error (IBTA 10.8.2); in the error states
/// requests are flushed.
fn check_send_state(qp: &Qp) -> Result<(), Error> {
    match qp.shared.state.get() {
        Some(
            QpState::ReadyToSend
            | QpState::SendQueueDrain
            | QpState::SendQueueError
            | QpState::Error,
        ) => Ok(()),
        None | Some(QpState::Reset | QpState::Init | QpState::ReadyToReceive) => {
            Err(Error::Invalid("requests are posted from state RTS on"))
        }
    }
}

fn check_operation(qp: &Qp, wr: &SendWr<'_>) -> Result<(), Error> {
    match (qp.shared.qp_type, &wr.datagram) {
        (QpType::Rc | QpType::XrcSend, None) if !wr.operation.is_record() => {}
        (QpType::Rc | QpType::XrcSend, None) => {
            return Err(Error::Invalid("connections do not send records"));
        }
        (QpType::Uc, None) if wr.operation.is_of_service(QpType::Uc) => {}
        (QpType::Uc, None) => {
            return Err(Error::Invalid(
                "an unreliable connection can send, write, and bind windows",
            ));
        }
        (QpType::XrcReceive, _) => {
            return Err(Error::Invalid(
                "the target of an extended connection has no send queue",
            ));
        }
        (QpType::Rc | QpType::Uc | QpType::XrcSend, Some(_)) => {
            return Err(Error::Invalid(
                "a connected queue pair takes no address handle",
            ));
        }
        (QpType::Ud, Some(Datagram { path, .. })) if wr.operation.is_of_service(QpType::Ud) => {
            check_posted_path(qp.core(), path)?;
            let is_group = path.gid.to_ip().is_multicast();
            if qp.shared.seals_datagrams && is_group {
                return Err(NO_SEALED_GROUP);
            }
            if wr.flags.contains(SendFlags::RELIABLE) {
                check_reliable(qp, is_group)?;
            }
        }
        (QpType::RawPacket, None) if wr.operation.is_of_service(QpType::RawPacket) => {}
        (QpType::RawPacket, _) => {
            return Err(Error::Invalid(
                "a queue pair for raw packets can send frames, and nothing else",
            ));
        }
        (QpType::Ud, Some(_)) => return Err(Error::Invalid("a datagram queue pair can only send")),
        (QpType::Ud, None) => return Err(Error::Invalid("a datagram needs an address handle")),
    }
    if wr.flags.contains(SendFlags::RELIABLE) && qp.shared.qp_type != QpType::Ud {
        return Err(Error::Invalid("only datagrams are repeated on request"));
    }
    if wr.flags.contains(SendFlags::INLINE) && wr.operation.lands() {
        return Err(Error::Invalid("READ and atomics cannot be inline"));
    }
    Ok(())
}

fn check_reliable(qp: &Qp, is_group: bool) -> Result<(), Error> {
    if !qp.shared.is_reliable.load(Ordering::Relaxed) {
        return Err(Error::Invalid(
            "the queue pair repeats no datagrams: airdma_rd_enable lets it",
        ));
    }
    if is_group {
        return Err(Error::Invalid("datagrams to a group are not repeated"));
    }
    Ok(())
}

/// The message against the limits of the queue pair.
fn check_payload(qp: &Qp, operation: &Operation, payload: &Payload) -> Result<(), Error> {
    let caps = &qp.shared.caps;
    if caps.max_send_wr == 0 {
        return Err(Error::NoMemory(
            "the queue pair was created without a send queue",
        ));
    }
    let bytes = payload.bytes;
    if payload.inline {
        // However many pieces: they are copied together now.
        if bytes > u64::from(caps.max_inline) {
            return Err(Error::Invalid(
                "more inline data than the queue pair's max_inline",
            ));
        }
    } else if payload.elements > caps.max_send_sge as usize {
        return Err(Error::Invalid(
            "more elements than the queue pair's max_send_sge",
        ));
    }
    if bytes < u64::from(WORD_LEN) && operation.extent() == Extent::Word {
        return Err(Error::Invalid("an atomic needs 8 bytes for its result"));
    }
    if bytes > u64::from(LIMITS.max_message) {
        return Err(Error::Invalid("the message is longer than max_message"));
    }
    Ok(())
}

/// The memory an inline element names.
///
/// # Safety
/// Unless the length is zero, that many bytes at the address are readable and do not change while
/// the slice lives.
unsafe fn bytes_of(sge: &Sge) -> &[u8] {
    if sge.length == 0 {
        return &[];
    }
    let address = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(address, sge.length as usize) }
}
