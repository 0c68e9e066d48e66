//! What arrived of a message that was written by datagrams.

use crate::datagrams::Datagrams;
use crate::landing::{Landing, RecordKeys};
use crate::{DatagramAddress, Error, Result};
use airdma_engine::{self as engine, RecordHandle};
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

pub use engine::Ended;

/// One message of [`DatagramEndpoint::write_record`](crate::DatagramEndpoint::write_record) at its
/// target: where it is, and which of its bytes arrived.
///
/// It is part of the region that was shared. Its bytes do not change until it is dropped, unless
/// another message is written to the same place. Drop records soon: a target has room for some
/// (`closed_max`, 192, of one source address half of that), and without room messages are lost.
pub struct Record {
    datagrams: Arc<Datagrams>,
    handle: RecordHandle,
    /// `None` if the region was withdrawn before.
    landing: Option<Arc<Landing>>,
    offset: usize,
    seen: Seen,
}

/// What the device knows of it.
pub(crate) struct Seen {
    source: IpAddr,
    source_queue_pair: u32,
    number: u32,
    va: u64,
    key: engine::Rkey,
    length: usize,
    unit: usize,
    valid_bytes: usize,
    immediate: Option<u32>,
    ended: Ended,
    valid: Vec<Range<usize>>,
}

impl Seen {
    pub(crate) fn of(record: &engine::Record<'_>) -> Seen {
        let bytes = |range: Range<u32>| range.start as usize..range.end as usize;
        Seen {
            source: engine::Gid::from(record.source).to_ip(),
            source_queue_pair: record.src_qpn.get(),
            number: record.id,
            va: record.va,
            key: record.rkey,
            length: record.length as usize,
            unit: record.unit.into(),
            valid_bytes: record.valid_bytes as usize,
            immediate: record.imm.map(u32::from_be_bytes),
            ended: record.ended.unwrap_or(Ended::Asked),
            valid: record.ranges().map(bytes).collect(),
        }
    }
}

impl Record {
    pub(crate) fn new(datagrams: &Arc<Datagrams>, handle: RecordHandle, seen: Seen) -> Record {
        let found = datagrams.hub.landings.find(seen.key).and_then(|landing| {
            let offset = landing.offset(seen.va)?;
            Some((landing, offset))
        });
        let (landing, offset) = found.map_or((None, 0), |(landing, at)| (Some(landing), at));
        Record {
            datagrams: Arc::clone(datagrams),
            handle,
            landing,
            offset,
            seen,
        }
    }

    /// Address of the host that sent it.
    pub fn source(&self) -> IpAddr {
        self.seen.source
    }

    /// Number of the endpoint that sent it, of those of its host
    /// ([`DatagramAddress::number`](DatagramAddress::number)).
    pub fn source_number(&self) -> u32 {
        self.seen.source_queue_pair
    }

    /// Whether the endpoint with this address sent it.
    ///
    /// Source addresses of datagrams can be forged, as those of UDP can.
    pub fn is_from(&self, address: &DatagramAddress) -> bool {
        self.source() == address.ip() && self.source_number() == address.number()
    }

    /// Its number: the source counts its messages from 0, those to other targets too.
    pub fn number(&self) -> u32 {
        self.seen.number
    }

    /// The number that the source sent along.
    pub fn immediate(&self) -> Option<u32> {
        self.seen.immediate
    }

    /// Length of the whole message, whatever arrived.
    #[allow(clippy::len_without_is_empty, reason = "a message has bytes")]
    pub fn len(&self) -> usize {
        self.seen.length
    }

    /// Its range of the region.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.seen.length
    }

    /// Number of bytes that arrived.
    pub fn valid_bytes(&self) -> usize {
        self.seen.valid_bytes
    }

    /// The bytes that arrived, as ranges of the message, in order.
    pub fn valid(&self) -> &[Range<usize>] {
        &self.seen.valid
    }

    /// The bytes that are missing, as ranges of the message, in order.
    pub fn missing(&self) -> impl Iterator<Item = Range<usize>> {
        let end = self.len();
        let starts = std::iter::once(0).chain(self.valid().iter().map(|valid| valid.end));
        let ends = self.valid().iter().map(|valid| valid.start);
        let gaps = starts.zip(ends.chain(std::iter::once(end)));
        gaps.filter(|(start, end)| start < end)
            .map(|(start, end)| start..end)
    }

    /// Whether all of `range` of the message arrived.
    pub fn has(&self, range: Range<usize>) -> bool {
        let at = self.valid().partition_point(|valid| valid.end < range.end);
        let within = self.valid().get(at);
        within.is_some_and(|valid| valid.start <= range.start && range.end <= valid.end)
    }

    /// Whether all of it arrived.
    pub fn is_whole(&self) -> bool {
        self.seen.valid_bytes == self.seen.length
    }

    /// Why it was closed.
    pub fn ended(&self) -> Ended {
        self.seen.ended
    }

    /// Bytes that are lost or arrive together; the last ones may be fewer.
    pub fn unit(&self) -> usize {
        self.seen.unit
    }

    /// Copies what is at `offset` of the message. Where nothing arrived, the region has
    /// what it had before.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the range exceeds the message, or the region was
    /// withdrawn.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        if offset
            .checked_add(bytes.len())
            .is_none_or(|end| end > self.len())
        {
            return Err(Error::you(format!(
                "{} bytes at offset {offset} of a record of {} bytes: stay within it",
                bytes.len(),
                self.len()
            )));
        }
        match &self.landing {
            Some(landing) => landing.copy_out(self.offset + offset, bytes),
            None => Err(Error::you(
                "the region of the record was withdrawn before the record was taken",
            )),
        }
    }

    /// A copy of the message, with zeros where nothing arrived.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the region was withdrawn.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        for valid in self.valid() {
            self.copy_out(valid.start, &mut bytes[valid.clone()])?;
        }
        Ok(bytes)
    }

    pub(crate) fn landed_in(&self, keys: &RecordKeys) -> bool {
        let landing = self.landing.as_ref();
        landing.is_some_and(|landing| keys.are_of(landing))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.datagrams.free(self.handle);
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen {
            source,
            number,
            length,
            valid_bytes,
            ended,
            ..
        } = &self.seen;
        write!(
            f,
            "Record({valid_bytes} of {length} bytes, number {number} from {source}, ended {ended:?})"
        )
    }
}
