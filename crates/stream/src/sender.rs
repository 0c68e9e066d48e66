//! The sending end.

mod link;

use crate::block::Block;
use crate::error::{Error, Result};
use crate::header::{Flags, HEADER_BYTES, Header, Kind, block_bytes, now_ns, payload_range};
use crate::{DEVICES_MAX, FORMAT_BYTES_MAX, FRAME_BYTES_MAX, parking};
use airdma::{Device, Endpoint, Operation, Region};
use link::Link;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Time in which a request of a connection that has ended must come back.
const FLUSHED_WITHIN: Duration = Duration::from_secs(5);

/// Sends frames of many devices over one connection.
///
/// It has blocks of its own, which all devices share: a device gets up to its quota of them. They
/// and the frames in them outlive connections.
pub struct Sender {
    device: Device,
    config: SenderConfig,
    /// Free blocks.
    free: Vec<Region>,
    sources: BTreeMap<u32, State>,
    link: Option<Link>,
    /// Writes in flight, the oldest first.
    flights: VecDeque<Flight>,
    /// Number of frames given to the connection, to serve devices in turns.
    served: u64,
}

/// What a sender has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Number of its own blocks.
    pub blocks: u32,
    /// Longest frame.
    pub frame_bytes: usize,
    /// Number of this run; the receiver tells a restart by another one.
    pub epoch: u32,
}

/// How frames of a device are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Blocks that it may use at a time: those that are being filled, wait, or are in flight.
    pub quota: usize,
    /// Devices with a higher number go first.
    pub priority: u8,
    /// What happens to frames that the receiver has no block for.
    pub policy: Policy,
}

/// What happens to frames that wait for the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They wait: the device gets no more blocks, and slows down.
    All,
    /// The newest one waits, and replaces the one before.
    Newest,
}

/// What is said of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// When it was captured, in nanoseconds since 1970; 0 if unknown.
    pub time: u64,
    /// When it is worthless, likewise: then it is dropped, unless it is on its way. 0 for never.
    pub deadline: u64,
    /// What it is.
    pub flags: Flags,
}

/// What became of the frames of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that were given to [`Sender::send`].
    pub offered: u64,
    /// Frames that are in the receiver's memory.
    pub sent: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that were dropped because their deadline had passed.
    pub late: u64,
    /// Frames that a newer one replaced ([`Policy::Newest`]).
    pub replaced: u64,
    /// Frames that exceed the receiver's blocks.
    pub too_long: u64,
}

struct State {
    source: Source,
    /// Number of the next frame.
    next: u64,
    waiting: VecDeque<Waiting>,
    /// Blocks that it uses.
    used: usize,
    /// `Sender::served` when a frame of it was sent last.
    served: u64,
    counts: Counts,
    format: (u32, String),
    /// The format that the receiver has, by its number.
    announced: Option<u32>,
    /// Number of the first frame that was never sent.
    unsent: u64,
}

/// A frame that waits for a block of the receiver.
struct Waiting {
    region: Region,
    header: Header,
}

/// A frame on its way.
struct Flight {
    operation: Operation<Region>,
    header: Header,
}

impl Default for SenderConfig {
    fn default() -> Self {
        SenderConfig {
            blocks: 8,
            frame_bytes: 1 << 20,
            // Runs within four nanoseconds of 2^32 apart have one number.
            epoch: now_ns() as u32,
        }
    }
}

impl Default for Source {
    fn default() -> Self {
        Source {
            quota: 3,
            priority: 0,
            policy: Policy::All,
        }
    }
}

impl Description {
    /// A frame that was captured now, and never is worthless.
    pub fn now() -> Description {
        Description {
            time: now_ns(),
            ..Description::default()
        }
    }
}

impl State {
    /// Whether the receiver must learn of the format before the next frame.
    ///
    /// Frames of a former format that wait are sent before the new one is announced.
    fn needs_announcement(&self) -> bool {
        let current = self.format.0;
        let is_of_current = |frame: &Waiting| frame.header.format == current;
        match self.announced {
            None => true,
            Some(announced) => {
                announced != current && self.waiting.front().is_some_and(is_of_current)
            }
        }
    }
}

