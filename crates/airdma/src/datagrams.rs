//! Endpoints without connections: messages that are written by datagrams, and their records.

use crate::error::Cause;
use crate::hub::{Hub, Member, lock};
use crate::operation::Pending;
use crate::work::{Buffer, SEND_DEPTH};
use crate::{
    Arrived, Blame, DatagramAddress, Device, Error, Fetched, Operation, Record, Region, Remote,
    Result, Rights, Shared, datagram_address, device, polling,
};
use airdma_engine::{
    AttrMask, Completion, Cq, Datagram, DatagramRead, Gid, Lkey, Operation as Verb, Qkey, Qp,
    QpAttributes, QpCaps, QpInit, QpState, QpType, RecordConfig, RecordHandle, Rkey,
};
use books::{Aftermath, Books};
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Range, RangeBounds};
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Poll, Waker};
use std::time::Duration;

mod books;
mod reads;

/// UDP port of RoCEv2, for the choice of a source address.
const ROCE_PORT: u16 = 4791;
/// Requests of a read without an answer, after which it ends.
const TRIES: u32 = 8;

/// An endpoint without a connection: it writes messages into regions of any number of targets, and
/// takes the records of messages that any number of sources write.
///
/// Nothing is repeated: what is lost is missing at the target, whose [`Record`] says what arrived.
/// Any thread may use it. The device handles 128 messages at a time; more wait for their turn.
/// Dropping the endpoint ends its operations.
pub struct DatagramEndpoint {
    datagrams: Arc<Datagrams>,
    device: Device,
    address: DatagramAddress,
}

/// The records of an endpoint, one after the other: see [`DatagramEndpoint::records`].
pub struct Records<'a> {
    endpoint: &'a DatagramEndpoint,
    limit: Option<Duration>,
}

pub(crate) struct Datagrams {
    number: u64,
    pub(crate) hub: Arc<Hub>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    /// Completions between the queue and the books. Its lock keeps them in order.
    polling: Mutex<Vec<Completion>>,
    books: Mutex<Books>,
}

impl DatagramEndpoint {
    pub(crate) fn new(
        device: &Device,
        hub: &Arc<Hub>,
        config: RecordConfig,
        group: Option<&DatagramAddress>,
    ) -> Result<DatagramEndpoint> {
        let address = device.address().ok_or_else(|| {
            Error::you("the interface has no address, which an endpoint needs: give it one")
        })?;
        let datagrams = Datagrams::new(hub, config)?;
        if device.seals() && !datagrams.qp.seals_datagrams() {
            return Err(Error::you(
                "an endpoint without a connection agrees on no keys: to seal it give both hosts one secret (`DeviceConfig::secret`, AIRDMA_SECRET)",
            ));
        }
        let qpn = datagrams.qp.number();
        let qkey = group.map_or_else(datagram_address::random_qkey, |group| group.qkey);
        datagrams.make_ready(qkey)?;
        if let Some(group) = group {
            datagrams.qp.attach_multicast(group.gid)?;
        }
        let gid = Gid::from(address);
        Ok(DatagramEndpoint {
            address: DatagramAddress { gid, qpn, qkey },
            device: device.clone(),
            datagrams,
        })
    }

    /// Its address, for sources: send them [`DatagramAddress::to_bytes`], and the
    /// [`Remote`] of a region ([`Shared::remote_for_records`](crate::Shared::remote_for_records)).
    ///
    /// With it alone a source can write nothing.
    pub fn address(&self) -> DatagramAddress {
        self.address
    }

    /// Writes `range` of a region into the target's region at offset `at`, as one message of 1 byte
    /// to 2 GiB - 1, and sends `immediate` along.
    ///
    /// Returns the region when the last packet has left; whether any arrives, the source does not
    /// learn. Write to the same place again only when the target has dropped the record of the
    /// message there, or 32 messages later: bytes of two messages may be mixed otherwise.
    ///
    /// # Errors
    /// - [`Blame::You`]: a range exceeds its region, or is empty; the device has no address of the
    ///   family of the target's.
    /// - [`Blame::System`]: the interface is gone.
    pub fn write_record(
        &self,
        to: &DatagramAddress,
        region: Region,
        range: impl RangeBounds<usize>,
        remote: &Remote,
        at: u64,
        immediate: Option<u32>,
    ) -> Operation<Region> {
        let hub = &self.datagrams.hub;
        let (verb, buffer) = match self.message(region, range, remote, at, immediate) {
            Ok(message) => message,
            Err(error) => return Operation::failed(hub, error),
        };
        let to = match self.path_of(to) {
            Ok(to) => to,
            Err(error) => return Operation::failed(hub, error.with(buffer.region)),
        };
        let number = self.datagrams.start(|books| books.write(to, verb, buffer));
        let datagrams = Arc::clone(&self.datagrams);
        Operation::new(hub, Writing { datagrams, number })
    }

