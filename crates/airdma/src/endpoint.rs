//! Connections for the application.

use crate::connection::Connection;
use crate::error::Cause;
use crate::operation::Pending;
use crate::work::{Buffer, Request, Work};
use crate::{Error, Operation, Region, Remote, Result};
use airdma_engine::{LIMITS, Qp, SocketCounter};
use std::fmt;
use std::net::IpAddr;
use std::ops::{Deref, Range, RangeBounds};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// One end of a connection: messages in both directions, each whole and in order, and the peer's
/// regions.
///
/// Any thread may use it, and any number of operations may be in flight. The device handles 128
/// transfers and 128 receives at a time; more wait for their turn. Dropping the endpoint ends the
/// connection at once; [`Endpoint::close`] does so once all operations are done.
pub struct Endpoint {
    connection: Arc<Connection>,
}

/// A received message: its bytes, in the region that was given to receive it.
pub struct Message {
    region: Region,
    range: Range<usize>,
}

impl Endpoint {
    /// Address of the peer.
    pub fn peer(&self) -> IpAddr {
        self.connection.peer
    }

    /// Sends `range` of a region as one message; returns the region when the peer has received it.
    ///
    /// That needs the peer's [`Endpoint::recv`]: a sender waits for a slow receiver.
    ///
    /// # Errors
    /// - [`Blame::You`](crate::Blame::You): `range` exceeds the region.
    /// - [`Blame::Peer`](crate::Blame::Peer): the peer closed, died, or its region is too small.
    /// - [`Blame::Network`](crate::Blame::Network): the peer does not answer.
    pub fn send(&self, region: Region, range: impl RangeBounds<usize>) -> Operation<Region> {
        self.transfer(region, range, |_| Ok(Request::Send))
    }

    /// Receives one message into `range` of a region, which must hold the whole message, or the
    /// connection ends.
    ///
    /// Messages go to receivers in the order of their calls. A cancelled receive loses nothing: the
    /// next receiver gets the message, in this region instead of its own.
    ///
    /// # Errors
    /// As [`Endpoint::send`]. After the last message of a peer that closed, [`Error::is_closed`] is
    /// true.
    pub fn recv(&self, region: Region, range: impl RangeBounds<usize>) -> Operation<Message> {
        let hub = &self.connection.hub;
        match self.buffer(region, range) {
            Ok(buffer) => {
                let ticket = self.connection.receive(buffer);
                let connection = Arc::clone(&self.connection);
                Operation::new(hub, Receiving { connection, ticket })
            }
            Err(error) => Operation::failed(hub, error),
        }
    }

    /// Writes `range` of a region into the peer's at offset `at`; done when the bytes are there.
    ///
    /// The peer is not involved, and not notified.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): a range exceeds its region.
    /// [`Blame::Peer`](crate::Blame::Peer): the peer's region is not shared for writing, or no
    /// longer. Otherwise as [`Endpoint::send`].
    pub fn write(
        &self,
        region: Region,
        range: impl RangeBounds<usize>,
        to: &Remote,
        at: u64,
    ) -> Operation<Region> {
        self.transfer(region, range, |range| {
            let (va, key) = to.at(at, range.len())?;
            Ok(Request::Write { va, key })
        })
    }

    /// Reads from the peer's region at offset `at` into `range` of a region.
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    pub fn read(
        &self,
        region: Region,
        range: impl RangeBounds<usize>,
        from: &Remote,
        at: u64,
    ) -> Operation<Region> {
        self.transfer(region, range, |range| {
            let (va, key) = from.at(at, range.len())?;
            Ok(Request::Read { va, key })
        })
    }

    /// Adds `add` atomically to the word at offset `at` of the peer's region; returns the old
    /// value.
    ///
    /// The word is 64 bits; `at` must be a multiple of 8.
    ///
    /// # Errors
    /// As [`Endpoint::write`]; [`Blame::You`](crate::Blame::You) if `at` is not a multiple of 8.
    pub fn fetch_add(&self, on: &Remote, at: u64, add: u64) -> Operation<u64> {
        let request = on.word_at(at);
        self.ask(request.map(|(va, key)| Request::FetchAdd { va, key, add }))
    }

