//! The end of a lane at which the program sends.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use airdma::{Device, Endpoint, Message, Operation, Region, Result};
use libc::iovec;

use super::words::{CONTROL_BYTES, Consumed, HEADER_BYTES, Hello, Note, Welcome};
use super::{BUFFER_BYTES, LONGEST, WINDOW, wait};
use crate::counters::{self, Counter};
use crate::regions::pieces;
use crate::turn::Counted;

/// Receives for the peer's counts.
const ANSWERS: usize = 8;
/// How long the peer's library may take to acknowledge a datagram. Meanwhile a lane that is lost
/// loses what it is given, and the kernel's path may be fine.
const SILENT: Duration = Duration::from_millis(100);

/// A lane to one address. See the module.
pub struct Sending {
    endpoint: Endpoint,
    /// Its number in notes.
    lane: u64,
    /// Longest datagram that the kernel sends in one frame.
    frame_bytes: usize,
    /// Datagrams that the peer's program need not have read.
    window: u64,
    /// Sequence of the next datagram.
    next: u64,
    /// What the peer's program has read, or never will.
    consumed: Consumed,
    free: Vec<Region>,
    sent: VecDeque<(Instant, Operation<Region>)>,
    answers: VecDeque<Operation<Message>>,
    /// The peer or the path is gone.
    pub failed: bool,
    _counted: Counted,
}

impl Sending {
    /// A lane on an open endpoint, once the peer has answered and proved itself.
    pub fn new(device: &Device, endpoint: Endpoint, frame_bytes: usize) -> Result<Sending> {
        let answers = pieces(device, ANSWERS, CONTROL_BYTES)?;
        Ok(Sending {
            lane: 0,
            frame_bytes,
            window: 0,
            next: 0,
            consumed: Consumed::default(),
            free: pieces(device, WINDOW, BUFFER_BYTES)?,
            sent: VecDeque::new(),
            answers: answers
                .into_iter()
                .map(|region| endpoint.recv(region, ..))
                .collect(),
            failed: false,
            _counted: Counted::new(),
            endpoint,
        })
    }

    /// Sends the first message.
    pub fn hello(&mut self, hello: &Hello) {
        let Some(mut region) = self.free.pop() else {
            return;
        };
        let bytes = hello.bytes();
        region[..bytes.len()].copy_from_slice(&bytes);
        let operation = self.endpoint.send(region, ..bytes.len());
        self.sent.push_back((Instant::now(), operation));
    }

    /// The peer's answer; whether it is one.
    pub async fn welcomed(&mut self) -> bool {
        let Some(answer) = self.answers.pop_front() else {
            return false;
        };
        let Ok(message) = answer.await else {
            return false;
        };
        let welcome = Welcome::read(&message);
        self.post(message);
        if let Some(welcome) = welcome {
            self.lane = welcome.lane;
            self.window = welcome.window.min(WINDOW as u64);
        }
        welcome.is_some()
    }

    /// Counts one.
    pub fn count(&self, counter: Counter) {
        counters::add(&self.endpoint, counter, 1);
    }

    fn post(&mut self, message: Message) {
        let receive = self.endpoint.recv(message.into_region(), ..);
        self.answers.push_back(receive);
    }

    /// Handles what has happened since.
    pub fn progress(&mut self) {
        while let Some((_, operation)) = self.sent.front_mut() {
            match operation.wait_timeout(Duration::ZERO) {
                None => break,
                Some(Ok(region)) => self.free.push(region),
                Some(Err(_)) => self.failed = true,
            }
            self.sent.pop_front();
        }
        while let Some(answer) = self.answers.front_mut() {
            // With a waker the end of the connection is handled when it comes, not with this look.
            let mut context = Context::from_waker(Waker::noop());
            match Pin::new(answer).poll(&mut context) {
                Poll::Pending => break,
                Poll::Ready(Ok(message)) => {
                    self.answers.pop_front();
                    match Consumed::read(&message) {
                        Some(consumed) if consumed.all <= self.next => self.consumed = consumed,
                        Some(_) | None => self.failed = true,
                    }
                    self.post(message);
                }
                Poll::Ready(Err(_)) => {
                    self.failed = true;
                    break;
                }
            }
        }
    }

    /// Whether a datagram goes by the lane: it takes more than a frame, and there is room.
    ///
    /// Until the peer's program has read one, there is room for one: notes may reach another
    /// process than the one with the lane.
    pub fn takes(&self, length: usize) -> bool {
        let window = if self.consumed.read == 0 {
            1
        } else {
            self.window
        };
        let is_silent = |(since, _): &(Instant, Operation<Region>)| since.elapsed() > SILENT;
        length > self.frame_bytes
            && length <= LONGEST
            && self.next - self.consumed.all < window
            && !self.free.is_empty()
            && !self.sent.front().is_some_and(is_silent)
    }

    /// Sends a datagram that the lane takes; its note.
    ///
    /// # Safety
    /// The parts are memory of the program, `length` bytes together.
    pub unsafe fn send(&mut self, parts: &[iovec], length: usize) -> Option<Note> {
        let mut region = self.free.pop()?;
        region[..HEADER_BYTES].copy_from_slice(&self.next.to_be_bytes());
        let mut at = HEADER_BYTES;
        for part in parts.iter().filter(|part| part.iov_len > 0) {
            // SAFETY: the caller's promise.
            let bytes =
                unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            region[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        let operation = self.endpoint.send(region, ..at);
        self.sent.push_back((Instant::now(), operation));
        if self.sent.len() > 1 {
            // Behind packets in flight it would wait for the next run of the device.
            self.endpoint.run();
        }
        let note = Note {
            lane: self.lane,
            sequence: self.next,
            length: u32::try_from(length).ok()?,
        };
        self.next += 1;
        Some(note)
    }

    /// Waits until the peer's library has all that was sent, at most until `deadline`.
    pub fn flush(&mut self, deadline: Instant) {
        while let Some((_, operation)) = self.sent.front_mut() {
            if !matches!(wait(operation, deadline), Some(Ok(_))) {
                break;
            }
            self.sent.pop_front();
        }
    }
}
