//! The end of a lane at which the program receives.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use airdma::{Device, Endpoint, Message, Operation, Region, Result};
use libc::iovec;

use super::words::{self, CONTROL_BYTES, Consumed, HEADER_BYTES, Hello, Note, Welcome};
use super::{BUFFER_BYTES, WINDOW, wait};
use crate::counters::{self, Counter};
use crate::regions::pieces;
use crate::turn::Counted;

/// Receives beyond the window: the peer's first message, and one that breaks the rules.
const SPARE: usize = 2;
/// Regions for messages to the peer.
const CONTROLS: usize = 8;
/// How long a read that has a note waits for its payload, which left before. Repeating a lost
/// packet takes a round trip.
const LATE: Duration = Duration::from_millis(50);
/// How long a payload is kept whose note has not come.
const ORPHANED: Duration = Duration::from_secs(1);

/// A lane from one address. See the module.
pub struct Receiving {
    endpoint: Endpoint,
    lane: u64,
    posted: VecDeque<Operation<Message>>,
    arrived: VecDeque<Arrived>,
    /// Sequence of the next payload.
    next: u64,
    /// Datagrams that the program has read, or never will, and what the peer knows of.
    consumed: Consumed,
    told: Consumed,
    control: VecDeque<Operation<Region>>,
    control_free: Vec<Region>,
    /// The peer or the path is gone.
    failed: bool,
    _counted: Counted,
}

struct Arrived {
    sequence: u64,
    message: Message,
    since: Instant,
}

impl Receiving {
    /// A lane on an accepted endpoint. `lane`: its number in notes.
    pub fn new(device: &Device, endpoint: Endpoint, lane: u64) -> Result<Receiving> {
        let regions = pieces(device, WINDOW + SPARE, BUFFER_BYTES)?;
        Ok(Receiving {
            lane,
            posted: regions
                .into_iter()
                .map(|region| endpoint.recv(region, ..))
                .collect(),
            arrived: VecDeque::new(),
            next: 0,
            consumed: Consumed::default(),
            told: Consumed::default(),
            control: VecDeque::new(),
            control_free: pieces(device, CONTROLS, CONTROL_BYTES)?,
            failed: false,
            _counted: Counted::new(),
            endpoint,
        })
    }

    /// The peer's first message.
    pub async fn hello(&mut self) -> Option<Hello> {
        let message = self.posted.pop_front()?.await.ok()?;
        let hello = Hello::read(&message);
        self.post(message);
        hello
    }

    /// Answers it.
    pub fn welcome(&mut self) {
        let welcome = Welcome {
            lane: self.lane,
            window: WINDOW as u64,
        };
        self.tell(&welcome.bytes());
    }

    /// Counts one.
    pub fn count(&self, counter: Counter) {
        counters::add(&self.endpoint, counter, 1);
    }

    /// Whether it has nothing any more, and gets nothing.
    pub fn is_over(&mut self) -> bool {
        self.drop_orphans();
        self.failed && self.arrived.is_empty()
    }

    fn post(&mut self, message: Message) {
        let receive = self.endpoint.recv(message.into_region(), ..);
        self.posted.push_back(receive);
    }

    fn tell(&mut self, bytes: &[u8]) -> bool {
        while let Some(operation) = self.control.front_mut() {
            match operation.wait_timeout(Duration::ZERO) {
                None => break,
                Some(Ok(region)) => self.control_free.push(region),
                Some(Err(_)) => self.failed = true,
            }
            self.control.pop_front();
        }
        let Some(mut region) = self.control_free.pop() else {
            return false;
        };
        region[..bytes.len()].copy_from_slice(bytes);
        let operation = self.endpoint.send(region, ..bytes.len());
        self.control.push_back(operation);
        true
    }

    /// Takes the next payload, until `deadline`; whether there was one.
    fn take(&mut self, deadline: Instant) -> bool {
        if self.failed {
            return false;
        }
        let Some(message) = self
            .posted
            .front_mut()
            .and_then(|next| wait(next, deadline))
        else {
            return false;
        };
        self.posted.pop_front();
        let is_next = |message: &Message| words::number(message, 0) == Some(self.next);
        match message {
            Ok(message) if is_next(&message) && self.arrived.len() < WINDOW => {
                self.arrived.push_back(Arrived {
                    sequence: self.next,
                    message,
                    since: Instant::now(),
                });
                self.next += 1;
            }
            Ok(_) | Err(_) => self.failed = true,
        }
        !self.failed
    }

    /// The payload of a note, which the program reads into `parts`: copies it, and keeps it with
    /// `peek`. False if it does not come.
    ///
    /// # Safety
    /// The parts are memory of the program.
    pub unsafe fn read(&mut self, note: &Note, parts: &[iovec], peek: bool) -> bool {
        let deadline = Instant::now() + LATE;
        loop {
            // The kernel's queue has the notes in their order: those of earlier payloads are lost.
            while let Some(first) = self.arrived.front()
                && first.sequence < note.sequence
            {
                self.release();
            }
            if let Some(first) = self.arrived.front() {
                let payload = first.message.get(HEADER_BYTES..).unwrap_or_default();
                let is_it =
                    first.sequence == note.sequence && payload.len() == note.length as usize;
                if is_it {
                    // SAFETY: the caller's promise.
                    unsafe { copy(payload, parts) };
                    if !peek {
                        self.consumed.read += 1;
                        self.release();
                        self.account();
                    }
                }
                return is_it;
            }
            if note.sequence < self.next || !self.take(deadline) {
                return false;
            }
        }
    }

    /// Gives up payloads whose notes have not come for long: called when the program has read a
    /// datagram that went by the kernel, perhaps for want of room.
    pub fn drop_orphans(&mut self) {
        while self.take(Instant::now()) {}
        let is_old = |arrived: &Arrived| arrived.since.elapsed() > ORPHANED;
        while self.arrived.front().is_some_and(is_old) {
            self.release();
        }
        self.account();
    }

    fn release(&mut self) {
        if let Some(arrived) = self.arrived.pop_front() {
            self.consumed.all = arrived.sequence + 1;
            self.post(arrived.message);
        }
    }

    /// Tells the peer, of the first datagram at once, and then of several together.
    fn account(&mut self) {
        let due = self.consumed.all - self.told.all;
        let is_due = self.told.read == 0 || due >= WINDOW as u64 / 4;
        if due > 0 && is_due && self.tell(&self.consumed.bytes()) {
            self.told = self.consumed;
        }
    }
}

/// Copies as much as the parts hold.
///
/// # Safety
/// The parts are writable memory.
unsafe fn copy(mut payload: &[u8], parts: &[iovec]) {
    for part in parts {
        let (now, later) = payload.split_at(part.iov_len.min(payload.len()));
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast(), now.len()) };
        payload = later;
    }
}
