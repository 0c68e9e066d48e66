//! The sender's side of one connection.

use crate::SLOT_BYTES;
use crate::cancel::Cancel;
use crate::channel::{Channel, LAST_WORD, hear_the_rest, ready};
use crate::error::Error;
use crate::parking::park;
use crate::progress::{Account, Event, Progress, Wait};
use crate::reader::{Prepared, Reader, Sealed};
use crate::receiving::FRAMES_AT_ONCE_MAX;
use airdma::{Operation, Region, Remote};
use airdma_files::protocol::{Config, Message, Reason, Sender, SenderEvent};
use airdma_files::session::{Cipher, DataKey, Sealer, Session};
use airdma_files::walk::Walked;
use airdma_files::{CHUNK_BYTES, Flaw, Plan, Source, Unwanted, Walking};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Chunks waiting for a disk that show that it is slower than the network.
const BEHIND: u64 = 2;

/// Interval at which a wait for the walk handles everything else.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Result of an offer.
pub(crate) struct Outcome<'a> {
    pub walked: &'a Walked,
    pub arrived: Arrived,
}

/// Number of files that arrived, and entries that did not.
type Arrived = (u64, Vec<(u32, Flaw)>);

pub(crate) struct Sending<'a> {
    start: Instant,
    channel: Channel,
    session: Session,
    machine: Sender,
    key: DataKey,
    walking: &'a Walking,
    /// The offer, once it is known.
    walked: Option<&'a Walked>,
    watch: &'a dyn Fn(Event),
    prepared: Option<Prepared>,
    data: Option<Data>,
    outcome: Option<Arrived>,
    grown: Vec<u32>,
}

/// State of the data.
struct Data {
    reader: Reader,
    target: Remote,
    bytes_total: u64,
    /// Chunks that are sealed but not written: the receiver has no room for them yet.
    sealed: VecDeque<Sealed>,
    writing: VecDeque<Operation<Region>>,
    /// First chunk of this connection, and the chunks in the receiver's memory, and on its disk.
    first: u64,
    written: u64,
    durable: u64,
    /// Chunks in its memory that waited for its disk at its last report.
    waiting: u64,
    account: Account,
}

impl<'a> Sending<'a> {
    /// Waits until the offer is known.
    pub fn new(
        channel: Channel,
        session: Session,
        walking: &'a Walking,
        config: Config,
        watch: &'a dyn Fn(Event),
    ) -> Self {
        let key = DataKey::draw();
        let machine = Sender::preparing(Duration::ZERO, config, key.clone());
        Self {
            start: Instant::now(),
            channel,
            session,
            machine,
            key,
            walking,
            walked: None,
            watch,
            prepared: None,
            data: None,
            outcome: None,
            grown: Vec::new(),
        }
    }

    /// Whether the receiver accepted: then another connection can resume the offer.
    pub fn is_accepted(&self) -> bool {
        self.data.is_some()
    }

