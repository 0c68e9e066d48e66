//! Connections, as their user sees them.

use crate::connection::Connection;
use crate::operation::Pending;
use crate::work::{Buffer, Request};
use crate::{Error, Operation, Region, Remote, Result};
use airdma_engine::LIMITS;
use std::fmt;
use std::net::IpAddr;
use std::ops::{Deref, Range, RangeBounds};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// One end of a connection: messages both ways, each whole and in order, and the peer's regions.
///
/// Any thread may use it, and any number of operations may be under way. The device takes 128 transfers and 128 receives at a
/// time; more wait their turn. Dropping the endpoint ends the connection at once; [`Endpoint::close`] does when all is done.
pub struct Endpoint {
    connection: Arc<Connection>,
}

/// A message that has come: its bytes, in the region that was given to receive one.
pub struct Message {
    region: Region,
    range: Range<usize>,
}

impl Endpoint {
    /// Who is at the other end.
    pub fn peer(&self) -> IpAddr {
        self.connection.peer
    }

    /// Sends `range` of a region as one message. Done when the peer has received it, which it does once it calls
    /// [`Endpoint::recv`]: a sender waits for a slow receiver. The region comes back then.
    ///
    /// # Errors
    /// Yours, for a range beyond its end; the peer's, if it closed, died, or its region is too small; the network's, if it does
    /// not answer.
    pub fn send(&self, region: Region, range: impl RangeBounds<usize>) -> Operation<Region> {
        self.transfer(region, range, |_| Ok(Request::Send))
    }

    /// Receives one message into `range` of a region: one at least as long as the message, or the connection is over. Messages
    /// go to receivers in the order in which those asked.
    ///
    /// Given up, it loses nothing: the message is the next receiver's, who finds it in this region instead of its own.
    ///
    /// # Errors
    /// As [`Endpoint::send`]. After the last message of a peer that closed, [`Error::is_closed`] is true.
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

    /// Writes `range` of a region into the peer's at offset `at`. The peer does nothing for it, and hears nothing of it. Done
    /// when the bytes are there.
    ///
    /// # Errors
    /// Yours, beyond the end of either region; the peer's, if its region is not shared (any more) for writing; and as
    /// [`Endpoint::send`].
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

    /// Reads what is in the peer's region at offset `at` into `range` of a region.
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

    /// Adds to the word at offset `at` of the peer's region, in one step, and gives what was there before.
    ///
    /// # Errors
    /// As [`Endpoint::write`]; yours, where `at` is no multiple of 8.
    pub fn fetch_add(&self, on: &Remote, at: u64, add: u64) -> Operation<u64> {
        let request = on.word_at(at);
        self.ask(request.map(|(va, key)| Request::FetchAdd { va, key, add }))
    }

    /// Puts `swap` where `compare` is, at offset `at` of the peer's region, in one step, and gives what was there before: if that
    /// is `compare`, it worked.
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

    /// Says how many bytes wait in a buffer of yours that the peer fills, for a disk say, and how many fit; 0 of 0: there is none (any
    /// more). It should hold many times what you take out of it at once. Cheap: say it each time that it changes.
    ///
    /// In air mode (by itself on Wi-Fi, else `AIRDMA_AIR=1`) a peer sends no faster than the buffer empties, so that what you cannot
    /// take waits at its end and not in the network. It is advice: what keeps the buffer from overflowing is still up to you. Without
    /// air mode it is not told.
    pub fn tell_buffer(&self, bytes: u64, capacity: u64) {
        self.connection.tell_buffer(bytes, capacity);
    }

    /// The binding of a [sealed](crate::Device::sealed) connection: 32 bytes that its two ends share with no other connection.
    ///
    /// A host in the middle holds two connections, whose bindings differ. Ends that compare bindings over a trusted channel, or authenticate
    /// them, detect it. `None` until the keys are exchanged, about a round trip after the connection is open.
    pub fn binding(&self) -> Option<[u8; 32]> {
        self.connection.queue_pair().sealed_binding()
    }

    /// Ends the connection once what was asked for is done. The peer receives what was sent before, and then that it is closed.
    ///
    /// # Errors
    /// What went wrong before that.
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

    /// Checks what an operation is given.
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

    /// Where in the region it lies.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The region, to be used again.
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
    /// None once its result was fetched.
    number: Option<usize>,
}

impl UnderWay {
    /// What an atomic found, and the region that was given.
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<(Result<u64>, Option<Region>)> {
        let Some(number) = self.number else {
            return Poll::Pending;
        };
        let polled = self
            .connection
            .poll(waker, |work, waker| work.result(number, waker));
        polled.map(|(outcome, region)| {
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

/// One that has a region.
struct Transfer(UnderWay);

impl Pending<Region> for Transfer {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Region>> {
        self.0.poll(waker).map(|(outcome, region)| {
            let region = region.ok_or_else(|| Error::you("the operation had no region"))?;
            match outcome {
                Ok(_) => Ok(region),
                Err(error) => Err(error.with(region)),
            }
        })
    }
}

/// One that has none: an atomic.
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
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.connection
            .amend(|work, after| work.leave(ticket, after));
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
                None => drop(connection.progress()),
            }
            closed = connection.close_at_rest(None);
        }
        closed.map_or(Poll::Pending, Poll::Ready)
    }
}

/// A connection that was asked for.
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