impl Sender {
    /// Allocates the blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no blocks, or frames beyond [`FRAME_BYTES_MAX`].
    /// [`Error::Connection`]: no memory.
    pub fn new(device: &Device, config: SenderConfig) -> Result<Sender> {
        if config.blocks == 0 || config.frame_bytes > FRAME_BYTES_MAX {
            return Err(Error::Invalid(
                "a sender has at least one block, and frames of less than 1 GiB",
            ));
        }
        let block_bytes = block_bytes(config.frame_bytes.max(1));
        let count = config.blocks as usize;
        let mut rest = device.allocate_private(block_bytes * count)?;
        let mut free = Vec::with_capacity(count);
        for _ in 1..count {
            let (block, others) = rest.split_at(block_bytes)?;
            free.push(block);
            rest = others;
        }
        free.push(rest);
        Ok(Sender {
            device: device.clone(),
            config,
            free,
            sources: BTreeMap::new(),
            link: None,
            flights: VecDeque::new(),
            served: 0,
        })
    }

    /// Begins to send to a receiver, or goes on after a connection was lost.
    ///
    /// Frames whose arrival is not known are sent again; the receiver knows those that it has.
    ///
    /// # Errors
    /// The peer does not speak this protocol, or the connection fails.
    pub fn open(&mut self, endpoint: Endpoint) -> Result<()> {
        self.end_link();
        let own = (self.config.epoch, self.config.frame_bytes);
        self.link = Some(Link::open(&self.device, endpoint, own)?);
        for state in self.sources.values_mut() {
            state.announced = None;
        }
        Ok(())
    }

    /// Whether there is a connection.
    pub fn is_open(&self) -> bool {
        self.link.is_some()
    }

    /// Bytes of the longest frame that this sender and its receiver take.
    pub fn frame_bytes_max(&self) -> usize {
        let own = self.config.frame_bytes;
        let link = self.link.as_ref();
        link.map_or(own, |link| own.min(link.block_bytes - HEADER_BYTES))
    }

    /// Adds a device.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it was added before, or there are [`DEVICES_MAX`].
    pub fn add(&mut self, device: u32, source: Source) -> Result<()> {
        if self.sources.contains_key(&device) {
            return Err(Error::Invalid("the sender has this device already"));
        }
        if self.sources.len() >= DEVICES_MAX {
            return Err(Error::Invalid("a sender has at most 1024 devices"));
        }
        let state = State {
            source,
            next: 0,
            waiting: VecDeque::new(),
            used: 0,
            served: 0,
            counts: Counts::default(),
            format: (0, String::new()),
            announced: None,
            unsent: 0,
        };
        self.sources.insert(device, state);
        Ok(())
    }

    /// Describes the format of the frames of a device from now on.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the device was not added, or the text exceeds [`FORMAT_BYTES_MAX`].
    pub fn set_format(&mut self, device: u32, text: &str) -> Result<()> {
        if text.len() > FORMAT_BYTES_MAX {
            return Err(Error::Invalid("a format has at most 1024 bytes"));
        }
        let state = self.sources.get_mut(&device).ok_or(NO_DEVICE)?;
        if state.format.1 != text {
            state.format = (state.format.0.wrapping_add(1), text.to_owned());
        }
        Ok(())
    }

    /// A block for `length` bytes of a device; `None` if none is free, or the device uses its
    /// quota.
    ///
    /// # Errors
    /// [`Error::TooLong`], or [`Error::Invalid`]: the device was not added.
    pub fn block(&mut self, device: u32, length: usize) -> Result<Option<Block>> {
        let capacity = self.config.frame_bytes;
        let state = self.sources.get_mut(&device).ok_or(NO_DEVICE)?;
        if length > capacity {
            return Err(Error::TooLong { length, capacity });
        }
        if state.used >= state.source.quota {
            return Ok(None);
        }
        let Some(region) = self.free.pop() else {
            return Ok(None);
        };
        match Block::new(region, device, length) {
            Ok(block) => {
                state.used += 1;
                Ok(Some(block))
            }
            Err(region) => {
                self.free.push(region);
                Err(Error::TooLong { length, capacity })
            }
        }
    }

    /// As [`Sender::block`], and waits until there is one.
    ///
    /// # Errors
    /// As [`Sender::block`] and [`Sender::poll`].
    pub fn wait_for_block(&mut self, device: u32, length: usize) -> Result<Block> {
        loop {
            let found = parking::wait(Duration::MAX, |waker| {
                self.poll(waker)?;
                self.block(device, length)
            })?;
            if let Some(block) = found {
                return Ok(block);
            }
        }
    }

