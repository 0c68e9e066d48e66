//! Write-Record: messages that datagrams write into memory of their target, which logs what arrived
//! (`docs/design/030-write-record.md`).
//!
//! [`RecordTarget`] is the machine of the target. Its requester is that of datagrams
//! ([`QueuePair::set_record_requester`](crate::QueuePair::set_record_requester)).

mod answers;
mod entry;
pub(crate) mod index;
pub(crate) mod list;
mod reads;
mod reply;
mod requester;
mod sends;
mod server;
mod sources;
mod target;
mod told;

use core::ops::Range;
use core::time::Duration;

use airdma_wire::{Neighbour, Qpn, RecordPacket, Rkey};

use crate::completion::Completion;
use crate::counter::Counter;
use crate::host::{Receive, RemoteFault, Slot};
use crate::work::MESSAGE_LEN_MAX;

pub(crate) use answers::Answers;
pub use reads::{CannotRead, RECORD_READS_MAX, ReadRequest, Reader};
pub use reply::RecordReply;
pub use requester::RecordForm;
pub(crate) use requester::{NextPart, RECORD_PAYLOAD_MIN, RecordRequester};
pub use server::ReadAsked;
pub use target::RecordTarget;

/// Most messages that may be open at once.
pub const RECORD_OPEN_MAX: u32 = 4096;
/// Most records that an application may have without freeing one.
pub const RECORD_CLOSED_MAX: u32 = 1 << 16;
/// Most units of a message: one of 2 GiB in packets of 1,024 bytes.
pub const RECORD_UNITS_MAX: u32 = 1 << 21;
/// Most sources of which numbers are remembered.
pub const RECORD_SOURCES_MAX: u32 = 1 << 17;
/// Most bytes of all maps of one target.
pub const RECORD_MAP_BYTES_MAX: u64 = 256 << 20;

/// Bits of a word of a map.
const WORD: u32 = u64::BITS;

/// The memory of a target, and when it closes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// Messages open at once, at most [`RECORD_OPEN_MAX`].
    pub open_max: u32,
    /// Records that are not freed, at most [`RECORD_CLOSED_MAX`].
    pub closed_max: u32,
    /// Units (packets) of a message, at most [`RECORD_UNITS_MAX`].
    pub units_max: u32,
    /// Sources of which the numbers of closed messages are remembered, at most
    /// [`RECORD_SOURCES_MAX`] and at least `open_max` and `closed_max` together.
    pub sources_max: u32,
    /// A message closes when no packet of it arrived for this long.
    pub idle: Duration,
    /// A message closes when it has been open for this long.
    pub age: Duration,
    /// The rule of the paper: the packet at the end closes a message, and one without it is lost.
    pub strict_last: bool,
}

impl Default for RecordConfig {
    fn default() -> Self {
        RecordConfig {
            open_max: 64,
            closed_max: 192,
            units_max: 4096,
            sources_max: 1024,
            idle: Duration::from_millis(20),
            age: Duration::from_secs(1),
            strict_last: false,
        }
    }
}

/// A value of a [`RecordConfig`] is zero, too large, or does not fit another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {0} of a queue pair's records")]
pub struct InvalidRecordConfig(pub &'static str);

impl RecordConfig {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub fn check(&self) -> Result<(), InvalidRecordConfig> {
        let is_within = |value, max| (1..=max).contains(&value);
        let map_bytes = u64::from(self.entries()) * u64::from(self.map_words()) * 8;
        let rules = [
            (is_within(self.open_max, RECORD_OPEN_MAX), "open_max"),
            (is_within(self.closed_max, RECORD_CLOSED_MAX), "closed_max"),
            (is_within(self.units_max, RECORD_UNITS_MAX), "units_max"),
            (map_bytes <= RECORD_MAP_BYTES_MAX, "units_max"),
            (
                (self.entries()..=RECORD_SOURCES_MAX).contains(&self.sources_max),
                "sources_max",
            ),
            (!self.idle.is_zero(), "idle"),
            (!self.age.is_zero(), "age"),
        ];
        let broken = rules.into_iter().find(|(holds, _)| !holds);
        broken.map_or(Ok(()), |(_, name)| Err(InvalidRecordConfig(name)))
    }

    pub(crate) fn entries(&self) -> u32 {
        self.open_max.saturating_add(self.closed_max)
    }

    pub(crate) fn map_words(&self) -> u32 {
        self.units_max.div_ceil(WORD)
    }
}

/// Why a message was closed; the numbers are those of `enum airdma_record_ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ended {
    /// All of it arrived.
    Whole = 0,
    /// No packet arrived for [`RecordConfig::idle`].
    Idle = 1,
    /// It was open for [`RecordConfig::age`].
    Age = 2,
    /// Others needed its entry.
    Displaced = 3,
    /// The application asked.
    Asked = 4,
    /// The memory is no longer registered for it.
    TakenBack = 5,
    /// The packet at its end arrived ([`RecordConfig::strict_last`]).
    Last = 6,
    /// It was asked for, and the peer does not allow that.
    Refused = 7,
    /// It was asked for, and the queue pair sends no more.
    Flushed = 8,
}

/// A record for the application: an entry of the target's table, until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordHandle(pub u64);

/// Where a message comes from, and to which group it goes. Keys of groups are apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordOrigin {
    /// Address of its sender.
    pub source: Neighbour,
    /// The multicast group that it was sent to, if it was.
    pub group: Option<Neighbour>,
}

