//! The books of one connection: requested operations, which of them are posted, and their results.
//!
//! The queue pair's queues are bounded. Further requests wait here, in order and with their memory:
//! a program without free regions cannot request more, which is the back-pressure.

use crate::error::Cause;
use crate::hub::watch;
use crate::{Blame, Error, Message, Region, Result};
use airdma_engine::{
    Completion, Operation as Verb, Qp, RecvWr, Rkey, SendFlags, SendWr, Sge, Status,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::task::Waker;

/// Most posted requests.
pub(crate) const SEND_DEPTH: u32 = 128;
/// Most posted receives.
pub(crate) const RECEIVE_DEPTH: u32 = 128;
/// Flag of the work request ids of receives.
const RECEIVE: u64 = 1 << 63;
/// Length of the word that receives an atomic's result.
const WORD: usize = 8;

/// A request to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Send,
    Write {
        va: u64,
        key: Rkey,
    },
    Read {
        va: u64,
        key: Rkey,
    },
    FetchAdd {
        va: u64,
        key: Rkey,
        add: u64,
    },
    CompareSwap {
        va: u64,
        key: Rkey,
        compare: u64,
        swap: u64,
    },
    /// An empty WRITE, which a living peer acknowledges.
    SignOfLife,
}

/// A part of a region, owned by an operation.
pub(crate) struct Buffer {
    pub(crate) region: Region,
    pub(crate) range: Range<usize>,
}

impl Buffer {
    pub(crate) fn element(&self) -> Sge {
        self.region.element(&self.range)
    }
}

/// A request, from its start until its result is fetched.
struct Slot {
    request: Request,
    buffer: Option<Buffer>,
    /// Index of the word for an atomic's result, while posted.
    word: Option<usize>,
    /// Result of an atomic, 0 for others.
    outcome: Option<std::result::Result<u64, Cause>>,
    waker: Option<Waker>,
    /// Whether its operation was dropped.
    abandoned: bool,
}

/// A caller that waits for a message.
struct Reader {
    ticket: u64,
    waker: Option<Waker>,
}

/// Wakers to call, and memory to drop, after the lock of the books is released.
#[derive(Default)]
pub(crate) struct Aftermath {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) dropped: Vec<Region>,
}

impl Aftermath {
    pub(crate) fn settle(self) {
        for waker in self.wakers {
            waker.wake();
        }
    }
}

pub(crate) struct Work {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Requests that are not posted yet, the oldest first.
    queued: VecDeque<usize>,
    posted: u32,
    /// Words for results of atomics, and which of them are free.
    words: Region,
    words_free: Vec<usize>,
    /// Posted receives, the oldest first: the order in which they are used.
    receives: VecDeque<Buffer>,
    receives_queued: VecDeque<Buffer>,
    /// Messages that have arrived and were not fetched.
    messages: VecDeque<Message>,
    /// Regions of receives that will not be used.
    returned: VecDeque<Region>,
    /// Waiting readers; the n-th gets the n-th message.
    readers: VecDeque<Reader>,
    last_ticket: u64,
    /// Tasks that wait for a WRITE of the peer.
    write_watchers: Vec<Waker>,
    /// Tasks that wait for one, or for a completion.
    activity_watchers: Vec<Waker>,
    /// Number of completions.
    completions: u64,
    /// Why the connection has ended.
    pub(crate) failure: Option<Cause>,
}

impl Work {
    /// Bytes of `words`.
    pub(crate) const WORDS_BYTES: usize = SEND_DEPTH as usize * WORD;

    pub(crate) fn new(words: Region) -> Work {
        Work {
            slots: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            posted: 0,
            words,
            words_free: (0..SEND_DEPTH as usize).collect(),
            receives: VecDeque::new(),
            receives_queued: VecDeque::new(),
            messages: VecDeque::new(),
            returned: VecDeque::new(),
            readers: VecDeque::new(),
            last_ticket: 0,
            write_watchers: Vec::new(),
            activity_watchers: Vec::new(),
            completions: 0,
            failure: None,
        }
    }

