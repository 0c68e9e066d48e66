//! A lane: the RDMA connection that carries the stream of a TCP connection from an agreed byte on.
//!
//! Each end has sixteen messages of 32 KiB posted for the peer's data, and the peer has a credit
//! for each: a message is posted again once the program has read it. Small writes that find no
//! credit share a message. Memory of a lane: 1.2 MiB of addresses, of which pages exist that were
//! used.
//!
//! All of it happens under the lock of the socket, by threads that are [inside](crate::inside).

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use airdma::{Device, Endpoint, Message, Operation, Region, Result};

use crate::counters::{self, Counter};
use crate::inside;
use crate::lane::hand_back::{Back, HandBack, Phase, Rest};
use crate::message::{HEADER_BYTES, Header, Kind, MESSAGE_BYTES};
use crate::regions::pieces;
use crate::tcp;
use crate::turn::Counted;

pub mod hand_back;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

/// Messages of data that the peer may have sent and its peer's program has not read.
const CREDITS: usize = 16;
/// Receives for messages without credits.
const SPARE: usize = 4;
/// Bytes that are sent before a writer runs the device: a segmented send. What is posted behind
/// packets in flight waits for that, and the peer would stand idle until the writer has no room.
const RUN_EVERY: usize = 2 * MESSAGE_BYTES;
/// Messages that are filled or wait for a credit, beside those that are sent.
const WAITING: usize = 2;
/// Messages that are not filled before the peer's program has read what the kernel had: the others
/// fit the kernel's queue.
const RESERVE: usize = 8;
/// Most tokens in the kernel's receive queue.
const TOKENS_MAX: u64 = 1024;
/// Most bytes that are written before the lane is open: in the kernel's queue of a writable socket
/// there is room for them, should the connection stay there.
const UNOPENED_MAX: usize = 4096;
/// How long a lane that is lost waits for the kernel's own end of the connection, which is behind
/// the news by the lane where the peer has ended.
const LOST_FOR: Duration = Duration::from_millis(50);
/// How long the peer may acknowledge nothing before its kernel is asked for a sign of life, and how
/// long until the next one.
const SILENT_FOR: Duration = Duration::from_millis(500);
const ASKED_EVERY: Duration = Duration::from_secs(60);
/// Messages without payload that the peer need not have acknowledged, and their length.
const CONTROLS: usize = 32;
const CONTROL_BYTES: usize = 128;

/// A lane. See the module.
pub struct Lane {
    endpoint: Endpoint,
    waker: Waker,
    sending: Sending,
    receiving: Receiving,
    /// What the peer has said of the negotiation, whichever thread took the message.
    pub heard: Heard,
    /// The peer or the path is gone.
    pub failed: bool,
    /// The program was told so by a read.
    pub failure_told: bool,
    /// Since when it is lost.
    lost_at: Option<Instant>,
    hand_back: HandBack,
    /// Whether a task carries the hand-back on.
    pub is_tended: bool,
    /// Whether a task sends what the program keeps back.
    pub is_timed: bool,
    /// What the kernel gets of this end's stream, once that is back.
    rest: Rest,
    /// Which directions the program has shut, where the kernel's socket is not.
    shut: Shut,
    _counted: Counted,
}

/// See [`Lane::shut_later`].
#[derive(Clone, Copy, Debug, Default)]
struct Shut {
    reading: bool,
    writing: bool,
}

struct Sending {
    /// Whether the peer knows from which byte on this end writes to the lane.
    is_open: bool,
    credits: usize,
    free: Vec<Region>,
    filling: Option<(Region, usize)>,
    waiting: VecDeque<(Region, usize)>,
    sent: VecDeque<Sent>,
    /// How many of the first of `sent` the peer's program has read.
    consumed: usize,
    control: VecDeque<Operation<Region>>,
    control_free: Vec<Region>,
    /// Bytes that were written to the lane, that were sent, and that the peer's program has read.
    bytes: u64,
    left: u64,
    returned: u64,
    /// Bytes that were sent since the device last ran.
    unrun: usize,
    tokens: u32,
    /// Whether both ends know where the program's bytes end in the kernel's streams.
    is_switched: bool,
    /// Whether the program has asked for full messages only (`TCP_CORK`).
    is_corked: bool,
    gate_shut: bool,
    /// When the peer's host was asked for a sign of life.
    asked_at: Option<Instant>,
}

struct Sent {
    operation: Option<Operation<Region>>,
    region: Option<Region>,
    length: usize,
    at: Instant,
}