    /// Replaces the word at offset `at` of the peer's region by `swap`, atomically, if it equals
    /// `compare`.
    ///
    /// Returns the old value: if it is `compare`, the word was replaced.
    ///
    /// # Errors
    /// As [`Endpoint::fetch_add`].
    pub fn compare_swap(&self, on: &Remote, at: u64, compare: u64, swap: u64) -> Operation<u64> {
        let request = on.word_at(at);
        self.ask(request.map(|(va, key)| Request::CompareSwap {
            va,
            key,
            compare,
            swap,
        }))
    }

    /// Number of writes of the peer that are placed in regions of this device.
    ///
    /// What they wrote is visible after the call. [`Endpoint::written`] waits for the next one.
    pub fn writes(&self) -> u64 {
        self.connection.queue_pair().writes_placed()
    }

    /// Waits until the number of [`Endpoint::writes`] is not `seen`, and returns it.
    ///
    /// A [`write`](Endpoint::write) does not notify its target. This is how a program learns of
    /// writes without a message and without polling its memory: take the number, look at the
    /// memory, and wait for another number.
    ///
    /// ```
    /// # fn main() -> airdma::Result<()> {
    /// # use airdma::{Device, Remote, Rights};
    /// # let device = Device::open("127.0.0.1")?;
    /// # let listener = device.listen(7473)?;
    /// # let connecting = device.connect("127.0.0.1:7473");
    /// # let target = listener.accept().wait()?;
    /// # let source = connecting.wait()?;
    /// let shared = device.allocate(64)?.share(Rights::WRITE)?;
    /// let remote = shared.remote(&target)?; // sent to the source, in a message
    /// let seen = target.writes();
    /// let writing = source.write(device.allocate(64)?, .., &remote, 0);
    /// target.written(seen).wait()?;
    /// # writing.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Endpoint::recv`], once the connection has ended and no write is left to report.
    pub fn written(&self, seen: u64) -> Operation<u64> {
        self.watch(seen, Work::writes_beyond)
    }

    /// Number of the peer's writes that are placed, as [`Endpoint::writes`], and of operations of
    /// this end that are done.
    pub fn activity(&self) -> u64 {
        let connection = &self.connection;
        connection.amend(|work, _| work.activity(connection.queue_pair()))
    }

    /// Waits until the number of [`Endpoint::activity`] is not `seen`, and returns it: for a
    /// program that waits for whatever comes first, a write of the peer or the end of one of many
    /// operations.
    ///
    /// # Errors
    /// As [`Endpoint::written`].
    pub fn active(&self, seen: u64) -> Operation<u64> {
        self.watch(seen, Work::activity_beyond)
    }

    fn watch(&self, seen: u64, look: Look) -> Operation<u64> {
        let connection = Arc::clone(&self.connection);
        let watching = Watching {
            connection,
            seen,
            look,
        };
        Operation::new(&self.connection.hub, watching)
    }

    /// Reports how many bytes wait in a buffer that the peer fills, and how many fit; 0 of 0 ends
    /// the reports.
    ///
    /// The buffer (for a disk, for example) should hold many times what is taken out at once. The
    /// call is cheap: make it at each change.
    ///
    /// In air mode (automatic on Wi-Fi, else `AIRDMA_AIR=1`) the peer sends no faster than the
    /// buffer empties, so surplus data waits at its end and not in the network. This is advisory:
    /// the program must still keep the buffer from overflowing. Without air mode nothing is
    /// reported.
    pub fn tell_buffer(&self, bytes: u64, capacity: u64) {
        self.connection.tell_buffer(bytes, capacity);
    }

    /// The binding of a [sealed](crate::Device::sealed) connection: 32 bytes that its two ends
    /// share with no other connection.
    ///
    /// A host in the middle holds two connections, whose bindings differ. Ends that compare
    /// bindings over a trusted channel, or authenticate them, detect it. `None` until the keys are
    /// exchanged, about a round trip after the connection is open.
    pub fn binding(&self) -> Option<[u8; 32]> {
        self.connection.queue_pair().sealed_binding()
    }

    /// Enters what has completed on this connection, of which [`Operation::look`] then tells, and
    /// does not run the device. Whether there was anything.
    ///
    /// A program with many operations in flight looks at each, instead of polling each: a poll runs
    /// the device, too.
    pub fn attend(&self) -> bool {
        // Wakers need the thread that wakes; without it they are woken by the next call.
        drop(self.connection.hub.drive());
        self.connection.arm()
    }