    /// Returns a block without sending it.
    pub fn discard(&mut self, block: Block) {
        self.give_back(block.device, block.region);
    }

    /// Sends a frame, or lets it wait for a block of the receiver.
    pub fn send(&mut self, block: Block, description: Description) {
        let Block {
            region,
            device,
            payload,
        } = block;
        let Some(state) = self.sources.get_mut(&device) else {
            // A block of another sender.
            return;
        };
        let header = Header {
            kind: Kind::Frame,
            flags: description.flags,
            device,
            epoch: self.config.epoch,
            sequence: state.next,
            time: description.time,
            deadline: description.deadline,
            length: payload.len() as u32,
            format: state.format.0,
            turn: 0,
        };
        state.next += 1;
        state.counts.offered += header.is_data();
        let mut replaced = VecDeque::new();
        if state.source.policy == Policy::Newest {
            replaced = std::mem::take(&mut state.waiting);
            state.counts.replaced += replaced.len() as u64;
        }
        state.waiting.push_back(Waiting { region, header });
        for old in replaced {
            self.give_back(device, old.region);
        }
        // What fails ends the connection, which `poll` reports.
        self.transmit();
    }

    /// What became of the frames of each device.
    pub fn counts(&self) -> impl Iterator<Item = (u32, Counts)> {
        self.sources
            .iter()
            .map(|(&device, state)| (device, state.counts))
    }