struct Receiving {
    posted: VecDeque<Operation<Message>>,
    /// Payload that the program has not read, and how much of the first message it has.
    arrived: VecDeque<Message>,
    read_of_first: usize,
    /// Bytes that the program still reads from the kernel; `None` while the peer writes there.
    from_kernel: Option<u64>,
    /// Credits to return.
    owed: u16,
    /// Bytes that came by the lane.
    bytes: u64,
    /// Whether further bytes that come by the lane are the program's.
    takes_more: bool,
    tokens_sent: u32,
    tokens_taken: u64,
    /// Whether the peer knows that the program has read what the kernel had.
    drained_told: bool,
    gate_open: bool,
    /// The thread that runs the device and reads next, by [`inside::thread`].
    awaited_by: Option<usize>,
}

/// Where the next bytes for the program come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel, at most that many.
    Kernel(usize),
    /// The lane.
    Lane,
}

impl Lane {
    /// A lane on an open endpoint, with its receives posted. `waker` is called at each event.
    pub fn new(device: &Device, endpoint: Endpoint, waker: Waker) -> Result<Lane> {
        let posted = pieces(device, CREDITS + SPARE, MESSAGE_BYTES)?;
        Ok(Lane {
            sending: Sending {
                is_open: false,
                credits: CREDITS,
                free: pieces(device, CREDITS + WAITING, MESSAGE_BYTES)?,
                filling: None,
                waiting: VecDeque::new(),
                sent: VecDeque::new(),
                consumed: 0,
                control: VecDeque::new(),
                control_free: pieces(device, CONTROLS, CONTROL_BYTES)?,
                bytes: 0,
                left: 0,
                returned: 0,
                unrun: 0,
                tokens: 0,
                is_switched: false,
                is_corked: false,
                gate_shut: false,
                asked_at: None,
            },
            receiving: Receiving {
                posted: posted
                    .into_iter()
                    .map(|region| endpoint.recv(region, ..))
                    .collect(),
                arrived: VecDeque::new(),
                read_of_first: 0,
                from_kernel: None,
                owed: 0,
                bytes: 0,
                takes_more: true,
                tokens_sent: 0,
                tokens_taken: 0,
                drained_told: false,
                // As a descriptor without a lane: readable with the first byte.
                gate_open: true,
                awaited_by: None,
            },
            endpoint,
            waker,
            heard: Heard::default(),
            failed: false,
            failure_told: false,
            lost_at: None,
            hand_back: HandBack::default(),
            is_tended: false,
            is_timed: false,
            rest: Rest::default(),
            _counted: Counted::new(),
            shut: Shut::default(),
        })
    }

    /// Sends a message without credits.
    pub fn tell(&mut self, kind: Kind, value: u64, payload: &[u8]) {
        self.reclaim_control();
        if self.sending.control_free.is_empty() {
            self.attend();
            self.reclaim_control();
        }
        let sending = &mut self.sending;
        let Some(mut region) = sending.control_free.pop() else {
            // The peer acknowledges none of them.
            self.failed = true;
            return;
        };
        let header = Header {
            kind,
            credits: std::mem::take(&mut self.receiving.owed),
            tokens: sending.tokens,
            value,
        };
        header.write(&mut region);
        let end = HEADER_BYTES + payload.len();
        region[HEADER_BYTES..end].copy_from_slice(payload);
        sending.control.push_back(self.endpoint.send(region, ..end));
    }

    /// The next message while the lane is negotiated: header and payload.
    pub async fn negotiated(&mut self) -> Option<(Header, Vec<u8>)> {
        let message = self.receiving.posted.front_mut()?.await.ok()?;
        self.receiving.posted.pop_front();
        let header = Header::read(&message)?;
        let payload = message.get(HEADER_BYTES..)?.to_vec();
        self.post(message);
        Some((header, payload))
    }

    fn post(&mut self, message: Message) {
        let receive = self.endpoint.recv(message.into_region(), ..);
        self.receiving.posted.push_back(receive);
    }