    /// Reads `range.len()` bytes at offset `at` of the peer's region into `range` of a region, by
    /// datagrams. What is lost is asked for again until all is there, `deadline` has passed, or the
    /// peer has not answered eight times. `from` is an endpoint of the peer, of the device of its
    /// region; its program does nothing for it.
    ///
    /// Returns the region, and which bytes arrived: perhaps not all. The device handles 64 reads at
    /// a time (half of `open_max` at most); more wait for their turn.
    ///
    /// # Errors
    /// The region is in the error.
    /// - [`Blame::You`]: a range exceeds its region, or is empty; no time; the device has no
    ///   address of the family of the peer's; the read has more than `units_max` packets.
    /// - [`Blame::Peer`]: it does not allow the read.
    /// - [`Blame::Network`]: nothing arrived in time.
    /// - [`Blame::System`]: the interface is gone, or records that are held leave no room.
    pub fn read_record(
        &self,
        from: &DatagramAddress,
        region: Region,
        range: impl RangeBounds<usize>,
        remote: &Remote,
        at: u64,
        deadline: Duration,
    ) -> Operation<Fetched> {
        let hub = &self.datagrams.hub;
        let checked = self.part_of_message(&region, range, remote, at);
        let (range, va, rkey) = match checked {
            Ok(checked) => checked,
            Err(error) => return Operation::failed(hub, error.with(region)),
        };
        let datagram = match self.path_of(from) {
            Ok(path) => path,
            Err(error) => return Operation::failed(hub, error.with(region)),
        };
        let buffer = Buffer { region, range };
        let element = buffer.element();
        let wanted = DatagramRead {
            datagram,
            va,
            rkey,
            length: element.length,
            lkey: Lkey(element.lkey),
            to: element.addr,
            deadline,
            tries: TRIES,
        };
        let number = self.datagrams.start(|books| books.read(wanted, buffer));
        let datagrams = Arc::clone(&self.datagrams);
        Operation::new(hub, Fetching { datagrams, number })
    }

    /// What has arrived so far of the message that writes the byte at `offset` of a shared region,
    /// while it arrives; the oldest if there are several, `None` if there is none.
    ///
    /// Its bytes can be copied out of the region where they are valid
    /// ([`Shared::copy_out`]); they do not change while the message is open.
    pub fn peek_record(&self, shared: &Shared, offset: usize) -> Option<Arrived> {
        let keys = shared.keys(Rights::RECORD).ok()?;
        keys.find_map(offset, |key, va| {
            let seen = self.datagrams.qp.peek_record(key, va, Arrived::of)?;
            let begin = offset.checked_sub((va - seen.va) as usize)?;
            Some(seen.at(begin))
        })
    }

    /// Ends the message that [`DatagramEndpoint::peek_record`] shows: its record comes at once,
    /// with what has arrived ([`Ended::Asked`](crate::Ended::Asked)). False if there is none.
    ///
    /// # Errors
    /// [`Blame::You`]: the region is shared without [`Rights::RECORD`](crate::Rights::RECORD); the
    /// endpoint has ended.
    pub fn close_record(&self, shared: &Shared, offset: usize) -> Result<bool> {
        let keys = shared.keys(Rights::RECORD)?;
        let closed = keys.find_map(offset, |key, va| {
            match self.datagrams.qp.close_record(key, va) {
                Ok(false) => None,
                other => Some(other),
            }
        });
        Ok(closed.transpose()?.unwrap_or(false))
    }

    /// The next record: of a message that is whole, or of which no more is awaited.
    ///
    /// Records go to readers in the order of their calls. A cancelled operation loses none.
    ///
    /// # Errors
    /// [`Blame::System`]: the interface is gone.
    pub fn record(&self) -> Operation<Record> {
        let datagrams = Arc::clone(&self.datagrams);
        let ticket = lock(&datagrams.books).enter_reader();
        Operation::new(&self.datagrams.hub, Reading { datagrams, ticket })
    }