    /// Whether there are requests that the queue pair has no room for.
    pub(crate) fn overflows(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Whether a task waits for completions.
    pub(crate) fn is_watched(&self) -> bool {
        let slots = self.slots.iter().flatten();
        let mut wakers = slots.map(|slot| &slot.waker);
        let mut readers = self.readers.iter().map(|reader| &reader.waker);
        self.overflows()
            || self.awaits_writes()
            || wakers.any(Option::is_some)
            || readers.any(Option::is_some)
    }

    /// Whether nothing is in flight to the peer.
    pub(crate) fn is_idle(&self) -> bool {
        self.posted == 0 && self.queued.is_empty()
    }

    /// Whether a caller waits for a peer that owes no acknowledgement, so that its death would go
    /// unnoticed.
    pub(crate) fn only_listens(&self) -> bool {
        self.is_idle() && (self.awaits_writes() || self.readers.len() > self.messages.len())
    }

    /// Whether a task waits for a WRITE of the peer.
    pub(crate) fn awaits_writes(&self) -> bool {
        !self.write_watchers.is_empty() || !self.activity_watchers.is_empty()
    }

    /// Number of placed WRITEs, if it is not `seen`; else keeps `waker`.
    pub(crate) fn writes_beyond(
        &mut self,
        qp: &Qp,
        seen: u64,
        waker: Option<&Waker>,
    ) -> Option<Result<u64>> {
        await_writes(qp, &mut self.write_watchers, waker);
        self.beyond(qp.writes_placed(), seen)
    }

    /// Number of placed WRITEs and of completions.
    pub(crate) fn activity(&self, qp: &Qp) -> u64 {
        qp.writes_placed().wrapping_add(self.completions)
    }

    /// That number, if it is not `seen`; else keeps `waker`.
    pub(crate) fn activity_beyond(
        &mut self,
        qp: &Qp,
        seen: u64,
        waker: Option<&Waker>,
    ) -> Option<Result<u64>> {
        await_writes(qp, &mut self.activity_watchers, waker);
        self.beyond(self.activity(qp), seen)
    }

    /// A count that was taken after a waker was kept, if it is not `seen`.
    fn beyond(&self, count: u64, seen: u64) -> Option<Result<u64>> {
        if count != seen {
            return Some(Ok(count));
        }
        self.failure.clone().map(|cause| Err(cause.into()))
    }

    /// Wakes tasks that wait for a WRITE: one may be placed.
    pub(crate) fn wake_write_watchers(&mut self, qp: &Qp, after: &mut Aftermath) {
        if self.awaits_writes() {
            qp.await_writes(false);
            after.wakers.append(&mut self.write_watchers);
            after.wakers.append(&mut self.activity_watchers);
        }
    }

    /// Adds a request, which [`Work::post`] posts; returns its number.
    pub(crate) fn request(&mut self, request: Request, buffer: Option<Buffer>) -> usize {
        let slot = Slot {
            request,
            buffer,
            word: None,
            outcome: self.failure.clone().map(Err),
            waker: None,
            abandoned: matches!(request, Request::SignOfLife),
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

    /// The result of a request; if there is none yet, keeps `waker`.
    pub(crate) fn result(
        &mut self,
        number: usize,
        waker: Option<&Waker>,
    ) -> Option<(std::result::Result<u64, Cause>, Option<Region>)> {
        let slot = self.slots[number].as_mut()?;
        let Some(outcome) = slot.outcome.take() else {
            keep(&mut slot.waker, waker);
            return None;
        };
        let region = self.release(number);
        Some((outcome, region))
    }

    /// Drops the operation of a request: posted memory is kept until it completes; an unposted
    /// request is not sent.
    pub(crate) fn abandon(&mut self, number: usize, after: &mut Aftermath) {
        let Some(slot) = self.slots[number].as_mut() else {
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
        after.dropped.extend(self.release(number));
    }

    fn release(&mut self, number: usize) -> Option<Region> {
        let slot = self.slots[number].take()?;
        self.free.push(number);
        slot.buffer.map(|buffer| buffer.region)
    }

    /// Adds a region to receive into, and a reader; returns the reader's ticket.
    pub(crate) fn receive(&mut self, buffer: Buffer) -> u64 {
        if self.failure.is_some() {
            self.returned.push_back(buffer.region);
        } else {
            self.receives_queued.push_back(buffer);
        }
        self.last_ticket += 1;
        self.readers.push_back(Reader {
            ticket: self.last_ticket,
            waker: None,
        });
        self.last_ticket
    }

    /// The message of a reader; if there is none yet, keeps `waker`.
    pub(crate) fn message(
        &mut self,
        ticket: u64,
        waker: Option<&Waker>,
    ) -> Option<Result<Message>> {
        let at = self.reader(ticket)?;
        if let Some(message) = self.messages.remove(at) {
            self.readers.remove(at);
            return Some(Ok(message));
        }
        match &self.failure {
            Some(cause) if self.receives.is_empty() => {
                let error = Error::from(cause.clone());
                self.readers.remove(at);
                let region = self.returned.pop_front();
                Some(Err(match region {
                    Some(region) => error.with(region),
                    None => error,
                }))
            }
            Some(_) | None => {
                keep(&mut self.readers[at].waker, waker);
                None
            }
        }
    }

    /// Removes a reader. If its message came, the next reader gets it: none is lost.
    pub(crate) fn leave(&mut self, ticket: u64, after: &mut Aftermath) {
        if let Some(at) = self.reader(ticket) {
            self.readers.remove(at);
            self.wake_readers(after);
        }
    }

    fn reader(&self, ticket: u64) -> Option<usize> {
        self.readers
            .iter()
            .position(|reader| reader.ticket == ticket)
    }

    fn wake_readers(&mut self, after: &mut Aftermath) {
        let ready = match &self.failure {
            Some(_) if self.receives.is_empty() => self.readers.len(),
            Some(_) | None => self.messages.len(),
        };
        let ready = self.readers.iter_mut().take(ready);
        after
            .wakers
            .extend(ready.filter_map(|reader| reader.waker.take()));
    }

    /// Posts what the queue pair has room for.
    pub(crate) fn post(&mut self, qp: &Qp, after: &mut Aftermath) {
        while self.receives.len() < RECEIVE_DEPTH as usize
            && let Some(buffer) = self.receives_queued.pop_front()
        {
            let posted = qp.post_recv(&RecvWr {
                wr_id: RECEIVE,
                sges: &[buffer.element()],
            });
            match posted {
                Ok(()) => self.receives.push_back(buffer),
                Err(error) => {
                    self.returned.push_back(buffer.region);
                    return self.fail(refused(&error), after);
                }
            }
        }
        while self.posted < SEND_DEPTH
            && let Some(number) = self.queued.pop_front()
        {
            if let Err(error) = self.post_one(qp, number) {
                self.queued.push_front(number);
                return self.fail(refused(&error), after);
            }
        }
    }

    fn post_one(
        &mut self,
        qp: &Qp,
        number: usize,
    ) -> std::result::Result<(), airdma_engine::Error> {
        let Some(slot) = self.slots[number].as_mut() else {
            return Ok(());
        };
        let (operation, has_answer) = match slot.request {
            Request::Send => (Verb::Send, false),
            Request::Write { va, key: rkey } => (Verb::Write { va, rkey }, false),
            Request::Read { va, key: rkey } => (Verb::Read { va, rkey }, false),
            Request::FetchAdd { va, key: rkey, add } => (Verb::FetchAdd { va, rkey, add }, true),
            Request::CompareSwap {
                va,
                key: rkey,
                compare,
                swap,
            } => (
                Verb::CompareSwap {
                    va,
                    rkey,
                    compare,
                    swap,
                },
                true,
            ),
            Request::SignOfLife => (
                Verb::Write {
                    va: 0,
                    rkey: Rkey(0),
                },
                false,
            ),
        };
        if has_answer {
            // There are as many words as requests that can be posted.
            slot.word = self.words_free.pop();
        }
        let word = slot
            .word
            .map(|word| self.words.element(&bytes_of_word(word)));
        let element = slot.buffer.as_ref().map(Buffer::element).or(word);
        // Messages wake a peer that wants to be woken by nothing else.
        let is_message = matches!(
            operation,
            Verb::Send | Verb::SendImm(_) | Verb::SendInvalidate(_) | Verb::WriteImm { .. }
        );
        let mut flags = SendFlags::SIGNALLED;
        flags.set(SendFlags::SOLICITED, is_message);
        let wr = SendWr {
            wr_id: number as u64,
            operation,
            sges: element.as_slice(),
            flags,
            datagram: None,
            srqn: 0,
        };
        let posted = qp.post_send(&wr);
        if posted.is_ok() {
            self.posted += 1;
        } else {
            self.words_free.extend(slot.word.take());
        }
        posted
    }

    /// Handles a completion.
    pub(crate) fn completed(&mut self, completion: &Completion, after: &mut Aftermath) {
        self.completions = self.completions.wrapping_add(1);
        after.wakers.append(&mut self.activity_watchers);
        if completion.wr_id & RECEIVE != 0 {
            self.received(completion, after);
        } else {
            self.transferred(completion, after);
        }
    }

    fn received(&mut self, completion: &Completion, after: &mut Aftermath) {
        let Some(buffer) = self.receives.pop_front() else {
            return;
        };
        if completion.status == Status::Success {
            let start = buffer.range.start;
            let range = start..start + completion.byte_len as usize;
            self.messages.push_back(Message::new(buffer.region, range));
        } else {
            let cause = cause_of_receive(completion.status, buffer.range.len());
            self.returned.push_back(buffer.region);
            self.fail(cause, after);
        }
        self.wake_readers(after);
    }

    fn transferred(&mut self, completion: &Completion, after: &mut Aftermath) {
        let number = completion.wr_id as usize;
        let Some(Some(slot)) = self.slots.get_mut(number) else {
            return;
        };
        self.posted -= 1;
        let mut value = 0;
        if let Some(word) = slot.word.take() {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(&self.words[bytes_of_word(word)]);
            value = u64::from_ne_bytes(bytes);
            self.words_free.push(word);
        }
        let request = slot.request;
        let waker = slot.waker.take();
        let abandoned = slot.abandoned;
        let outcome = if completion.status == Status::Success {
            Ok(value)
        } else {
            self.fail(cause_of(completion.status, request), after);
            // The first failure is the reason for all that follow.
            let cause = self.failure.clone();
            cause.map_or(Ok(value), Err)
        };
        if let Some(slot) = &mut self.slots[number] {
            slot.outcome = Some(outcome);
        }
        after.wakers.extend(waker);
        if abandoned {
            after.dropped.extend(self.release(number));
        }
    }

    /// Ends the connection: unposted requests fail at once, posted ones when they complete.
    pub(crate) fn fail(&mut self, cause: Cause, after: &mut Aftermath) {
        let cause = self.failure.get_or_insert(cause).clone();
        for number in std::mem::take(&mut self.queued) {
            if let Some(slot) = &mut self.slots[number] {
                slot.outcome = Some(Err(cause.clone()));
                after.wakers.extend(slot.waker.take());
            }
            if matches!(&self.slots[number], Some(slot) if slot.abandoned) {
                after.dropped.extend(self.release(number));
            }
        }
        let queued = std::mem::take(&mut self.receives_queued);
        self.returned
            .extend(queued.into_iter().map(|buffer| buffer.region));
        self.wake_readers(after);
        after.wakers.append(&mut self.write_watchers);
        after.wakers.append(&mut self.activity_watchers);
    }
}

fn bytes_of_word(word: usize) -> Range<usize> {
    word * WORD..(word + 1) * WORD
}

pub(crate) fn keep(kept: &mut Option<Waker>, waker: Option<&Waker>) {
    if let Some(waker) = waker {
        match kept {
            Some(kept) => kept.clone_from(waker),
            None => *kept = Some(waker.clone()),
        }
    }
}

fn refused(error: &airdma_engine::Error) -> Cause {
    Cause::new(
        Blame::System,
        format!("the queue pair took no request: {error}"),
    )
}

/// The cause of a failed request.
fn cause_of(status: Status, request: Request) -> Cause {
    match status {
        Status::RetryExceeded => Cause::new(
            Blame::Network,
            "the peer does not answer: it was repeated for some seconds; is the peer's host up, and the network?",
        ),
        Status::RnrRetryExceeded => Cause::new(
            Blame::Peer,
            "the peer had no region to receive into: it is to call `recv` in time",
        ),
        Status::RemoteAccessError => Cause::new(
            Blame::Peer,
            "the peer's region does not allow this: it was withdrawn, is shared with other rights, or is another peer's",
        ),
        Status::RemoteInvalidRequest if matches!(request, Request::Send) => Cause::new(
            Blame::Peer,
            "the peer's region was too small for the message: it is to give `recv` one that holds it",
        ),
        Status::RemoteInvalidRequest | Status::RemoteOperationError | Status::BadResponse => {
            Cause::new(Blame::Peer, "the peer could not do what it was asked for")
        }
        Status::WrFlushError => broken(),
        Status::Success
        | Status::LocalLengthError
        | Status::LocalQpOperationError
        | Status::LocalProtectionError
        | Status::MwBindError => Cause::new(
            Blame::System,
            format!("the device could not do it ({status:?}): this is a mistake in airdma"),
        ),
    }
}

fn cause_of_receive(status: Status, length: usize) -> Cause {
    match status {
        Status::LocalLengthError => Cause::new(
            Blame::You,
            format!(
                "a message is longer than the {length} bytes given to `recv`: agree with the peer on a length; the connection is over"
            ),
        ),
        Status::WrFlushError => broken(),
        Status::Success
        | Status::LocalQpOperationError
        | Status::LocalProtectionError
        | Status::MwBindError
        | Status::BadResponse
        | Status::RemoteInvalidRequest
        | Status::RemoteAccessError
        | Status::RemoteOperationError
        | Status::RetryExceeded
        | Status::RnrRetryExceeded => Cause::new(
            Blame::System,
            format!("the device could not receive ({status:?}): this is a mistake in airdma"),
        ),
    }
}

/// The queue pair failed, but none of our requests did.
fn broken() -> Cause {
    Cause::new(
        Blame::Peer,
        "the connection broke: the peer asked for something that our regions do not allow",
    )
}
/// Keeps the waker, if there is one, for the next WRITE that is placed.
fn await_writes(qp: &Qp, watchers: &mut Vec<Waker>, waker: Option<&Waker>) {
    if waker.is_some() {
        watch(watchers, waker);
        qp.await_writes(true);
    }
}