    /// Whether messages and failures alone wake the program, and completed operations do not.
    ///
    /// These are entered by the next [`attend`](Self::attend) or [`run`](Self::run), with which the
    /// setting takes effect: for a program that needs the memory of a send only when it sends
    /// again. Nothing should wait for an operation meanwhile. A message wakes if it is solicited
    /// (IBTA 9.2.3): those of an endpoint are, a Verbs program sets `IBV_SEND_SOLICITED`.
    pub fn wake_for_messages_only(&self, messages_only: bool) {
        self.connection.wake_for_messages_only(messages_only);
    }

    /// Runs the device once: what it brings is entered.
    pub fn run(&self) {
        self.connection.arm_and_progress();
    }

    /// Adds to a counter of the library for socket programs, of this connection's device.
    #[doc(hidden)]
    pub fn count_sockets(&self, counter: SocketCounter, amount: u64) {
        self.connection.hub.engine.count_sockets(counter, amount);
    }

    /// Closes the connection after the operations before it.
    ///
    /// The peer receives what was sent before, and then that it is closed.
    ///
    /// # Errors
    /// An error that happened before.
    pub fn close(self) -> Operation<()> {
        let hub = Arc::clone(&self.connection.hub);
        Operation::new(&hub, Closing(self))
    }

    pub(crate) fn new(connection: Arc<Connection>) -> Endpoint {
        Endpoint { connection }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn transfer(
        &self,
        region: Region,
        range: impl RangeBounds<usize>,
        request: impl FnOnce(&Range<usize>) -> Result<Request>,
    ) -> Operation<Region> {
        let hub = &self.connection.hub;
        let buffer = match self.buffer(region, range) {
            Ok(buffer) => buffer,
            Err(error) => return Operation::failed(hub, error),
        };
        match request(&buffer.range) {
            Ok(request) => {
                let number = self.connection.request(request, Some(buffer));
                Operation::new(hub, Transfer(self.under_way(number)))
            }
            Err(error) => Operation::failed(hub, error.with(buffer.region)),
        }
    }

    fn ask(&self, request: Result<Request>) -> Operation<u64> {
        let hub = &self.connection.hub;
        match request {
            Ok(request) => {
                let number = self.connection.request(request, None);
                Operation::new(hub, Question(self.under_way(number)))
            }
            Err(error) => Operation::failed(hub, error),
        }
    }

    fn under_way(&self, number: usize) -> UnderWay {
        UnderWay {
            connection: Arc::clone(&self.connection),
            number: Some(number),
        }
    }

    /// Checks the region and range of an operation.
    fn buffer(&self, region: Region, range: impl RangeBounds<usize>) -> Result<Buffer> {
        let range = match region.part(range) {
            Ok(range) => range,
            Err(error) => return Err(error.with(region)),
        };
        if range.len() > LIMITS.max_message as usize {
            let message = format!(
                "{} bytes at a time: at most {} go in one operation",
                range.len(),
                LIMITS.max_message
            );
            return Err(Error::you(message).with(region));
        }
        if !region.is_of(&self.connection.hub.pd) {
            return Err(Error::you(
                "a region of another device: allocate it from the one of this endpoint",
            )
            .with(region));
        }
        Ok(Buffer { region, range })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.connection.end_by_us();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint(to {})", self.peer())
    }
}

impl Message {
    pub(crate) fn new(region: Region, range: Range<usize>) -> Message {
        Message { region, range }
    }

    /// Range of the message in the region.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The region, for reuse.
    pub fn into_region(self) -> Region {
        self.region
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.region[self.range.clone()]
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.range.len())
    }
}

/// A request in the books of its connection.
struct UnderWay {
    connection: Arc<Connection>,
    /// `None` once its result was fetched.
    number: Option<usize>,
}

/// The old value of an atomic, and the region of an operation.
type Outcome = (Result<u64>, Option<Region>);

impl UnderWay {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Outcome> {
        self.ask(|connection, number| {
            connection.poll(waker, |work, waker| work.result(number, waker))
        })
    }