    /// The records from now on: an iterator that waits for each.
    ///
    /// ```no_run
    /// # fn main() -> airdma::Result<()> {
    /// # let device = airdma::Device::open("127.0.0.1")?;
    /// let endpoint = device.datagram_endpoint()?;
    /// for record in endpoint.records() {
    ///     let record = record?;
    ///     println!("{} of {} bytes arrived", record.valid_bytes(), record.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn records(&self) -> Records<'_> {
        Records {
            endpoint: self,
            limit: None,
        }
    }

    /// The work request of a message, once its arguments are checked.
    fn message(
        &self,
        region: Region,
        range: impl RangeBounds<usize>,
        remote: &Remote,
        at: u64,
        immediate: Option<u32>,
    ) -> Result<(Verb, Buffer)> {
        let checked = self.part_of_message(&region, range, remote, at);
        let (range, va, rkey) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err(error.with(region)),
        };
        let verb = match immediate {
            Some(immediate) => Verb::RecordImm {
                va,
                rkey,
                imm: immediate.to_be_bytes(),
            },
            None => Verb::Record { va, rkey },
        };
        Ok((verb, Buffer { region, range }))
    }

    /// A part of a region, and the peer's address and key of as many bytes.
    fn part_of_message(
        &self,
        region: &Region,
        range: impl RangeBounds<usize>,
        remote: &Remote,
        at: u64,
    ) -> Result<(Range<usize>, u64, Rkey)> {
        let range = region.part(range)?;
        if range.is_empty() {
            return Err(Error::you("a record of 0 bytes: give it at least one"));
        }
        let (va, rkey) = remote.at(at, range.len())?;
        if !region.is_of(&self.datagrams.hub.pd) {
            return Err(Error::you(
                "a region of another device: allocate it from the one of this endpoint",
            ));
        }
        Ok((range, va, rkey))
    }

    fn path_of(&self, to: &DatagramAddress) -> Result<Datagram> {
        let index = self
            .device
            .source_for(SocketAddr::new(to.ip(), ROCE_PORT))?
            .1;
        Ok(Datagram {
            path: device::path_to(to.ip(), index),
            qpn: to.qpn,
            qkey: to.qkey,
        })
    }
}

impl Drop for DatagramEndpoint {
    fn drop(&mut self) {
        let closed = Cause::closed(Blame::You, "you dropped the endpoint");
        self.datagrams.end(closed);
    }
}

impl fmt::Debug for DatagramEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        write!(
            f,
            "DatagramEndpoint({} at {})",
            address.number(),
            address.ip()
        )
    }
}

impl Records<'_> {
    /// Ends the iterator when no record came for `limit`.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Records {
            limit: Some(limit),
            ..self
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let mut reading = self.endpoint.record();
        match self.limit {
            Some(limit) => reading.wait_timeout(limit),
            None => Some(reading.wait()),
        }
    }
}