    /// Whether nothing waits, and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.sources.values().all(|state| state.waiting.is_empty())
    }

    /// Moves on: takes back blocks that have arrived, drops late frames, sends those that the
    /// receiver has blocks for. `waker` is woken when there is more to do, apart from deadlines.
    ///
    /// # Errors
    /// [`Error::NotOpen`]; the connection has ended, or its peer breaks the protocol: then
    /// [`Sender::open`] goes on with another one.
    pub fn poll(&mut self, waker: &Waker) -> Result<()> {
        loop {
            self.collect(waker);
            self.transmit();
            let link = self.link.as_mut().ok_or(Error::NotOpen)?;
            match link.poll(waker) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.end_link();
                    return Err(error);
                }
            }
        }
    }

    /// Waits until all frames have arrived or were dropped, at most for `limit`. Returns whether
    /// they have.
    ///
    /// # Errors
    /// As [`Sender::poll`].
    pub fn flush(&mut self, limit: Duration) -> Result<bool> {
        let done = parking::wait(limit, |waker| {
            self.collect(waker);
            // A receiver that has all may have gone.
            if !self.is_idle() {
                self.poll(waker)?;
            }
            Ok::<_, Error>(self.is_idle().then_some(()))
        })?;
        Ok(done.is_some())
    }

    /// Closes the connection; the receiver has all that has arrived.
    pub fn close(&mut self) {
        self.end_link();
    }

    fn give_back(&mut self, device: u32, region: Region) {
        self.free.push(region);
        if let Some(state) = self.sources.get_mut(&device) {
            state.used = state.used.saturating_sub(1);
        }
    }

    /// Takes back the blocks of frames that have arrived.
    fn collect(&mut self, waker: &Waker) {
        while let Some(oldest) = self.flights.front_mut() {
            let polled = Pin::new(&mut oldest.operation).poll(&mut Context::from_waker(waker));
            let Poll::Ready(result) = polled else {
                return;
            };
            let Some(flight) = self.flights.pop_front() else {
                return;
            };
            match result {
                Ok(region) => self.arrived(flight.header, region),
                Err(error) => {
                    if let Some(link) = self.link.as_mut() {
                        // A block that cannot be written is the peer's fault.
                        link.is_broken |= error.blame() == airdma::Blame::You;
                    }
                    // The others fail as well; all wait again, in their order.
                    self.flush_flights();
                    if let Some(region) = error.into_region() {
                        self.wait_again(flight.header, region);
                    }
                    return;
                }
            }
        }
    }

    fn arrived(&mut self, header: Header, region: Region) {
        if header.kind == Kind::Format {
            return;
        }
        if let Some(state) = self.sources.get_mut(&header.device) {
            state.counts.sent += header.is_data();
            state.counts.bytes += u64::from(header.length);
        }
        self.give_back(header.device, region);
    }

    /// A frame did not arrive, as far as is known.
    fn wait_again(&mut self, header: Header, region: Region) {
        match self.sources.get_mut(&header.device) {
            Some(state) if header.kind == Kind::Frame => {
                state.waiting.push_front(Waiting { region, header });
            }
            Some(state) => state.announced = None,
            None => {}
        }
    }

    /// Ends the connection. Frames in flight wait again.
    fn end_link(&mut self) {
        // Frames that have arrived are not sent again.
        self.collect(Waker::noop());
        // Its requests end with it.
        self.link = None;
        self.flush_flights();
    }

    fn flush_flights(&mut self) {
        while let Some(mut flight) = self.flights.pop_back() {
            match flight.operation.wait_timeout(FLUSHED_WITHIN) {
                Some(Ok(region)) => self.arrived(flight.header, region),
                Some(Err(error)) => {
                    if let Some(region) = error.into_region() {
                        self.wait_again(flight.header, region);
                    }
                }
                // The block is lost with its frame, which the receiver misses.
                None => {}
            }
        }
    }

    /// Sends what the receiver has blocks for.
    fn transmit(&mut self) {
        self.drop_late();
        while let Some(device) = self.next_device() {
            let Some(link) = self.link.as_mut() else {
                return;
            };
            let Some(state) = self.sources.get_mut(&device) else {
                return;
            };
            if state.needs_announcement() {
                let Some(flight) = announce(&self.device, link, device, state, self.config.epoch)
                else {
                    return;
                };
                state.announced = Some(state.format.0);
                self.flights.push_back(flight);
                continue;
            }
            let Some(remote) = link.next_block() else {
                return;
            };
            let Some(Waiting { region, header }) = state.waiting.pop_front() else {
                return;
            };
            if block_bytes(header.length as usize) as u64 > remote.len() {
                // The credit serves another frame.
                state.counts.too_long += 1;
                self.give_back(device, region);
                continue;
            }
            self.served += 1;
            state.served = self.served;
            state.unsent = state.unsent.max(header.sequence + 1);
            let flight = link.write(region, header, &remote);
            self.flights.push_back(flight);
        }
    }

    /// The device whose turn it is: of those with the highest priority, the one that was served
    /// longest ago.
    fn next_device(&self) -> Option<u32> {
        let waiting = self.sources.iter();
        let waiting = waiting.filter(|(_, state)| !state.waiting.is_empty());
        let key = |state: &State| (std::cmp::Reverse(state.source.priority), state.served);
        let next = waiting.min_by_key(|(_, state)| key(state));
        next.map(|(&device, _)| device)
    }

    /// Drops frames whose deadline has passed.
    fn drop_late(&mut self) {
        let mut now = None;
        let mut is_late = |frame: &Waiting| {
            let deadline = frame.header.deadline;
            deadline != 0 && deadline < *now.get_or_insert_with(now_ns)
        };
        let mut dropped = Vec::new();
        for (&device, state) in &mut self.sources {
            let mut at = 0;
            while let Some(frame) = state.waiting.get(at) {
                if !is_late(frame) {
                    at += 1;
                    continue;
                }
                state.counts.late += 1;
                dropped.extend(state.waiting.remove(at).map(|frame| (device, frame.region)));
            }
        }
        for (device, region) in dropped {
            self.give_back(device, region);
        }
    }
}

const NO_DEVICE: Error = Error::Invalid("the sender has no such device: add it first");

/// Sends the format of a device, with the number of its next frame. `None` without a credit.
fn announce(
    memory: &Device,
    link: &mut Link,
    device: u32,
    state: &State,
    epoch: u32,
) -> Option<Flight> {
    let (number, text) = &state.format;
    let mut region = memory.allocate_private(block_bytes(text.len())).ok()?;
    let payload = payload_range(region.len(), text.len())?;
    let remote = link.next_block()?;
    region[payload].copy_from_slice(text.as_bytes());
    let first = state.waiting.front();
    let header = Header {
        kind: Kind::Format,
        flags: Flags::default(),
        device,
        epoch,
        sequence: first.map_or(state.unsent, |frame| {
            state.unsent.min(frame.header.sequence)
        }),
        time: 0,
        deadline: 0,
        length: text.len() as u32,
        format: *number,
        turn: 0,
    };
    Some(link.write(region, header, &remote))
}
