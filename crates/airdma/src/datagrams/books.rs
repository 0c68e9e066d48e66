//! The books of one datagram endpoint: messages on their way, and records that wait for a reader.

use super::Datagrams;
use super::reads::Reads;
use crate::Region;
use crate::error::Cause;
use crate::work::{Buffer, SEND_DEPTH, keep};
use crate::{Blame, Error};
use airdma_engine::{
    Completion, CompletionOpcode, Datagram, DatagramRead, Operation as Verb, Qp, RecordHandle,
    Rkey, SendFlags, SendWr, Status,
};
use std::collections::VecDeque;
use std::task::Waker;

type Outcome = std::result::Result<(), Cause>;

/// A message, from its start until its result is fetched.
struct Slot {
    to: Datagram,
    verb: Verb,
    buffer: Buffer,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Whether its operation was dropped.
    abandoned: bool,
}

/// A caller that waits for a record.
struct Reader {
    ticket: u64,
    waker: Option<Waker>,
}

/// What is done after the lock of the books is released.
#[derive(Default)]
pub(super) struct Aftermath {
    pub(super) wakers: Vec<Waker>,
    pub(super) regions: Vec<Region>,
    /// Records to free.
    pub(super) records: Vec<RecordHandle>,
    /// Keys and addresses of reads to end.
    pub(super) closes: Vec<(Rkey, u64)>,
}

impl Aftermath {
    pub(super) fn settle(self, datagrams: &Datagrams) {
        for handle in self.records {
            datagrams.free(handle);
        }
        for (key, va) in self.closes {
            // Fails only after the end of the queue pair, which ends all.
            drop(datagrams.qp.close_record(key, va));
        }
        for waker in self.wakers {
            waker.wake();
        }
    }
}

pub(super) struct Books {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Messages that are not posted yet, the oldest first.
    queued: VecDeque<usize>,
    posted: u32,
    /// Records that were not fetched, the oldest first; the target's table bounds them.
    records: VecDeque<RecordHandle>,
    /// The n-th gets the n-th record.
    readers: VecDeque<Reader>,
    last_ticket: u64,
    pub(super) reads: Reads,
    /// Why the endpoint has ended.
    failure: Option<Cause>,
}

impl Books {
    /// Those of an endpoint whose table holds `open_max` messages.
    pub(super) fn new(open_max: u32) -> Books {
        Books {
            slots: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            posted: 0,
            records: VecDeque::new(),
            readers: VecDeque::new(),
            last_ticket: 0,
            reads: Reads::new(open_max),
            failure: None,
        }
    }

    /// Whether there are messages or reads that the queue pair has no room for.
    pub(super) fn overflows(&self) -> bool {
        !self.queued.is_empty() || self.reads.overflows()
    }

    /// Whether a task waits for completions.
    pub(super) fn is_watched(&self) -> bool {
        let mut wakers = self.slots.iter().flatten().map(|slot| &slot.waker);
        let mut readers = self.readers.iter().map(|reader| &reader.waker);
        self.overflows()
            || wakers.any(Option::is_some)
            || readers.any(Option::is_some)
            || self.reads.is_watched()
    }

    /// Adds a read of a peer's memory, which [`Books::post`] begins; returns its number.
    pub(super) fn read(&mut self, wanted: DatagramRead, buffer: Buffer) -> u64 {
        self.reads.enter(wanted, buffer, self.failure.clone())
    }

    /// Adds a message, which [`Books::post`] posts; returns its number.
    pub(super) fn write(&mut self, to: Datagram, verb: Verb, buffer: Buffer) -> usize {
        let slot = Slot {
            to,
            verb,
            buffer,
            outcome: self.failure.clone().map(Err),
            waker: None,
            abandoned: false,
        };
        let is_alive = slot.outcome.is_none();
        let number = self.free.pop().unwrap_or(self.slots.len());
        if number == self.slots.len() {
            self.slots.push(Some(slot));
        } else {
            self.slots[number] = Some(slot);
        }
        if is_alive {
            self.queued.push_back(number);
        }
        number
    }

    /// The result of a message; if there is none yet, keeps `waker`.
    pub(super) fn written(
        &mut self,
        number: usize,
        waker: Option<&Waker>,
    ) -> Option<(Outcome, Region)> {
        let slot = self.slots[number].as_mut()?;
        let Some(outcome) = slot.outcome.take() else {
            keep(&mut slot.waker, waker);
            return None;
        };
        // The number is kept until the operation is dropped.
        let slot = self.slots[number].take()?;
        Some((outcome, slot.buffer.region))
    }