impl Datagrams {
    fn new(hub: &Arc<Hub>, config: RecordConfig) -> Result<Arc<Datagrams>> {
        let number = hub.number();
        // Room for all requests and all records, so it never overflows.
        let entries = [config.open_max, config.closed_max];
        let entries = entries
            .into_iter()
            .fold(2 * SEND_DEPTH, u32::saturating_add);
        let channel = (Arc::clone(&hub.channel), number);
        let cq = hub.engine.create_cq(entries, Some(channel))?;
        let qp = hub.pd.create_qp(QpInit {
            qp_type: QpType::Ud,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps: QpCaps {
                max_send_wr: SEND_DEPTH,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
        })?;
        qp.enable_records(config)?;
        let this = Arc::new(Datagrams {
            number,
            hub: Arc::clone(hub),
            qp,
            cq,
            polling: Mutex::new(Vec::with_capacity(polling::BATCH)),
            books: Mutex::new(Books::new(config.open_max)),
        });
        hub.enter(number, Member::Datagrams(Arc::downgrade(&this)));
        Ok(this)
    }

    /// Takes the queue pair from RESET to RTS.
    fn make_ready(&self, qkey: Qkey) -> Result<()> {
        let mut attributes = QpAttributes {
            state: QpState::Init,
            port: 1,
            qkey,
            ..QpAttributes::default()
        };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        self.qp.modify(&attributes, init)?;
        attributes.state = QpState::ReadyToReceive;
        self.qp.modify(&attributes, AttrMask::STATE)?;
        attributes.state = QpState::ReadyToSend;
        self.qp
            .modify(&attributes, AttrMask::STATE | AttrMask::SQ_PSN)?;
        Ok(())
    }

    /// Starts what `enter` adds to the books; returns its number there.
    fn start<T>(&self, enter: impl FnOnce(&mut Books) -> T) -> T {
        let mut after = Aftermath::default();
        let (number, overflows) = {
            let mut books = lock(&self.books);
            let number = enter(&mut books);
            books.post(&self.qp, &mut after);
            (number, books.overflows())
        };
        after.settle(self);
        if overflows {
            // What waits for room must be posted even if no thread waits for it. Without
            // the hub's thread, a waiting thread does so.
            drop(self.hub.drive());
            self.arm_and_progress();
        }
        number
    }

    pub(crate) fn free(&self, handle: RecordHandle) {
        self.qp.free_record(handle);
    }

    /// Handles completions since the last [`Datagrams::arm_and_progress`].
    pub(crate) fn attend(&self) {
        self.progress();
        if lock(&self.books).is_watched() {
            self.arm_and_progress();
        }
    }

    pub(crate) fn lose_device(&self) {
        if let Some(cause) = self.hub.loss() {
            self.end(cause);
        }
    }

    /// Ends all operations, and wakes what waits for them.
    fn end(&self, cause: Cause) {
        let mut after = Aftermath::default();
        lock(&self.books).fail(cause, &mut after);
        let attributes = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        // A queue pair in RESET has nothing to flush.
        drop(self.qp.modify(&attributes, AttrMask::STATE));
        after.settle(self);
        self.arm_and_progress();
    }

    /// Runs the device until `look` finds its result in the books. If it does not, it must keep
    /// `waker`.
    fn poll<T>(
        &self,
        waker: Option<&Waker>,
        mut look: impl FnMut(&mut Books, Option<&Waker>) -> Option<T>,
    ) -> Poll<T> {
        let mut looked = look(&mut lock(&self.books), None);
        if looked.is_none() && (self.progress() || waker.is_some()) {
            looked = look(&mut lock(&self.books), waker);
        }
        if looked.is_none() && waker.is_some() {
            // Later completions raise an event; earlier ones are handled here.
            self.arm_and_progress();
            looked = look(&mut lock(&self.books), None);
        }
        looked.map_or(Poll::Pending, Poll::Ready)
    }

    fn amend(&self, change: impl FnOnce(&mut Books, &mut Aftermath)) {
        let mut after = Aftermath::default();
        change(&mut lock(&self.books), &mut after);
        after.settle(self);
    }

    /// Enters completions into the books, unless another thread is doing so. Returns whether there
    /// were any.
    fn progress(&self) -> bool {
        let mut after = Aftermath::default();
        let mut polling = match self.polling.try_lock() {
            Ok(polling) => polling,
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            // The other thread may have entered the awaited one.
            Err(TryLockError::WouldBlock) => return true,
        };
        let any = polling::take(&self.cq, &mut polling, |batch| {
            self.enter(batch, &mut after)
        });
        drop(polling);
        after.settle(self);
        any
    }

    /// Runs the device once, enters completions into the books, and arms the queue for later ones.
    fn arm_and_progress(&self) {
        let mut after = Aftermath::default();
        let mut polling = lock(&self.polling);
        polling::take_and_arm(&self.cq, true, false, &mut polling, |batch| {
            self.enter(batch, &mut after);
        });
        drop(polling);
        after.settle(self);
    }

    /// Enters completions into the books.
    fn enter(&self, batch: &[Completion], after: &mut Aftermath) {
        let mut books = lock(&self.books);
        for completion in batch {
            books.completed(completion, &self.qp, after);
        }
        books.post(&self.qp, after);
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.hub.leave(self.number);
        // The device must release the memory in the books first.
        self.qp.detach_all();
        drop(self.qp.destroy());
    }
}

/// A message on its way.
struct Writing {
    datagrams: Arc<Datagrams>,
    number: usize,
}

impl Pending<Region> for Writing {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Region>> {
        let number = self.number;
        let polled = self
            .datagrams
            .poll(waker, |books, waker| books.written(number, waker));
        polled.map(|(outcome, region)| match outcome {
            Ok(()) => Ok(region),
            Err(cause) => Err(Error::from(cause).with(region)),
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let number = self.number;
        self.datagrams
            .amend(|books, after| books.abandon(number, after));
    }
}

/// A read on its way.
struct Fetching {
    datagrams: Arc<Datagrams>,
    number: u64,
}

impl Pending<Fetched> for Fetching {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Fetched>> {
        let number = self.number;
        let polled = self
            .datagrams
            .poll(waker, |books, waker| books.reads.result(number, waker));
        polled.map(|(outcome, region)| match outcome {
            Ok(arrived) => Ok(Fetched::new(region, arrived)),
            Err(cause) => Err(Error::from(cause).with(region)),
        })
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let number = self.number;
        self.datagrams
            .amend(|books, after| books.reads.abandon(number, after));
    }
}

/// A wait for a record.
struct Reading {
    datagrams: Arc<Datagrams>,
    ticket: u64,
}

impl Pending<Record> for Reading {
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<Record>> {
        let (ticket, datagrams) = (self.ticket, &self.datagrams);
        let polled = datagrams.poll(waker, |books, waker| books.record(ticket, waker));
        polled.map(|found| {
            let handle = found?;
            let arrived = datagrams.qp.record(handle, Arrived::of);
            let arrived = arrived.ok_or_else(|| Error::you("the endpoint has ended"))?;
            Ok(Record::new(datagrams, handle, arrived))
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.datagrams
            .amend(|books, after| books.leave(ticket, after));
    }
}