    fn look(&mut self, waker: &Waker) -> Poll<Outcome> {
        self.ask(|connection, number| {
            let found = connection.amend(|work, _| work.result(number, Some(waker)));
            found.map_or(Poll::Pending, Poll::Ready)
        })
    }

    fn ask(
        &mut self,
        poll: impl FnOnce(&Connection, usize) -> Poll<(std::result::Result<u64, Cause>, Option<Region>)>,
    ) -> Poll<Outcome> {
        let Some(number) = self.number else {
            return Poll::Pending;
        };
        poll(&self.connection, number).map(|(outcome, region)| {
            self.number = None;
            (outcome.map_err(Error::from), region)
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.connection
                .amend(|work, after| work.abandon(number, after));
        }
    }
}

/// An operation with a region.
struct Transfer(UnderWay);

impl Pending<Region> for Transfer {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Region>> {
        self.0.poll(waker).map(returned)
    }

    fn look(&mut self, waker: &Waker) -> Poll<Result<Region>> {
        self.0.look(waker).map(returned)
    }
}

fn returned((outcome, region): Outcome) -> Result<Region> {
    let region = region.ok_or_else(|| Error::you("the operation had no region"))?;
    match outcome {
        Ok(_) => Ok(region),
        Err(error) => Err(error.with(region)),
    }
}

/// An operation without a region: an atomic.
struct Question(UnderWay);

impl Pending<u64> for Question {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<u64>> {
        self.0.poll(waker).map(|(outcome, _)| outcome)
    }
}

struct Receiving {
    connection: Arc<Connection>,
    ticket: u64,
}

impl Pending<Message> for Receiving {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Message>> {
        let ticket = self.ticket;
        self.connection
            .poll(waker, |work, waker| work.message(ticket, waker))
    }

    fn look(&mut self, waker: &Waker) -> Poll<Result<Message>> {
        let ticket = self.ticket;
        let found = self
            .connection
            .amend(|work, _| work.message(ticket, Some(waker)));
        found.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.connection
            .amend(|work, after| work.leave(ticket, after));
    }
}

/// Finds a number in the books that is not the one that was seen, or keeps the waker.
type Look = fn(&mut Work, &Qp, u64, Option<&Waker>) -> Option<Result<u64>>;

/// A wait for a write of the peer, or for anything.
struct Watching {
    connection: Arc<Connection>,
    seen: u64,
    look: Look,
}

impl Watching {
    fn found(&self, work: &mut Work, waker: Option<&Waker>) -> Option<Result<u64>> {
        (self.look)(work, self.connection.queue_pair(), self.seen, waker)
    }
}

impl Pending<u64> for Watching {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<u64>> {
        self.connection
            .poll(waker, |work, waker| self.found(work, waker))
    }

    fn look(&mut self, waker: &Waker) -> Poll<Result<u64>> {
        let found = self
            .connection
            .amend(|work, _| self.found(work, Some(waker)));
        found.map_or(Poll::Pending, Poll::Ready)
    }
}

struct Closing(Endpoint);

impl Pending<()> for Closing {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<()>> {
        let connection = &self.0.connection;
        let mut closed = connection.close_at_rest(waker);
        if closed.is_none() {
            match waker {
                Some(_) => connection.arm_and_progress(),
                None => connection.progress(),
            };
            closed = connection.close_at_rest(None);
        }
        closed.map_or(Poll::Pending, Poll::Ready)
    }
}

/// A connection that was requested.
pub(crate) struct Connecting(Option<Arc<Connection>>);

impl Connecting {
    pub(crate) fn new(connection: Arc<Connection>) -> Connecting {
        Connecting(Some(connection))
    }
}

impl Pending<Endpoint> for Connecting {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Endpoint>> {
        let Some(connection) = &self.0 else {
            return Poll::Pending;
        };
        let mut opened = connection.opened(waker);
        if opened.is_none() {
            connection.progress();
            connection.hub.take_events();
            opened = connection.opened(None);
        }
        match opened {
            Some(Ok(())) => Poll::Ready(
                self.0
                    .take()
                    .map(Endpoint::new)
                    .ok_or_else(|| Error::you("the connection was handed out already")),
            ),
            Some(Err(error)) => Poll::Ready(Err(error)),
            None => Poll::Pending,
        }
    }
}