    /// Drops the operation of a message: posted memory is kept until it completes; an unposted
    /// message is not sent.
    pub(super) fn abandon(&mut self, number: usize, after: &mut Aftermath) {
        let Some(slot) = self.slots[number].as_mut() else {
            self.free.push(number);
            return;
        };
        slot.abandoned = true;
        slot.waker = None;
        let at = self.queued.iter().position(|&queued| queued == number);
        if let Some(at) = at {
            self.queued.remove(at);
        } else if slot.outcome.is_none() {
            return;
        }
        self.release(number, after);
    }

    fn release(&mut self, number: usize, after: &mut Aftermath) {
        if let Some(slot) = self.slots[number].take() {
            self.free.push(number);
            after.regions.push(slot.buffer.region);
        }
    }

    /// Adds a reader; returns its ticket.
    pub(super) fn enter_reader(&mut self) -> u64 {
        self.last_ticket += 1;
        self.readers.push_back(Reader {
            ticket: self.last_ticket,
            waker: None,
        });
        self.last_ticket
    }

    /// The record of a reader; if there is none yet, keeps `waker`.
    pub(super) fn record(
        &mut self,
        ticket: u64,
        waker: Option<&Waker>,
    ) -> Option<std::result::Result<RecordHandle, Cause>> {
        let at = self.reader(ticket)?;
        if let Some(handle) = self.records.remove(at) {
            self.readers.remove(at);
            return Some(Ok(handle));
        }
        if let Some(cause) = &self.failure {
            return Some(Err(cause.clone()));
        }
        keep(&mut self.readers[at].waker, waker);
        None
    }

    /// Removes a reader. If its record came, the next reader gets it: none is lost.
    pub(super) fn leave(&mut self, ticket: u64, after: &mut Aftermath) {
        if let Some(at) = self.reader(ticket) {
            self.readers.remove(at);
            self.wake_readers(after);
        }
    }

    fn reader(&self, ticket: u64) -> Option<usize> {
        let mut readers = self.readers.iter();
        readers.position(|reader| reader.ticket == ticket)
    }

    fn wake_readers(&mut self, after: &mut Aftermath) {
        let ready = match self.failure {
            Some(_) => self.readers.len(),
            None => self.records.len(),
        };
        let ready = self.readers.iter_mut().take(ready);
        after
            .wakers
            .extend(ready.filter_map(|reader| reader.waker.take()));
    }

    /// Posts what the queue pair has room for.
    pub(super) fn post(&mut self, qp: &Qp, after: &mut Aftermath) {
        self.reads.begin(qp, after);
        while self.posted < SEND_DEPTH
            && let Some(number) = self.queued.pop_front()
        {
            let Some(slot) = self.slots[number].as_mut() else {
                continue;
            };
            let posted = qp.post_send(&SendWr {
                wr_id: number as u64,
                operation: slot.verb,
                sges: &[slot.buffer.element()],
                flags: SendFlags::SIGNALLED,
                datagram: Some(slot.to),
                srqn: 0,
            });
            match posted {
                Ok(()) => self.posted += 1,
                // The next one may have another length, or target.
                Err(error) => {
                    let error = Error::from(error);
                    slot.outcome = Some(Err(Cause::new(error.blame(), error.to_string())));
                    after.wakers.extend(slot.waker.take());
                }
            }
        }
    }

    /// Handles a completion.
    pub(super) fn completed(&mut self, completion: &Completion, qp: &Qp, after: &mut Aftermath) {
        if completion.opcode == CompletionOpcode::ReceiveRecord {
            let handle = RecordHandle(completion.wr_id);
            if self.reads.ended(handle, qp, self.failure.as_ref(), after) {
                return;
            }
            if self.failure.is_some() {
                after.records.push(handle);
                return;
            }
            self.records.push_back(handle);
            return self.wake_readers(after);
        }
        let number = completion.wr_id as usize;
        let Some(Some(slot)) = self.slots.get_mut(number) else {
            return;
        };
        self.posted -= 1;
        slot.outcome = Some(if completion.status == Status::Success {
            Ok(())
        } else {
            let failure = self.failure.clone();
            Err(failure.unwrap_or_else(|| cause_of(completion.status)))
        });
        after.wakers.extend(slot.waker.take());
        if slot.abandoned {
            self.release(number, after);
        }
    }

    /// Ends the endpoint: unposted messages fail at once, posted ones when they complete.
    pub(super) fn fail(&mut self, cause: Cause, after: &mut Aftermath) {
        let cause = self.failure.get_or_insert(cause).clone();
        for number in std::mem::take(&mut self.queued) {
            if let Some(slot) = &mut self.slots[number] {
                slot.outcome = Some(Err(cause.clone()));
                after.wakers.extend(slot.waker.take());
            }
        }
        self.reads.fail(&cause, after);
        after.records.extend(std::mem::take(&mut self.records));
        self.wake_readers(after);
    }
}

fn cause_of(status: Status) -> Cause {
    Cause::new(
        Blame::System,
        format!("the device could not send it ({status:?}): this is a mistake in airdma"),
    )
}