    /// Handles what has happened, and sets the gates of the kernel's descriptor by it.
    pub fn progress(&mut self, fd: i32) {
        let before = self.news();
        let mut arrived = self.collect(fd);
        // What comes after the last look wakes.
        while self.attend() {
            arrived |= self.collect(fd);
        }
        self.pump();
        self.settle_tokens(fd);
        self.drain_tokens(fd);
        if !self.failed {
            self.carry_back(fd);
        }
        // What another thread takes wakes the one that waits.
        let is_told = self.receiving.awaited_by == Some(inside::thread())
            && self.source_is_lane()
            && !self.failed;
        if (arrived || self.failed) && !is_told {
            self.receiving.gate_open |= self.source_is_lane();
            // An event also where bytes of the kernel are next.
            tcp::open_read_gate(fd);
        }
        if self.is_lost() {
            self.lost_at.get_or_insert_with(Instant::now);
        }
        if self.sending.gate_shut && (self.sending.is_open && self.has_room() || self.failed) {
            self.sending.gate_shut = false;
            tcp::open_write_gate(fd);
        }
        if before != self.news() {
            // For the task that negotiates, and for the socket.
            self.waker.wake_by_ref();
        }
    }

    /// Enters what has completed. Whether there was anything.
    fn attend(&mut self) -> bool {
        let messages_only = !self.waits_for_sends();
        self.endpoint.wake_for_messages_only(messages_only);
        self.endpoint.attend()
    }

    /// As [`Lane::progress`], after running the device.
    pub fn run(&mut self, fd: i32) {
        self.sending.unrun = 0;
        self.endpoint.run();
        self.progress(fd);
    }

    /// Takes the outcomes of operations. Whether there is something for the program to read.
    fn collect(&mut self, fd: i32) -> bool {
        let mut arrived = false;
        // What happens to the lane does not matter any more once the stream is back.
        while !self.failed
            && self.phase() != Phase::Done
            && let Some(first) = self.receiving.posted.front_mut()
        {
            match first.look(&self.waker) {
                Poll::Pending => break,
                Poll::Ready(Ok(message)) => {
                    self.receiving.posted.pop_front();
                    arrived |= self.take(fd, message);
                }
                Poll::Ready(Err(_)) => self.failed = true,
            }
        }
        self.reclaim();
        self.reclaim_control();
        arrived
    }

    /// What others than the program wait for.
    fn news(&self) -> (Heard, bool, Phase, bool) {
        (self.heard, self.failed, self.phase(), self.is_over())
    }

    /// Handles a message. Whether the program can read something of it.
    fn take(&mut self, fd: i32, message: Message) -> bool {
        let Some(header) = Header::read(&message) else {
            self.failed = true;
            return false;
        };
        self.sending.credits += usize::from(header.credits);
        self.sending.consumed += usize::from(header.credits);
        if self.sending.credits > CREDITS {
            self.failed = true;
            return false;
        }
        self.receiving.tokens_sent = self.receiving.tokens_sent.max(header.tokens);
        match header.kind {
            Kind::Data if message.len() > HEADER_BYTES => {
                if !self.receiving.takes_more {
                    // The peer writes it to the kernel.
                    return false;
                }
                if self.receiving.arrived.len() == CREDITS {
                    self.failed = true;
                    return false;
                }
                self.receiving.bytes += (message.len() - HEADER_BYTES) as u64;
                self.receiving.arrived.push_back(message);
                return true;
            }
            Kind::Ready => self.heard.ready = Some(header.value),
            Kind::Go => self.heard.go = true,
            Kind::Drained => self.heard.drained = true,
            Kind::Back => self.hear_back(
                fd,
                Back {
                    from: header.value,
                    tokens: header.tokens,
                },
            ),
            Kind::Credits => {}
            Kind::Data | Kind::Hello | Kind::Confirm => self.failed = true,
        }
        self.post(message);
        false
    }

    /// How far a hand-back is, for a note.
    pub fn describe(&self) -> String {
        let (rest, due) = (self.rest_bytes(), self.tokens_due());
        format!("{:?}, {rest} bytes and {due} tokens left", self.hand_back)
    }

    /// Counts its end: the kernel has the stream.
    pub fn count_end(&self) {
        let (sent, received) = (self.sending.bytes, self.receiving.bytes);
        let need = counters::of_need(self.hand_back.need());
        for (counter, amount) in [
            (Counter::Sent, sent),
            (Counter::Received, received),
            (need, 1),
        ] {
            counters::add(&self.endpoint, counter, amount);
        }
    }

    /// Counts its end: the peer or the path is gone.
    pub fn count_loss(&self) {
        counters::add(&self.endpoint, Counter::Lost, 1);
    }
}

/// What the peer has said of the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The peer writes to the lane from that byte of the stream on.
    pub ready: Option<u64>,
    /// The peer knows from which byte on this end does.
    pub go: bool,
    /// The peer's program has read what the kernel had.
    pub drained: bool,
}