/// What is known of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Address that it came from.
    pub source: Neighbour,
    /// The multicast group that it was sent to, if it was.
    pub group: Option<Neighbour>,
    /// Whether it was asked for: memory of the peer was read.
    pub is_read: bool,
    /// Queue pair that sent it.
    pub src_qpn: Qpn,
    /// Its number.
    pub id: u32,
    /// First address.
    pub va: u64,
    /// Key of the memory.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub length: u32,
    /// Bytes of a unit; the last one may have less.
    pub unit: u16,
    /// Bytes that arrived.
    pub valid_bytes: u32,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
    /// Whether a packet had the solicited event bit.
    pub solicited: bool,
    /// Why it was closed; `None` while it is open.
    pub ended: Option<Ended>,
    /// A bit for each unit that arrived: bit `k % 64` of word `k / 64`.
    pub map: &'a [u64],
}

impl Record<'_> {
    /// Number of units.
    pub fn units(&self) -> u32 {
        self.length.div_ceil(u32::from(self.unit))
    }

    /// Whether unit `index` arrived.
    pub fn has_unit(&self, index: u32) -> bool {
        has_unit(self.map, index)
    }

    /// The bytes that arrived, as ranges of the message, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u32>> + use<'_> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = (next..self.units()).find(|&unit| self.has_unit(unit))?;
            let end = (first..self.units())
                .find(|&unit| !self.has_unit(unit))
                .unwrap_or(self.units());
            next = end;
            let byte = |unit: u32| {
                let byte = u64::from(unit) * u64::from(self.unit);
                u64::from(self.length).min(byte) as u32
            };
            Some(byte(first)..byte(end))
        })
    }
}

fn has_unit(map: &[u64], unit: u32) -> bool {
    let word = map.get((unit / WORD) as usize);
    word.is_some_and(|word| word >> (unit % WORD) & 1 != 0)
}

/// The memory that records are written to. As with [`Host`](crate::Host), every access is checked
/// anew.
pub trait RecordHost {
    /// Whether a message of that origin may write `length` bytes at `va`.
    fn check_record(
        &mut self,
        origin: RecordOrigin,
        rkey: Rkey,
        va: u64,
        length: u32,
    ) -> Result<(), RemoteFault>;

    /// Places part of a message of that origin.
    fn write_record(
        &mut self,
        origin: RecordOrigin,
        rkey: Rkey,
        va: u64,
        data: &[u8],
    ) -> Result<(), RemoteFault>;

    /// Places part of what was read from a peer, in memory of the application's own.
    fn write_read(&mut self, _lkey: Rkey, _va: u64, _data: &[u8]) -> Result<(), RemoteFault> {
        Err(RemoteFault::Access)
    }

    /// Counts `counter` once.
    fn count_record(&mut self, counter: Counter);

    /// Takes the next posted receive for a message, which may complete later than others.
    fn take_message(&mut self) -> Option<Receive> {
        None
    }

    /// Places the header of a message, [`GRH_LEN`](airdma_wire::GRH_LEN) bytes, at the start of a
    /// receive.
    fn place_header(&mut self, _receive: Slot, _header: &[u8]) {}

    /// Places part of a message behind the header. False if the memory is gone.
    fn place_message(&mut self, _receive: Slot, _offset: u32, _data: &[u8]) -> bool {
        false
    }

    /// Completes a receive that was taken for a message.
    fn complete_message(&mut self, _receive: Slot, _completion: Completion) {}

    /// Flushes a receive that was taken and not used.
    fn flush_message(&mut self, _receive: Receive) {}
}

/// The part of a message that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    unit: u32,
    units: u32,
    /// Bytes of the payload that are part of the message.
    len: usize,
}

impl Part {
    /// `None` if lengths and offset do not fit each other. The packet at the end may be as long as
    /// the others, with zeros behind its part of the message.
    fn of(packet: &RecordPacket<'_>) -> Option<Part> {
        let (length, offset) = (packet.headers.reth.length, packet.headers.rceth.offset);
        let unit = u32::from(packet.headers.rceth.unit);
        if packet.headers.is_send && length == 0 {
            let is_empty =
                packet.headers.token.is_some() && offset == 0 && packet.payload.is_empty();
            return is_empty.then_some(Part {
                unit: 0,
                units: 1,
                len: 0,
            });
        }
        let len = unit.min(length.saturating_sub(offset)) as usize;
        let fits = unit > 0
            && (packet.headers.token.is_some() || !packet.headers.is_send)
            && length <= MESSAGE_LEN_MAX
            && offset < length
            && offset.is_multiple_of(unit)
            && (packet.payload.len() == len || is_padded(packet.payload, len, unit as usize))
            && packet.headers.reth.va.checked_add(length.into()).is_some();
        fits.then(|| Part {
            unit: offset / unit,
            units: length.div_ceil(unit),
            len,
        })
    }

    fn is_last(self) -> bool {
        self.unit + 1 == self.units
    }
}

/// Whether zeros follow the first `len` bytes of a payload, as far as the unit.
#[cold]
fn is_padded(payload: &[u8], len: usize, unit: usize) -> bool {
    let padding = payload.get(len..).filter(|_| payload.len() == unit);
    padding.is_some_and(|padding| padding.iter().all(|&byte| byte == 0))
}

/// How a message is divided into packets of equal length, each with at most `payload_max` bytes:
/// the unit, in whole words unless the message has one packet.
pub(crate) fn unit_of(length: u32, payload_max: u32) -> u32 {
    if length <= payload_max {
        return length;
    }
    let packets = length.div_ceil(payload_max.max(4));
    length.div_ceil(packets).next_multiple_of(4)
}
