//! The sending end.

mod link;
mod transmit;
mod waiting;

use crate::block::Block;
use crate::error::{Error, Result};
use crate::header::{Flags, HEADER_BYTES, Header, Kind, block_bytes, now_ns};
use crate::{DEVICES_MAX, FORMAT_BYTES_MAX, FRAME_BYTES_MAX};
use airdma::{Device, Endpoint, Operation, Region};
use link::Link;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// Blocks that go back to the program.
    returned: Vec<Block>,
    sources: BTreeMap<u32, State>,
    /// Devices with frames that wait, in the order in which they are served.
    turns: BTreeSet<Turn>,
    /// No frame that waits has an earlier deadline.
    deadline: u64,
    link: Option<Link>,
    /// Writes in flight, the oldest first.
    flights: VecDeque<Flight>,
    /// Number of frames given to the connection, to serve devices in turns.
    served: u64,
    /// Number of what had happened on the connection at the last look.
    looked: u64,
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
    /// Whether blocks that were sent go back to the program ([`Sender::returned`]), which has other
    /// views of their memory. Others are free at once.
    pub returns: bool,
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

/// Place of a device among those with frames: by priority, then by when it was served last, then by
/// its number.
type Turn = (Reverse<u8>, u64, u32);

/// A frame that waits for a block of the receiver.
struct Waiting {
    region: Region,
    header: Header,
}

/// What comes of writing a frame.
type Written = airdma::Result<Region>;

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
            returns: false,
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
    /// Its place, if it has frames that wait.
    fn turn(&self, device: u32) -> Option<Turn> {
        let turn = (Reverse(self.source.priority), self.served, device);
        (!self.waiting.is_empty()).then_some(turn)
    }

    /// Drops frames whose deadline has passed.
    fn drop_late(&mut self, now: u64) -> Vec<Waiting> {
        let is_late = |frame: &Waiting| (1..now).contains(&frame.header.deadline);
        let mut late = Vec::new();
        for frame in std::mem::take(&mut self.waiting) {
            if is_late(&frame) {
                late.push(frame);
            } else {
                self.waiting.push_back(frame);
            }
        }
        self.counts.late += late.len() as u64;
        late
    }

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
        let mut this = Sender {
            device: device.clone(),
            config,
            free: Vec::new(),
            returned: Vec::new(),
            sources: BTreeMap::new(),
            turns: BTreeSet::new(),
            deadline: u64::MAX,
            link: None,
            flights: VecDeque::new(),
            served: 0,
            looked: 0,
        };
        this.add_blocks(config.blocks)?;
        Ok(this)
    }

    /// Allocates further blocks, for devices that are added later.
    ///
    /// # Errors
    /// [`Error::Connection`]: no memory.
    pub fn add_blocks(&mut self, count: u32) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let block_bytes = block_bytes(self.config.frame_bytes.max(1));
        let mut rest = self.device.allocate_private(block_bytes * count as usize)?;
        for _ in 1..count {
            let (block, others) = rest.split_at(block_bytes)?;
            self.free.push(block);
            rest = others;
        }
        self.free.push(rest);
        Ok(())
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
        // No connection has so little behind it: the next wait begins with a look.
        self.looked = 0;
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
        let epoch = self.config.epoch;
        let has_bytes = description.flags.are_of_data();
        let length = if has_bytes { payload.len() as u32 } else { 0 };
        let replaced = self.change(device, |state| {
            let header = Header {
                kind: Kind::Frame,
                flags: description.flags,
                device,
                epoch,
                sequence: state.next,
                time: description.time,
                deadline: description.deadline,
                length,
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
            replaced
        });
        self.note_deadline(description.deadline);
        // There are none for a block of another sender.
        for old in replaced.into_iter().flatten() {
            self.finish(&old.header, old.region);
        }
        // What fails ends the connection, which `poll` reports.
        self.transmit();
    }

    /// A block of a device whose blocks go back to the program ([`Source::returns`]): its frame has
    /// arrived, or was dropped. It can be filled and sent again.
    pub fn returned(&mut self) -> Option<Block> {
        self.returned.pop()
    }

    /// What became of the frames of each device.
    pub fn counts(&self) -> impl Iterator<Item = (u32, Counts)> {
        self.sources
            .iter()
            .map(|(&device, state)| (device, state.counts))
    }

    /// Whether nothing waits, and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.turns.is_empty()
    }

    /// Whether nothing of a device waits or is in flight.
    pub fn is_idle_of(&self, device: u32) -> bool {
        let waits = |state: &State| !state.waiting.is_empty();
        let is_its = |flight: &Flight| flight.header.device == device;
        !self.sources.get(&device).is_some_and(waits) && !self.flights.iter().any(is_its)
    }

    /// Moves on: takes back blocks that have arrived, drops late frames, sends those that the
    /// receiver has blocks for. `waker` is woken when there is more to do, apart from deadlines.
    ///
    /// # Errors
    /// [`Error::NotOpen`]; the connection has ended, or its peer breaks the protocol: then
    /// [`Sender::open`] goes on with another one.
    pub fn poll(&mut self, waker: &Waker) -> Result<()> {
        loop {
            self.collect(|operation| Pin::new(operation).poll(&mut Context::from_waker(waker)));
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
    fn collect(&mut self, mut ask: impl FnMut(&mut Operation<Region>) -> Poll<Written>) {
        while let Some(oldest) = self.flights.front_mut() {
            let Poll::Ready(result) = ask(&mut oldest.operation) else {
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
        self.finish(&header, region);
    }

    /// Nothing more happens to a frame.
    fn finish(&mut self, header: &Header, region: Region) {
        let state = self.sources.get(&header.device);
        if !state.is_some_and(|state| state.source.returns) {
            self.give_back(header.device, region);
            return;
        }
        match Block::new(region, header.device, header.length as usize) {
            Ok(block) => self.returned.push(block),
            Err(region) => self.give_back(header.device, region),
        }
    }

    /// A frame did not arrive, as far as is known.
    fn wait_again(&mut self, header: Header, region: Region) {
        self.change(header.device, |state| match header.kind {
            Kind::Frame => state.waiting.push_front(Waiting { region, header }),
            Kind::Format => state.announced = None,
        });
        self.note_deadline(header.deadline);
    }

    /// Changes the state of a device, and its place among those with frames; `None` if there is no
    /// such device.
    fn change<T>(&mut self, device: u32, change: impl FnOnce(&mut State) -> T) -> Option<T> {
        let state = self.sources.get_mut(&device)?;
        let before = state.turn(device);
        let result = change(state);
        let after = state.turn(device);
        if before != after {
            if let Some(before) = before {
                self.turns.remove(&before);
            }
            self.turns.extend(after);
        }
        Some(result)
    }

    /// A frame with this deadline waits; 0 is none.
    fn note_deadline(&mut self, deadline: u64) {
        if deadline != 0 {
            self.deadline = self.deadline.min(deadline);
        }
    }

    /// Ends the connection. Frames in flight wait again.
    fn end_link(&mut self) {
        // Frames that have arrived are not sent again.
        self.collect(|operation| Pin::new(operation).poll(&mut Context::from_waker(Waker::noop())));
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
}

const NO_DEVICE: Error = Error::Invalid("the sender has no such device: add it first");
