//! Which bytes of a message arrived.

use crate::DatagramAddress;
use airdma_engine as engine;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;

pub use engine::Ended;

/// What is known of a message by datagrams: where it is, and which of its bytes arrived.
///
/// It is what a [`Record`](crate::Record) and the result of a read by datagrams
/// ([`Fetched`](crate::Fetched)) say of themselves, and of a message that is still arriving what
/// [`DatagramEndpoint::peek_record`](crate::DatagramEndpoint::peek_record) shows.
#[derive(Clone)]
pub struct Arrived {
    source: IpAddr,
    group: Option<IpAddr>,
    source_queue_pair: u32,
    number: u32,
    pub(crate) va: u64,
    pub(crate) key: engine::Rkey,
    /// Where it begins in its region.
    offset: usize,
    length: usize,
    unit: usize,
    valid_bytes: usize,
    immediate: Option<u32>,
    ended: Option<Ended>,
    valid: Vec<Range<usize>>,
}

impl Arrived {
    pub(crate) fn of(record: &engine::Record<'_>) -> Arrived {
        let bytes = |range: Range<u32>| range.start as usize..range.end as usize;
        let address = |of| engine::Gid::from(of).to_ip();
        Arrived {
            source: address(record.source),
            group: record.group.map(address),
            source_queue_pair: record.src_qpn.get(),
            number: record.id,
            va: record.va,
            key: record.rkey,
            offset: 0,
            length: record.length as usize,
            unit: record.unit.into(),
            valid_bytes: record.valid_bytes as usize,
            immediate: record.imm.map(u32::from_be_bytes),
            ended: record.ended,
            valid: record.ranges().map(bytes).collect(),
        }
    }

    /// The same at `offset` of its region.
    pub(crate) fn at(self, offset: usize) -> Arrived {
        Arrived { offset, ..self }
    }

    /// Address of the host that sent it.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Number of the endpoint that sent it, of those of its host
    /// ([`DatagramAddress::number`](DatagramAddress::number)).
    pub fn source_number(&self) -> u32 {
        self.source_queue_pair
    }

    /// Whether the endpoint with this address sent it.
    ///
    /// Source addresses of datagrams can be forged, as those of UDP can, unless they are sealed.
    pub fn is_from(&self, address: &DatagramAddress) -> bool {
        self.source() == address.ip() && self.source_number() == address.number()
    }

    /// The multicast group that it was sent to, if it was.
    pub fn group(&self) -> Option<IpAddr> {
        self.group
    }

    /// Its number: the source counts its messages from 0, those to other targets too. Reads have
    /// numbers of their own.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The number that the source sent along.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// Length of the whole message, whatever arrived.
    #[allow(clippy::len_without_is_empty, reason = "a message has bytes")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Its range of the region.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.length
    }

    /// Number of bytes that arrived.
    pub fn valid_bytes(&self) -> usize {
        self.valid_bytes
    }

    /// The bytes that arrived, as ranges of the message, in order.
    pub fn valid(&self) -> &[Range<usize>] {
        &self.valid
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
        self.valid_bytes == self.length
    }

    /// Why it was closed; `None` while it is arriving.
    pub fn end(&self) -> Option<Ended> {
        self.ended
    }

    /// Bytes that are lost or arrive together; the last ones may be fewer.
    pub fn unit(&self) -> usize {
        self.unit
    }
}

impl fmt::Debug for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arrived {
            source,
            number,
            length,
            valid_bytes,
            ..
        } = self;
        write!(
            f,
            "{valid_bytes} of {length} bytes, number {number} from {source}, "
        )?;
        match self.ended {
            Some(ended) => write!(f, "ended {ended:?}"),
            None => f.write_str("arriving"),
        }
    }
}