    /// Number of durable chunks, which no connection has to send again.
    pub fn durable(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.durable)
    }

    /// Files that had grown when they were read.
    pub fn grown(&self) -> &[u32] {
        &self.grown
    }

    /// Sends everything, and returns the result. [`Sending::close`] confirms it to the receiver.
    pub fn run(&mut self, cancel: &Cancel) -> Result<Outcome<'a>, Error> {
        let walked = self.prepare(cancel)?;
        let arrived = self.carry(cancel)?;
        Ok(Outcome { walked, arrived })
    }

    /// Waits until the offer is known, then offers it. Keeps the session alive meanwhile.
    fn prepare(&mut self, cancel: &Cancel) -> Result<&'a Walked, Error> {
        let walked = loop {
            if let Some(found) = self.walking.wait(LOOK_EVERY) {
                break found;
            }
            self.step(cancel)?;
        };
        let walked = walked.inspect_err(|_| self.machine.abort(Reason::Files, UNREAD))?;
        (self.watch)(Event::Walked(walked.skipped.clone()));
        let now = self.start.elapsed();
        self.machine.offer(now, Arc::clone(&walked.manifest));
        self.walked = Some(walked);
        // While the receiver checks the offer.
        self.step(cancel)?;
        self.prepared = Some(Prepared::new(self.channel.device())?);
        Ok(walked)
    }

    fn carry(&mut self, cancel: &Cancel) -> Result<Arrived, Error> {
        loop {
            if let Some(outcome) = self.step(cancel)? {
                return Ok(outcome);
            }
            let timeout = self.machine.poll_timeout();
            park(timeout.map(|timeout| self.start + timeout));
        }
    }

    /// Sends the last message, which lets the receiver forget the transfer, and closes the
    /// connection.
    pub fn close(mut self) {
        self.channel.say_rest(&mut self.session, || {
            self.machine.poll_message(self.start.elapsed())
        });
        self.channel.close(LAST_WORD);
    }

    /// Does everything that is possible now. If the peer has closed the connection, what it said
    /// before counts.
    fn step(&mut self, cancel: &Cancel) -> Result<Option<Arrived>, Error> {
        let result = self.advance(cancel);
        if matches!(result, Err(Error::Rdma(_))) {
            hear_the_rest(|| self.hear())?;
            if let Some(outcome) = self.outcome.take() {
                return Ok(Some(outcome));
            }
        }
        result
    }

    /// Handles the next message, if one has come.
    fn hear(&mut self) -> Result<bool, Error> {
        let Some(frame) = self.channel.hear()? else {
            return Ok(false);
        };
        let message = Message::decode(&self.session.open(&frame)?)?;
        self.machine.handle_message(self.start.elapsed(), message);
        self.handle_events()?;
        Ok(true)
    }

    fn advance(&mut self, cancel: &Cancel) -> Result<Option<Arrived>, Error> {
        let now = self.start.elapsed();
        let mut frames = 0;
        while frames < FRAMES_AT_ONCE_MAX && self.hear()? {
            frames += 1;
        }
        if frames == FRAMES_AT_ONCE_MAX {
            // There may be more.
            self.channel.waker().wake_by_ref();
        }
        if self.machine.poll_timeout().is_some_and(|due| due <= now) {
            self.machine.handle_timeout(now);
            self.handle_events()?;
        }
        if let Some(outcome) = self.outcome.take() {
            return Ok(Some(outcome));
        }
        if cancel.is_cancelled() {
            self.machine.abort(Reason::Cancelled, CANCELLED);
            return Err(Error::Cancelled);
        }
        self.move_data()?;
        (self.channel).say_sealed(&mut self.session, || {
            self.machine.poll_message(self.start.elapsed())
        })?;
        Ok(None)
    }

    fn handle_events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                SenderEvent::Accepted {
                    unwanted,
                    first_chunk,
                    cipher,
                    slots: _,
                    staging,
                } => self.begin(&unwanted, first_chunk, cipher, &staging)?,
                SenderEvent::Taken { chunks } => {
                    if let Some(data) = &mut self.data {
                        data.taken(chunks);
                    }
                }
                SenderEvent::Durable { chunks } => {
                    if let Some(data) = &mut self.data {
                        data.durable = chunks;
                    }
                }
                SenderEvent::Finished { files, flaws } => self.outcome = Some((files, flaws)),
                SenderEvent::Failed(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        unwanted: &Unwanted,
        first_chunk: u64,
        cipher: Cipher,
        staging: &[u8],
    ) -> Result<(), Error> {
        let walked = self.walked.expect("who accepts was offered something");
        let source = Source::new(walked, unwanted, first_chunk);
        let bytes_total = Plan::bytes(source.plan());
        let target = Remote::from_bytes(staging).map_err(|_| airdma_files::protocol::Malformed)?;
        let sealer = Sealer::new(cipher, &self.key, first_chunk);
        let prepared = match self.prepared.take() {
            Some(prepared) => prepared,
            None => Prepared::new(self.channel.device())?,
        };
        let reader = prepared.start(source, sealer, self.channel.waker())?;
        let data = self.data.insert(Data {
            reader,
            target,
            bytes_total,
            sealed: VecDeque::new(),
            writing: VecDeque::new(),
            first: first_chunk,
            written: first_chunk,
            durable: first_chunk,
            waiting: 0,
            account: Account::new(Wait::Reading),
        });
        (self.watch)(Event::Accepted(data.progress()));
        Ok(())
    }

    fn move_data(&mut self) -> Result<(), Error> {
        let Some(data) = &mut self.data else {
            return Ok(());
        };
        while let Some(region) = ready(&mut data.writing, self.channel.waker())? {
            if data.written == data.first {
                // Until now its disk had nothing to write.
                data.account.turn(data.wait());
                data.account.learn(false);
            }
            data.written += 1;
            data.reader.give_back(region);
        }
        while let Some(mut sealed) = data.reader.take() {
            self.grown.append(&mut sealed.grown);
            data.sealed.push_back(sealed);
        }
        while !data.sealed.is_empty()
            && let Some((chunk, slot)) = self.machine.next_chunk()
            && let Some(sealed) = data.sealed.pop_front()
        {
            assert_eq!(chunk, sealed.chunk, "chunks are read in their order");
            let at = u64::from(slot) * SLOT_BYTES as u64;
            let write = self
                .channel
                .write(sealed.region, sealed.bytes, &data.target, at);
            data.writing.push_back(write);
            // The message follows the write on the same connection, which delivers in order.
            self.machine.chunks_written(chunk + 1);
        }
        data.account.turn(data.wait());
        if data.account.is_due() {
            (self.watch)(Event::Progress(data.progress()));
        }
        Ok(())
    }
}

impl Data {
    /// Handles a report that the receiver's disk has `chunks`. It may be late, and tells what was
    /// waited for since the last one.
    fn taken(&mut self, chunks: u64) {
        self.account.turn(self.wait());
        self.waiting = self.written.saturating_sub(chunks);
        self.account.learn(self.waiting >= BEHIND);
    }

    fn wait(&self) -> Wait {
        let is_idle = self.writing.is_empty();
        if is_idle && self.sealed.is_empty() && self.written * CHUNK_BYTES < self.bytes_total {
            Wait::Reading
        } else if is_idle || self.waiting >= BEHIND {
            // The rate follows the receiver's disk before its memory is full, so something is
            // always in flight.
            Wait::Writing
        } else {
            Wait::Network
        }
    }

    fn progress(&self) -> Progress {
        let bytes = |chunks: u64| (chunks * CHUNK_BYTES).min(self.bytes_total);
        Progress {
            bytes: bytes(self.written),
            bytes_total: self.bytes_total,
            bytes_durable: bytes(self.durable),
            waits: self.account.waits(),
        }
    }
}

/// Text to the peer if files cannot be offered: without names of this host.
const UNREAD: &str = "the sender cannot read what it was to offer";
/// Text to the peer if this end is cancelled.
pub(crate) const CANCELLED: &str = "the other end was stopped; started again, it goes on";
